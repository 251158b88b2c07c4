"""How much there is to read, and how much of it a default loader and a worker import. These numbers may only fall.

A later feature names its own budget of tokens where it is asked for, and a default loader imports
none of it.
"""

from __future__ import annotations

import io
import json
import tokenize
from pathlib import Path

import pytest

from watching import run_script

pytestmark = pytest.mark.once
SRC = Path(__file__).parents[2] / "src"
SUFFIXES = (".py", ".pyx", ".pxd", ".pxi")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
TOKENS, MODULES = 269_378, 251
IMPORTED = {"consumer": (74, 66_055), "worker": (36, 30_146)}

DEFAULT = """
import json, sys
import numpy as np
import ringfeed

def mine():
    return sorted(name for name in sys.modules if name.split(".")[0] == "ringfeed")

class Modules:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return np.frombuffer(json.dumps(mine()).encode().ljust(8000), np.uint8)

with ringfeed.Loader(Modules(), batch_size=4, workers=2) as loader:
    worker = json.loads(bytes(next(iter(loader))[0]))
    print(json.dumps({"consumer": mine(), "worker": worker}))
"""


def tokens(path: Path) -> int:
    """What of a file is to be read, without comments, docstrings and layout."""
    count, begins = 0, True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in LAYOUT:
            begins = begins or token.type == tokenize.NEWLINE
        else:
            count += not (begins and token.type == tokenize.STRING)
            begins = False
    return count


def of_module(name: str) -> Path:
    """The file of a module."""
    place = SRC / name.replace(".", "/")
    files = [place / "__init__.py", *(place.with_suffix(suffix) for suffix in SUFFIXES)]
    return next(path for path in files if path.exists())


def test_what_there_is_to_read() -> None:
    """All of the source."""
    files = [path for path in SRC.rglob("*.p*") if path.suffix in SUFFIXES]
    assert len(files) <= MODULES
    assert sum(map(tokens, files)) <= TOKENS


def test_what_a_default_loader_imports() -> None:
    """Samples of a plain dataset by two worker processes: in the consumer, and in a worker."""
    out, _, _ = run_script(DEFAULT)
    for where, names in json.loads(out).items():
        modules, most = IMPORTED[where]
        assert len(names) <= modules, where
        assert sum(tokens(of_module(name)) for name in names) <= most, where


LISTS = """
import sys
import numpy as np
import ringfeed

class Rows:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        memory = np.zeros(4).view(np.memmap)
        memory[:] = "numpy.ma" in sys.modules
        return memory

with ringfeed.Loader(Rows(), batch_sampler=[[1, 2], np.array([3, 0])], workers=1) as loader:
    batches = [float(batch.sum()) for batch in loader]
print(batches, "numpy.ma" in sys.modules)
"""


def test_masked_arrays_are_not_imported() -> None:
    """They take 50 ms, in front of the first batch, and are known by their names."""
    out, _, _ = run_script(LISTS)
    assert out == "[0.0, 0.0] False\n"

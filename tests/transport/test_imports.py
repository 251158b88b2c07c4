"""A worker's modules come from where the consumer has them, and never from its directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import Oracle, drain

if TYPE_CHECKING:
    from collections.abc import Iterable

METHODS = ["spawn", "process"]
TRAP = (
    "import sys; sys.stderr.write(f'{__file__} was imported\\n'); raise SystemError('of the wrong "
    "folder')\n"
)
MAIN = """
import json, shelve, sys
import numpy as np
import ringfeed
with ringfeed.Loader([0, 1], workers=1, backend={method!r}, spec=ringfeed.Array((), "int64")) as loader:
    assert [batch.tolist() for batch in loader] == [[0, 1]]
{then}
class Asked:
    def __len__(self): return 2
    def __getitem__(self, index):
        import json, queue, shelve, tomllib_of_mine
        found = [json.__file__, queue.__file__, shelve.__file__, tomllib_of_mine.__file__]
        return np.frombuffer(json.dumps(found).encode().ljust(4096), np.uint8)
spec = ringfeed.Array((4096,), "uint8")
with ringfeed.Loader(Asked(), batch_size=2, workers=1, backend={method!r}, spec=spec) as loader:
    print(*json.loads(bytes(next(iter(loader))[0])), sep="\\n")
"""


def set_traps(folder: Path, names: Iterable[str]) -> None:
    """Put modules of these names into a folder, which say so when they are imported, and fail."""
    for name in names:
        (folder / f"{name}.py").write_text(TRAP)


def run(script: Path, cwd: Path) -> tuple[str, str]:
    """Run a script as a user does, whose folder is first on its path.

    Return its output and its errors.
    """
    found = subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return found.stdout, found.stderr


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return two new folders."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("method", METHODS)
def test_no_worker_imports_from_the_directory_that_it_runs_in(method: str, tmp_path: Path) -> None:
    """A job that is started in a folder runs none of its modules, however they are named.

    They have the names of modules of the standard library.
    """
    job, here = folders(tmp_path)
    set_traps(here, sys.stdlib_module_names)
    script = job / "script.py"
    script.write_text(
        "import ringfeed\nwith ringfeed.Loader(list(range(8)), batch_size=4, workers=2, "
        f"backend={method!r}) as loader:\n    print([batch.tolist() for batch in loader])\n"
    )
    assert run(script, here) == ("[[0, 1, 2, 3], [4, 5, 6, 7]]\n", "")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_the_consumers_modules(method: str, tmp_path: Path) -> None:
    """What the consumer has of the standard library stays so.

    What a folder on its path hides is hidden there too.
    """
    job, later = folders(tmp_path)
    for name in (
        "shelve",
        "tomllib_of_mine",
    ):  # beside the script: they come before the standard library
        (job / f"{name}.py").touch()
    (later / "queue.py").touch()
    script = job / "script.py"
    then = (
        "from test_imports import Path, set_traps; sys.modules.pop('queue', None); later = "
        f"{str(later)!r}\nset_traps(Path(later), (sys.stdlib_module_names & {{*sys.modules}}) - "
        "{'queue', 'shelve'})\nsys.path.insert(0, later); import queue"
    )
    script.write_text(MAIN.format(then=then, method=method))
    out, errors = run(script, job)
    library = Path(subprocess.__file__).parent
    expected = [
        library / "json/__init__.py",
        later / "queue.py",
        job / "shelve.py",
        job / "tomllib_of_mine.py",
    ]
    assert (out.splitlines(), errors) == ([*map(str, expected)], "")


@pytest.mark.parametrize("method", METHODS)
def test_a_path_that_no_argument_can_hold(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sys.path of 300 kB, with names that are no UTF-8, arrives whole."""
    entries = [f"/nowhere/\udcff{number}/{'x' * 1000}" for number in range(300)]
    monkeypatch.setattr(sys, "path", [*sys.path, *entries])
    with ringfeed.Loader(Pathed(entries), batch_size=4, workers=1, backend=method) as loader:
        assert drain(loader) == list(range(8))


@pytest.mark.parametrize("method", ["spawn", "process", "fork"])
def test_a_dataset_in_an_archive(method: str, tmp_path: Path) -> None:
    """Workers import a dataset's class from a zip file that sys.path names relatively."""
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr(
            "numbers_of_mine.py",
            (
                "class Numbers:\n    def __len__(self): return 4\n    def __getitem__(self, "
                "index): return index\n"
            ),
        )
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, 'mine.zip')\nimport numbers_of_mine, ringfeed\nassert "
        "'mine.zip' in numbers_of_mine.__file__\nwith ringfeed.Loader(numbers_of_mine.Numbers(), "
        f"workers=1, backend={method!r}) as loader:\n    print([batch.tolist() for batch in "
        "loader])\n"
    )
    assert run(script, tmp_path) == ("[[0, 1, 2, 3]]\n", "")


def test_ringfeed_in_an_archive(tmp_path: Path) -> None:
    """It cannot run from there, and says so at once, with what to do."""
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in Path(ringfeed.__file__).parent.glob("*.py"):
            file.write(path, f"ringfeed/{path.name}")
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(archive)!r}); import ringfeed\n")
    assert run(script, tmp_path)[1].splitlines()[-1] == (
        f"ImportError: ringfeed cannot run from the archive {archive}: no system loads extension "
        "modules from one; install ringfeed in a folder (pip install --target FOLDER ringfeed), "
        "and put that on sys.path before the archive"
    )


def test_ringfeed_on_windows(tmp_path: Path) -> None:
    """It says at once what to do there."""
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.platform = 'win32'; import ringfeed\n")
    assert run(script, tmp_path)[1].splitlines()[-1] == (
        "ImportError: ringfeed needs Linux or macOS; this is Windows: install it in WSL, which is a "
        "Linux"
    )


class Pathed(Oracle):
    """Fails where sys.path does not end so."""

    def __init__(self, entries: list[str]) -> None:
        super().__init__(8)
        self.entries = entries

    def __getitem__(self, index: int) -> Any:
        """Look at the path first."""
        assert sys.path[-len(self.entries) :] == self.entries
        return super().__getitem__(index)

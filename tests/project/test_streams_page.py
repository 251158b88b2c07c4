"""The examples of docs/streams.md print what their comments say, and its texts of errors are those of tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "streams.md").read_text()
BLOCKS = dict(re.findall(r"\n## ([^\n]*)\n\n```python\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.once


def told(code: str) -> Iterator[str]:
    """Return what an example says that it prints: in the comment of its print(), and in those below."""
    for line in code.splitlines():
        if found := re.search(r"# (.*)", line):
            yield found[1]


def test_all_are_found() -> None:
    """Each block of code follows its heading."""
    assert len(BLOCKS) == PAGE.count("```python") == 6


@pytest.mark.parametrize("section", BLOCKS)
def test_an_example(section: str, tmp_path: Path) -> None:
    """As a script, with its worker processes, it prints what it says."""
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[section])
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [*told(BLOCKS[section])]


@pytest.mark.parametrize(
    "text", re.findall(r"^\| `(.*?)` \|", PAGE.partition("## Errors")[2], re.MULTILINE)
)
def test_a_text(text: str) -> None:
    """It is what a test expects."""
    names = (
        "tests/datasets/test_stream_ranks.py",
        "tests/engine/test_shards.py",
        "tests/reading/test_relay.py",
    )
    tests = "".join(re.sub(r'"\n\s*f?"', "", (ROOT / name).read_text()) for name in names)
    assert re.search(".{1,20}".join(map(re.escape, text.split("…"))), tests)

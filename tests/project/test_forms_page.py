"""The examples of docs/forms.md run, and its texts of errors are those of tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "forms.md").read_text()
BLOCKS = dict(re.findall(r"\n## ([^\n]*)\n\n```python\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.once


def test_all_are_found() -> None:
    """Each block of code follows its heading."""
    assert len(BLOCKS) == PAGE.count("```python") == 6


@pytest.mark.parametrize("section", BLOCKS)
def test_an_example(section: str, tmp_path: Path) -> None:
    """It runs to its end."""
    if "import keras" in BLOCKS[section]:
        pytest.importorskip("keras")
    for number in range(40):
        (tmp_path / str(number)).write_bytes(bytes(number))
    names: dict[str, Any] = {"paths": [str(path) for path in tmp_path.iterdir()]}
    exec(BLOCKS[section], names)  # noqa: S102 - the page's own code


@pytest.mark.parametrize(
    "text", re.findall(r"^\| `(.*?[^\\])` \|", PAGE.partition("## Errors")[2], re.MULTILINE)
)
def test_a_text(text: str) -> None:
    """It is what a test expects."""
    tests = (ROOT / "tests/engine/test_forms_loader.py").read_text()
    joined = re.sub(r'"\n\s*f?"', "", tests).replace("\\\\", "\\")
    assert text in joined

"""Names of the tests' own files and folders."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_files_have_one_name() -> None:
    """A run imports each file by its name alone: with two of one name, it ends before its first test."""
    names = Counter(file.name for file in TESTS.rglob("*.py") if file.name != "conftest.py")
    assert [name for name, files in names.items() if files > 1] == []


def test_make_runs_every_folder() -> None:
    """A folder that the Makefile does not name would never be run, and would look as if it passed."""
    named = set(re.findall(r"[\w/]+", (TESTS.parent / "Makefile").read_text()))
    folders = {str(file.parent.relative_to(TESTS)) for file in TESTS.rglob("test_*.py")} - {
        "sources"
    }
    assert sorted(folders - named) == []
    assert "tests/datasets" in named

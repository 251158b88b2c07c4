"""Names of the tests' own files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_files_have_one_name() -> None:
    """A run imports each file by its name alone: with two of one name, it ends before its first test."""
    names = Counter(file.name for file in TESTS.rglob("*.py") if file.name != "conftest.py")
    assert [name for name, files in names.items() if files > 1] == []

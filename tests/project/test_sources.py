"""The pages of docs/sources run as they stand, where what they read is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import sourced

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once


@pytest.mark.parametrize("page", sourced.pages())
def test_a_page(page: str, tmp_path: Path) -> None:
    """Its code is a program, which says nothing."""
    script = tmp_path / "page.py"
    script.write_text(sourced.code_of(page))
    sourced.run(tmp_path, str(script))


def test_all_pages_are_in_the_table() -> None:
    """The table has a line for each page, and no other."""
    index = (sourced.FOLDER / "README.md").read_text()
    assert (
        sorted(set(re.findall(r"^\| \[[^\]]*\]\((\w+)\.md\)", index, re.MULTILINE)))
        == sourced.PAGES
    )

"""The pages of docs/: their code runs, in order; their links lead somewhere.

The messages that they quote exist.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import paged

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once
WIDTH = 88


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in paged.pages() if paged.codes(page)])
def test_a_page(page: str, tmp_path: Path) -> None:
    """Its blocks run one after another, as one program in an empty folder, and print what their comments say."""
    code = "\n".join(paged.codes(page))
    for package in paged.packages(code):
        pytest.importorskip(package, reason=f"{package} is not installed")
    paged.run(code, tmp_path)


@pytest.mark.parametrize("path", sorted(paged.FOLDER.rglob("*.md")), ids=lambda path: path.stem)
def test_the_links_of_a_page(path: Path) -> None:
    """Each leads to a file, or to a heading of one."""
    assert [*paged.broken_links(path)] == []


@pytest.mark.parametrize("path", sorted(paged.FOLDER.rglob("*.md")), ids=lambda path: path.stem)
def test_code_fits_the_page(path: Path) -> None:
    """No line of Python or of a shell is wider than 88 columns: the site shows it without scrolling."""
    blocks = re.findall(
        r"^```(?:python|sh)[^\n]*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE
    )
    assert [line for block in blocks for line in block.splitlines() if len(line) > WIDTH] == []


def test_the_links_of_the_readme() -> None:
    """As those of a page."""
    assert [*paged.broken_links(paged.ROOT / "README.md")] == []


@pytest.mark.parametrize("page", [page for page in paged.pages() if paged.messages(page)])
def test_the_messages_of_a_page(page: str) -> None:
    """Each is in the sources, but for the words that differ from case to case."""
    code = paged.source()
    assert [text for text in paged.messages(page) if text not in code] == []


def test_every_page_is_found_from_the_first_one() -> None:
    """The first page links to each."""
    index = paged.text_of("index")
    assert [
        page
        for page in [*paged.pages(), *paged.ELSEWHERE]
        if page != "index" and f"{page}" not in index
    ] == []


def test_the_memory_of_a_pydataset_is_that_of_the_bench() -> None:
    """The row of figures is the one that `bench/report` has put into the bench's page."""
    bench = (paged.ROOT / "bench" / "README.md").read_text()
    (row,) = [line for line in bench.splitlines() if line.startswith("| peak memory of the input")]
    assert row in paged.text_of("from-pydataset").splitlines()

"""The example of docs/profile.md runs, and its table has the rows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import paged
from ringfeed.tools.loaders import ROWS

if TYPE_CHECKING:
    from pathlib import Path

PAGE = paged.text_of("profile")

pytestmark = pytest.mark.once


def test_the_example(tmp_path: Path) -> None:
    """It runs to its end, and prints the report."""
    pytest.importorskip("torch", reason="torch is not installed")
    (code,) = paged.codes("profile")
    assert paged.run(code, tmp_path).startswith(
        "DataLoader of TensorDataset (batch_size=32, num_workers=1)\n"
    )


def test_the_rows() -> None:
    """The report on the page has each row, in order."""
    places = [PAGE.index(f"\n{name}  ") for name, _, _ in ROWS]
    assert places == sorted(places)

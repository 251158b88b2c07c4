"""The examples of docs/torch.md run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import paged

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = paged.codes("torch")

pytestmark = pytest.mark.once


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example(number: int, tmp_path: Path) -> None:
    """It runs to its end."""
    pytest.importorskip("torch", reason="torch is not installed")
    paged.run(BLOCKS[number], tmp_path)

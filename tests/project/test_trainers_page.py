"""The scripts of docs/trainers.md run, and print what their comments say, where their packages are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import paged
import sourced

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = paged.codes("trainers")
ALSO = {"transformers": "accelerate"}
"""What a package imports on its own first use."""

pytestmark = pytest.mark.once


def test_each_trainer_has_a_script() -> None:
    """A heading, and one block of code below it."""
    headings = [line for line in paged.text_of("trainers").splitlines() if line.startswith("## ")]
    assert len(SCRIPTS) == len(headings) == 2


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script(number: int, tmp_path: Path) -> None:
    """With its worker processes, in a process that has loaded no other framework."""
    code = SCRIPTS[number]
    also = [f"import {package}" for name, package in ALSO.items() if f"import {name}" in code]
    absent = sourced.missing("\n".join([code, *also]))
    if absent:
        pytest.skip(f"{absent[0]} is not installed")
    paged.run(code, tmp_path)

"""The examples of docs/frameworks.md run, each alone, and print what their comments say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import paged

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = dict(
    re.findall(r"\n## ([^\n]*)\n\n```python\n(.*?)```", paged.text_of("frameworks"), re.DOTALL)
)
NEEDS = {"Keras": "keras", "tf.data": "tensorflow", "torch": "torch", "JAX": "jax"}

pytestmark = pytest.mark.once


def test_all_are_found() -> None:
    """Each framework has one, which follows its heading."""
    assert [*BLOCKS] == [*NEEDS]
    assert paged.text_of("frameworks").count("```python") == len(NEEDS)


@pytest.mark.parametrize("section", BLOCKS)
def test_an_example(section: str, tmp_path: Path) -> None:
    """It runs to its end."""
    pytest.importorskip(NEEDS[section], reason=f"{NEEDS[section]} is not installed")
    paged.run(BLOCKS[section], tmp_path)

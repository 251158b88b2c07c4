"""The examples of docs/torch.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Where other pages have had JAX compute in this process; the workers of this one do not.
    pytest.mark.filterwarnings("ignore:backend='fork' after:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example(number: int) -> None:
    """It runs to its end."""
    pytest.importorskip("torch", reason="torch is not installed")
    exec(BLOCKS[number], {})  # noqa: S102 - the page's own code

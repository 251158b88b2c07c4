"""The example of docs/profile.md runs, and its table has the rows of a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringfeed.tools.loaders import ROWS

PAGE = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Where other pages have had JAX compute in this process; the workers of this one do not.
    pytest.mark.filterwarnings("ignore:backend='fork' after:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs to its end, and prints the report."""
    pytest.importorskip("torch", reason="torch is not installed")
    (code,) = BLOCKS
    exec(code, {})  # noqa: S102 - the page's own code
    assert capsys.readouterr().out.startswith(
        "DataLoader of TensorDataset (batch_size=32, num_workers=1)\n"
    )


def test_the_rows() -> None:
    """The report on the page has each row, in order."""
    places = [PAGE.index(f"\n{name}  ") for name, _, _ in ROWS]
    assert places == sorted(places)

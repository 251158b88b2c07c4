"""Torch's random numbers in workers are seeded as NumPy's and `random`'s, whichever code imported it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.orders.rng import SampleContext, reseed, scatter
from watching import run_script

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.usefixtures("nothing_left")


class Drawing:
    """Each sample says which number torch gave it."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        import time  # noqa: PLC0415 - this class travels by value

        import torch  # noqa: PLC0415 - in the worker, which has not imported it

        time.sleep(0.01)  # so that each worker has some
        return np.int64(torch.randint(2**40, ()).item())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_draw_different_numbers(method: Any) -> None:
    """No two samples have the same number, also where the first of them imports torch."""
    with ringfeed.Loader(
        Drawing(),
        batch_size=8,
        workers=2,
        backend=method,
        spec=ringfeed.Array((), "int64"),
        timeout_s=100,
    ) as loader:
        drawn = [number for batch in loader for number in batch.tolist()]
    assert len({*drawn}) == 16


LAZY = """
import numpy as np, ringfeed, time
class Lazy:
    def __len__(self): return 16
    def __getitem__(self, index):
        import torch
        time.sleep(0.01)
        return np.int64(torch.randint(2**40, ()).item())
found = []
for workers in (0, 1, 3):
    how = dict(workers=workers, backend={method!r}, reseed=True, spec=ringfeed.Array((), "int64"))
    with ringfeed.Loader(Lazy(), batch_size=8, **how) as loader:
        found.append([number for batch in loader for number in batch.tolist()])
print(found[0] == found[1], found[0] == found[2], len({{*found[0]}}))
"""


@pytest.mark.parametrize("method", ["spawn", "process"])
def test_reseeded_numbers_do_not_depend_on_the_workers(method: str) -> None:
    """A sample's number is the same however many processes import torch in their first sample."""
    out, _, status = run_script(LAZY.format(method=method))
    assert (out, status) == ("True True 16\n", 0)


def test_reseeding_seeds_torch() -> None:
    """The same sample draws the same, after any others."""
    before = torch.random.get_rng_state()
    try:
        found = []
        for numbers in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2, 3)]:
            reseed(SampleContext(*numbers))
            found.append(tuple(torch.randint(2**31, (3,)).tolist()))
        assert found[0] == found[-1]
        assert len({*found}) == 4
    finally:
        torch.random.set_rng_state(before)


def test_scattered_workers_differ() -> None:
    """Workers, their replacements and other seeds each begin elsewhere."""
    before = torch.random.get_rng_state()
    try:
        found = []
        for numbers in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)]:
            scatter(*numbers)
            found.append(tuple(torch.randint(2**31, (3,)).tolist()))
        assert found[0] == found[-1]
        assert len({*found}) == 4
    finally:
        torch.random.set_rng_state(before)


def test_the_sample_that_imports_torch_is_reseeded() -> None:
    """Without workers, too, it draws what it draws where torch was imported before."""
    script = (
        "import sys; from ringfeed.orders.rng import SampleContext, reseed\n"
        "reseed(SampleContext(1, 2, 3)); reseed(SampleContext(1, 2, 4)); assert 'torch' not in "
        "sys.modules\nimport torch; first = torch.randint(2**31, (3,)).tolist()\n"
        "reseed(SampleContext(1, 2, 4)); assert torch.randint(2**31, (3,)).tolist() == first"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_it_is_never_imported_for_this() -> None:
    """Neither seeding imports torch; a later import is seeded as an earlier one would have been."""
    script = (
        "import sys; from ringfeed.orders.rng import SampleContext, reseed, scatter\n"
        "reseed(SampleContext(1, 2, 3)); scatter(4, 5, 6); assert 'torch' not in sys.modules\n"
        "import torch; late = torch.randint(2**31, (3,)).tolist()\n"
        "scatter(4, 5, 6); assert torch.randint(2**31, (3,)).tolist() == late\n"
        "assert type(torch.__spec__.loader).__name__ == 'SourceFileLoader'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)

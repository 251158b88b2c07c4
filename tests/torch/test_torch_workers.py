"""Workers of `ringfeed.torch.DataLoader` know all that the program has set, as torch's do."""

from __future__ import annotations

import decimal
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
both, check_epochs = checks.both, checks.check_epochs
sets = torch.utils.data
DataLoader = ringfeed.torch.DataLoader

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]

REGISTERED: dict[str, int] = {}


class Known(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """What a worker knows of this process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        with decimal.localcontext():
            third = str(decimal.Decimal(1) / 3)
        return (
            torch.zeros(2),
            dict(REGISTERED),
            os.environ.get("OF_THE_TEST", ""),
            os.getcwd(),  # noqa: PTH109 - a text
            third,
            np.geterr()["over"],
            index,
        )


def test_workers_know_what_the_program_has_set(monkeypatch: Any, tmp_path: Path) -> None:
    """Dtypes, registries, environment, folder and NumPy's state reach them, between epochs too."""
    ours, own = both(Known(), batch_size=2, num_workers=1)
    dtype, precision = torch.get_default_dtype(), decimal.getcontext().prec
    try:
        with np.errstate():
            for number, kind in enumerate((torch.float64, torch.float32)):
                monkeypatch.chdir(tmp_path.parent if number else tmp_path)
                monkeypatch.setenv("OF_THE_TEST", f"epoch {number}")
                monkeypatch.setitem(REGISTERED, "size", number)
                torch.set_default_dtype(kind)
                decimal.getcontext().prec = 5 + number
                np.seterr(over="raise" if number else "ignore")
                check_epochs(ours, own)
    finally:
        torch.set_default_dtype(dtype)
        decimal.getcontext().prec = precision
    assert ours._rings.own_reason is None


class Steered(sets.Dataset):  # type: ignore[misc]
    """Samples are those of the epoch that the program sets in memory shared with workers."""

    def __init__(self) -> None:
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(self.epoch) * 100 + index


@pytest.mark.parametrize("persists", [False, True])
def test_a_shared_tensor_steers_the_workers(*, persists: bool) -> None:
    """Also those that persist, as torch's."""
    dataset = Steered()
    ours = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=persists)
    for epoch in range(3):
        dataset.epoch.fill_(epoch)
        assert [batch.tolist() for batch in ours] == [[epoch * 100 + index for index in range(4)]]
    assert ours._rings.own_reason is None
    checks.close(ours)


class FirstFails(sets.Dataset):  # type: ignore[misc]  # as above
    """Has a first sample that raises; the others say which process reads them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if not index:
            raise ValueError(index)
        return os.getpid()


def test_workers_persist_where_the_first_sample_fails() -> None:
    """An epoch broken off gives its workers to the next one without a garbage collection."""
    loader = DataLoader(FirstFails(), batch_size=2, num_workers=1, persistent_workers=True)
    seen = []
    gc.disable()
    try:
        for _ in range(2):
            batches = iter(loader)
            with suppress(ValueError):  # `pytest.raises` would keep the iterator
                next(batches)
            seen.append(next(batches).tolist())
            del batches
    finally:
        gc.enable()
    assert seen[0] == seen[1]
    checks.close(loader)


def test_workers_start_as_multiprocessing_says() -> None:
    """It is the default, the program's or the context's, and asking does not fix it."""
    ring = importlib.import_module("ringfeed.torch.ring")
    assert (
        ring.start_method(DataLoader(Known(), num_workers=1))
        == multiprocessing.get_all_start_methods()[0]
    )
    given = DataLoader(Known(), num_workers=1, multiprocessing_context="spawn")
    assert ring.start_method(given) == "spawn"
    script = (
        "import multiprocessing as m, torch; from ringfeed.torch import DataLoader; "
        "from ringfeed.torch.ring import start_method; loader = DataLoader([1], num_workers=1); "
        "start_method(loader); m.set_start_method('forkserver'); print(start_method(loader))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "forkserver\n"


THREADED = """
import warnings
import jax
from ringfeed.torch import DataLoader

warnings.filterwarnings("error", "backend='fork'")
warnings.filterwarnings("ignore", r"os\\.fork\\(\\) was called")  # JAX's own
assert [batch.tolist() for batch in DataLoader([1, 2], num_workers=1)] == [[1], [2]]
jax.numpy.ones(3).block_until_ready()
try:
    iter(DataLoader([1, 2], num_workers=1))
except RuntimeWarning as warning:
    print(warning)
"""


def test_a_framework_with_threads_is_warned_of() -> None:
    """Only where it has computed: a worker that used it would wait for its threads."""
    pytest.importorskip("jax", reason="jax is not installed")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", THREADED],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == (
        "backend='fork' after jax has computed: its threads do not survive the fork, and a worker "
        "that uses it hangs; use backend='process', or with ringfeed.torch "
        "multiprocessing_context='forkserver'\n"
    )


def test_a_function_that_is_set_later_is_unknown_to_workers_that_persist() -> None:
    """In no later epoch, as with torch."""
    ours, own = both(list(range(4)), batch_size=2, num_workers=1, persistent_workers=True)
    for loader in (ours, own):
        found = [[batch.tolist() for batch in loader]]
        loader.collate_fn = sum
        found += [[batch.tolist() for batch in loader] for _ in range(3)]
        assert found == 4 * [[[0, 1], [2, 3]]]

"""What forked workers must not have in common: generators of random numbers, threads."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from watching import pool_of

if TYPE_CHECKING:
    from pathlib import Path


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader with two workers of a forkserver."""
    return ringfeed.Loader(dataset, batch_size=4, workers=2, backend="process", **settings)


OWN = """
import threading, time
import numpy as np
{what}
class Numbers:
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return np.int64({draw})
"""
KINDS = {
    "a generator of NumPy": ("RNG = np.random.default_rng()", "RNG.integers(2**60)"),
    "a generator of Python": ("import random\nRNG = random.Random()", "RNG.getrandbits(60)"),
    "a RandomState": ("RNG = np.random.RandomState()", "RNG.randint(2**60, dtype=np.int64)"),
    "a thread": (
        (
            "import os\nHOME = threading.Thread(target=time.sleep, args=(1000,), "
            "daemon=True)\nHOME.start()"
        ),
        "os.getpid() * 1000 + index if os.path.exists(f'/proc/self/task/{HOME.native_id}') else 0",
    ),
}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_no_generator_or_thread_of_a_module(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a module makes for itself when it is imported is made in each worker."""
    what, draw = KINDS[kind]
    name = f"own_{''.join(kind.split())}"
    (tmp_path / f"{name}.py").write_text(OWN.format(what=what, draw=draw))
    monkeypatch.syspath_prepend(str(tmp_path))
    with loader_of(
        __import__(name).Numbers(), spec=ringfeed.Array((), "int64"), copy=True
    ) as loader:
        drawn = np.concatenate([*loader]).tolist()
    sys.modules.pop(name)
    assert len({*drawn}) == 64
    assert 0 not in drawn


class Drawing:
    """Makes a generator of its own when it is unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.rng = np.random.default_rng()

    def __getstate__(self) -> dict[str, Any]:
        return {"any": 1}

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return np.int64(self.rng.integers(2**60))


@pytest.mark.usefixtures("nothing_left")
def test_workers_share_no_generator_of_the_dataset() -> None:
    """A dataset that makes a generator when it is unpickled is unpickled in each worker."""
    with loader_of(Drawing(), spec=ringfeed.Array((), "int64"), copy=True) as loader:
        assert len({*np.concatenate([*loader]).tolist()}) == 64


COMMON = """
import random, tempfile
import numpy as np
SECRET, NAMES = random.SystemRandom(), tempfile._RandomNameSequence()
next(NAMES)
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return np.int64(index)
"""


@pytest.mark.usefixtures("nothing_left")
def test_what_is_made_anew_in_each_process_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset of a module that names temporary files is unpickled once.

    Many modules hold such names, or those of semaphores.
    """
    (tmp_path / "common.py").write_text(COMMON)
    monkeypatch.syspath_prepend(str(tmp_path))
    with loader_of(__import__("common").Numbers()) as loader:
        assert [number for batch in loader for number in batch.tolist()] == [*range(8)]
        assert pool_of(loader)._launcher.holds_dataset
    sys.modules.pop("common")

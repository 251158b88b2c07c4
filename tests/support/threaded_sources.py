"""Datasets that several threads of one worker read at a time. Importable in workers."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from slow_sources import HANG_S, WAIT_S, Counting, Failing, Growing, Hanging, Plain, Waits

if TYPE_CHECKING:
    from pathlib import Path

BRIEF_S = 0.05


class Into(Plain):
    """Writes its samples into their rows; ``dataset[i]`` shows their structure alone."""

    def __init__(self, length: int = 203, wait_s: float = WAIT_S) -> None:
        super().__init__(length)
        self.wait_s = wait_s

    def __getitem__(self, index: int) -> Any:
        assert index == 0
        return self.made(index, self.begun())

    def read_into(self, index: int, out: Any) -> None:
        drawn = self.begun()
        time.sleep(self.delay_s(index))
        for key, value in self.made(index, drawn).items():
            out[key][...] = value


class IntoOrNot(Waits):
    """Has ``read_into``, which is for single samples alone."""

    def read_into(self, *_: Any) -> None:
        """Never called: the batch is changed as a whole."""
        raise AssertionError


def changes(sample: Any, rng: Any) -> None:
    """Change a sample in its row, with numbers drawn after the dataset's."""
    sample["drawn"] += rng.random()


class Where:
    """Samples that name their reader: process, thread, worker, whether it has this dataset, and how many threads have read.

    The first samples wait for one another, so that each is read by a thread of its own.
    """

    def __init__(self, threads: int, length: int = 64) -> None:
        self.threads, self.length = threads, length
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.seen.add(threading.get_ident())
        until = time.monotonic() + HANG_S
        while len(self.seen) < self.threads and time.monotonic() < until:
            time.sleep(WAIT_S)
        info = ringfeed.worker_info()
        worker = (-1, 0) if info is None else (info.id, int(info.dataset is self))
        return np.int64((os.getpid(), threading.get_native_id(), *worker, len(self.seen)))


class Kept(Counting):
    """Sample 3 waits for the file ``go``; counts the samples that are kept meanwhile."""

    def __init__(self, folder: Path, length: int = 32) -> None:
        super().__init__(length)
        self.folder = folder
        self.alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def __getitem__(self, index: int) -> Any:
        while index == 3 and not (self.folder / "go").exists():
            time.sleep(WAIT_S)
        sample = np.full(4, index, np.float32)
        self.alive[index] = sample
        self.count(1)
        return sample


class FailsLate(Plain):
    """Sample 5 fails at once, and sample 2 later."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            time.sleep(BRIEF_S)
        if index in {2, 5}:
            raise ValueError(index)
        return np.int64(index)


class SlowError(ValueError):
    """Its text is there when it is let go."""

    def __init__(self, is_asked: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self.is_asked, self.go_on = is_asked, go_on

    def __str__(self) -> str:
        self.is_asked.set()
        self.go_on.wait(HANG_S)
        return "slow"


class FailsSlowly:
    """Two samples; the first raises such an error."""

    def __init__(self) -> None:
        self.is_asked, self.go_on = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise SlowError(self.is_asked, self.go_on)
        return np.int64(index)


class DiesLate(Failing):
    """Sample 2 ends its worker while others are read that were begun after it."""

    def __init__(self) -> None:
        super().__init__("dies", at=(2,), length=200)

    def __getitem__(self, index: int) -> Any:
        if index < 8:
            time.sleep(BRIEF_S if index in self.at else 2 * BRIEF_S)
        return self.found(index)


class DiesInto(DiesLate):
    """The same, in ``read_into``."""

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index, np.float32), index

    def read_into(self, index: int, out: Any) -> None:
        out[0][...], out[1][...] = DiesLate.__getitem__(self, index)


class HangingInto(Hanging):
    """Hangs while its row is written."""

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)

    def read_into(self, index: int, out: Any) -> None:
        if self.hangs(index):
            until = time.monotonic() + HANG_S
            while not (self.folder / "on").exists() and time.monotonic() < until:
                time.sleep(WAIT_S)
        out[...] = index


class GrowingWaits(Growing):
    """Its samples are of the epoch that on_epoch_end has counted; they block their thread."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override] # it is not awaited
        time.sleep(WAIT_S)
        return np.int64(self.epoch * 100 + index)


class Forks:
    """Every fifth sample forks a process beside the other threads."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        time.sleep(WAIT_S)
        if index % 5 == 0:
            child = os.fork()
            if not child:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        return np.int64(index)


class Begun:
    """Notes in a file each call of ``begin``, which is given as ``worker_init_fn``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> None:
        with (self.folder / "begun").open("a") as file:
            file.write(f"{number} {os.getpid()}\n")

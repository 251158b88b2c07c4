"""Datasets that wait, each with a plain twin that gives the same samples. Importable in workers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from datasets import Oracle

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 0.002
HANG_S = 600.0


class Plain:
    """Samples that depend on their index and on ringfeed.rng(), in shuffled times."""

    wait_s = 0.0

    def __init__(self, length: int = 203) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def delay_s(self, index: int) -> float:
        """Return how long a sample is waited for: neighbours come in another order than they are asked for."""
        return self.wait_s * (1 + index * 7 % 5)

    def begun(self) -> Any:
        return ringfeed.rng().random(3)

    def made(self, index: int, drawn: Any) -> Any:
        return {"drawn": drawn, "more": ringfeed.rng().random(), "index": index}

    def __getitem__(self, index: int) -> Any:
        drawn = self.begun()
        if self.wait_s:
            time.sleep(self.delay_s(index))
        return self.made(index, drawn)


class Waits(Plain):
    """They block their thread."""

    wait_s = WAIT_S


class Awaits(Plain):
    """They are awaited; other samples draw in between."""

    wait_s = WAIT_S

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        drawn = self.begun()
        await asyncio.sleep(self.delay_s(index))
        return self.made(index, drawn)


class Branches(Plain):
    """They draw in tasks and in a thread of their own."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        (drawn,) = await asyncio.gather(self.draws())
        return await asyncio.to_thread(self.made, index, drawn)

    async def draws(self) -> Any:
        await asyncio.sleep(0)
        return self.begun()


class PlainBatches(Plain):
    """Whole batches."""

    def made(self, index: int, drawn: Any) -> Any:
        return {"drawn": np.tile(drawn, (4, 1)), "index": np.arange(4 * index, 4 * index + 4)}


class AwaitsBatches(PlainBatches, Awaits):
    """Whole batches that are awaited."""


class WaitsBatches(PlainBatches, Waits):
    """Whole batches that block their thread."""


class AwaitedOracle(Oracle):
    """Samples with a checksum, which take longer than batches do."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(self.sleep_s)
        return super().__getitem__(index)


class Counting:
    """Counts the samples in flight; for workers that are threads of this process."""

    def __init__(self, length: int = 300) -> None:
        self.length = length
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def count(self, change: int) -> None:
        with self.lock:
            self.now += change
            self.most = max(self.most, self.now)

    def __getitem__(self, index: int) -> Any:
        self.count(1)
        time.sleep(WAIT_S)
        self.count(-1)
        return np.float32(index)


class CountingAwaits(Counting):
    """The same, awaited."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        self.count(1)
        await asyncio.sleep(WAIT_S)
        self.count(-1)
        return np.float32(index)


class Failing:
    """Does ``deed`` at some indices, while others are in flight."""

    def __init__(self, deed: str, at: tuple[int, ...] = (17,), length: int = 40) -> None:
        self.deed, self.at, self.length = deed, at, length

    def __len__(self) -> int:
        return self.length

    def found(self, index: int) -> Any:
        return (
            getattr(self, self.deed)()
            if index in self.at
            else (np.full(3, index, np.float32), index)
        )

    def __getitem__(self, index: int) -> Any:
        time.sleep(WAIT_S)
        return self.found(index)

    def raises(self) -> None:
        message = "bad one"
        raise KeyError(message)

    def exits(self) -> None:
        raise SystemExit(3)

    def wrong_shape(self) -> Any:
        return np.zeros(4, np.float32), 0

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingAwaits(Failing):
    """The same, awaited."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(WAIT_S)
        return self.found(index)

    def cancels(self) -> None:
        raise asyncio.CancelledError


class Interrupts(Plain):
    """Sample 20 is Ctrl-C for this process, once."""

    sent = False

    def __getitem__(self, index: int) -> Any:
        if index == 20 and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT_S)
        return super().__getitem__(index)


class InterruptsAwaits(Interrupts):
    """The same, awaited."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        await asyncio.sleep(WAIT_S)
        return super().__getitem__(index)


class Hanging:
    """Hangs at some indices until there is a file; says in other files what has become of that."""

    def __init__(self, folder: Path, at: tuple[int, ...] = (3,), length: int = 64) -> None:
        self.folder, self.at, self.length = folder, at, length

    def __len__(self) -> int:
        return self.length

    def hangs(self, index: int) -> bool:
        """Say whether a sample hangs, and leave a file that says so."""
        hangs = index in self.at and not (self.folder / "go").exists()
        if hangs:
            (self.folder / f"hangs-{index}").touch()
        return hangs

    def __getitem__(self, index: int) -> Any:
        if self.hangs(index):
            time.sleep(HANG_S)
        return np.int64(index)


class HangingAwaits(Hanging):
    """The same, awaited; it notes that it was cancelled."""

    async def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if self.hangs(index):
            try:
                await asyncio.sleep(HANG_S)
            finally:
                (self.folder / f"cancelled-{index}").touch()
        return np.int64(index)


class Session:
    """Opens something on first use that belongs to an event loop, and cannot be pickled."""

    def __init__(self, length: int = 48) -> None:
        self.length = length
        self.opened: Any = None

    def __len__(self) -> int:
        return self.length

    async def __getitem__(self, index: int) -> Any:
        loop = asyncio.get_running_loop()
        if self.opened is None:
            self.opened = loop, threading.Lock(), ringfeed.worker_info()
        assert self.opened[0] is loop
        await asyncio.sleep(0)
        info = ringfeed.worker_info()
        return np.int64(index), -1 if info is None else info.id


class Growing:
    """Its samples are of the epoch that on_epoch_end has counted."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 24

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(WAIT_S)
        return np.int64(self.epoch * 100 + index)

    def on_epoch_end(self) -> None:
        self.epoch += 1


class OneSlow:
    """Sample 1 waits for the file ``go``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 32

    async def __getitem__(self, index: int) -> Any:
        while index == 1 and not (self.folder / "go").exists():  # noqa: ASYNC110 - it is of another process
            await asyncio.sleep(WAIT_S)
        return np.int64(index)


def adds_noise(sample: Any, rng: Any) -> Any:
    """Draw after the dataset has."""
    return {**sample, "noise": rng.random(2)}


def doubles(batch: Any, rng: Any) -> None:
    """Change a batch in place."""
    batch["drawn"] *= 2
    batch["drawn"] += rng.random()


def collates(samples: list[Any]) -> Any:
    """Make a batch, with numbers drawn for it."""
    drawn = np.stack([sample["drawn"] for sample in samples])
    return {
        "drawn": drawn + ringfeed.rng().random(),
        "index": np.array([sample["index"] for sample in samples]),
    }

"""Samples that end or hold up whoever makes them, once each time they are told to; their content knows nothing of it.

No framework is imported here: workers import this module.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

FEATURES, CLASSES = 12, 4
SLOW_S = 0.05
IN_PROCESSES = ("leave", "exit", "kill", "segfault", "abort", "slow")
IN_THREADS = ("slow",)
STUCK = "stick"  # for ever: the loader must have on_stall="restart"


class Faults:
    """Deeds at samples, each done once after each `arm`: whoever removes the sample's file does it."""

    def __init__(self, place: Path, deeds: dict[int, str]) -> None:
        self.place = place
        self.deeds = deeds

    @classmethod
    def draw(
        cls, place: Path, random: Random, length: int, names: tuple[str, ...], count: int
    ) -> Faults:
        """Some faults of these names at random samples."""
        return cls(
            place, {index: random.choice(names) for index in random.sample(range(length), count)}
        )

    def arm(self) -> int:
        """Have each deed done again; how many were done since the last time."""
        done = [index for index in self.deeds if not (self.place / str(index)).exists()]
        for index in done:
            (self.place / str(index)).touch()
        return len(done)

    def strike(self, index: int) -> None:
        """Do what is to be done at this sample."""
        if index in self.deeds:
            try:
                (self.place / str(index)).unlink()
            except FileNotFoundError:  # done already
                return
            getattr(self, f"_{self.deeds[index]}")()

    def _slow(self) -> None:
        time.sleep(SLOW_S)

    def _stick(self) -> None:
        time.sleep(3600)

    def _leave(self) -> None:
        os._exit(0)

    def _exit(self) -> None:
        os._exit(3)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def _abort(self) -> None:
        os.abort()


class Examples:
    """Rows to train on, drawn anew in each epoch; those in ``bad`` always raise.

    ``faults`` strike before each.
    """

    SPEC = (ringfeed.Array((FEATURES,), "float32"), ringfeed.Array((), "int64"))

    def __init__(
        self, length: int, bad: frozenset[int], sleep_s: float = 0.0, faults: Faults | None = None
    ) -> None:
        self.length = length
        self.bad = bad
        self.sleep_s = sleep_s
        self.faults = faults

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if self.faults is not None:
            self.faults.strike(index)
        if self.sleep_s:
            time.sleep(self.sleep_s)
        if index in self.bad:
            raise ValueError("no such row")
        features = ringfeed.rng().normal(size=FEATURES).astype(np.float32)
        features[index % CLASSES] += 1.0
        return features, index % CLASSES

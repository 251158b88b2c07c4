"""The actor's side: today's readers over a private slot, for rows that a bridge asks for."""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.orders.rng import scatter
from ringfeed.ray.private import PrivateSlot
from ringfeed.ring import _ring
from ringfeed.system import _system
from ringfeed.transport import imports
from ringfeed.transport.shared_dataset import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.ray.filled import Filled

SMALL = 1 << 20  # bytes: an actor has a writable copy of smaller buffers
CALL_NS = 2_000_000  # between two calls of which the second has come long before


class Facts(NamedTuple):
    """What an actor's process is, which must be what the bridge's is; NumPy and the machine may differ a little."""

    python: str
    abi: int
    byte_order: str
    numpy: str
    machine: str

    @classmethod
    def here(cls) -> Facts:
        """Return those of this process."""
        python = ".".join(map(str, sys.version_info[:2]))
        return cls(python, _ring.ABI, sys.byteorder, np.__version__, platform.machine())


class Papers(NamedTuple):
    """What an actor is told when it starts."""

    source: Source
    worker: tuple[int, int, int]  # its number, how many there are, how often it was started again
    path: Sequence[str]  # where the bridge finds modules
    private: bool  # whether it has a writable copy of large buffers, too

    def pickled(self) -> bytes:
        """Return them as they travel."""
        return pickle.dumps(self)


class Reply(NamedTuple):
    """What a call answers."""

    filled: Filled
    idle: float  # share of its time that the actor has waited for this call


class Desk:
    """Fills the rows that a bridge asks for, of the newest version of the dataset that it was sent."""

    def __init__(self, papers: bytes) -> None:
        """Know the source; nothing of the dataset is here yet."""
        own, path = pickle.loads(papers), sys.path  # noqa: S301 - from our own bridge
        path.extend(entry for entry in own.path if entry not in path and os.path.isdir(entry))  # noqa: PTH112 - of strings
        self._papers: Papers = own
        self._version = -1
        self._slot: PrivateSlot | None = None
        self._idle_since_ns = time.monotonic_ns()
        number, _, starts = own.worker
        imports.expect(own.source.packages, silent=True)
        scatter(own.source.seed, number, starts)

    def open(self, version: int, pieces: Sequence[Any]) -> None:
        """Have the rows be of this version of the dataset from now on; ``pieces``: as `Sent.pieces` gives them."""
        part_count, small, *large = pieces
        found = iter(large)
        kept = bytearray if self._papers.private else memoryview
        buffers = [kept(next(found)) if piece is None else bytearray(piece) for piece in small]
        dataset = opened(part_count, [memoryview(buffer).cast("B") for buffer in buffers])
        if self._slot is not None:
            self._slot.close()
        self._slot = PrivateSlot(self._papers.source, dataset, worker=self._papers.worker)
        self._version = version

    def fill(self, epoch: int, version: int, indices: list[int]) -> Reply:
        """Make rows; its arrays are valid until the next call."""
        assert self._slot is not None
        began_ns = time.monotonic_ns()
        idle_ns = max(0, began_ns - self._idle_since_ns - CALL_NS)
        filled = self._slot.fill(epoch, version, indices)
        self._idle_since_ns = time.monotonic_ns()
        return Reply(filled, idle_ns / max(1, self._idle_since_ns - began_ns + idle_ns))

    def close(self) -> None:
        """End what reads."""
        if self._slot is not None:
            self._slot.close()


def guard() -> None:
    """Have this process end with its parent, which a dead raylet leaves alive, with all that it has started."""
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    reader, _ = _kept = _system.pipe()  # of our own: it never closes
    _guards.append((_kept, pidfd := os.pidfd_open(parent)))
    _system.start_guard(pidfd, reader.fileno())


_guards: list[Any] = []

"""What `flow` knows: the trainings of a share, the batches that are out of the ring, and what is sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(eq=False)
class Batch:
    """A batch that is out of the ring."""

    number: int
    lease: Any
    content: Any
    waits: set[Training] = field(default_factory=set)  # queued for them, or sent and not picked up
    lent: set[Training] = field(default_factory=set)  # sent to them or held by them, in the slot
    holds: set[Training] = field(default_factory=set)  # picked up, and not given back


class Entry(NamedTuple):
    """What a training is sent: "batch", "end", "error" or "warning"."""

    kind: str
    epoch_id: int  # of the training's own epochs; 0: whichever it is in
    content: dict[str, Any]  # "state": where the training is when it has it
    batch: Batch | None = None


class Sent(NamedTuple):
    """What a training was sent last, until it has picked it up."""

    serial: int
    entry: Entry
    private: bool  # whether the batch is to be copied, and given back at once


class Ask(NamedTuple):
    """A training asks for its next epoch. ``wish``: None, ("epoch", number) or ("state", state)."""

    epoch_id: int
    wish: Any


@dataclass(eq=False)
class Training:
    """A process that has joined."""

    pid: int
    rank: int | None = None
    queue: deque[Entry] = field(default_factory=deque)
    unread: Sent | None = None
    serial: int = 0
    epoch_id: int = 0  # of the epoch that it is in, as it counts them; 0: in none
    epoch: int = 0  # the last that it was in, as the flow counts them
    asked: Ask | None = None
    lost: int = 0  # batches that it is to be told of
    waits_since: float | None = None  # its next() waits
    blocks_since: float | None = None  # others wait for it
    is_told: bool = False  # the others were warned of it
    is_late: bool = False  # the others wait for it no longer, until it has caught up
    error: bytes | None = None  # with which it was put out

    def __str__(self) -> str:
        """Return which one it is, in words."""
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"

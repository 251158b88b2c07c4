"""What a loader's control block says, read once by an `Observer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Geometry(NamedTuple):
    """The sizes of a loader that never change, in bytes; ``rows`` of a slot; the most workers."""

    slots: int
    slot_size: int
    fields_size: int
    rows: int
    workers: int


class Slot(NamedTuple):
    """A slot: its state is free, filling, ready, held, draining or parked.

    Of its ``tickets``, some are ``claimed`` and some ``over``. ``held_ns`` is when its batch was
    taken.
    """

    state: str
    batch: int
    epoch: int
    rows: int
    tickets: int
    claimed: int
    over: int
    held_ns: int


_NOT_BEGUN = "has taken no work yet: it starts, or imports what the dataset needs"


class Worker(NamedTuple):
    """A worker's work of this moment, and the totals of its id.

    ``inside`` is the index of the sample that it reads. A ``pid`` of 0 is a thread, or none;
    ``since_ns`` is when it claimed its ticket, 0 where it has none. Of ``timed`` rows, ``read_ns``
    is the time inside ``dataset[i]`` and ``write_ns`` that of the write into the slot.
    """

    pid: int
    inside: int | None
    since_ns: int
    busy_ns: int
    wait_ns: int
    samples: int
    tickets: int
    timed: int
    read_ns: int
    write_ns: int
    leave: bool

    @property
    def place(self) -> str:
        """The sample that it is in, or nothing."""
        return "" if self.inside is None else f"dataset[{self.inside}]"

    @property
    def doing(self) -> str:
        """In a word or two, what it does outside of samples."""
        if self.since_ns:
            return "writes"
        if self.leave:
            return "leaves"
        return "waits for a slot" if self.tickets else "starts"

    def describe(
        self, number: int, runs_as: str, now_ns: int, name: Callable[[int], str], stack: str = ""
    ) -> str:
        """Return a line about this worker, with its stack below; ``name`` words a sample."""
        seconds = (now_ns - self.since_ns) / 1e9
        idle = "waits for a slot" if self.tickets else _NOT_BEGUN
        doing = f"has been at it for {seconds:.1f} s" if self.since_ns else idle
        where = "" if self.inside is None else f" inside {name(self.inside)},"
        indented = "".join(f"\n    {line}" for line in stack.strip().splitlines())
        return f"worker {number} ({runs_as}):{where} {doing}{indented}"


class Consumer(NamedTuple):
    """The totals of the consumer.

    ``wait_ns`` is when the wait began that is not in ``stall_ns`` yet, or 0.
    """

    batches: int
    samples: int
    stall_ns: int
    wait_ns: int
    open_slots: int
    stopped: bool


@dataclass(frozen=True)
class Snapshot:
    """All of a loader at one moment; ``waits`` if they were asked for: see `Observer.waits`."""

    at_ns: int
    slots: tuple[Slot, ...]
    workers: tuple[Worker, ...]
    consumer: Consumer
    waits: Any = None

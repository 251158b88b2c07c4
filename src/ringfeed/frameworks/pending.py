"""Copies to a device that may not have passed yet: each keeps its slot until then."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ringfeed._process import Forks

if TYPE_CHECKING:
    from ringfeed.ring._ring import Lease


class Event(Protocol):
    """The moment after which a copy no longer reads its slot; `torch.cuda.Event` is one.

    What either call raises ends the copy, too.
    """

    def query(self) -> bool:
        """Whether it has passed; answers at once."""

    def synchronize(self) -> None:
        """Return when it has passed."""


class _Copy:
    """One copy; over, it has no lease, so that the traceback of an error about it holds no slot."""

    def __init__(self, lease: Lease, event: Event) -> None:
        self.lease: Lease | None = lease
        self.event = event


class PendingCopies:
    """All copies of one loader in flight, in their order. Safe from any thread, and from a destructor: it has no lock.

    A waiter leaves the copy in place until it has passed, so that no other thread takes it for passed meanwhile.
    """

    def __init__(self) -> None:
        self._copies: deque[_Copy] = deque()
        self._forks = Forks.count

    def __len__(self) -> int:
        """Return how many copies may still read their slots."""
        return len(self._copies)

    def add(self, lease: Lease, event: Event) -> None:
        """Hold the slot until the event has passed."""
        self._copies.append(_Copy(lease, event))

    def give_back_passed(self) -> None:
        """Give back the slots whose copies have passed, without waiting."""
        while (copy := self._oldest()) and self._is_over(copy, wait=False):
            pass

    def wait(self, most: int = 0) -> None:
        """Wait until at most ``most`` copies are in flight, and give the other slots back.

        Every one of them is given back even if the device fails; then the first of its errors is raised.
        """
        first: Exception | None = None
        while len(self._copies) > most and (copy := self._oldest()):
            try:
                self._is_over(copy, wait=True)
            except Exception as error:  # noqa: BLE001 - whatever a framework raises
                first = first or error
        if first is not None:
            raise first

    def _oldest(self) -> _Copy | None:
        if self._forks != Forks.count:
            return None  # a forked child: slots and events are its parent's
        try:
            return self._copies[0]
        except IndexError:
            return None

    def _is_over(self, copy: _Copy, *, wait: bool) -> bool:
        """Whether the copy has passed or failed, so that its slot is given back; the error of one that failed."""
        try:
            if wait:
                copy.event.synchronize()
            elif not copy.event.query():
                return False
        except Exception:
            self._forget(copy)
            raise
        self._forget(copy)
        return True

    def _forget(self, copy: _Copy) -> None:
        copy.lease = None
        with suppress(ValueError):  # by another thread, which waited for the same copy
            self._copies.remove(copy)

"""The batches that are planned ahead of the consumer: those of its epoch, then the next epoch's, beyond a border.

    plan      4 5 6 7 8 9 | 0 1 2 3
              taken       border    as far as the ring has room, at most to the end of that epoch

Workers fill both alike. Callers of the epoch's turn come to its end at the border, so that neither epoch is handed the
other's batches.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ringfeed.orders.lists import ListEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.data.base import Source
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Epoch
    from ringfeed.ring._ring import Ring
    from ringfeed.spec.layout import Layout


class _Part:
    """One epoch's part of the plan."""

    def __init__(self, order: Epoch | None, number: int, most: int) -> None:
        """Plan what ``order`` gives, at most ``most`` batches ahead."""
        self.order = order
        """What is still to be planned; None: nothing."""
        self.number = number
        self.most = most
        self.is_torn = False
        """Whether planning broke off between two batches: with Ctrl-C, or with an error of the order's."""


class Lookahead:
    """Plans the batches of one ring. Not thread-safe: the loader's lock is held."""

    def __init__(self, ring: Ring, source: Source, layout: Layout, workers: int, *, drop_remainder: bool) -> None:
        """Plan nothing yet."""
        self.version = 0
        """Of the dataset that the coming batches are read from."""
        self._ring = ring
        self._source = source
        self._rows = layout.indices
        self._workers = workers
        self._drops = drop_remainder
        self.clear()

    def clear(self) -> None:
        """Plan nothing more; the ring has dropped what was planned."""
        self._next: _Part | None = None  # beyond the border, once that is set
        self._following: Callable[[int], Epoch] | None = None
        self._now = _Part(None, 0, 0)

    def begin(self, order: Epoch, number: int, most: int, following: Callable[[int], Epoch] | None) -> None:
        """Plan an epoch, at most ``most`` batches ahead, then the one that ``following(number + 1)`` gives, if any."""
        self._now = _Part(order, number, most)
        self._following = following

    def is_beyond(self, number: int) -> bool:
        """Whether what is planned beyond the border is this epoch, from its start and without a gap."""
        return self._next is not None and self._next.number == number and not self._next.is_torn

    def cross(self, following: Callable[[int], Epoch] | None) -> None:
        """Have what is planned beyond the border be the epoch under way."""
        begun, self._next = self._next, None
        assert begun is not None
        self._now = begun
        self._following = following

    @property
    def order(self) -> Epoch | None:
        """What is still to be planned of the epoch under way; None: all of it is planned."""
        return self._now.order

    def top_up(self) -> None:
        """Plan ahead: as far as a pure sampler gives indices in one go, or a slot's worth a slot."""
        ring = self._ring
        part = self._unplanned()
        while part is not None and ring.planned < ring.slots and ring.room:
            self._plan(part)
            part = self._unplanned()
        ring.set_low_water(0 if part is None else max(min(ring.planned, ring.slots) - 1, 0))

    def _unplanned(self) -> _Part | None:
        """Return what is to be planned now; where this epoch is planned, the next, from the border on."""
        now, following = self._now, self._following
        if now.order is not None:
            return now
        if self._next is None and following is not None:
            self._ring.set_border()
            self._next = _Part(following(now.number + 1), now.number + 1, now.most)  # one step, for Ctrl-C
        found = self._next
        return None if found is None or found.order is None or found.is_torn else found

    def _plan(self, part: _Part) -> None:
        part.is_torn = True
        if part is self._now:
            self._take(part)
        else:
            with suppress(Exception):  # of an order that cannot be read: its own epoch raises that, when it begins
                self._take(part)

    def _take(self, part: _Part) -> None:
        batches = min(part.most - self._ring.planned, self._ring.room)
        is_lists = isinstance(part.order, ListEpoch)
        for some, lane in self._lists(part, batches) if is_lists else self._rows_of(part, batches):
            self._ring.plan(some, self._rows, part.number, self.version, lane)
        part.is_torn = False

    def _lists(self, part: _Part, batches: int) -> Iterable[tuple[Indices, int]]:
        """Return the next batches, each of its own length."""
        assert isinstance(part.order, ListEpoch)
        lists = part.order.take_batches(batches)
        if len(lists) < batches:
            part.order = None
        return ((one, 0) for one in lists)

    def _rows_of(self, part: _Part, batches: int) -> Iterable[tuple[Indices, int]]:
        """Return the indices of the next batches, in parts that may be planned together."""
        assert part.order is not None
        count = batches * self._rows
        indices = part.order.take(count)
        if len(indices) < count:
            part.order = None
            if self._drops:
                indices = indices[: len(indices) // self._rows * self._rows]
        return self._source.cut(indices, self._workers)

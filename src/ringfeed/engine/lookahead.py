"""The batches planned ahead of the consumer: this epoch's, then the next one's beyond a border.

    plan      4 5 6 7 8 9 | 0 1 2 3
              taken       border    as far as the ring has room, until the next epoch's end

Workers fill batches on both sides. An iterator ends at the border, which its epoch id tells, so
that no epoch gets the other's batches.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.engine.plan import Plan
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Epoch
    from ringfeed.ring._ring import Ring


class _Part:
    """One epoch's part of the plan."""

    def __init__(self, order: Epoch | None, number: int, most: int) -> None:
        """Plan what ``order`` gives, at most ``most`` batches ahead."""
        self.number, self.most = number, most
        self.order = order
        """What is still to be planned; None: nothing."""
        self.kept: list[tuple[int, Any]] = []
        """What the order was asked for and has given, until it is planned: at most once."""
        self.is_torn = False
        """Whether planning broke off.

        Beyond the border it does not go on: that epoch begins anew.
        """

    @property
    def is_planned(self) -> bool:
        """Whether the whole part is planned."""
        return self.order is None and not self.kept


class Lookahead:
    """Plans the batches of one ring. Not thread-safe: the loader's lock is held."""

    def __init__(self, ring: Ring, source: Source, plan: Plan, *, drops: bool) -> None:
        """Plan nothing yet; ``drops``: a last batch that would be shorter is never planned."""
        self.version = 0
        """The version of the dataset that the coming batches are read from."""
        self._ring, self._source, self._drops = ring, source, drops
        self._rows, self._workers = plan.layout.indices, plan.workers
        self.clear()

    def clear(self) -> None:
        """Plan nothing more; the ring has dropped the planned batches."""
        self._next: _Part | None = None  # beyond the border, once that is set
        self._following: Callable[[int], Epoch] | None = None
        self._now = _Part(None, 0, 0)

    def begin(
        self, order: Epoch, number: int, most: int, following: Callable[[int], Epoch] | None
    ) -> None:
        """Plan an epoch, at most ``most`` batches ahead, then ``following(number + 1)``.

        If an epoch is planned beyond the border, it is this one, and goes on.
        """
        self._now = self._next or _Part(order, number, most)
        self._next, self._following = None, following

    def is_beyond(self, number: int) -> bool:
        """Whether this epoch is planned beyond the border, from its start and without a gap."""
        return self._next is not None and self._next.number == number and not self._next.is_torn

    @property
    def order(self) -> Epoch | None:
        """The order of the running epoch; None once it has given all its indices."""
        return self._now.order

    @property
    def is_planned(self) -> bool:
        """Whether the running epoch is planned to its end."""
        return self._now.is_planned

    @property
    def kept(self) -> int:
        """How many batches the order gave that Ctrl-C kept from the plan."""
        return sum(
            len(given) if isinstance(given, list) else -(-len(given) // self._rows)
            for _, given in self._now.kept
        )

    def top_up(self) -> None:
        """Plan ahead: as far as a pure sampler gives indices at once, else one batch per slot."""
        ring = self._ring
        while (
            (part := self._unplanned()) and ring.room and ring.planned < min(ring.slots, part.most)
        ):
            part.is_torn = True
            # An order of the next epoch that cannot be read raises that when its epoch begins.
            with suppress(*([] if part is self._now else [Exception])):
                self._plan(part)
                part.is_torn = False
        ring.set_low_water(max(min(ring.planned, ring.slots) - 1, 0) if part else 0)

    def _unplanned(self) -> _Part | None:
        """Return the part to plan now: this epoch or, once that is planned, the next."""
        now, following = self._now, self._following
        if not now.is_planned:
            return now
        if self._next is None and following is not None:
            self._ring.set_border()
            number = now.number + 1
            self._next = _Part(following(number), number, now.most)  # one step, for Ctrl-C
        ahead = self._next
        return None if ahead is None or ahead.is_planned or ahead.is_torn else ahead

    def _plan(self, part: _Part) -> None:
        """Plan the order's next batches; if Ctrl-C interrupts, the next call plans the rest.

        An order updates its position last, and C calls it. So Ctrl-C comes either after the indices
        are kept, or before the order has moved.
        """
        if not part.kept:
            order, count = part.order, min(part.most - self._ring.planned, self._ring.room)
            assert order is not None
            count *= 1 if order.gives_lists else self._rows
            part.kept.extend(zip((count,), map(order.take, (count,)), strict=True))
        self._ring.plan_kept(part.kept, self._parts(part), self._rows, part.number, self.version)

    def _parts(self, part: _Part) -> list[tuple[Indices, int]]:
        """Split the given indices into parts that may be planned together."""
        asked, given = part.kept[0]
        order = part.order
        workers = max(self._workers, 1)
        if len(given) < asked:
            part.order = None
        if isinstance(given, list):
            if order is None or order.turn is None:
                return [(numbers, 0) for numbers in given]
            first = order.turn + (order.position or 0) - len(given)
            return [(numbers, turn % workers + 1) for turn, numbers in enumerate(given, first)]
        if self._drops:
            given = given[: len(given) // self._rows * self._rows]
        return [*self._source.cut(given, self._workers)]

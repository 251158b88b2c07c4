"""Where a loader is in its order, from epoch to epoch; `place` says it within one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.engine.place import Place, UnderWay

if TYPE_CHECKING:
    from ringfeed.datasets.states import StreamStates
    from ringfeed.engine.hooks import Hooks
    from ringfeed.engine.place import Progress
    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Shard


class Position:
    """Where a loader is: in the last epoch that has begun or, if it was moved since, at the start of the next."""

    def __init__(self, sampler: Sampler, shard: Shard, hooks: Hooks) -> None:
        """Be at the start of epoch 0."""
        self.sampler = sampler
        self.shard = shard
        self.next = Place(0)
        """Where the next epoch begins."""
        self._hooks = hooks
        self._under_way: UnderWay | None = None
        self._has_moved = False  # since it began: the next place counts

    # ---- epochs begin ----

    def start(self, hooks: dict[str, Any] | None, progress: Progress, states: StreamStates | None) -> UnderWay:
        """Return the epoch of the next place, of which nothing is planned; the one after it comes next.

        ``hooks``: what the dataset's hooks had done to it ahead of the epoch; ``states``: those of iterables.
        """
        place = self.next._replace(hooks=hooks)
        self.next = Place(place.epoch + 1)
        order = self.sampler.epoch(place.epoch, place.samples, place.state)
        # What len() of an iterable says is no more than that.
        length = None if getattr(self.sampler, "ends_unsaid", False) else self.sampler.length
        return UnderWay(place, order, progress, self.shard, length, bool(self._hooks), states)

    def enter(self, epoch: UnderWay) -> None:
        """Be in an epoch that has begun."""
        self._has_moved = False
        self._under_way = epoch

    @property
    def under_way(self) -> UnderWay | None:
        """The last epoch that has begun."""
        return self._under_way

    @property
    def is_amid(self) -> bool:
        """Whether the next epoch begins at a position, where `load_state_dict` or `skip` has it begin."""
        return self.next.samples > 0

    @property
    def is_at_a_start(self) -> bool:
        """Whether the next epoch begins at its start, with nothing to restore."""
        return self.next == Place(self.next.epoch)

    # ---- its length ----

    def batches(self, *, is_iterable: bool) -> int:
        """Return the batches of an epoch; TypeError, with the reason, where the order does not know."""
        length = self.sampler.length
        if length is not None:
            return self.shard.batches(length)
        order = getattr(self.sampler, "parameter", "sampler")
        endless = getattr(self.sampler, "counts_up", False)
        whose = "dataset has no len(), and goes on without end" if endless else f"{order} has no len()"
        whose = getattr(self.sampler, "why_no_length", whose)
        whose = "dataset is an iterable" if is_iterable else whose
        message = f"the length of this loader is unknown: its {whose}"
        raise TypeError(message)

    @property
    def counts_up(self) -> bool:
        """Whether the order, unless it is shuffled, is 0, 1, 2, ... up to the dataset's length."""
        return getattr(self.sampler, "counts_up", False) and self.sampler.length is not None

    # ---- where the user's code is ----

    def place(self, batches: int | None = None) -> Place:
        """Return where the user's code is: in the last epoch that has begun, or at the start of the next.

        ``batches``: how many it has been handed of the epoch under way, where only its loop knows; StateError where
        that was not said.
        """
        now = self._now
        found = self.next if now is None else now.place(batches)
        if found.samples == 0 and found.state is None:
            found = found._replace(state=getattr(self.sampler, "start_state", None))
        return found if found.hooks is not None else found._replace(hooks=self.hooks_now())

    def hooks_now(self) -> dict[str, Any] | None:
        """Return what the dataset's hooks have done to it so far."""
        return self._hooks.now()

    @property
    def _now(self) -> UnderWay | None:
        return None if self._has_moved else self._under_way

    def go_to(self, place: Place) -> None:
        """Begin the next epoch there."""
        self.next = place
        self._has_moved = True

    def set_epoch(self, number: int) -> None:
        """Begin this epoch next; at its start, unless it is where `go_to` has it begin already."""
        self.go_to(self.next if self.next.epoch == number else Place(number))

    def skip(self, batches: int, streams: int) -> None:
        """Leave out so many more batches of the next epoch; ValueError where it has fewer, or several streams."""
        if streams > 1 and batches:
            message = (
                f"skip(batches={batches}) of {streams} iterables in turn: only reading shows which of them have ended "
                f"by then; take so many batches, and drop them"
            )
            raise ValueError(message)
        left = self.left()
        if left is not None and batches > left:
            message = f"skip(batches={batches}), but only {left} batches of epoch {self.next.epoch} are left"
            raise ValueError(message)
        samples, left = batches * self.shard.step, self._samples_from(self.next)
        samples = samples if left is None else min(samples, left)
        self.go_to(self.next._replace(samples=self.next.samples + samples))

    def give_back(self) -> None:
        """Begin the epoch under way again, unless another was asked for since."""
        if (now := self._now) is not None:
            self.go_to(now.begun)

    # ---- what is left ----

    def left(self, place: Place | None = None) -> int | None:
        """Return how many batches its epoch has from there on; by default the next; None where only reading shows."""
        samples = self._samples_from(place or self.next)
        return None if samples is None else self.shard.batches(samples)

    @property
    def padding(self) -> int | None:
        """Rows of padding in the last batch of the epoch under way, or else the next; None where only reading shows."""
        now = self._now
        samples = self._samples_from(self.next if now is None else now.begun)
        of_order = getattr(self.sampler, "padding", None)  # where a batch is no part of the next samples
        if of_order is not None:
            found: int = of_order(self.shard)
            return found
        return None if samples is None else self.shard.padding(samples)

    def _samples_from(self, place: Place) -> int | None:
        length = self.sampler.length
        return None if length is None else max(length - place.samples, 0)

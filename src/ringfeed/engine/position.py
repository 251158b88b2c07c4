"""The position of the user's code in the order: samples handed out, not samples read.

    epoch 3   0 . . . . . . . . . . . . . . . . . . N
              begun          handed      planned
              (`UnderWay.begun`)  (`Position.place`)

The end of an epoch is the start of the next; if the dataset has hooks, once they have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import StateError

if TYPE_CHECKING:
    from ringfeed.datasets.states import StreamStates
    from ringfeed.engine._iterator import Progress
    from ringfeed.engine.hooks import Hooks
    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Part

UNKNOWN = -1
"""Of `Progress.given`, where only the training loop knows it."""


class Place(NamedTuple):
    """A position in an epoch's order: in samples of all ranks, or in the dataset's batches."""

    epoch: int
    samples: int = 0
    state: Any = None  # what `Sampler.epoch` needs besides
    hooks: Any = None  # what the dataset's hooks had done to it ahead of this epoch: see `Hooks`
    streams: Any = None  # states of the iterables' own: see `StreamStates.newest`
    check: Any = (
        None  # returns the place, or another, when the hooks have run: see `Identity.place`
    )


class UnderWay(NamedTuple):
    """An epoch that has begun."""

    begun: Place
    order: Any  # its `orders.sampler.Epoch`
    progress: Progress
    length: int | None  # in samples
    states: StreamStates | None


class Position:
    """A loader's position: in the newest epoch or, after `go_to`, at the start of the next.

    Safe from any thread and from a signal handler: it has no lock, and each method reads each
    attribute that may change only once.
    """

    def __init__(self, sampler: Sampler, shard: Part, hooks: Hooks | None) -> None:
        """Start at epoch 0."""
        self.sampler = sampler
        self.shard = shard
        self.next = Place(0)
        """Where the next epoch begins."""
        self.under_way: UnderWay | None = None
        """The last epoch that has begun."""
        self.hooks = hooks
        """Those of the dataset, where it has any."""
        self._has_moved = False  # since it began: the next place counts

    # ---- epochs begin ----

    def start(
        self, hooks: dict[str, Any] | None, progress: Progress, states: StreamStates | None
    ) -> UnderWay:
        """Return the epoch at the next place; nothing of it is planned yet.

        See `enter`.

        ``hooks``: the hooks' effect on the dataset before the epoch; ``states``: those of
            iterables.
        """
        place, sampler = self.next._replace(hooks=hooks), self.sampler
        self.next = Place(place.epoch + 1)
        order = sampler.epoch(place.epoch, place.samples, place.state)
        # What len() of an iterable says is no more than that.
        return UnderWay(
            place, order, progress, None if sampler.ends_unsaid else sampler.length, states
        )

    def enter(self, epoch: UnderWay) -> None:
        """Make this epoch, which has begun, the running one."""
        self._has_moved = False
        self.under_way = epoch

    @property
    def is_amid(self) -> bool:
        """Whether `load_state_dict` or `skip` moved the start of the next epoch."""
        return self.next.samples > 0

    # ---- its length ----

    def batches(self) -> int:
        """Return the batches of an epoch.

        TypeError, with the reason, if the order does not know.
        """
        length = self.sampler.length
        if length is None:
            raise TypeError(
                f"the length of this loader is unknown: its {self.sampler.why_no_length}"
            )
        return self.shard.batches(length)

    # ---- where the user's code is ----

    def place(self, batches: int | None = None) -> Place:
        """Return the position of the user's code: in the newest epoch, or at the start of the next.

        ``batches``: how many batches of the running epoch the training loop has received, if only
        the loop knows; StateError if it did not say.
        """
        now = self._now
        found = self.next if now is None else self._place_in(now, batches)
        if found.samples == 0 and found.state is None:
            found = found._replace(state=self.sampler.start_state)
        if found.hooks is not None or self.hooks is None:
            return found
        return found._replace(hooks=self.hooks.now())

    def _place_in(self, now: UnderWay, batches: int | None) -> Place:
        given = now.progress.given if batches is None else batches
        if given < 0:
            raise StateError(
                "tf.data and Keras read ahead of the step, so only the training loop knows how "
                "far it is; give the batches of this epoch that it has had: state_dict(batches=n)"
            )
        samples, left = given * self.shard.step, None
        if now.length is not None:
            # len() of a user's order may say less than the order has given.
            rest = max(max(now.length, now.order.position or 0) - now.begun.samples, 0)
            samples, left = min(samples, rest), self.shard.global_batches(rest)
        if now.progress.is_over or (left is not None and given >= left and self.hooks is None):
            return Place(now.begun.epoch + 1)
        samples += now.begun.samples
        found = now.begun._replace(samples=samples, state=now.order.state(samples))
        if now.states is None:
            return found
        # Only iterables have states, and their order counts the elements of each.
        streams = now.states.newest(found.epoch, now.order.counts(samples), now.begun.streams)
        return found._replace(streams=streams)

    @property
    def _now(self) -> UnderWay | None:
        return None if self._has_moved else self.under_way

    def go_to(self, place: Place) -> None:
        """Begin the next epoch at this place."""
        self.next = place
        self._has_moved = True

    def set_epoch(self, number: int) -> None:
        """Begin this epoch next: at its start, unless `go_to` set a place in this epoch."""
        self.go_to(self.next if self.next.epoch == number else Place(number))

    def skip(self, batches: int, streams: int) -> None:
        """Leave out batches of the next epoch.

        Raises ValueError if the epoch has fewer, or has several streams.
        """
        if streams > 1 and batches:
            raise ValueError(
                f"skip(batches={batches}) of {streams} iterables in turn: only reading shows which "
                "of them have ended by then; take so many batches, and drop them"
            )
        place = self.next
        samples, rest = batches * self.shard.step, self._samples_from(place)
        if rest is not None:
            if batches > (left := self.shard.batches(rest)):
                raise ValueError(
                    f"skip(batches={batches}), but only {left} batches of epoch {place.epoch} are "
                    "left"
                )
            samples = min(samples, rest)
        self.go_to(place._replace(samples=place.samples + samples))

    def give_back(self) -> None:
        """Begin the running epoch again, unless another was requested since."""
        if (now := self._now) is not None:
            self.go_to(now.begun)

    # ---- what is left ----

    def left(self, place: Place | None = None) -> int | None:
        """Return how many batches follow a place in its epoch.

        Returns None where only reading shows that.
        """
        samples = self._samples_from(place or self.next)
        return None if samples is None else self.shard.batches(samples)

    @property
    def padding(self) -> int | None:
        """Rows of padding at the end of this epoch, or the next.

        Returns None where only reading shows that.
        """
        now = self._now
        samples = self._samples_from(self.next if now is None else now.begun)
        return None if samples is None else self.sampler.padding(self.shard, samples)

    def _samples_from(self, place: Place) -> int | None:
        length = self.sampler.length
        return None if length is None else max(length - place.samples, 0)

"""The position of the user's code in the order: samples handed out, not samples read.

    epoch 3   0 . . . . . . . . . . . . . . . . . . N
              begun          handed      planned
              (`RunningEpoch.begun`)  (`Position.place`)

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
"""Of `Progress.finished_batches`, where only the training loop knows it."""


class Place(NamedTuple):
    """A position in an epoch's order: in samples of all ranks, or in the dataset's batches."""

    epoch: int
    samples: int = 0
    # What `Sampler.epoch` needs besides.
    state: Any = None
    # The hooks' effect on the dataset before this epoch: see `Hooks.now`.
    hooks: Any = None
    # States of the iterables' own: see `StreamStates.newest`.
    streams: Any = None
    # Returns the place, or another, once the hooks have run: see `Identity.place`.
    check: Any = None


class RunningEpoch(NamedTuple):
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
        """Start at epoch 0; ``hooks``: the dataset's, if it has any."""
        self.sampler, self.shard, self.hooks = sampler, shard, hooks
        self.next = Place(0)
        """Where the next epoch begins."""
        self.running: RunningEpoch | None = None
        """The newest epoch; None if the next one was moved since."""

    # ---- epochs begin ----

    def start(
        self, hooks: dict[str, Any] | None, progress: Progress, states: StreamStates | None
    ) -> RunningEpoch:
        """Return the epoch at the next place; it becomes `running` when its batches are planned.

        ``hooks``: the hooks' effect on the dataset before the epoch; ``states``: those of
            iterables.
        """
        place, sampler = self.next._replace(hooks=hooks), self.sampler
        self.next = Place(place.epoch + 1)
        order = sampler.epoch(place.epoch, place.samples, place.state)
        # What len() of an iterable says is no more than that.
        length = None if sampler.ends_unsaid else sampler.length
        return RunningEpoch(place, order, progress, length, states)

    def go_to(self, place: Place) -> None:
        """Begin the next epoch at this place."""
        self.next, self.running = place, None

    def set_epoch(self, number: int) -> None:
        """Begin this epoch next: at its start, unless `go_to` set a place in this epoch."""
        self.go_to(self.next if self.next.epoch == number else Place(number))

    def give_back(self) -> None:
        """Begin the running epoch again, unless another was requested since."""
        if (now := self.running) is not None:
            self.go_to(now.begun)

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

    # ---- where the user's code is ----

    @property
    def is_amid(self) -> bool:
        """Whether `load_state_dict` or `skip` moved the start of the next epoch."""
        return self.next.samples > 0

    def place(self, batches: int | None = None) -> Place:
        """Return the position of the user's code: in the newest epoch, or at the start of the next.

        ``batches``: how many batches of the running epoch the training loop has received, if only
        the loop knows; StateError if it did not say.
        """
        now = self.running
        found = self.next if now is None else self._place_in(now, batches)
        if found.samples == 0 and found.state is None:
            found = found._replace(state=self.sampler.start_state)
        if found.hooks is None and self.hooks is not None:
            found = found._replace(hooks=self.hooks.now())
        return found

    def _place_in(self, now: RunningEpoch, batches: int | None) -> Place:
        begun, finished = now.begun, now.progress.finished_batches if batches is None else batches
        if finished < 0:
            raise StateError(
                "tf.data and Keras read ahead of the step, so only the training loop knows how "
                "far it is; give the batches of this epoch that it has had: state_dict(batches=n)"
            )
        samples, is_over = finished * self.shard.step, now.progress.is_over
        if now.length is not None:
            # len() of a user's order may say less than the order has given.
            rest = max(max(now.length, now.order.position or 0) - begun.samples, 0)
            samples = min(samples, rest)
            # The hook at the end of an epoch has not run yet.
            is_over |= finished >= self.shard.global_batches(rest) and self.hooks is None
        if is_over:
            return Place(begun.epoch + 1)
        samples += begun.samples
        found = begun._replace(samples=samples, state=now.order.state(samples))
        if now.states is None:
            return found
        # Only iterables have states, and their order counts the elements of each.
        streams = now.states.newest(found.epoch, now.order.counts(samples), begun.streams)
        return found._replace(streams=streams)

    # ---- how much is left ----

    def batches(self) -> int:
        """Return the batches of an epoch.

        TypeError, with the reason, if the order does not know.
        """
        if (left := self.left(Place(0))) is None:
            raise TypeError(
                f"the length of this loader is unknown: its {self.sampler.why_no_length}"
            )
        return left

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
        now = self.running
        samples = self._samples_from(self.next if now is None else now.begun)
        return None if samples is None else self.sampler.padding(self.shard, samples)

    def _samples_from(self, place: Place) -> int | None:
        length = self.sampler.length
        return None if length is None else max(length - place.samples, 0)

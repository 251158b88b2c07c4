"""Where the user's code is in a loader's order: counted in samples that it was handed, never in what was read ahead.

    epoch 3   0 . . . . . . . . . . . . . . . . . . N
              begun          handed      planned
              (`Place`)      (`UnderWay.place`)

The end of an epoch is the start of the next; with hooks of the dataset's, when they have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ringfeed.errors import StateError

if TYPE_CHECKING:
    from ringfeed.datasets.round_robin import RoundRobinEpoch
    from ringfeed.datasets.states import StreamStates
    from ringfeed.orders.sampler import Epoch
    from ringfeed.orders.shard import Shard


class Progress(Protocol):
    """How far the user's code has come in an epoch, as an iterator counts it."""

    given: int
    """Planned batches that it was handed, or whose failure was raised, or that hold nothing; UNKNOWN: only it knows."""
    planned_before: int
    """How many batches were planned before this epoch."""
    is_over: bool


UNKNOWN = -1


class Place(NamedTuple):
    """A position in the order of an epoch, in samples of all ranks; for a dataset of whole batches, in batches."""

    epoch: int
    samples: int = 0
    state: Any = None  # what `Sampler.epoch` needs besides
    hooks: Any = None  # what the dataset's hooks had done to it ahead of this epoch: see `Hooks`
    streams: Any = None  # states of the iterables' own: see `StreamStates.newest`
    check: Any = None  # returns the place, or another, when the hooks have run: see `Identity.place`


class UnderWay(NamedTuple):
    """An epoch that has begun. Safe from any thread and from a signal handler: it has no lock."""

    begun: Place
    order: Epoch
    progress: Progress
    shard: Shard
    length: int | None  # of the epoch, in samples
    has_hooks: bool
    states: StreamStates | None = None

    def place(self, batches: int | None = None) -> Place:
        """Return how far the user's code has come; ``batches``: what it says of that itself."""
        given = self.progress.given if batches is None else batches
        if given < 0:
            message = (
                "tf.data and Keras read ahead of the step, so only the training loop knows how far it is; give the "
                "batches of this epoch that it has had: state_dict(batches=n)"
            )
            raise StateError(message)
        samples, left = given * self.shard.step, None
        if self.length is not None:
            # len() of a user's order may say less than the order has given.
            end = max(self.length, getattr(self.order, "position", 0))
            rest = max(end - self.begun.samples, 0)
            samples, left = min(samples, rest), self.shard.global_batches(rest)
        if self.progress.is_over or (left is not None and given >= left and not self.has_hooks):
            return Place(self.begun.epoch + 1)
        samples += self.begun.samples
        found = self.begun._replace(samples=samples, state=self.order.state(samples))
        return found if self.states is None else found._replace(streams=self._streams(self.states, samples))

    def _streams(self, states: StreamStates, samples: int) -> Any:
        order = cast("RoundRobinEpoch", self.order)  # only iterables have states
        return states.newest(self.begun.epoch, order.counts(samples), self.begun.streams)

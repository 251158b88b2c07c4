"""What the user says of a dataset, what its first element shows, and what has become of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from ringfeed.datasets.functions import Functions
    from ringfeed.orders.shard import Part


class Terms(NamedTuple):
    """What the user says of a dataset: the loader's parameters of these names."""

    batch_size: int | None
    spec: object = None
    max_batch_size: int | None = None
    seed: int = 0
    reseed: bool = False
    on_error: str = "raise"
    waits: bool = False  # samples are read many at a time, by __getitem__
    functions: Functions | None = None  # the user's, for the workers; None: there are none
    part: Part | None = None  # of several ranks; None: there is one
    timeout_s: float | None = None  # for the first sample, where it is awaited

    def given_spec(self) -> Spec | None:
        """Return the spec, where the user gives one."""
        if self.spec is None or isinstance(self.spec, Spec):
            return self.spec
        return Spec(self.spec, has_rows=self.batch_size is None)


class Delivery(NamedTuple):
    """What is delivered of a batch where something is missing."""

    failed: list[tuple[int, int, int]]  # row, index and mark of each sample that failed
    is_none: bool = False  # whether the dataset has None in the place of this batch
    keeps_others: bool = True  # whether the rows that did not fail are delivered
    is_short: bool = False  # whether an iterable has ended within it
    is_whole: bool = False  # whether what is delivered has no rows of samples that failed
    ended: tuple[str, bytes] | None = (
        None  # the stream that an error has ended, in words, and that error's record
    )
    is_over: bool = False  # whether no stream has any more elements


class Kept:
    """What a running ring keeps of its dataset beside the slots: nothing, but of iterables."""

    states: Any = None  # what readers write into; it has a descriptor, ``memfd``, and a ``size``
    fd = -1
    """The descriptor of the memory; -1 where it has none."""

    def go_on_from(self, epoch: int, samples: int, streams: Any, *, is_ahead: bool) -> None:
        """Begin reading at a place; ``is_ahead``: readers have begun there already."""

    def look_in_ns(self, left_ns: int) -> int:
        """Return how long to wait for a batch until `look`."""
        return left_ns

    def look(self) -> None:
        """Say what takes long."""

    def close(self) -> None:
        """Give the memory back."""

"""The door between a loader and the frameworks: what they may know of it, and how they take its batches.

    Loader ── LoaderInfo, BatchStream ──▶ torch, jax, tensorflow, keras

Nothing in this package knows the loader itself, or the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ringfeed._checks import check_count
from ringfeed._failure import UsersErrors
from ringfeed.engine._repeated import Repeated
from ringfeed.frameworks.facts import LoaderFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sized

    from typing_extensions import Self

    from ringfeed.datasets.base import Source
    from ringfeed.engine._iterator import Progress
    from ringfeed.engine.position import Position
    from ringfeed.errors import RingfeedError
    from ringfeed.frameworks.forms import Joins
    from ringfeed.frameworks.pinned import DeviceSlots
    from ringfeed.frameworks.tensorflow._feed import Feed
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec


@dataclass(frozen=True)
class LoaderInfo:
    """What a framework may know of a loader.

    offsets: where each leaf begins in a slot, in bytes.
    max_rows: the most rows a batch has; ``fixed_rows``: the rows of every batch, None where they may differ.
    count: counts the batches of an epoch, None where the loader cannot know: see ``length``. It may ask the dataset or
        the sampler, which may take long. ``is_exact``: whether there are never fewer, or more.
    is_iterable: whether the dataset is an iterable, whose end only reading shows.
    copy: whether what is handed out is a copy.
    is_shuffled: whether each epoch has an order of its own.
    is_in_order: whether every epoch is 0, 1, 2, ..., though the dataset could be read in another order.
    """

    spec: Spec
    offsets: tuple[int, ...]
    slots: int
    max_rows: int
    fixed_rows: int | None
    count: Callable[[], int | None]
    is_exact: bool
    is_iterable: bool
    copy: bool
    is_shuffled: bool
    is_in_order: bool
    timeout_s: float | None

    @property
    def length(self) -> int | None:
        """The batches of an epoch, None where the loader cannot know.

        Fewer come where all rows of one failed, or where whole batches are None. Keras is content with that.
        """
        return self.count()

    @property
    def exact_length(self) -> int | None:
        """The same, but None where there may be fewer, or more."""
        return self.count() if self.is_exact else None


class BatchIterator(Protocol):
    """One epoch. Dropping it before the end breaks the epoch off."""

    @property
    def epoch_id(self) -> int:
        """The number of this iterator among those of its loader."""

    @property
    def failure(self) -> RingfeedError | None:
        """What ended the workers, and the epoch before its time."""

    def __iter__(self) -> Self:
        """Return itself."""

    def __next__(self) -> Any:
        """Return the next batch."""

    @property
    def progress(self) -> Progress:
        """How far the caller has come."""

    def count_alone(self) -> Progress:
        """Return the progress, for a caller that keeps batches for later, and counts what it hands on."""

    def ready(self) -> bool:
        """Whether ``next()`` would not wait; raises what it would, for an iterator that has had its time."""


@dataclass(frozen=True, kw_only=True)
class BatchStream:
    """A loader, as frameworks take it. Made for each of them, since a loader must not refer to itself.

    loader: counts the batches of an epoch; it lives as long as its streams.
    look: returns what is known now: the dataset's hooks may change the length.
    position: where the loader is in its order. source: what it reads.
    slots: what devices have to do with its slots.
    epoch: begins the next epoch, whose batches ``build`` makes: ``epoch(build, wait_for_slots=False)``. Older iterators
        raise SupersededError. ``wait_for_slots``: where views hold every slot, wait for one up to ``timeout_s``,
        instead of one second: for frameworks that let go of their views by themselves.
    prepare: runs the hook of the next epoch now, so that its length is known before it begins.
    give_back: makes the next epoch the one of this id again, from where it began; unless another was asked for since.
    attach: has C code take the newest iterator's batches from a feed.
    has_more: whether the newest iterator has batches that are not taken, or may have.
    request_stop: begins to close: what waits for a batch gives up. At once, from any thread.
    set_seed: has all epochs from the next on be of this seed. seed_is_drawn: whether the loader has drawn its own.
    state_dict, load_state_dict: those of the loader.
    """

    loader: Sized
    look: Callable[[], LoaderInfo]
    position: Position
    source: Source
    slots: DeviceSlots
    epoch: Callable[..., BatchIterator]
    prepare: Callable[[], None]
    give_back: Callable[[int], None]
    attach: Callable[[Feed], None]
    has_more: Callable[[], bool]
    request_stop: Callable[[], None]
    set_seed: Callable[[int], None]
    seed_is_drawn: bool
    state_dict: Callable[..., dict[str, Any]]
    load_state_dict: Callable[..., None]

    @property
    def info(self) -> LoaderInfo:
        """What is known now."""
        return self.look()

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError, with the reason, where the loader cannot know."""
        return len(self.loader)

    def set_epoch(self, epoch: int, seed: int | None = None) -> None:
        """Make the next epoch the one of this number; of this seed where the loader has drawn its own."""
        self.position.set_epoch(epoch)
        if seed is not None and self.seed_is_drawn:
            self.set_seed(seed)

    def begin(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the iterator of an epoch that ``begin`` begins; Ctrl-C leaves the loader where it was."""
        place = self.position.next
        try:
            with UsersErrors():  # of a hook
                return begin()
        except KeyboardInterrupt:  # perhaps when it had begun: the caller has no iterator
            self.position.next = place
            raise


@dataclass(frozen=True)
class Framework:
    """How a framework takes memory.

    from_dlpack: makes a tensor over the memory of a DLPack capsule; None: all leaves are copies.
    from_numpy: makes the same kind of tensor of a private array, in its memory or in a copy.
    leaves_alone: the dtypes, by name, that `from_numpy` is always given, as copies.
    copied_by: how a user copies what is to be kept.
    has_memory: whether a tensor that the program refers to still has its memory.
    in_flight_s: how long to wait for slots that the framework still computes with when no tensor is left.
    is_computing: whether the framework owes the program a result, and may let go of slots when it is there; None: it
        lets go of a slot with the program's last tensor.
    in_cycles: whether the tensors that it is done with are left to the garbage collector.
    joins: how it holds leaves whose samples differ in length, by the name of the form.
    strings: whether it takes bytes and text as an array of Python's bytes objects.
    on_host: whether a leaf stays in this process's memory as it is, whatever the device.
    has_one_shape: whether the values of a ragged leaf are to be as many in all batches: as a slot has room for.
    """

    from_dlpack: Callable[[object], Any] | None
    from_numpy: Callable[[AnyArray], Any]
    leaves_alone: frozenset[str] = frozenset()
    copied_by: str = ""
    has_memory: Callable[[Any], bool] = lambda _tensor: True
    in_flight_s: float = 0.0
    is_computing: Callable[[], bool] | None = None
    in_cycles: bool = False
    joins: Joins = field(default_factory=dict)
    strings: bool = False
    on_host: Callable[[Leaf], bool] = lambda _leaf: False
    has_one_shape: bool = False


class BuildAhead:
    """A `BuildBatch` for a framework, or a device, that may still compute when the program asks for the next batch."""

    def __init__(self, build: BuildBatch, is_computing: Callable[[], bool] | None) -> None:
        self._build = build
        self.is_computing = is_computing
        """As that of a `BatchBuilder`."""

    def __call__(self, lease: Lease, rows: int) -> Any:
        """Return the batch."""
        return self._build(lease, rows)


class Reiterable:
    """Begins anew at each `iter`."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Begin; an older iterator of the same loader raises SupersededError at its next ``next()``."""
        return self._begin()


class Epochs(LoaderFacts, Reiterable):
    """Every ``iter()`` is the loader's next epoch; as long as the loader. What `to_torch` and `to_jax` return."""

    def __init__(self, stream: BatchStream, begin: Callable[[], Iterator[Any]]) -> None:
        super().__init__(begin)
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch; an older iterator of the loader raises SupersededError at its next ``next()``."""
        return self._stream.begin(self._begin)

    @property
    def batch_size(self) -> int | None:
        """Samples a batch, as of the loader."""
        size: int | None = self._facts.batch_size
        return size

    def repeat(self, epochs: int | None = None) -> Repeated[Any]:
        """Return one iterator over so many epochs; None: without end. See `Loader.repeat`.

        With a device, the first batch of each epoch is copied when it is asked for, and all others ahead of that.
        """
        return Repeated(self, check_count("epochs", epochs, 0))

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the loader does not know."""
        return len(self._stream)

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return where the user's code is: see `Loader.state_dict`. What is copied ahead to a device does not count."""
        return self._stream.state_dict(batches=batches)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Have the next ``iter()`` go on where ``state`` was taken: see `Loader.load_state_dict`."""
        self._stream.load_state_dict(state, strict=strict)

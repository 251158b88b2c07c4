"""What frameworks may know of a loader, and how they take its batches.

    Loader ── BatchStream ──▶ torch, jax: Epochs
                        └───▶ tensorflow, keras: Epoch, begun ahead of the step

Nothing in this package imports the loader itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_count
from ringfeed._failure import UsersErrors
from ringfeed.engine._repeated import Repeated
from ringfeed.engine.position import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ringfeed.engine._iterator import BatchIterator, Progress
    from ringfeed.engine.runner import EpochRunner
    from ringfeed.frameworks.device import DeviceSlots
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec


@dataclass(frozen=True)
class LoaderInfo:
    """What a loader's batches are.

    offsets: where each leaf begins in a slot, in bytes.
    max_rows: the most rows a batch has; ``fixed_rows``: the rows of every batch, None where they
        may differ.
    copy: whether what is handed out is a copy.
    """

    spec: Spec
    offsets: tuple[int, ...]
    slots: int
    max_rows: int
    fixed_rows: int | None
    copy: bool


@dataclass(frozen=True)
class BatchStream:
    """A loader as frameworks take it; each gets one, since a loader must not refer to itself.

    loader: lives as long as its streams. runner: runs its epochs, and knows where it is in its
        order.
    slots: what devices have to do with its slots.
    epoch: begins the next epoch, whose batches ``build`` makes: ``epoch(build)``. Older iterators
        raise SupersededError.
    seed_is_drawn: whether the loader has drawn its own seed.
    """

    loader: Any
    runner: EpochRunner
    info: LoaderInfo
    slots: DeviceSlots
    epoch: Callable[..., BatchIterator]
    seed_is_drawn: bool

    @property
    def length(self) -> int | None:
        """The batches of an epoch as the dataset is now, None where the loader cannot know.

        It may ask the dataset or the sampler, which may take long. Fewer come where all rows of one
        failed, or where whole batches are None. Keras is content with that.
        """
        try:
            return len(self.loader)
        except TypeError:
            return None

    @property
    def exact_length(self) -> int | None:
        """The same, but None where there may be fewer, or more."""
        runner, source = self.runner, self.runner.source
        # None has come in the place of whole batches, ahead of the plan or since.
        has_gaps = source.has_gaps or runner.stats.none_batches > 0
        return (
            None if has_gaps or source.streams or runner.options.on_error == "skip" else self.length
        )

    def set_epoch(self, epoch: int, seed: int | None = None) -> None:
        """Make the next epoch the one of this number.

        ``seed`` is taken by a loader that has drawn its own.
        """
        self.runner.position.set_epoch(epoch)
        if seed is not None and self.seed_is_drawn:
            self.runner.set_seed(seed)

    def begin(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the epoch that ``begin`` begins; Ctrl-C leaves the loader where it was."""
        position = self.runner.position
        place = position.next
        try:
            with UsersErrors():  # of a hook
                return begin()
        except KeyboardInterrupt:  # perhaps when it had begun: the caller has no iterator
            position.next = place
            raise


class LoaderFacts:
    """What training scripts ask a loader of torch's for: answers for the loader of its stream."""

    _stream: BatchStream

    @property
    def dataset(self) -> Any:
        """The loader's dataset, as it was given."""
        return self._stream.loader.dataset

    @property
    def sampler(self) -> Any:
        """What the loader was given as ``sampler=`` or ``batch_sampler=``, or None."""
        return self._stream.loader.sampler

    def set_epoch(self, epoch: int) -> None:
        """Make the next epoch the one of this number: see `Loader.set_epoch`."""
        self._stream.loader.set_epoch(epoch)

    def __bool__(self) -> bool:
        """Whether it is there, which its length does not say: that may be unknown."""
        return True

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError says why the loader cannot know."""
        return len(self._stream.loader)

    def __repr__(self) -> str:
        """Return whose it is, in a line."""
        return f"<{type(self).__name__} of {self._stream.loader!r}>"


class Epochs(LoaderFacts):
    """What `to_torch` and `to_jax` return: every ``iter()`` is the loader's next epoch."""

    def __init__(self, stream: BatchStream, begin: Callable[[], Iterator[Any]]) -> None:
        self._stream = stream
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch; an older iterator raises SupersededError at its next ``next()``."""
        return self._stream.begin(self._begin)

    @property
    def batch_size(self) -> int | None:
        """Samples a batch, as of the loader."""
        size: int | None = self._stream.loader.batch_size
        return size

    def repeat(self, epochs: int | None = None) -> Repeated[Any]:
        """Return one iterator over so many epochs; None: without end. See `Loader.repeat`.

        With a device, the first batch of each epoch is copied when it is asked for, and all others
        ahead of that.
        """
        return Repeated(self, check_count("epochs", epochs, 0))

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return where the user's code is: see `Loader.state_dict`.

        What is copied ahead to a device does not count.
        """
        found: dict[str, Any] = self._stream.loader.state_dict(batches=batches)
        return found

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where ``state`` was taken at the next ``iter()``: see `Loader.load_state_dict`."""
        self._stream.loader.load_state_dict(state, strict=strict)


class Epoch:
    """The loader's next epoch, read ahead of the step by a framework.

    Only the training loop knows how far training is.

    It is begun by the first ``next()``, which gives what ``build`` makes of a batch. An error of
    the loader does not end the epoch: the next ``next()`` goes on as the loader does. ``build``
    must not refer to the epoch, which breaks off where it is dropped.
    """

    def __init__(self, stream: BatchStream, build: BuildBatch | None) -> None:
        self._stream = stream
        self._build = build
        self._batches: BatchIterator | None = None
        self._count: int | None = None
        self._last: Any = None
        self.told: Progress | None = None
        """What the loader is told by how far the training is."""

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        batches, leaves, self._last = self._batches or self.begin(), self._last, None
        if leaves is None:
            leaves = next(batches)
            # Not by counting calls: a stall is an error that costs no batch.
            if batches.progress.finished_batches == self._count:
                # Callers that know the length never ask past the end, where the loader closes its
                # epoch. If the dataset's hook raises, the batch comes next.
                self._last = leaves
                next(batches, None)
                self._last = None
        return leaves

    def begin(self) -> BatchIterator:
        """Begin now, where the first ``next()`` has not."""
        if self._batches is None:
            runner = self._stream.runner
            runner.prepare()
            left = runner.position.left()
            self._batches = self._stream.epoch(self._build)
            self.told = self._batches.count_alone()
            self.told.finished_batches = (
                UNKNOWN  # the training loop knows alone how far it is: its batches are read ahead
            )
            # An iterable may give more than it says, or raise instead of ending: either is what
            # comes next.
            self._count = None if runner.source.streams else left
        return self._batches

"""Where a call of Keras is in the loader's epoch, and how one that was restored goes on there.

the loader's epoch   0 1 2 3 4 5 6 7 8 9
taken                0 1 2 3 4             by Keras, which may read ahead of the step
trained on           0 1 2 3               the callback counts these; a backup says so
"""

from __future__ import annotations

import sys
import traceback
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfeed._callers import frame_above
from ringfeed.errors import RingfeedError, SupersededError
from ringfeed.frameworks.base import Epoch
from ringfeed.frameworks.keras.arguments import resumed_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from keras.src.trainers.epoch_iterator import EpochIterator

    from ringfeed.engine._iterator import Progress
    from ringfeed.engine.runner import BatchIterator
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.batch import Extra
    from ringfeed.spec.builder import BuildBatch

    Steps = Iterator[tuple[Any, ...]]


@dataclass
class Place:
    """The newest of the loader's epochs that one call of Keras walks.

    weights: makes the weights of each batch, where the call asked for any.
    begun: how many epochs the call has begun; start: the batches of the newest that an earlier run
        was trained on; taken: the batches of it that Keras has, with those.
    newest: the newest epoch that was made, which may not have begun; epoch_id: of the one that has
        begun and that no epoch of Keras has ended; progress: what the loader is told by how far it
        is.
    around: what is entered while the next epoch begins. is_restored: whether a backup says which
        the loader's next epoch is, whatever number Keras has for it.
    """

    stream: BatchStream
    weights: Extra | None = None
    begun: int = 0
    start: int = 0
    taken: int = 0
    newest: weakref.ref[KerasEpoch] | None = None
    epoch_id: int | None = None
    progress: Progress | None = None
    around: AbstractContextManager[None] = field(default_factory=nullcontext)
    is_restored: bool = False
    _restored_batches: int = 0
    # Batches that are None are left out, so Keras has fewer than the loader's order: since which
    # batch, how many.
    _left_out: list[tuple[int, int]] = field(default_factory=list)

    def begin(self) -> None:
        """Count an epoch, which begins at the loader's place."""
        self.begun += 1
        self.start = self.taken = self._restored_batches or done_batches(self.stream)
        self.is_restored, self._restored_batches, self._left_out = False, 0, []

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; the loader has it again where nothing was trained on it, unless another was begun since."""
        epoch_id, self.epoch_id = self.epoch_id, None
        if epoch_id is not None and not trained:
            self.stream.runner.give_back(epoch_id)

    def count(self, planned: int) -> None:
        """Count a batch that Keras has taken; ``planned``: how many of the order this makes since the epoch began."""
        self.taken += 1
        left_out = planned - (self.taken - self.start)
        if left_out != (self._left_out[-1][1] if self._left_out else 0):
            self._left_out.append((self.taken, left_out))

    def has_more(self, trained: int) -> bool:
        """Whether the epoch has a batch after those that were trained on; it is taken, where only that tells."""
        length = self.stream.exact_length
        if length is not None:
            return trained < length
        epoch = None if self.newest is None else self.newest()
        return trained < self.taken or (epoch is not None and epoch.has_next())

    def state(self, trained: int | None) -> dict[str, Any]:
        """Return the loader's state after so many batches of the newest epoch; None: after all of it."""
        find: Callable[..., dict[str, Any]] = self.stream.loader.state_dict
        if self.progress is None:
            return find()  # none has begun
        self.progress.is_over = trained is None
        left_out = [
            number for since, number in self._left_out if trained is not None and since <= trained
        ]
        planned = (
            (self.taken if trained is None else trained)
            - self.start
            + (left_out[-1] if left_out else 0)
        )
        return find(batches=planned)

    def restore(
        self, state: dict[str, Any], batches: int, around: AbstractContextManager[None]
    ) -> None:
        """Begin the loader's next epoch where a state says, after so many batches of it; StateError if it cannot.

        ``around``: what is entered while that epoch begins, whenever Keras asks for its first
            batch.
        """
        self.stream.loader.load_state_dict(state)
        self.is_restored, self._restored_batches, self.around = True, batches, around

    def prepare(self) -> None:
        """Run the hook of the loader's next epoch, which begins when Keras asks for its first batch."""
        with self.around:
            self.stream.runner.prepare()


def begins_loader(iterator: EpochIterator) -> bool:
    """Whether the loader begins an epoch with the one of Keras that begins, and does not go on with one."""
    # What Keras itself asks, and has no public name for.
    return (
        iterator.steps_per_epoch is None
        or iterator._current_iterator is None  # noqa: SLF001
        or not iterator._steps_seen  # noqa: SLF001
    )


def done_batches(stream: BatchStream) -> int:
    """The batches of the loader's next epoch that it leaves out; 0 where its length is unknown."""
    position = stream.runner.position
    if not position.is_amid:
        return 0
    length, left = stream.length, position.left()
    return 0 if length is None or left is None else length - left


class KerasEpoch(Epoch):
    """An epoch that Keras walks, and counts in its place."""

    def __init__(self, stream: BatchStream, build: BuildBatch, place: Place) -> None:
        super().__init__(stream, build)
        self._place = place
        self._ahead: list[Any] = []  # what `has_next` has taken: a batch, or the error in its place
        place.newest = weakref.ref(self)

    def __next__(self) -> Any:
        if not self._ahead:
            return self._take()
        found = self._ahead.pop()
        if isinstance(found, RingfeedError):
            raise found
        return found

    def _take(self) -> Any:
        try:
            leaves = super().__next__()
        except SupersededError as error:
            if not str(error).startswith("a newer iterator"):  # a state was loaded
                raise
            raise SupersededError(
                "another call of Keras, or a loop, has begun the next epoch of this feed or "
                "loader, so that the call amid this epoch cannot go on; give validation_data= a "
                "feed() or a loader of its own"
            ) from None
        except RingfeedError as error:
            # Keras raises what it catches `from None`: the cause goes along as a note.
            if error.__cause__ is not None and sys.version_info >= (3, 11):
                error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
            raise
        self._place.count(self.begin().progress.given)
        return leaves

    def has_next(self) -> bool:
        """Whether there is another batch; it is taken, and comes next. So does an error."""
        try:
            self._ahead = self._ahead or [self._take()]
        except StopIteration:
            return False
        except RingfeedError as error:
            self._ahead = [error]
        return True

    def begin(self) -> BatchIterator:
        """Begin as the place says: where a `fit` goes on that does so, or was restored."""
        if self._batches is None:
            place = self._place
            around, place.around = place.around, nullcontext()
            with around:
                number = None if place.is_restored else resumed_epoch(frame_above(0), self._stream)
                if number is not None:
                    self._stream.set_epoch(number)
                place.begin()
                place.epoch_id, place.progress = super().begin().epoch_id, self.told
        return super().begin()


def go_on(
    iterator: EpochIterator, step: int, batches: int, ready: Callable[[], None] = lambda: None
) -> None:
    """Have the next epoch of Keras be the rest of one that had ``step`` steps.

    Its steps have the numbers that they have in a whole epoch, and Keras counts ``batches`` of the
    loader's epoch as seen. ``ready`` is called when the hooks of the dataset have run and no batch
    was taken.
    """

    def rest() -> Steps:
        vars(iterator).pop("_enumerate_iterator", None)  # epochs after this one are whole
        return _rest(iterator, step, batches, ready)

    vars(iterator)["_enumerate_iterator"] = rest


def _rest(iterator: EpochIterator, step: int, batches: int, ready: Callable[[], None]) -> Steps:
    # Keras' private names: it has no other place for where an epoch begins.
    whole = iterator.steps_per_epoch
    counts_anew = not (whole or iterator._num_batches)  # noqa: SLF001 - the branch without an end sets its count each time
    iterator.steps_per_epoch = whole and whole - step
    try:
        for number, (*steps, data) in enumerate(iterator._enumerate_iterator()):  # noqa: SLF001
            iterator.steps_per_epoch = whole
            if number == 0:
                ready()
            if number == 0 or counts_anew:
                iterator._steps_seen += batches  # noqa: SLF001
            yield (
                *(at + step for at in steps),
                data,
            )  # the first and the last; before Keras 3.11 the first alone
    finally:
        iterator.steps_per_epoch = whole

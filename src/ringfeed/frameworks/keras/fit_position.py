"""Where a call of Keras is in the loader's epoch, and how one that was restored goes on there.

the loader's epoch   0 1 2 3 4 5 6 7 8 9
taken                0 1 2 3 4             by Keras, which may read ahead of the step
trained on           0 1 2 3               the callback counts these; a backup says so
"""

from __future__ import annotations

import sys
import traceback
import weakref
from array import array
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._callers import frame_above
from ringfeed.errors import RingfeedError, SupersededError
from ringfeed.frameworks.base import Epoch
from ringfeed.frameworks.keras.arguments import resumed_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from keras.src.trainers.epoch_iterator import EpochIterator

    from ringfeed.engine._iterator import BatchIterator, Progress
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.batch import Extra
    from ringfeed.spec.builder import BuildBatch


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
    # How many batches of the loader's order each taken one makes: those of None are left out.
    _planned: array[int] = field(default_factory=partial(array, "q"))

    def begin(self) -> None:
        """Count an epoch, which begins at the loader's place."""
        self.begun += 1
        self.start = self.taken = self._restored_batches or done_batches(self.stream)
        self.is_restored, self._restored_batches, self._planned = False, 0, array("q", [0])

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; if it is the newest and was not trained on, the loader has it again."""
        epoch_id, self.epoch_id = self.epoch_id, None
        if epoch_id is not None and not trained:
            self.stream.runner.give_back(epoch_id)

    def count(self, planned: int) -> None:
        """Count a taken batch, with which ``planned`` batches of the epoch's order are done."""
        self.taken += 1
        self._planned.append(planned)

    def has_more(self, trained: int) -> bool:
        """Whether the epoch has a batch beyond these; it is taken where nothing else tells."""
        length = self.stream.exact_length
        if length is not None:
            return trained < length
        epoch = None if self.newest is None else self.newest()
        return trained < self.taken or (epoch is not None and epoch.has_next())

    def state(self, trained: int | None) -> dict[str, Any]:
        """Return the loader's state after so many batches of the newest epoch; None: at its end."""
        find: Callable[..., dict[str, Any]] = self.stream.loader.state_dict
        if self.progress is None:
            return find()  # none has begun
        self.progress.is_over = trained is None
        return find(batches=self._planned[-1 if trained is None else trained - self.start])

    def restore(
        self, state: dict[str, Any], batches: int, around: AbstractContextManager[None]
    ) -> None:
        """Begin the loader's next epoch where a state says, after so many batches of it.

        StateError if it cannot.

        ``around``: what is entered while that epoch begins, whenever Keras asks for its first
            batch.
        """
        self.stream.loader.load_state_dict(state)
        self.is_restored, self._restored_batches, self.around = True, batches, around

    def prepare(self) -> None:
        """Run the hook of the loader's next epoch; Keras begins that with its first batch."""
        with self.around:
            self.stream.runner.prepare()


def begins_loader(iterator: EpochIterator) -> bool:
    """Whether Keras' epoch, which begins, begins one of the loader and does not go on with one."""
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
        progress, told = self.begin().progress, self.told
        assert told is not None
        # Where hooks have had the rest of the epoch planned anew, the loader's count alone knows of
        # it.
        self._place.count(progress.finished_batches + progress.planned_before - told.planned_before)
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

    def rest() -> Iterator[tuple[Any, ...]]:
        # Keras' private names: it has no other place for where an epoch begins.
        vars(iterator).pop("_enumerate_iterator", None)  # epochs after this one are whole
        whole = iterator.steps_per_epoch
        # Keras' branch for data without an end sets its count anew at each step.
        counts_anew = not (whole or iterator._num_batches)  # noqa: SLF001
        iterator.steps_per_epoch = whole and whole - step
        try:
            for number, (*steps, data) in enumerate(iterator._enumerate_iterator()):  # noqa: SLF001
                iterator.steps_per_epoch = whole
                if number == 0:
                    ready()
                if number == 0 or counts_anew:
                    iterator._steps_seen += batches  # noqa: SLF001
                # The first step and the last of an execution; before Keras 3.11 the first alone.
                yield (*(at + step for at in steps), data)
        finally:
            iterator.steps_per_epoch = whole

    vars(iterator)["_enumerate_iterator"] = rest

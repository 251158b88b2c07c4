"""One call of Keras: what it was given beside a loader, and where it is in the loader's epoch.

the loader's epoch   0 1 2 3 4 5 6 7 8 9
taken                0 1 2 3 4             by Keras, which may read ahead of the step
trained              0 1 2 3               `BackupAndRestore` counts these

What Keras is given as ``x`` is not told the other arguments: class weights, targets, a batch size.
All of them stand in the `EpochIterator` that Keras makes for each call, and in the call itself.
They are read there, in the frames of the callers, so that nothing is ignored in silence.
"""

from __future__ import annotations

import traceback
import warnings
import weakref
from array import array
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed._callers import callers_depth, frame_above, frames_from
from ringfeed.errors import RingfeedError, SupersededError
from ringfeed.frameworks.base import BatchStream, Epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from keras.src.trainers.epoch_iterator import EpochIterator

    from ringfeed.engine._iterator import BatchIterator, Progress
    from ringfeed.frameworks.batch import Extra
    from ringfeed.spec.builder import BuildBatch

ClassWeight: TypeAlias = "Mapping[int, float]"
CALLS = frozenset(("fit", "evaluate", "predict"))
"""Keras' functions that begin epochs, by the names of their frames."""
IN_THE_BATCH = {
    "y": "the loader's batches carry the targets: return (x, y) from __getitem__",
    "sample_weight": (
        "the loader's batches carry the weights: return (x, y, sample_weight) from __getitem__"
    ),
}
"""What Keras would ignore beside an adapter, and where it belongs."""


class Call:
    """One call of Keras, and the newest of the loader's epochs that it walks.

    weights: makes the weights of each batch, where the call asked for any.
    epoch: the newest epoch that was made, which may not have begun, as a weak reference.
    trained: the batches of the newest epoch that were trained on, in earlier runs too.
    restored: None, or how many batches of the loader's next epoch the run that is restored was
        trained on; around: what is entered while that epoch begins.
    """

    def __init__(
        self,
        stream: BatchStream,
        weights: Extra | None = None,
        iterator: EpochIterator | None = None,
    ) -> None:
        """Begin no epoch yet; ``iterator`` is Keras' own for the call, if Keras calls."""
        self.stream, self.weights = stream, weights
        # The iterator refers to this call, and both end without the garbage collector.
        self._iterator: Any = (lambda: None) if iterator is None else weakref.ref(iterator)
        self.epoch: Callable[[], KerasEpoch | None] = lambda: None
        self.trained = self._start = 0
        # How many batches of the loader's order are done with each that was taken: None is no
        # batch for Keras.
        self._planned = array("q", [0])
        self._epoch_id: int | None = None
        self._told: Progress | None = None
        self.restored: int | None = None
        self.around: AbstractContextManager[None] = nullcontext()

    @property
    def iterator(self) -> EpochIterator | None:
        """Keras' iterator over all epochs of the call."""
        found: EpochIterator | None = self._iterator()
        return found

    @property
    def done(self) -> int | None:
        """How many batches of its order the newest epoch has behind it; None: it has not begun."""
        return None if self._told is None else self._planned[-1]

    # ---- an epoch begins and ends ----

    def prepare(self) -> None:
        """Run the hook of the loader's next epoch; Keras begins that with its first batch."""
        with self.around:
            self.stream.runner.prepare()

    def begin(self, epoch: KerasEpoch) -> None:
        """Begin an epoch: where a `fit` goes on that does so, or was restored."""
        around, self.around = self.around, nullcontext()
        with around:
            number = _resumed_epoch(self.stream) if self.restored is None else None
            if number is not None:
                self.stream.set_epoch(number)
            self.trained = self._start = self.restored or done_batches(self.stream)
            self.restored, self._planned, self._told = None, array("q", [0]), None
            self._epoch_id = Epoch.begin(epoch).epoch_id
            self._told = epoch.told

    def count(self, done: int) -> None:
        """Count a taken batch, with which so many of the epoch's order are done."""
        self._planned.append(done)

    def leave(self, *, trained: bool) -> None:
        """Forget the epoch; if it is the newest and was not trained on, the loader has it again."""
        epoch_id, self._epoch_id = self._epoch_id, None
        if epoch_id is not None and not trained:
            self.stream.runner.give_back(epoch_id)

    def tell_length(self) -> None:
        """Tell Keras how long the dataset is now; it asks once a call only."""
        iterator = self.iterator
        if iterator is not None and "_num_batches" in vars(iterator):
            iterator._num_batches = self.stream.length  # noqa: SLF001

    # ---- how far the training is ----

    def train(self, batches: int) -> None:
        """Count batches that were trained on; the last step may have been of fewer."""
        self.trained = min(self.trained + batches, self._start + len(self._planned) - 1)

    @property
    def has_more(self) -> bool:
        """Whether the epoch has batches to train on; one is taken where nothing else tells."""
        length, epoch = self.stream.exact_length, self.epoch()
        if length is not None:
            return self.trained < length
        is_read_ahead = self.trained - self._start < len(self._planned) - 1
        return is_read_ahead or (epoch is not None and epoch.has_next())

    def state(self, *, is_over: bool) -> dict[str, Any]:
        """Return the loader's state after the batches that were trained on, or at the end."""
        find: Callable[..., dict[str, Any]] = self.stream.loader.state_dict
        if self._told is None:
            return find()  # none has begun
        self._told.is_over = is_over
        return find(batches=self._planned[-1 if is_over else self.trained - self._start])


def begins_epoch(iterator: EpochIterator) -> bool:
    """Whether Keras' epoch, which begins, begins one of the loader, and does not go on with one."""
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
    """An epoch that Keras walks, and counts in its call."""

    def __init__(self, call: Call, build: BuildBatch | None) -> None:
        super().__init__(call.stream, build)
        self._call = call
        self._ahead: list[Any] = []  # what `has_next` has taken: a batch, or the error in its place
        call.epoch = weakref.ref(self)

    def __next__(self) -> Any:
        found = self._ahead.pop() if self._ahead else self._take()
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
            if error.__cause__ is not None:
                error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
            raise
        progress, told = self.begin().progress, self.told
        assert told is not None
        # Where hooks have had the rest of the epoch planned anew, the loader's count alone knows of
        # it.
        self._call.count(progress.finished_batches + progress.planned_before - told.planned_before)
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
        """Begin where the call says."""
        if self._batches is None:
            self._call.begin(self)
        return super().begin()


def go_on(iterator: EpochIterator, step: int, batches: int) -> None:
    """Have the next epoch of Keras be the rest of one that had ``step`` steps.

    Its steps have the numbers that they have in a whole epoch, and Keras counts ``batches`` of the
    loader's epoch as seen.
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
                if number == 0 or counts_anew:
                    iterator._steps_seen += batches  # noqa: SLF001
                # The first step and the last of an execution; before Keras 3.11 the first alone.
                yield (*(at + step for at in steps), data)
        finally:
            iterator.steps_per_epoch = whole

    vars(iterator)["_enumerate_iterator"] = rest


# ---- what the call was given ----


def runs_eagerly(frame: FrameType | None) -> bool:
    """Whether the call of Keras above a frame is of a model whose steps run in Python."""
    return bool(getattr(_call_above(frame).get("self"), "run_eagerly", False))


def _resumed_epoch(stream: BatchStream) -> int | None:
    """The loader's epoch with which a `fit` goes on where another ended; None for other fits.

    That is ``initial_epoch``, or what Keras' `BackupAndRestore` has found: Keras tells adapters
    neither. With ``steps_per_epoch`` an epoch of the loader lasts for several of Keras', which ends
    its last at the loader's end.
    """
    # Callbacks walk a loader of their own.
    given = _call_above(frame_above(1), unless="keras.src.callbacks")
    first, steps = given.get("initial_epoch"), given.get("steps_per_epoch")
    if not first or given.get("epoch") != first:  # of `evaluate` and `predict` there is neither
        return None
    length = stream.length if steps is not None else None
    if steps is None or length is None:
        return int(first)
    at_once = getattr(given.get("self"), "steps_per_execution", 1)
    taken = -(-steps // at_once) * at_once  # by an epoch of Keras
    return int(first // -(-length // taken))


def _call_above(frame: FrameType | None, unless: str | None = None) -> dict[str, Any]:
    """The variables of the call of Keras above a frame; none where ``unless`` stands between."""
    for above in frames_from(frame):
        module = above.f_globals.get("__name__", "")
        if above.f_code.co_name in CALLS and module.startswith("keras."):
            return above.f_locals
        if unless and module.startswith(unless):
            break
    return {}


def check_call(making: FrameType, stream: BatchStream, x: Any) -> None:
    """Refuse targets, weights, a batch size or an order that a loader cannot honour.

    ``making``: where Keras makes the iterator of the call; ``x``: what Keras has.
    """
    for name, reason in IN_THE_BATCH.items():
        if making.f_locals.get(name) is not None:
            raise ValueError(f"{name}= cannot be honoured beside to_keras(): {reason}")
    calls = (frame for frame in frames_from(making) if frame.f_code.co_name != "__init__")
    given = next(calls).f_locals  # of fit, evaluate or predict
    mine = given.get("x") is x  # otherwise this is the validation of a fit over something else
    name = "batch_size" if mine else "validation_batch_size"
    rows = given.get(name)
    if rows is not None and rows != stream.info.max_rows:
        raise ValueError(
            f"{name}={rows} cannot be honoured beside to_keras(): the loader makes batches of "
            f"{stream.info.max_rows} rows; set batch_size of ringfeed.Loader"
        )
    if mine and given.get("shuffle") is False and stream.loader.shuffle:
        raise ValueError(
            "shuffle=False cannot be honoured beside to_keras(): the loader shuffles; set shuffle "
            "of ringfeed.Loader"
        )
    if mine and given.get("shuffle") and stream.loader.is_in_order:
        warnings.warn(
            "fit(shuffle=True), Keras' default, shuffles a PyDataset and arrays but cannot "
            "shuffle a loader, and this one hands out every epoch in the order of the dataset; "
            "give shuffle=True to ringfeed.Loader or feed(), or shuffle=False to fit() if that "
            "order is wanted",
            stacklevel=callers_depth(),
        )

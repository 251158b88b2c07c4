"""What else `fit`, `evaluate`, `predict` were given beside a loader; what cannot be is refused.

What Keras is given as ``x`` is not told the other arguments: class weights, targets, a batch size.
All of them stand in the `EpochIterator` that Keras makes for each call, and in the call itself.
They are read there, in the frames of the callers, so that nothing is ignored in silence.
"""

from __future__ import annotations

import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed._callers import callers_depth, frames_from

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from ringfeed.frameworks.base import BatchStream

IN_THE_BATCH = {
    "y": "the loader's batches carry the targets: return (x, y) from __getitem__",
    "sample_weight": (
        "the loader's batches carry the weights: return (x, y, sample_weight) from __getitem__"
    ),
}
"""What Keras would ignore beside an adapter, and where it belongs."""
DETOURS = 4
CALLS = frozenset(("fit", "evaluate", "predict"))
"""Keras' functions that begin epochs, by the names of their frames."""
ClassWeight: TypeAlias = "Mapping[int, float]"


def iterator_in_the_making(called: FrameType) -> FrameType | None:
    """The frame in which Keras makes an EpochIterator, if it has called ``called``."""
    making = EpochIterator.__init__.__code__
    frames = islice(frames_from(called), DETOURS)
    return next((frame for frame in frames if frame.f_code is making), None)


def iterator_of(frame: FrameType) -> EpochIterator | None:
    """The EpochIterator whose method runs in a frame: one for each call of Keras."""
    found = frame.f_locals.get("self")
    return found if isinstance(found, EpochIterator) else None


def resumed_epoch(frame: FrameType | None, stream: BatchStream) -> int | None:
    """The loader's epoch with which a `fit` goes on where another ended; None for other fits.

    That is ``initial_epoch``, or what `BackupAndRestore` has found: Keras tells adapters neither.
    With ``steps_per_epoch`` an epoch of the loader lasts for several of Keras', which ends its last
    at the loader's end.
    """
    given = _call_above(frame, unless="keras.src.callbacks")  # which walk a loader of their own
    first, steps = given.get("initial_epoch"), given.get("steps_per_epoch")
    if not first or given.get("epoch") != first:  # of `evaluate` and `predict` there is neither
        return None
    length = stream.length if steps is not None else None
    if steps is None or length is None:
        return int(first)
    at_once = getattr(given.get("self"), "steps_per_execution", 1)
    taken = -(-steps // at_once) * at_once  # by an epoch of Keras
    return int(first // -(-length // taken))


def runs_eagerly(frame: FrameType | None) -> bool:
    """Whether the call of Keras above a frame is of a model whose steps run in Python."""
    return bool(getattr(_call_above(frame).get("self"), "run_eagerly", False))


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

    ``x`` is what Keras has.
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

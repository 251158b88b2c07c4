"""What else `fit`, `evaluate` or `predict` was given beside a loader, and the refusal of what cannot be honoured.

What Keras is given as ``x`` is not told the other arguments: class weights, targets, a batch size. All of them stand
in the `EpochIterator` that Keras makes for each call, and in the call itself. They are read there, in the frames of
the callers, so that nothing is ignored in silence.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed.frameworks.keras.caller import caller

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from ringfeed.frameworks.base import BatchStream, LoaderInfo

IN_THE_BATCH = {
    "y": "the loader's batches carry the targets: return (x, y) from __getitem__",
    "sample_weight": "the loader's batches carry the weights: return (x, y, sample_weight) from __getitem__",
}
"""What Keras would ignore beside an adapter, and where it belongs."""
DETOURS = 4
CALLS = frozenset(("fit", "evaluate", "predict"))
"""Keras' functions that begin epochs, by the names of their frames."""
ClassWeight: TypeAlias = "Mapping[int, float]"


def iterator_in_the_making(called: FrameType) -> FrameType | None:
    """The frame in which Keras makes an EpochIterator, if it called ``called``, itself or by a property or two."""
    frame: FrameType | None = called
    for _ in range(DETOURS):
        if frame is None or frame.f_code is EpochIterator.__init__.__code__:
            return frame
        frame = frame.f_back
    return None


def resumed_epoch(call: FrameType | None, stream: BatchStream) -> int | None:
    """The loader's epoch with which a `fit` begins that goes on where another ended; None where no such fit begins.

    That is ``initial_epoch``, or what `BackupAndRestore` has found: Keras tells adapters neither. With
    ``steps_per_epoch`` an epoch of the loader lasts for several of Keras', which ends its last at the loader's end.
    """
    while call is not None and not _is_a_call(call):
        if call.f_globals.get("__name__", "").startswith("keras.src.callbacks"):
            return None  # it walks a loader of its own
        call = call.f_back
    given = {} if call is None or call.f_code.co_name != "fit" else call.f_locals
    first, steps = given.get("initial_epoch"), given.get("steps_per_epoch")
    if not first or given.get("epoch") != first:
        return None
    length = stream.info.length if steps is not None else None
    if steps is None or length is None:
        return int(first)
    at_once = getattr(given.get("self"), "steps_per_execution", 1)
    taken = -(-steps // at_once) * at_once  # by an epoch of Keras
    return int(first // -(-length // taken))


def runs_eagerly(call: FrameType | None) -> bool:
    """Whether the call of Keras above a frame is of a model whose steps run in Python."""
    while call is not None and not _is_a_call(call):
        call = call.f_back
    return call is not None and bool(getattr(call.f_locals.get("self"), "run_eagerly", False))


def _is_a_call(frame: FrameType) -> bool:
    return frame.f_code.co_name in CALLS and frame.f_globals.get("__name__", "").startswith("keras.")


def check_targets(making: FrameType) -> None:
    """Refuse targets and weights beside the batches."""
    for name, reason in IN_THE_BATCH.items():
        if making.f_locals.get(name) is not None:
            raise ValueError(f"{name}= cannot be honoured beside to_keras(): {reason}")


def check_call(making: FrameType, info: LoaderInfo, x: Any) -> None:
    """Refuse another batch size than the loader's, and an order that it does not keep; ``x`` is what Keras has."""
    call: FrameType | None = making
    while call is not None and call.f_code.co_name == "__init__":
        call = call.f_back
    given = {} if call is None else call.f_locals  # of fit, evaluate or predict
    mine = given.get("x") is x  # otherwise this is the validation of a fit over something else
    name = "batch_size" if mine else "validation_batch_size"
    rows = given.get(name)
    if rows is not None and rows != info.max_rows:
        raise ValueError(
            f"{name}={rows} cannot be honoured beside to_keras(): the loader makes batches of "
            f"{info.max_rows} rows; set batch_size of ringfeed.Loader"
        )
    if mine and given.get("shuffle") is False and info.is_shuffled:
        raise ValueError(
            "shuffle=False cannot be honoured beside to_keras(): the loader shuffles; set shuffle of ringfeed.Loader"
        )
    if mine and given.get("shuffle") and info.is_in_order:
        _warn_unshuffled(call)


def _warn_unshuffled(call: FrameType | None) -> None:
    """Say that `fit` would have shuffled a PyDataset or arrays; the place is the first caller outside Keras."""
    level = 2
    while call is not None and call.f_globals.get("__name__", "").partition(".")[0] == "keras":
        call = call.f_back
    frame: FrameType | None = caller()  # warnings count frames
    while frame is not None and frame is not call:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "fit(shuffle=True), Keras' default, shuffles a PyDataset and arrays but cannot shuffle a loader, and this one "
        "hands out every epoch in the order of the dataset; give shuffle=True to ringfeed.Loader or feed(), or "
        "shuffle=False to fit() if that order is wanted",
        stacklevel=level,
    )


def class_weight_of(making: FrameType, own: ClassWeight | None) -> ClassWeight | None:
    """The class weights that `fit` was given, refused where the loader has its ``own`` already."""
    class_weight: ClassWeight | None = making.f_locals.get("class_weight")
    if class_weight is not None and own is not None:
        raise ValueError("class_weight was given to to_keras() and to fit(); give it to one of them")
    return class_weight

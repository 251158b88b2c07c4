"""A loader as a tf.data.Dataset, without `from_generator`.

    range(n) ──scan──> epoch id ──────> its next batch
               │ drawn once, when     │ waits for the loader; over the slot's memory,
               │ an iteration begins  │ or a copy where Python has to make it

The epoch id tells two iterations over one dataset apart: the newest has the loader, an older one
fails at its next batch. Nothing runs before the first batch is asked for, and nothing when an
iteration is given up: `from_generator` owes its generator a last call, for which the interpreter
waits for ever at exit.

Both are ops in C, run by one call of `scan` (a call takes longer than an op), or, where
TensorFlow cannot have them, Python functions here.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
import weakref
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from ringfeed.errors import SpecError
from ringfeed.frameworks.base import BatchStream, Epoch, LoaderInfo
from ringfeed.frameworks.batch import (
    Framework,
    Outstanding,
    TensorBuilder,
    without_lists,
)
from ringfeed.frameworks.cast import CastTree, casts_of
from ringfeed.frameworks.dlpack import Exported
from ringfeed.frameworks.tensorflow import _feed
from ringfeed.frameworks.tensorflow.feed import LoaderFeed, check_whole, ended_early, superseded
from ringfeed.frameworks.tensorflow.forms import (
    JOINS,
    TensorFlowCasts,
    beside_specs,
    blank_shape,
    values_spec,
)
from ringfeed.spec.spec import Spec
from ringfeed.system.machine import HAS_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ringfeed.spec.array import AnyArray

    Leaves: TypeAlias = "list[AnyArray]"
    Epochs: TypeAlias = "PythonEpochs | OpEpochs"
    Element: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Any]]
    """What makes of a state and a step the next state, and a batch."""

OVER_SLOTS = Framework(
    from_dlpack=lambda capsule: np.from_dlpack(Exported(capsule)),  # type: ignore[arg-type]
    from_numpy=lambda array: array,
    leaves_alone=frozenset({"bfloat16"}),
    joins=JOINS,
    strings=True,
)
"""How `numpy_function` takes memory."""

NEW, REST = np.int64(-1), np.int64(-2)
"""States of an iteration at its first step, and beyond its last (cext/export/feed.h)."""
ENDLESS = np.iinfo(np.int64).max
"""Steps of a dataset that ends when the loader does."""

LIBRARY = "ringfeed.frameworks.tensorflow._tf_op"


@dataclass(frozen=True)
class Batches:
    """Batches for TensorFlow: how an epoch is opened, how many it has, and their form."""

    open_epoch: Callable[[], Iterator[Leaves]]
    count: int | None
    leaves: Sequence[tf.TensorSpec]
    pack: Callable[[Sequence[Any]], Any]
    cast: TensorFlowCasts | None = None
    """What is done to the leaves before they are packed."""


def to_tf_dataset(stream: BatchStream, cast: CastTree = None) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the loader's batches; each iteration is the loader's next epoch.

    Elements mirror the sample's structure, with tuples in the place of lists. The row axis of
    `element_spec` is fixed with ``drop_remainder=True`` and None otherwise; `cardinality()` is
    ``len(loader)``, or unknown where that is. With ``on_error="skip"`` neither is known. A loader
    that has met a batch of None promises no cardinality any more; for one that has not, the first
    such batch makes an iteration fail at its end, unless it was made with ``on_error="skip"``. Nor
    is it known for a loader that goes on at a position, since its first iteration gives the rest of
    an epoch. Axes that may vary are None as well.

    A batch is the memory of its slot, which comes back when TensorFlow drops the last of its
    tensors. tf.data may hold as many as it likes, by `prefetch`, `shuffle` or `cache`: whatever
    would leave no slot to be filled is copied out of it, so that two slots are enough; with fewer
    slots than it holds, more is copied. Byte strings and values in foreign byte order are always
    copied.

    A leaf with ``form="ragged"`` is a `tf.RaggedTensor`, one with ``form="pad"`` a tensor whose
    axes that differ are None, with lengths or a mask a `Padded` or `Masked` of tensors; `Bytes` and
    `Text` are tensors of `tf.string`. Batches with one of these, or with axes that vary, come by
    Python, which takes longer than the op, but they are not copied either: TensorFlow keeps the
    arrays over the slot, and lets go of them at a later call of Python, so that a slot more than
    two is wanted. Strings are copied.

    The newest iteration has the loader, whether begun here or by ``iter(loader)``; an older one
    fails with the text of a `SupersededError`. What the loader raises arrives as a
    `tf.errors.OpError` with its type and text. Length and shapes are those of the loader at this
    call: load a state before it.

    What is ``cast`` is so by TensorFlow on the CPU, one batch at a time, as the last step of this
    dataset: a `map` has no kernel on a GPU, also behind `copy_to_device`. For uint8 over the bus
    leave ``cast`` out and do it in the step, behind `prefetch_to_device`: by
    `keras.layers.Rescaling`, or as ``tf.cast(x, tf.float32) / 255`` at its beginning.
    """
    info = stream.info
    casts = casts_of(info.spec, cast, "to_tf_dataset")
    count, leaves = (
        None if stream.runner.position.is_amid else stream.exact_length,
        leaf_specs(info),
    )
    pack = Spec(without_lists(info.spec.tree)).unflatten
    builder = TensorBuilder(info, OVER_SLOTS, pack=pack, outstanding=Outstanding())
    finish = TensorFlowCasts(casts, leaves) if casts else None
    batches = Batches(
        partial(_private_epoch, stream, builder, count), count, leaves, builder.pack, finish
    )
    ops = _ops_for(info)
    if ops is None:
        return dataset_of(batches)
    return dataset_of(batches, lambda batches: OpEpochs(ops, stream, batches))


def _private_epoch(stream: BatchStream, builder: TensorBuilder, count: int | None) -> Epoch:
    """An epoch of arrays that begin at 64 bytes: `numpy_function` does not copy these."""
    check_whole(stream, count)
    return Epoch(stream, builder)


def leaf_specs(
    info: LoaderInfo, extra: Mapping[str, np.dtype[Any]] | None = None
) -> list[tf.TensorSpec]:
    """The form of each leaf, of what comes beside leaves, and of the `extra` leaves."""
    rows = info.fixed_rows
    leaves = [values_spec(leaf, rows, _dtype(leaf.path, leaf.dtype)) for leaf in info.spec.leaves]
    more = [tf.TensorSpec((rows,), _dtype(path, dtype)) for path, dtype in (extra or {}).items()]
    return [*leaves, *beside_specs(info), *more]


def dataset_of(
    batches: Batches, epochs_of: Callable[[Batches], Epochs] | None = None
) -> tf.data.Dataset:
    """A dataset of `batches`; every iteration opens an epoch of its own, through ``epochs_of``.

    What is cast is so in a step of its own, of a dataset of tuples of leaves; a slot comes back
    with the tensors that are read there.
    """
    epochs_of = epochs_of or PythonEpochs
    if batches.cast is None:
        return _of_epochs(epochs_of(batches), batches)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def finished(*tensors: tf.Tensor) -> Any:
        assert batches.cast is not None
        return batches.pack(batches.cast(list(tensors)))

    leaves = replace(batches, pack=tuple, cast=None)
    return _of_epochs(epochs_of(leaves), leaves).map(finished)


def _steps_of(epochs: Epochs, batches: Batches) -> tf.data.Dataset:
    """A dataset that calls ``epochs`` once for each batch, and once more at an unknown end."""
    if batches.count is not None:
        steps = tf.data.Dataset.range(batches.count)
        found = steps.scan(NEW, _element(epochs, batches, is_flagged=False))
    else:
        steps = tf.data.Dataset.range(ENDLESS)
        found = _until_end(steps.scan(NEW, _element(epochs, batches, is_flagged=True)))
    # Its graph knows the loader by a number only.
    found._ringfeed_epochs = epochs  # noqa: SLF001
    return found


def _element(epochs: Epochs, batches: Batches, *, is_flagged: bool) -> Element:
    """What makes of a state and a step the next state, and a batch.

    ``is_flagged``: behind whether the epoch goes on; where it does not, the batch is blank.
    """
    specs = [*([tf.TensorSpec((), tf.bool)] if is_flagged else []), *batches.leaves]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element(state: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, Any]:
        epoch_id, tensors = epochs.call(state, step, [spec.dtype for spec in specs])
        epoch_id.set_shape(())
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        batch = batches.pack(tensors[is_flagged:])
        return epoch_id, (tensors[0], batch) if is_flagged else batch

    return element


def _until_end(flagged: tf.data.Dataset) -> tf.data.Dataset:
    """The batches of a dataset of flags and batches, as far as the epoch goes on."""
    return flagged.take_while(_goes_on).map(_without_flag)


def _of_epochs(epochs: Epochs, batches: Batches) -> tf.data.Dataset:
    """The same, where an error in the place of a batch, as a stall is, costs no batch.

        elements, one a step ──> rest ──> take(count) ──> skip(rest)

    The rest is empty, unless steps have brought such errors. It is asked once more at the end, for
    an error of ``on_epoch_end``, by skipping what is not there: the cardinality is ``count`` still.
    """
    elements, count = _steps_of(epochs, batches), batches.count
    if count is None:
        return elements
    element = _element(epochs, batches, is_flagged=True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element_of_rest(step: tf.Tensor) -> Any:
        return element(REST, step)[1]

    # What is repeated for ever counts as endless, so that `take` knows how many it gives. If it is
    # empty it ends.
    rest = _until_end(tf.data.Dataset.range(ENDLESS).map(element_of_rest)).repeat()
    return elements.concatenate(rest).take(count).concatenate(rest.take(1).skip(1))


def _ops_for(info: LoaderInfo) -> Any:
    """The ops that take batches out of the ring in C; None where Python must copy them."""
    if (
        info.copy
        or not HAS_PROCESSES
        or any(
            tf.as_dtype(leaf.dtype) == tf.string
            or not leaf.dtype.isnative
            or leaf.variable
            or leaf.form
            for leaf in info.spec.leaves
        )
    ):
        # A copy is wanted, or there is no op for this system, or TensorFlow has no such memory, or
        # the op does not know its shape.
        return None
    try:
        return load_ops()
    except ImportError as error:
        warnings.warn(
            (
                f"to_tf_dataset() copies each batch in Python, because {error}; ringfeed's op "
                "needs TensorFlow's C API"
            ),
            RuntimeWarning,
            stacklevel=4,
        )
        return None


@cache
def load_ops() -> Any:
    """TensorFlow's functions of the ops; ImportError says why there are none."""
    found = find_spec(LIBRARY)
    if found is None or found.origin is None:
        raise ImportError("this build of ringfeed has no library of ops")
    try:
        ops = tf.load_op_library(found.origin)
    except (tf.errors.OpError, RuntimeError) as error:
        raise ImportError(f"TensorFlow cannot open {found.origin}: {error}") from error
    connect = ctypes.CDLL(found.origin).ringfeed_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    why_not = connect(_feed.calls_address()).decode()
    if why_not:
        raise ImportError(why_not)
    return ops


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _goes_on(goes_on: tf.Tensor, _batch: Any) -> tf.Tensor:
    return goes_on


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _without_flag(_goes_on: tf.Tensor, batch: Any) -> Any:
    return batch


@dataclass
class OpenEpoch:
    """An epoch that an iteration has begun."""

    number: int = 0
    leaves: Iterator[Leaves] = field(default_factory=lambda: iter(()))
    step: int = -1
    """The newest that has asked for a batch."""


class OpEpochs:
    """What a dataset's graph calls for its batches; each iteration is an epoch of the loader.

    All of it is in C; `PythonEpochs` does the same in Python.
    """

    def __init__(self, ops: Any, stream: BatchStream, batches: Batches) -> None:
        self._ops = ops
        dtypes = [leaf.dtype.as_datatype_enum for leaf in batches.leaves]
        self._feed = LoaderFeed(stream, batches.count, dtypes)

    def call(
        self, state: tf.Tensor, step: tf.Tensor, types: Sequence[tf.DType]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Begin an epoch, or ask for the next batch of this one; wait for it; take it."""
        number = self._feed.number
        epoch_id, waits = self._ops.ringfeed_epoch(state=state, step=step, feed=number)
        waits.set_shape(())

        def wait(_waits: tf.Tensor) -> tf.Tensor:
            """False when there is a batch."""
            waits = self._ops.ringfeed_wait(epoch_id=epoch_id, feed=number)
            waits.set_shape(())
            return waits

        # TensorFlow ends the loop when it gives the iteration up.
        waited = tf.while_loop(lambda waits: waits, wait, [waits], parallel_iterations=1)
        with tf.control_dependencies(waited):
            return epoch_id, self._ops.ringfeed_batch(epoch_id=epoch_id, feed=number, types=types)


class PythonEpochs:
    """What `OpEpochs` is, by Python functions, which TensorFlow calls in threads of its own."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._newest = OpenEpoch()

    def call(
        self, state: tf.Tensor, step: tf.Tensor, types: Sequence[tf.DType]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Begin an epoch at the first step, and take the next batch of the epoch."""
        is_flagged = len(types) > len(self._batches.leaves)
        epoch_id, *tensors = tf.numpy_function(
            _weakly(self._next), [state, step, is_flagged], [tf.int64, *types]
        )
        return epoch_id, tensors

    def _next(self, state: np.int64, step: np.int64, is_flagged: np.bool_) -> list[Any]:
        """The number of the epoch, and its next batch.

        With ``is_flagged`` this comes behind whether the epoch goes on, and is blank where it does
        not.
        """
        epoch, count = self._begin(step) if state == NEW else self._newest, self._batches.count
        if state not in (NEW, REST, epoch.number):
            raise superseded()
        if state != REST:
            epoch.step = int(step)
        # The newest epoch may be another iteration's, which has steps of its own left.
        is_over = state == REST and count is not None and epoch.step + 1 < count
        leaves = None if is_over else next(epoch.leaves, None)
        if leaves is None and not is_flagged:
            raise ended_early(count)
        found = [np.int64(epoch.number), *([np.asarray(leaves is not None)] if is_flagged else [])]
        if leaves is not None:
            return [*found, *map(_in_utf8, leaves)]
        # NumPy's objects are 0 if they are blank, where TensorFlow expects text.
        kinds = ((leaf, leaf.dtype.as_numpy_dtype) for leaf in self._batches.leaves)
        blank = (np.zeros(blank_shape(leaf), "S1" if k is object else k) for leaf, k in kinds)
        return [*found, *blank]

    def _begin(self, step: np.int64) -> OpenEpoch:
        """Begin an epoch, unless a step before this one has begun it, and then brought an error."""
        with self._lock:
            if step == 0:
                number, leaves = self._newest.number + 1, self._batches.open_epoch()
                self._newest = OpenEpoch(number, leaves)
            return self._newest


def _in_utf8(leaf: Any) -> Any:
    """Encode text as TensorFlow does elsewhere: what it calls in Python it expects to be ASCII."""
    is_text = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "U"
    return np.char.encode(leaf, "utf-8") if is_text else leaf


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, by a weak reference: TensorFlow never forgets what a graph calls.

    Its datasets keep the object, and they end.
    """
    found = weakref.WeakMethod(method)

    def call(*given: Any) -> Any:
        method = found()
        assert method is not None
        return method(*given)

    return call


def _dtype(path: str, dtype: np.dtype[Any]) -> tf.DType:
    """TensorFlow's dtype for a leaf; a SpecError where it has none."""
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise SpecError(
            f"{path} has dtype {dtype}, of which TensorFlow has no tensors; convert it in "
            "__getitem__"
        ) from None

"""A loader as a tf.data.Dataset, without `from_generator`.

    range(n) ──scan──> epoch id ──────> its next batch
               │ drawn once, when     │ waits for the loader; over the slot's memory,
               │ an iteration begins  │ or a copy where Python has to make it

The epoch id tells two iterations over one dataset apart: the newest has the loader, an older one fails at its next
batch. Nothing runs before the first batch is asked for, and nothing when an iteration is given up:
`from_generator` owes its generator a last call, for which the interpreter waits for ever at exit.

Both are ops in C, run by one call of `scan` (see `op`: a call takes longer than an op), or, where
TensorFlow cannot have them, Python functions here, of which the second is a `map`.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from ringfeed.errors import SpecError
from ringfeed.frameworks.base import Framework
from ringfeed.frameworks.batch import Outstanding, TensorBuilder, without_lists
from ringfeed.frameworks.cast import casts_of
from ringfeed.frameworks.dlpack import Exported
from ringfeed.frameworks.epoch import Epoch
from ringfeed.frameworks.tensorflow import op as tensorflow_op
from ringfeed.frameworks.tensorflow.cast import TensorFlowCasts
from ringfeed.frameworks.tensorflow.feed import check_whole, ended_early, superseded
from ringfeed.frameworks.tensorflow.forms import beside_specs, blank_shape, joiner, values_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ringfeed.frameworks.base import BatchStream, LoaderInfo
    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.tensorflow.op import OpIterations
    from ringfeed.spec.array import AnyArray

    Leaves: TypeAlias = "list[AnyArray]"

OVER_SLOTS = Framework(
    from_dlpack=lambda capsule: np.from_dlpack(Exported(capsule)),  # type: ignore[arg-type]
    from_numpy=lambda array: array,
    leaves_alone=frozenset({"bfloat16"}),
    strings=True,
)
"""How `numpy_function` takes memory."""

ENDLESS = np.iinfo(np.int64).max
"""Steps of a dataset that ends when the loader does."""


@dataclass(frozen=True)
class Batches:
    """Batches for TensorFlow: how to open an epoch of them, how many it has, and what they look like."""

    open_epoch: Callable[[], Iterator[Leaves]]
    count: int | None
    leaves: Sequence[tf.TensorSpec]
    pack: Callable[[Sequence[Any]], Any]
    cast: TensorFlowCasts | None = None
    """What is done to the leaves before they are packed."""


def to_tf_dataset(stream: BatchStream, cast: CastTree = None) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the loader's batches; each iteration over it is the loader's next epoch.

    Elements mirror the sample's structure, with tuples in the place of lists. The row axis of `element_spec`
    is fixed with ``drop_remainder=True`` and None otherwise; `cardinality()` is ``len(loader)``, or unknown
    where that is. With ``on_error="skip"`` neither is known. A loader that has met a batch of None promises no
    cardinality any more; for one that has not, the first such batch makes an iteration fail at its end, unless it was
    made with ``on_error="skip"``. Nor is it known for a loader that goes on at a position, since its first iteration
    gives the rest of an epoch. Axes that may vary are None as well.

    A batch is the memory of its slot, which comes back when TensorFlow drops the last of its tensors. tf.data may
    hold as many as it likes, by `prefetch`, `shuffle` or `cache`: whatever would leave no slot to be filled is
    copied out of it, so that two slots are enough; with fewer slots than it holds, more is copied. Byte strings and
    values in foreign byte order are always copied.

    A leaf with ``form="ragged"`` is a `tf.RaggedTensor`, one with ``form="pad"`` a tensor whose axes that differ are
    None, with lengths or a mask a `Padded` or `Masked` of tensors; `Bytes` and `Text` are tensors of `tf.string`.
    Batches with one of these, or with axes that vary, come by Python, which takes longer than the op, but they are not
    copied either: TensorFlow keeps the arrays over the slot, and lets go of them at a later call of Python, so that a
    slot more than two is wanted. Strings are copied.

    The newest iteration has the loader, whether begun here or by ``iter(loader)``; an older one fails with
    the text of a `SupersededError`. What the loader raises arrives as a `tf.errors.OpError` with its type and
    text. Length and shapes are those of the loader at this call: load a state before it.

    What is ``cast`` is so by TensorFlow on the CPU, one batch at a time, as the last step of this dataset: a `map` has
    no kernel on a GPU, also behind `copy_to_device`. For uint8 over the bus leave ``cast`` out and do it in the step,
    behind `prefetch_to_device`: by `keras.layers.Rescaling`, or as ``tf.cast(x, tf.float32) / 255`` at its beginning.
    """
    info = stream.info
    casts = casts_of(info.spec, cast, "to_tf_dataset")
    count, leaves = None if stream.position.is_amid else info.exact_length, leaf_specs(info)

    join = joiner(info.spec.leaves)

    def pack(tensors: Sequence[Any]) -> Any:
        return without_lists(info.spec.unflatten(join(tensors)))

    finish = TensorFlowCasts(casts, leaves) if casts else None
    batches = Batches(partial(_private_epoch, stream, count), count, leaves, pack, finish)
    ops = _ops_for(info)
    if ops is None:
        return dataset_of(batches)
    if finish is None:
        return _whole(tensorflow_op.OpIterations(ops, stream, count, leaves, pack), count)
    return _with_cast(_whole(tensorflow_op.OpIterations(ops, stream, count, leaves, tuple), count), batches)


def _private_epoch(stream: BatchStream, count: int | None) -> Epoch:
    """An epoch of arrays, which `numpy_function` makes tensors of without a copy, since they begin at 64 bytes."""
    check_whole(stream, count)
    builder, outstanding = TensorBuilder(stream.info, OVER_SLOTS), Outstanding(stream.info.slots)
    return Epoch(stream, lambda lease, rows: outstanding.build(builder, lease, rows))


def leaf_specs(info: LoaderInfo, extra: Mapping[str, np.dtype[Any]] | None = None) -> list[tf.TensorSpec]:
    """The form of each leaf of a batch, what comes beside it, and the `extra` leaves that have one number a row."""
    rows = info.fixed_rows
    leaves = [values_spec(leaf, rows, _dtype(leaf.path, leaf.dtype)) for leaf in info.spec.leaves]
    more = [tf.TensorSpec((rows,), _dtype(path, dtype)) for path, dtype in (extra or {}).items()]
    return [*leaves, *beside_specs(info), *more]


def dataset_of(batches: Batches) -> tf.data.Dataset:
    """A dataset of `batches`; every iteration opens an epoch of its own."""
    if batches.cast is not None:
        return _with_cast(dataset_of(replace(batches, pack=tuple, cast=None)), batches)
    return _chain(_Iterations(batches), batches.count)


def _with_cast(leaves: tf.data.Dataset, batches: Batches) -> tf.data.Dataset:
    """Cast and packed, of a dataset of tuples of leaves; a slot comes back with the tensors that are read here."""

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def finished(*tensors: tf.Tensor) -> Any:
        assert batches.cast is not None
        return batches.pack(batches.cast(list(tensors)))

    return leaves.map(finished)


def _chain(iterations: _Iterations | OpIterations, count: int | None) -> tf.data.Dataset:
    if count is not None:
        found = iterations.elements(tf.data.Dataset.range(count))
    else:
        found = iterations.elements_or_end(tf.data.Dataset.range(ENDLESS)).take_while(_goes_on).map(_without_flag)
    found._ringfeed_iterations = iterations  # noqa: SLF001  # its graph knows the loader by a number only
    return found


def _whole(iterations: OpIterations, count: int | None) -> tf.data.Dataset:
    """The same, where an error in the place of a batch that is yet to come, as Ctrl-C is, does not cost the batch.

        elements, one a step ──> rest ──> take(count) ──> skip(rest)

    The rest is empty, unless steps have brought such errors. It is asked once more at the end, for an error of
    ``on_epoch_end``, by skipping what is not there: the cardinality is ``count`` still.
    """
    elements = _chain(iterations, count)
    if count is None:
        return elements
    # What is repeated for ever counts as endless, so that `take` knows how many it gives. If it is empty it ends.
    rest = iterations.rest_or_end(tf.data.Dataset.range(ENDLESS)).take_while(_goes_on).map(_without_flag).repeat()
    return elements.concatenate(rest).take(count).concatenate(rest.take(1).skip(1))


def _ops_for(info: LoaderInfo) -> Any:
    """The ops that take batches out of the ring in C; None where Python must copy them."""
    if info.copy or any(
        tf.as_dtype(leaf.dtype) == tf.string or not leaf.dtype.isnative or leaf.variable or leaf.form
        for leaf in info.spec.leaves
    ):
        return None  # a copy is wanted, or TensorFlow has no such memory, or the op does not know its shape
    try:
        return tensorflow_op.load_ops()
    except ImportError as error:
        warnings.warn(
            f"to_tf_dataset() copies each batch in Python, because {error}; ringfeed's op needs TensorFlow's C API",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _goes_on(goes_on: tf.Tensor, _batch: Any) -> tf.Tensor:
    return goes_on


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _without_flag(_goes_on: tf.Tensor, batch: Any) -> Any:
    return batch


class _Iterations:
    """Which epoch is open: what the graph of one dataset calls in Python, in TensorFlow's threads."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._open = _Iteration(0, iter(()))

    def elements(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """A batch for each step."""
        return steps.scan(np.int64(-1), self.number).map(self.element)

    def elements_or_end(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """For each step whether the epoch goes on, and a batch if it does."""
        return steps.scan(np.int64(-1), self.number).map(self.element_or_end)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def number(self, state: tf.Tensor, _step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The number of this iteration's epoch, drawn at its first step."""
        number = tf.cond(state < 0, lambda: tf.numpy_function(_weakly(self._begin), [], tf.int64), lambda: state)
        number.set_shape(())
        return number, number

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element(self, number: tf.Tensor) -> Any:
        """The next batch of epoch `number`."""
        return self._batches.pack(_call(self._next, number, self._batches.leaves))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element_or_end(self, number: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Whether epoch `number` goes on, and its next batch if it does."""
        goes_on, *tensors = _call(self._next_or_blank, number, [tf.TensorSpec((), tf.bool), *self._batches.leaves])
        return goes_on, self._batches.pack(tensors)

    def _begin(self) -> np.int64:
        with self._lock:
            iteration = self._open = _Iteration(self._open.number + 1, self._batches.open_epoch())
        number: np.int64 = np.int64(iteration.number)
        return number

    def _next(self, number: np.int64) -> Leaves:
        leaves = self._open.next_of(number)
        if leaves is None:
            raise ended_early(self._batches.count)
        return leaves

    def _next_or_blank(self, number: np.int64) -> Leaves:
        leaves = self._open.next_of(number)
        if leaves is not None:
            return [np.asarray(a=True), *leaves]
        blanks = [np.zeros(blank_shape(spec), spec.dtype.as_numpy_dtype) for spec in self._batches.leaves]
        return [np.asarray(a=False), *blanks]


class _Iteration(NamedTuple):
    """One epoch and its number among those of its dataset."""

    number: int
    leaves: Iterator[Leaves]

    def next_of(self, number: np.int64) -> Leaves | None:
        """The next batch for the iteration that goes by `number`; None at the end."""
        if number != self.number:
            raise superseded()
        leaves = next(self.leaves, None)
        return None if leaves is None else [*map(_in_utf8, leaves)]


def _in_utf8(leaf: Any) -> Any:
    """Encode text as TensorFlow does elsewhere: what it calls in Python it expects to be ASCII."""
    is_text = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "U"
    return np.char.encode(leaf, "utf-8") if is_text else leaf


def _call(function: Callable[..., Leaves], number: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> Sequence[tf.Tensor]:
    """The graph's call of `function`, with the shapes that TensorFlow cannot know."""
    tensors: Sequence[tf.Tensor] = tf.numpy_function(_weakly(function), [number], [spec.dtype for spec in specs])
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return tensors


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same for TensorFlow, which never forgets what a graph calls: its datasets keep the object, and they end."""
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
        message = f"{path} has dtype {dtype}, of which TensorFlow has no tensors; convert it in __getitem__"
        raise SpecError(message) from None

"""A loader as a tf.data.Dataset, without `from_generator`.

    range(n) ──scan──> number of the epoch ──map──> the epoch's next batch
               │ drawn once, when an         │ waits for the loader,
               │ iteration begins            │ copies out of the slot

The number tells two iterations over one dataset apart: the newest has the loader, an older one fails at its
next batch. Nothing runs before the first batch is asked for, and nothing when an iteration is given up:
`from_generator` owes its generator a last call, for which the interpreter waits for ever at exit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from ringfeed.adapters.copies import PrivateEpoch, row_axis, sure_count, without_lists
from ringfeed.errors import RingfeedError, SpecError, SupersededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ringfeed.adapters.copies import AnyArray
    from ringfeed.loader import Loader

    Leaves: TypeAlias = "list[AnyArray]"

ENDLESS = np.iinfo(np.int64).max
"""Steps of a dataset that ends when the loader does."""


@dataclass(frozen=True)
class Batches:
    """Batches for TensorFlow: how to open an epoch of them, how many it has, and what they look like."""

    open_epoch: Callable[[], Iterator[Leaves]]
    count: int | None
    leaves: Sequence[tf.TensorSpec]
    pack: Callable[[Sequence[Any]], Any]


def to_tf_dataset(loader: Loader) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the loader's batches; each iteration over it is the loader's next epoch.

    Elements mirror the sample's structure, with tuples in the place of lists. The row axis of `element_spec`
    is fixed with ``drop_remainder=True`` and None otherwise; `cardinality()` is ``len(loader)``, or unknown
    where that is. With ``on_error="skip"`` neither is known. Each batch is copied once, so that tf.data may
    hold as many as it likes: `prefetch`, `shuffle` and `batch` take memory of their own, never slots.

    The newest iteration has the loader, whether begun here or by ``iter(loader)``; an older one fails with
    the text of a `SupersededError`. What the loader raises arrives as a `tf.errors.OpError` with its type and
    text. Length and shapes are those of the loader at this call.
    """
    spec = loader.spec
    batches = Batches(
        open_epoch=lambda: PrivateEpoch(loader),
        count=sure_count(loader),
        leaves=leaf_specs(loader),
        pack=lambda tensors: without_lists(spec.unflatten(tensors)),
    )
    return dataset_of(batches)


def leaf_specs(loader: Loader, extra: Mapping[str, np.dtype[Any]] | None = None) -> list[tf.TensorSpec]:
    """The form of each leaf of a batch, and of the `extra` leaves that have one number a row."""
    rows = row_axis(loader)
    leaves = [(leaf.path, leaf.shape, leaf.dtype) for leaf in loader.spec.leaves]
    leaves += [(path, (), dtype) for path, dtype in (extra or {}).items()]
    return [tf.TensorSpec((rows, *shape), _dtype(path, dtype)) for path, shape, dtype in leaves]


def dataset_of(batches: Batches) -> tf.data.Dataset:
    """A dataset of `batches`; every iteration opens an epoch of its own."""
    turns = _Turns(batches)
    steps = ENDLESS if batches.count is None else batches.count
    numbers = tf.data.Dataset.range(steps).scan(np.int64(-1), turns.number)
    if batches.count is not None:
        return numbers.map(turns.element)
    return numbers.map(turns.element_or_end).take_while(_goes_on).map(_without_flag)


class EagerDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """A dataset that Keras walks in Python, and a distribution strategy in TensorFlow's graph.

    In Python Keras runs a step in half the time, what the loader raises arrives as it was raised, and Ctrl-C
    is answered while the loader is waited for.
    """

    def __init__(self, batches: Batches) -> None:
        self._walk: Callable[[], EagerBatches] = lambda: EagerBatches(batches)
        self._graph_dataset = dataset_of(batches)
        super().__init__(self._graph_dataset._variant_tensor)  # noqa: SLF001  # no public way to wrap one

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._graph_dataset]

    @property
    def element_spec(self) -> Any:
        """The form of one batch."""
        return self._graph_dataset.element_spec

    def __iter__(self) -> EagerBatches:
        return self._walk()


class EagerBatches:
    """One epoch as tensors, for the train, test and predict functions of Keras.

    Keras takes the batches of one execution by ``zip(range(steps_per_execution), batches)``, and fails on a
    variable without a value where it finds none. So an execution that has found some ends by StopIteration,
    and one that finds none by the OutOfRangeError with which datasets end.
    """

    def __init__(self, batches: Batches) -> None:
        self._leaves = batches.open_epoch()
        self._specs = batches.leaves
        self._pack = batches.pack
        self._found_some = False

    def __iter__(self) -> EagerBatches:
        self._found_some = False
        return self

    def __next__(self) -> Any:
        leaves = next(self._leaves, None)
        if leaves is not None:
            self._found_some = True
            return self._pack(list(map(as_tensor, leaves, self._specs)))
        if self._found_some:
            raise StopIteration
        raise tf.errors.OutOfRangeError(None, None, "the loader's epoch has ended")


def as_tensor(array: AnyArray, spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor over the array's own memory where that is aligned, else over a copy.

    A tf.function is traced for `spec`, not for the shape of this very tensor. Otherwise Keras would trace again
    for a short last batch, and weigh batches of known and of unknown size differently in its mean losses.
    """
    tensor = tf.raw_ops.Identity(input=array)  # tf.convert_to_tensor copies in any case
    tensor.__tf_tracing_type__ = lambda _context: spec  # TensorFlow's own protocol, here for one tensor
    return tensor


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _goes_on(goes_on: tf.Tensor, _batch: Any) -> tf.Tensor:
    return goes_on


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _without_flag(_goes_on: tf.Tensor, batch: Any) -> Any:
    return batch


class _Turns:
    """Which epoch is open: what the graph of one dataset calls, in TensorFlow's threads."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._open = _Turn(0, iter(()))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def number(self, state: tf.Tensor, _step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The number of this iteration's epoch, drawn at its first step."""
        number = tf.cond(state < 0, lambda: tf.numpy_function(self._begin, [], tf.int64), lambda: state)
        number.set_shape(())
        return number, number

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element(self, number: tf.Tensor) -> Any:
        """The next batch of epoch `number`."""
        return self._batches.pack(_call(self._next, number, self._batches.leaves))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element_or_end(self, number: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Whether epoch `number` goes on, and its next batch if it does."""
        flag = tf.TensorSpec((), tf.bool)
        goes_on, *tensors = _call(self._next_or_blank, number, [flag, *self._batches.leaves])
        return goes_on, self._batches.pack(tensors)

    def _begin(self) -> np.int64:
        with self._lock:
            turn = self._open = _Turn(self._open.number + 1, self._batches.open_epoch())
        number: np.int64 = np.int64(turn.number)
        return number

    def _next(self, number: np.int64) -> Leaves:
        leaves = self._open.next_of(number)
        if leaves is None:
            raise RingfeedError(
                f"the epoch ended before its {self._batches.count} batches, which was len(loader) when the "
                "dataset was made; call to_tf_dataset() again after the length has changed"
            )
        return leaves

    def _next_or_blank(self, number: np.int64) -> Leaves:
        leaves = self._open.next_of(number)
        if leaves is not None:
            return [np.asarray(a=True), *leaves]
        specs = self._batches.leaves
        blanks = [np.zeros([n or 0 for n in spec.shape], spec.dtype.as_numpy_dtype) for spec in specs]
        return [np.asarray(a=False), *blanks]


class _Turn(NamedTuple):
    """One epoch and its number among those of its dataset."""

    number: int
    leaves: Iterator[Leaves]

    def next_of(self, number: np.int64) -> Leaves | None:
        """The next batch for the iteration that goes by `number`; None at the end."""
        if number != self.number:
            raise SupersededError(
                "a newer iteration over this dataset has taken over the loader, which serves one at a time; "
                "end the first before you begin the second, or give each a loader of its own"
            )
        return next(self.leaves, None)


def _call(function: Callable[..., Leaves], number: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> Sequence[tf.Tensor]:
    """The graph's call of `function`, with the shapes that TensorFlow cannot know."""
    tensors: Sequence[tf.Tensor] = tf.numpy_function(function, [number], [spec.dtype for spec in specs])
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return tensors


def _dtype(path: str, dtype: np.dtype[Any]) -> tf.DType:
    """TensorFlow's dtype for a leaf; a SpecError where it has none."""
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        message = f"{path} has dtype {dtype}, of which TensorFlow has no tensors; convert it in __getitem__"
        raise SpecError(message) from None

"""A loader as the dataset of Keras on TensorFlow: walked in Python, or in a strategy's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ringfeed.frameworks.tensorflow.forms import RAGGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.frameworks.tensorflow.dataset import Batches


class WalkedDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """A dataset that is another one in a strategy's graph, and that Python walks by ``begin``.

    In Python Keras runs a step in half the time, what the loader raises arrives as it was raised,
    and Ctrl-C is answered while the loader is waited for.
    """

    def __init__(self, inner: tf.data.Dataset, begin: Callable[[], Iterator[Any]]) -> None:
        """Wrap ``inner``; ``begin`` makes an iterator over an epoch, which ends as Python's do."""
        self._inner = inner
        self.begin = begin
        super().__init__(inner._variant_tensor)  # noqa: SLF001 - no public way to wrap one

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._inner]

    @property
    def element_spec(self) -> Any:
        """The form of one batch."""
        return self._inner.element_spec

    def __iter__(self) -> Iterator[Any]:
        return EagerBatches(self.begin())


class EagerBatches:
    """One epoch for the train, test and predict functions of Keras.

    Keras takes the batches of one execution by ``zip(range(steps_per_execution), batches)``, and
    fails on a variable without a value where it finds none. So an execution that has found some
    ends by StopIteration, and one that finds none by the OutOfRangeError with which datasets end.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._found_some = False

    def __iter__(self) -> EagerBatches:
        self._found_some = False
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._found_some:
                raise
            raise tf.errors.OutOfRangeError(None, None, "the loader's epoch has ended") from None
        self._found_some = True
        return batch


def packer_of(batches: Batches) -> Callable[[list[tf.Tensor]], Any]:
    """What makes a batch of its leaves as tensors, cast where that was asked for.

    A tf.function is traced for the form that `batches` give, not for the shape of this very tensor.
    Otherwise Keras would trace again for a short last batch, and weigh batches of known and of
    unknown size differently in its mean losses.
    """
    specs = batches.leaves if batches.cast is None else batches.cast.specs_after(batches.leaves)
    tracing_types = [lambda _context, spec=spec: spec for spec in specs]
    has_ragged = any(spec.name == RAGGED for spec in specs)

    def packed(leaves: list[tf.Tensor]) -> Any:
        if batches.cast is not None:
            leaves = batches.cast(leaves)
        for tensor, tracing_type in zip(leaves, tracing_types, strict=True):
            tensor.__tf_tracing_type__ = (
                tracing_type  # TensorFlow's own protocol, here for one tensor
            )
        batch = batches.pack(leaves)
        if has_ragged:
            _trace_alike(batch)
        return batch

    return packed


def _trace_alike(batch: Any) -> None:
    """Have a tf.function be traced once for the ragged tensors of all batches."""
    for tensor in tf.nest.flatten(batch):
        if isinstance(tensor, tf.RaggedTensor):
            shape = [None, *tensor.shape[1:]]
            spec = tf.RaggedTensorSpec(
                shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype
            )
            tensor.__tf_tracing_type__ = lambda _context, spec=spec: spec

"""A loader as the dataset that Keras' TensorFlow backend takes: walked in Python, or in a strategy's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.frameworks.tensorflow.dataset import Batches


class WalkedDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """Another dataset in a graph, as under a distribution strategy, and what ``begin`` begins in Python.

    In Python Keras runs a step in half the time, what the loader raises arrives as it was raised, and Ctrl-C
    is answered while the loader is waited for.
    """

    def __init__(self, inner: tf.data.Dataset, begin: Callable[[], Iterator[Any]]) -> None:
        """Wrap ``inner``."""
        self._inner = inner
        self._begin = begin
        super().__init__(inner._variant_tensor)  # noqa: SLF001 - no public way to wrap one

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._inner]

    @property
    def element_spec(self) -> Any:
        """The form of one batch."""
        return self._inner.element_spec

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


class EagerBatches:
    """One epoch as tensors, for the train, test and predict functions of Keras.

    Keras takes the batches of one execution by ``zip(range(steps_per_execution), batches)``, and fails on a
    variable without a value where it finds none. So an execution that has found some ends by StopIteration,
    and one that finds none by the OutOfRangeError with which datasets end.

    A tf.function is traced for the form that `batches` give, not for the shape of this very tensor. Otherwise
    Keras would trace again for a short last batch, and weigh batches of known and of unknown size differently in
    its mean losses.
    """

    def __init__(self, batches: Batches, leaves: Iterator[list[tf.Tensor]]) -> None:
        self._leaves = leaves
        self._pack = batches.pack
        self._cast = batches.cast
        specs = batches.leaves if batches.cast is None else batches.cast.specs_after(batches.leaves)
        self._tracing_types = [lambda _context, spec=spec: spec for spec in specs]
        self._found_some = False

    def __iter__(self) -> EagerBatches:
        self._found_some = False
        return self

    def __next__(self) -> Any:
        leaves = next(self._leaves, None)
        if leaves is not None:
            self._found_some = True
            if self._cast is not None:
                leaves = self._cast(leaves)
            for tensor, tracing_type in zip(leaves, self._tracing_types, strict=True):
                tensor.__tf_tracing_type__ = tracing_type  # TensorFlow's own protocol, here for one tensor
            return self._pack(leaves)
        if self._found_some:
            raise StopIteration
        raise tf.errors.OutOfRangeError(None, None, "the loader's epoch has ended")

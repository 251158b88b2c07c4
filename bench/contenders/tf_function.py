"""tf.data.Dataset.range, a map by numpy_function over the samples, and batch: TensorFlow's own way with Python."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from contenders import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """As many calls at a time as there are workers, in order, and a prefetch as deep as there are slots."""
    return {
        "num_parallel_calls": workers,
        "deterministic": True,
        "batch_size": workload.batch_size,
        "prefetch": slots,
    }


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The dataset's elements as arrays over its memory."""
    leaves = [np.asarray(leaf) for leaf in workload.leaves(0)]

    def arrays(index: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in workload.leaves(int(index))]

    def sample(index: tf.Tensor) -> Any:
        tensors = tf.numpy_function(
            arrays, [index], [leaf.dtype for leaf in leaves], stateful=False
        )
        for tensor, leaf in zip(tensors, leaves, strict=True):
            tensor.set_shape(leaf.shape)
        return tuple(tensors) if len(tensors) > 1 else tensors[0]

    dataset = tf.data.Dataset.range(len(workload.dataset))
    dataset = dataset.map(sample, num_parallel_calls=workers, deterministic=True)
    if workload.batch_size is not None:
        dataset = dataset.batch(workload.batch_size, drop_remainder=True)
    yield Epochs(dataset.prefetch(slots).as_numpy_iterator)

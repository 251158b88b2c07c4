"""tf.data.Dataset.from_generator over whole batches, with a prefetch as deep as there are slots."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from contenders import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workloads.workload import Workload


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """One generator, whatever was asked: it is Python, and runs in this process."""
    del workload, workers
    return {"workers": 0, "prefetch": slots}


@contextmanager
def batches(workload: Workload, workers: int, slots: int) -> Iterator[Iterable[Any]]:
    """The dataset's elements as arrays over its memory."""
    del workers
    count = len(workload.dataset) // (workload.batch_size or 1)
    specs = tuple(tf.TensorSpec(buffer.shape, buffer.dtype) for buffer in workload.buffers())
    signature = specs if len(specs) > 1 else specs[0]
    dataset = tf.data.Dataset.from_generator(
        lambda: map(workload.batch, range(count)), output_signature=signature
    ).prefetch(slots)
    yield Epochs(dataset.as_numpy_iterator)

"""The barest adapter that Keras' `fit` takes: tensors that lie in memory, handed out again and again."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from ringfeed.frameworks.batch import copy_aligned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np


class Walk:
    """One epoch, for each backend.

    TensorFlow's functions ask it for its own iterator with every step.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches, None)
        if batch is None:
            raise _end_of_epoch()
        return batch


def _end_of_epoch() -> Exception:
    if keras.backend.backend() != "tensorflow":
        return StopIteration()
    import tensorflow as tf  # noqa: PLC0415 - not on other backends

    end: Exception = tf.errors.OutOfRangeError(None, None, "the epoch has ended")
    return end


class Epoch:
    """A new walk for each `iter`."""

    def __init__(self, batches: Sequence[Any], length: int) -> None:
        self._batches, self._length = batches, length

    def __iter__(self) -> Walk:
        return Walk(islice(cycle(self._batches), self._length))


class Constant(DataAdapter):  # type: ignore[misc]  # keras has no types
    """The same few batches, over and over, `length` of them an epoch."""

    num_batches = batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, batches: Sequence[tuple[np.ndarray, ...]], length: int) -> None:
        self.num_batches, self.batch_size = length, len(batches[0][0])
        self._epoch = Epoch([tuple(map(tensor, batch)) for batch in batches], length)

    def get_tf_dataset(self) -> Any:
        """For TensorFlow's backend."""
        return self._epoch

    def get_jax_iterator(self) -> Iterator[Any]:
        """For JAX's."""
        return iter(self._epoch)

    def get_torch_dataloader(self) -> Any:
        """For torch's."""
        return data_adapter_utils.get_torch_dataloader(self._epoch)


def tensor(array: np.ndarray) -> Any:
    """An array as a tensor of Keras' backend, over memory that is aligned as TensorFlow needs it."""
    array = copy_aligned(array)
    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf  # noqa: PLC0415 - only the backend that is asked for

            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        case "jax":
            import jax  # noqa: PLC0415

            return jax.dlpack.from_dlpack(array)
        case _:
            import torch  # noqa: PLC0415

            return torch.from_dlpack(array)

"""Batches for TensorFlow's graph by an op in C, cext/export/tf_op.c: no Python, GIL or copy."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ringfeed.frameworks.tensorflow import _feed
from ringfeed.frameworks.tensorflow.feed import LoaderFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.tensorflow.dataset import Batches

LIBRARY = "ringfeed.frameworks.tensorflow._tf_op"


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


class OpEpochs:
    """What a dataset's graph calls for its batches; each iteration is an epoch of the loader.

    All of it is in C; `dataset.PythonEpochs` does the same in Python.
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
        with tf.control_dependencies([self._wait(epoch_id, waits)]):
            return epoch_id, self._ops.ringfeed_batch(epoch_id=epoch_id, feed=number, types=types)

    def _wait(self, epoch_id: tf.Tensor, waits: tf.Tensor) -> tf.Tensor:
        """False when there is a batch; TensorFlow ends the loop when it gives the iteration up."""

        def wait(_waits: tf.Tensor) -> tf.Tensor:
            waits = self._ops.ringfeed_wait(epoch_id=epoch_id, feed=self._feed.number)
            waits.set_shape(())
            return waits

        (waits,) = tf.while_loop(lambda waits: waits, wait, [waits], parallel_iterations=1)
        return waits

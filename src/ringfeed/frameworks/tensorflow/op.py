"""Batches for TensorFlow's graph by an op in C, cext/export/tf_op.c: no Python, GIL or copy."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ringfeed.frameworks.tensorflow import _feed
from ringfeed.frameworks.tensorflow.feed import LoaderFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.tensorflow.dataset import Batches

LIBRARY = "ringfeed.frameworks.tensorflow._tf_op"
NEW, REST = np.int64(-1), np.int64(-2)
"""States of an iteration at its first step, and after its last (cext/export/feed.h)."""


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


class Iterations:
    """What a dataset's graph calls for its batches: each iteration is an epoch of the loader."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def call(
        self, state: tf.Tensor, step: tf.Tensor, specs: Sequence[tf.TensorSpec]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """The epoch id of this iteration, drawn at its first step, and the tensors of a batch.

        With a spec more than a batch has leaves, the first tensor is whether the epoch goes on.
        """
        raise NotImplementedError

    def elements(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """A batch for each step."""
        return steps.scan(NEW, self._element)

    def elements_or_end(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """For each step whether the epoch goes on, and a batch if it does."""
        return steps.scan(NEW, self.element_or_end)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _element(self, state: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, Any]:
        epoch_id, tensors = self._shaped(state, step, self.batches.leaves)
        return epoch_id, self.batches.pack(tensors)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def element_or_end(self, state: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The state of the iteration, and whether its epoch goes on, with a batch if it does."""
        specs = [tf.TensorSpec((), tf.bool), *self.batches.leaves]
        epoch_id, (goes_on, *tensors) = self._shaped(state, step, specs)
        return epoch_id, (goes_on, self.batches.pack(tensors))

    def _shaped(
        self, state: tf.Tensor, step: tf.Tensor, specs: Sequence[tf.TensorSpec]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Call, and give the tensors the shapes that TensorFlow cannot know."""
        epoch_id, tensors = self.call(state, step, specs)
        epoch_id.set_shape(())
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return epoch_id, tensors


class OpIterations(Iterations):
    """All of it in C; `dataset.PythonIterations` does the same in Python."""

    def __init__(self, ops: Any, stream: BatchStream, batches: Batches) -> None:
        super().__init__(batches)
        self._ops = ops
        dtypes = [leaf.dtype.as_datatype_enum for leaf in batches.leaves]
        self._feed = LoaderFeed(stream, batches.count, dtypes)

    def rest_or_end(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """The same for what is left of the newest epoch after its last step.

        Batches are left where steps have brought errors.
        """
        return steps.map(self._rest_or_end)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _rest_or_end(self, step: tf.Tensor) -> Any:
        return self.element_or_end(REST, step)[1]

    def _wait(self, epoch_id: tf.Tensor, waits: tf.Tensor) -> tf.Tensor:
        """False when there is a batch; TensorFlow ends the loop when it gives the iteration up."""

        def wait(_waits: tf.Tensor) -> tf.Tensor:
            waits = self._ops.ringfeed_wait(epoch_id=epoch_id, feed=self._feed.number)
            waits.set_shape(())
            return waits

        (waits,) = tf.while_loop(lambda waits: waits, wait, [waits], parallel_iterations=1)
        return waits

    def call(
        self, state: tf.Tensor, step: tf.Tensor, specs: Sequence[tf.TensorSpec]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Begin an epoch, or ask for the next batch of this one; wait for it; take it."""
        number, types = self._feed.number, [spec.dtype for spec in specs]
        epoch_id, waits = self._ops.ringfeed_epoch(state=state, step=step, feed=number)
        waits.set_shape(())
        with tf.control_dependencies([self._wait(epoch_id, waits)]):
            return epoch_id, self._ops.ringfeed_batch(epoch_id=epoch_id, feed=number, types=types)

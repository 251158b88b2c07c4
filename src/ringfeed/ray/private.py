"""The actor's slot: today's readers over a ring of its own, of one slot in this process."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._failure import encode
from ringfeed.datasets.reader import Port
from ringfeed.datasets.wrapped import WrappedSource
from ringfeed.monitor._snapshot import Observer
from ringfeed.ray import _land
from ringfeed.ray.filled import Filled
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment, Sizes
from ringfeed.spec.array import Array
from ringfeed.spec.layout import Layout
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.spec.array import AnyArray


class SentSpec(Spec):
    """What an actor sends: uint8 as the dataset gave it, converted where it lands. Refusals are the spec's own."""

    __slots__ = ("whole",)

    def __init__(self, spec: Spec) -> None:
        """Lie in a slot as what the dataset gives."""
        arrays: Any = spec.flatten(spec.tree, 0, "spec")
        given = [
            array if leaf.cast is None else Array(leaf.given_shape, leaf.given_dtype, variable=leaf.variable)
            for leaf, array in zip(spec.leaves, arrays, strict=True)
        ]
        super().__init__(spec.unflatten(given))
        self.whole = spec

    def array(self, number: int, value: object, index: int) -> AnyArray:
        """Return a value as an array that fits, or refuse it."""
        return self.whole.array(number, value, index)

    def batch_of_one(self, number: int, value: object, index: int) -> AnyArray:
        """Return a sample as a batch of one row, or refuse it."""
        return self.whole.batch_of_one(number, value, index)

    def batch_array(self, number: int, value: object, index: int, max_rows: int) -> AnyArray:
        """Return a leaf of a whole batch as an array that fits, or refuse it."""
        return self.whole.batch_array(number, value, index, max_rows)


def sent_spec(source: Source) -> Spec:
    """Return the spec of what an actor sends: uint8 as it was given, unless the user's code looks at floats."""
    if getattr(source, "has_batch_transform", False) or not any(leaf.cast for leaf in source.spec.leaves):
        return source.spec
    return SentSpec(source.spec)


def _as_sent(source: Source, spec: Spec) -> Source:
    """Return the source with this spec, also of what it is made of."""
    other = copy.copy(source)
    if source.spec == spec:
        return other
    other.spec = spec
    if isinstance(other, WrappedSource) and other.inner.spec == source.spec:
        other.inner = _as_sent(other.inner, spec)
    return other


class PrivateSlot:
    """Room for the rows of one call, and the reader of one version of the dataset that fills it."""

    def __init__(self, source: Source, dataset: Any, *, worker: tuple[int, int, int]) -> None:
        """Reserve the slot, and open the dataset; ``worker``: its number, of how many, how often it was started."""
        spec = sent_spec(source)
        layout = Layout.of(spec, source.rows, source.indices, 1)
        sizes = Sizes(
            1, 1, 1, layout.indices, 1, layout.slot_size, layout.indices_at, layout.marks_at, layout.failures_at
        )
        segment = Segment(sizes)
        self._ring = segment.open()
        segment.close()
        self._ring.become_consumer(1, 1)
        self._end = _ring.WorkerEnd(self._ring, 0)
        self._observer = Observer(self._ring)
        self._collector = _land.Collector(spec, layout.offsets, self._ring)
        fills_here = source.open_reader is not None  # or its threads would write while the rows are taken out
        port = Port(self._end, self._ring, layout.offsets, is_consumer=fills_here, worker=worker)
        self.reader = _as_sent(source, spec).reader(dataset, port)
        self._has_begun = False

    def fill(self, epoch: int, version: int, indices: Sequence[int]) -> Filled:
        """Make the rows of these indices. Its arrays are views of the slot, until the next call."""
        if not self._has_begun:
            self.reader.begin()
            self._has_begun = True
        self._ring.plan(np.array(indices, np.int64), len(indices), epoch, version)
        try:
            if self._end.claim(0) != _ring.TAKEABLE:
                message = "an actor's slot has no room for a call, as another one runs in it"
                raise RuntimeError(message)
            return self._fill()
        finally:
            self._end.publish(cancelled=True)
            self._ring.cancel()

    def _fill(self) -> Filled:
        before, address = self._observer.worker(0), self._end.claim_address
        began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        try:
            self.reader.fill()
        except BaseException as error:  # noqa: BLE001 - as in a local worker: it was raised outside of any sample
            for row in range(len(indices := self._end.indices)):
                self._end.fail(row, encode(error))
            del indices
        work_ns, cpu_ns = time.monotonic_ns() - began_ns, time.process_time_ns() - began_cpu_ns
        after = self._observer.worker(0)
        times = (after.timed - before.timed, after.read_ns - before.read_ns, after.write_ns - before.write_ns)
        leaves, delivered = self._collector.collect(address), _land.delivered(address)
        return Filled(leaves, delivered, _land.failures(address), max(1, work_ns), cpu_ns, *times)

    def close(self) -> None:
        """End what reads; the slot goes with the last array of it."""
        self.reader.close()
        self._ring.stop()

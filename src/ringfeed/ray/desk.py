"""The dataset on its way to actors, and what reads it there: a reader over a ring of one slot."""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._failure import encode
from ringfeed.datasets.reader import Port
from ringfeed.orders.rng import scatter
from ringfeed.ray.landing import Filled, sent_spec
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment, Sizes
from ringfeed.spec._fields import Fields
from ringfeed.spec.forms import Padded, Ragged
from ringfeed.spec.layout import Layout
from ringfeed.system import _system
from ringfeed.transport import imports
from ringfeed.transport.unpacking import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.ray.ray_fleet import RayFleet
    from ringfeed.ring._ring import Lease

SMALL = 1 << 20  # bytes: an actor has a writable copy of smaller buffers


# ---- in a bridge ----


class Sent:
    """The newest version of the dataset, as actors are sent it."""

    def __init__(self, fleet: RayFleet) -> None:
        """Nothing is sent yet."""
        self.version = -1
        self.pieces: Sequence[Any] = ()
        """What `Desk.open` takes: the manifest, and the fleet's name of each file that it is of."""
        self._fleet = fleet
        self._files: dict[int, Any] = {}  # by inode

    def put(self, version: int, manifest: bytes, fds: Sequence[int]) -> None:
        """Make this the version that actors are sent; a file that they have is not put again."""
        before, self._files = self._files, {}
        for fd in fds:
            inode = os.fstat(fd).st_ino
            if inode not in before:
                content = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
                before[inode] = self._fleet.put(np.frombuffer(content, np.uint8))
            self._files[inode] = before[inode]
        self.version, self.pieces = version, (manifest, *self._files.values())


# ---- in an actor ----


def facts_here() -> dict[str, Any]:
    """Return facts about this process, which an actor and its bridge must have in common."""
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "abi": _ring.ABI,
        "byte_order": sys.byteorder,
        "numpy": np.__version__.rpartition(".")[0],
    }


class PrivateSlot:
    """Room for the rows of one call, and the reader of one version of the dataset that fills it."""

    def __init__(self, source: Source, dataset: Any, *, worker: tuple[int, int, int]) -> None:
        """Reserve the slot, and open the dataset; ``worker``: see `Port.worker`."""
        spec = sent_spec(source)
        layout = Layout.of(spec, source.rows, source.indices, 1)
        sizes = Sizes(
            1,
            1,
            1,
            layout.indices,
            1,
            layout.slot_size,
            layout.indices_at,
            layout.marks_at,
            layout.failures_at,
        )
        segment = Segment(sizes)
        self._ring = segment.open()
        segment.close()
        self._ring.become_consumer(1, 1)
        self._end = _ring.WorkerEnd(self._ring, 0)
        self._fields = Fields(spec, layout.offsets)
        forms = [(number, leaf.form) for number, leaf in enumerate(spec.leaves)]
        self._padded = {number for number, form in forms if form is not None and form.is_padded}
        fills_here = (
            source.open_reader is not None
        )  # or its threads would write while the rows are taken out
        port = Port(self._end, self._ring, layout.offsets, is_consumer=fills_here, worker=worker)
        here = copy.copy(source)
        here.spec = spec
        self.reader = here.reader(dataset, port)
        self._has_begun = False

    def fill(self, epoch: int, version: int, indices: Sequence[int]) -> Filled:
        """Make the rows of these indices. Its arrays keep the slot, which the next call needs."""
        if not self._has_begun:
            self.reader.begin()
            self._has_begun = True
        self._ring.plan(np.array(indices, np.int64), len(indices), epoch, version)
        if self._end.claim(0) != _ring.TAKEABLE:
            raise RuntimeError("an actor's slot has no room for a call, as another one holds it")
        began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        try:
            self.reader.fill()
        except BaseException as error:  # noqa: BLE001 - outside of any sample: all rows fail
            for row in range(len(indices)):
                self._end.fail(row, encode(error))
        work_ns, cpu_ns = time.monotonic_ns() - began_ns, time.process_time_ns() - began_cpu_ns
        self._end.publish()
        lease = self._ring.take()
        assert lease is not None
        records = dict(lease.failures())
        return Filled(
            self._leaves(lease),
            lease.rows,
            tuple((row, records.get(row, b"")) for row, *_ in lease.failed_rows(len(indices))),
            max(1, work_ns),
            cpu_ns,
        )

    def _leaves(self, lease: Lease) -> tuple[Any, ...]:
        """Return the arrays of a lease; rows that have failed hold anything."""
        leaves: list[Any] = self._fields.views(lease, lease.rows)
        for number, beside in self._fields.besides(lease, lease.rows).items():
            kind = Padded if number in self._padded else Ragged
            leaves[number] = kind(leaves[number], beside)
        return tuple(leaves)

    def close(self) -> None:
        """End what reads; the slot goes with the last array of it."""
        self.reader.close()
        self._ring.stop()


class Desk:
    """Makes the rows that a bridge asks for, from the newest version of the dataset that it has."""

    def __init__(self, papers: bytes) -> None:
        """Take the papers that `Crew` has pickled: the source, without the dataset."""
        told, known = pickle.loads(papers), sys.path  # noqa: S301 - from our own bridge
        known.extend(entry for entry in told["path"] if entry not in known and Path(entry).is_dir())
        self._papers: dict[str, Any] = told
        self._slot: PrivateSlot | None = None
        number, _, starts = told["worker"]
        imports.expect(told["source"].packages, silent=True)
        scatter(told["source"].seed, number, starts)

    def open(self, manifest: bytes, *files: Any) -> None:
        """Have the rows be of this version of the dataset from now on: see `Sent.pieces`."""
        buffers = []
        for piece in pickle.loads(manifest):  # noqa: S301 - as above
            view = memoryview(files[piece.file])[piece.offset : piece.offset + piece.length]
            is_own = self._papers["private"] or piece.length < SMALL
            buffers.append(memoryview(bytearray(view)) if is_own else view)
        dataset = opened(buffers)
        self.close()
        self._slot = PrivateSlot(self._papers["source"], dataset, worker=self._papers["worker"])

    def fill(self, epoch: int, version: int, indices: list[int]) -> Filled:
        """Make rows; its arrays are valid until the next call."""
        assert self._slot is not None
        return self._slot.fill(epoch, version, indices)

    def close(self) -> None:
        """End what reads."""
        if self._slot is not None:
            self._slot.close()


def guard() -> None:
    """End this process and all that it has started with its parent; Ray may leave it alive."""
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    reader, _ = _kept = _system.pipe()  # of our own: it never closes
    _guards.append((_kept, pidfd := os.pidfd_open(parent)))
    _system.start_guard(pidfd, reader.fileno())


_guards: list[Any] = []

"""The ring and the lease from Python, both ends in one process.

The C tests place the states beneath.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import Observer
from ringfeed.ring import _ring
from ringfeed.ring.mapping import open_ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

S = 10**9


class Both:
    """A consumer's ring with worker ends, over 3 slots of 4 rows of one byte."""

    def __init__(self) -> None:
        self.plan = make_plan(Spec(Array((), "uint8")), 4, 4, workers=2, slots=3)
        self.segment = Segment(self.plan.sizes)
        self.ring = self.segment.open()
        self.ring.become_consumer(16, 3)
        self.workers = [_ring.WorkerEnd(self.ring, number) for number in range(2)]

    def plan_batches(self, count: int, epoch: int = 0) -> None:
        """Plan `count` batches whose indices run on from 0."""
        self.ring.plan(np.arange(4 * count, dtype=np.int64), 4, epoch, 0)

    def fill(self) -> None:
        """Claim and publish until nothing is left."""
        while self.workers[0].claim(0) == _ring.TAKEABLE:
            self.workers[0].publish()


@pytest.fixture
def both() -> Iterator[Both]:
    """A ring with both its ends."""
    found = Both()
    yield found
    found.segment.close()


def test_a_planned_batch_is_bound_claimed_and_taken(both: Both) -> None:
    """Indices, epoch and rows reach the worker; the consumer takes what was published, in order."""
    both.plan_batches(2, epoch=7)
    worker = both.workers[0]
    seen = []
    while worker.claim(0) == _ring.TAKEABLE:
        assert (worker.epoch, worker.version) == (7, 0)
        seen += worker.indices
        worker.publish()
    assert seen == list(range(8))
    for batch in range(2):
        assert both.ring.look() == _ring.TAKEABLE
        lease = both.ring.take()
        assert (lease.batch, lease.epoch, lease.rows, lease.failed) == (batch, 7, 4, False)
        del lease
    assert both.ring.look() == _ring.DRY


def test_nothing_is_taken_before_it_is_ready(both: Both) -> None:
    """take() without a ready head batch gives None instead of a half-written slot."""
    both.plan_batches(1)
    assert both.workers[0].claim(0) == _ring.TAKEABLE
    assert both.ring.take() is None


def test_leases_return_in_any_order(both: Both) -> None:
    """Each slot is free when its own lease goes, whatever the others do."""
    both.plan_batches(3)
    both.fill()
    leases = [both.ring.take() for _ in range(3)]
    assert Observer(both.ring).states() == ["held"] * 3
    middle = leases[1].slot
    del leases[1]
    states = Observer(both.ring).states()
    assert states.pop(middle) == "free"
    assert states == ["held", "held"]


def test_a_release_binds_the_next_batch(both: Both) -> None:
    """With more planned than slots, the release of a lease binds, without another call."""
    both.plan_batches(4)
    both.fill()
    leases = [both.ring.take() for _ in range(3)]
    assert both.ring.look() == _ring.HELD
    assert both.workers[0].claim(0) == _ring.PENDING
    del leases[1]
    assert both.workers[0].claim(0) == _ring.TAKEABLE


def test_the_lease_exports_its_fields(both: Both) -> None:
    """A memoryview of the lease is the slot itself, and keeps it."""
    both.plan_batches(1)
    both.fill()
    view = memoryview(both.ring.take())
    gc.collect()
    assert Observer(both.ring).states().count("held") == 1
    view[0] = 77
    assert not view.readonly
    view.release()
    assert Observer(both.ring).states().count("held") == 0


def test_a_lease_outlives_its_ring(both: Both) -> None:
    """The mapping stays as long as a lease refers to it."""
    both.plan_batches(1)
    both.fill()
    lease = both.ring.take()
    both.segment.close()
    both.workers.clear()
    del both.ring
    gc.collect()
    assert memoryview(lease)[0] == 0


def test_a_lease_cannot_be_made_by_hand() -> None:
    """Only take() makes a lease."""
    with pytest.raises(TypeError) as caught:
        _ring.Lease()
    assert str(caught.value) == "a Lease is made by Ring.take()"


def test_failures_name_their_rows(both: Both) -> None:
    """A failed row is marked, with its index and the payload; the batch says that it failed."""
    both.plan_batches(1)
    worker = both.workers[0]
    while worker.claim(0) == _ring.TAKEABLE:
        if 2 in worker.indices:
            worker.fail(worker.indices.index(2), b"payload")
        worker.publish()
    lease = both.ring.take()
    assert lease.failed
    assert lease.failed_rows(4) == [(2, 2, _ring.ROW_RAISED)]
    assert lease.failures() == [(2, b"payload")]


def test_cancel_starts_empty(both: Both) -> None:
    """After a break nothing of the old epoch is delivered, and a claimed ticket drains its slot."""
    both.plan_batches(2)
    worker = both.workers[0]
    worker.claim(0)
    both.ring.cancel()
    assert both.ring.look() == _ring.DRY
    assert sorted(Observer(both.ring).states()) == ["draining", "free", "free"]
    worker.publish(cancelled=True)
    both.plan_batches(3, epoch=1)
    assert Observer(both.ring).states() == ["filling"] * 3
    both.fill()
    assert both.ring.take().epoch == 1


def test_reaping_gives_the_rows_to_another(both: Both) -> None:
    """What a dead worker had claimed is claimed again; only after a reap."""
    both.plan_batches(1)
    first, second = both.workers
    first.claim(0)
    claimed = first.indices
    while second.claim(0) == _ring.TAKEABLE:
        second.publish()
    assert both.ring.look() == _ring.PENDING
    assert both.ring.reap(0)[0] == 1
    assert second.claim(0) == _ring.TAKEABLE
    assert second.indices == claimed
    second.publish()
    first.publish()  # one that was wrongly taken for dead changes nothing
    assert both.ring.look() == _ring.TAKEABLE


def test_waits_end_by_their_timeout(both: Both) -> None:
    """Both waits come back after about the time they were given."""
    both.plan_batches(1)
    began = time.monotonic()
    assert both.ring.wait(S // 20) == _ring.PENDING
    both.fill()
    assert both.workers[1].claim(S // 20) == _ring.PENDING
    assert 0.1 <= time.monotonic() - began < 60


def test_a_publish_wakes_the_consumer(both: Both) -> None:
    """A consumer asleep on its head batch is woken by the worker that finishes it."""
    both.plan_batches(1)
    thread = threading.Timer(0.1, both.fill)
    thread.start()
    assert both.ring.wait(120 * S) == _ring.TAKEABLE
    thread.join()


def test_planning_wakes_a_worker(both: Both) -> None:
    """A worker asleep for want of a ticket is woken when one is bound."""
    threading.Timer(0.1, both.plan_batches, (1,)).start()
    assert both.workers[0].claim(120 * S) == _ring.TAKEABLE


def test_stop_wakes_everybody(both: Both) -> None:
    """After stop both ends answer STOPPED, sleepers included."""
    both.plan_batches(1)
    both.workers[0].claim(0)
    while both.workers[0].claim(0) == _ring.TAKEABLE:
        pass
    threading.Timer(0.1, both.ring.stop).start()
    assert both.workers[1].claim(120 * S) == _ring.STOPPED
    assert both.ring.wait(120 * S) == _ring.STOPPED


def test_an_alarm_wakes_the_consumer(both: Both) -> None:
    """The pool's alarm interrupts a wait."""
    both.plan_batches(1)
    threading.Timer(0.1, both.ring.alarm).start()
    assert both.ring.wait(120 * S) == _ring.ALARMED


def test_planning_too_much_is_refused(both: Both) -> None:
    """More batches than the plan has room for raise."""
    with pytest.raises(ValueError, match="no room to plan a batch of 4 rows"):
        both.plan_batches(40)


@pytest.mark.parametrize(
    "damage", [(0, b"\0"), (8, b"\xff"), (12, b"\1\2\3\4")], ids=["magic", "abi", "size"]
)
def test_a_foreign_segment_is_refused(both: Both, damage: tuple[int, bytes]) -> None:
    """Another magic, ABI or size is refused before anything is read."""
    os.pwrite(both.segment.control_fd, damage[1], damage[0])
    with pytest.raises(ValueError, match="magic, ABI or sizes differ"):
        open_ring(both.segment.control_fd, both.segment.slots_fd, both.segment.sizes)


def test_a_bad_descriptor_is_an_error() -> None:
    """What cannot be mapped is an OSError."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        _ring.Ring(-1, -1, 4096, 4096)


def test_worker_numbers_are_checked(both: Both) -> None:
    """A worker number beyond the ring's is refused."""
    for call in (
        lambda: _ring.WorkerEnd(both.ring, 4),
        lambda: both.ring.reap(4),
        lambda: Observer(both.ring).worker(9),
    ):
        with pytest.raises(ValueError, match=r"worker \d of 4"):
            call()

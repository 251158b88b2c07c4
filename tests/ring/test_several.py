"""A worker that holds several tickets, from Python: how long they took elsewhere, and breaks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import Observer
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Array, Spec
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = 10**9
ROWS = 64


@pytest.fixture
def ring() -> Iterator[_ring.Ring]:
    """The consumer's ring, of two slots of 64 rows and tickets of one row at least."""
    segment = Segment(
        make_plan(Spec(Array((), "uint8")), ROWS, ROWS, workers=2, slots=2, more=30).sizes
    )
    ring = segment.open()
    ring.become_consumer(16, 3)
    yield ring
    segment.close()


def plan(ring: _ring.Ring) -> None:
    """Plan one batch."""
    ring.plan(np.arange(ROWS, dtype=np.int64), ROWS, 0, 0)


def tickets(ring: _ring.Ring, work_ns: int = 0) -> list[int]:
    """Fill a batch and take it; returns the rows of each ticket."""
    worker, found = _ring.WorkerEnd(ring, 0), []
    plan(ring)
    while worker.claim(0) == _ring.TAKEABLE:
        found.append(len(worker.indices))
        worker.publish(work_ns=work_ns * found[-1])
    assert ring.take() is not None
    return found


def test_pace_is_learned_from_the_work_elsewhere(ring: _ring.Ring) -> None:
    """Tickets have as many rows as the pace asks for, by the time that the worker tells."""
    ring.set_pace(20_000_000)
    assert tickets(ring, 4_900_000) == [32, 32]
    # What is learned shows in the batch that is bound next.
    assert tickets(ring, 4_900_000) == [4] * 16
    assert sum(worker.busy_ns for worker in Observer(ring).workers()) == 2 * ROWS * 4_900_000


def test_as_many_tickets_as_are_worked_on_at_a_time(ring: _ring.Ring) -> None:
    """Before anything is known a batch is cut into one for each, however many workers there are.

    Or as told.
    """
    ring.set_pace(more=30)
    assert len(tickets(ring)) == 32
    ring.set_pace(20 * S, ticket_rows=5)
    assert tickets(ring) == [5] * 12 + [4]


@pytest.mark.parametrize("more", [0, 3, 30, 1000])
def test_cells_for_what_is_worked_on_at_a_time(more: int) -> None:
    """A plan has cells for several tickets of each that works, up to what a slot may have."""
    cells = make_plan(
        Spec(Array((), "uint8")), 256, 256, workers=2, slots=4, more=more
    ).layout.cells
    assert cells == min(_ring.MAX_CELLS, max(16, 4 * (2 + more)))


@pytest.mark.parametrize("act", [_ring.Ring.cancel, _ring.Ring.requeue, _ring.Ring.stop])
def test_breaks_wake_a_worker_that_holds_tickets(
    ring: _ring.Ring, act: Callable[[_ring.Ring], None]
) -> None:
    """A break, a fence and the stop end its sleep; without one it ends by its time."""
    worker = _ring.WorkerEnd(ring, 0)
    seen = worker.breaks
    assert worker.wait_break(seen, 1000) == seen
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(worker.wait_break(seen, 3600 * S)))
    thread.start()
    act(ring)
    thread.join(PATIENCE_S)
    assert found == [worker.breaks]
    assert found != [seen]

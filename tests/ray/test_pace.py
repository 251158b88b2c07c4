"""How batches are cut for actors: by the calls under way, by the work of one, and by its bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fake_fleet import FakeRay
from remote_sets import Samples
from ringfeed import Array, Loader, worker_info
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.engine.plan import make_plan
from ringfeed.ray import Ray
from ringfeed.ray.desk import PrivateSlot
from ringfeed.ray.pace import flights_size, in_flight, most_calls, row_size, set_pace
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source


def source_of(sample: Any, spec: Any = None, rows: int = 64) -> Source:
    """Return the source of such samples."""
    source = open_source([sample] * 100, Terms(spec=spec, batch_size=rows))
    source.learn()
    return source


def tickets(source: Source, ray: Ray, *, row_ns: int, workers_here: int = 0) -> list[int]:
    """Return the rows of each ticket of a batch, once rows are known to take so long."""
    made = make_plan(
        source.spec, source.rows, source.indices, workers=1, slots=2, more=in_flight(ray)
    )
    segment = Segment(made.sizes)
    ring = segment.open()
    ring.become_consumer(4, 1)
    set_pace(ring, source, ray, workers_here=workers_here)
    worker, found = _ring.WorkerEnd(ring, 0), []
    for _ in range(2):
        found.clear()
        ring.plan(np.arange(source.indices, dtype=np.int64), source.indices, 0, 0)
        while worker.claim(0) == _ring.TAKEABLE:
            found.append(len(worker.indices))
            worker.publish(work_ns=row_ns * found[-1])
        ring.take()
    segment.close()
    return found


@pytest.mark.parametrize(
    ("row_ns", "here", "expected"),
    [
        (53_000_000, 0, [3] * 21 + [1]),
        (4_900_000, 0, [4] * 16),
        (4_900_000, 2, [1] * 64),
        (1_900_000, 2, [2] * 32),
    ],
)
def test_tickets_are_worth_a_call(row_ns: int, here: int, expected: list[int]) -> None:
    """160 ms of work, or 5 ms beside workers here, as far as that leaves some to each call."""
    assert (
        tickets(source_of(np.zeros(3)), Ray(workers=8), row_ns=row_ns, workers_here=here)
        == expected
    )


def test_all_actors_have_tickets() -> None:
    """However quick rows are, all calls share a batch, down to a fiftieth of that work."""
    source = source_of(np.zeros(3))
    assert tickets(source, Ray(workers=7), row_ns=500_000) == [6] * 10 + [4]
    assert tickets(source, Ray(workers=40), row_ns=2_500_000) == [1] * 64
    assert tickets(source, Ray(workers=40), row_ns=399_000) == [8] * 8


def test_a_bridge_has_time_for_the_calls_of_all_its_actors() -> None:
    """Beyond 64 actors a call is worth 2.5 ms for each, and at least a fiftieth of that."""
    source = source_of(np.zeros(3))
    assert tickets(source, Ray(workers=80), row_ns=4_000_000) == [1] * 64
    assert tickets(source, Ray(workers=1000), row_ns=2_000_000) == [24, 24, 16]
    assert tickets(source, Ray(workers=1000, bridges=10), row_ns=2_000_000) == [2] * 32


def test_slots_hold_two_calls_of_eight_samples_for_each_actor() -> None:
    """Within reason; of whole batches one holds a call."""
    source = source_of(np.zeros(3))
    assert [Ray(workers=actors).slots(source) for actors in (1, 16, 64, 1000)] == [1, 4, 16, 62]
    whole = open_source([np.zeros((4, 3))] * 100, Terms(spec=None, batch_size=None))
    assert [Ray(workers=actors).slots(whole) for actors in (1, 16, 64)] == [2, 32, 62]


def test_an_answer_is_not_too_large() -> None:
    """8 MB a ticket, of what is sent: uint8, where it is converted by the training's side."""
    given = np.zeros((1000, 1000, 2), np.uint8)
    spec = Array((1000, 1000, 2), "float32", scale=1.0)
    assert (
        row_size(source_of(given, rows=8)) == row_size(source_of(given, spec, rows=8)) == 2_000_000
    )
    assert tickets(source_of(given, spec, rows=8), Ray(workers=1), row_ns=1) == [4, 4]


def test_answers_that_are_waited_for_are_no_more_than_256_mb() -> None:
    """Of tickets, or of whole batches."""
    assert most_calls(source_of(np.zeros(1000), rows=64)) == 500
    assert most_calls(source_of(np.zeros((1000, 1000)), rows=64)) == 32
    assert most_calls(source_of(np.zeros((2000, 2000)), rows=64)) == 8
    collated = source_of(np.zeros((1000, 100)), rows=64)
    assert most_calls(collated) == 32
    collated.at_once = True
    assert most_calls(collated) == 5


def test_a_plan_has_cells_for_all_calls() -> None:
    """The tickets that one process holds are counted, and not the process."""
    with Loader(Samples(), batch_size=64, workers=0, backend=FakeRay(workers=16)) as loader:
        assert loader.plan.layout.cells == _ring.MAX_CELLS
    with Loader(Samples(), batch_size=64, workers=0, backend=FakeRay(workers=1)) as loader:
        assert loader.plan.layout.cells == 16


def test_a_plan_has_the_rows_on_their_way() -> None:
    """Of four calls an actor, but no more than 256 MB a bridge; and of one an actor in any case."""
    with Loader(Samples(), batch_size=64, workers=0, backend=FakeRay(workers=2)) as loader:
        assert loader.plan.flights_size == 2 * 4 * 64 * 72
        assert "36.9 kB of rows on their way from the cluster" in str(loader.plan)
        assert loader.plan.total - replace(loader.plan, flights_size=0).total == 2 * 4 * 64 * 72
    source = source_of(np.zeros((1000, 1000)), rows=8)
    assert [flights_size(Ray(workers=n), source) for n in (1, 16, 100)] == [
        32_000_000,
        256_000_000,
        800_000_000,
    ]
    assert flights_size(Ray(workers=16, bridges=2), source) == 512_000_000


def test_what_is_converted_is_sent_as_it_was_given() -> None:
    """A quarter of the bytes; but where the user's code looks at floats, floats."""
    given = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    source = source_of(given, Array((3, 2, 2), "float32", scale=0.5, layout="CHW"), rows=4)
    slot = PrivateSlot(source, source.dataset, worker=(0, 1, 0))
    with ThreadPoolExecutor(1) as actor:  # what fills a slot is a worker from then on
        filled = actor.submit(slot.fill, 0, 0, [5, 7, 9]).result()
    (block,) = filled.leaves
    assert isinstance(block, np.ndarray)
    assert (block.dtype, block.shape, filled.delivered) == (np.uint8, (3, 2, 2, 3), 3)
    assert np.array_equal(block, np.stack([given] * 3))
    assert filled.work_ns > 0
    assert worker_info() is None
    slot.close()

"""A bridge's claims: answers that are late, doubled or wrong, and breaks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ringfeed import Array
from ringfeed._failure import decode, encode
from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import Observer
from ringfeed.ray.claims import Claim, Claims
from ringfeed.ray.landing import Filled, Lander, failed
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.forms import Ragged
from ringfeed.spec.spec import Spec
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

S = 10**9
ROWS = 8
SPEC = Spec(
    (
        Array((2,), "int32"),
        Array((2, 1), "float32", scale=0.5),
        Array((None, 2), "uint8", max_shape=(3, 2), form="ragged"),
    )
)


class Bridge:
    """A consumer's ring of two slots, of tickets of four rows, and the claims of worker 1."""

    def __init__(self) -> None:
        plan = make_plan(SPEC, ROWS, ROWS, workers=2, slots=2)
        self.segment = Segment(plan.sizes)
        self.ring = self.segment.open()
        self.ring.become_consumer(16, 3)
        self.ring.set_pace(S, ticket_rows=4)
        self.claims = Claims(
            _ring.WorkerEnd(self.ring, 1),
            Lander(SPEC, plan.layout.offsets, self.ring, ROWS),
        )
        self.gone: list[Claim] = []

    def plan(self, batches: int = 1) -> None:
        self.ring.plan(np.arange(ROWS * batches, dtype=np.int64), ROWS, 0, 0)

    def claim(self) -> Claim:
        claim = self.claims.next(0)
        assert claim is not None
        return claim

    def watch(self) -> threading.Thread:
        thread = threading.Thread(target=self.claims.watch, args=(self.gone.extend,), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    """What a bridge has."""
    found = Bridge()
    yield found
    found.ring.stop()
    found.segment.close()


def answer(rows: int = 4, **changes: Any) -> Filled:
    """Return what an actor would send."""
    values = np.arange(2 * rows, dtype=np.uint8).reshape(rows, 2)
    leaves = (
        np.arange(2 * rows, dtype=np.int32).reshape(rows, 2),
        np.arange(2 * rows, dtype=np.uint8).reshape(rows, 2, 1),
        Ragged(values, np.arange(rows + 1)),
    )
    return Filled(leaves, rows, work_ns=1000)._replace(**changes)


def with_leaf(number: int, leaf: Any) -> Filled:
    """Return an answer with another leaf."""
    leaves: list[Any] = [*answer().leaves]
    leaves[number] = leaf
    return answer(leaves=tuple(leaves))


def test_claims_tell_what_is_to_be_made(bridge: Bridge) -> None:
    """Epoch, version, indices and rows of each; the worker's line shows the oldest."""
    bridge.plan()
    first, first_ns = bridge.claim(), Observer(bridge.ring).worker(1).since_ns
    second = bridge.claim()
    assert bridge.claims.next(0) is None
    assert (first.indices, second.indices) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (first.epoch, first.version) == (0, 0)
    assert first.rows == second.rows == (0, 1, 2, 3)
    assert Observer(bridge.ring).worker(1).since_ns == first_ns > 0
    assert bridge.claims.land(first, answer())
    assert Observer(bridge.ring).worker(1).since_ns > first_ns
    assert bridge.claims.land(second, answer())
    assert len(bridge.claims) == 0
    assert Observer(bridge.ring).worker(1).since_ns == 0
    assert Observer(bridge.ring).worker(1).busy_ns == 2000
    assert bridge.ring.look() == _ring.TAKEABLE


def test_hundreds_are_held_at_a_time() -> None:
    """All tickets of all slots, each of which is landed or broken off by itself."""
    spec = Spec(Array((), "uint8"))
    plan = make_plan(spec, 64, 64, workers=1, slots=8, more=600)
    segment = Segment(plan.sizes)
    ring = segment.open()
    ring.become_consumer(16, 3)
    ring.set_pace(S, ticket_rows=1)
    claims = Claims(_ring.WorkerEnd(ring, 0), Lander(spec, plan.layout.offsets, ring, 64))
    ring.plan(np.arange(512, dtype=np.int64), 64, 0, 0)
    held = [claim for _ in range(512) if (claim := claims.next(0)) is not None]
    assert [claim.indices for claim in held] == [[number] for number in range(512)]
    for number in reversed(range(256)):
        assert claims.land(held[number], Filled((np.array([number % 256], np.uint8),), 1))
    for batch in range(4):
        lease = ring.take()
        assert bytes(memoryview(lease)[:64]) == bytes(range(batch * 64, batch * 64 + 64))
    ring.cancel()
    assert claims.cancel() == held[256:]
    assert Observer(ring).states().count("draining") == 4  # until the next look
    ring.plan(np.arange(64, dtype=np.int64), 64, 1, 0)
    assert claims.next(0) is not None
    segment.close()


@pytest.mark.parametrize("rows", [None, [0, 1], [3]])
def test_the_first_answer_counts(bridge: Bridge, rows: list[int] | None) -> None:
    """A second one of the same rows changes nothing."""
    bridge.plan()
    claim = bridge.claim()
    count = 4 if rows is None else len(rows)
    assert bridge.claims.land(claim, answer(count), rows)
    assert not bridge.claims.land(claim, answer(count), rows)
    assert not bridge.claims.fail(claim, encode(ValueError("late")), [0, 3])


def test_what_is_broken_off_is_published_at_once(bridge: Bridge) -> None:
    """Its slots are free for the next epoch, and what comes of it later is dropped."""
    watcher = bridge.watch()
    bridge.plan(2)
    held = [bridge.claim() for _ in range(4)]
    bridge.ring.cancel()
    bridge.plan(2)
    fresh: list[Claim] = []
    until_ns = _ring.now_ns() + int(PATIENCE_S) * S
    while len(fresh) < 4 and _ring.now_ns() < until_ns:
        bridge.ring.look()  # as the consumer does when it is woken: it binds what has drained
        if (claim := bridge.claims.next(10**6)) is not None:
            fresh.append(claim)
    assert [claim.indices[0] for claim in fresh] == [0, 4, 8, 12]
    assert set(bridge.gone) == set(held)
    assert not any(bridge.claims.land(claim, answer()) for claim in held)
    assert all(bridge.claims.land(claim, answer()) for claim in fresh)
    bridge.ring.stop()
    watcher.join(PATIENCE_S)
    assert not watcher.is_alive()
    assert bridge.claims.next(0) is None
    assert bridge.claims.next(1) is None
    assert bridge.claims.is_over


def test_a_claim_of_a_broken_epoch_is_given_up_by_the_look_that_made_it(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A break may come between a claim and its place among those that are watched."""
    bridge.plan(2)
    monkeypatch.setattr(Claim, "is_cancelled", property(lambda claim: claim.indices[0] < ROWS))
    assert bridge.claim().indices[0] == ROWS


def test_rows_that_fail_have_their_records(bridge: Bridge) -> None:
    """That of the first row is delivered, whatever has come first; the others are there."""
    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(claim, answer(2, failures=((1, encode(KeyError("late"))),)), [2, 3])
    assert bridge.claims.fail(claim, encode(ValueError("poison")), [1])
    assert bridge.claims.land(claim, answer(1), [0])
    assert bridge.claims.land(other, answer())
    lease = bridge.ring.take()
    assert [row for row, _, _ in lease.failed_rows(ROWS)] == [1, 3]
    assert [(row, decode(record).summary) for row, record in lease.failures()] == [
        (1, "ValueError: poison")
    ]


WRONG = {
    "another dtype": (
        with_leaf(0, np.zeros((4, 2), np.float64)),
        "dataset[0]: sample[0] has dtype float64, expected int32",
    ),
    "another shape": (
        with_leaf(0, np.zeros((4, 3), "i4")),
        "dataset[0]: sample[0] has shape (3,), expected (2,)",
    ),
    "longer samples": (
        with_leaf(2, Ragged(np.zeros((16, 2), "u1"), np.arange(0, 17, 4))),
        "dataset[0]: sample[2] has shape (4, 2), expected at most (3, 2)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_do_not_fit_fail(bridge: Bridge, name: str) -> None:
    """As rows of a worker here do; the text says which leaf, what came and what was expected."""
    filled, text = WRONG[name]
    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(other, answer())
    assert bridge.claims.land(claim, filled)
    lease = bridge.ring.take()
    assert [row for row, _, _ in lease.failed_rows(ROWS)] == [0, 1, 2, 3]
    ((_, record),) = lease.failures()
    assert text in decode(record).summary


def test_rows_that_do_not_come_fail(bridge: Bridge) -> None:
    """Where leaves are of different lengths, or one is not there, none of the rows is delivered."""
    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(claim, answer(leaves=answer().leaves[:2]))
    assert bridge.claims.land(other, with_leaf(0, np.zeros((3, 2), "i4")))
    assert [row for row, _, _ in bridge.ring.take().failed_rows(ROWS)] == [*range(8)]


def test_a_call_of_which_all_failed_has_no_arrays(bridge: Bridge) -> None:
    """All rows of its claim fail, by one record."""
    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(claim, failed(4, encode(ValueError("no"))))
    assert bridge.claims.land(other, answer())
    assert [row for row, _, _ in bridge.ring.take().failed_rows(ROWS)] == [0, 1, 2, 3]


class Midway:
    """In the place of a lander: something happens while rows are written."""

    def __init__(self, happens: Any) -> None:
        self._happens = happens

    def land(self, *_: Any) -> None:
        """Have it happen."""
        self._happens()


def test_a_slot_is_not_given_up_while_it_is_written(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A break in the middle of a landing waits for its end: the slot may be bound again at once."""
    gone: list[Claim] = []
    breaker = threading.Thread(target=lambda: gone.extend(bridge.claims.cancel()))
    seen = []

    def break_off() -> None:
        bridge.ring.cancel()
        breaker.start()
        breaker.join(0.05)
        states = Observer(bridge.ring).states()
        seen.append((breaker.is_alive(), len(bridge.claims), states.count("draining")))

    bridge.plan()
    claim = bridge.claim()
    monkeypatch.setattr(bridge.claims, "_lander", Midway(break_off))
    assert bridge.claims.land(claim, answer())
    breaker.join(PATIENCE_S)
    assert seen == [(True, 1, 1)]
    assert (gone, len(bridge.claims)) == ([], 0)
    bridge.plan()
    assert Observer(bridge.ring).states().count("draining") == 0


def test_rows_that_cannot_be_written_fail(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory: half of them may be there, and the training is told."""

    def fail() -> None:
        raise MemoryError

    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(other, answer())
    monkeypatch.setattr(bridge.claims, "_lander", Midway(fail))
    assert bridge.claims.land(claim, answer())
    lease = bridge.ring.take()
    assert [row for row, _, _ in lease.failed_rows(ROWS)] == [0, 1, 2, 3]
    assert [decode(record).summary for _, record in lease.failures()] == ["MemoryError"]


def test_the_first_row_that_fails_says_why(bridge: Bridge) -> None:
    """Where one does not fit here that comes before one that has failed elsewhere."""
    bridge.plan()
    claim, other = bridge.claim(), bridge.claim()
    assert bridge.claims.land(other, answer())
    lengths = Ragged(np.zeros((7, 2), "u1"), np.array([0, 1, 5, 6, 7]))
    filled = with_leaf(2, lengths)._replace(failures=((3, encode(KeyError("there"))),))
    assert bridge.claims.land(claim, filled)
    lease = bridge.ring.take()
    assert [row for row, _, _ in lease.failed_rows(ROWS)] == [1, 3]
    ((row, record),) = lease.failures()
    assert (row, decode(record).summary.partition(":")[0]) == (1, "SpecError")

"""`ringfeed.workers.roster`: workers that have begun, and those that take too long."""

from __future__ import annotations

import time

import pytest

from ringfeed.monitor.snapshot import Worker
from ringfeed.workers.roster import PAUSE_NS, RestartPolicy, Roster

HOUR_NS = 3600 * 10**9


class Ring:
    """What a ring would say of its workers."""

    ids = 3

    def __init__(self) -> None:
        self.head_stream = 0
        self.slots = ["filling", "free"]
        self.since_ns, self.samples, self.claims = [0] * 3, [0] * 3, [0] * 3

    def worker(self, number: int) -> Worker:
        """Return what an observer would read of a worker."""
        counts = self.since_ns[number], 0, 0, self.samples[number], self.claims[number]
        return Worker(0, None, *counts, 0, 0, 0, leave=False)

    def states(self) -> list[str]:
        """Return a word a slot."""
        return self.slots

    def workers(self) -> tuple[Worker, ...]:
        """Return the same of all."""
        return tuple(map(self.worker, range(self.ids)))


@pytest.fixture
def ring() -> Ring:
    """Return one in which nobody has done anything."""
    return Ring()


@pytest.fixture
def roster(ring: Ring) -> Roster:
    """Return what is known of workers who have all just been told."""
    roster = Roster(ring, ring, RestartPolicy(3))  # type: ignore[arg-type]
    for number in range(3):
        roster.begin(number)
    return roster


def test_from_the_start_to_the_first_sample(ring: Ring, roster: Roster) -> None:
    """A worker starts until it has claimed, and is fresh until it has filled something."""
    assert (roster.is_starting(1), roster.is_fresh(1)) == (True, True)
    ring.claims[1] = 1
    assert (roster.is_starting(1), roster.is_fresh(1)) == (False, True)
    ring.samples[1] = 4
    assert (roster.is_starting(1), roster.is_fresh(1)) == (False, False)
    roster.begin(1)
    assert (roster.is_starting(1), roster.is_fresh(1)) == (True, True)


def test_progress_is_a_sample_more_or_one_in_the_making(ring: Ring, roster: Roster) -> None:
    """Of any worker since the last call; or of one of those that are named, at this moment."""
    assert not roster.progress([0, 1])
    ring.samples[2] += 1
    assert (roster.progress([0, 1]), roster.progress([0, 1])) == (True, False)
    ring.since_ns[1] = 5000
    assert (roster.progress([0, 1]), roster.progress([0])) == (True, False)


def test_a_worker_that_pauses_is_at_work(ring: Ring, roster: Roster) -> None:
    """One that has filled samples, for a second.

    One that has filled nothing is no sign of progress.
    """
    ring.samples[0] = 1
    assert (roster.progress([0, 1]), roster.progress([0, 1]), roster.progress([1])) == (
        True,
        True,
        False,
    )
    roster._progress_ns -= PAUSE_NS
    assert not roster.progress([0, 1])


def test_those_inside_a_sample_are_due(ring: Ring, roster: Roster) -> None:
    """From their claim on, and nobody else as long as there are any."""
    ring.since_ns[1] = 5000
    assert roster.due_ns({0: 1, 1: 2}, 100) == {1: 5100}


def test_where_nobody_comes_all_are_due(ring: Ring, roster: Roster) -> None:
    """Those that have worked at once, one that starts after its time.

    None where there is nothing to fill.
    """
    ring.claims[0] = 1
    due_ns = roster.due_ns({0: 1, 1: 2}, HOUR_NS)
    assert due_ns[0] == 0
    assert 0 < due_ns[1] - time.monotonic_ns() <= HOUR_NS
    ring.slots = ["ready", "free"]
    assert roster.due_ns({0: 1, 1: 2}, HOUR_NS) == {}


def test_only_the_stream_of_the_head_is_due(ring: Ring, roster: Roster) -> None:
    """The others have nothing to do."""
    ring.head_stream = 2
    assert set(roster.due_ns({0: 1, 1: 2, 2: 3}, 1)) == {1}


def test_the_next_to_start_has_twice_as_long(ring: Ring, roster: Roster) -> None:
    """Each that was ended at its start doubles it, until one has claimed something."""
    before = roster.due_ns({1: 1}, 100)[1]
    roster.mark_timed_out([1])
    roster.mark_timed_out([1])
    assert roster.timed_out == {1}
    assert roster.due_ns({1: 1}, 100)[1] == before + 300
    roster.forget(1)
    assert roster.timed_out == set()
    assert roster.due_ns({1: 1}, 100)[1] == before
    roster.mark_timed_out([1])
    ring.claims[1] = 1
    roster.mark_timed_out([1])
    roster.begin(1)
    assert 0 < roster.due_ns({1: 1}, HOUR_NS)[1] - time.monotonic_ns() <= HOUR_NS

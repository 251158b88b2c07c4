"""`ringfeed.workers.roster`: workers that have begun, and those that take too long."""

from __future__ import annotations

import time

import pytest

from ringfeed.monitor.snapshot import Worker
from ringfeed.system import channel as channels
from ringfeed.system._system import Descriptor
from ringfeed.workers.process import WorkerProcess
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
    """Return one in which no worker has done anything."""
    return Ring()


@pytest.fixture
def roster(ring: Ring) -> Roster:
    """Return what is known of workers that have all just been told."""
    roster = Roster(ring, ring, RestartPolicy(3), 3)  # type: ignore[arg-type]
    for number in range(3):
        begin(roster, number, stream=number + 1)
    return roster


def begin(roster: Roster, number: int, *, stream: int = 1) -> None:
    """Have a worker begin, in the place of the one before it."""
    worker = roster.all[number] = WorkerProcess(0, Descriptor(), channels.pair()[0])
    worker.stream = stream
    roster.begin(number, worker)


def test_from_the_start_to_the_first_sample(ring: Ring, roster: Roster) -> None:
    """A worker starts until it has claimed, and is fresh until it has filled something."""

    def found() -> tuple[bool, bool]:
        return roster.is_starting(roster.all[1]), roster.is_fresh(roster.all[1])

    assert found() == (True, True)
    ring.claims[1] = 1
    assert found() == (False, True)
    ring.samples[1] = 4
    assert found() == (False, False)
    begin(roster, 1)
    assert found() == (True, True)


def test_progress_is_a_sample_more_or_one_in_the_making(ring: Ring, roster: Roster) -> None:
    """Of any id since the last call; or of a worker that there is, at this moment."""
    del roster.all[2]
    assert not roster.progress()
    ring.samples[2] += 1
    assert (roster.progress(), roster.progress()) == (True, False)
    ring.since_ns[1] = 5000
    assert roster.progress()
    del roster.all[1]
    assert not roster.progress()


def test_a_worker_that_pauses_is_at_work(ring: Ring, roster: Roster) -> None:
    """One that has filled samples, for a second.

    One that has filled nothing is no sign of progress.
    """
    ring.samples[0] = 1
    assert (roster.progress(), roster.progress()) == (True, True)
    paused = roster.all.pop(0)
    assert not roster.progress()
    roster.all[0] = paused
    roster._progress_ns -= PAUSE_NS
    assert not roster.progress()


def test_those_inside_a_sample_are_due(ring: Ring, roster: Roster) -> None:
    """From their claim on, and no other as long as there are any."""
    ring.since_ns[1] = 5000
    assert roster.due_ns(100) == {1: 5100}


def test_where_no_worker_comes_all_are_due(ring: Ring, roster: Roster) -> None:
    """Those that have worked at once, one that starts after its time.

    None where there is nothing to fill.
    """
    ring.claims[0] = 1
    due_ns = roster.due_ns(HOUR_NS)
    assert due_ns[0] == 0
    assert 0 < due_ns[1] - time.monotonic_ns() <= HOUR_NS
    ring.slots = ["ready", "free"]
    assert roster.due_ns(HOUR_NS) == {}


def test_only_the_stream_of_the_head_is_due(ring: Ring, roster: Roster) -> None:
    """The others have nothing to do."""
    ring.head_stream = 2
    assert set(roster.due_ns(1)) == {1}


def test_the_next_to_start_has_twice_as_long(ring: Ring, roster: Roster) -> None:
    """Each that was ended at its start doubles it, until one has claimed something, or left."""

    def patience_ns() -> int:
        return roster.due_ns(100)[1] - roster.all[1].started_ns

    assert patience_ns() == 100
    for _ in range(2):
        roster.kill([roster.all[1]], 0)
        assert roster.all[1].is_killed
        begin(roster, 1)
    assert not roster.all[1].is_killed
    assert patience_ns() == 400
    roster.all[1].is_leaving = True
    roster.remove(1)
    begin(roster, 1)
    assert patience_ns() == 100
    roster.kill([roster.all[1]], 0)
    begin(roster, 1)
    ring.claims[1] = 1
    roster.kill([roster.all[1]], 0)
    begin(roster, 1)
    assert patience_ns() == 100

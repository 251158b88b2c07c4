"""Which actor makes which rows: every row once, whatever dies, is late or answers twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ringfeed.ray.dispatch import FIRST_S, FLIGHTS, HEDGE_S, TRY_S, Dispatch, Job

ATTEMPTS = 2


def three(rows: int = 4, window: int = 2) -> tuple[Dispatch, Job]:
    """Return three actors on two nodes, with one job."""
    dispatch = Dispatch(ATTEMPTS)
    dispatch.window = window
    for actor, node in enumerate(["a", "a", "b"]):
        dispatch.join(actor, node)
    job = Job("ticket", 1, tuple(range(rows)))
    dispatch.add(job)
    return dispatch, job


def send(dispatch: Dispatch, now_s: float = 0.0) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the calls that are made: actor, flight and rows."""
    return [(actor, flight, job.rows) for actor, flight, job in dispatch.sends(now_s)]


def test_a_job_goes_to_one_actor_and_is_over_with_its_answer() -> None:
    """Nothing is sent twice without a reason."""
    dispatch, job = three()
    ((actor, flight, rows),) = send(dispatch)
    assert (rows, send(dispatch)) == ((0, 1, 2, 3), [])
    assert dispatch.actor_of(flight) == actor
    assert dispatch.answered(flight, 0.1) is job
    assert (dispatch.jobs, dispatch.room) == (0, 6)


def test_there_is_room_for_a_window_of_jobs_an_actor() -> None:
    """What no actor may take waits; what waits counts against the room."""
    dispatch, _ = three()
    for number in range(2, 8):
        dispatch.add(Job(f"ticket {number}", number, (0,)))
    made = send(dispatch)
    assert Counter(actor for actor, _, _ in made) == {0: 2, 1: 2, 2: 2}
    assert dispatch.room == -1
    dispatch.answered(made[0][1], 0.1)
    assert [rows for _, _, rows in send(dispatch)] == [(0,)]


def test_calls_are_bounded_beyond_one_an_actor() -> None:
    """Their answers have bytes, which come here all at once if they like."""
    dispatch = Dispatch(ATTEMPTS, most_calls=4)
    dispatch.window = 2
    rooms = []
    for actor in range(5):
        dispatch.join(actor, "a")
        rooms.append(dispatch.room)
    assert rooms == [2, 4, 4, 4, 5]


def test_a_second_answer_is_dropped() -> None:
    """The first answer of a job that was made twice counts."""
    dispatch, job = three()
    ((first, flight, _),) = send(dispatch)
    dispatch.tick(FIRST_S + 1)
    ((second, hedge, _),) = send(dispatch, FIRST_S + 1)
    assert {first, second} == {0, 2}, "the hedge goes to another node"
    assert dispatch.suspects == {first}
    assert dispatch.answered(hedge, FIRST_S + 1.1) is job
    assert dispatch.answered(flight, FIRST_S + 1.2) is None
    assert (
        dispatch.counts.dropped,
        dispatch.counts.hedged,
        dispatch.suspects,
        dispatch.suspect_nodes,
    ) == (
        1,
        1,
        set(),
        set(),
    )


def test_no_job_is_made_a_third_time_while_two_calls_may_answer() -> None:
    """However late both are."""
    dispatch, _ = three()
    send(dispatch)
    dispatch.tick(FIRST_S + 1)
    assert len(send(dispatch, FIRST_S + 1)) == 1
    dispatch.tick(3 * FIRST_S)
    dispatch.join(3, "c")
    assert send(dispatch, 3 * FIRST_S) == []


def test_a_call_is_late_after_three_medians_but_never_before_a_second() -> None:
    """What is late depends on what others took."""
    dispatch, _ = three()
    assert dispatch.patience_s == FIRST_S
    dispatch.answered(send(dispatch)[0][1], 0.02)
    assert dispatch.patience_s == HEDGE_S
    dispatch.add(Job("slow", 2, (0,)))
    dispatch.answered(send(dispatch)[0][1], 0.98)
    assert dispatch.patience_s == pytest.approx(1.5)


def test_a_suspect_is_sent_nothing_until_it_answers() -> None:
    """Nor is its node, while there are others."""
    dispatch, _ = three()
    ((_, flight, _),) = send(dispatch)
    dispatch.tick(FIRST_S + 1)
    send(dispatch, FIRST_S + 1)
    for number in range(2, 9):
        dispatch.add(Job(f"ticket {number}", number, (0,)))
    made = {actor for actor, _, _ in send(dispatch, FIRST_S + 1)}
    assert made == {2}, "actor 1 is on the suspect's node"
    dispatch.answered(flight, FIRST_S + 2)
    assert {actor for actor, _, _ in send(dispatch, FIRST_S + 2)} == {0, 1}


def test_a_first_death_blames_no_row_and_has_each_made_alone() -> None:
    """With nothing beside it on its actor."""
    dispatch, _ = three(rows=3)
    ((actor, _, _),) = send(dispatch)
    assert dispatch.lost(actor) == []
    assert [(there, rows) for there, _, rows in send(dispatch)] == [(1, (0,)), (2, (1,))]
    dispatch.add(Job("another", 2, (0, 1)))
    assert send(dispatch) == [], "the actors have a row that has nothing beside it"


def test_a_row_that_has_cost_so_many_actors_is_given_up() -> None:
    """Only the row that an actor was at is blamed."""
    dispatch, job = three(rows=1)
    given_up: list[Job] = []
    for death in range(ATTEMPTS + 1):
        assert given_up == []
        dispatch.join(10 + death, "c")
        ((actor, _, _),) = send(dispatch)
        given_up = dispatch.lost(actor)
    assert given_up == [job]
    assert (job.is_over, dispatch.jobs, send(dispatch)) == (True, 0, [])


def test_a_death_that_was_asked_for_blames_none() -> None:
    """As where an actor is sent away."""
    dispatch, job = three()
    ((actor, _, _),) = send(dispatch)
    assert dispatch.lost(actor, blame=False) == []
    assert [rows for _, _, rows in send(dispatch)] == [job.rows]


def test_what_waits_behind_the_call_that_killed_is_not_blamed() -> None:
    """An actor answers its calls in their order."""
    dispatch = Dispatch(ATTEMPTS)
    dispatch.join(0, "a")
    first, second = Job("first", 1, (0,)), Job("second", 2, (0, 1))
    dispatch.add(first)
    dispatch.add(second)
    assert len(send(dispatch)) == 2
    dispatch.lost(0)
    assert (first.alone, second.alone, second.is_over) == (True, False, False)


def test_a_call_that_did_not_come_through_is_made_elsewhere_at_once() -> None:
    """Its actor may live, and is a suspect."""
    dispatch, _ = three()
    ((actor, flight, rows),) = send(dispatch)
    dispatch.unreached(flight, 1.0)
    assert dispatch.suspects == {actor}
    assert send(dispatch, 1.0) == [(2, flight + 1, rows)]


def test_a_suspect_that_owes_no_answer_is_tried_again_with_one_job() -> None:
    """It may be back, or dead: it has its turn again when it answers."""
    dispatch, job = three()
    ((actor, flight, rows),) = send(dispatch)
    dispatch.unreached(flight, 1.0)
    ((other, second, _),) = send(dispatch, 1.0)
    assert dispatch.answered(second, 1.1) is job

    def sent(now_s: float) -> Counter[int]:
        """Return how many calls each actor is sent, of more jobs than all may take."""
        dispatch.tick(now_s)
        for number in range(9):
            dispatch.add(Job(f"at {now_s}", number, (0,)))
        found = dispatch.sends(now_s)
        for there, call, _ in found:
            if there != actor:
                dispatch.answered(call, now_s)
            else:
                calls.append(call)
        dispatch.drop(f"at {now_s}")
        return Counter(there for there, _, _ in found)

    calls: list[int] = []
    assert actor not in sent(0.9 + TRY_S)
    assert sent(1.0 + TRY_S)[actor] == 1
    assert actor not in sent(1.1 + TRY_S), "the answer is waited for"
    dispatch.unreached(calls[-1], 4.0)
    assert actor not in sent(4.0)
    assert sent(4.0 + TRY_S)[actor] == 1
    assert dispatch.suspects == {actor}
    dispatch.answered(calls[-1], 7.0)
    assert (dispatch.suspects, dispatch.suspect_nodes, rows, other) == (set(), set(), job.rows, 2)
    assert sent(7.0)[actor] == 2


def test_a_call_that_is_not_carried_out_is_made_again_so_often() -> None:
    """Then the job is given back."""
    dispatch, job = three()
    ((_, flight, _),) = send(dispatch)
    assert dispatch.broken(flight) is None
    ((_, flight, _),) = send(dispatch)
    assert dispatch.broken(flight) is job


def test_a_stream_stays_with_its_actor_and_moves_as_a_whole() -> None:
    """Its rows are made in their order."""
    dispatch = Dispatch(ATTEMPTS)
    dispatch.join(0, "a")
    dispatch.join(1, "b")
    for number in range(2):
        dispatch.add(Job(f"ticket {number}", number, (number,), stream=7))
    made = send(dispatch)
    assert [(actor, rows) for actor, _, rows in made] == [(0, (0,)), (0, (1,))]
    dispatch.tick(FIRST_S + 1)
    assert [(actor, rows) for actor, _, rows in send(dispatch, FIRST_S + 1)] == [
        (1, (0,)),
        (1, (1,)),
    ]


def test_none_is_the_idlest_where_none_is_too_many() -> None:
    """While actors start there are fewer than are wanted, and none of them is to leave."""
    dispatch, _ = three()
    ((busy, _, _),) = send(dispatch)
    assert [dispatch.idlest(count) for count in (-2, -1, 0)] == [[], [], []]
    assert busy not in dispatch.idlest(2)
    assert len(dispatch.idlest(2)) == 2


def test_what_was_broken_off_is_dropped() -> None:
    """Its answers have nowhere to go."""
    dispatch, job = three()
    ((_, flight, _),) = send(dispatch)
    dispatch.drop("ticket")
    assert job.is_over
    assert dispatch.answered(flight, 1.0) is None
    assert (dispatch.jobs, dispatch.counts.dropped, send(dispatch)) == (0, 1, [])


class Model(RuleBasedStateMachine):
    """Jobs, actors and deaths at random: a row is made or given up once, and none is forgotten."""

    @initialize(splits=st.booleans())
    def begin(self, *, splits: bool) -> None:
        """Begin with two actors."""
        self.dispatch = Dispatch(ATTEMPTS, splits=splits)
        self.now_s = 0.0
        self.actors: dict[int, str] = {}
        self.flights: dict[int, tuple[int, Job]] = {}  # all that were ever sent
        self.queues: dict[int, list[int]] = {}  # of each actor, in order
        self.rows: Counter[tuple[Any, int]] = Counter()  # made or given up
        self.dropped: set[Any] = set()
        self.deaths: Counter[tuple[Any, int]] = Counter()
        self.added: list[tuple[Any, int]] = []
        self.number = 0
        self.hire("a")
        self.hire("b")

    @rule(node=st.sampled_from("abc"))
    def hire(self, node: str) -> None:
        """Hire an actor."""
        self.number += 1
        self.actors[self.number] = node
        self.queues[self.number] = []
        self.dispatch.join(self.number, node)

    @rule(rows=st.integers(1, 3), stream=st.sampled_from([None, None, 0, 1]))
    def add(self, rows: int, stream: int | None) -> None:
        """Claim a ticket."""
        self.number += 1
        self.dispatch.add(Job(self.number, self.number, tuple(range(rows)), stream))
        self.added += [(self.number, row) for row in range(rows)]

    @rule()
    def send(self) -> None:
        """Make calls."""
        for actor, flight, job in self.dispatch.sends(self.now_s):
            assert actor in self.actors
            if actor in self.dispatch.suspects:
                assert not self.queues[actor], "it is tried only where it owes no answer"
            assert not job.is_over
            assert flight not in self.flights
            self.flights[flight] = actor, job
            self.queues[actor].append(flight)

    def finish(self, job: Job) -> None:
        """Count a job as made or given up."""
        for row in job.rows:
            self.rows[job.ticket, row] += 1

    @rule(pick=st.integers(0, 50))
    def answer(self, pick: int) -> None:
        """Have an actor answer its oldest call."""
        busy = [actor for actor in self.actors if self.queues[actor]]
        if busy:
            flight = self.queues[busy[pick % len(busy)]].pop(0)
            if (job := self.dispatch.answered(flight, self.now_s)) is not None:
                self.finish(job)

    @rule(pick=st.integers(0, 50))
    def answer_again(self, pick: int) -> None:
        """Have an old answer come again, or one of an actor that is dead."""
        live = {flight for queue in self.queues.values() for flight in queue}
        gone = [flight for flight in self.flights if flight not in live]
        if gone:
            assert self.dispatch.answered(gone[pick % len(gone)], self.now_s) is None

    @rule(pick=st.integers(0, 50), blame=st.booleans())
    def die(self, pick: int, *, blame: bool) -> None:
        """Kill an actor."""
        if self.actors:
            actor = [*self.actors][pick % len(self.actors)]
            del self.actors[actor]
            if blame and self.queues[actor]:
                job = self.flights[self.queues[actor][0]][1]
                self.deaths.update((job.ticket, row) for row in job.rows)
            self.queues[actor] = []
            for job in self.dispatch.lost(actor, blame=blame):
                assert all(self.deaths[job.ticket, row] > ATTEMPTS for row in job.rows)
                self.finish(job)

    @rule(pick=st.integers(0, 50))
    def unreached(self, pick: int) -> None:
        """Lose a call on its way."""
        busy = [actor for actor in self.actors if self.queues[actor]]
        if busy:
            flight = self.queues[busy[pick % len(busy)]].pop(0)
            self.dispatch.unreached(flight, self.now_s)

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.dispatch.tick(self.now_s)

    @rule(pick=st.integers(0, 50))
    def drop(self, pick: int) -> None:
        """Break a ticket off."""
        if self.added:
            ticket = self.added[pick % len(self.added)][0]
            self.dropped.add(ticket)
            self.dispatch.drop(ticket)

    @invariant()
    def keeps_its_rules(self) -> None:
        """No row twice, no call beyond a hedge or a window."""
        if not hasattr(self, "dispatch"):
            return
        assert all(count == 1 for count in self.rows.values())
        live: Counter[Job] = Counter()
        for actor, queue in self.queues.items():
            jobs = [self.flights[flight][1] for flight in queue]
            assert len(set(map(id, jobs))) == len(jobs), "an actor has a job once"
            assert len(jobs) <= self.dispatch.window
            assert (
                len(jobs) <= 1
                or not any(job.alone for job in jobs if not job.is_over)
                or self._had_it_before(jobs)
            )
            live.update(self.flights[flight][1] for flight in queue)
            assert actor in self.actors or not queue
        assert all(count <= FLIGHTS for job, count in live.items() if not job.is_over)

    @staticmethod
    def _had_it_before(jobs: list[Job]) -> bool:
        """Whether a death elsewhere made a job alone that this actor had beside others already."""
        return any(len(job.rows) > 1 or len(job.actors) >= 1 for job in jobs if job.alone)

    def teardown(self) -> None:
        """With actors that live, every row is made in the end."""
        if not hasattr(self, "dispatch"):
            return
        self.hire("d")
        for _ in range(200 + 20 * len(self.added)):
            self.wait(0.01)
            self.send()
            for _ in range(len(self.actors)):
                self.answer(0)
        wanted = {place for place in self.added if place[0] not in self.dropped}
        assert wanted <= self.rows.keys()
        assert self.dispatch.jobs == 0


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase

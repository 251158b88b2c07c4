"""How many actors there are: more while training waits for busy ones, fewer where it does not."""

from __future__ import annotations

import pytest

from ringfeed.errors import SpecError
from ringfeed.monitor.stats import Stats, Verdict
from ringfeed.ray.hiring import CALM, LOOK_S, STRIKES, Node, Placing, Scaling
from ringfeed.ray.stats import RemoteStats, verdict_with


class Training:
    """A training that waits for a share of its time, with actors that are partly busy."""

    def __init__(self, scaling: Scaling, actors: int) -> None:
        self.scaling, self.actors = scaling, actors
        self.now_s = self.waited_s = self.worked_s = 0.0
        self.scaling.look(0, 0, 0, actors, actors)

    def goes_on(self, waits: float, busy: float, looks: int = 1) -> int:
        """Return how many actors there are after so many looks."""
        for _ in range(looks):
            self.now_s += LOOK_S
            self.waited_s += waits * LOOK_S
            self.worked_s += busy * LOOK_S * self.actors
            self.actors = self.scaling.look(
                self.now_s, self.waited_s, self.worked_s, self.actors, self.actors
            )
        return self.actors


def test_actors_double_while_training_waits_for_busy_ones() -> None:
    """Up to the most."""
    training = Training(Scaling(1, 12, may_grow=True), 1)
    assert [training.goes_on(0.5, 0.95) for _ in range(5)] == [2, 4, 8, 12, 12]


def test_actors_that_are_not_busy_are_enough() -> None:
    """Something else is short: the way, or slots."""
    assert Training(Scaling(1, 12, may_grow=True), 4).goes_on(0.5, 0.5, looks=9) == 4


def test_none_is_hired_before_workers_here_are_as_many_as_help() -> None:
    """Then the first is."""
    training = Training(Scaling(0, 12, may_grow=False), 0)
    assert training.goes_on(0.9, 0.0, looks=3) == 0
    training.scaling.may_grow = True
    assert training.goes_on(0.9, 0.0) == 1


def test_actors_leave_when_training_has_not_waited_for_a_while() -> None:
    """As many stay as are busy, and some more."""
    training = Training(Scaling(1, 12, may_grow=True), 8)
    assert training.goes_on(0.0, 0.25, looks=CALM - 1) == 8
    assert training.goes_on(0.0, 0.25) == 3


def test_nothing_is_decided_while_actors_start() -> None:
    """Or in a time that says nothing."""
    scaling = Scaling(1, 12, may_grow=True)
    scaling.look(0, 0, 0, 4, 4)
    assert scaling.look(LOOK_S, LOOK_S, 3 * LOOK_S, 4, 3) == 4
    assert scaling.look(LOOK_S + 0.1, LOOK_S + 0.1, 4 * LOOK_S, 4, 4) == 4


# ---- nodes ----


NODES = [
    Node("a", "10.0.0.1", {"CPU": 2.0}),
    Node("b", "10.0.0.2", {"CPU": 4.0, "gpuu": 1.0}),
]


def test_actors_are_spread_evenly_and_not_beyond_what_nodes_have() -> None:
    """By the share of each node's room."""
    placing = Placing({"CPU": 1.0})
    assert placing.rooms(NODES) == {"a": 2, "b": 4}
    assert sorted(placing.place(NODES, {}, (), 9)) == ["a", "a", "b", "b", "b", "b"]
    assert placing.place(NODES, {"a": 1}, (), 2) == ["b", "b"]


def test_no_actor_goes_to_a_suspect_node_or_to_one_without_what_it_asks_for() -> None:
    """What no node has is named."""
    assert Placing({"CPU": 1.0}).place(NODES, {}, {"a"}, 1) == ["b"]
    assert Placing({"CPU": 1.0, "gpuu": 1.0}).place(NODES, {}, (), 3) == ["b"]
    assert Placing({"gpuu": 2.0}).shown(NODES) == (
        "an actor asks for gpuu=2, and of that 10.0.0.1 has gpuu=0; 10.0.0.2 has gpuu=1"
    )


def test_a_node_is_out_after_failed_starts_in_a_row() -> None:
    """A start that succeeds begins the count anew."""
    placing = Placing({"CPU": 1.0})
    for _ in range(STRIKES - 1):
        assert not placing.note_refusal("a", SpecError("torn"))
    placing.note_start("a")
    found = [placing.note_refusal("a", SpecError("torn")) for _ in range(STRIKES)]
    assert found == [False] * (STRIKES - 1) + [True]
    assert placing.place(NODES, {}, (), 9) == ["b"] * 4


def test_actors_that_ask_for_nothing_have_room_on_every_node() -> None:
    """As with num_cpus=0."""
    assert sorted(Placing({"CPU": 0}).place(NODES, {}, (), 4)) == ["a", "a", "b", "b"]


# ---- in words ----

OTHERWISE = Verdict("", ("otherwise",))


def said(waited_s: float, **given: float) -> str:
    """Return the verdict on ten seconds of training."""
    stats = Stats(batches=100, samples=1000, elapsed_s=10.0, stall_s=waited_s)
    usual = {
        "wanted": 16,
        "there": 16,
        "calls": 1000,
        "rows": 2000,
        "bytes": 2 * 10**9,
        "flight_s": 0.05,
    }
    remote = RemoteStats(**{**usual, "cpu_s": 40.0, **given})  # type: ignore[arg-type]
    return verdict_with(stats, remote, OTHERWISE)


@pytest.mark.parametrize(
    ("waited_s", "given", "text"),
    [
        (
            6.0,
            {"busy": 0.92, "work_s": 0.04},
            "input-bound: training waited 60% of the time; actors are 92% busy in dataset[i], "
            "20.0 ms a sample: add actors (now 16), or make it cheaper",
        ),
        (
            6.0,
            {"bridge_busy": 0.94, "bridge_cpu_s": 0.31},
            "input-bound: training waited 60% of the time; the bridge is 94% busy, 310.0 us a "
            "ticket of 2 rows: raise batch_size= or bridges= of ringfeed.ray.Ray",
        ),
        (
            6.0,
            {"cpu_s": 0.8, "bridge_cpu_s": 1.2, "busy": 0.9},
            "input-bound: training waited 60% of the time; a GB of rows takes 400.0 ms of CPU to "
            "make and 600.0 ms to bring here, so remote workers do not pay: use workers= alone",
        ),
        (
            6.0,
            {"busy": 0.4, "work_s": 0.01},
            "input-bound: training waited 60% of the time; actors are only 40% busy: a call of "
            "10.0 ms of work takes 50.0 ms with the way of 2.0 MB, 4 at a time: raise slots= or "
            "batch_size=, or have a quicker link",
        ),
        (
            0.1,
            {"busy": 0.3},
            (
                "compute-bound: training waited 1.0% of the time; actors are 30% busy: 6 actors "
                "would do"
            ),
        ),
        (
            0.1,
            {"busy": 0.9},
            (
                "compute-bound: training waited 1.0% of the time; actors are 90% busy: nothing to "
                "change"
            ),
        ),
        (6.0, {"calls": 0}, "otherwise"),
    ],
)
def test_the_verdict_names_what_is_short(
    waited_s: float, given: dict[str, float], text: str
) -> None:
    """Actors, the bridge or the way; and says where remote workers do not pay."""
    assert said(waited_s, **given) == text


def test_what_several_bridges_say_is_one() -> None:
    """Counts are added, and shares are of all."""
    one = {
        **dict.fromkeys(("wanted", "there", "calls", "rows", "bytes"), 2),
        **dict.fromkeys(("suspects", "tickets", "deaths", "hedged", "rerun", "dropped"), 1),
        "bridge_cpu_s": 1.0,
        "flight_s": 4.0,
        "declined": "",
        "work_s": 1.0,
        "cpu_s": 1.0,
        "nodes": {"10.0.0.1": 2},
        "there_s": 2.0,
        "busy": 0.0,
        "bridge_busy": 0.1,
    }
    found = RemoteStats.of([one, {}, {**one, "declined": "no room", "there_s": 6.0}])
    assert (found.there, found.calls, found.hedged, found.nodes) == (
        4,
        4,
        2,
        {"10.0.0.1": 4},
    )
    assert (found.flight_s, found.work_s, found.busy, found.bridge_busy, found.declined) == (
        2.0,
        0.5,
        0.25,
        0.1,
        "no room",
    )

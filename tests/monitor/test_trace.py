"""`ringfeed.monitor.trace`: a timeline of made-up looks at a ring, and of a running loader."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from ahead import loader_with
from datasets import Oracle
from looks import MS, look, slot, worker
from ringfeed.monitor.trace import Trace
from watching import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ringfeed.monitor.snapshot import Slot


def events(path: Path) -> list[dict[str, Any]]:
    """What a trace has written."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def drawn(path: Path) -> list[tuple[int, str, float, float]]:
    """The events of a trace: the line, the name, the begin and the length, in order."""
    return sorted((e["tid"], e["name"], e["ts"], e["dur"]) for e in events(path) if e["ph"] == "X")


def quiet(path: Path) -> Trace:
    """A trace that looks only where it is told to."""
    return Trace(lambda: None, path, every_s=600)


def test_workers(tmp_path: Path) -> None:
    """A ticket that was seen has its own length, others are one; an idle id has no line."""
    with quiet(tmp_path / "run.json") as trace:
        at = trace._began_ns
        states: list[tuple[int, dict[str, Any]]] = [
            (1, {}),
            (2, {"inside": 7, "since_ns": at + MS, "tickets": 1}),
            (5, {"busy_ns": 2 * MS, "tickets": 1}),
            (9, {"inside": 9, "since_ns": at + 8 * MS, "busy_ns": 4 * MS, "tickets": 4}),
            (10, {"inside": 10, "since_ns": at + 8 * MS, "busy_ns": 4 * MS, "tickets": 4}),
            (12, {"busy_ns": 7 * MS, "tickets": 4}),
        ]
        for ms, fields in states:
            trace.look(look(at + ms * MS, [], [worker(**fields), worker()]))
    assert drawn(tmp_path / "run.json") == [
        (2000, "2 tickets", 6000.0, 2000.0),
        (2000, "dataset[7]", 1000.0, 2000.0),
        (2000, "dataset[9]", 8000.0, 3000.0),
    ]


def test_slots(tmp_path: Path) -> None:
    """Each batch in each state, taken to the nanosecond, else to the look; free is nothing."""
    with quiet(tmp_path / "run.json") as trace:
        at = trace._began_ns
        states: list[tuple[int, Slot]] = [
            (1, slot()),
            (2, slot("filling", 5)),
            (4, slot("filling", 5)),
            (5, slot("ready", 5)),
            (9, slot("held", 5, held_ns=at + 7 * MS)),
            (10, slot("held", 6, held_ns=at + 9 * MS + 500_000)),
            (12, slot("parked", 6)),
            (13, slot("draining", 7)),
            (15, slot()),
        ]
        for ms, state in states:
            trace.look(look(at + ms * MS, [state], []))
    path = tmp_path / "run.json"
    assert [event for event in drawn(path) if event[0] >= 3000] == [
        (3000, "draining 7", 13000.0, 2000.0),
        (3000, "filling 5", 2000.0, 3000.0),
        (3000, "held 5", 7000.0, 2500.0),
        (3000, "held 6", 9500.0, 2500.0),
        (3000, "parked", 12000.0, 1000.0),
        (3000, "ready 5", 5000.0, 2000.0),
    ]
    details = {e["name"]: e["args"] for e in events(path) if e["ph"] == "X"}
    assert details["filling 5"] == {"batch": 5, "epoch": 2}


def test_the_consumer(tmp_path: Path) -> None:
    """A step goes from a take to the next wait; a wait ends with a take, however late the look.

    More waiting than there is time between two takes belongs to the next one.
    """
    with quiet(tmp_path / "run.json") as trace:
        at = trace._began_ns
        held = [
            slot("held", number, held_ns=at + ms * MS)
            for number, ms in ((8, 4), (9, 10), (10, 11), (11, 12))
        ]
        waits: list[tuple[int, list[Slot], int]] = [
            (3, [], 3),  # counted before the batch is taken
            (5, held[:1], 4),
            (13, [slot("free", 12, held_ns=held[1].held_ns), held[2], held[3]], 11),
        ]
        for ms, slots, stall_ms in waits:
            trace.look(look(at + ms * MS, slots, [], stall_ns=stall_ms * MS))
        trace._finish(at + 20 * MS)
    lines = [event for event in drawn(tmp_path / "run.json") if event[0] == 1000]
    assert sorted(lines, key=lambda event: event[2]) == [
        (1000, "stall", 0.0, 4000.0),
        (1000, "stall", 4000.0, 6000.0),
        (1000, "stall", 10000.0, 1000.0),
        (1000, "step 10", 11000.0, 1000.0),
        (1000, "step 11", 12000.0, 8000.0),
    ]


def test_the_names_of_the_lines(tmp_path: Path) -> None:
    """Consumer, workers and slots are groups in this order; 0 is the number of an idle CPU."""
    with quiet(tmp_path / "run.json") as trace:
        trace.look(look(trace._began_ns + MS, [slot(), slot()], [worker(tickets=1), worker()]))
    titles = [e for e in events(tmp_path / "run.json") if e["ph"] == "M"]
    groups = {e["pid"]: e["args"]["name"] for e in titles if e["name"] == "process_name"}
    assert groups == {1: "ringfeed consumer", 2: "ringfeed workers", 3: "ringfeed slots"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in titles if e["name"] == "thread_name"}
    assert names == {
        (1, 1000): "consumer",
        (2, 2000): "worker 0",
        (3, 3000): "slot 0",
        (3, 3001): "slot 1",
    }
    order = [e["args"]["sort_index"] for e in titles if e["name"] == "process_sort_index"]
    assert order == [1, 2, 3]


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_that_runs(tmp_path: Path) -> None:
    """The lines add up to the statistics, nothing overlaps on a line, and each batch is a step."""
    path = tmp_path / "run.json"
    settings: Any = {
        "workers": 2,
        "slots": 2,
        "ahead": False,
    }  # so that the workers rest at the end
    with loader_with(Oracle(200, sleep_s=0.002), batch_size=8, **settings) as loader:
        with loader.trace(path) as trace:
            for _ in loader:
                for _turn in range(2):  # the first look may have begun before this batch was held
                    looked_ns = trace._looked_ns
                    wait_until(lambda before_ns=looked_ns: trace._looked_ns > before_ns)
            stats = loader.stats()
            busy_s, stall_s = stats.busy_s, stats.stall_s
            wait_until(
                lambda: sum(busy_ns for _, busy_ns in trace._counts.values()) >= busy_s * 0.999e9
            )
            wait_until(lambda: trace._stall_ns >= stall_s * 0.999e9)
        lines = [event for event in events(path) if event["ph"] == "X"]
    at_work = [event for event in lines if event["pid"] == 2]
    assert sum(event["args"].get("busy_us", event["dur"]) for event in at_work) == pytest.approx(
        busy_s * 1e6, 1e-3
    )
    waited = sum(event["dur"] for event in lines if event["name"] == "stall")
    assert waited == pytest.approx(stall_s * 1e6, 1e-3, abs=1000)
    assert {event["name"] for event in lines if event["name"].startswith("step")} >= {
        "step 0",
        "step 24",
    }
    assert {event["name"].split()[0] for event in lines if event["pid"] == 3} <= {
        "filling",
        "ready",
        "held",
    }
    for number in {event["tid"] for event in lines}:
        line = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in lines if event["tid"] == number
        )
        assert line[0][0] >= 0
        assert all(ended <= began + 0.001 for (_, ended), (began, _) in pairwise(line)), number


def test_a_step_and_a_wait(tmp_path: Path) -> None:
    """What the consumer does with a batch ends where it begins to wait for the next."""
    with quiet(tmp_path / "run.json") as trace:
        at = trace._began_ns
        trace.look(look(at + 2 * MS, [slot("held", 8, held_ns=at + MS)], []))
        trace.look(look(at + 9 * MS, [slot("held", 9, held_ns=at + 8 * MS)], [], stall_ns=3 * MS))
        trace._finish(at + 9 * MS)
    lines = [event for event in drawn(tmp_path / "run.json") if event[0] == 1000]
    assert lines == [
        (1000, "stall", 5000.0, 3000.0),
        (1000, "step 8", 1000.0, 4000.0),
        (1000, "step 9", 8000.0, 1000.0),
    ]


def test_a_ticket_under_way(tmp_path: Path) -> None:
    """Of a worker that is at work at the beginning, that ticket is drawn, and no other."""
    with quiet(tmp_path / "run.json") as trace:
        at = trace._began_ns
        trace._skip(look(at + MS, [], [worker(since_ns=at + MS, busy_ns=90 * MS, tickets=5)]))
        trace.look(look(at + 3 * MS, [], [worker(busy_ns=91 * MS, tickets=5)]))
    assert drawn(tmp_path / "run.json") == [(2000, "ticket", 2000.0, 1000.0)]


@pytest.mark.usefixtures("nothing_left")
def test_what_was_before_is_not_drawn(tmp_path: Path) -> None:
    """A trace of a running loader begins with now: its work and waits before are left out."""
    path = tmp_path / "run.json"
    with ringfeed.Loader(Oracle(64), batch_size=8, workers=1, backend="thread", slots=2) as loader:
        batches = iter(loader)
        held = next(batches)
        wait_until(lambda: "ready" in loader.slot_states())
        with loader.trace(path) as trace:
            wait_until(lambda: trace._states.get((3, 1)) is not None)
        del held
    names = [
        event["name"].split()[0]
        for event in events(path)
        if event["ph"] == "X" and event["pid"] != 3
    ]
    assert names == []


@pytest.mark.usefixtures("nothing_left")
def test_what_the_loader_says(tmp_path: Path) -> None:
    """Beside the events stand the loader's words on the trace; memory is a counter."""
    path = tmp_path / "run.json"
    with ringfeed.Loader(Oracle(64), batch_size=8, workers=1, slots=2) as loader:
        list(map(len, loader))
        with loader.trace(path) as trace:
            list(map(len, loader))
            wait_until(lambda: any(event["ph"] == "C" for event in trace._events))
        shown = repr(loader)
    document = json.loads(path.read_text())
    facts = document["otherData"]
    assert facts["program"] == "ringfeed"
    assert (facts["batches"], facts["samples"], facts["restarts"]) == (8, 64, 0)
    assert facts["loader"] == shown
    assert facts["slot_size"] == loader.plan.slot_size
    assert facts["memory"].startswith(f"planned    {loader.plan}\n")
    weighed = next(event for event in document["traceEvents"] if event["ph"] == "C")
    assert weighed["name"] == "memory"
    assert all(size > 2**20 for size in weighed["args"].values())


@pytest.mark.usefixtures("nothing_left")
def test_a_trace_does_not_keep_its_loader(tmp_path: Path) -> None:
    """A loader that nothing else refers to is closed; its trace then says only when it began."""
    loader = ringfeed.Loader(Oracle(64), batch_size=8, workers=1, slots=2)
    list(map(len, loader))
    trace = loader.trace(tmp_path / "run.json")
    seen = weakref.ref(loader)
    del loader
    gc.collect()
    assert seen() is None
    trace.stop()
    facts = json.loads((tmp_path / "run.json").read_text())["otherData"]
    assert facts.keys() == {"program", "version", "began"}


@pytest.mark.usefixtures("nothing_left")
def test_it_is_written_once(tmp_path: Path) -> None:
    """Stopping again changes nothing."""
    trace = quiet(tmp_path / "run.json")
    trace.stop()
    tmp_path.joinpath("run.json").write_text("mine")
    trace.stop()
    assert tmp_path.joinpath("run.json").read_text() == "mine"


def test_no_such_place(tmp_path: Path) -> None:
    """A file that cannot be written is refused before anything is traced."""
    with pytest.raises(FileNotFoundError):
        Trace(lambda: None, tmp_path / "nowhere" / "run.json")

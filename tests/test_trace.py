"""`ringfeed.trace`: a timeline, from looks at a ring that are made up, and of a loader that runs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import Oracle
from ringfeed.trace import Trace
from watching import wait_until

if TYPE_CHECKING:
    from pathlib import Path

MS = 10**6


def look(trace: Trace, at_ns: int, report: tuple[Any, ...], states: list[str], stall_s: float = 0.0) -> None:
    """One look at a ring of one worker."""
    ring = SimpleNamespace(ids=1, report=lambda _: report, slot_states=lambda: states)
    engine: Any = SimpleNamespace(stats=SimpleNamespace(stall_s=stall_s), ring=ring)
    trace.look(engine, at_ns)


def events(path: Path) -> list[dict[str, Any]]:
    """What a trace has written."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def test_what_is_drawn(tmp_path: Path) -> None:
    """A ticket that was seen has its own length; others are drawn as one; slots and the consumer have their states."""
    with Trace(lambda: None, tmp_path / "run.json", every_s=60) as trace:
        at = trace._began_ns
        look(trace, at + 1 * MS, (None, 0, 0, 0, 0, 0), ["free", "filling"])
        look(trace, at + 2 * MS, (7, at + 1 * MS, 0, 0, 0, 1), ["filling", "filling"])
        look(trace, at + 5 * MS, (None, 0, 2 * MS, 0, 4, 1), ["filling", "ready"], 0.004)
        look(trace, at + 9 * MS, (9, at + 8 * MS, 4 * MS, 0, 12, 4), ["filling", "held"], 0.004)
        look(trace, at + 10 * MS, (10, at + 8 * MS, 4 * MS, 0, 12, 4), ["filling", "free"], 0.004)
        look(trace, at + 12 * MS, (None, 0, 7 * MS, 0, 12, 4), ["free", "free"], 0.004)
    drawn = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events(tmp_path / "run.json") if e["ph"] == "X"]
    assert sorted(drawn) == [
        (0, "stall", 1000.0, 4000.0),
        (1, "2 tickets", 6000.0, 2000.0),
        (1, "dataset[7]", 1000.0, 2000.0),
        (1, "dataset[9]", 8000.0, 3000.0),
        (1000, "filling", 2000.0, 10000.0),
        (1001, "filling", 1000.0, 4000.0),
        (1001, "held", 9000.0, 1000.0),
        (1001, "ready", 5000.0, 4000.0),
    ]
    names = {e["tid"]: e["args"]["name"] for e in events(tmp_path / "run.json") if e["name"] == "thread_name"}
    assert names == {0: "consumer", 1: "worker 0", 1000: "slot 0", 1001: "slot 1"}


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_that_runs(tmp_path: Path) -> None:
    """The workers' events last as long, all together, as the statistics say; nothing is before the beginning."""
    path = tmp_path / "run.json"
    with ringfeed.Loader(Oracle(200, sleep_s=0.002), batch_size=8, workers=2, slots=2) as loader:
        with loader.trace(path) as trace:
            for _ in loader:
                pass
            busy_s = loader.stats().busy_s
            wait_until(lambda: sum(seen.busy_ns for seen in trace._seen.values()) >= busy_s * 0.999e9)
        drawn = [event for event in events(path) if event["ph"] == "X"]
        at_work = [event for event in drawn if 1 <= event["tid"] < 1000]
        assert sum(event["args"].get("busy_us", event["dur"]) for event in at_work) == pytest.approx(busy_s * 1e6, 1e-3)
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in drawn)
        assert {event["name"] for event in drawn if event["tid"] >= 1000} <= {"filling", "ready", "held", "draining"}


def test_it_is_written_once(tmp_path: Path) -> None:
    """Stopping again changes nothing."""
    trace = Trace(lambda: None, tmp_path / "run.json", every_s=60)
    trace.stop()
    tmp_path.joinpath("run.json").write_text("mine")
    trace.stop()
    assert tmp_path.joinpath("run.json").read_text() == "mine"


def test_no_such_place(tmp_path: Path) -> None:
    """A file that cannot be written is refused before anything is traced."""
    with pytest.raises(FileNotFoundError):
        Trace(lambda: None, tmp_path / "nowhere" / "run.json")

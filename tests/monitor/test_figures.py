"""What a timeline comes to, in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ringfeed.monitor.timeline import (
    AT_WORK,
    STALL,
    STATES,
    Timeline,
    in_intervals,
    longest,
    thinned,
    timeline_of,
)

GROUPS = [
    {"ph": "M", "pid": kind, "name": "process_name", "args": {"name": f"ringfeed {name}"}}
    for kind, name in enumerate(("consumer", "workers", "slots"), 1)
]


def timeline(*events: tuple[int, str, float, float], **details: float) -> Timeline:
    """Return a timeline of events: line, name, begin and length in microseconds."""
    tids = sorted({tid for tid, *_ in events})
    names = {1: "consumer", 2: "worker", 3: "slot"}
    lines = [
        {
            "ph": "M",
            "pid": tid // 1000,
            "tid": tid,
            "name": "thread_name",
            "args": {"name": f"{names[tid // 1000]} {tid % 1000}"},
        }
        for tid in tids
    ]
    drawn = [
        {
            "ph": "X",
            "pid": tid // 1000,
            "tid": tid,
            "name": name,
            "ts": ts,
            "dur": dur,
            "args": details if "tickets" in name else {},
        }
        for tid, name, ts, dur in events
    ]
    return timeline_of({"traceEvents": [*GROUPS, *lines, *drawn]})


def test_figures() -> None:
    """Shares are of the whole trace; tickets drawn as one count their time, and are no longest."""
    found = timeline(
        (1000, "stall", 0, 3e6),
        (1000, "step 0", 3e6, 5e6),
        (1000, "stall", 8e6, 2e6),
        (2000, "dataset[4]", 1e6, 2e6),
        (2001, "9 tickets", 0, 8e6),
        (3000, "filling 0", 0, 3e6),
        busy_us=4e6,
    )
    assert (found.span_s, found.batches, found.waited_s, found.waited) == (10.0, 1, 5.0, 0.5)
    assert found.busy == pytest.approx(0.3)
    assert longest(found, STALL, 8).began_s.tolist() == [0.0, 8.0]
    assert longest(found, AT_WORK, 8).what.tolist() == ["dataset[4]"]


def test_time_by_intervals() -> None:
    """Each interval has the mean of how many spans cover it, as a count of its instants has."""
    random = np.random.default_rng(0)
    began_s = random.uniform(0, 10, 200)
    ended_s = began_s + random.exponential(0.5, 200)
    edges_s = np.linspace(0, 10, 21)
    instants = np.linspace(0, 10, 200_000, endpoint=False) + 2.5e-5
    covered = sum(
        (begin <= instants) & (instants < end) for begin, end in zip(began_s, ended_s, strict=True)
    )
    expected = np.asarray(covered).reshape(20, -1).mean(1)
    assert in_intervals(began_s, ended_s, edges_s) == pytest.approx(expected, abs=0.02)


def test_what_is_drawn_together() -> None:
    """Many short events become few; a line keeps its time in each state; long ones stay."""
    random = np.random.default_rng(0)
    events: list[tuple[int, str, float, float]] = []
    for tid, state in ((1000, "stall"), (2000, "dataset[1]"), (3000, "ready 3")):
        at = 0.0
        for length in random.exponential(100.0, 4000):
            events.append((tid, state, at, length))
            at += 1.1 * length
    events.append((2000, "dataset[7]", 1e6, 5e6))
    found = timeline(*events)
    thin, least_s = thinned(found, 1000)
    drawn = thin.events
    assert 3 < len(drawn) <= 1000
    assert least_s > 0
    for line in range(3):
        for state in range(len(STATES)):
            own, kept = ((one.line == line) & (one.state == state) for one in (found.events, drawn))
            assert drawn.lasted_s[kept].sum() == pytest.approx(found.events.lasted_s[own].sum())
    assert drawn.lasted_s[drawn.what == "dataset[7]"].tolist() == [5.0]
    assert (np.diff(drawn.began_s) >= 0).all()
    assert any(" x at work" in name for name in drawn.what)
    assert thinned(found, len(found.events)) == (found, 0.0)

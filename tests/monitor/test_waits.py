"""Waits for batches: percentiles against a trace, in numbers, in words and for other programs."""

from __future__ import annotations

import json
import pickle
import re
import time
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ahead import loader_with
from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import WAIT_BUCKETS, Observer
from ringfeed.monitor.bottleneck import verdict
from ringfeed.monitor.stats import Stats
from ringfeed.monitor.waits import Waits
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Array, Spec
from watching import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHARES = (0.5, 0.95, 0.99, 1.0)
PLAN = make_plan(Spec(Array((8,), "int32")), 1, 1, workers=1, slots=2)


def exact(waits_s: NDArray[np.float64]) -> list[float]:
    """The percentiles of a trace of waits, each of them one of the waits."""
    return np.quantile(waits_s, SHARES, method="inverted_cdf").tolist()


def counted(waits_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Have a ring give batches after such waits, and return what an observer reads of it."""
    segment = Segment(PLAN.sizes)
    ring = segment.open()
    ring.become_consumer(8, 3)
    end = _ring.WorkerEnd(ring, 0)
    for wait_ns in [10**9, *waits_ns.tolist()]:  # the first is the start's
        ring.plan(np.zeros(1, np.int64), 1, 0, 0)
        assert end.claim(0) == _ring.TAKEABLE
        end.publish()
        ring.note_stall(wait_ns)
        assert ring.take() is not None
    own, outside = Observer(ring).waits(), Observer(segment.control_fd).waits()
    assert own.tolist() == outside.tolist()
    segment.close()
    return own


def spread(kind: str) -> NDArray[np.int64]:
    """Waits in nanoseconds, from a generator of one seed."""
    draw = np.random.default_rng(7)
    if kind == "lognormal":
        return draw.lognormal(np.log(2e6), 2.5, 3000).astype(np.int64)
    if kind == "mostly ready":
        waits = np.where(draw.random(3000) < 0.07, draw.uniform(1e7, 9e8, 3000), 0)
        return waits.astype(np.int64)
    if kind == "two":
        return np.array([3 * 10**6, 10**9])
    return np.geomspace(1024, 2**40 - 1, 3000).astype(np.int64)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", ["lognormal", "mostly ready", "two", "all lengths"])
def test_a_recorded_trace(kind: str) -> None:
    """Each figure is within 5 % of that of the waits themselves, and each batch is counted."""
    waits_ns = spread(kind)
    counts = counted(waits_ns)
    found = Waits.of(counts)
    assert counts.sum() == found.batches == len(waits_ns)
    seen_s = np.where(waits_ns < 2 ** WAIT_BUCKETS[0], 0, waits_ns / 1e9)
    assert list(found[1:]) == pytest.approx(exact(seen_s), rel=0.05, abs=0)


class Bursts:
    """Samples of which each seventh takes long, and each third a little."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> np.int64:
        time.sleep(0.03 * (index % 7 == 6) + 0.006 * (index % 3 == 2))
        return np.int64(index)


@pytest.mark.usefixtures("nothing_left")
def test_a_traced_run(tmp_path: Path) -> None:
    """The percentiles in `stats()` are those of the waits that a trace of the run has drawn."""
    path = tmp_path / "run.json"
    with loader_with(Bursts(), batch_size=1, workers=1, slots=2, ahead=False) as loader:
        with loader.trace(path) as trace:
            for _ in loader:
                for _turn in range(2):  # a look that has seen this batch
                    looked_ns = trace._looked_ns
                    wait_until(lambda before_ns=looked_ns: trace._looked_ns > before_ns)
        waits = loader.stats().waits
    lines = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("tid") == 1000]
    ends_us = {e["ts"] + e["dur"]: e["dur"] for e in lines if e["name"] == "stall"}
    steps = sorted(e["ts"] for e in lines if str(e["name"]).startswith("step"))
    drawn = [next((ends_us[end] for end in ends_us if abs(end - at) < 1), 0.0) for at in steps]
    assert waits.batches == 59
    assert len(drawn) == 60
    assert list(waits[1:]) == pytest.approx(exact(np.array(drawn[1:]) / 1e6), rel=0.05, abs=2e-5)
    assert waits.max_s > 0


@pytest.mark.usefixtures("nothing_left")
def test_without_workers_each_batch_is_waited_for() -> None:
    """With ``workers=0`` the time that a batch takes to fill is its wait: its sleeps, 0.13 s, are.

    A busy machine may make any of them longer. A figure is within 5 % of its wait.
    """
    with loader_with(Bursts(), batch_size=20, workers=0) as loader:
        list(map(len, loader))
        waits = loader.stats().waits
    assert waits.batches == 2
    assert 0.12 < waits.p50_s <= waits.max_s < loader.stats().stall_s * 1.05


@pytest.mark.usefixtures("nothing_left")
def test_a_part_of_the_run() -> None:
    """What `since` returns has the waits of its part alone; a pickle keeps them."""
    with loader_with(Bursts(), batch_size=10, workers=0) as loader:
        list(map(len, loader))
        before = copy(loader.stats())
        list(map(len, loader))
        after = loader.stats()
        part = after.since(before)
    assert (before.waits.batches, part.waits.batches, after.waits.batches) == (5, 6, 11)
    assert pickle.loads(pickle.dumps(part)).waits == part.waits


# ---- words ----


def stats_with(waits_s: dict[float, int], **fields: Any) -> Stats:
    """Statistics of so many batches for each wait."""
    stats = Stats(**{"batches": 101, "samples": 3232, "elapsed_s": 10.0, **fields})
    waits = np.repeat([*waits_s], [*waits_s.values()])
    parts = np.floor(np.log2(np.maximum(waits * 1e9, 1)))
    buckets = np.where(waits, (parts - WAIT_BUCKETS[0]) * WAIT_BUCKETS[1] + 1, 0)
    rest = np.where(waits, np.floor((waits * 1e9 / 2**parts - 1) * WAIT_BUCKETS[1]), 0)
    stats.wait_counts = np.bincount((buckets + rest).astype(int), minlength=1 + WAIT_BUCKETS[2])
    return stats


def test_words() -> None:
    """Percentiles, the longest, and none where a batch was ready; no line without a batch."""
    stats = stats_with({0.0: 90, 0.0012: 6, 0.041: 3, 1.2: 1})
    assert str(stats.waits) == "p50 none, p95 1.2 ms, p99 40.9 ms, longest 1.2 s"
    assert ("a batch", f"waits: {stats.waits}") in stats.lines()
    assert "a batch" not in dict(Stats().lines())
    assert Stats().waits == (0, 0.0, 0.0, 0.0, 0.0)


def test_the_verdict_says_how_long() -> None:
    """Where training waits, the percentiles tell bursts from a steady lack."""
    stats = stats_with({0.0: 60, 0.1: 40}, stall_s=4.0, busy_s=39.0)
    text = verdict(stats, workers=4, slots=4, slot_size=1000, cpus=8)
    assert text.startswith(
        "input-bound: training waited 40% of the time (p50 none, p95 98.6 ms, p99 98.6 ms, longest "
        "98.6 ms a batch); workers are 98% busy in dataset[i]"
    )
    stats.stall_s = 0.1
    text = verdict(stats, workers=4, slots=4, slot_size=1000, cpus=8)
    assert text.startswith("compute-bound: training waited 1.0% of the time; workers are 98% busy")


# ---- for other programs ----


def test_figures() -> None:
    """All counts and times are plain numbers, so that JSON and any logger take them."""
    stats = stats_with({0.0: 90, 1.2: 10}, stall_s=12.0, skipped=[4, 5], read_s=0.002)
    found = stats.figures()
    assert found == {
        "batches": 101,
        "samples": 3232,
        "stall_s": 12.0,
        "startup_s": 0.0,
        "busy_s": 0.0,
        "back_pressure_s": 0.0,
        "elapsed_s": 10.0,
        "restarts": 0,
        "skipped": 2,
        "none_batches": 0,
        "read_s": 0.002,
        "write_s": 0.0,
        "wait_p50_s": 0.0,
        "wait_p95_s": pytest.approx(1.2, rel=1 / 32),
        "wait_p99_s": pytest.approx(1.2, rel=1 / 32),
        "wait_max_s": pytest.approx(1.2, rel=1 / 32),
    }
    assert json.loads(json.dumps(found)) == found


LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def read(text: str) -> dict[tuple[str, str], float]:
    """The samples of a text of Prometheus by name and labels; each is below its HELP and TYPE."""
    found: dict[tuple[str, str], float] = {}
    known = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP"):
            known = line.split()[2]
        elif line.startswith("# TYPE"):
            assert line.split()[2] == known
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1].startswith(known)
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    return found


def test_prometheus() -> None:
    """Counters end in _total, units are seconds, and the histogram's buckets add up to all."""
    stats = stats_with({0.0: 90, 1.2: 10}, stall_s=12.0, skipped=[4])
    found = read(stats.prometheus())
    assert found["ringfeed_batches_total", ""] == 101
    assert found["ringfeed_stall_seconds_total", ""] == 12.0
    assert found["ringfeed_skipped_total", ""] == 1
    assert found["ringfeed_read_seconds", ""] == 0
    buckets = [(key[1], n) for key, n in found.items() if key[0] == "ringfeed_wait_seconds_bucket"]
    edges = [float(labels.removeprefix('le="').removesuffix('"')) for labels, _ in buckets]
    assert edges == [*(2.0**power / 1e9 for power in range(10, 40)), float("inf")]
    assert [n for _, n in buckets] == [90 + 10 * (edge > 1.2) for edge in edges]
    assert found["ringfeed_wait_seconds_count", ""] == 100
    assert found["ringfeed_wait_seconds_sum", ""] == pytest.approx(12.0, rel=1 / 32)


def test_prometheus_with_labels() -> None:
    """Labels stand at each sample, and their values are escaped."""
    found = read(Stats().prometheus(rank=3, job='a "b"\\\n'))
    labels = 'rank="3",job="a \\"b\\"\\\\\\n"'
    assert {key[1].partition(",le=")[0] for key in found} == {labels}
    assert found["ringfeed_wait_seconds_bucket", labels + ',le="+Inf"'] == 0


@pytest.mark.parametrize("name", ["le", "__own", "größe", "a-b"])
def test_what_is_no_label(name: str) -> None:
    """A name that Prometheus refuses, or that the histogram needs itself, is refused here."""
    with pytest.raises(ValueError, match="Prometheus") as caught:
        Stats().prometheus(**{name: 1})
    assert str(caught.value) == (
        f"Prometheus has no label {name!r}: give letters, digits and _, and neither 'le' nor two _ "
        "at the beginning"
    )


@pytest.mark.usefixtures("nothing_left")
def test_the_text_of_a_loader_that_runs() -> None:
    """Counters grow from look to look, and no module is needed for it."""
    with ringfeed.Loader(Bursts(), batch_size=20, workers=0) as loader:
        batches = iter(loader)
        next(batches)
        before = read(loader.stats().prometheus())
        next(batches)
        after = read(loader.stats().prometheus())
    assert (before["ringfeed_batches_total", ""], after["ringfeed_batches_total", ""]) == (1, 2)
    assert all(after[key] >= value for key, value in before.items() if "_seconds" not in key[0])

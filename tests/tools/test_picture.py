"""`ringfeed.tools.render`: two looks at a loader as lines of text, whole."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from looks import MS, S, look, slot, worker
from ringfeed.monitor._snapshot import WAIT_BUCKETS
from ringfeed.monitor.snapshot import Geometry, Snapshot
from ringfeed.tools.discover import forget
from ringfeed.tools.render import LETTERS, STYLES, Pair, _stall, picture

pytestmark = pytest.mark.once

GEOMETRY = Geometry(slots=4, slot_size=38_500_000, fields_size=38_000_000, rows=32, workers=2)
WORKED = {
    "busy_ns": 5 * S,
    "samples": 1000,
    "tickets": 100,
    "timed": 100,
    "read_ns": 90 * MS,
    "write_ns": 10 * MS,
}
WORKED_ON = {
    **WORKED,
    "busy_ns": 5975 * MS,
    "samples": 1470,
    "timed": 150,
    "read_ns": 185 * MS,
    "write_ns": 15 * MS,
}
NOW = 11 * S

BEFORE = look(
    10 * S,
    [slot()] * 4,
    [worker(4250, **WORKED), worker(4251, **WORKED), worker(), worker()],
    batches=100,
    samples=3200,
    stall_ns=2 * S,
)
AFTER = look(
    NOW,
    [
        slot("held", 1130, held_ns=NOW - 16_400_000),
        slot("ready", 1131, over=8),
        slot("filling", 1132, over=3, claimed=2),
        slot(),
    ],
    [
        worker(
            4250, **{**WORKED_ON, "busy_ns": 5 * S + 900 * MS}, inside=59999, since_ns=NOW - 75 * MS
        ),
        worker(4251, **WORKED_ON),
        worker(),
        worker(),
    ],
    batches=129,
    samples=4128,
    stall_ns=2630 * MS,
)


def drawn(
    before: Snapshot,
    after: Snapshot,
    *,
    geometry: Geometry = GEOMETRY,
    width: int = 108,
) -> str:
    """Return a picture as text."""
    loader: Any = SimpleNamespace(
        number=1, observer=SimpleNamespace(geometry=geometry), looks=[before, after]
    )
    target: Any = SimpleNamespace(cpus=lambda: 4)
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(picture(target, loader))
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def test_the_whole_picture() -> None:
    """Rates are of the interval, a ticket under way counts, and each slot and worker has a line."""
    assert drawn(BEFORE, AFTER) == (
        "loader 1  4 slots of 38.5 MB   2 workers   epoch 2   129 batches so far\n"
        "training  waits  63%      29.0 batches/s         928 samples/s     1.1 GB/s\n"
        "          input-bound: training waited 63% of the time; workers are 98% busy in dataset[i], 2.1 ms a sample:\n"
        "          add workers (now 2, for 4 CPUs) or make it cheaper\n"
        "\n"
        "slots     HRF.\n"
        "          H held 1  R ready 1  F filling 1  . free 1  longest held 16.4 ms\n"
        "workers   98% busy   worker 0 has worked on one part of a batch for 75.0 ms\n"
        "  worker      pid  busy  samples/s  a sample   copy       for  does\n"
        "       0     4250   98%        470    2.1 ms     5%   75.0 ms  reads dataset[59999]\n"
        "       1     4251   98%        470    2.1 ms     5%         -  waits for a slot\n"
        "    slot      batch  rows  state\n"
        "       0      1,130    32  held by training for 16.4 ms\n"
        "       1      1,131    32  ready\n"
        "       2      1,132    32  filling: 3 of 8 parts done, 2 in work\n"
        "       3                   free"
    )


def test_a_worker_that_is_stopped() -> None:
    """Its sample and its time at the ticket are shown; a wait that goes on counts in full."""
    before = look(
        10 * S, [slot()], [worker(7, since_ns=S, tickets=1), worker()], wait_ns=2 * S, batches=2
    )
    after = look(
        20 * S,
        [slot("filling", 3, claimed=1, over=7)],
        [worker(7, since_ns=S, tickets=1, inside=17), worker()],
        wait_ns=2 * S,
        batches=2,
    )
    assert drawn(before, after, geometry=GEOMETRY._replace(slots=1)) == (
        "loader 1  1 slot of 38.5 MB   1 worker   epoch 2   2 batches so far\n"
        "training  waits 100%       0.0 batches/s           0 samples/s    0 bytes/s  waits now\n"
        "          training has waited 18.0 s for the next batch\n"
        "\n"
        "\n"
        "slots     F\n"
        "          H held 0  R ready 0  F filling 1  . free 0\n"
        "workers   100% busy   worker 0 has worked on one part of a batch for 19.0 s\n"
        "  worker      pid  busy  samples/s  a sample   copy       for  does\n"
        "       0        7  100%          0         -      -    19.0 s  reads dataset[17]\n"
        "    slot      batch  rows  state\n"
        "       0          3    32  filling: 7 of 8 parts done, 1 in work"
    )


def test_what_is_rare() -> None:
    """Slots that drain or are parked, threads that write, leave or start, and a busy consumer."""
    before = look(10 * S, [slot()] * 3, [worker()] * 6)
    after = look(
        12 * S,
        [slot("draining", 9, claimed=2), slot("parked"), slot("held", 8, held_ns=9 * S)],
        [
            worker(tickets=3, since_ns=12 * S - 2 * MS, busy_ns=198 * MS, samples=2),
            worker(tickets=3, leave=True),
            worker(),
            worker(),
            worker(),
            worker(),
        ],
        batches=0,
        open_slots=2,
    )
    assert drawn(before, after, geometry=GEOMETRY._replace(slots=3)) == (
        "loader 1  2 of 3 slots of 38.5 MB   2 workers   epoch 2   0 batches so far\n"
        "training  waits   0%       0.0 batches/s           0 samples/s    0 bytes/s\n"
        "          no batch was taken for 2.0 s: training is at something else\n"
        "\n"
        "\n"
        "slots     D-H\n"
        "          H held 1  R ready 0  F filling 0  D draining 1  . free 0  - parked 1  longest held 3.0 s\n"
        "workers   5% busy   worker 0 has worked on one part of a batch for 2.0 ms\n"
        "  worker      pid  busy  samples/s  a sample   copy       for  does\n"
        "       0   thread   10%          1  100.0 ms      -    2.0 ms  writes\n"
        "       1   thread    0%          0         -      -         -  leaves\n"
        "    slot      batch  rows  state\n"
        "       0          9    32  cancelled: 2 parts still in work\n"
        "       1                   parked\n"
        "       2          8    32  held by training for 3.0 s"
    )


def test_processes_that_start() -> None:
    """Before its first ticket a worker starts; each one with a process has a line."""
    after = look(12 * S, [slot()], [worker(5), worker(6, tickets=1)])
    lines = drawn(look(10 * S, [slot()], [worker(), worker()]), after).splitlines()
    assert lines[-4:-2] == [
        "       0        5    0%          0         -      -         -  starts",
        "       1        6    0%          0         -      -         -  waits for a slot",
    ]


@pytest.mark.parametrize("rows", [32, 1], ids=["samples", "whole batches"])
def test_bytes(rows: int) -> None:
    """A slot's bytes are shared by its rows; a slot of one row is a whole batch."""
    samples = 3200 + (29 * 32 if rows == 32 else 29 * 500)
    after = look(NOW, list(AFTER.slots), list(AFTER.workers), batches=129, samples=samples)
    assert (
        drawn(BEFORE, after, geometry=GEOMETRY._replace(rows=rows))
        .splitlines()[1]
        .endswith("     1.1 GB/s")
    )


def test_in_the_consumer_itself() -> None:
    """Without workers the verdict says so: then there is but one id."""
    before = look(10 * S, [slot()], [worker(**WORKED)])
    after = look(
        11 * S, [slot()], [worker(**WORKED_ON)], batches=10, samples=320, stall_ns=980 * MS
    )
    lines = drawn(before, after, geometry=GEOMETRY._replace(workers=1), width=140).splitlines()
    assert lines[2] == (
        "          in this process: 98% of the time went into filling batches, 3.0 ms a sample; "
        "workers= would do it beside"
    )
    assert (
        lines[9]
        == "       0   itself   98%        470    2.1 ms     5%         -  waits for a slot"
    )


def test_the_waits_of_the_last_seconds() -> None:
    """The percentiles of the batches since the first look that is kept have a line of their own."""
    waits = np.zeros(1 + WAIT_BUCKETS[2], np.int64)
    waits[:2] = 70, 5
    later = waits.copy()
    later[0] += 90
    later[1 + 10 * 16] += 10
    looks = [replace(BEFORE, waits=waits), replace(AFTER, waits=later)]
    lines = drawn(*looks).splitlines()
    assert lines[2] == "a batch   waits: p50 none, p95 1.1 ms, p99 1.1 ms, longest 1.1 ms"
    assert lines[3].startswith("          input-bound: training waited 63% of the time; workers")


# ---- where there is little room ----


def big() -> tuple[Snapshot, Snapshot]:
    """Two looks at a loader of 130 slots and 32 workers."""
    before = look(10 * S, [slot()] * 130, [worker()] * 64, batches=1, samples=32)
    slots = [
        slot(("held", "ready", "filling")[number % 3], number, held_ns=10 * S)
        for number in range(130)
    ]
    workers = [
        worker(100 + number, tickets=1, since_ns=(NOW - 20 * S if number == 30 else NOW - MS))
        for number in range(32)
    ]
    return before, look(NOW, slots, [*workers, *[worker()] * 32], batches=2, samples=64)


def test_in_80_columns() -> None:
    """Slots' letters take several lines; the counts above include slots without a line."""
    lines = drawn(*big(), geometry=GEOMETRY._replace(slots=130), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2:11] == [
        "          compute-bound: training waited 0.0% of the time; workers are 3% busy:",
        "          2 workers would do, 2 slots would do, saving 4.9 GB",
        "",
        f"slots     {'HRF' * 23}H",
        f"          {'RFH' * 20}",
        "          H held  44  R ready  43  F filling  43  . free   0  longest held 1.0 s",
        "workers   3% busy   worker 30 has worked on one part of a batch for 20.0 s",
        "  worker      pid  busy  samples/s  a sample   copy       for  does",
        "       0      100    0%          0         -      -    1.0 ms  writes",
    ]


def test_what_is_below_the_verdict_stays() -> None:
    """A verdict of one line takes as many as one of three."""
    quiet = look(NOW, list(AFTER.slots), list(AFTER.workers), batches=100, samples=3200)
    places = [
        drawn(BEFORE, after, width=70).splitlines().index("slots     HRF.")
        for after in (AFTER, quiet)
    ]
    assert places == [5, 5]


@pytest.mark.parametrize("width", range(1, 12))
def test_hardly_any_terminal(width: int) -> None:
    """However few columns there are, no line is longer."""
    assert max(map(len, drawn(*big(), width=width).splitlines())) <= width


# ---- starting ----


@pytest.mark.parametrize(
    ("workers", "why"), [(2, "first batch: workers start and read the dataset"), (1, "next batch")]
)
def test_before_the_first_batch(workers: int, why: str) -> None:
    """A wait for workers that start is told as such; a loader without workers has none."""
    looks = [
        look(at * S, [slot()], [worker() for _ in range(workers)], wait_ns=2 * S) for at in (10, 20)
    ]
    assert f"          training has waited 18.0 s for the {why}\n" in drawn(
        *looks, geometry=GEOMETRY._replace(slots=1, workers=workers)
    )


def test_in_the_first_interval() -> None:
    """The interval of the first batch is one of starting, and says nothing."""
    looks = [look(at * S, [slot()], [worker(), worker()], batches=at - 10) for at in (10, 13)]
    assert "          too early to say: 3 batches so far\n" in drawn(
        *looks, geometry=GEOMETRY._replace(slots=1)
    )


def test_the_verdict_begins_at_the_first_batch() -> None:
    """Looks from before the first batch are forgotten once there are two after it."""
    looks: deque[Snapshot] = deque()
    for at, batches in enumerate([0, 0, 0, 5, 9, 12]):
        looks.append(look(at * S, [slot()], [worker()], batches=batches))
        forget(looks)
        if at == 2:
            assert len(looks) == 3
    assert [one.consumer.batches for one in looks] == [5, 9, 12]


# ---- styles ----


def test_each_state_has_a_letter_and_a_style() -> None:
    """Whatever a ring says of a slot can be drawn."""
    states = {"free", "filling", "ready", "draining", "held", "parked"}
    assert set(LETTERS) == set(STYLES) == states
    assert len(set(LETTERS.values())) == len(states)


@pytest.mark.parametrize(("stall_ms", "style"), [(20, "green"), (60, "yellow"), (600, "bold red")])
def test_the_stall_has_the_colour_of_its_weight(stall_ms: int, style: str) -> None:
    """Green is nothing to care about, red is half of the time."""
    after = look(
        NOW,
        list(AFTER.slots),
        list(AFTER.workers),
        batches=129,
        samples=4128,
        stall_ns=2 * S + stall_ms * MS,
    )
    text, found = _stall(Pair(BEFORE, after).stats())
    assert (found, text.strip()[-1]) == (style, "%")


def test_a_clock_that_seems_to_go_back() -> None:
    """Looks that are not of one moment give no share below nothing or above all."""
    before = look(
        10 * S,
        [slot()],
        [worker(7, **WORKED_ON, since_ns=9 * S), worker()],
        stall_ns=9 * S,
        batches=4,
    )
    after = look(11 * S, [slot()], [worker(8, **WORKED), worker()], stall_ns=5 * S, batches=5)
    pair = Pair(before, after)
    assert (pair.stats().stall_s, pair.busy_s(0)) == (0.0, 0.0)
    pair = Pair(
        after, look(12 * S, [slot()], [worker(8, busy_ns=90 * S), worker()], stall_ns=99 * S)
    )
    assert (pair.stats().stall_s, pair.busy_s(0)) == (1.0, 1.0)

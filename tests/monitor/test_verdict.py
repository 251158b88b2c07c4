"""`ringfeed.monitor.bottleneck`: statistics in words."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from ringfeed.monitor.bottleneck import verdict
from ringfeed.monitor.stats import Stats

FORM = {"workers": 4, "slots": 4, "slot_size": 38_500_000, "cpus": 4}


@pytest.mark.parametrize(
    ("times", "form", "text"),
    [
        (
            {"batches": 0, "elapsed_s": 9.0},
            {},
            "no batch in 9.0 s: workers start and read the dataset",
        ),
        ({"batches": 0, "elapsed_s": 9.0}, {"workers": 0}, "too early to say: 0 batches in 9.0 s"),
        ({"elapsed_s": 0.4}, {}, "too early to say: 100 batches in 0.4 s"),
        (
            {"batches": 0, "elapsed_s": 9.0},
            {"imported": ["tensorflow"]},
            "no batch in 9.0 s: workers import tensorflow",
        ),
        (
            {"stall_s": 9.8, "startup_s": 9.8, "elapsed_s": 10.0},
            {},
            "too early to say: 100 batches in 0.2 s; start-up took 9.8 s before the first batch: "
            "workers start and read the dataset",
        ),
        (
            {"stall_s": 9.84, "startup_s": 9.8, "elapsed_s": 19.8, "busy_s": 6.0},
            {"imported": ["jax", "tensorflow"]},
            "compute-bound: training waited 0.4% of the time; workers are 15% busy: 1 worker "
            "would do, 2 slots would do, saving 77.0 MB; start-up took 9.8 s before the first "
            "batch: workers import jax, tensorflow",
        ),
        (
            {"stall_s": 0.94, "startup_s": 0.9, "elapsed_s": 10.9, "busy_s": 6.0},
            {},
            "compute-bound: training waited 0.4% of the time; workers are 15% busy: 1 worker "
            "would do, 2 slots would do, saving 77.0 MB",
        ),
        (
            {"stall_s": 6.3, "busy_s": 39.2},
            {},
            "input-bound: training waited 63% of the time; workers are 98% busy in dataset[i], "
            "12.2 ms a sample, and there are no more than 4 CPUs: make it cheaper (`ringfeed "
            "profile` says where)",
        ),
        (
            {"stall_s": 6.3, "busy_s": 19.6, "samples": 1_000_000},
            {"workers": 2},
            "input-bound: training waited 63% of the time; workers are 98% busy in dataset[i], "
            "19.6 us a sample: add workers (now 2, for 4 CPUs) or make it cheaper",
        ),
        (
            {"stall_s": 1.0, "busy_s": 20.0},
            {},
            "input-bound: training waited 10% of the time; workers are only 50% busy, so it comes "
            "in bursts or they wait for slots: raise slots= (now 4), and let go of batches sooner",
        ),
        (
            {"stall_s": 1.0, "busy_s": 20.0},
            {"readers": 1},
            "input-bound: training waited 10% of the time; workers are only 50% busy, and one "
            "process reads the iterable for all of them: make what it does cheaper, leave more of "
            "it to transform=, or read parts side by side with Interleave",
        ),
        (
            {"stall_s": 0.04, "busy_s": 6.0},
            {},
            "compute-bound: training waited 0.4% of the time; workers are 15% busy: 1 worker "
            "would do, 2 slots would do, saving 77.0 MB",
        ),
        (
            {"stall_s": 0.04, "busy_s": 6.0},
            {"workers": 1, "slots": 2},
            (
                "compute-bound: training waited 0.4% of the time; workers are 60% busy: nothing "
                "to change"
            ),
        ),
        (
            {"stall_s": 0.3, "busy_s": 36.0},
            {},
            (
                "compute-bound: training waited 3.0% of the time; workers are 90% busy: nothing "
                "to change"
            ),
        ),
        (
            {"stall_s": 6.3, "busy_s": 39.2, "read_s": 0.006, "write_s": 0.005},
            {},
            "input-bound: training waited 63% of the time; workers are 98% busy in dataset[i], "
            "12.2 ms a sample (of it 5.0 ms for the copy into the slot, which read_into() saves), "
            "and there are no more than 4 CPUs: make it cheaper (`ringfeed profile` says where)",
        ),
        (
            {"stall_s": 6.3, "busy_s": 39.2},
            {"tuned": "a fifth worker gained nothing"},
            "input-bound: training waited 63% of the time; auto: a fifth worker gained nothing",
        ),
        (
            {"stall_s": 0.04, "busy_s": 6.0},
            {"tuned": "a fifth worker gained nothing"},
            "compute-bound: training waited 0.4% of the time; auto: a fifth worker gained nothing",
        ),
        (
            {"stall_s": 5.0, "busy_s": 5.0},
            {"workers": 0},
            (
                "in this process: 50% of the time went into filling batches, 1.6 ms a sample; "
                "workers= would do it beside"
            ),
        ),
    ],
)
def test_the_whole_text(times: dict[str, Any], form: dict[str, int], text: str) -> None:
    """Who waits for whom, how much, and what to change."""
    stats = Stats(**{"batches": 100, "samples": 3200, "elapsed_s": 10.0, **times})
    assert verdict(stats, **{**FORM, **form}) == text


def test_work_before_the_first_batch_is_not_of_the_run() -> None:
    """Workers that import in their first dataset[i] are not busier afterwards for it."""
    stats = Stats(
        batches=100, samples=3200, stall_s=5.04, startup_s=5.0, elapsed_s=15.0, busy_s=26.0
    )
    stats.startup_busy_s = 20.0
    assert verdict(stats, **FORM) == (
        "compute-bound: training waited 0.4% of the time; workers are 15% busy: 1 worker would "
        "do, 2 slots would do, saving 77.0 MB; start-up took 5.0 s before the first batch: "
        "workers start and read the dataset"
    )


def test_a_verdict_has_parts() -> None:
    """The kind, and what was seen with what to change; a copy and a pickle have the same."""
    stats = Stats(
        batches=100, samples=3200, stall_s=6.3, startup_s=0.0, elapsed_s=10.0, busy_s=19.6
    )
    found = verdict(stats, **{**FORM, "workers": 2})
    assert (found.kind, found.lines) == (
        "input-bound",
        (
            ("training waited 63% of the time",),
            (
                "workers are 98% busy in dataset[i], 6.1 ms a sample",
                "add workers (now 2, for 4 CPUs) or make it cheaper",
            ),
        ),
    )
    for other in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert (other, other.kind, other.lines) == (found, found.kind, found.lines)

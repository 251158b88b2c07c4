"""What the bench measures besides times: ends of epochs, batches read ahead, system calls, one killed worker."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benched import BENCH, bench

sys.path.append(str(BENCH))

from harness import asides, calls
from workloads.samples import Stamped, Witnessed
from workloads.workload import Window, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long


def walked(batches: list[tuple[Any, ...]]) -> asides.Epoch:
    """Return an epoch of four batches of two samples in which these came."""
    epoch = asides.Epoch(Workload("stamped", Stamped(8), 2, Window(0, 4, 0.0)))
    epoch.walk(batches, list)
    return epoch


def stamped(*indices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of these samples."""
    dataset = Stamped(8)
    return np.stack([dataset[index][0] for index in indices]), np.array(indices)


# ---- in processes of their own ----


def test_epochs_reading_ahead_and_one_kill_are_measured(tmp_path: Path) -> None:
    """Nothing is read further ahead than the slots, one kill costs nothing, and ends of epochs have times."""
    arguments = (
        "--workload",
        "epochs",
        "ahead",
        "kill_one",
        "--contender",
        "ringfeed",
        "--seconds",
        "0.05",
    )
    status, lines = bench(tmp_path / "lines.jsonl", *arguments)
    epochs, ahead, killed = (line["figures"] for line in lines)
    assert status == 0
    assert epochs["epochs"] >= asides.LEAST
    assert 0 < epochs["between_s"] <= epochs["longest_between_s"]
    assert (
        0 < ahead["ahead"] <= 4 + 1 / 32
    )  # the consumer looks at a sample before it starts anybody
    assert (killed["outcome"], killed["batches"], killed["right"]) == ("goes on", 300, 300)
    assert [figures["left_behind"] for figures in (epochs, ahead, killed)] == [0, 0, 0]


def test_system_calls_of_a_loader_are_counted_apart(tmp_path: Path) -> None:
    """A line has the calls per batch by their names, and who counted them.

    Nothing else of that run is a figure.
    """
    try:
        with calls.counted([os.getpid()]):
            pass
    except calls.NoTracerError as error:
        pytest.skip(str(error))
    status, [line] = bench(
        tmp_path / "lines.jsonl",
        "--workload",
        "calls/ready",
        "--contender",
        "pool",
        "--seconds",
        "0.1",
    )
    figures = line["figures"]
    assert status == 0
    assert figures["tracer"] in {"perf", "strace"}
    assert (
        figures["calls_per_batch"]
        >= sum(figures["calls"].values())
        > figures["calls"]["write"]
        >= 1
    )
    assert "per_batch_s" not in figures


def test_no_batch_is_held_while_the_next_is_waited_for() -> None:
    """Else a place fewer would be there, and a loader that takes them back in order alone would stand still."""
    held: list[int] = []

    def batches() -> Iterator[np.ndarray]:
        batch = weakref.ref(np.zeros(1))
        while True:
            held.append(batch() is not None)
            array = np.zeros(1)
            batch = weakref.ref(array)
            yield array
            del array

    assert asides.take(batches(), 5) == 5
    assert held == [False] * 5
    assert asides.take(batches(), 5, 0.0) == 1


# ---- the count of system calls ----


@pytest.mark.parametrize("tracer", [calls.Perf, calls.Strace])
def test_calls_of_a_block_are_counted(tracer: type[calls.Perf | calls.Strace]) -> None:
    """Each of a thousand calls counts, and hardly another, whoever counts."""
    try:
        counter = tracer([os.getpid()])
    except calls.NoTracerError as error:
        pytest.skip(str(error))
    for _ in range(1000):
        os.sched_yield()
    found = calls.Counts()
    counter.end(found)
    assert (found.tracer, found.names["sched_yield"]) == (tracer.name, 1000)
    assert 1000 <= found.total < 1100


def test_nobody_to_count_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither tool is there the error names both."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(calls.NoTracerError) as caught, calls.counted([os.getpid()]):
        pass
    assert (
        str(caught.value)
        == "no tool to count system calls: perf is not on PATH; strace is not on PATH"
    )


def test_summaries_of_both_tools_are_read() -> None:
    """Counts stand behind their names.

    What perf did not count is left out, and a table without rows is none.
    """
    perf = (
        "# "
        "started\n\n12,,raw_syscalls:sys_enter,5,100.00,,\n7,,syscalls:sys_enter_futex,5,100.00,,\n"
    )
    perf += "<not counted>,,syscalls:sys_enter_read,0,100.00,,\n"
    assert calls.perf_counts(perf) == {"raw_syscalls:sys_enter": 12, "futex": 7}
    rule = "------ ----------- ----------- --------- --------- ----------------"
    head = f"% time     seconds  usecs/call     calls    errors syscall\n{rule}\n"
    rows = " 60.00    0.000006           6         1           read\n"
    rows += " 40.00    0.000004           2         2         1 futex\n"
    total = f"{rule}\n100.00    0.000010           3         3         1 total\n"
    assert calls.strace_counts(head + rows + total) == {"futex": 2, "read": 1}
    assert calls.strace_counts("") == {}


# ---- what a kill does ----


def test_outcome_says_what_was_lost_or_doubled() -> None:
    """Samples are counted by their own numbers; a batch in another's place is out of order."""
    whole = [stamped(0, 1), stamped(2, 3), stamped(4, 5), stamped(6, 7)]
    assert walked(whole).outcome() == "goes on"
    assert walked([*whole[:2], whole[3], whole[2]]).outcome() == "goes on, out of order"
    assert walked([*whole[:3], stamped(6, 6)]).outcome() == "goes on, 1 samples lost, 1 doubled"
    assert walked(whole[:3]).outcome() == "goes on, 2 samples lost, 0 doubled"


def test_an_epoch_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another batch for so long the watch gives up; one that has ended does not."""
    monkeypatch.setattr(asides, "BOUND_S", 0.05)
    given_up = threading.Event()
    with asides._watched(walked([]), given_up.set):
        assert given_up.wait(60)
    given_up.clear()
    monkeypatch.setattr(asides, "BOUND_S", 60.0)
    with asides._watched(walked([]), given_up.set):
        pass
    assert not given_up.is_set()


def test_samples_name_their_makers() -> None:
    """Each sample leaves the process that made it, in the order in which they were begun."""
    dataset = Witnessed(4)
    assert dataset.makers() == []
    image, index = dataset[3]
    assert (image.shape, index, dataset.makers()) == ((32, 32, 3), 3, [os.getpid()])
    child = os.fork()
    if child == 0:
        dataset[0]
        os._exit(0)
    os.waitpid(child, 0)
    assert dataset.makers() == [os.getpid(), child]

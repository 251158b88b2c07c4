"""What is measured besides the time of a batch: ends of epochs, system calls, batches read ahead, killed workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from array import array
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from contenders import CONTENDERS
from harness.calls import counted
from harness.proctree import descendants, workers
from workloads.workload import touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.job import Job
    from workloads.workload import Workload

TAKEN = 20  # batches that the consumer takes before it stops to see how many more are made
QUIET_S, MOST_QUIET_S = 0.5, 10.0  # without a new sample: nothing reads further ahead
BOUND_S = 15.0  # without a batch: the loader hangs
MOST_TRACED = 1_000_000  # batches
LEAST = 3  # ends of epochs, however long they take


def measure_epochs(job: Job, workload: Workload) -> dict[str, Any]:
    """How long it takes from the last batch of an epoch to the first of the next, workers staying if they can."""
    between: list[int] = []
    length = len(workload.dataset) // (workload.batch_size or 1)
    deadline = 0.0
    with CONTENDERS[job.contender].load().batches(workload, job.workers, job.slots) as source:
        ended = 0
        while len(between) < workload.window.most and (
            len(between) < LEAST or time.monotonic() < deadline
        ):
            stamps = array("q")
            for batch in source:
                touch(batch)
                del batch
                stamps.append(time.perf_counter_ns())
            if len(stamps) != length:
                raise AssertionError(
                    f"workload {workload.name}: an epoch of {len(stamps)} batches, not {length}"
                )
            if ended:
                between.append(stamps[0] - ended)
            else:
                deadline = time.monotonic() + workload.window.seconds
            ended = stamps[-1]
    figures = {
        "between_s": float(np.median(between)) / 1e9,
        "longest_between_s": max(between) / 1e9,
    }
    return {"epochs": len(between), "per_batch_s": figures["between_s"] / length, **figures}


def measure_calls(job: Job, workload: Workload) -> dict[str, Any]:
    """System calls of the whole tree per batch in the steady state, under a tracer: nothing else of it is a figure."""
    window, made = workload.window, 0
    with CONTENDERS[job.contender].load().batches(workload, job.workers, job.slots) as source:
        batches = iter(source)
        take(batches, window.warmup)
        with counted([os.getpid(), *descendants(os.getpid())]) as found:
            deadline = time.monotonic() + window.seconds
            while made < min(window.most, MOST_TRACED) and time.monotonic() < deadline:
                made += take(batches, 8)
    names = {name: count / made for name, count in found.names.items()}
    return {
        "batches": made,
        "calls_per_batch": found.total / made,
        "calls": names,
        "tracer": found.tracer,
    }


def take(batches: Iterator[Any], count: int, most_s: float = float("inf")) -> int:
    """Take so many batches, or for so long, keeping none; how many there were."""
    number, end = 0, time.monotonic() + most_s
    for batch in islice(batches, count):
        number += 1
        touch(batch)
        del batch  # else it would be held while the next is waited for, and a place with it
        if time.monotonic() > end:
            break
    return number


def measure_ahead(job: Job, workload: Workload) -> dict[str, Any]:
    """How many batches are made that the consumer, which takes no more, has not taken."""
    dataset: Any = workload.dataset
    rows = workload.batch_size or 1
    with CONTENDERS[job.contender].load().batches(workload, job.workers, job.slots) as source:
        batches = iter(source)
        take(batches, TAKEN)
        seen, end = -1, time.monotonic() + MOST_QUIET_S
        while (made := len(dataset.makers())) != seen and time.monotonic() < end:
            seen = made
            time.sleep(QUIET_S)
    ahead = made / rows - TAKEN
    return {"ahead": ahead, "ahead_bytes": ahead * workload.batch_bytes()}


def measure_kill(job: Job, workload: Workload) -> dict[str, Any]:
    """Kill every worker at once in mid-epoch; which batches still came, and the longest wait for one."""
    epoch = Epoch(workload)
    with CONTENDERS[job.contender].load().batches(workload, job.workers, job.slots) as source:
        killed = epoch.walk(source, _kill_workers)
    return {**epoch.figures(), "killed": len(killed)}


def measure_kill_one(job: Job, workload: Workload) -> dict[str, Any]:
    """Kill one worker in mid-epoch, one that has made a sample; what becomes of the epoch."""
    epoch = Epoch(workload)

    def give_up() -> None:
        job.finish(
            figures={
                **epoch.figures(),
                "outcome": f"hangs (for {BOUND_S:.0f} s, when it was ended)",
            }
        )
        os._exit(0)

    outcome = None
    loader = CONTENDERS[job.contender].load().batches(workload, job.workers, job.slots)
    with loader as source, _watched(epoch, give_up):
        try:
            epoch.walk(source, lambda: _kill_maker(workload))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what one SIGKILL does
            outcome = f"raises {type(error).__name__}"
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's own raises again, wherever we are, for the same death
        figures = {**epoch.figures(), "outcome": outcome or epoch.outcome()}
        job.finish(figures=figures)  # already now: some loaders do not end when they are asked to
    return figures


@contextmanager
def _watched(epoch: Epoch, give_up: Callable[[], None]) -> Iterator[None]:
    """Call `give_up` from another thread when no batch comes for too long."""
    ended = threading.Event()

    def watch() -> None:
        seen = -1
        while len(epoch.kept) != seen:
            seen = len(epoch.kept)
            if ended.wait(BOUND_S):
                return
        give_up()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


class Epoch:
    """An epoch in which workers are killed, and what came of it."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._stamps = array("q")
        self.kept: list[tuple[np.ndarray, ...]] = []

    def walk(self, source: Any, kill: Callable[[], list[int]]) -> list[int]:
        """Take all batches, killing at a third of them; returns the killed."""
        killed, most = [], self._workload.window.most
        for batch in islice(source, most):
            self._stamps.append(time.perf_counter_ns())
            leaves = batch if isinstance(batch, (tuple, list)) else (batch,)
            self.kept.append(
                tuple(np.array(leaf) for leaf in leaves)
            )  # a copy: looked at when the epoch is over
            if len(self.kept) == most // 3:
                killed = kill()
        return killed

    def outcome(self) -> str:
        """What was lost or came twice, in words."""
        most, rows = self._workload.window.most, self._workload.batch_size or 1
        seen = Counter(int(index) for batch in self.kept for index in batch[-1])
        lost, doubled = most * rows - len(seen), sum(seen.values()) - len(seen)
        if lost or doubled:
            return f"goes on, {lost} samples lost, {doubled} doubled"
        return "goes on" if self._right() == most else "goes on, out of order"

    def _right(self) -> int:
        return sum(self._workload.is_right(number, batch) for number, batch in enumerate(self.kept))

    def figures(self) -> dict[str, Any]:
        """Batches that came and were right, and the longest gap since the kill."""
        most, gaps = self._workload.window.most, np.diff(np.array(self._stamps)) / 1e9
        since = gaps[most // 3 - 1 :]
        figures: dict[str, Any] = {
            "batches": len(self.kept),
            "expected": most,
            "right": self._right(),
        }
        if since.size:
            figures |= {"longest_gap_s": float(since.max()), "median_s": float(np.median(gaps))}
        return figures


def _kill_workers() -> list[int]:
    """SIGKILL to every worker of this process, one right after the other."""
    found = workers(os.getpid())
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def _kill_maker(workload: Workload) -> list[int]:
    """SIGKILL to the process that made the latest sample."""
    dataset: Any = workload.dataset
    makers = set(descendants(os.getpid()))
    victim = next((pid for pid in reversed(dataset.makers()) if pid in makers), None)
    if victim is None:
        raise AssertionError("no process but this one makes samples: there is no worker to kill")
    os.kill(victim, signal.SIGKILL)
    return [victim]

"""What happens in a job's fresh process: take batches from a contender, and say what each of them cost."""

from __future__ import annotations

import os
import sys
import time
from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from contenders import CONTENDERS
from harness import asides
from harness.job import Job
from harness.machine import versions
from harness.proctree import Usage, memory_of, usage_of_tree
from workloads.workload import make, touch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.workload import Workload

SPECIAL = {
    "calls": asides.measure_calls,
    "epochs": asides.measure_epochs,
    "epoch": asides.measure_epochs,
    "ahead": asides.measure_ahead,
    "kill": asides.measure_kill,
    "kill_one": asides.measure_kill_one,
}
WARMUP_S = 2.0  # at most: a slow contender is warm by then
CHECKED = 3  # batches compared with what they must hold, after the clock has stopped


class Timed(NamedTuple):
    """A window of batches: nanoseconds from its begin to its end, between batches, and what the tree used."""

    total: int
    gaps: np.ndarray
    usage: Usage

    def figures(self) -> dict[str, Any]:
        """The window in the words of the results: seconds and faults per batch."""
        count = len(self.gaps)
        return {
            "batches": count,
            "per_batch_s": self.total / count / 1e9,
            "median_s": float(np.median(self.gaps)) / 1e9,
            "p99_s": float(np.percentile(self.gaps, 99)) / 1e9,
            "cpu_s_per_batch": self.usage.cpu_s / count,
            "faults_per_batch": self.usage.faults / count,
        }


def consume(batches: Iterator[Any], most: int, seconds: float) -> Timed:
    """Take batches, touch each and let it go, until `most` are taken or `seconds` have passed."""
    stamps = array("q")
    before, clock = usage_of_tree(), time.perf_counter_ns
    began = clock()
    deadline = began + int(seconds * 1e9)
    for batch in batches:
        touch(batch)
        del batch
        now = clock()
        stamps.append(now)
        if now > deadline or len(stamps) == most:
            break
    usage = usage_of_tree().since(before)
    return Timed(stamps[-1] - began, np.diff(np.array(stamps), prepend=began), usage)


def measure(job: Job, workload: Workload) -> dict[str, Any]:
    """The time to the first batch, then the steady state, then whether the batches are right."""
    window, contender = workload.window, CONTENDERS[job.contender].load()
    began = time.perf_counter()
    with contender.batches(workload, job.workers, job.slots) as source:
        made = time.perf_counter()
        batches = iter(source)
        touch(next(batches))
        first = time.perf_counter()
        warm = 1 + asides.take(batches, window.warmup - 1, WARMUP_S)
        timed = consume(batches, window.most, window.seconds)
        right = _checked(workload, batches, warm + len(timed.gaps))
    return {
        "make_s": made - began,
        "first_batch_s": first - made,
        **timed.figures(),
        "right": right,
    }


def _checked(workload: Workload, batches: Iterator[Any], number: int) -> int:
    """Compare the coming batches with what they must hold; a wrong one ends the job."""
    for offset, batch in enumerate(islice(batches, CHECKED)):
        if not workload.is_right(number + offset, batch):
            raise AssertionError(
                f"workload {workload.name}: batch {number + offset} holds wrong values"
            )
    return CHECKED


def measure_ideal(job: Job, workload: Workload) -> dict[str, Any]:
    """The same figures for processes that hand nothing over, all of them together."""
    shares = CONTENDERS[job.contender].load().fill(workload, job.workers, job.slots)
    if not all(share.right for share in shares):
        raise AssertionError(
            f"workload {workload.name}: a process of the ideal filled a wrong batch"
        )
    gaps = np.concatenate(
        [np.diff(np.array(share.stamps), prepend=share.began) for share in shares]
    )
    usage = Usage(
        sum(share.usage.cpu_s for share in shares), sum(share.usage.faults for share in shares)
    )
    total = max(share.stamps[-1] for share in shares) - min(share.began for share in shares)
    # Of `workers` processes side by side a batch comes that many times as often as from one.
    return {**Timed(total, gaps / job.workers, usage).figures(), "right": len(shares)}


def run_script(job: Job, workload: Workload) -> None:
    """What both scripts do with their dataset: time the first batch, then take more for memory to peak in.

    The bare interpreter is what the process holds before the loader is made or imported: with
    NumPy, whatever else the script imports, and its dataset.
    """
    contender = CONTENDERS[job.contender].load()
    bare, window = sum(memory_of(os.getpid())), workload.window
    with contender.batches(workload, job.workers, job.slots) as source:
        began = time.perf_counter()
        batches = iter(source)
        touch(next(batches))
        first = time.perf_counter()
        taken = len(consume(batches, window.most, window.seconds).gaps)
        if job.workload.startswith("first_batch"):  # elsewhere the check would be part of the peak
            _checked(workload, batches, taken + 1)
    figures = {"first_batch_s": first - began, "bare_bytes": bare, "batches": taken + 1}
    finish(job, workload, {**figures, "slots_bytes": job.slots * workload.batch_bytes()})


def finish(job: Job, workload: Workload, figures: dict[str, Any]) -> None:
    """Hand the figures, the settings and the versions they were had with to the runner."""
    contender = CONTENDERS[job.contender]
    settings = contender.load().settings(workload, job.workers, job.slots)
    job.finish(figures=figures, settings=settings, versions=versions(contender.requires))


def main() -> None:
    """Measure the job of the command line."""
    job = Job.from_argument(sys.argv[1])
    workload = make(job.workload, job.seconds)
    special = SPECIAL.get(job.workload.partition("/")[0])
    if special is None:
        special = measure_ideal if job.contender == "ideal" else measure
    finish(job, workload, special(job, workload))


if __name__ == "__main__":
    main()

"""One process of the bench of recovery: kill the workers of one loader, and time the gaps that it leaves.

    python bench/studies/gaps.py another spawn 20 0   # the case, the start method, how many kills, a seed of moments

It prints its figures as JSON. See recovery.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import versions

METHODS = ("spawn", "fork", "forkserver")
ROWS, SAMPLE_S = 4, 0.005
SETTLED = 12  # batches between two kills, at least


@dataclass(frozen=True)
class Case:
    """Which other workers are there when one is killed."""

    title: str
    workers: int
    slots: int
    step_s: float  # what the consumer does with a batch; 0: it waits for each
    limits_s: dict[str, float]  # on the median, for each start method


CASES = {
    "another": Case("another worker lives", 2, 4, 0.0, dict.fromkeys(METHODS, 0.06)),
    "sole": Case("the sole worker", 1, 4, 0.0, {"spawn": 0.3}),
    "ready": Case(
        "the sole worker, enough batches ready", 1, 16, 0.03, dict.fromkeys(METHODS, 0.001)
    ),
}


class Spinning:
    """Samples that take SAMPLE_S of a processor, and name their worker."""

    SPEC = ringfeed.Array((), "int64")

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        deadline_s = time.perf_counter() + SAMPLE_S
        while time.perf_counter() < deadline_s:
            pass
        return os.getpid()


class Consumer:
    """Takes batches, and notes when each was asked for and when it came."""

    def __init__(self, loader: ringfeed.Loader, case: Case) -> None:
        self.asked_s: list[float] = []
        self.came_s: list[float] = []
        self.workers: list[set[int]] = []  # of each batch
        self._case = case
        self._loader = loader
        self._batches = iter(loader)

    def take(self) -> None:
        """Take a batch, and do what is done with it."""
        self.asked_s.append(time.perf_counter())
        batch = next(self._batches)
        self.came_s.append(time.perf_counter())
        self.workers.append(set(batch.tolist()))
        del batch
        if self._case.step_s:
            time.sleep(self._case.step_s)

    def settle(self) -> list[int]:
        """Take batches until all is as if no worker had ever been killed.

        Returns the workers there are.
        """
        first = len(self.came_s)
        recent: set[int] = set()
        while len(self.came_s) - first < SETTLED or len(recent) != self._case.workers:
            self.take()
            recent = set().union(*self.workers[-SETTLED // 2 :])
        while self._case.step_s and self._loader.slot_states().count("ready") < self._case.slots:
            time.sleep(SAMPLE_S)
        return sorted(recent)

    def gaps_s(self, first: int, last: int | None = None) -> list[float]:
        """From one batch to the next; or how long each was waited for, where the consumer does something else."""
        begins = self.asked_s if self._case.step_s else [self.came_s[0], *self.came_s[:-1]]
        return [
            came - began
            for began, came in zip(begins[first:last], self.came_s[first:last], strict=True)
        ]


class Shot:
    """A worker's death, some time from now."""

    def __init__(self, pid: int, delay_s: float) -> None:
        self.at_s = float("inf")
        self._pid = pid
        self._timer = threading.Timer(delay_s, self._fire)
        self._timer.start()

    def _fire(self) -> None:
        self.at_s = time.perf_counter()
        os.kill(self._pid, signal.SIGKILL)

    def gap_s(self, consumer: Consumer) -> float:
        """The longest gap among those of the batches that it may hold up, once they have come."""
        while consumer.asked_s[-1] < self.at_s:
            consumer.take()
        first = next(number for number, came_s in enumerate(consumer.came_s) if came_s > self.at_s)
        slots = consumer._loader.plan.slots  # noqa: SLF001 - a class of this file
        while len(consumer.came_s) <= first + slots:
            consumer.take()
        self._timer.join()
        return max(consumer.gaps_s(first))


def measure(name: str, method: str, kills: int, seed: int) -> dict[str, Any]:
    """The gaps that so many kills leave, less the usual gap, and what is predicted of them."""
    case, draw = CASES[name], Random(seed)  # noqa: S311 - no secret
    usual_s: list[float] = []
    found_s: list[float] = []
    began_s = time.perf_counter()
    with ringfeed.Loader(
        Spinning(),
        batch_size=ROWS,
        workers=case.workers,
        slots=case.slots,
        backend="process" if method == "forkserver" else method,  # type: ignore[arg-type]
        spec=Spinning.SPEC,
        max_attempts=1000,  # the samples are not at fault
    ) as loader:
        consumer = Consumer(loader, case)
        consumer.take()
        first_s = consumer.came_s[0] - began_s
        for _ in range(kills):
            before = len(consumer.came_s)
            workers = consumer.settle()
            usual_s += consumer.gaps_s(before + SETTLED // 2)
            spread_s = max(case.step_s, 2 * ROWS * SAMPLE_S)
            found_s.append(Shot(draw.choice(workers), draw.uniform(0, spread_s)).gap_s(consumer))
        restarts = loader.stats().restarts
    gap_s = median(usual_s)
    return {
        "kills": kills,
        "restarts": restarts,
        "batches": len(consumer.came_s),
        "usual_s": gap_s,
        "first_batch_s": first_s,
        "gaps_s": [found - gap_s for found in found_s],
        "predicted_s": predicted(name, gap_s, first_s),
    }


def predicted(name: str, usual_s: float, first_s: float) -> float:
    """The gap that is to be expected, beside the usual one.

    The survivor fills a batch alone, and the sample that was lost again; where there is none, a
    worker has to be started as the first one was; where enough batches are ready, nothing waits.
    """
    workers = CASES[name].workers
    sample_s = usual_s * workers / ROWS
    alone_s = usual_s * workers - usual_s + sample_s
    return {"another": alone_s, "sole": first_s - usual_s + sample_s, "ready": 0.0}[name]


def main() -> None:
    """Measure what the command line says."""
    name, method, kills, seed = sys.argv[1:]
    print(
        json.dumps(
            {"figures": measure(name, method, int(kills), int(seed)), "versions": versions(())}
        )
    )


if __name__ == "__main__":
    main()

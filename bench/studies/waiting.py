"""Samples that are waited for: `python bench/studies/waiting.py`, or `--quick`.

    even    each takes 20 ms: 200 in flight give at best 200 / 20 ms
    slow    one in 20 takes 20 times as long, in a fixed pattern: at best 200 / 39 ms

    asyncio          200 tasks in one thread, and nothing else: what the source itself gives on this machine
    tasks, threads   ringfeed with 2 workers and concurrency=200: `async def __getitem__`, and one that blocks
    more slots       tasks with three times the slots
    torch            its DataLoader with as many workers, and as many batches ahead as there are slots
    torch 16, any    the same with 16 workers; with in_order=False

A repetition is a fresh process; all take turns. Each leaves one JSON line. Torch is left out where
it is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import commit, machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

IN_FLIGHT, WORKERS, ROWS = 200, 2, 32
SLOTS = 9  # by default, for these
SAMPLE_S, SLOW = 0.02, 20
CASES = {"even": SAMPLE_S, "slow": SAMPLE_S * (0.95 + 0.05 * SLOW)}  # the mean of a sample
RUN_S = {False: 10.0, True: 2.0}  # quick or not
SETTLED_S = 1.0
REPETITIONS = 5
TIMEOUT_S = 120.0
CONTENDERS = ("asyncio", "tasks", "threads", "more slots", "torch", "torch 16", "torch any")


class Waits:
    """Blocks its thread for each sample."""

    SPEC = ringfeed.Array((32,), "float32")

    def __init__(self, case: str) -> None:
        self.case = case

    def __len__(self) -> int:
        return 10**9

    def delay_s(self, index: int) -> float:
        """How long a sample takes; the slow ones are spread by the golden ratio."""
        is_slow = self.case == "slow" and index * 0.6180339887498949 % 1 < 1 / 20
        return SAMPLE_S * SLOW if is_slow else SAMPLE_S

    def sample(self, index: int) -> np.ndarray[Any, Any]:
        """A small sample: nothing but the wait takes time."""
        return np.full(32, index % 1000, np.float32)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.delay_s(index))
        return self.sample(index)


class Awaits(Waits):
    """The same, awaited."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(self.delay_s(index))
        return self.sample(index)


def by_asyncio(case: str, seconds: float) -> float:
    """Samples a second of tasks alone."""
    dataset, numbers, done = Awaits(case), count(), 0

    async def read(until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await dataset[next(numbers)]
            done += 1

    async def run() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(read(began + seconds) for _ in range(IN_FLIGHT)))
        return time.perf_counter() - began

    took_s = asyncio.run(run())
    return done / took_s


def by_ringfeed(contender: str, case: str) -> Iterator[Any]:
    """Batches of a loader."""
    dataset = Waits(case) if contender == "threads" else Awaits(case)
    slots = 3 * SLOTS if contender == "more slots" else SLOTS
    settings: dict[str, Any] = {
        "spec": Waits.SPEC,
        "slots": slots,
        "workers": WORKERS,
        "concurrency": IN_FLIGHT,
    }
    with ringfeed.Loader(dataset, batch_size=ROWS, **settings) as loader:
        yield from loader


def by_torch(contender: str, case: str) -> Iterator[Any]:
    """Batches of torch's loader."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - only here

    workers = 16 if contender == "torch 16" else WORKERS
    order = {"in_order": False} if contender == "torch any" else {}
    ahead = max(2, SLOTS // workers)
    yield from DataLoader(
        Waits(case), batch_size=ROWS, num_workers=workers, prefetch_factor=ahead, **order
    )  # type: ignore[arg-type]


def rate(batches: Iterable[Any], seconds: float) -> float:
    """Samples a second, once batches have come for a while."""
    began_s, samples, until_s = 0.0, 0, time.perf_counter() + TIMEOUT_S
    first_s = 0.0
    for batch in batches:
        now_s = time.perf_counter()
        first_s = first_s or now_s
        if not began_s and now_s - first_s >= SETTLED_S:
            began_s = now_s
        elif began_s:
            samples += len(batch)
        del batch
        if now_s > until_s or (began_s and now_s - began_s >= seconds):
            return samples / (now_s - began_s)
    return 0.0


def measure(contender: str, case: str, seconds: float) -> dict[str, Any]:
    """What one contender gives, and how much of the best that there can be."""
    if contender == "asyncio":
        samples_per_s = by_asyncio(case, seconds)
    else:
        made = by_torch if contender.startswith("torch") else by_ringfeed
        samples_per_s = rate(made(contender, case), seconds)
    return {"samples_per_s": samples_per_s, "of_ideal": samples_per_s * CASES[case] / IN_FLIGHT}


def apart(contender: str, case: str, seconds: float) -> dict[str, Any]:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--one", contender, case, str(seconds)]
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command, check=True, capture_output=True, text=True, timeout=2 * TIMEOUT_S
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure all, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition of two seconds each")
    parser.add_argument(
        "--one", nargs=3, metavar=("CONTENDER", "CASE", "SECONDS"), help=argparse.SUPPRESS
    )
    asked = parser.parse_args()
    if asked.one:
        contender, case, seconds = asked.one
        print(json.dumps(measure(contender, case, float(seconds))))
        return
    has_torch = importlib.util.find_spec("torch") is not None
    contenders = [name for name in CONTENDERS if has_torch or not name.startswith("torch")]
    conditions = {"study": "waiting", "commit": commit(), "machine": machine()}
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(1 if asked.quick else REPETITIONS):
        for case in CASES:
            for contender in contenders:
                figures = apart(contender, case, RUN_S[asked.quick])
                found.setdefault((case, contender), []).append(figures["of_ideal"])
                print(
                    json.dumps(
                        {
                            **conditions,
                            "case": case,
                            "contender": contender,
                            "turn": number,
                            **figures,
                        }
                    )
                )
    for (case, contender), shares in found.items():
        print(
            (
                f"{case:>6} {contender:>12} {median(shares):8.1%} of "
                f"{IN_FLIGHT / CASES[case]:,.0f} a second"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

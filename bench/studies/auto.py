"""How close slots="auto", workers="auto" come to the best fixed setting: `python bench/studies/auto.py`, or `--quick`.

Each run is a fresh process for one job: a loader tunes itself while a loop takes its batches, then
fixed settings are swept, then the tuned loader and the best of the sweep take turns. What is
compared is what they gave in these turns.

    input    samples that cost a processor's time
    compute  cheap samples, and a step that takes long
    source   samples that are waited for, as from a network

Each run leaves one JSON line; `--render` puts a table of them into README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, printed_by, versions
from report import page, report
from report.results import read

BENCH = Path(__file__).parents[1]
README = BENCH / "README.md"
MARK = "auto"
ROWS = 16  # of a batch
SORTED = 150_000  # numbers, about a millisecond
WORKERS, SLOTS = (1, 2, 4, 8), (2, 3, 6)
QUICK_WORKERS, QUICK_SLOTS = (1, 2, 4), (2, 4)
REPETITIONS = 3
TIMEOUT_S = 600.0
HEADS = ["", "came to", "moves", "after", "best of the sweep", "auto", "best", "auto over best"]


@dataclass(frozen=True)
class Job:
    """What a sample and a step cost; seconds."""

    title: str
    sorts: int = 0
    wait_s: float = 0.0
    step_s: float = 0.0


JOBS = {
    "input": Job("input-bound, CPU", sorts=2, step_s=0.002),
    "compute": Job("compute-bound", sorts=0, step_s=0.02),
    "source": Job("slow source", wait_s=0.002, step_s=0.002),
}


@dataclass(frozen=True)
class Times:
    """How long each part of a run takes; seconds."""

    tune_s: float
    sweep_s: float
    turn_s: float
    turns: int


FULL, QUICK = Times(60.0, 4.0, 4.0, 5), Times(25.0, 1.0, 1.5, 3)


class Costly:
    """Samples that cost what the job says."""

    SPEC = ringfeed.Array((256,), "float32")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._numbers = np.random.default_rng(0).random(SORTED)

    def __len__(self) -> int:
        """As good as no end."""
        return 10**9

    def __getitem__(self, index: int) -> np.ndarray:
        """Sort, wait."""
        for _ in range(self._job.sorts):
            np.sort(self._numbers)
        if self._job.wait_s:
            time.sleep(self._job.wait_s)
        return np.full(256, index, np.float32)


class Loop:
    """Training, as far as a loader sees it."""

    def __init__(self, job: Job, **settings: Any) -> None:
        self._job = job
        self.loader = ringfeed.Loader(Costly(job), batch_size=ROWS, spec=Costly.SPEC, **settings)
        self._batches = iter(self.loader)

    def run(self, seconds: float, warm_up: int = 0) -> float:
        """Take batches for so long, after some that do not count; samples a second."""
        for _ in range(warm_up):
            self._step()
        began_s, batches = time.perf_counter(), 0
        while (elapsed_s := time.perf_counter() - began_s) < seconds:
            self._step()
            batches += 1
        return batches * ROWS / elapsed_s

    def _step(self) -> None:
        batch = next(self._batches)
        del batch
        time.sleep(self._job.step_s)


def trajectory(loader: ringfeed.Loader) -> list[dict[str, Any]]:
    """The moves of a loader so far."""
    return [
        {
            "batches": step.batches,
            "workers": step.setting.workers,
            "slots": step.setting.slots,
            "why": step.why,
            "waited": step.waited,
            "samples_per_s": step.samples_per_s,
        }
        for step in loader.stats().tuning
    ]


def sweep(
    job: Job, settings: list[tuple[int, int]], seconds: float
) -> list[tuple[int, int, float]]:
    """Workers, slots, and samples a second of each."""
    found = []
    for workers, slots in settings:
        loop = Loop(job, workers=workers, slots=slots)
        found.append((workers, slots, loop.run(seconds, warm_up=2 * slots)))
        loop.loader.close()
    return found


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """The figures of one process."""
    job, times = JOBS[name], QUICK if quick else FULL
    workers, slots = (QUICK_WORKERS, QUICK_SLOTS) if quick else (WORKERS, SLOTS)
    tuned = Loop(job, workers="auto", slots="auto")
    tuned.run(times.tune_s)
    found = sweep(job, [(some, more) for some in workers for more in slots], times.sweep_s)
    best = max(found, key=lambda one: one[2])
    fixed = Loop(job, workers=best[0], slots=best[1])
    turns = []
    for _ in range(times.turns):
        warm_up = 2 * max(slots)  # what lay ready is no throughput
        turns.append((tuned.run(times.turn_s, warm_up), fixed.run(times.turn_s, warm_up)))
    moves = trajectory(tuned.loader)
    stats = tuned.loader.stats()
    fixed.loader.close()
    tuned.loader.close()
    return {
        "trajectory": moves,
        "setting": [moves[-1]["workers"], moves[-1]["slots"]] if moves else [1, 2],
        "verdict": stats.verdict,
        "sweep": found,
        "best": best[:2],
        "auto_per_s": [auto for auto, _ in turns],
        "best_per_s": [other for _, other in turns],
    }


def run(name: str, repetition: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of the results: where, with what and how, then the figures, or why there are none."""
    command = [
        sys.executable,
        str(Path(__file__)),
        "--measure",
        name,
        *(["--quick"] if options.quick else []),
    ]
    return {
        **conditions(quick=options.quick),
        "case": f"auto/{name}",
        "contender": "ringfeed",
        "repetition": repetition,
        "settings": {"batch_size": ROWS, **vars(JOBS[name])},
        **printed_by(command, TIMEOUT_S),
    }


def render(records: list[dict[str, Any]]) -> str:
    """Where it was measured, a row for each job and repetition, and how each came to its setting."""
    good = [record for record in records if "figures" in record]
    conditions = f"{page.where(records)}; batches of {ROWS}; {records[0]['time'][:10]}."
    parts = [conditions, report.table(HEADS, [_row(record) for record in good])]
    parts += [_story(record) for record in good]
    parts += [f"- {one['case']}: {one['error']}" for one in records if "error" in one]
    return "\n\n".join(parts)


def _row(record: dict[str, Any]) -> list[str]:
    figures = record["figures"]
    auto, best = median(figures["auto_per_s"]), median(figures["best_per_s"])
    moves = figures["trajectory"]
    return [
        _title(record),
        _setting(figures["setting"]),
        str(len(moves)),
        f"{moves[-1]['batches'] if moves else 0} batches",
        _setting(figures["best"]),
        f"{auto:.0f}/s",
        f"{best:.0f}/s",
        f"{share(figures):.1%}",
    ]


def share(figures: dict[str, Any]) -> float:
    """What the tuned loader gave of what the best fixed one did, in the median of their turns."""
    return median(
        auto / best for auto, best in zip(figures["auto_per_s"], figures["best_per_s"], strict=True)
    )


def _title(record: dict[str, Any]) -> str:
    return JOBS[record["case"].partition("/")[2]].title


def _setting(counts: list[int]) -> str:
    workers, slots = counts
    return f"{workers} worker{'s' * (workers != 1)}, {slots} slots"


def _story(record: dict[str, Any]) -> str:
    figures = record["figures"]
    lines = [
        f"- {move['batches']} batches, {_setting([move['workers'], move['slots']])}: {move['why']}"
        for move in figures["trajectory"]
    ]
    return "\n".join([f"{_title(record)}:", "", *lines, f"- in the end: {figures['verdict']}"])


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short run of each, about two minutes"
    )
    parser.add_argument("--job", choices=JOBS, nargs="+", default=list(JOBS))
    parser.add_argument("--repetitions", type=int, help=f"processes of each: {REPETITIONS}")
    parser.add_argument(
        "--output", type=Path, help="file to add lines to; a new one in bench/results/"
    )
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="measure nothing: put its table into README.md"
    )
    parser.add_argument("--measure", choices=JOBS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (1 if options.quick else REPETITIONS)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a run gave no figures."""
    options = options_of(arguments)
    if options.measure:
        print(
            json.dumps(
                {"figures": measure(options.measure, quick=options.quick), "versions": versions(())}
            )
        )
        return 0
    if options.render:
        page.put(README, MARK, render(read(options.render)))
        return 0
    kind = "quick" if options.quick else "auto"
    output = options.output or BENCH / "results" / time.strftime(f"{kind}-%Y%m%d-%H%M%S.jsonl")
    records = []
    for repetition in range(options.repetitions):
        for name in options.job:
            print(f"[{repetition + 1}/{options.repetitions}] {name}", file=sys.stderr, flush=True)
            records.append(run(name, repetition, options))
            with output.open("a") as sink:
                sink.write(json.dumps(records[-1]) + "\n")
    print(f"{render(records)}\n\n{output}")
    return 0 if all("figures" in record for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())

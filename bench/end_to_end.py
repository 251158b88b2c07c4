"""Measure whole epochs of Keras' `fit` on decoded JPEG: `python bench/end_to_end.py`, or `--quick` for a short look.

On each backend a tiny model, for which the input is the bound, and a larger one that is the bound itself. The same
process count feeds them by ringfeed and by Keras' own PyDataset, and in the same run stand what no epoch can be shorter
than: the input alone (the loader, and nobody who trains), the model alone (batches that lie in memory), and the CPU
seconds that the epoch used over the cores there are. Each is a fresh process; contenders take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import page
from job import Job
from launch import adopt_orphans
from report import COUNT, TIME, TIMES, quantity, table
from results import Results
from run import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BACKENDS = "tensorflow", "jax", "torch"
SIZES = "input-bound", "compute-bound"
INPUT = "jpeg"  # the case of the loader alone
CONTENDERS = {
    "model": "the model alone",
    "ringfeed": "ringfeed",
    "keras-threads": "Keras PyDataset, threads",
    "keras-processes": "Keras PyDataset, processes",
}
USUAL = ("model", "ringfeed", "keras-processes")
QUICK = ("model", "ringfeed")  # enough to say how near ringfeed comes
REPETITIONS, SECONDS, QUICK_SECONDS = 2, 3.0, 0.5
PROMISED = 1.05
PARTS = {
    "input alone": ("input_s", TIME),
    "model alone": ("model_s", TIME),
    "CPU over cores": ("cpu_s", TIME),
    "over the largest": ("over_largest", TIMES),
    "over the work": ("over_work", TIMES),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repetition of ringfeed and its bounds")
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, help=" ".join(CONTENDERS))
    parser.add_argument("--repetitions", type=int, help=f"{REPETITIONS}, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help=f"of steady epochs in each process: {SECONDS}")
    parser.add_argument("--batches", type=int, default=0, help="of an epoch: 48 where the input is the bound, or 20")
    parser.add_argument("--workers", type=int, default=2, help="2")
    parser.add_argument("--slots", type=int, default=4, help="4")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until a run is given up: 60")
    parser.add_argument("--output", type=Path, help="file to add lines to; a new one in bench/results/")
    options = parser.parse_args(arguments)
    options.contender = options.contender or list(QUICK if options.quick else USUAL)
    options.repetitions = options.repetitions or (1 if options.quick else REPETITIONS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    return options


def planned(options: argparse.Namespace, answer: str) -> Iterator[Job]:
    """The jobs in the order they run: in each repetition another contender begins."""
    for repetition in range(options.repetitions):
        common = (repetition, options.workers, options.slots, options.seconds, answer, options.batches)
        yield Job(INPUT, "ringfeed", *common)
        turn = repetition % len(options.contender)
        for backend in filter(importlib.util.find_spec, options.backend):
            for size in options.size:
                for name in options.contender[turn:] + options.contender[:turn]:
                    yield Job(f"fit/{backend}/{size}", name, *common)


def bounds(results: Results, case: str, contender: str) -> list[dict[str, float]]:
    """What no epoch can be shorter than, seconds a batch in each repetition, and how far above it this one was."""
    cores = results.records[0]["machine"]["cores"]
    took, used = (results.values(case, contender, name) for name in ("per_batch_s", "cpu_s_per_batch"))
    parts = [
        [results.values(*part, name) for part in ((INPUT, "ringfeed"), (case, "model"))]
        for name in ("per_batch_s", "cpu_s_per_batch")
    ]
    found = []
    for number in took:
        if all(number in values for pair in parts for values in pair):
            (input_s, model_s), work = ([values[number] for values in pair] for pair in parts)
            largest_s = max(input_s, model_s, used[number] / cores)
            largest_work_s = max(input_s, model_s, sum(work) / cores)
            found.append(
                {
                    "input_s": input_s,
                    "model_s": model_s,
                    "cpu_s": used[number] / cores,
                    "over_largest": took[number] / largest_s,
                    "over_work": took[number] / largest_work_s,
                }
            )
    return found


def _row(results: Results, case: str, contender: str) -> list[str]:
    backend, size = case.split("/")[1:]
    figure = (case, contender, "per_batch_s")
    found = bounds(results, case, contender)
    middle = {name: median(one[name] for one in found) for name in found[0]} if found else {}
    return [
        f"{CONTENDERS[contender]}, {backend}, {size}",
        quantity(results.median(*figure), TIME, results.spread(*figure)),
        *(quantity(middle.get(name), units) for name, units in PARTS.values()),
        quantity(results.median(case, contender, "cores_idle"), COUNT),
    ]


def render(records: list[dict[str, Any]]) -> str:
    """Where it was measured, a row for each backend, size and contender, and what is promised of ringfeed."""
    results = Results(records)
    cases = [f"fit/{backend}/{size}" for backend in BACKENDS for size in SIZES]
    rows = [
        _row(results, case, name)
        for case in cases
        for name in CONTENDERS
        if name != "model" and name in results.contenders(case)
    ]
    errors = [f"- {one['case']}, {one['contender']}: {one['error']}" for one in results.errors()]
    return "\n\n".join(
        [
            conditions(records),
            table(["", "epoch, per batch", *PARTS, "cores idle"], rows),
            *verdict(results, cases),
            *errors,
        ]
    )


def conditions(records: list[dict[str, Any]]) -> str:
    """Where and how it was measured, and how much of the machine others had meanwhile."""
    first = records[0]
    figures = [record.get("figures", {}) for record in records]
    others = [one["cores_of_others"] for one in figures if "cores_of_others" in one]
    busy = f"others used {median(others):.2f} cores (at most {max(others):.2f}); " if others else ""
    return (
        f"{page.where(records)}; {first['workers']} workers, {first['slots']} slots; {busy}"
        f"medians of {1 + max(record['repetition'] for record in records)} fresh processes each (least - most); "
        f"{first['time'][:10]}."
    )


def verdict(results: Results, cases: list[str]) -> list[str]:
    """The promise, and the worst that was seen of it; nothing where ringfeed was not measured."""
    ratios = {case: [one["over_largest"] for one in bounds(results, case, "ringfeed")] for case in cases}
    found = {case: median(of_case) for case, of_case in ratios.items() if of_case}
    if not found:
        return []
    worst = max(found, key=found.__getitem__)
    word = "kept" if found[worst] <= PROMISED else "**missed**"
    return [f"Promised of ringfeed: at most {PROMISED}x the largest; at worst {found[worst]:.3f}x ({worst}): {word}."]


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a run gave no figures."""
    options = options_of(arguments)
    adopt_orphans()
    for backend in options.backend:
        if importlib.util.find_spec(backend) is None:
            print(f"{backend} is left out: run pip install {backend}", file=sys.stderr)
    kind = "quick" if options.quick else "end_to_end"
    output = options.output or HERE / "results" / time.strftime(f"{kind}-%Y%m%d-%H%M%S.jsonl")
    output.parent.mkdir(parents=True, exist_ok=True)
    records = measure(options, output, planned)
    print(f"{render(records)}\n\n{output}")
    return 1 if Results(records).errors() else 0


if __name__ == "__main__":
    sys.exit(main())

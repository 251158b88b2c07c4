"""Measure ringfeed against the others: `python bench/run.py`, or `--quick` for two minutes of it.

Each repetition of each contender on each workload is a process of its own; contenders take turns, so that a
machine that slows down slows all of them. Every run leaves one JSON line; `--render` puts tables of them
into the READMEs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import CASES, chosen_cases, contenders_of
from contenders import CONTENDERS
from job import Job
from launch import adopt_orphans, run_job
from machine import commit, machine
from page import insert
from plot import missing, plot
from report import render, small_table
from results import Results, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Plan = Callable[[argparse.Namespace, str], Iterator[Job]]

HERE = Path(__file__).parent
MARK = "bench"
RENDER = "measure nothing: put the tables of a results file, the newest full one, into the READMEs"
QUICK_REPETITIONS, QUICK_SHARE = 1, 1 / 3  # of each workload's seconds


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    several: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    cases = sorted({*CASES, *(case.partition("/")[0] for case in CASES)})
    parser.add_argument("--quick", action="store_true", help="one repetition of fewer runs, a third of the time each")
    parser.add_argument("--workload", choices=cases, help=" ".join(cases), **several)
    parser.add_argument("--contender", choices=CONTENDERS, help=" ".join(CONTENDERS), **several)
    parser.add_argument("--everybody", action="store_true", help="all contenders that can, in all chosen workloads")
    parser.add_argument("--repetitions", type=int, help="5, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help="at most so long in the steady state")
    parser.add_argument("--workers", type=int, default=2, help="2")
    parser.add_argument("--slots", type=int, default=4, help="4")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until a run is given up: 60")
    parser.add_argument("--output", type=Path, help="file to add lines to; a new one in bench/results/")
    parser.add_argument("--render", nargs="?", const="", metavar="FILE", help=RENDER)
    return parser.parse_args(arguments)


def planned(options: argparse.Namespace, answer: str) -> Iterator[Job]:
    """The jobs in the order they run: in each repetition another contender begins."""
    cases = {
        case: [name for name in _asked(case, options) if not CONTENDERS[name].missing()]
        for case in chosen_cases(options.workload, quick=options.quick)
    }
    for repetition in range(options.repetitions or (QUICK_REPETITIONS if options.quick else 5)):
        for case, names in cases.items():
            seconds = CASES[case].seconds * (QUICK_SHARE if options.quick else 1.0)
            seconds = seconds if options.seconds is None else min(seconds, options.seconds)
            if repetition and CASES[case].once:
                continue
            turn = repetition % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                yield Job(case, name, repetition, options.workers, options.slots, seconds, answer)


def _asked(case: str, options: argparse.Namespace) -> list[str]:
    """Who is to run a case."""
    if options.everybody and not options.contender:
        return list(CASES[case].able)
    return contenders_of(case, options.contender, case_named=bool(options.workload), quick=options.quick)


def record_of(job: Job, facts: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One line of the results: where, with what and how, then the figures."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "case": job.workload,
        "contender": job.contender,
        "repetition": job.repetition,
        "quick": options.quick,
        "seconds": job.seconds,
        "workers": job.workers,
        "slots": job.slots,
        "commit": commit(),
        "machine": machine(),
        "load": os.getloadavg()[0],
        **facts,
    }


def measure(options: argparse.Namespace, output: Path, plan: Plan = planned) -> list[dict[str, Any]]:
    """Run every job of a plan, adding a line to `output` after each; the records."""
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        jobs = list(plan(options, str(Path(scratch) / "answer.json")))
        for number, job in enumerate(jobs, 1):
            print(f"[{number}/{len(jobs)}] {job.workload} {job.contender}", file=sys.stderr, flush=True)
            record = record_of(job, run_job(job, options.timeout), options)
            records.append(record)
            with output.open("a") as sink:
                sink.write(json.dumps(record) + "\n")
            Path(job.answer).unlink(missing_ok=True)
    return records


def left_out(options: argparse.Namespace) -> Iterator[str]:
    """A line for each contender whose packages are not installed."""
    for name in options.contender or CONTENDERS:
        if missing := CONTENDERS[name].missing():
            yield f"{name} is left out: run pip install {' '.join(missing)}"


def publish(file: str) -> int:
    """Put the tables of a results file into both READMEs."""
    full = sorted((HERE / "results").glob("run-*.jsonl"))
    if not file and not full:
        print(f"no run-*.jsonl in {HERE / 'results'}: run bench/run.py first, or name a file", file=sys.stderr)
        return 1
    source = Path(file) if file else full[-1]
    results = Results(read(source))
    drawn = plot(source)
    if missing():
        print(missing())
    for folder, text in ((HERE, render(results)), (HERE.parent, small_table(results))):
        page = folder / "README.md"
        shown = f"\n\n![time per batch, by workload]({drawn.relative_to(folder)})" if drawn else ""
        done = f"rendered from {source.name}" if insert(page, MARK, text + shown) else "no markers, left as it is"
        print(f"{page}: {done}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a run gave no figures, or when there was none."""
    options = options_of(arguments)
    if options.render is not None:
        return publish(options.render)
    adopt_orphans()
    kind = "quick" if options.quick else "run"
    output = options.output or HERE / "results" / time.strftime(f"{kind}-%Y%m%d-%H%M%S.jsonl")
    output.parent.mkdir(parents=True, exist_ok=True)
    for line in left_out(options):
        print(line, file=sys.stderr)
    results = Results(measure(options, output))
    if not results.records:
        print("nothing to run: none of these contenders takes part in these workloads", file=sys.stderr)
        return 1
    print(f"{render(results)}\n\n{output}")
    return 1 if results.errors() else 0


if __name__ == "__main__":
    sys.exit(main())

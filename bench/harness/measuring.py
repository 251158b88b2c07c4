"""What run.py and growth.py have in common: options, a line of results for each job, and a table in the end."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.launch import adopt_orphans, run_job
from harness.machine import conditions
from report.results import Results
from ringfeed._progress import showing, tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from harness.job import Job

    Plan = Callable[[argparse.Namespace, str], Iterator[Job]]
    Show = Callable[[Results], str]

RESULTS = Path(__file__).parents[1] / "results"
QUICK_REPETITIONS = 1
TIMEOUT_S = 60.0


def add_options(parser: argparse.ArgumentParser, *, quick: str, repetitions: int) -> None:
    """Options that mean the same in every bench which measures a plan."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--repetitions", type=int, help=f"{repetitions}, or {QUICK_REPETITIONS} with --quick"
    )
    parser.add_argument("--seconds", type=float, help="at most so long in the steady state")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help=f"seconds a run may take: {TIMEOUT_S:g}"
    )
    parser.add_argument(
        "--output", type=Path, help="file to add lines to; a new one in bench/results/"
    )
    parser.set_defaults(usual_repetitions=repetitions)


def repetitions_of(options: argparse.Namespace) -> int:
    """How many repetitions are asked for."""
    usual: int = QUICK_REPETITIONS if options.quick else options.usual_repetitions
    return options.repetitions or usual


def record_of(job: Job, facts: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One line of the results: where, with what and how, then the figures."""
    return {
        **conditions(quick=options.quick),
        "case": job.workload,
        "contender": job.contender,
        "repetition": job.repetition,
        "seconds": job.seconds,
        "workers": job.workers,
        "slots": job.slots,
        **facts,
    }


def measure(options: argparse.Namespace, output: Path, plan: Plan) -> list[dict[str, Any]]:
    """Run every job of a plan, adding a line to `output` after each; the records."""
    records = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        showing(),
    ):  # a bar is drawn between jobs, never while one runs
        jobs = list(plan(options, str(Path(scratch) / "answer.json")))
        for number, job in enumerate(jobs, 1):
            what = f"[{number}/{len(jobs)}] {job.workload} {job.contender}"
            print(what, file=sys.stderr, flush=True)
            tell(what, (number - 1) / len(jobs))
            record = record_of(job, run_job(job, options.timeout), options)
            records.append(record)
            with output.open("a") as sink:
                sink.write(json.dumps(record) + "\n")
            Path(job.answer).unlink(missing_ok=True)
    return records


def carry_out(options: argparse.Namespace, kind: str, plan: Plan, show: Show) -> int:
    """Measure a plan and show it; 1 when a run gave no figures, or when there was none."""
    adopt_orphans()
    begin = f"quick-{kind}" if options.quick else kind
    output: Path = options.output or RESULTS / time.strftime(f"{begin}-%Y%m%d-%H%M%S.jsonl")
    output.parent.mkdir(parents=True, exist_ok=True)
    results = Results(measure(options, output, plan))
    if not results.records:
        print(
            "nothing to run: none of these contenders takes part in these workloads",
            file=sys.stderr,
        )
        return 1
    print(f"{show(results)}\n\n{output}")
    return 1 if results.errors() else 0

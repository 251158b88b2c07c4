"""Measure how what a batch costs grows: `python bench/growth.py`, or `--quick` for the ends of each axis alone.

One thing grows at a time: bytes of a batch, slots, workers (more than there are cores), samples in
the dataset (shuffled), fields of a sample, batches in an epoch. Each point is a fresh process,
which takes batches as run.py's do.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from contenders import CONTENDERS
from harness.job import Job
from harness.measuring import add_options, carry_out, repetitions_of
from report import page
from report.report import COUNT, TIME, quantity, table
from report.results import Results
from workloads.cases import AXES

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS, SLOTS = 2, 4
REPETITIONS = 3
SECONDS, QUICK_SECONDS = 0.5, 0.1


COLUMNS = {
    "CPU per batch": ("cpu_s_per_batch", TIME),
    "page faults per batch": ("faults_per_batch", COUNT),
    "first batch": ("first_batch_s", TIME),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(
        parser,
        quick="the first and the last point of each axis, a short look",
        repetitions=REPETITIONS,
    )
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument(
        "--contender", nargs="+", choices=CONTENDERS, default=["ringfeed"], metavar="NAME"
    )
    return parser.parse_args(arguments)


def planned(options: argparse.Namespace, answer: str) -> Iterator[Job]:
    """The jobs in the order they run: each axis from end to end, once in each repetition."""
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    for repetition in range(repetitions_of(options)):
        for name in options.axis:
            points = AXES[name].points
            for point in (points[0], points[-1]) if options.quick else points:
                for contender in options.contender:
                    workers = point if name == "workers" else WORKERS
                    slots = point if name == "slots" else SLOTS
                    yield Job(
                        f"{name}/{point}", contender, repetition, workers, slots, seconds, answer
                    )


def render(records: list[dict[str, Any]]) -> str:
    """Where it was measured, and a table for each axis."""
    results = Results(records)
    repetitions = 1 + max(record["repetition"] for record in records)
    where = (
        f"{page.where(records)}; {WORKERS} workers and {SLOTS} slots where they do not grow; "
        f"medians of {repetitions} "
    )
    parts = [f"{where}fresh processes each (least - most); {records[0]['time'][:10]}."]
    parts += [text for name in AXES if (text := _table(results, name))]
    parts += [f"- {one['case']}, {one['contender']}: {one['error']}" for one in results.errors()]
    return "\n\n".join(parts)


def _table(results: Results, name: str) -> str:
    """A row for each point of an axis, and for each contender there."""
    axis, rows = AXES[name], []
    for point in axis.points:
        case = f"{name}/{point}"
        for contender in results.contenders(case):
            several = results.spread(case, contender, axis.figure)
            cost = quantity(results.median(case, contender, axis.figure), TIME, several)
            others = [
                quantity(results.median(case, contender, figure), units)
                for figure, units in COLUMNS.values()
            ]
            label = f"{point:,}".replace(",", " ")
            rows.append(
                [label if contender == "ringfeed" else f"{label}, {contender}", cost, *others]
            )
    return table([axis.title, axis.head, *COLUMNS], rows) if rows else ""


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a point gave no figures."""
    return carry_out(
        options_of(arguments), "growth", planned, lambda results: render(results.records)
    )


if __name__ == "__main__":
    sys.exit(main())

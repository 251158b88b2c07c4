"""Measure ringfeed against the others: `python bench/run.py`, or `--quick` for two minutes of it.

Each repetition of each contender on each workload is a process of its own; contenders take turns,
so that a machine that slows down slows all of them. Every run leaves one JSON line; `--render` puts
tables of them into the pages.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contenders import CONTENDERS, EVERYBODY, missing_of
from harness.job import Job
from harness.measuring import add_options, carry_out, repetitions_of
from report.page import insert
from report.plot import missing, plot
from report.report import figures, render
from report.results import Results, read
from workloads.cases import CASES, chosen_cases, contenders_of, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
MARK = "bench"
RENDER = "measure nothing: put the tables of a results file, the newest full one, into the pages"
REPETITIONS, QUICK_SHARE = 5, 1 / 3  # of each workload's seconds


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    several: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    cases = sorted(set().union(*map(names_of, CASES)))
    add_options(
        parser,
        quick="one repetition of fewer runs, a third of the time each",
        repetitions=REPETITIONS,
    )
    parser.add_argument("--workload", choices=cases, help=" ".join(cases), **several)
    parser.add_argument("--contender", choices=EVERYBODY, help=" ".join(EVERYBODY), **several)
    parser.add_argument(
        "--everybody", action="store_true", help="all contenders that can, in all chosen workloads"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first repetition, to add to a file: 0"
    )
    parser.add_argument("--workers", type=int, default=2, help="2")
    parser.add_argument("--slots", type=int, default=4, help="4")
    parser.add_argument(
        "--batches", type=int, default=0, help="of an epoch of fit; 48 or 20, as its model is small"
    )
    parser.add_argument("--render", nargs="?", const="", metavar="FILE", help=RENDER)
    return parser.parse_args(arguments)


def planned(options: argparse.Namespace, answer: str) -> Iterator[Job]:
    """The jobs in the order they run: in each repetition another contender begins."""
    cases = {
        case: [name for name in _asked(case, options) if not EVERYBODY[name].missing()]
        for case in chosen_cases(options.workload, quick=options.quick)
        if not missing_of(CASES[case].needs)
    }
    for repetition in range(options.first, options.first + repetitions_of(options)):
        for case, names in cases.items():
            seconds = CASES[case].seconds * (QUICK_SHARE if options.quick else 1.0)
            seconds = seconds if options.seconds is None else min(seconds, options.seconds)
            if repetition and CASES[case].once:
                continue
            turn = repetition % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                yield Job(
                    case,
                    name,
                    repetition,
                    options.workers,
                    options.slots,
                    seconds,
                    answer,
                    options.batches,
                )


def _asked(case: str, options: argparse.Namespace) -> list[str]:
    """Which contenders run a case."""
    if options.everybody and not options.contender:
        return list(CASES[case].able)
    return contenders_of(
        case, options.contender, case_named=bool(options.workload), quick=options.quick
    )


def left_out(options: argparse.Namespace) -> Iterator[str]:
    """A line for each contender, and for each `fit`, whose packages are not installed."""
    for name in options.contender or CONTENDERS:
        if missing := EVERYBODY[name].missing():
            yield f"{name} is left out: run pip install {' '.join(missing)}"
    for case in chosen_cases(options.workload, quick=options.quick):
        if missing := missing_of(CASES[case].needs):
            yield f"{case} is left out: run pip install {' '.join(missing)}"


def publish(file: str) -> int:
    """Put the tables of a results file into the page of figures and, where it has all workloads, into the bench's."""
    full = sorted((HERE / "results").glob("run-*.jsonl"))
    if not file and not full:
        print(
            f"no run-*.jsonl in {HERE / 'results'}: run bench/run.py first, or name a file",
            file=sys.stderr,
        )
        return 1
    source = Path(file) if file else full[-1]
    results = Results(read(source))
    pages = {HERE.parent / "docs" / "figures.md": figures(results)}
    if missing_cases := [case for case in CASES if not results.contenders(case)]:
        print(
            f"{HERE / 'README.md'}: left as it is, {source.name} lacks {', '.join(missing_cases)}"
        )
    else:
        drawn = plot(source)
        if missing():
            print(missing())
        seen = f"\n\n![time per batch, by workload](plots/{drawn.name})" if drawn else ""
        pages[HERE / "README.md"] = render(results) + seen
    for page, text in pages.items():
        done = (
            f"rendered from {source.name}"
            if insert(page, MARK, text)
            else "no markers, left as it is"
        )
        print(f"{page}: {done}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a run gave no figures, or when there was none."""
    options = options_of(arguments)
    if options.render is not None:
        return publish(options.render)
    for line in left_out(options):
        print(line, file=sys.stderr)
    return carry_out(options, "run", planned, render)


if __name__ == "__main__":
    sys.exit(main())

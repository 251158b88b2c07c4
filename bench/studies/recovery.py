"""Measure what a killed worker costs the consumer: `python bench/studies/recovery.py`, or `--quick` for a short look.

Each run is a fresh process, see gaps.py: one loader, whose workers are killed one after another,
each at a random moment and once the one before has been replaced. Every run leaves one JSON line;
`--render` puts a table of them into README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import conditions, printed_by
from report import page, report
from report.results import read
from studies.gaps import CASES, METHODS, ROWS, SAMPLE_S

BENCH = Path(__file__).parents[1]
README = BENCH / "README.md"
MARK = "recovery"
REPETITIONS, KILLS = 3, 20  # processes for each case and start method, and kills in each
QUICK_REPETITIONS, QUICK_KILLS = 1, 5
TIMEOUT_S = 120.0
HEADS = ["", "kills", "median", "one in ten over", "longest", "predicted", "promised median", ""]


def run(name: str, method: str, repetition: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of the results: where, with what and how, then the figures, or why there are none."""
    case = CASES[name]
    command = [
        sys.executable,
        str(BENCH / "studies" / "gaps.py"),
        name,
        method,
        str(options.kills),
        str(repetition),
    ]
    return {
        **conditions(quick=options.quick),
        "case": f"recovery/{name}",
        "contender": "ringfeed",
        "repetition": repetition,
        "workers": case.workers,
        "slots": case.slots,
        "settings": {
            "start_method": method,
            "batch_size": ROWS,
            "sample_s": SAMPLE_S,
            "step_s": case.step_s,
        },
        **printed_by(command, TIMEOUT_S),
    }


def render(records: list[dict[str, Any]]) -> str:
    """Where it was measured, and a row for each case and start method."""
    good = [record for record in records if "figures" in record]
    rows = [_row(name, method, good) for name in CASES for method in METHODS]
    conditions = (
        f"{page.where(records)}; batches of {ROWS} samples of {SAMPLE_S * 1e3:g} ms; "
        f"{records[0]['time'][:10]}."
    )
    errors = [
        f"- {one['case']}, {one['settings']['start_method']}: {one['error']}"
        for one in records
        if "error" in one
    ]
    return "\n\n".join([conditions, report.table(HEADS, [row for row in rows if row]), *errors])


def _row(name: str, method: str, records: list[dict[str, Any]]) -> list[str]:
    mine = [
        record["figures"]
        for record in records
        if (record["case"], record["settings"]["start_method"]) == (f"recovery/{name}", method)
    ]
    gaps_s = sorted(gap_s for figures in mine for gap_s in figures["gaps_s"])
    if len(gaps_s) < 2:  # noqa: PLR2004 - a spread needs two
        return []
    limit_s = CASES[name].limits_s.get(method)
    shown = [median(gaps_s), quantiles(gaps_s, n=10, method="inclusive")[-1], gaps_s[-1]]
    expected_s = median(figures["predicted_s"] for figures in mine)
    verdict = "" if limit_s is None else "kept" if shown[0] <= limit_s else "**missed**"
    return [
        f"{CASES[name].title}, {method}",
        str(len(gaps_s)),
        *(report.quantity(value, report.TIME) for value in shown),
        "none" if name == "ready" else report.quantity(expected_s, report.TIME),
        "-" if limit_s is None else "none" if name == "ready" else f"at most {limit_s * 1e3:g} ms",
        verdict,
    ]


def kept(records: list[dict[str, Any]]) -> bool:
    """Whether every run gave figures, and every median keeps its promise."""
    return all("figures" in record for record in records) and "**missed**" not in render(records)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_REPETITIONS} process of {QUICK_KILLS} kills each",
    )
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--kills", type=int, help=f"in each process: {KILLS}")
    parser.add_argument("--repetitions", type=int, help=f"processes of each: {REPETITIONS}")
    parser.add_argument(
        "--output", type=Path, help="file to add lines to; a new one in bench/results/"
    )
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="measure nothing: put its table into README.md"
    )
    options = parser.parse_args(arguments)
    options.kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
    options.repetitions = options.repetitions or (
        QUICK_REPETITIONS if options.quick else REPETITIONS
    )
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 when a run gave no figures or a promise was missed."""
    options = options_of(arguments)
    if options.render:
        page.put(README, MARK, render(read(options.render)))
        return 0
    kind = "quick" if options.quick else "recovery"
    output = options.output or BENCH / "results" / time.strftime(f"{kind}-%Y%m%d-%H%M%S.jsonl")
    records = []
    for repetition in range(options.repetitions):
        for name in options.case:
            for method in options.method:
                print(
                    f"[{repetition + 1}/{options.repetitions}] {name} {method}",
                    file=sys.stderr,
                    flush=True,
                )
                records.append(run(name, method, repetition, options))
                with output.open("a") as sink:
                    sink.write(json.dumps(records[-1]) + "\n")
    print(f"{render(records)}\n\n{output}")
    return 0 if kept(records) else 1


if __name__ == "__main__":
    sys.exit(main())

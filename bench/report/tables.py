"""Put results of the benches beside run.py into README.md: `python bench/report/tables.py`, the newest of each.

    python bench/report/tables.py bench/results/fit_step-2026-11-21.jsonl   # or those of named files

A file's name says which bench it is from: one of `MARKS`, then a hyphen.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import growth
from report import page, plot
from report.report import COUNT, TIME, TIMES, digits, quantity, table
from report.results import Results, read
from studies import (
    cache,
    elastic,
    elements,
    fit_step,
    gpu,
    keras_training,
    neighbour,
    packing,
    photographs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).parents[1]
README = BENCH / "README.md"
Records = list[dict[str, Any]]


def fit_step_table(records: Records) -> str:
    """A row for each backend and contender: a step, and how many times the bare adapter's that is."""
    results, rows = Results(records), []
    for backend in fit_step.BACKENDS:
        case = f"fit_step/{backend}"
        for name in sorted(results.contenders(case)):
            step = quantity(
                results.median(case, name, "step_s"), TIME, results.spread(case, name, "step_s")
            )
            over = results.ratio(case, name, "constant", "step_s")
            copied = quantity(results.median(case, name, "copied"), COUNT)
            rows.append(
                [f"{name}, {backend}", step, quantity(over, TIMES), copied, *_ours(name, over)]
            )
    return _page(
        records, ["", "a step", "over the constant", "batches copied", "promised", ""], rows
    )


def _ours(name: str, over: float | None) -> list[str]:
    if name != "ringfeed" or over is None:
        return ["-", ""]
    return [f"at most {fit_step.PROMISED}x", "kept" if over <= fit_step.PROMISED else "**missed**"]


def elements_table(records: Records) -> str:
    """A row for each case and contender: an element, and how many times it from_generator takes."""
    figures = [record | {"figures": {"s": record["s"]}} for record in records if "s" in record]
    results, rows = Results(figures), []
    for case, promised in elements.PROMISED.items():
        for name in results.contenders(case):
            time = quantity(results.median(case, name, "s"), TIME, results.spread(case, name, "s"))
            pairs = (results.values(case, contender, "s") for contender in ("generator", name))
            generator, mine = pairs
            times = median(
                generator[number] / mine[number] for number in mine if number in generator
            )
            verdict = ["-", ""]
            if name == "op":
                verdict = [f"at least {promised:g}x", "kept" if times >= promised else "**missed**"]
            rows.append([f"{name}, {case}", time, quantity(times, TIMES), *verdict])
    return _page(records, ["", "an element", "from_generator takes", "promised", ""], rows)


def gpu_table(records: Records) -> str:
    """A row for each case and contender, in the order of the script; then what is missing, and what was left out."""
    results = Results(records)
    rows = [
        [f"{case}: {name}", *_of_gpu(results, f"gpu/{case}", name)]
        for case, name in gpu.ROWS
        if name in results.contenders(f"gpu/{case}")
    ]
    heads = ["", "a copy alone", "which takes", "the step alone", "a fed step", "the GPU waits"]
    heads += ["of the copy hidden", "a batch without a step", "images a second"]
    ran = [record for record in records if "figures" in record]
    parts = [_page(ran, heads, rows)] if ran else []
    for key, said in (
        ("error", "Failed"),
        ("missing", "Not measured yet"),
        ("left_out", "Left out"),
    ):
        reasons: dict[str, Counter[str]] = {}
        for record in (record for record in records if key in record):
            name = f"{record['case'].removeprefix('gpu/')}: {record['contender']}"
            reason = record[key].strip().splitlines()[-1]
            reasons.setdefault(reason, Counter())[name] += 1
        if reasons:
            lines = [
                f"- {reason}: {'; '.join(_counted(times))}" for reason, times in reasons.items()
            ]
            parts.append("\n".join([f"{said}:\n", *lines]))
    return "\n\n".join(parts)


def _counted(times: Counter[str]) -> list[str]:
    """Names, and how many times each was left out where it was more than once."""
    return [f"{name} ({count} times)" if count > 1 else name for name, count in times.items()]


def _of_gpu(results: Results, case: str, name: str) -> list[str]:
    rate, copy, alone, fed, idle, hidden, alone_input, images = (
        results.median(case, name, figure)
        for figure in (
            "gigabytes_per_s",
            "copy_s",
            "step_alone_s",
            "step_s",
            "idle",
            "hidden",
            "input_s",
            "images_per_s",
        )
    )
    return [
        "-" if rate is None else f"{digits(rate)} GB/s",
        *(quantity(time, TIME) for time in (copy, alone)),
        quantity(fed, TIME, results.spread(case, name, "step_s")),
        *("-" if part is None else f"{100 * max(part, 0.0):.0f} %" for part in (idle, hidden)),
        quantity(alone_input, TIME),
        "-" if images is None else f"{images:,.0f}",
    ]


def _study(study: Any) -> Callable[[Records], str]:
    """A study's own table."""
    return lambda records: _about(records, study.table(records))


def _page(records: Records, heads: list[str], rows: list[list[str]]) -> str:
    return _about(records, table(heads, rows))


def _about(records: Records, shown: str) -> str:
    day = f"; {records[0]['time'][:10]}" if "time" in records[0] else ""
    errors = [
        f"- {record.get('case', 'a run')}: {record['error']}"
        for record in records
        if "error" in record
    ]
    repetitions = 1 + max(record.get("repetition", 0) for record in records)
    conditions = f"{page.where(records)}; medians of {repetitions} repetitions (least - most){day}."
    return "\n\n".join([conditions, shown, *errors])


MARKS: dict[str, Callable[[Records], str]] = {
    "fit_step": fit_step_table,
    "elements": elements_table,
    "gpu": gpu_table,
    "growth": growth.render,
    "photographs": _study(photographs),
    "neighbour": _study(neighbour),
    "keras_training": _study(keras_training),
    "elastic": _study(elastic),
    "packing": _study(packing),
    "cache": _study(cache),
}


def newest() -> list[Path]:
    """The newest results of each bench that has any."""
    found = [
        sorted((BENCH / "results").glob(f"{name}-*.jsonl")) for name in MARKS
    ]  # their names end with a date
    return [files[-1] for files in found if files]


def main(arguments: list[str] | None = None) -> int:
    """Render what the command line names; 1 when a file is from no bench that has a table here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", help="results; the newest of each bench")
    for file in parser.parse_args(arguments).files or newest():
        name = file.name.partition("-")[0]
        if name not in MARKS:
            print(
                f"{file}: expected a name that begins with one of {', '.join(MARKS)} and a hyphen",
                file=sys.stderr,
            )
            return 1
        drawn = plot.plot(file)
        shown = f"\n\n![{name}](plots/{drawn.name})" if drawn else ""
        page.put(README, name, MARKS[name](read(file)) + shown)
        print(f"{README}: {name} rendered from {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

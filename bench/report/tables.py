"""Put results of the benches beside run.py into README.md: `python bench/report/tables.py`, the newest of each.

    python bench/report/tables.py bench/results/fit_step-2026-11-21.jsonl   # or those of named files

A file's name says which bench it is from: fit_step, elements, device_copy or growth, then a hyphen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import growth
from report import page, plot
from report.report import COUNT, TIME, TIMES, digits, quantity, table
from report.results import Results, read
from studies import device_copy, elements, fit_step

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).parents[1]
README = BENCH / "README.md"
Records = list[dict[str, Any]]
DEVICE_FIGURES = ("gigabytes_per_s", "copy_s", "step_alone_s", "step_s", "hidden", "per_batch_s")


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


def device_copy_table(records: Records) -> str:
    """A row for each framework and contender: a copy alone, a fed step, what it hides; and a batch in `fit`."""
    results, rows = Results(records), []
    for framework in device_copy.MODULES:
        case = f"device/{framework}"
        for name in results.contenders(case):
            found = {figure: results.median(case, name, figure) for figure in DEVICE_FIGURES}
            rate, hidden = found["gigabytes_per_s"], found["hidden"]
            of_fit = (
                results.spread(case, name, "per_batch_s")
                if found["per_batch_s"] is not None
                else None
            )
            rows.append(
                [
                    f"{framework}: {name}",
                    "-" if rate is None else f"{digits(rate)} GB/s",
                    *(
                        quantity(found[figure], TIME)
                        for figure in ("copy_s", "step_alone_s", "step_s")
                    ),
                    "-" if hidden is None else f"{100 * max(hidden, 0.0):.0f} %",
                    quantity(found["per_batch_s"], TIME, of_fit),
                ]
            )
    heads = [
        "",
        "a copy alone",
        "which takes",
        "the step alone",
        "a fed step",
        "of the copy hidden",
        "a batch in `fit`",
    ]
    return _page(records, heads, rows)


def _page(records: Records, heads: list[str], rows: list[list[str]]) -> str:
    day = f"; {records[0]['time'][:10]}" if "time" in records[0] else ""
    errors = [
        f"- {record.get('case', 'a run')}: {record['error']}"
        for record in records
        if "error" in record
    ]
    repetitions = 1 + max(record.get("repetition", 0) for record in records)
    conditions = f"{page.where(records)}; medians of {repetitions} repetitions (least - most){day}."
    return "\n\n".join([conditions, table(heads, rows), *errors])


MARKS: dict[str, Callable[[Records], str]] = {
    "fit_step": fit_step_table,
    "elements": elements_table,
    "device_copy": device_copy_table,
    "growth": growth.render,
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

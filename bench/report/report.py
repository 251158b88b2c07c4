"""Results as markdown: tables for the screen and for two pages, nothing in them typed by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from contenders import CONTENDERS, MODEL
from report import page
from report.bounds import bounds
from report.targets import TARGETS
from workloads.cases import CASES, FIT, THROUGHPUT

if TYPE_CHECKING:
    from report.results import Results

SMALL = ("ready", "resident", "jpeg")  # the cases of the first page
SEVERAL = "medians of {} fresh processes each (least - most)"
Cell = Callable[["Results", str, str], str]


TIME = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
BYTES = (("MB", 1e6),)
TIMES = (("x", 1.0),)
COUNT = (("", 1.0),)
WORTH_A_NAME = 0.005  # of a call per batch: what would be shown as 0.00 is not named
Units = tuple[tuple[str, float], ...]


def quantity(value: float | None, units: Units, spread: tuple[float, float] | None = None) -> str:
    """A value in the largest unit it reaches, with the least and the most behind it.

    A dash for none.
    """
    if value is None:
        return "-"
    if units == COUNT and value == int(value):
        return str(int(value))
    unit, size = next((one for one in units if abs(value) >= one[1]), units[-1])
    ends = "" if spread is None else " ({} - {})".format(*(digits(end / size) for end in spread))
    return f"{digits(value / size)} {unit}{ends}".replace(" x", "x").rstrip()


def digits(value: float) -> str:
    """Three digits that count, never an exponent."""
    return f"{value:.{2 - min(2, len(str(int(abs(value)))) - 1)}f}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A markdown table, the first column to the left and numbers to the right."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, rule, *rows])


def _median(figure: str, units: Units) -> Cell:
    return lambda results, case, contender: quantity(results.median(case, contender, figure), units)


def _spread(figure: str, units: Units) -> Cell:
    """The median with the least and the most of several repetitions."""

    def cell(results: Results, case: str, contender: str) -> str:
        several = len(results.values(case, contender, figure)) > 1
        ends = results.spread(case, contender, figure) if several else None
        return quantity(results.median(case, contender, figure), units, ends)

    return cell


def _ratio(to: str) -> Cell:
    return lambda results, case, contender: quantity(results.ratio(case, contender, to), TIMES)


def _text(figure: str) -> Cell:
    """Words, and how many of the repetitions said them where they did not all say the same."""

    def cell(results: Results, case: str, contender: str) -> str:
        said = Counter(results.values(case, contender, figure).values())
        return "; ".join(
            f"{words} ({count})" if len(said) > 1 else str(words) for words, count in said.items()
        )

    return cell


def _names(figure: str) -> Cell:
    """The three largest of several counts, each behind its name."""

    def cell(results: Results, case: str, contender: str) -> str:
        counts: dict[str, float] = next(iter(results.values(case, contender, figure).values()), {})
        largest = sorted(counts.items(), key=lambda one: -one[1])[:3]
        return (
            ", ".join(f"{name} {digits(count)}" for name, count in largest if count >= WORTH_A_NAME)
            or "-"
        )

    return cell


COLUMNS: dict[str, Cell] = {
    "time per batch": _spread("per_batch_s", TIME),
    "over the ideal": _ratio("ideal"),
    "over ringfeed": _ratio("ringfeed"),
    "median gap": _median("median_s", TIME),
    "p99 gap": _median("p99_s", TIME),
    "CPU per batch": _median("cpu_s_per_batch", TIME),
    "faults per batch": _median("faults_per_batch", COUNT),
    "first batch": _median("first_batch_s", TIME),
}
SPECIAL_COLUMNS: dict[str, dict[str, Cell]] = {
    "memory": {
        "bare interpreter": _median("bare_bytes", BYTES),
        "above it at the peak": _spread("above_bare_bytes", BYTES),
        "of that slots": _median("slots_bytes", BYTES),
        "per worker beyond them": _median("per_worker_bytes", BYTES),
        "shared memory": _median("peak_shared_bytes", BYTES),
        "processes": _median("peak_processes", COUNT),
    },
    "first_batch": {
        "first batch": _spread("first_batch_s", TIME),
    },
    "kill": {
        "batches": _median("expected", COUNT),
        "right and in order": _median("right", COUNT),
        "workers killed": _median("killed", COUNT),
        "longest gap": _spread("longest_gap_s", TIME),
        "median gap": _median("median_s", TIME),
    },
}
SPECIAL_COLUMNS["epochs"] = {
    "from one epoch to the next": _spread("between_s", TIME),
    "longest": _median("longest_between_s", TIME),
    "epochs": _median("epochs", COUNT),
}
SPECIAL_COLUMNS["calls"] = {
    "system calls per batch": _median("calls_per_batch", COUNT),
    "most frequent": _names("calls"),
    "batches": _median("batches", COUNT),
    "counted by": _text("tracer"),
}
SPECIAL_COLUMNS["ahead"] = {
    "batches made and not taken": _median("ahead", COUNT),
    "their memory": _median("ahead_bytes", BYTES),
}
SPECIAL_COLUMNS["kill_one"] = {
    "what becomes of the epoch": _text("outcome"),
    "batches": _median("batches", COUNT),
    "longest gap": _median("longest_gap_s", TIME),
}
FIT_COLUMNS = {
    "input alone": ("input_s", TIME),
    "model alone": ("model_s", TIME),
    "CPU over cores": ("cpu_s", TIME),
    "over the largest": ("over_largest", TIMES),
    "over the work": ("over_work", TIMES),
}
FED_TITLES = {
    "keras-threads": "Keras PyDataset, threads",
    "keras-processes": "Keras PyDataset, processes",
}
SPECIAL_TITLES = {
    "memory": "Peak memory of the whole process tree, batches of 38.5 MB",
    "first_batch": "From iter(loader) to the first batch, of 38.5 MB",
    "epochs": "From the last batch of an epoch to the first of the next, 16 ready batches each",
    "calls": "System calls of the whole process tree, counted in a run of its own",
    "ahead": "Batches read ahead for a consumer that takes no more",
    "kill": "All workers killed with SIGKILL in mid-epoch",
    "kill_one": "One worker killed with SIGKILL in mid-epoch",
}


def throughput_table(results: Results, case: str) -> str:
    """One workload: a row for each contender, fastest first."""
    contenders = sorted(
        results.contenders(case), key=lambda name: results.median(case, name, "per_batch_s") or 0.0
    )
    rows = [
        [CONTENDERS[name].title, *(cell(results, case, name) for cell in COLUMNS.values())]
        for name in contenders
    ]
    return table(["", *COLUMNS], rows)


def special_table(results: Results, special: str) -> str:
    """One special measurement: a row for each script and contender."""
    columns, rows = SPECIAL_COLUMNS[special], []
    cases = [case for case in CASES if case.partition("/")[0] == special]
    for case in cases:
        for name in results.contenders(case):
            title = ", ".join(
                [CONTENDERS[name].title, *([CASES[case].title] if len(cases) > 1 else [])]
            )
            rows.append([title, *(cell(results, case, name) for cell in columns.values())])
    return table(["", *columns], rows) if rows else ""


def fit_table(results: Results) -> str:
    """Epochs of `fit`: a row for each backend, size and contender, beside what no epoch can be shorter than."""
    rows = [
        _fit_row(results, case, name)
        for case in FIT
        for name in results.contenders(case)
        if name != MODEL
    ]
    return (
        table(["", "epoch, per batch", *FIT_COLUMNS, "cores idle", "cores of others"], rows)
        if rows
        else ""
    )


def _fit_row(results: Results, case: str, name: str) -> list[str]:
    found = list(bounds(results, case, name).values())
    return [
        f"{FED_TITLES.get(name, CONTENDERS[name].title)}, {CASES[case].title}",
        _spread("per_batch_s", TIME)(results, case, name),
        *(
            quantity(median(one[part] for one in found) if found else None, units)
            for part, units in FIT_COLUMNS.values()
        ),
        quantity(results.median(case, name, "cores_idle"), COUNT),
        quantity(results.median(case, name, "cores_of_others"), COUNT),
    ]


def target_table(results: Results) -> str:
    """What was promised beside what was measured."""
    rows = []
    for target in TARGETS:
        if (seen := target.look(results)).values:
            limit = f"{target.sense} {target.text(target.limit)}"
            count = str(len(seen.values))
            rows.append(
                [target.title, limit, target.measured(seen), count, target.verdict(seen.values)]
            )
    return table(["", "promised", "measured", "repetitions", ""], rows) if rows else ""


def conditions(results: Results) -> str:
    """Machine, versions and commit, in one paragraph."""
    first = results.records[0]
    counts = {
        count
        for case, found in results.repetitions().items()
        if not CASES[case].once
        for count in found
    }
    least, most = min(counts, default=1), max(counts, default=1)
    several = SEVERAL.format(most if least == most else f"{least} to {most}")
    how = "median of one fresh process each" if most == 1 else several
    return (
        f"{page.where(results.records)}; {first['workers']} workers, {first['slots']} slots; "
        f"{how}; {first['time'][:10]}{', quick run' if first['quick'] else ''}."
    )


def render(results: Results) -> str:
    """Everything there is in a results file."""
    sections = [conditions(results)]
    if targets := target_table(results):
        sections.append(f"### What is promised\n\n{targets}")
    sections += [
        f"### {CASES[case].title}\n\n{throughput_table(results, case)}"
        for case in THROUGHPUT
        if results.contenders(case)
    ]
    if text := fit_table(results):
        sections.append(f"### Epochs of Keras' `fit` on decoded JPEG\n\n{text}")
    for special, title in SPECIAL_TITLES.items():
        if text := special_table(results, special):
            sections.append(f"### {title}\n\n{text}")
    if errors := results.errors():
        lines = [f"- {one['case']}, {one['contender']}: {one['error']}" for one in errors]
        sections.append("### Runs without figures\n\n" + "\n".join(lines))
    return "\n\n".join(sections)


def figures(results: Results) -> str:
    """What the page of figures has: time per batch and how many times ringfeed's that is; epochs of `fit`; and where they were had."""
    return "\n\n".join(
        filter(None, [_per_batch(results), small_fit_table(results), conditions(results)])
    )


def _per_batch(results: Results) -> str:
    cases = [case for case in SMALL if results.contenders(case)]
    names = [name for name in CONTENDERS if any(name in results.contenders(case) for case in cases)]
    rows = [
        [CONTENDERS[name].title, *(_small_cell(results, case, name) for case in cases)]
        for name in names
    ]
    return table(["time per batch (over ringfeed)", *(CASES[case].short for case in cases)], rows)


def small_fit_table(results: Results) -> str:
    """Epochs of `fit`, in short: ringfeed beside the largest of its bounds, and Keras' processes."""
    heads, rows = (
        [
            "an epoch, per batch",
            "ringfeed",
            "over its largest bound",
            FED_TITLES["keras-processes"],
        ],
        [],
    )
    for case in FIT:
        if found := bounds(results, case, "ringfeed"):
            over = quantity(median(one["over_largest"] for one in found.values()), TIMES)
            mine, theirs = (
                _small_cell(results, case, name) for name in ("ringfeed", "keras-processes")
            )
            rows.append([CASES[case].short, mine, over, theirs])
    return table(heads, rows) if rows else ""


def _small_cell(results: Results, case: str, name: str) -> str:
    """A median, and how many times ringfeed's it is."""
    mine, value = (results.median(case, one, "per_batch_s") for one in ("ringfeed", name))
    if value is None or name == "ringfeed" or not mine:
        return quantity(value, TIME)
    return f"{quantity(value, TIME)} ({quantity(value / mine, TIMES)})"

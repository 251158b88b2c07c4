"""A picture of a report, by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.errors import RingfeedError

if TYPE_CHECKING:
    from pathlib import Path

    from ringfeed.simulation.report import Report

ENDINGS = (".svg", ".png", ".pdf")


def check_path(path: Path) -> None:
    """Raise ValueError for a file that cannot be a picture."""
    if path.suffix not in ENDINGS:
        message = f"--plot {path}: the name of a picture ends in {', '.join(ENDINGS)}"
        raise ValueError(message)
    if not path.parent.is_dir():
        message = f"--plot {path}: there is no folder {path.parent}; make it first"
        raise ValueError(message)


def draw(report: Report, path: Path) -> None:
    """Draw samples a second and gigabits over workers, with the appetite and the limits' names."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - it may be missing, and takes a while
    except ModuleNotFoundError as error:
        message = "--plot draws by the package matplotlib, which is missing: pip install matplotlib"
        raise RingfeedError(message) from error
    rows = report.rows
    workers = [row.setting.workers for row in rows]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(workers, [row.outcome.samples_per_s for row in rows], "o-", label="samples a second")
    axes.axhline(report.wanted.appetite, linestyle="--", color="grey", label="what the trainer takes")
    before = ""
    for row in rows:
        if row.limit != before:
            axes.annotate(f"limit: {row.limit}", (row.setting.workers, row.outcome.samples_per_s), rotation=20)
        before = row.limit
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="samples a second")
    axes.legend()
    figure.savefig(path)

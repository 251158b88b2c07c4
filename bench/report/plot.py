"""Draw results as SVG: `python bench/report/plot.py`, the newest of run.py and of growth.py, into bench/plots/.

    python bench/report/plot.py bench/results/growth-2026-11-21.jsonl   # or those of named files

It needs Matplotlib, and nothing else of the bench does.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from contenders import CONTENDERS, MODEL
from report.bounds import bounds
from report.report import FED_TITLES, TIME, quantity
from report.results import Results, read
from workloads.cases import AXES, CASES, FIT, THROUGHPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BENCH = Path(__file__).parents[1]
PLOTS = BENCH / "plots"
OURS, IDEAL, OTHERS = "#c2410c", "#64748b", "#cbd5e1"
BOUNDS = {
    "the input alone": "input_s",
    "the model alone": "model_s",
    "CPU seconds over cores": "cpu_s",
}
COLOURS = {
    CONTENDERS["ringfeed"].title: OURS,
    CONTENDERS["ideal"].title: IDEAL,
    **dict.fromkeys(BOUNDS, IDEAL),
}
# What is drawn of the photographs, by how it decodes: README's reader has no use for all designs.
PHOTOGRAPHS = {
    "the same Python code decodes each file": {
        "ringfeed": "ringfeed",
        "two bare processes": "no loader: two bare processes",
        "Keras, threads": "Keras, threads",
        "SPDL, a process and a pool for each worker": "SPDL, processes",
        "SPDL, threads": "SPDL, threads",
        "torch": "torch",
        "Grain": "Grain",
    },
    "decoders that read only the crop": {
        "ringfeed, the part alone": "ringfeed",
        "DALI, CPU": "DALI, CPU",
        "TurboLoader": "TurboLoader",
        "tf.data": "tf.data",
    },
}
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ringfeed",
    "font.size": 8,
}  # text as text, the same file each time
BAR_IN, PANEL_IN, COLUMNS = 0.2, 0.8, 2  # inches


def missing() -> str:
    """What is to be installed before anything can be drawn; nothing if it is there."""
    return (
        ""
        if importlib.util.find_spec("matplotlib")
        else "plots are left out: run pip install matplotlib"
    )


def draw_bench(results: Results, file: Path) -> None:
    """A panel for each workload and each `fit`: a bar for each contender, its time per batch."""
    timed = {case: _times(results, case) for case in (*THROUGHPUT, *FIT)}
    timed = {case: times for case, times in timed.items() if times}
    figure, panels = _panels(len(timed), PANEL_IN + BAR_IN * max(map(len, timed.values())))
    for (case, times), panel in zip(timed.items(), panels, strict=True):
        _bars(times, case, panel)
    _save(figure, file)


def _times(results: Results, case: str) -> dict[str, float]:
    """The time of each contender that has one; of a `fit` its bounds as well."""
    times = {
        name: results.median(case, name, "per_batch_s") or 0.0 for name in results.contenders(case)
    }
    titles = {name: contender.title for name, contender in CONTENDERS.items()} | (
        FED_TITLES if case in FIT else {}
    )
    shown = {titles[name]: taken for name, taken in times.items() if name != MODEL}
    if found := bounds(results, case, "ringfeed") if case in FIT else {}:
        for title, part in BOUNDS.items():
            shown[title] = median(of_one[part] for of_one in found.values())
    return shown


def _bars(times: dict[str, float], case: str, panel: Axes) -> None:
    names = sorted(times, key=lambda name: -times[name])
    colours = [COLOURS.get(name, OTHERS) for name in names]
    bars = panel.barh(names, [times[name] for name in names], color=colours)
    panel.bar_label(bars, [f" {quantity(times[name], TIME)}" for name in names])
    panel.set_xscale("log")
    panel.set_xlim(min(times.values()) / 3, max(times.values()) * 10)
    panel.minorticks_off()
    panel.set_title(CASES[case].short, loc="right")  # over the names, where a long one has room
    panel.set_xlabel("seconds per batch")


def draw_photographs(results: Results, file: Path) -> None:
    """A panel for those that decode alike, a bar for each loader: photographs a second, the most on top."""
    rates = {
        name: results.median("photographs", name, "images_per_s") or 0.0
        for name in results.contenders("photographs")
    }
    figure, panels = _panels(
        len(PHOTOGRAPHS), PANEL_IN + BAR_IN * max(map(len, PHOTOGRAPHS.values()))
    )
    for (title, alike), panel in zip(PHOTOGRAPHS.items(), panels, strict=True):
        names = sorted(alike.keys() & rates.keys(), key=lambda name: rates[name])
        colours = [
            OURS if "ringfeed" in name else IDEAL if "bare" in name else OTHERS for name in names
        ]
        bars = panel.barh(
            [alike[name] for name in names], [rates[name] for name in names], color=colours
        )
        panel.bar_label(bars, [f" {rates[name]:,.0f}" for name in names])
        panel.set_xlim(0, 1.25 * max(rates.values()))
        panel.set_title(title, loc="right")
        panel.set_xlabel("photographs a second")
    _save(figure, file)


def draw_growth(results: Results, file: Path) -> None:
    """A panel for each axis: the median, and a band from the least to the most."""
    names = [
        name
        for name in AXES
        if any(results.contenders(f"{name}/{point}") for point in AXES[name].points)
    ]
    figure, panels = _panels(len(names), 2.4)
    for name, panel in zip(names, panels, strict=True):
        _line(results, name, panel)
    _save(figure, file)


def _line(results: Results, name: str, panel: Axes) -> None:
    axis = AXES[name]
    for contender in sorted(
        {one for point in axis.points for one in results.contenders(f"{name}/{point}")}
    ):
        found = [
            (point, results.spread(f"{name}/{point}", contender, axis.figure))
            for point in axis.points
        ]
        known = [(point, ends) for point, ends in found if ends is not None]
        points = [point for point, _ in known]
        medians = [
            results.median(f"{name}/{point}", contender, axis.figure) or 0.0 for point in points
        ]
        colour = OURS if contender == "ringfeed" else IDEAL
        panel.plot(
            points,
            medians,
            marker="o",
            markersize=3,
            color=colour,
            label=CONTENDERS[contender].title,
        )
        least, most = ([ends[side] for _, ends in known] for side in (0, 1))
        panel.fill_between(points, least, most, color=colour, alpha=0.2, lw=0)
    panel.set_xscale("symlog" if 0 in axis.points else "log")
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set_title(f"{axis.head} over {axis.title}")
    panel.set_ylabel("seconds")


def _panels(count: int, height_in: float, columns: int = COLUMNS) -> tuple[Figure, Iterable[Axes]]:
    """A figure with so many panels, each so high."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the bench's tables do without

    rows = -(-count // columns)
    figure = Figure((10.0, rows * height_in), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    panels = list(axes)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def _save(figure: Figure, file: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - as above

    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        figure.savefig(file, format="svg", metadata={"Date": None})


DRAWN: dict[str, Callable[[Results, Path], None]] = {
    "run": draw_bench,
    "growth": draw_growth,
    "photographs": draw_photographs,
}


def plot(source: Path, folder: Path = PLOTS) -> Path | None:
    """Draw a file of results.

    Where, or None where it says nothing that has a plot, or matplotlib is missing.
    """
    draw, results = DRAWN.get(source.name.partition("-")[0]), Results(read(source))
    if draw is None or missing() or not _has_any(results):
        return None
    file = folder / f"{source.name.partition('-')[0]}.svg"
    draw(results, file)
    return file


def _has_any(results: Results) -> bool:
    cases = [
        "photographs",
        *THROUGHPUT,
        *FIT,
        *(f"{name}/{point}" for name, axis in AXES.items() for point in axis.points),
    ]
    return any(results.contenders(case) for case in cases)


def main(arguments: list[str] | None = None) -> int:
    """Draw what the command line names; 1 when that cannot be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", type=Path, nargs="*", help="results; the newest of run.py and of growth.py"
    )
    chosen: Any = parser.parse_args(arguments).files
    found = [sorted((BENCH / "results").glob(f"{name}-*.jsonl"))[-1:] for name in DRAWN]
    if missing():
        print(missing(), file=sys.stderr)
        return 1
    for file in chosen or chain.from_iterable(found):
        drawn = plot(file)
        print(f"{drawn or 'nothing'} drawn from {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

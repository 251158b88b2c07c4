"""How large the page of a traced run is, and how soon a browser has drawn it: `python bench/studies/page.py`.

A trace of so many events is made up (a consumer, 8 workers and 12 slots), and its page is opened in
Chromium at two widths. Prints a line of JSON for each; `--pictures` keeps what was seen. `--plotly`
has plotly draw the same timeline, as lines with WebGL and as bars, and nothing else of the page.
Needs bokeh and Chromium.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.browser import Browser, chromium
from ringfeed.monitor.page import check_bokeh, report
from ringfeed.monitor.timeline import read_trace

WIDTHS = (1280, 400)
PROMISED_S = 3.0
WORKERS, SLOTS = 8, 12
STATES = ("filling", "ready", "held")
MEAN_US = 4000.0
FACTS = {
    "program": "ringfeed",
    "version": "0",
    "began": "2026-01-01 00:00:00 +0000",
    "loader": "<Loader of Photographs: batches of 32, workers by forkserver: 8, slots: 12, 462.4 MB>",
    "verdict": "input-bound: training waited 31% of the time; workers are 97% busy in dataset[i], 4.1 ms a sample: add "
    "workers (now 8, for 16 CPUs) or make it cheaper",
    "slot_size": 38_535_168,
    "memory": "planned    462.4 MB\nreserved   462.4 MB",
}


def made_up(events: int) -> dict[str, Any]:
    """A trace of so many events: lines full of short things, as busy runs have them."""
    random = np.random.default_rng(0)
    lines = [
        (1, 0, "consumer"),
        *((2, n, f"worker {n}") for n in range(WORKERS)),
        *((3, n, f"slot {n}") for n in range(SLOTS)),
    ]
    found: list[dict[str, Any]] = []
    for kind in (1, 2, 3):
        name = f"ringfeed {('consumer', 'workers', 'slots')[kind - 1]}"
        found.append({"ph": "M", "pid": kind, "name": "process_name", "args": {"name": name}})
    for at, (kind, number, name) in enumerate(lines):
        line = {"pid": kind, "tid": 1000 * kind + number}
        found.append({"ph": "M", **line, "name": "thread_name", "args": {"name": name}})
        count = events // len(lines) + (at < events % len(lines))
        lengths = random.exponential(MEAN_US, count)
        begins = np.cumsum(lengths) - lengths
        for step, (ts, dur) in enumerate(
            zip(begins.tolist(), (0.9 * lengths).tolist(), strict=True)
        ):
            whole = {
                1: ("stall" if step % 2 else f"step {step // 2}"),
                2: f"dataset[{step * 7 % 50_000}]",
            }
            what = whole.get(kind, f"{STATES[step % 3]} {step // 3 * SLOTS + number}")
            found.append({"ph": "X", "name": what, **line, "ts": ts, "dur": dur, "args": {}})
    span_us = MEAN_US * events / len(lines)
    for at in range(0, int(span_us), 250_000):
        sizes = {"this process": 2.0e9, "workers": 8 * 6.0e7 + at / 100}
        found.append({"ph": "C", "pid": 1, "name": "memory", "ts": at, "args": sizes})
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": FACTS}


def by_plotly(trace: Path, kind: str) -> Path:
    """The timeline alone, as plotly draws it."""
    import plotly.graph_objects as go  # noqa: PLC0415 - a rival

    timeline = read_trace(trace)
    chart = go.Figure()
    for state in np.unique(timeline.events.state):
        own = timeline.of(state)
        began, lasted, line = own.began_s, own.lasted_s, own.line
        if kind == "bars":
            chart.add_trace(
                go.Bar(base=began, x=lasted, y=line, orientation="h", marker={"line": {"width": 0}})
            )
        else:
            x = np.stack([began, began + lasted, np.full(len(began), np.nan)], 1).ravel()
            chart.add_trace(
                go.Scattergl(
                    x=x, y=np.repeat(line, 3).astype(float), mode="lines", line={"width": 12}
                )
            )
    chart.update_layout(barmode="overlay")
    page = trace.with_suffix(f".{kind}.html")
    told = "document.documentElement.dataset.drawnMs = Math.round(performance.now())"
    page.write_text(
        chart.to_html(
            include_plotlyjs=True,
            post_script=f"requestAnimationFrame(() => setTimeout(() => {{{told}}}))",
        )
    )
    return page


def main(arguments: list[str] | None = None) -> int:
    """Measure and show.

    1 where a page is late or the console complains, or nothing can be measured.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the pages")
    parser.add_argument("--plotly", action="store_true", help="have plotly draw the timeline, too")
    options = parser.parse_args(arguments)
    if chromium() is None:
        print("nothing was measured: Chromium is not installed")
        return 1
    check_bokeh()
    late = False
    rivals = ("lines", "bars") if options.plotly else ()
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for events in options.events:
            trace = Path(folder) / f"{events}.json"
            trace.write_text(json.dumps(made_up(events)))
            began_s = time.perf_counter()
            page = report(trace)
            made_s = time.perf_counter() - began_s
            for kind in rivals:
                rival = by_plotly(trace, kind)
                drawn_s = browser.open(rival, WIDTHS[0]).drawn_ms / 1e3
                print(
                    json.dumps(
                        {
                            "events": events,
                            "plotly": kind,
                            "bytes": rival.stat().st_size,
                            "drawn_s": drawn_s,
                        }
                    )
                )
            for width in WIDTHS:
                picture = options.pictures and options.pictures / f"{events}-{width}.png"
                opened = browser.open(page, width, picture=picture)
                figures = {
                    "events": events,
                    "width": width,
                    "made_s": round(made_s, 2),
                    "bytes": page.stat().st_size,
                }
                figures |= {
                    "drawn_s": opened.drawn_ms / 1e3,
                    "complaints": opened.complaints,
                    "overflow": opened.overflow,
                }
                print(json.dumps(figures), flush=True)
                late |= figures["drawn_s"] > PROMISED_S or bool(opened.complaints)
    return int(late)


if __name__ == "__main__":
    sys.exit(main())

"""The page: one file of HTML with all that it needs in it, for any browser, without a network."""

from __future__ import annotations

import importlib.util
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed._html import table
from ringfeed._units import show_s
from ringfeed.monitor.timeline import (
    AT_WORK,
    STALL,
    STEP,
    Timeline,
    longest,
    read_trace,
    thinned,
    timeline_of,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


MISSING = "the page is drawn by the package bokeh, which is missing: pip install 'ringfeed[report]'"
LISTED = 8
LIMITS = {
    "input-bound": (
        "Training waits for its batches",
        (
            "`ringfeed profile module:dataset` says where the time of a sample goes. The page “My "
            "GPU waits” of the documentation has the steps in their order."
        ),
    ),
    "compute-bound": (
        "Batches wait for training: the model is the limit",
        "A loader cannot make this run faster. Fewer workers or slots leave more to the model.",
    ),
    "in this process": (
        "Batches are filled in the training process itself",
        "workers=1 or more fill batches while the model computes.",
    ),
    "too early to say": (
        "Too short to say what limits it",
        "Trace a longer run: one second after the first batch, or more.",
    ),
    "": ("No batch came", ""),
}
"""For each kind of verdict a heading, and where to go on."""
HOW = (
    "Opens on the longest wait. The round arrow shows all; drag over a chart to look closer; Ctrl "
    "and the wheel zoom. A name hides its colour."
)
MEMORY = (
    "Pages that no other process has, of this process and of all workers together: what would be "
    "free if it ended. Slots and libraries that several processes have are not in it."
)
STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2530; background: #f4f6f8; margin: 0 }
main { max-width: 1240px; margin: 0 auto; padding: 12px }
section { background: #fff; border: 1px solid #dde3e9; border-radius: 8px }
section { padding: 12px 14px; margin: 0 0 12px }
h1 { font-size: 20px; margin: 4px 0 } h2 { font-size: 16px; margin: 0 0 6px }
p { margin: 4px 0 } .quiet { color: #5b6875; font-size: 13px; overflow-wrap: anywhere }
.bottleneck { border-left: 6px solid #4477aa }
.bottleneck h2 { font-size: 19px } .bottleneck li { margin: 4px 0 }
.figures { display: flex; flex-wrap: wrap; gap: 10px }
.figures div { flex: 1 1 120px; background: #f4f6f8; border-radius: 6px; padding: 6px 10px }
.figures b { display: block; font-size: 18px } .figures span { color: #5b6875; font-size: 13px }
.tables { display: flex; flex-wrap: wrap; gap: 20px }
.tables > div { overflow-x: auto; max-width: 100% }
table { border-collapse: collapse; font-size: 14px }
caption { text-align: left; font-weight: 600; padding-bottom: 4px }
td, th { padding: 2px 12px 2px 0; font-variant-numeric: tabular-nums }
th { font-weight: 500; color: #5b6875 }
pre { overflow-x: auto; font-size: 13px; margin: 6px 0 0; white-space: pre-wrap }
code { font-size: 14px }
"""
# On a touch screen a drag scrolls the page. Says when all is drawn: what opens the page reads it.
DRAWN = """
(function look() {
  const found = window.Bokeh && Bokeh.documents[0]
  if (!found || !found.is_idle) return setTimeout(look, 5)
  const touches = matchMedia("(pointer: coarse)").matches
  if (touches) for (const chart of found.roots()) chart.toolbar.active_drag = null
  document.documentElement.dataset.drawnMs = Math.round(performance.now())
})()
"""


def check_bokeh() -> None:
    """Raise ModuleNotFoundError, with what to install, where the page cannot be drawn."""
    if importlib.util.find_spec("bokeh") is None:
        raise ModuleNotFoundError(MISSING, name="bokeh")


def save_page(document: dict[str, Any], path: Path) -> None:
    """Write the page of a trace."""
    path.write_text(page_of(timeline_of(document)), encoding="utf-8")


def report(trace: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Make the page of a trace in a file; return its path: beside it, or the ``output``.

    RingfeedError where the file is no trace of ringfeed, or the page would take its place.
    """
    check_bokeh()
    path = Path(trace).with_suffix(".html") if output is None else Path(output)
    if path.exists() and Path(trace).exists() and path.samefile(trace):
        raise ValueError(
            f"the page would take the place of the trace {path}; give another name with -o"
        )
    path.write_text(page_of(read_trace(trace)), encoding="utf-8")
    return path


def page_of(timeline: Timeline) -> str:
    """Return the page of a timeline."""
    from bokeh.embed import components  # noqa: PLC0415 - an optional package
    from bokeh.resources import Resources  # noqa: PLC0415

    from ringfeed.monitor.charts import charts_of  # noqa: PLC0415

    drawn, least_s = thinned(timeline)
    body, script = [*_head(timeline)], ""
    if len(timeline.events):
        script, places = components(charts_of(drawn, timeline))
        library = Resources(mode="inline", components=["bokeh"]).render_js()
        script = f"{library}{script}<script>{DRAWN}</script>"
        body += _charts(places, timeline, least_s)
        body.append(_tables(timeline))
    body.append(_loader(timeline))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>ringfeed: a traced run</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main>{script}</body></html>\n"
    )


def _section(content: str, kind: str = "") -> str:
    return f'<section class="{kind}">{content}</section>'


def _head(timeline: Timeline) -> Iterator[str]:
    facts = timeline.facts
    began = f"began {facts['began']}; " if "began" in facts else ""
    version = f", ringfeed {facts['version']}" if "version" in facts else ""
    yield "<h1>A traced run</h1>"
    size = f"{show_s(timeline.span_s)}, {len(timeline.events):,} events"
    yield f'<p class="quiet">{escape(began + size + version)}</p>'
    yield _section(_bottleneck(timeline), "bottleneck")
    yield _section(
        "".join(
            f"<div><b>{escape(value)}</b><span>{name}</span></div>"
            for name, value in _cards(timeline)
        ),
        "figures",
    )


def _bottleneck(timeline: Timeline) -> str:
    """Return what limits the run: as the loader says, else as the timeline does."""
    facts = timeline.facts
    heading, further = LIMITS.get(str(facts.get("limit")), ("What limits the run", ""))
    # Version 0.2 wrote the text alone.
    lines = facts.get("seen", [[facts["verdict"]]] if "verdict" in facts else [])
    if not lines and not timeline.span_s:
        heading = "Nothing ran while the trace was made"
        lines = [["no epoch was under way; put the loop or fit() into the with block"]]
    elif not lines:
        heading = "The trace does not say what limits the run"
        workers = "" if timeline.busy is None else f"; workers were {timeline.busy:.0%} busy"
        lines = [[f"training waited {timeline.waited:.0%} of the time{workers}"]]
    shown = ""
    for seen, *changes in lines:
        shown += (
            f"<li>{_coded(seen)}{''.join(f': <b>{_coded(change)}</b>' for change in changes)}</li>"
        )
    return f"<h2>{escape(heading)}</h2><ul>{shown}</ul>{further and f'<p>{_coded(further)}</p>'}"


def _coded(text: str) -> str:
    """Return a text with what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )


def _cards(timeline: Timeline) -> Iterator[tuple[str, str]]:
    steps = timeline.of(STEP)
    yield "batches", f"{timeline.batches:,}"
    yield (
        "batches a second",
        f"{timeline.batches / timeline.span_s:,.1f}" if timeline.span_s else "0",
    )
    yield "to the first batch", show_s(float(steps.began_s.min())) if len(steps) else "none came"
    yield "training waited", f"{show_s(timeline.waited_s)}, {timeline.waited:.0%}"
    if timeline.busy is not None:
        yield "workers busy", f"{timeline.busy:.0%}"


def _charts(places: dict[str, str], timeline: Timeline, least_s: float) -> Iterator[str]:
    slots = len(timeline.numbers("slot"))
    stay = (
        f"{slots} slots: being filled, ready, or held by training. What is missing to {slots} is "
        "free."
    )
    together = f" Events shorter than {show_s(least_s)} are drawn together." if least_s else ""
    titles = {
        "timeline": ("Consumer, workers and slots", HOW + together),
        "work": ("Waiting and work", "Shares of the time."),
        "slots": ("Batches in memory", stay),
        "memory": ("Memory", MEMORY),
    }
    for name, place in places.items():
        title, note = titles[name]
        yield _section(f'<h2>{title}</h2><p class="quiet">{escape(note)}</p>{place}')


def _tables(timeline: Timeline) -> str:
    waits = [
        (f"{wait.began_s:.3f} s", show_s(wait.lasted_s))
        for wait in longest(timeline, STALL, LISTED)
    ]
    tickets = [
        (ticket.what, timeline.lines[ticket.line], show_s(ticket.lasted_s))
        for ticket in longest(timeline, AT_WORK, LISTED)
    ]
    workers = []
    for number in timeline.numbers("worker"):
        busy_s = timeline.events.busy_s[timeline.events.line == number]
        share = f"{busy_s.sum() / (timeline.span_s or 1.0):.0%}"
        workers.append(
            (
                timeline.lines[number],
                share,
                f"{len(busy_s):,}",
                show_s(float(busy_s.max(initial=0.0))),
            )
        )
    tables = (
        ("The longest waits", waits, ("at", "for")),
        ("The slowest tickets", tickets, ("seen in", "by", "took")),
        ("Workers", workers, ("", "busy", "events", "longest")),
    )
    shown = "".join(
        f"<div>{table(title, rows, head)}</div>" for title, rows, head in tables if rows
    )
    return _section(shown, "tables") if shown else ""


def _loader(timeline: Timeline) -> str:
    facts = timeline.facts
    loader = f'<p class="quiet">{escape(str(facts["loader"]))}</p>' if "loader" in facts else ""
    memory = f"<pre>{escape(str(facts['memory']))}</pre>" if "memory" in facts else ""
    return _section(f"<h2>The loader</h2>{loader}{memory}") if loader or memory else ""

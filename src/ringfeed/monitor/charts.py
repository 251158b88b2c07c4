"""The charts of a run, drawn by bokeh: timeline, waiting and work, slots, and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    PanTool,
    Range1d,
    ResetTool,
    WheelZoomTool,
)
from bokeh.plotting import figure

from ringfeed.monitor.timeline import AT_WORK, STALL, STATES, STEP, Timeline, in_intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# To be told apart by colour-blind eyes, too; slots as `ringfeed top` has them.
COLOURS = ("#4477aa", "#d62728", "#66a5d9", "#e6b522", "#3a9a4b", "#a0559b", "#8c564b", "#b8b8b8")
MEANINGS = (
    "step of training",
    "stall: training waits",
    "worker at work",
    *(f"slot {state}" for state in STATES[3:]),
)
LINE_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 22, 160, 1400  # pixels
CHART_HEIGHT = 190
LEFT = 74  # pixels of the axis: the same for all, so that times lie above each other
INTERVALS = 400
OPENS_S = 2.0  # around the longest wait, or more where that is longer
MEGA = 1e6


def charts_of(drawn: Timeline, timeline: Timeline) -> dict[str, Any]:
    """Return the charts by their names, all over the same time.

    ``drawn`` has the events for the timeline, in which short ones are drawn together.
    """
    span_s = max(timeline.span_s, 1e-6)
    times = Range1d(
        *_opening(timeline, span_s), bounds=(0, span_s), reset_start=0, reset_end=span_s
    )
    edges_s = np.linspace(0, span_s, INTERVALS + 1)
    charts = {
        "timeline": _timeline(drawn, times),
        "work": _work(timeline, edges_s, times),
        "slots": _slots(timeline, edges_s, times),
    }
    if len(timeline.memory):
        charts["memory"] = _memory(timeline, times)
    return charts


def _opening(timeline: Timeline, span_s: float) -> tuple[float, float]:
    """Return the times between which the charts open: around the longest wait after the first step.

    A wait before the first step is that of the start, and counts only where there is no other.
    """
    steps, stalls = timeline.of(STEP), timeline.of(STALL)
    if not len(stalls) or span_s <= OPENS_S:
        return 0.0, span_s
    later = stalls[stalls.began_s > steps.began_s.min(initial=np.inf)]
    waits = later if len(later) else stalls
    wait = waits[waits.lasted_s.argmax()]
    width_s = min(max(OPENS_S, 1.5 * wait.lasted_s), span_s)
    began_s = wait.began_s + (wait.lasted_s - width_s) / 2
    began_s = float(min(max(began_s, 0.0), span_s - width_s))
    return began_s, began_s + float(width_s)


def _chart(height: int, times: Range1d, toolbar: str | None = None, **settings: Any) -> Any:
    """Return an empty chart.

    A drag chooses a time. The wheel zooms only with Ctrl, since alone it scrolls the page.
    """
    zoom = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    drag = BoxZoomTool(dimensions="width")
    chart = figure(
        height=height,
        x_range=times,
        sizing_mode="stretch_width",
        tools=[drag, PanTool(dimensions="width"), zoom, ResetTool()],
        active_drag=drag,
        active_scroll=zoom,
        min_border_left=LEFT,
        min_border_right=8,
        **settings,
    )
    chart.toolbar.logo = None
    chart.toolbar_location = toolbar
    chart.xaxis.axis_label = "seconds"
    chart.xaxis.axis_label_standoff = 0
    chart.outline_line_color = None
    return chart


def _legend(chart: Any) -> None:
    if not chart.legend:
        return
    legend = chart.legend[0]
    legend.orientation = "horizontal"
    legend.ncols = 2
    legend.click_policy = "hide"
    legend.border_line_color = None
    legend.padding, legend.spacing, legend.margin = 2, 6, 2
    legend.label_text_font_size = "11px"
    legend.glyph_width = legend.glyph_height = 12
    chart.add_layout(legend, "above")


# ---- the timeline ----


def _timeline(timeline: Timeline, times: Range1d) -> Any:
    count = max(len(timeline.lines), 1)
    height = min(max(count * LINE_HEIGHT + 120, LEAST_HEIGHT), MOST_HEIGHT)
    chart = _chart(height, times, "above", y_range=(count - 0.4, -0.6))
    chart.ygrid.grid_line_color = None
    every = -(-count * 12 // height)  # as many lines have a name at the axis as can be read
    chart.yaxis.ticker = FixedTicker(ticks=[*range(0, count, every)])
    chart.yaxis.major_label_overrides = dict(enumerate(timeline.lines))
    for state in np.unique(timeline.events.state):
        _blocks(chart, timeline, state)
    _legend(chart)
    return chart


def _blocks(chart: Any, timeline: Timeline, state: int) -> None:
    own = timeline.of(state)
    line = own.line.astype(np.float32)
    columns = {
        "from": own.began_s,
        "to": own.began_s + own.lasted_s,
        "top": line - 0.4,
        "bottom": line + 0.4,
        "what": own.what.tolist(),
        "ms": (own.lasted_s * 1e3).astype(np.float32),
    }
    blocks = chart.quad(
        left="from",
        right="to",
        top="top",
        bottom="bottom",
        source=ColumnDataSource(columns),
        color=COLOURS[state],
        line_color=None,
        legend_label=MEANINGS[state],
    )
    told = [("", "@what"), ("from", "@from{0.0000} s"), ("lasts", "@ms{0,0.00} ms")]
    chart.add_tools(
        HoverTool(renderers=[blocks], tooltips=told, point_policy="follow_mouse", visible=False)
    )


# ---- shares of the time ----


def _work(timeline: Timeline, edges_s: NDArray[np.float64], times: Range1d) -> Any:
    chart = _chart(CHART_HEIGHT, times, y_range=(0, 1.02))
    chart.yaxis.formatter = NumeralTickFormatter(format="0%")
    lines = {
        STALL: ("training waits", 1),
        AT_WORK: ("workers busy", len(timeline.numbers("worker"))),
    }
    for state, (name, count) in lines.items():
        if count:
            share = np.clip(_mean(timeline, state, edges_s) / count, 0, 1)
            _steps(chart, edges_s, share, COLOURS[state], name)
    _legend(chart)
    return chart


def _steps(
    chart: Any, edges_s: NDArray[np.float64], heights: NDArray[np.float64], colour: str, name: str
) -> None:
    columns = {"at": edges_s, "share": np.append(heights, heights[-1])}
    source = ColumnDataSource(columns)
    line = chart.step(
        "at", "share", source=source, mode="after", color=colour, line_width=2, legend_label=name
    )
    told = [("", name), ("at", "@at{0.00} s"), ("share", "@share{0%}")]
    chart.add_tools(HoverTool(renderers=[line], tooltips=told, mode="vline", visible=False))


def _mean(timeline: Timeline, state: int, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many lines are in a state, as a mean of each interval."""
    own = timeline.of(state)
    return in_intervals(own.began_s, own.began_s + own.busy_s, edges_s)


def _slots(timeline: Timeline, edges_s: NDArray[np.float64], times: Range1d) -> Any:
    """Draw how many slots are in each state; in bytes, where the trace says how large one is."""
    size = timeline.facts.get("slot_size")
    unit = size / MEGA if isinstance(size, (int, float)) else 1.0
    states = [state for state in range(AT_WORK + 1, len(STATES)) if state in timeline.events.state][
        ::-1
    ]
    # Each interval has its own height: both of its edges have a point.
    heights = {
        STATES[state]: np.repeat(_mean(timeline, state, edges_s) * unit, 2) for state in states
    }
    label = "slots" if size is None else "MB of slots"
    return _stack(label, np.repeat(edges_s, 2)[1:-1], heights, states, times)


def _memory(timeline: Timeline, times: Range1d) -> Any:
    found = timeline.memory
    heights = {"this process": found.trainer / MEGA, "all workers": found.workers / MEGA}
    return _stack("MB, own", found.at_s, heights, [STEP, AT_WORK], times)


def _stack(
    label: str,
    at_s: NDArray[np.float64],
    heights: dict[str, NDArray[np.float64]],
    states: Sequence[int],
    times: Range1d,
) -> Any:
    """Return a chart of areas upon each other, from the bottom, in the colours of some states."""
    chart = _chart(CHART_HEIGHT, times)
    chart.yaxis.axis_label = label
    source, names = ColumnDataSource({"at": at_s, **heights}), [*heights]
    if names:
        colours = [COLOURS[state] for state in states]
        chart.varea_stack(
            names, x="at", source=source, color=colours, alpha=0.8, legend_label=names
        )
        _legend(chart)
    return chart

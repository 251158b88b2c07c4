"""Statistics for programs that watch a training: numbers by name, and the text of Prometheus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ringfeed.monitor.waits import octaves, sum_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.monitor.stats import Stats

COUNTERS = {
    "batches": "Batches that training has taken",
    "samples": "Samples of these batches",
    "stall_s": "Time that training waited for batches",
    "startup_s": "Time of these waits before the first batch",
    "busy_s": "Time that all workers together filled batches",
    "back_pressure_s": "Time that all workers together waited for free slots",
    "elapsed_s": "Time in which an epoch was under way",
    "restarts": "Workers that were replaced",
    "skipped": "Samples that were left out",
    "none_batches": "Batches of None that were left out",
}
GAUGES = {
    "read_s": "Mean time of a sample inside the dataset",
    "write_s": "Mean time of a sample on its way into the slot",
}
WAIT = "ringfeed_wait_seconds"


def figures_of(stats: Stats) -> dict[str, float]:
    """Return the statistics as numbers by name; see `Stats.figures`."""
    found = {name: getattr(stats, name) for name in (*COUNTERS, *GAUGES)}
    waits = stats.waits._asdict()
    waits.pop("batches")
    return found | {"skipped": len(stats.skipped)} | {f"wait_{name}": waits[name] for name in waits}


def prometheus_of(stats: Stats, labels: dict[str, object]) -> str:
    """Return the statistics in Prometheus' text format; see `Stats.prometheus`."""
    for name in labels:
        if not re.fullmatch(r"(?!le$|__)[a-zA-Z_]\w*", name, re.ASCII):
            raise ValueError(
                f"Prometheus has no label {name!r}: give letters, digits and _, and neither 'le' "
                "nor two _ at the beginning"
            )
    shown = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return "".join(f"{line}\n" for line in _lines(stats, shown))


def _lines(stats: Stats, labels: list[str]) -> Iterator[str]:
    figures, among = figures_of(stats), _among(labels)
    for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, text in names.items():
            full = "ringfeed_" + re.sub("_s$", "_seconds", name) + "_total" * (kind == "counter")
            yield from _head(full, text, kind)
            yield f"{full}{among} {figures[name]}"
    yield from _head(
        WAIT, "Time that training waited for a batch, the first one left out", "histogram"
    )
    counts = stats.wait_counts
    for most_s, count in [*octaves(counts), ("+Inf", counts.sum())]:
        edge = f'le="{most_s}"'
        yield f"{WAIT}_bucket{_among([*labels, edge])} {count}"
    yield f"{WAIT}_sum{among} {sum_s(counts)}"
    yield f"{WAIT}_count{among} {counts.sum()}"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}"]


def _among(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _escaped(value: object) -> str:
    """Return a label's value as the format has it between quotes."""
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

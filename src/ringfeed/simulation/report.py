"""What was simulated, as a table and words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringfeed._units import show_bytes, show_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.simulation.sizing import Row, Wanted

HEAD = (
    "workers",
    "nodes",
    "rows a ticket",
    "window",
    "slots",
    "bridges",
    "Gbit/s",
    "samples/s",
    "fed",
    "stall an hour",
    "limit",
)


@dataclass(frozen=True)
class Report:
    """Rows for several numbers of workers, and the one that is needed; ``str()`` is the text."""

    wanted: Wanted
    rows: tuple[Row, ...]
    needed: Row | None
    calibrated: bool

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join([*self._words(), "", *self._table(), "", self._need()])

    def _words(self) -> Iterator[str]:
        wanted, work, costs = self.wanted, self.wanted.work, self.wanted.costs
        size = show_bytes(work.sample_bytes)
        step = show_s(wanted.batch_size / wanted.appetite)
        rate = f"{wanted.appetite:,.0f} samples a second"
        yield f"a trainer that takes {rate}: a batch of {wanted.batch_size} every {step}"
        yield f"a sample: {show_s(work.sample_s)} of work (coefficient of variation {work.cv:.2g}), {size}"
        how = (
            "as calibrated"
            if self.calibrated
            else "by default, as measured on two cores: calibrate on your own machines"
        )
        yield (
            f"a ticket: {show_s(costs.call_s)} of a bridge, and {costs.inline_s_per_gb:g} s a GB up to 8 MB, "
            f"{costs.plasma_s_per_gb:g} above; {show_s(costs.actor_call_s)} of an actor ({how})"
        )

    def _table(self) -> Iterator[str]:
        cells = [HEAD, *[_cells(row) for row in self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            *numbers, limit = line
            aligned = "  ".join(cell.rjust(width) for cell, width in zip(numbers, widths, strict=False))
            yield f"{aligned}  {limit}"

    def _need(self) -> str:
        if self.needed is None:
            best = max(self.rows, key=lambda row: row.outcome.samples_per_s)
            return (
                f"no number of workers up to 10,000 feeds it: the most is {best.outcome.samples_per_s:,.0f} samples a "
                f"second with {_many(best.setting.workers, 'worker')}, and the limit is {best.limit}"
            )
        setting = self.needed.setting
        size = show_bytes(setting.slots * setting.batch_size * self.wanted.work.sample_bytes)
        return (
            f"needed: {_many(setting.workers, 'worker')} on {_many(setting.nodes, 'node')}, {setting.slots} slots of "
            f"{setting.batch_size} samples ({size}), "
            f"{_many(setting.bridges, 'bridge')}, {self.needed.gbits:.2f} Gbit/s"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "rows": [_figures(row) for row in self.rows],
            "needed": None if self.needed is None else _figures(self.needed),
        }


def _cells(row: Row) -> tuple[str, ...]:
    setting = row.setting
    counts = (setting.workers, setting.nodes, setting.rows, setting.window, setting.slots, setting.bridges)
    return (
        *(f"{count:,}" for count in counts),
        f"{row.gbits:.2f}",
        f"{row.outcome.samples_per_s:,.0f}",
        f"{row.share:.1%}",
        f"{row.stall_s:,.1f} s",
        row.limit,
    )


def _figures(row: Row) -> dict[str, Any]:
    setting = row.setting
    return {
        "workers": setting.workers,
        "nodes": setting.nodes,
        "rows": setting.rows,
        "window": setting.window,
        "slots": setting.slots,
        "bridges": setting.bridges,
        "gbits": row.gbits,
        "samples_per_s": row.outcome.samples_per_s,
        "share": row.share,
        "stall_s": row.stall_s if math.isfinite(row.stall_s) else None,
        "limit": row.limit,
    }


def _many(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"

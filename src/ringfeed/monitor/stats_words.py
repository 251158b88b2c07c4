"""What a loader has done, in a line and as lines of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed._units import show_s

if TYPE_CHECKING:
    from ringfeed.monitor.stats import Stats


def text_of(stats: Stats) -> str:
    """Return what a person wants to know, in a line."""
    done = f"{stats.batches} batches of {stats.samples} samples in {stats.elapsed_s:.1f} s"
    lost = f", {stats.restarts} workers replaced" if stats.restarts else ""
    verdict = f"; {stats.verdict}" if stats.verdict else ""
    return (
        f"{done}, {stats.stall_s:.1f} s of it waited{lost}{verdict}{'; closed' * stats.is_closed}"
    )


def lines_of(stats: Stats) -> list[tuple[str, str]]:
    """Return the counts and times, and what is rare where it has happened."""
    waits = stats.waits
    lines = [
        ("batches", f"{stats.batches:,} of {stats.samples:,} samples"),
        ("time", f"{stats.elapsed_s:.1f} s, of it {stats.stall_s:.1f} s waited for batches"),
        ("start-up", f"{show_s(stats.startup_s)} of the waiting"),
        ("a batch", f"waits: {waits}" if waits.batches else ""),
        (
            "workers",
            (
                f"{stats.busy_s:.1f} s at work, {stats.back_pressure_s:.1f} s waiting for slots, "
                "all together"
            ),
        ),
        ("a sample", f"{show_s(stats.read_s)} to read, {show_s(stats.write_s)} to write"),
        ("replaced", f"{stats.restarts} workers" * (stats.restarts > 0)),
        ("skipped", f"{len(stats.skipped):,} samples" * bool(stats.skipped)),
        ("left out", f"{stats.none_batches:,} batches of None" * (stats.none_batches > 0)),
        ("verdict", stats.verdict),
        ("loader", "closed" * stats.is_closed),
    ]
    return [(name, text) for name, text in lines if text]

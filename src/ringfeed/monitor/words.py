"""What a loader is, has planned and has done: in a line, and as lines of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._html import table
from ringfeed._units import show_bytes, show_s

if TYPE_CHECKING:
    from ringfeed.monitor.stats import Stats

# ---- the loader ----


def loader_text(runner: Any, order: Any) -> str:
    """Return the dataset's type, the main settings, and whether it is closed, in a line."""
    plan, settings, source, size = runner.plan, runner.options, runner.source, order.batch_size
    batches = "whole batches" if size is None else f"batches of {size}"
    if size is None and not source.whole:
        batches = f"batches of up to {plan.layout.rows}"
    kind = f"by {settings.start_method}" if settings.backend == "process" else "in threads"
    most = "" if runner.tuner is None else "up to "
    workers = (
        f"workers {kind}: {most}{plan.workers - settings.readers}" if plan.workers else "no workers"
    )
    workers += " and a reader" if settings.readers else ""
    memory = f"slots: {most}{plan.slots}, {show_bytes(plan.total)}"
    shard = order.shard
    rank = f"{shard}, " if shard.sources or shard.world_size > 1 else ""
    seed = f"seed: {source.seed}, " if order.seed_is_drawn else ""
    closed = ", closed" * runner.is_closed
    name = type(source.given).__name__
    return f"Loader of {name}: {batches}, {seed}{rank}{workers}, {memory}{closed}"


def loader_html(loader: Any, title: str, length: int | None) -> str:
    """Return a table for a notebook: the next epoch of ``length`` batches, memory, statistics."""
    count = "of unknown length" if length is None else f"{length:,} batches each"
    epochs = f"number {loader.epoch} is next, {count}"
    rows = [("epochs", epochs), ("memory", str(loader.plan)), *loader.stats().lines()]
    return table(title, rows)


# ---- its plan ----


def plan_text(plan: Any) -> str:
    """Return the total, what it is for, and the advice, if there is any."""
    return sizes_of(plan) + (plan.advice and f"; {plan.advice}")


def sizes_of(plan: Any) -> str:
    """Return the total, and what it is for."""
    parts = ", ".join(text for _, text in _parts(plan))
    return f"{show_bytes(plan.total)}: {parts}; and {_indices(plan)}"


def plan_lines(plan: Any) -> list[tuple[str, str]]:
    """Return the same as lines of a table, and the advice, if there is any."""
    lines = [("in all", show_bytes(plan.total)), *_parts(plan), ("besides", _indices(plan))]
    return [*lines, *[("advice", plan.advice)] * bool(plan.advice)]


def _indices(plan: Any) -> str:
    indices = f"{show_bytes(plan.planned_size)} of indices in this process"
    return ", ".join([indices, *map(str, plan.caches)])


def _parts(plan: Any) -> list[tuple[str, str]]:
    """Name the parts of the total, and say how large each is."""
    parts = [
        ("slots", f"{plan.slots} slots of {show_bytes(plan.slot_size)}"),
        ("control", f"{show_bytes(plan.control_size)} of control"),
    ]
    if plan.states_size:
        parts.append(("states", f"{show_bytes(plan.states_size)} for the iterables"))
    if plan.store is not None:
        count = f"{plan.store.entries} elements as large as the first"
        parts.append(("elements", f"{show_bytes(plan.elements_size)} for {count}"))
    if plan.flights_size:
        text = f"{show_bytes(plan.flights_size)} of rows on their way from the cluster"
        parts.append(("on the way", text))
    if plan.samples_size:
        text = f"{show_bytes(plan.samples_size)} of the loader that reads the samples"
        parts.append(("samples", text))
    if plan.dataset_shared:
        parts.append(("dataset", f"{show_bytes(plan.dataset_shared)} of the dataset"))
    if plan.dataset_per_worker:
        holders = f"{plan.workers} workers" + " and the forkserver" * plan.forkserver
        text = f"{show_bytes(plan.dataset_per_worker)} more in each of {holders}"
        parts.append(("per worker", text))
    return parts


# ---- its statistics ----


def stats_text(stats: Stats) -> str:
    """Return what a person wants to know, in a line."""
    done = f"{stats.batches} batches of {stats.samples} samples in {stats.elapsed_s:.1f} s"
    lost = f", {stats.restarts} workers replaced" if stats.restarts else ""
    verdict = f"; {stats.verdict}" if stats.verdict else ""
    return (
        f"{done}, {stats.stall_s:.1f} s of it waited{lost}{verdict}{'; closed' * stats.is_closed}"
    )


def stats_lines(stats: Stats) -> list[tuple[str, str]]:
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

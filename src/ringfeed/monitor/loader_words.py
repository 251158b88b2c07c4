"""What a loader is, in a line and as a table."""

from __future__ import annotations

from typing import Any

from ringfeed._html import table
from ringfeed._units import show_bytes


def text_of(runner: Any, order: Any) -> str:
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


def html_of(loader: Any, title: str, length: int | None) -> str:
    """Return a table for a notebook: the next epoch of ``length`` batches, memory, statistics."""
    count = "of unknown length" if length is None else f"{length:,} batches each"
    epochs = f"number {loader.epoch} is next, {count}"
    rows = [("epochs", epochs), ("memory", str(loader.plan)), *loader.stats().lines()]
    return table(title, rows)

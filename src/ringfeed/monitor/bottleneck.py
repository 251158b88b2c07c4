"""What the statistics of a loader mean, in words that a user can act on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ringfeed._units import show_bytes, show_s
from ringfeed.monitor.stats import Stats, Verdict
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.system.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.monitor.waits import Waits

EARLY_S = 0.5  # before that shares of the time say more of the start than of the run
WAITED = 0.05  # of the time, from which training counts as held up by its input
STARTUP_S = 1.0  # before the first batch, from which it is worth a word
COPIES = 0.3  # of a sample's cost, from which the copy is worth a word
STARTS = "workers start and read the dataset"
BUSY = 0.8  # of the workers' time, from which they have no more to give
HEADROOM = 1.25  # of workers, so that one slow sample holds up nothing


def verdict(  # noqa: PLR0913 - what a loader is
    stats: Stats,
    *,
    workers: int,
    slots: int,
    slot_size: int,
    cpus: int,
    concurrency: int = 0,
    readers: int = 0,
    tuned: str = "",
    imported: Sequence[str] = (),
) -> Verdict:
    """Say what waits for what, and what to change.

    ``workers`` of 0 fill in the consumer, so that all of the filling is waiting. Shares are of the
    time since the first batch. ``concurrency``: of samples that wait, how many are in flight;
    ``readers``: processes that read an iterable for the workers; ``tuned``: why what is "auto" is
    as it is; ``imported``: frameworks that workers import.
    """
    why = f"workers import {', '.join(imported)}" if imported else STARTS
    if workers and not stats.batches and (since_s := stats.launch_s + stats.elapsed_s) >= STARTUP_S:
        return Verdict("", (f"no batch in {show_s(since_s)}: {why}",))
    took_s = stats.launch_s + stats.startup_s
    startup = [(f"start-up took {show_s(took_s)} before the first batch: {why}",)] * (
        took_s >= STARTUP_S
    )
    waited = share_waited(stats)
    if waited is None:
        elapsed_s = stats.elapsed_s - stats.startup_s
        return Verdict(
            "too early to say", (f"{stats.batches} batches in {elapsed_s:.1f} s",), *startup
        )
    if not workers:
        seen = f"{waited:.0%} of the time went into filling batches, {_cost(stats)}"
        return Verdict("in this process", (seen,), ("workers= would do it beside",), *startup)
    busy = (stats.busy_s - stats.startup_busy_s) / (workers * (stats.elapsed_s - stats.startup_s))
    if concurrency:
        advice: tuple[str, ...] = (
            f"concurrency={concurrency} and slots={slots} say how many samples are in flight",
        )
    elif tuned:
        advice = (f"auto: {tuned}",)
    elif waited < WAITED:
        advice = _surplus(busy, workers, slots, slot_size)
    else:
        advice = _shortage(busy, _cost(stats), workers, slots, cpus, is_read_apart=readers > 0)
    return bound(waited, stats.waits, advice, *startup)


def verdict_of(runner: Any, stats: Stats) -> Verdict:
    """Return the verdict on some statistics of the loader that this `EpochRunner` runs."""
    plan, options, tuner = runner.plan, runner.options, runner.tuner
    return verdict(
        stats,
        workers=options.workers if tuner is None else tuner.setting.workers,
        slots=plan.slots if tuner is None else tuner.setting.slots,
        slot_size=plan.slot_size,
        cpus=usable_cpus(),
        concurrency=options.concurrency,
        readers=options.readers,
        tuned="" if tuner is None else tuner.why,
        imported=_slow_imports(runner, stats),
    )


def _slow_imports(runner: Any, stats: Stats) -> Sequence[str]:
    """Return the frameworks that make the workers' start slow."""
    engine = runner.engine
    # A forked worker maps what this process has imported.
    started = runner.options.start_method != "fork"
    slow = stats.launch_s + stats.startup_s >= STARTUP_S or not stats.batches
    if engine is not None and started and slow and not runner.imports:
        from ringfeed.monitor.memory import frameworks_in  # noqa: PLC0415 - if needed

        runner.imports = frameworks_in(engine.pool.pids())
    found: Sequence[str] = runner.imports
    return found


def share_waited(stats: Stats) -> float | None:
    """Return the share of the time since the first batch that training waited.

    None where it is too early to say.
    """
    elapsed_s = stats.elapsed_s - stats.startup_s
    return (
        (stats.stall_s - stats.startup_s) / elapsed_s
        if stats.batches and elapsed_s >= EARLY_S
        else None
    )


def bound(waited: float, waits: Waits, *lines: tuple[str, ...]) -> Verdict:
    """Return the verdict on a training that waited for this share of the time."""
    if waited < WAITED:
        return Verdict("compute-bound", (f"training waited {waited:.1%} of the time",), *lines)
    each = f" ({waits} a batch)" if waits.batches else ""
    return Verdict("input-bound", (f"training waited {waited:.0%} of the time{each}",), *lines)


def _cost(stats: Stats) -> str:
    """Say what a sample costs, and how much of it is the copy, where that is much."""
    cost = f"{show_s(stats.busy_s / max(stats.samples, 1))} a sample"
    if stats.write_s <= COPIES * (stats.read_s + stats.write_s):
        return cost
    return (
        f"{cost} (of it {show_s(stats.write_s)} for the copy into the slot, which read_into() "
        "saves)"
    )


def _shortage(  # noqa: PLR0913 - what a loader is
    busy: float, cost: str, workers: int, slots: int, cpus: int, *, is_read_apart: bool
) -> tuple[str, str]:
    """Say what the input lacks."""
    if busy < BUSY and is_read_apart:
        seen = (
            f"workers are only {busy:.0%} busy, and one process reads the iterable for all of them"
        )
        change = (
            "make what it does cheaper, leave more of it to transform=, or read parts side by "
            "side with Interleave"
        )
    elif busy < BUSY:
        seen = f"workers are only {busy:.0%} busy, so it comes in bursts or they wait for slots"
        change = f"raise slots= (now {slots}), and let go of batches sooner"
    else:
        seen = f"workers are {busy:.0%} busy in dataset[i], {cost}"
        change = f"add workers (now {workers}, for {cpus} CPUs) or make it cheaper"
        if workers >= cpus:
            seen += f", and there are no more than {cpus} CPUs"
            change = "make it cheaper (`ringfeed profile` says where)"
    return seen, change


def _surplus(busy: float, workers: int, slots: int, slot_size: int) -> tuple[str, str]:
    """Say what could be saved."""
    enough = max(1, math.ceil(workers * busy * HEADROOM))
    savings = []
    if enough < workers:
        savings.append(f"{enough} worker{'s' * (enough > 1)} would do")
    if slots > MIN_SLOTS and busy < BUSY:
        savings.append(
            f"{MIN_SLOTS} slots would do, saving {show_bytes((slots - MIN_SLOTS) * slot_size)}"
        )
    return f"workers are {busy:.0%} busy", ", ".join(savings) or "nothing to change"

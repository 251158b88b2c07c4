"""What the statistics of a loader mean, in words that a user can act on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ringfeed._units import show_bytes, show_s
from ringfeed.ring.segment import MIN_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.monitor.stats import Stats

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
) -> str:
    """Say what waits for what, and what to change.

    ``workers`` of 0 fill in the consumer, so that all of the filling is waiting. Shares are of the time
    since the first batch. ``concurrency``: of samples that wait, how many are in flight; ``readers``: processes that
    read an iterable for the workers; ``tuned``: why what is "auto" is as it is; ``imported``: frameworks that workers
    import.
    """
    why = f"workers import {', '.join(imported)}" if imported else STARTS
    if workers and not stats.batches and (since_s := stats.launch_s + stats.elapsed_s) >= STARTUP_S:
        return f"no batch in {show_s(since_s)}: {why}"
    advice = _in_flight(concurrency, slots) if concurrency else tuned and f"auto: {tuned}"
    told = _since_first_batch(stats, workers, slots, slot_size, cpus, advice, is_read_apart=readers > 0)
    took_s = stats.launch_s + stats.startup_s
    return told + f"; start-up took {show_s(took_s)} before the first batch: {why}" * (took_s >= STARTUP_S)


def _since_first_batch(  # noqa: PLR0913, PLR0917 - as above
    stats: Stats, workers: int, slots: int, slot_size: int, cpus: int, advice: str, *, is_read_apart: bool
) -> str:
    elapsed_s = stats.elapsed_s - stats.startup_s
    if not stats.batches or elapsed_s < EARLY_S:
        return f"too early to say: {stats.batches} batches in {elapsed_s:.1f} s"
    waited = (stats.stall_s - stats.startup_s) / elapsed_s
    cost = _cost(stats)
    if not workers:
        return (
            f"in this process: {waited:.0%} of the time went into filling batches, {cost}; workers= would do it beside"
        )
    busy = (stats.busy_s - stats.startup_busy_s) / (workers * elapsed_s)
    if waited >= WAITED:
        if is_read_apart and busy < BUSY:
            advice = advice or _of_reader(busy)
        advice = advice or _shortage(busy, cost, workers, slots, cpus)
        return f"input-bound: training waited {waited:.0%} of the time; {advice}"
    advice = advice or _surplus(busy, workers, slots, slot_size)
    return f"compute-bound: training waited {waited:.1%} of the time; {advice}"


def _in_flight(concurrency: int, slots: int) -> str:
    """Say how many samples are waited for at a time."""
    return f"concurrency={concurrency} and slots={slots} say how many samples are in flight"


def _of_reader(busy: float) -> str:
    """Say that the process which reads for the workers has no more to give."""
    return (
        f"workers are only {busy:.0%} busy, and one process reads the iterable for all of them: make what it does "
        f"cheaper, leave more of it to transform=, or read parts side by side with Interleave"
    )


def _cost(stats: Stats) -> str:
    """Say what a sample costs, and how much of it is the copy, where that is much."""
    cost = f"{show_s(stats.busy_s / max(stats.samples, 1))} a sample"
    if stats.write_s <= COPIES * (stats.read_s + stats.write_s):
        return cost
    return f"{cost} (of it {show_s(stats.write_s)} for the copy into the slot, which read_into() saves)"


def _shortage(busy: float, cost: str, workers: int, slots: int, cpus: int) -> str:
    """Say what the input lacks."""
    if busy < BUSY:
        return (
            f"workers are only {busy:.0%} busy, so it comes in bursts or they wait for slots: raise slots= "
            f"(now {slots}), and let go of batches sooner"
        )
    full = f"workers are {busy:.0%} busy in dataset[i], {cost}"
    if workers < cpus:
        return f"{full}: add workers (now {workers}, for {cpus} CPUs) or make it cheaper"
    return f"{full}, and there are no more than {cpus} CPUs: make it cheaper (`ringfeed profile` says where)"


def _surplus(busy: float, workers: int, slots: int, slot_size: int) -> str:
    """Say what could be saved."""
    enough = max(1, math.ceil(workers * busy * HEADROOM))
    savings = []
    if enough < workers:
        savings.append(f"{enough} worker{'s' * (enough > 1)} would do")
    if slots > MIN_SLOTS and busy < BUSY:
        savings.append(f"{MIN_SLOTS} slots would do, saving {show_bytes((slots - MIN_SLOTS) * slot_size)}")
    return f"workers are {busy:.0%} busy: " + (", ".join(savings) or "nothing to change")

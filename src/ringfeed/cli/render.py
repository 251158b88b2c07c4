"""What the slots, the workers and the consumer of a running loader are at, for the terminal.

Two looks at a loader, an interval apart, make a picture: lines of parts, each a text and the name of its style.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ringfeed._units import show_bytes, show_s
from ringfeed.monitor.bottleneck import STARTS, verdict
from ringfeed.monitor.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfeed.ring.snapshot import Geometry, Slot, Snapshot, Worker

Part: TypeAlias = tuple[str, str]
Line: TypeAlias = list[Part]

LONG_S = 10.0  # at one ticket
VERDICT_LINES = 3  # kept for it, where lines are counted
STRIP = 64  # slots a line
STYLES = {"held": "magenta", "ready": "green", "filling": "yellow", "draining": "red", "free": "dim", "parked": "dim"}
LETTERS = {"held": "H", "ready": "R", "filling": "F", "draining": "D", "free": ".", "parked": "-"}


@dataclass(frozen=True)
class Pair:
    """Two looks at a loader, and what has happened between them."""

    before: Snapshot
    after: Snapshot
    conditions: Mapping[int, str]  # of worker processes that do not run, by pid

    @property
    def seconds(self) -> float:
        """The interval."""
        return max((self.after.at_ns - self.before.at_ns) / 1e9, 1e-9)

    @property
    def batches(self) -> int:
        """Batches taken."""
        return self.after.consumer.batches - self.before.consumer.batches

    @property
    def samples(self) -> int:
        """Samples taken."""
        return self.after.consumer.samples - self.before.consumer.samples

    @property
    def stall_s(self) -> float:
        """Seconds that the consumer waited, what it waits now included."""
        before_ns, after_ns = (
            look.consumer.stall_ns + _age_ns(look, look.consumer.wait_ns) for look in (self.before, self.after)
        )
        return min(max(after_ns - before_ns, 0) / 1e9, self.seconds)

    def busy_s(self, number: int) -> float:
        """Seconds that a worker was at tickets, the one that it is at included."""
        before_ns, after_ns = (
            look.workers[number].busy_ns + _age_ns(look, look.workers[number].since_ns)
            for look in (self.before, self.after)
        )
        return min(max(after_ns - before_ns, 0) / 1e9, self.seconds)


def _age_ns(look: Snapshot, since_ns: int) -> int:
    return max(look.at_ns - since_ns, 0) if since_ns else 0


# ---- the picture of a loader ----


def picture(  # noqa: PLR0913 - what it is made of
    number: int, geometry: Geometry, past: Pair, now: Pair, *, cpus: int, width: int, height: int | None = None
) -> list[Line]:
    """Return a loader's picture, at most ``height`` lines if they are to be counted: first of all slots give way.

    The rates are those between the looks of ``now``, the verdict is on those of ``past``.
    """
    look = now.after
    crew = crew_of(geometry, look)
    said = textwrap.wrap(_verdict(geometry, past, len(crew), cpus), max(width - 2, 1))
    if height is not None:
        said += [""] * (VERDICT_LINES - len(said))  # what is below stays where it is
    top = [
        _headline(number, geometry, look, len(crew)),
        _rates(geometry, now),
        *([(f"  {text}", "")] for text in said),
        *_strip(look),
    ]
    slots = [_SLOTS_HEAD, *(_slot(place, slot, look) for place, slot in enumerate(look.slots))]
    workers = [_worker(worker, now) for worker in crew]
    room = len(slots) + len(workers) if height is None else height - len(top) - 1
    if room < len(slots) + len(workers):
        slots = []
    if room < len(workers):
        kept = max(room - 1, 0)
        workers = [*workers[:kept], _others(crew[kept:], now)]
    return [*top, *slots, _WORKERS_HEAD, *workers][: None if height is None else max(height, 0)]


def crew_of(geometry: Geometry, look: Snapshot) -> list[int]:
    """Return the numbers of the workers that there are: those with a process, or all, if they are threads."""
    return [number for number, worker in enumerate(look.workers) if worker.pid] or [*range(geometry.workers)]


def _headline(number: int, geometry: Geometry, look: Snapshot, workers: int) -> Line:
    opened = look.consumer.open_slots
    which = f"{geometry.slots}" if opened == geometry.slots else f"{opened} of {geometry.slots}"
    epochs = [slot.epoch for slot in look.slots if slot.state in ("filling", "ready", "held")]
    parts = [
        f"{which} slot{'s' * (geometry.slots != 1)} of {show_bytes(geometry.slot_size)}",
        f"{workers} worker{'s' * (workers != 1)}",
        f"epoch {max(epochs, default=0)}",
        f"{look.consumer.batches:,} batches so far",
    ]
    return [(f"loader {number}", "bold"), ("   " + "   ".join(parts), "")]


def _in_process(look: Snapshot) -> bool:
    """Whether the consumer fills by itself: workers have an id to spare."""
    return len(look.workers) == 1


def _rates(geometry: Geometry, now: Pair) -> Line:
    # A slot of one row is a whole batch, whose samples are not known to be of one size.
    rows = now.batches if geometry.rows == 1 else now.samples / geometry.rows
    rate = show_bytes(int(rows * geometry.fields_size / now.seconds))
    share = now.stall_s / now.seconds
    style = "bold red" if share >= 0.5 else "yellow" if share >= 0.05 else "green"  # noqa: PLR2004 - as in the verdict
    return [
        (f"  stall {share:4.0%} {'waits' if now.after.consumer.wait_ns else '':<5}", style),
        (f"  {now.batches / now.seconds:8,.1f} batches/s  {now.samples / now.seconds:10,.0f} samples/s", "bold"),
        (f"  {rate:>9}/s", "bold"),
    ]


def _verdict(geometry: Geometry, past: Pair, workers: int, cpus: int) -> str:
    look = past.after
    if not past.batches:
        waited_s = _age_ns(look, look.consumer.wait_ns) / 1e9
        if waited_s and not look.consumer.batches and not _in_process(look):
            return f"training has waited {show_s(waited_s)} for the first batch: {STARTS}"
        if waited_s:
            return f"training has waited {show_s(waited_s)} for the next batch"
        return f"no batch was taken for {show_s(past.seconds)}: training is at something else"
    if not past.before.consumer.batches and not _in_process(look):
        return f"too early to say: {past.batches} batches so far"
    rows = range(len(look.workers))
    timed, read_ns, write_ns = (
        sum(getattr(look.workers[row], name) - getattr(past.before.workers[row], name) for row in rows)
        for name in ("timed", "read_ns", "write_ns")
    )
    stats = Stats(
        batches=past.batches,
        samples=past.samples,
        stall_s=past.stall_s,
        busy_s=sum(past.busy_s(row) for row in rows),
        read_s=read_ns / max(timed, 1) / 1e9,
        write_s=write_ns / max(timed, 1) / 1e9,
        elapsed_s=past.seconds,
    )
    crew = 0 if _in_process(look) else max(workers, 1)
    return verdict(stats, workers=crew, slots=look.consumer.open_slots, slot_size=geometry.slot_size, cpus=cpus)


def _strip(look: Snapshot) -> Iterator[Line]:
    """Yield a letter a slot, and how many there are of each."""
    for first in range(0, len(look.slots), STRIP):
        states = [slot.state for slot in look.slots[first : first + STRIP]]
        yield [("  slots  " if not first else "         ", ""), *((LETTERS[state], STYLES[state]) for state in states)]
    counts = Counter(slot.state for slot in look.slots)
    digits = len(str(len(look.slots)))
    line: Line = [("        ", "")]
    for state, letter in LETTERS.items():
        if counts[state] or state not in ("draining", "parked"):
            style = STYLES[state] if counts[state] else "dim"
            line += [(" ", ""), (f"{letter} {state} {counts[state]:>{digits}}", style), (" ", "")]
    oldest_ns = max((_age_ns(look, slot.held_ns) for slot in look.slots if slot.state == "held"), default=0)
    yield [*line, (f"  longest held {show_s(oldest_ns / 1e9)}" if oldest_ns else "", "")]


_SLOTS_HEAD: Line = [("   slot  state         batch  rows  tickets", "dim")]


def _slot(number: int, slot: Slot, look: Snapshot) -> Line:
    told = {
        "held": f"held for {show_s(_age_ns(look, slot.held_ns) / 1e9)}",
        "ready": f"all {slot.tickets}",
        "filling": f"{slot.over} of {slot.tickets} over, {slot.claimed} at work",
        "draining": f"{slot.claimed} still at work",
    }
    whose = f"{slot.batch:>9,}  {slot.rows:>4}  {told[slot.state]}" if slot.state in told else ""
    return [(f"  {number:>5}  ", ""), (f"{slot.state:<9} ", STYLES[slot.state]), (whose, "")]


_WORKERS_HEAD: Line = [(" worker      pid  busy  samples/s  a sample  write    ticket  at", "dim")]


def _worker(number: int, now: Pair) -> Line:
    before, after = now.before.workers[number], now.after.workers[number]
    busy_s = now.busy_s(number)
    samples = max(after.samples - before.samples, 0)
    timed_ns = after.read_ns - before.read_ns + after.write_ns - before.write_ns
    age_s = _age_ns(now.after, after.since_ns) / 1e9
    figures = [
        f"{number:>7}",
        f"{after.pid or ('itself' if _in_process(now.after) else 'thread'):>8}",
        f"{busy_s / now.seconds:>5.0%}",
        f"{samples / now.seconds:>10,.0f}",
        f"{show_s(busy_s / samples) if samples else '-':>9}",
        f"{(after.write_ns - before.write_ns) / timed_ns:>6.0%}" if timed_ns > 0 else "     -",
    ]
    ticket = f"{show_s(age_s) if after.since_ns else '-':>9}"
    at = _at(after, now.conditions.get(after.pid, ""))
    style = "bold red" if after.pid in now.conditions else "red" if age_s >= LONG_S else ""
    return [("".join(figures), ""), (ticket, style), (f"  {at}", style)]


def _at(worker: Worker, condition: str) -> str:
    return " ".join(filter(None, [condition, worker.place])) or worker.doing


def _others(numbers: list[int], now: Pair) -> Line:
    busy = sum(now.busy_s(number) for number in numbers) / now.seconds / len(numbers)
    oldest = max(numbers, key=lambda number: _age_ns(now.after, now.after.workers[number].since_ns))
    age_s = _age_ns(now.after, now.after.workers[oldest].since_ns) / 1e9
    return [(f"  ... {len(numbers)} more, {busy:.0%} busy; longest at a ticket: {oldest}, {show_s(age_s)}", "")]

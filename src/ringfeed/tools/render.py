"""Two looks at a running loader as tables of rich: its slots, its workers and its consumer.

a summary: counts, rates, the verdict, a letter a slot, how busy the workers are
a line a worker
a line a slot
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from ringfeed._units import show_bytes, show_s
from ringfeed.monitor.bottleneck import STARTS, WAITED, verdict
from ringfeed.monitor.stats import Stats
from ringfeed.monitor.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ringfeed.monitor.snapshot import Geometry, Slot, Snapshot
    from ringfeed.tools.discover import Attached, Target

LONG_S = 10.0  # at one ticket, which is shown as a part of a batch
MUCH = 0.5  # of the time
VERDICT_LINES = 3  # kept for it, so that what is below stays where it is
STYLES = {
    "held": "magenta",
    "ready": "green",
    "filling": "yellow",
    "draining": "red",
    "free": "dim",
    "parked": "dim",
}
LETTERS = {"held": "H", "ready": "R", "filling": "F", "draining": "D", "free": ".", "parked": "-"}
RARE = ("draining", "parked")  # states that are counted only where a slot is in them
WORKER_WIDTHS = {
    "worker": 8,
    "pid": 7,
    "busy": 4,
    "samples/s": 9,
    "a sample": 8,
    "copy": 5,
    "for": 8,
}
APART = (0, 2, 0, 0)  # two blanks between columns
SLOT_WIDTHS = {"slot": 8, "batch": 9, "rows": 4}


class Pair(NamedTuple):
    """Two looks at a loader."""

    before: Snapshot
    after: Snapshot

    @property
    def seconds(self) -> float:
        """The interval."""
        return max((self.after.at_ns - self.before.at_ns) / 1e9, 1e-9)

    def spent_s(self, sum_ns: Callable[[Snapshot], int]) -> float:
        """Return by how many seconds a sum of time has grown, at most the interval."""
        return min(max(sum_ns(self.after) - sum_ns(self.before), 0) / 1e9, self.seconds)

    def busy_s(self, number: int) -> float:
        """Seconds that a worker was at tickets, the one that it is at included."""
        return self.spent_s(
            lambda look: look.workers[number].busy_ns + _age_ns(look, look.workers[number].since_ns)
        )

    def ticket_s(self, number: int) -> float:
        """Seconds that a worker has been at its ticket; 0 where it has none."""
        return _age_ns(self.after, self.after.workers[number].since_ns) / 1e9

    def waits(self) -> Waits:
        """Return the waits for the batches that were taken in between."""
        before, after = self.before.waits, self.after.waits
        return Waits.of([0] if before is None else after - before)

    def stats(self) -> Stats:
        """Return what happened in between as statistics; waits under way are included."""
        before, after = self.before.consumer, self.after.consumer
        rows = list(zip(self.before.workers, self.after.workers, strict=True))
        timed = max(sum(new.timed - old.timed for old, new in rows), 1)
        return Stats(
            batches=after.batches - before.batches,
            samples=after.samples - before.samples,
            stall_s=self.spent_s(
                lambda look: look.consumer.stall_ns + _age_ns(look, look.consumer.wait_ns)
            ),
            busy_s=sum(map(self.busy_s, range(len(rows)))),
            read_s=sum(new.read_ns - old.read_ns for old, new in rows) / timed / 1e9,
            write_s=sum(new.write_ns - old.write_ns for old, new in rows) / timed / 1e9,
            elapsed_s=self.seconds,
        )


def _age_ns(look: Snapshot, since_ns: int) -> int:
    return max(look.at_ns - since_ns, 0) if since_ns else 0


def line(*parts: str | tuple[str, str]) -> Text:
    """Return texts, or texts with styles, as one line, which is never wrapped."""
    return Text.assemble(*parts, no_wrap=True, overflow="crop")


# ---- the picture of a loader ----


def picture(target: Target, loader: Attached) -> Group:
    """Return a loader's picture.

    The rates are those since the last look; the verdict is on all looks that are kept.
    """
    *_, last, look = loader.looks
    now, past = Pair(last, look), Pair(loader.looks[0], look)
    geometry, stats = loader.observer.geometry, now.stats()
    # The workers that there are: those with a process, or all, if they are threads.
    crew = [number for number, worker in enumerate(look.workers) if worker.pid] or [
        *range(geometry.workers)
    ]
    letters = ((LETTERS[slot.state], STYLES[slot.state]) for slot in look.slots)
    summary = Table.grid(Column(min_width=8), Column(), padding=APART, pad_edge=False)
    summary.add_row(
        line((f"loader {loader.number}", "bold")), line(_counts(geometry, look, len(crew)))
    )
    is_waiting = look.consumer.wait_ns > 0
    summary.add_row(
        "training", line(_stall(stats), _rates(geometry, stats), "  waits now" * is_waiting)
    )
    if (waits := past.waits()).batches:
        summary.add_row("a batch", line(f"waits: {waits}"))
    summary.add_row(
        "\n" * (VERDICT_LINES - 1), Text(_verdict(geometry, past, len(crew), target.cpus()))
    )
    summary.add_row("slots", Text.assemble(*letters, overflow="fold"))
    summary.add_row("", line(*_states(look)))
    summary.add_row("workers", line(_work(crew, now)))
    return Group(summary, _workers(crew, now), _slots(look))


def _counts(geometry: Geometry, look: Snapshot, workers: int) -> str:
    opened = look.consumer.open_slots
    which = f"{geometry.slots}" if opened == geometry.slots else f"{opened} of {geometry.slots}"
    epochs = [slot.epoch for slot in look.slots if slot.state in ("filling", "ready", "held")]
    parts = [
        f"{which} slot{'s' * (geometry.slots != 1)} of {show_bytes(geometry.slot_size)}",
        f"{workers} worker{'s' * (workers != 1)}",
        f"epoch {max(epochs, default=0)}",
        f"{look.consumer.batches:,} batches so far",
    ]
    return "   ".join(parts)


def _in_process(look: Snapshot) -> bool:
    """Whether the consumer fills by itself: workers have an id to spare."""
    return len(look.workers) == 1


def _stall(stats: Stats) -> tuple[str, str]:
    share = stats.stall_s / stats.elapsed_s
    style = "bold red" if share >= MUCH else "yellow" if share >= WAITED else "green"
    return f"waits {share:4.0%}  ", style


def _rates(geometry: Geometry, stats: Stats) -> tuple[str, str]:
    # A slot of one row is a whole batch, whose samples are not known to be of one size.
    rows = stats.batches if geometry.rows == 1 else stats.samples / geometry.rows
    batches, samples, size = (
        count / stats.elapsed_s
        for count in (stats.batches, stats.samples, rows * geometry.fields_size)
    )
    return (
        f"{batches:8,.1f} batches/s  {samples:10,.0f} samples/s  {show_bytes(int(size)):>9}/s",
        "bold",
    )


def _verdict(geometry: Geometry, past: Pair, workers: int, cpus: int) -> str:
    look, stats = past.after, past.stats()
    if not stats.batches:
        waited_s = _age_ns(look, look.consumer.wait_ns) / 1e9
        if waited_s and not look.consumer.batches and not _in_process(look):
            return f"training has waited {show_s(waited_s)} for the first batch: {STARTS}"
        if waited_s:
            return f"training has waited {show_s(waited_s)} for the next batch"
        return f"no batch was taken for {show_s(past.seconds)}: training is at something else"
    if not past.before.consumer.batches and not _in_process(look):
        return f"too early to say: {stats.batches} batches so far"
    crew = 0 if _in_process(look) else max(workers, 1)
    return verdict(
        stats, workers=crew, slots=look.consumer.open_slots, slot_size=geometry.slot_size, cpus=cpus
    )


def _states(look: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield how many slots there are in each state, and since when the oldest is held."""
    counts = Counter(slot.state for slot in look.slots)
    digits = len(str(len(look.slots)))
    for state, letter in LETTERS.items():
        if counts[state] or state not in RARE:
            yield (
                f"{letter} {state} {counts[state]:>{digits}}  ",
                STYLES[state] if counts[state] else "dim",
            )
    oldest_ns = max(
        (_age_ns(look, slot.held_ns) for slot in look.slots if slot.state == "held"), default=0
    )
    yield f"longest held {show_s(oldest_ns / 1e9)}" if oldest_ns else "", ""


def _work(numbers: list[int], now: Pair) -> str:
    """Say how busy the workers are together, and which has worked on its part for longest."""
    busy = f"{sum(map(now.busy_s, numbers)) / now.seconds / max(len(numbers), 1):.0%} busy"
    longest = max(numbers, key=now.ticket_s, default=0)
    age_s = now.ticket_s(longest)
    at_work = f"worker {longest} has worked on one part of a batch for {show_s(age_s)}"
    return f"{busy}   {at_work}" if age_s else busy


# ---- a line each ----


def _table(widths: Mapping[str, int], last: str) -> Table:
    """Return a table of figures in columns of fixed widths, and of a last column of words."""
    figures = (
        Column(name, justify="right", min_width=width, no_wrap=True)
        for name, width in widths.items()
    )
    return Table(*figures, last, box=None, padding=APART, pad_edge=False, header_style="dim")


def _workers(numbers: list[int], now: Pair) -> Table:
    table = _table(WORKER_WIDTHS, "does")
    for number in numbers:
        worker = now.after.workers[number]
        style = "red" if now.ticket_s(number) >= LONG_S else ""
        *figures, ticket = _figures(number, now)
        doing = f"reads {worker.place}" if worker.place else worker.doing
        table.add_row(*figures, Text(ticket, style), line((doing, style)))
    return table


def _figures(number: int, now: Pair) -> Iterator[str]:
    before, after = now.before.workers[number], now.after.workers[number]
    samples = max(after.samples - before.samples, 0)
    write_ns = after.write_ns - before.write_ns
    timed_ns = after.read_ns - before.read_ns + write_ns
    yield f"{number}"
    yield f"{after.pid or ('itself' if _in_process(now.after) else 'thread')}"
    yield f"{now.busy_s(number) / now.seconds:.0%}"
    yield f"{samples / now.seconds:,.0f}"
    yield show_s(now.busy_s(number) / samples) if samples else "-"
    yield f"{write_ns / timed_ns:.0%}" if timed_ns > 0 else "-"
    yield show_s(now.ticket_s(number)) if after.since_ns else "-"


def _slots(look: Snapshot) -> Table:
    table = _table(SLOT_WIDTHS, "state")
    for number, slot in enumerate(look.slots):
        state = _state(slot, look)
        batch = (
            ("", "") if slot.state in ("free", "parked") else (f"{slot.batch:,}", f"{slot.rows}")
        )
        table.add_row(f"{number}", *batch, line((state, STYLES[slot.state])))
    return table


def _state(slot: Slot, look: Snapshot) -> str:
    """Say how far the batch of a slot is; the bare state where the slot has none."""
    told = {
        "held": f"held by training for {show_s(_age_ns(look, slot.held_ns) / 1e9)}",
        "ready": "ready",
        "filling": f"filling: {slot.over} of {slot.tickets} parts done, {slot.claimed} in work",
        "draining": f"cancelled: {slot.claimed} parts still in work",
    }
    return told.get(slot.state, slot.state)

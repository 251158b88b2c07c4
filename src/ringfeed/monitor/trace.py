"""A timeline of a running loader, for chrome://tracing and ui.perfetto.dev.

A thread looks at the control block every millisecond or so: the hot path carries nothing for it.
When a batch was taken, and for how long it had been waited for, the ring knows by itself, and when
a worker claimed its ticket, and for how long it was at the one before; the other states of slots
are right to the interval. Tickets that come and go between two looks are drawn as one.

The file is in the Trace Event Format ("JSON Object Format", Google, 2016): complete events, times
in microseconds.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.monitor.memory import own_bytes
from ringfeed.ring import _ring

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Self

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.monitor.bottleneck import Verdict
    from ringfeed.monitor.snapshot import Slot, Snapshot, Worker
    from ringfeed.monitor.stats import Stats

EVERY_S = 0.001
MEMORY_NS = 250_000_000  # between two looks at the memory of processes
# Each kind is drawn as a process, its lines as threads; 0 would be the idle thread of a CPU.
KINDS = {1: "consumer", 2: "workers", 3: "slots"}
CONSUMER, WORKER, SLOT = 1, 2, 3
LINES = 1000  # a kind
PAGES = (".html", ".htm")


class _State(NamedTuple):
    """What a slot is at, and since when."""

    name: str = ""
    since_ns: int = 0
    detail: tuple[int, int] = (0, 0)  # batch, epoch


@dataclass
class _Ticket:
    """What a worker was at by the last look, and had done."""

    name: str = ""
    since_ns: int = 0
    busy_ns: int = 0
    tickets: int = 0


@dataclass
class _Step:
    """What the consumer was at by the last look."""

    name: str = ""
    since_ns: int = 0
    stall_ns: int = 0  # all that was counted
    waited_ns: int = 0  # of it, what belongs to a batch that is not taken yet


def begin_trace(
    loader: Any,
    path: str | os.PathLike[str],
    observer: Callable[[], Observer | None],
    verdict: Callable[[Any, Stats], Verdict],
) -> Trace:
    """Begin a trace that makes a page, or a file for other programs, as the name of the file says.

    At its end it says what the loader has done since its beginning, if the loader is still there.
    ``verdict``: what the loader says of statistics. ModuleNotFoundError where a page cannot be
    drawn.
    """
    save = save_json
    if Path(path).suffix.lower() in PAGES:
        from ringfeed.monitor.page import check_bokeh, save_page  # noqa: PLC0415 - it needs an optional package

        check_bokeh()
        save = save_page
    from ringfeed import __version__  # noqa: PLC0415 - the package itself imports this one

    began = {"program": "ringfeed", "version": __version__, "began": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    known, before = weakref.ref(loader), copy(loader.stats())

    def facts() -> dict[str, Any]:
        """Return what is said of the loader, as JSON."""
        if (found := known()) is None:
            return began
        stats = found.stats()
        done = stats.since(before)
        said = verdict(found, done)
        return began | {
            "loader": repr(found),
            "verdict": said,
            "limit": said.kind,
            "seen": said.lines,
            "batches": done.batches,
            "samples": done.samples,
            "restarts": done.restarts,
            "slot_size": found.plan.slot_size,
            "memory": str(stats.memory),
        }

    return Trace(observer, path, facts=facts, save=save)


def save_json(document: dict[str, Any], path: Path) -> None:
    """Write the file as other programs read it."""
    path.write_text(json.dumps(document))


class Trace:
    """Draws until `stop`, which writes the file. Also a context manager."""

    def __init__(
        self,
        observer: Callable[[], Observer | None],
        path: str | os.PathLike[str],
        every_s: float = EVERY_S,
        *,
        facts: Callable[[], dict[str, Any]] = dict,
        save: Callable[[dict[str, Any], Path], object] = save_json,
    ) -> None:
        """Begin to look. ``observer()`` is that of the ring that runs now, or None; OSError if there can be no file.

        ``facts()`` is asked at the end, for what is said of the loader beside the timeline;
        ``save`` writes it all.
        """
        self._observer = observer
        self._facts, self._save = facts, save
        self._path = Path(path)
        self._path.touch()
        self._every_s = every_s
        self._began_ns = _ring.now_ns()
        self._events: list[dict[str, Any]] = []
        self._names: dict[tuple[int, int], str] = {}
        self._seen: weakref.ref[Observer] | None = None  # whose ring is drawn; not kept, or its memory would stay
        self._looked_ns = self._began_ns
        self._weighed_ns = 0
        self._step = _Step()
        self._tickets: dict[int, _Ticket] = {}
        self._states: dict[int, _State] = {}
        first = self._read()
        if first is not None:
            self._skip(first)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringfeed-trace", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and write the file."""
        self.stop()

    def stop(self) -> None:
        """Write the file; once. OSError where that cannot be done."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._finish(_ring.now_ns())
        events = [*self._titles(), *self._events]
        self._save({"traceEvents": events, "displayTimeUnit": "ms", "otherData": self._facts()}, self._path)

    # ---- looking ----

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            snapshot = self._read()
            if snapshot is not None:
                self.look(snapshot)
                self._weigh(snapshot)
            self._looked_ns = _ring.now_ns()

    def _read(self) -> Snapshot | None:
        """Read the ring that runs now, if one does; another one is drawn after the one before."""
        observer = self._observer()
        if observer is None:
            return None
        if self._seen is None or self._seen() is not observer:
            self._finish(self._looked_ns)
            self._seen = weakref.ref(observer)
        return observer.snapshot()

    def _skip(self, look: Snapshot) -> None:
        """Begin with this look: nothing of what was before is drawn."""
        self._step = _Step("", look.at_ns, look.consumer.stall_ns)
        for number, worker in enumerate(look.workers):
            self._tickets[number] = _Ticket("", 0, worker.busy_ns, worker.tickets - bool(worker.since_ns))

    def look(self, look: Snapshot) -> None:
        """Draw what has changed since the last look."""
        self._consumer(look)
        for number, worker in enumerate(look.workers):
            self._worker(number, worker, look.at_ns)
        for number, slot in enumerate(look.slots):
            self._slot(number, slot, look.at_ns)

    def _finish(self, now_ns: int) -> None:
        """Draw what is under way, and begin anew: whatever another ring has done comes after this."""
        self._take("", now_ns)
        for number, ticket in self._tickets.items():
            if ticket.since_ns:
                self._event(WORKER, number, ticket.name, ticket.since_ns, now_ns)
        for number, state in self._states.items():
            self._change(number, state, _State("", now_ns))
        self._step, self._tickets, self._states = _Step("", now_ns), {}, {}

    # ---- the consumer ----

    def _consumer(self, look: Snapshot) -> None:
        self._name(CONSUMER, 0, "consumer")
        step = self._step
        step.waited_ns += look.consumer.stall_ns - step.stall_ns  # counted when the wait is over
        step.stall_ns = look.consumer.stall_ns
        for slot in sorted(look.slots, key=lambda slot: slot.held_ns):
            if slot.held_ns > step.since_ns:
                self._take(f"step {slot.batch}" if slot.state == "held" else "step", slot.held_ns)

    def _take(self, name: str, at_ns: int) -> None:
        """Draw the step before this moment, and the wait at its end; another one begins."""
        step = self._step
        waited_ns = min(step.waited_ns, max(at_ns - step.since_ns, 0))
        self._event(CONSUMER, 0, step.name, step.since_ns, at_ns - waited_ns)
        self._event(CONSUMER, 0, "stall", at_ns - waited_ns, at_ns)
        self._step = _Step(name, at_ns, step.stall_ns, step.waited_ns - waited_ns)

    # ---- workers ----

    def _worker(self, number: int, worker: Worker, now_ns: int) -> None:
        if not worker.tickets:
            return  # an id that is not in use
        self._name(WORKER, number, f"worker {number}")
        seen = self._tickets.setdefault(number, _Ticket())
        over = worker.tickets - seen.tickets + bool(seen.since_ns) - bool(worker.since_ns)
        if over > 0:
            self._draw_tickets(number, seen, over, worker.busy_ns, worker.since_ns or now_ns)
        if worker.since_ns != seen.since_ns:
            seen.name = worker.place or "ticket"
        seen.since_ns, seen.busy_ns, seen.tickets = worker.since_ns, worker.busy_ns, worker.tickets

    def _draw_tickets(self, number: int, seen: _Ticket, over: int, busy_ns: int, until_ns: int) -> None:
        """Draw the ticket that was seen, if there was none since, by the ring's times; else all of them as one."""
        spent_ns = busy_ns - seen.busy_ns
        if seen.since_ns and over == 1:
            self._event(WORKER, number, seen.name, seen.since_ns, seen.since_ns + spent_ns)
            return
        name = f"{over} tickets" if over > 1 else "ticket"
        began_ns = max(until_ns - spent_ns, seen.since_ns)
        self._event(WORKER, number, name, began_ns, until_ns, detail={"busy_us": spent_ns / 1e3})

    # ---- slots ----

    def _slot(self, number: int, slot: Slot, now_ns: int) -> None:
        self._name(SLOT, number, f"slot {number}")
        state = self._states.setdefault(number, _State("", now_ns))
        if slot.state in ("free", "parked"):
            now = _State("" if slot.state == "free" else slot.state, now_ns)
        else:
            since_ns = slot.held_ns if slot.state == "held" else now_ns
            now = _State(f"{slot.state} {slot.batch}", max(since_ns, state.since_ns), (slot.batch, slot.epoch))
        if now.name != state.name:
            self._change(number, state, now)

    def _change(self, number: int, state: _State, now: _State) -> None:
        """Draw the state that is over."""
        batch, epoch = state.detail
        self._event(SLOT, number, state.name, state.since_ns, now.since_ns, detail={"batch": batch, "epoch": epoch})
        self._states[number] = now

    # ---- memory ----

    def _weigh(self, look: Snapshot) -> None:
        """Draw now and then what this process and its workers have of memory of their own."""
        if look.at_ns - self._weighed_ns < MEMORY_NS:
            return
        self._weighed_ns = look.at_ns
        sizes = {
            "this process": own_bytes("self"),
            "workers": sum(own_bytes(worker.pid) for worker in look.workers if worker.pid),
        }
        at_us = (look.at_ns - self._began_ns) / 1e3
        self._events.append({"ph": "C", "name": "memory", "pid": CONSUMER, "ts": at_us, "args": sizes})

    # ---- drawing ----

    def _name(self, kind: int, number: int, name: str) -> None:
        self._names[kind, number] = name

    def _titles(self) -> list[dict[str, Any]]:
        """Return the names of all lines, and their order."""
        titles = []
        for kind in sorted({kind for kind, _ in self._names}):
            titles += [
                {"ph": "M", "name": "process_name", "pid": kind, "args": {"name": f"ringfeed {KINDS[kind]}"}},
                {"ph": "M", "name": "process_sort_index", "pid": kind, "args": {"sort_index": kind}},
            ]
        for (kind, number), name in sorted(self._names.items()):
            line = {"ph": "M", "pid": kind, "tid": kind * LINES + number}
            titles += [
                {**line, "name": "thread_name", "args": {"name": name}},
                {**line, "name": "thread_sort_index", "args": {"sort_index": number}},
            ]
        return titles

    def _event(  # noqa: PLR0913 - what is drawn
        self, kind: int, number: int, name: str, began_ns: int, ended_ns: int, *, detail: dict[str, Any] | None = None
    ) -> None:
        """Draw one thing, if it has a name, as far as it lies after the beginning."""
        began_ns = max(began_ns, self._began_ns)
        if not name or ended_ns <= began_ns:
            return
        times = {"ts": (began_ns - self._began_ns) / 1e3, "dur": (ended_ns - began_ns) / 1e3}
        line = {"pid": kind, "tid": kind * LINES + number}
        self._events.append({"ph": "X", "name": name, **line, **times, "args": detail or {}})

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ringfeed.monitor.memory import own_bytes
from ringfeed.ring import _ring

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.monitor.snapshot import Slot, Snapshot, Worker
    from ringfeed.monitor.stats import Stats, Verdict

EVERY_S = 0.001
MEMORY_S = 0.25  # between two looks at the memory of processes, at least
MEMORY_PART = 100  # such looks take at most one part in so many of a CPU
# Each kind is drawn as a process, its lines as threads; 0 would be the idle thread of a CPU.
KINDS = {1: "consumer", 2: "workers", 3: "slots"}
CONSUMER, WORKER, SLOT = 1, 2, 3
NAMES = {CONSUMER: "consumer", WORKER: "worker {}", SLOT: "slot {}"}
LINES = 1000  # a kind
PAGES = (".html", ".htm")


class _State(NamedTuple):
    """What a line is at, and since when; without a name there is nothing to draw."""

    name: str = ""
    since_ns: int = 0
    detail: dict[str, Any] | None = None


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
        # The page needs an optional package.
        from ringfeed.monitor.page import check_bokeh, save_page  # noqa: PLC0415

        check_bokeh()
        save = save_page
    from ringfeed import __version__  # noqa: PLC0415 - the package itself imports this one

    began = {
        "program": "ringfeed",
        "version": __version__,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
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
        """Begin to look; OSError if the file cannot be written.

        ``observer()`` returns that of the ring that runs now, or None. ``facts()`` is asked at the
        end for what stands beside the timeline; ``save`` writes it all.
        """
        self._observer = observer
        self._facts, self._save = facts, save
        self._path = Path(path)
        self._path.touch()
        self._every_s = every_s
        self._began_ns = _ring.now_ns()
        self._events: list[dict[str, Any]] = []
        self._lines: set[tuple[int, int]] = set()  # kind and number of each that is drawn
        self._seen: weakref.ref[Observer] | None = (
            None  # whose ring is drawn; not kept, or its memory would stay
        )
        self._looked_ns = self._began_ns
        self._states = {(CONSUMER, 0): _State()}  # of each line, by the last look
        self._counts: dict[
            int, tuple[int, int]
        ] = {}  # tickets that a worker has ended, and their time
        self._stall_ns = 0  # all that was counted
        self._waited_ns = 0  # of it, what belongs to a batch that is not taken yet
        first = self._read()
        if first is not None:
            self._skip(first)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=run, name="ringfeed-trace", daemon=True)
            for run in (self._run, self._run_memory)
        ]
        for thread in self._threads:
            thread.start()

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
        for thread in self._threads:
            thread.join()
        self._finish(_ring.now_ns())
        events = [*self._titles(), *self._events]
        self._save(
            {"traceEvents": events, "displayTimeUnit": "ms", "otherData": self._facts()}, self._path
        )

    # ---- looking ----

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            snapshot = self._read()
            if snapshot is not None:
                self.look(snapshot)
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
        self._states[CONSUMER, 0] = _State("", look.at_ns)
        self._stall_ns = look.consumer.stall_ns
        self._counts = {
            number: (_over(worker), worker.busy_ns) for number, worker in enumerate(look.workers)
        }

    def look(self, look: Snapshot) -> None:
        """Draw what has changed since the last look."""
        self._consumer(look)
        for number, worker in enumerate(look.workers):
            self._worker(number, worker, look.at_ns)
        for number, slot in enumerate(look.slots):
            self._slot(number, slot, look.at_ns)

    def _finish(self, now_ns: int) -> None:
        """Draw what is under way, and begin anew, as for another ring."""
        self._take("", now_ns)
        for line in self._states:
            self._turn(line, _State("", now_ns))
        self._states, self._counts = {(CONSUMER, 0): _State("", now_ns)}, {}
        self._stall_ns = self._waited_ns = 0

    def _turn(self, line: tuple[int, int], now: _State) -> None:
        """Draw what a line was at, and note what it is at now."""
        before = self._states.get(line, _State())
        self._event(line, before.name, before.since_ns, now.since_ns, before.detail)
        self._states[line] = now

    # ---- the consumer ----

    def _consumer(self, look: Snapshot) -> None:
        self._lines.add((CONSUMER, 0))
        self._waited_ns += look.consumer.stall_ns - self._stall_ns  # counted when the wait is over
        self._stall_ns = look.consumer.stall_ns
        for slot in sorted(look.slots, key=lambda slot: slot.held_ns):
            if slot.held_ns > self._states[CONSUMER, 0].since_ns:
                self._take(f"step {slot.batch}" if slot.state == "held" else "step", slot.held_ns)

    def _take(self, name: str, at_ns: int) -> None:
        """Draw the step before this moment, and the wait at its end; another one begins."""
        since_ns = self._states[CONSUMER, 0].since_ns
        waited_ns = min(self._waited_ns, max(at_ns - since_ns, 0))
        self._waited_ns -= waited_ns
        self._turn((CONSUMER, 0), _State("stall", at_ns - waited_ns))
        self._turn((CONSUMER, 0), _State(name, at_ns))

    # ---- workers ----

    def _worker(self, number: int, worker: Worker, now_ns: int) -> None:
        if not worker.tickets:
            return  # an id that is not in use
        self._lines.add(line := (WORKER, number))
        before, state = self._counts.get(number, (0, 0)), self._states.get(line, _State())
        count, spent_ns = _over(worker) - before[0], worker.busy_ns - before[1]
        if count == 1 and state.name:  # the ticket that was seen, by the ring's times
            self._event(line, state.name, state.since_ns, state.since_ns + spent_ns)
        elif count > 0:  # others were not seen: all as one
            until_ns = worker.since_ns or now_ns
            began_ns = max(until_ns - spent_ns, state.since_ns)
            name = f"{count} tickets" if count > 1 else "ticket"
            self._event(line, name, began_ns, until_ns, {"busy_us": spent_ns / 1e3})
        if worker.since_ns != state.since_ns:
            self._states[line] = _State(
                (worker.place or "ticket") if worker.since_ns else "", worker.since_ns
            )
        self._counts[number] = _over(worker), worker.busy_ns

    # ---- slots ----

    def _slot(self, number: int, slot: Slot, now_ns: int) -> None:
        self._lines.add(line := (SLOT, number))
        state = self._states.setdefault(line, _State("", now_ns))
        if slot.state in ("free", "parked"):
            now = _State("" if slot.state == "free" else slot.state, now_ns)
        else:
            since_ns = max(slot.held_ns if slot.state == "held" else now_ns, state.since_ns)
            now = _State(
                f"{slot.state} {slot.batch}", since_ns, {"batch": slot.batch, "epoch": slot.epoch}
            )
        if now.name != state.name:
            self._turn(line, now)

    # ---- memory ----

    def _run_memory(self) -> None:
        """Look at the memory of processes, in a thread of its own: a look takes milliseconds."""
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began_ns = time.thread_time_ns()
            self._weigh()
            pause_s = max(MEMORY_S, MEMORY_PART * (time.thread_time_ns() - began_ns) / 1e9)

    def _weigh(self) -> None:
        """Draw the memory that this process and its workers have alone."""
        if (observer := self._observer()) is None:
            return
        sizes = {
            "this process": own_bytes("self"),
            "workers": sum(own_bytes(worker.pid) for worker in observer.workers() if worker.pid),
        }
        at_us = (_ring.now_ns() - self._began_ns) / 1e3
        self._events.append(
            {"ph": "C", "name": "memory", "pid": CONSUMER, "ts": at_us, "args": sizes}
        )

    # ---- drawing ----

    def _titles(self) -> Iterator[dict[str, Any]]:
        """Yield the names of all lines, and their order."""
        for kind in sorted({kind for kind, _ in self._lines}):
            yield from _title("process", {"pid": kind}, f"ringfeed {KINDS[kind]}", kind)
        for kind, number in sorted(self._lines):
            place = {"pid": kind, "tid": kind * LINES + number}
            yield from _title("thread", place, NAMES[kind].format(number), number)

    def _event(
        self,
        line: tuple[int, int],
        name: str,
        began_ns: int,
        ended_ns: int,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Draw one thing, if it has a name, as far as it lies after the beginning."""
        began_ns = max(began_ns, self._began_ns)
        if not name or ended_ns <= began_ns:
            return
        kind, number = line
        times = {"ts": (began_ns - self._began_ns) / 1e3, "dur": (ended_ns - began_ns) / 1e3}
        place = {"pid": kind, "tid": kind * LINES + number}
        self._events.append({"ph": "X", "name": name, **place, **times, "args": detail or {}})


def _over(worker: Worker) -> int:
    """Return how many tickets a worker has ended."""
    return worker.tickets - bool(worker.since_ns)


def _title(what: str, place: dict[str, Any], name: str, order: int) -> Iterator[dict[str, Any]]:
    """Yield the events that give a process or a thread its name and its place."""
    yield {"ph": "M", "name": f"{what}_name", **place, "args": {"name": name}}
    yield {"ph": "M", "name": f"{what}_sort_index", **place, "args": {"sort_index": order}}

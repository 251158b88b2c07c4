"""A timeline of a running loader, for chrome://tracing and ui.perfetto.dev.

A thread looks at the ring every millisecond or so: the hot path carries nothing for it. When a worker claimed its
ticket, and for how long it was at the one before, the ring knows by itself; what a slot or the consumer does is right
to the interval. Tickets that come and go between two looks are drawn as one.

The file is in the Trace Event Format ("JSON Object Format", Google, 2016): complete events, times in microseconds.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed import _ring

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Self

    from ringfeed.engine import Engine

EVERY_S = 0.001
CONSUMER, WORKERS, SLOTS = 0, 1, 1000  # the first line of each kind


@dataclass
class _Line:
    """One row of the picture: what it is at, and since when."""

    name: str
    state: str = ""
    since_ns: int = 0
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class _WorkerSeen:
    """What a worker had done by the last look."""

    since_ns: int = 0
    busy_ns: int = 0
    tickets: int = 0


class Trace:
    """Draws until `stop`, which writes the file. Also a context manager."""

    def __init__(
        self, engine: Callable[[], Engine | None], path: str | os.PathLike[str], every_s: float = EVERY_S
    ) -> None:
        """Begin to look. ``engine`` returns the engine that runs now, or None; OSError if there can be no such file."""
        self._engine = engine
        self._path = Path(path)
        self._path.touch()
        self._every_s = every_s
        self._began_ns = _ring.now_ns()
        self._events: list[dict[str, Any]] = []
        self._lines: dict[int, _Line] = {}
        self._seen: dict[int, _WorkerSeen] = {}
        self._stall_s = 0.0
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
        now_ns = _ring.now_ns()
        for number in [*self._lines]:
            self._change(number, "", now_ns)
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": line.name}}
            for number, line in sorted(self._lines.items())
        ]
        title = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "ringfeed"}}
        self._path.write_text(json.dumps({"traceEvents": [title, *names, *self._events], "displayTimeUnit": "ms"}))

    # ---- looking ----

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            engine = self._engine()
            if engine is not None:
                self.look(engine, _ring.now_ns())

    def look(self, engine: Engine, now_ns: int) -> None:
        """Draw what has changed since the last look."""
        self._consumer(engine.stats.stall_s, now_ns)
        for number in range(engine.ring.ids):
            self._worker(number, engine.ring.report(number), now_ns)
        for slot, state in enumerate(engine.ring.slot_states()):
            self._name(SLOTS + slot, f"slot {slot}")
            self._change(SLOTS + slot, "" if state == "free" else state, now_ns)

    def _consumer(self, stall_s: float, now_ns: int) -> None:
        self._name(CONSUMER, "consumer")
        waited_ns, self._stall_s = int((stall_s - self._stall_s) * 1e9), stall_s
        if waited_ns > 0:  # counted when the wait is over
            self._event(CONSUMER, "stall", now_ns - waited_ns, now_ns, {})

    def _worker(self, number: int, report: tuple[int | None, int, int, int, int, int], now_ns: int) -> None:
        index, since_ns, busy_ns, _, _, tickets = report
        if not tickets:
            return  # an id that is not in use
        self._name(WORKERS + number, f"worker {number}")
        seen = self._seen.setdefault(number, _WorkerSeen())
        over = tickets - seen.tickets + bool(seen.since_ns) - bool(since_ns)
        if over:
            self._draw_tickets(number, seen, over, busy_ns, since_ns or now_ns)
        self._seen[number] = _WorkerSeen(since_ns, busy_ns, tickets)
        line = self._lines[WORKERS + number]
        if since_ns and line.since_ns != since_ns:
            line.state, line.since_ns = "ticket" if index is None else f"dataset[{index}]", since_ns

    def _draw_tickets(self, number: int, seen: _WorkerSeen, over: int, busy_ns: int, until_ns: int) -> None:
        """Draw the ticket that was seen, if there was none since, by the ring's times; else all of them as one."""
        line = self._lines[WORKERS + number]
        spent_ns = busy_ns - seen.busy_ns
        if seen.since_ns and over == 1:
            self._event(WORKERS + number, line.state, seen.since_ns, seen.since_ns + spent_ns, {})
        else:
            began_ns = max(until_ns - spent_ns, seen.since_ns)
            self._event(
                WORKERS + number,
                f"{over} tickets" if over > 1 else "ticket",
                began_ns,
                until_ns,
                {"busy_us": spent_ns / 1e3},
            )
        line.state, line.since_ns = "", 0

    # ---- drawing ----

    def _name(self, number: int, name: str) -> None:
        if number not in self._lines:
            self._lines[number] = _Line(name)

    def _change(self, number: int, state: str, now_ns: int) -> None:
        """Begin another state; the one before is drawn. "" is none."""
        line = self._lines[number]
        if line.state == state:
            return
        if line.state:
            self._event(number, line.state, line.since_ns, now_ns, {})
        line.state, line.since_ns = state, now_ns

    def _event(self, number: int, name: str, began_ns: int, ended_ns: int, detail: dict[str, Any]) -> None:
        began_ns = max(began_ns, self._began_ns)
        times = {"ts": (began_ns - self._began_ns) / 1e3, "dur": max(0, ended_ns - began_ns) / 1e3}
        self._events.append({"ph": "X", "name": name, "pid": 1, "tid": number, **times, "args": detail})

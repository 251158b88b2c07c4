"""Ctrl-C at any moment of a loader's life, and loaders in many threads: what is left of it must be nothing.

    python tests/support/interrupts.py moments --kind spawn --hits 500  at a random moment of a whole life
    python tests/support/interrupts.py lines --kind fork                at each line, through start and close
    python tests/support/interrupts.py threads --loaders 500  loaders of all kinds in 5 threads, Popen in another

After each hit all that the loader had must be gone within PATIENCE_S: processes, zombies,
descriptors, mappings and threads. A failure names the hit; the same --seed draws the same moments
and lives.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leftovers
import ringfeed
from datasets import Oracle, check
from ringfeed.workers import warm

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

KINDS = ("in process", "thread", "spawn", "fork", "process")
PATIENCE_S = 20.0  # a thread ends what was dropped, and machines are busy
LIFE_S = 120.0  # for one life with all that comes after it
PACKAGE = str(Path(ringfeed.__file__).parent)
ROWS = 24


class Changing(Oracle):
    """A dataset that is another in each epoch, so that the workers are sent new versions of it."""

    def on_epoch_begin(self) -> None:
        """Change."""
        self.changes = getattr(self, "changes", 0) + 1


def loader_of(kind: str, dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Make a loader of two workers, if the kind has any."""
    return ringfeed.Loader(
        Oracle(ROWS) if dataset is None else dataset,
        batch_size=4,
        workers=0 if kind == "in process" else 2,
        backend="spawn" if kind == "in process" else kind,  # type: ignore[arg-type]
        spec=Oracle.SPEC,
        **settings,
    )


# ---- what is left ----


def present() -> Counter[str]:
    """All that a loader could leave, one by one; a warm forkserver has a thread here, and ends first.

    Named semaphores are other programs': no loader has any.
    """
    warm.end()
    found = Counter(
        {one: count for one, count in leftovers.present().items() if "/sem.mp-" not in one}
    )
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            found[f"thread {(task / 'comm').read_text().strip()}"] += 1
    return found


def left_since(before: Counter[str]) -> list[str]:
    """What there is and was not before, once nothing is or PATIENCE_S have passed."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := present() - before) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return sorted(left.elements())


# ---- at a random moment ----


def live(kind: str, draw: random.Random) -> None:
    """Live a whole life: two epochs, whose dataset changes, some looks, and one of several ends."""
    loader = loader_of(kind, Changing(ROWS))
    end = draw.choice(["closed", "left", "dropped", "closed by a thread"])
    for _ in range(2):
        iterator = iter(loader)
        for _ in range(draw.randrange(1, 6)):
            check(next(iterator))
        loader.stats()
        loader.set_epoch(3)
    if end == "closed":
        loader.close()
    elif end == "left":
        with loader:
            pass
    elif end == "closed by a thread":
        thread = threading.Thread(target=loader.close)
        try:
            thread.start()
        except KeyboardInterrupt:
            if not thread._started.wait(1.0):  # type: ignore[attr-defined]
                threading._limbo.pop(thread, None)  # type: ignore[attr-defined] # else `threading` keeps it for ever
            raise
        thread.join()


class Alarm:
    """One KeyboardInterrupt in the main thread at a chosen moment, as Ctrl-C raises it."""

    def __init__(self) -> None:
        self.hits = 0
        self._is_set = False
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: object) -> None:
        if not self._is_set:  # Python comes to it late, when the life is over
            return
        self.hits += 1
        raise KeyboardInterrupt

    def during(self, delay_s: float, live: Callable[[], None]) -> None:
        """Interrupt a life after so long."""
        try:
            try:
                self._is_set = True
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                live()
            finally:  # the alarm may ring here, too
                self._is_set = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        except (
            RuntimeError
        ) as error:  # of a lock of `threading`, which it has undone: RuntimeError may come of that
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise


def at_moments(kind: str, hits: int, seed: int) -> list[str]:
    """Interrupt so many lives; returns a line for each that left something."""
    sys.unraisablehook = lambda _: None  # Ctrl-C in a finalizer is lost, as Python has it
    draw = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(3):
        began_s = time.monotonic()
        live(kind, draw)
        life_s = time.monotonic() - began_s
    faulthandler.dump_traceback_later(LIFE_S, exit=True)  # has a thread
    before, alarm, failures = present(), Alarm(), []
    while alarm.hits < hits:
        faulthandler.dump_traceback_later(LIFE_S, exit=True)
        delay_s = draw.uniform(0.0001, 1.1 * life_s)
        began_s, before_hits = time.monotonic(), alarm.hits
        alarm.during(delay_s, lambda: live(kind, draw))
        if alarm.hits == before_hits:  # it came too late
            life_s = 0.9 * life_s + 0.1 * (time.monotonic() - began_s)
        left = left_since(before)
        if left:
            failures.append(f"hit {alarm.hits} after {delay_s:.4f} s left {left}")
            before += Counter(left)
    faulthandler.cancel_dump_traceback_later()
    return failures


# ---- line by line ----


class Tracer:
    """Raises KeyboardInterrupt at the first event of one line of the package, the `number`-th that is reached."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""
        self._home = os.getpid()
        self._seen: set[tuple[str, int]] = set()

    def __enter__(self) -> None:
        """Begin."""
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        """Put an end to it."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if (
            not frame.f_code.co_filename.startswith(PACKAGE) or os.getpid() != self._home
        ):  # a forked process inherits it
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and self.left and place not in self._seen:
            self._seen.add(place)
            self.left -= 1
            if not self.left:
                self.where = f"{Path(place[0]).name}:{place[1]}"
                raise KeyboardInterrupt
        return self._trace


def start(loader: ringfeed.Loader) -> None:
    """Begin an epoch, and take its first batch."""
    check(next(iter(loader)))


def interrupt_start(kind: str, number: int) -> tuple[str, list[str]]:
    """Interrupt a start at its `number`-th line; the next start is whole."""
    before = present()
    loader, tracer = loader_of(kind), Tracer(number)
    try:
        with tracer:
            start(loader)
    except KeyboardInterrupt:
        pass
    left = []
    if (
        tracer.where and loader._runner.engine is None and loader._runner.launcher is None
    ):  # else it goes on
        left = left_since(before)
    if number % 3 == 0:
        start(loader)
    loader.close()
    del loader
    return tracer.where, left or left_since(before)


def interrupt_close(kind: str, number: int) -> tuple[str, list[str]]:
    """Interrupt close() at its `number`-th line.

    A second close(), or the garbage collector, does what it has not.
    """
    before = present()
    loader, tracer = loader_of(kind), Tracer(number)
    start(loader)
    try:
        with tracer:
            loader.close()
    except KeyboardInterrupt:
        pass
    if number % 2:
        loader.close()
        return tracer.where, left_since(before)
    del loader
    return tracer.where, left_since(before)


def lines_of(act: Callable[[], None]) -> int:
    """Return how many lines of the package a call comes to."""
    tracer = Tracer(10**9)
    with tracer:
        act()
    return 10**9 - tracer.left


def by_lines(kind: str, seed: int, most: int, share: tuple[int, int]) -> tuple[int, list[str]]:
    """Interrupt start and close at each line, or at so many drawn ones; how many, and a line for each that left.

    ``share``: only each so-many-th, from the first of these numbers on.
    """
    sys.unraisablehook = lambda _: None
    start(loader_of(kind))  # imports come to other lines
    loader = loader_of(kind)
    ways = [
        (interrupt_start, lines_of(lambda: start(loader))),
        (interrupt_close, lines_of(loader.close)),
    ]
    count, failures = 0, []
    for interrupt, lines in ways:
        numbers: Any = range(1 + share[0], 1 + lines, share[1])
        if most:
            numbers = sorted(random.Random(seed).sample(numbers, min(most, lines)))  # noqa: S311 - no secret
        for number in numbers:
            faulthandler.dump_traceback_later(LIFE_S, exit=True)
            where, left = interrupt(kind, number)
            count += bool(where)
            if left:
                failures.append(f"{interrupt.__name__} {number} at {where} left {left}")
    faulthandler.cancel_dump_traceback_later()
    return count, failures


# ---- in many threads ----


class Crowd:
    """Loaders of all kinds, made and dropped in five threads, beside a thread that calls Popen."""

    # Python without the GIL leaves locks of its own taken in a child that is forked beside threads.
    KINDS = tuple(
        kind for kind in KINDS if kind != "fork" or not sysconfig.get_config_var("Py_GIL_DISABLED")
    )

    def __init__(self, loaders: int, seed: int) -> None:
        self.made = self.calls = 0
        self.failures: list[str] = []
        self._seed = seed
        self._numbers = iter(range(loaders))
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Make all of them, and look at what is left."""
        for kind in self.KINDS:
            start(loader_of(kind))
        before = present()
        makers, caller = (
            [threading.Thread(target=self._make) for _ in range(5)],
            threading.Thread(target=self._call),
        )
        for thread in (*makers, caller):
            thread.start()
        for thread in makers:
            thread.join()
        self._over.set()
        caller.join()
        self.failures += left_since(before)

    def _make(self) -> None:
        while (number := self._next()) is not None:
            draw = random.Random(self._seed + number)  # noqa: S311 - no secret
            kind = draw.choice(self.KINDS)
            try:
                loader = loader_of(kind)
                start(loader)
                if draw.random() < 0.5:
                    loader.close()
            except Exception as error:  # noqa: BLE001 - told
                self.failures.append(f"loader {number}, {kind}: {type(error).__name__}: {error}")
            loader = None  # dropped

    def _next(self) -> int | None:
        with self._lock:
            number = next(self._numbers, None)
            self.made += number is not None
        return number

    def _call(self) -> None:
        while not self._over.is_set():
            subprocess.run(["/bin/cat"], input=b"x", capture_output=True, check=True)
            self.calls += 1


def main() -> int:
    """Run from the command line; 1 where something was left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("show", choices=["moments", "lines", "threads"])
    parser.add_argument("--kind", choices=KINDS, default="spawn")
    parser.add_argument("--hits", type=int, default=500, help="interrupts at random moments: 500")
    parser.add_argument(
        "--most", type=int, default=0, help="lines of each, drawn at random; 0: all"
    )
    parser.add_argument(
        "--share",
        type=int,
        nargs=2,
        default=(0, 1),
        help="of all lines: the first, and each how many",
    )
    parser.add_argument("--loaders", type=int, default=500, help="500")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="seconds for all threads to end: 1800"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    chosen = parser.parse_args()
    if chosen.show == "moments":
        failures = at_moments(chosen.kind, chosen.hits, chosen.seed)
        done = f"{chosen.hits} hits"
    elif chosen.show == "lines":
        count, failures = by_lines(chosen.kind, chosen.seed, chosen.most, chosen.share)
        done = f"{count} lines"
    else:
        faulthandler.dump_traceback_later(chosen.limit, exit=True)
        crowd = Crowd(chosen.loaders, chosen.seed)
        crowd.run()
        failures, done = crowd.failures, f"{crowd.made} loaders, {crowd.calls} calls of Popen"
        faulthandler.cancel_dump_traceback_later()
    told = f"{chosen.show}, {chosen.kind}, seed {chosen.seed}: {done}, {len(failures)} failures"
    print(*failures, told, sep="\n", flush=True)  # noqa: T201 - what it is for
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

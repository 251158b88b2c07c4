"""The command ``ringfeed top``: a running loader of another process, live in the terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from ringfeed.cli.discover import Target, processes
from ringfeed.cli.render import Pair, picture
from ringfeed.errors import RingfeedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.cli.discover import Attached
    from ringfeed.cli.render import Line
    from ringfeed.ring.snapshot import Snapshot

FIRST_S = 0.5  # the first picture comes soon
VERDICT_S = 10.0  # of the past, that the verdict speaks of
WIDE = 120  # columns, where there is no terminal


@dataclass(frozen=True)
class _Screen:
    """Where pictures go, and the columns and lines that there are for them; None: any number."""

    show: Callable[[list[Line]], None]
    size: Callable[[], tuple[int, int | None]]
    keys: int | None = None
    """The descriptor that keys are read from, if there is one."""

    def is_left(self) -> bool:
        """Whether q was pressed, or there will be no keys any more."""
        if self.keys is None or not select.select([self.keys], [], [], 0)[0]:
            return False
        return os.read(self.keys, 1) in b"q"


def top(pid: int, *, interval_s: float = 1.0, number: int | None = None, once: bool = False) -> str:
    """Show what a process's loaders are at until they or it end, or q or Ctrl-C comes; returns what ended it.

    ``number`` chooses one of several loaders. In a terminal the picture is drawn anew every ``interval_s``, which takes
    the package rich; elsewhere one is written below the other, or a single one (``once``).

    Raises RingfeedError where there is no such process or loader, or it may not be looked at.
    """
    with Target(pid) as target:
        session = _Session(target, number)
        live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not once
        with _terminal() if live else _paper() as screen:
            try:
                return _follow(session, screen, interval_s, once=once)
            except KeyboardInterrupt:
                return ""


def running() -> str:
    """Return the processes of this user that have a running loader, a line each."""
    found = processes()
    if not found:
        return "no process of yours has a running loader"
    lines = [f"{pid:>8}  {count:>7}  {command}" for pid, count, command in found]
    return "\n".join([f"{'pid':>8}  {'loaders':>7}  command", *lines])


# ---- looking ----


@dataclass
class _History:
    """A loader, and the looks at it that are not too old."""

    loader: Attached
    looks: deque[Snapshot] = field(default_factory=deque)

    def look(self) -> None:
        self.looks.append(self.loader.observer.snapshot())
        self.forget()

    def forget(self) -> None:
        """Drop looks that are too old, or from before the first batch where there are two since."""
        while len(self.looks) > 2 and (self._is_old() or self._is_startup()):  # noqa: PLR2004
            self.looks.popleft()

    def _is_old(self) -> bool:
        return self.looks[-1].at_ns - self.looks[1].at_ns > VERDICT_S * 1e9

    def _is_startup(self) -> bool:
        """Whether the first look was before the first batch, at which the verdict begins."""
        return self.looks[0].consumer.batches == 0 < self.looks[-2].consumer.batches

    def picture(self, target: Target, width: int, height: int | None) -> list[Line]:
        conditions, cpus = target.conditions(self.looks[-1]), target.cpus()
        past, now = (Pair(self.looks[place], self.looks[-1], conditions) for place in (0, -2))
        return picture(
            self.loader.number, self.loader.observer.geometry, past, now, cpus=cpus, width=width, height=height
        )


class _Session:
    """The loaders of a process that are to be shown."""

    def __init__(self, target: Target, number: int | None) -> None:
        self.target = target
        self._number = number
        self._histories: dict[int, _History] = {}
        if not self.look():
            raise RingfeedError(self._missing())

    def _missing(self) -> str:
        count = len(self.target.loaders())
        process = f"process {self.target.pid}"
        if count:
            those = "its only one has number 1" if count == 1 else f"those that run are numbered 1 to {count}"
            return f"{process} has no loader {self._number}: {those}"
        if self.target.refusal:
            return f"{process}: {self.target.refusal}"
        return f"{process} has no running loader: an epoch begins one, and close() ends it"

    def look(self) -> bool:
        """Look at all there are now; returns whether any is left."""
        loaders = [found for found in self.target.loaders() if self._number in (None, found.number)]
        before = self._histories
        self._histories = {loader.number: before.get(loader.number) or _History(loader) for loader in loaders}
        for history in self._histories.values():
            history.look()
        return bool(loaders)

    def lines(self, width: int, height: int | None) -> list[Line]:
        """Return the pictures of all that were looked at twice, with a title."""
        shown = [history for history in self._histories.values() if len(history.looks) > 1]
        each = None if height is None else (height - 1) // max(len(shown), 1) - 1
        lines: list[Line] = [[(f"ringfeed top   process {self.target.pid}   {self.target.command}"[:width], "reverse")]]
        for history in shown:
            lines += [[], *history.picture(self.target, width, each)]
        return lines[:height]


def _follow(session: _Session, screen: _Screen, interval_s: float, *, once: bool) -> str:
    pause_s = interval_s if once else min(interval_s, FIRST_S)
    while not session.target.wait(pause_s, screen.keys):
        if screen.is_left():
            return ""
        if not session.look():
            return f"process {session.target.pid} has closed what was shown"
        screen.show(session.lines(*screen.size()))
        if once:
            return ""
        pause_s = interval_s
    return f"process {session.target.pid} has ended"


# ---- showing ----


@contextmanager
def _paper() -> Iterator[_Screen]:
    """Write one picture below the other."""

    def show(lines: list[Line]) -> None:
        text = "\n".join("".join(part for part, _ in line).rstrip() for line in lines)
        sys.stdout.write(f"{text}\n\n")
        sys.stdout.flush()

    yield _Screen(show, lambda: (WIDE, None))


def _is_for_us(stdin: TextIO | None) -> bool:
    """Whether this process may change how keys come; in the background of a shell the kernel would stop it."""
    if stdin is None or not stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(stdin.fileno()) == os.getpgrp()
    except OSError:  # no shell controls this process by this terminal
        return True


@contextmanager
def _keys() -> Iterator[int | None]:
    """Have each key of the terminal come at once, and not be shown; it is as it was when this ends."""
    if not _is_for_us(sys.stdin):
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _terminal() -> Iterator[_Screen]:
    """Draw each picture in the place of the one before; the terminal is as it was when this ends."""
    try:
        from rich.console import Console, Group  # noqa: PLC0415 - wanted here alone
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError as error:
        message = "the live display needs the package rich: pip install 'ringfeed[top]', or give --once for plain text"
        raise RingfeedError(message) from error
    console = Console()
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:

        def show(lines: list[Line]) -> None:
            drawn = (Text.assemble(*line, no_wrap=True, overflow="crop") for line in lines)
            live.update(Group(*drawn), refresh=True)

        yield _Screen(show, lambda: (console.size.width, console.size.height), keys)

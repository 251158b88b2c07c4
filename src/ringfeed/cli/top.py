"""The command ``ringfeed top``: a running loader of another process, live in the terminal by the package rich."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live

from ringfeed.cli.discover import Target
from ringfeed.cli.render import Pair, line, picture
from ringfeed.errors import RingfeedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.text import Text

    from ringfeed.cli.discover import Attached
    from ringfeed.ring.snapshot import Snapshot

    _Show = Callable[[Text, list[Group]], None]
    _Screen = tuple[_Show, int | None]  # and the descriptor that keys are read from, if there is one

FIRST_S = 0.5  # the first picture comes soon
VERDICT_S = 10.0  # of the past, that the verdict speaks of
WIDE = 120  # columns, where there is no terminal


def top(pid: int, *, interval_s: float = 1.0, number: int | None = None, once: bool = False) -> str:
    """Show what a process's loaders are at until they or it end, or q or Ctrl-C comes; returns what ended it.

    ``number`` chooses one of several loaders. In a terminal the picture is drawn anew every ``interval_s``; elsewhere
    one is written below the other, or a single one (``once``).

    Raises RingfeedError where there is no such process or loader, or it may not be looked at.
    """
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not once
    screen: AbstractContextManager[_Screen] = _terminal() if live else nullcontext((_write, None))
    with Target(pid) as target, suppress(KeyboardInterrupt):
        session = _Session(target, number)
        with screen as (show, keys):
            return _follow(session, show, keys, interval_s, once=once)
    return ""


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

    def picture(self, target: Target) -> Group:
        looks, loader = self.looks, self.loader
        conditions = target.conditions(looks[-1])
        past, now = (Pair(looks[place], looks[-1], conditions) for place in (0, -2))
        return picture(loader.number, loader.observer.geometry, past, now, cpus=target.cpus())


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

    def title(self) -> Text:
        return line((f"ringfeed top   process {self.target.pid}   {self.target.command}", "reverse"))

    def pictures(self) -> list[Group]:
        """Return the pictures of all that were looked at twice."""
        return [history.picture(self.target) for history in self._histories.values() if len(history.looks) > 1]


def _follow(session: _Session, show: _Show, keys: int | None, interval_s: float, *, once: bool) -> str:
    pause_s = interval_s if once else min(interval_s, FIRST_S)
    while not session.target.wait(pause_s, keys):
        if keys is not None and _is_quit(keys):
            return ""
        if not session.look():
            return f"process {session.target.pid} has closed what was shown"
        show(session.title(), session.pictures())
        if once:
            return ""
        pause_s = interval_s
    return f"process {session.target.pid} has ended"


# ---- showing ----


def _write(title: Text, pictures: list[Group]) -> None:
    """Write pictures as plain text, below those before."""
    console = Console(width=WIDE, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(Group(title, *(Group("", picture) for picture in pictures)))
    lines = (row.rstrip() for row in text.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


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
    """Have each key of the terminal come at once, and not be shown; the terminal is as it was when this ends.

    Gives the descriptor that keys are read from, if this process has any.
    """
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


def _is_quit(keys: int) -> bool:
    """Whether q was pressed, or there will be no keys any more."""
    return bool(select.select([keys], [], [], 0)[0]) and os.read(keys, 1) in b"q"


@contextmanager
def _terminal() -> Iterator[_Screen]:
    """Draw pictures in the place of those before; the terminal is as it was when this ends."""
    with _keys() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:

        def show(title: Text, pictures: list[Group]) -> None:
            layout = Layout()  # the pictures share the lines of the terminal
            layout.split_column(Layout(title, size=2), *map(Layout, pictures))
            live.update(layout, refresh=True)

        yield show, keys

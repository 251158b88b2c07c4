"""The command ``ringfeed top PID``: a running loader of another process, live in the terminal."""

from __future__ import annotations

import os
import sys
import termios
import tty
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live

from ringfeed._checks import check_seconds
from ringfeed.errors import RingfeedError
from ringfeed.system.channel import readable
from ringfeed.tools.discover import Target
from ringfeed.tools.render import line, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import RenderableType
    from rich.text import Text

    from ringfeed.tools.discover import Attached

FIRST_S = 0.5  # the first picture comes soon
WIDE = 120  # columns, where there is no terminal


def top(pid: int, *, interval_s: float = 1.0, number: int | None = None, once: bool = False) -> str:
    """Show a process's loaders until they or it end, or q or Ctrl-C comes; return what ended it.

    ``number`` chooses one of several loaders. In a terminal the picture is drawn anew every
    ``interval_s``; elsewhere one is written below the other, or a single one (``once``).

    Raises RingfeedError where there is no such process or loader, or it may not be looked at.
    """
    check_seconds("interval", interval_s, "the time between two looks")
    with Target(pid) as target, suppress(KeyboardInterrupt):
        if not _look(target, number):
            raise RingfeedError(_missing(target, number))
        with drawing(once=once) as (show, keys):
            title = line((f"ringfeed top   process {pid}   {target.command}", "reverse"))
            pause_s = interval_s if once else min(interval_s, FIRST_S)
            while not target.wait(pause_s, keys):
                if keys is not None and is_quit(keys):
                    return ""
                loaders = _look(target, number)
                if not loaders:
                    return f"process {pid} has closed what was shown"
                show(
                    title, [picture(target, loader) for loader in loaders if len(loader.looks) > 1]
                )
                if once:
                    return ""
                pause_s = interval_s
            return f"process {pid} has ended"
    return ""


def _look(target: Target, number: int | None) -> list[Attached]:
    """Look at all loaders that are to be shown; returns those there are now."""
    loaders = [loader for loader in target.loaders() if number in (None, loader.number)]
    for loader in loaders:
        loader.look()
    return loaders


def _missing(target: Target, number: int | None) -> str:
    if count := len(target.loaders()):
        those = (
            "its only one has number 1"
            if count == 1
            else f"those that run are numbered 1 to {count}"
        )
        return f"process {target.pid} has no loader {number}: {those}"
    if target.refusal:
        return f"process {target.pid}: {target.refusal}"
    return f"process {target.pid} has no running loader: an epoch begins one, and close() ends it"


def drawing(*, once: bool) -> AbstractContextManager[tuple[Callable[..., None], int | None]]:
    """Give what draws a title and pictures, live or as text, and where keys come from."""
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not once
    return _terminal() if is_live else nullcontext((_write, None))


def _write(title: Text, pictures: list[RenderableType]) -> None:
    """Write pictures as plain text, each below the one before."""
    console = Console(width=WIDE, color_system=None, force_terminal=False)
    with console.capture() as text:
        console.print(Group(title, *(Group("", picture) for picture in pictures)))
    lines = (row.rstrip() for row in text.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


# ---- a terminal ----


def _is_for_us(stdin: TextIO | None) -> bool:
    """Whether this process may change how keys come.

    The kernel would stop one in the background of a shell.
    """
    if stdin is None or not stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(stdin.fileno()) == os.getpgrp()
    except OSError:  # no shell controls this process by this terminal
        return True


@contextmanager
def _keys() -> Iterator[int | None]:
    """Read each key of the terminal at once and unseen; at the end the terminal is as before.

    Yields the descriptor that keys are read from, or None where this process has no terminal.
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


def is_quit(keys: int) -> bool:
    """Whether q was pressed, or there will be no keys any more."""
    return bool(readable([keys], 0)) and os.read(keys, 1) in b"q"


@contextmanager
def _terminal() -> Iterator[tuple[Callable[..., None], int | None]]:
    """Draw pictures in the place of those before; the terminal is as it was when this ends."""
    with _keys() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:

        def show(title: Text, pictures: list[RenderableType]) -> None:
            layout = Layout()  # the pictures share the lines of the terminal
            layout.split_column(Layout(title, size=2), *map(Layout, pictures))
            live.update(layout, refresh=True)

        yield show, keys

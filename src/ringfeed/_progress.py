"""Shows how far a long command is: a bar of the package rich on a terminal's standard error.

It is shown from two seconds on.

A command enters `showing`; what takes long calls `tell`, which does nothing if no bar is shown.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SILENT_S = 2.0  # a command that is over by then shows nothing
EACH_S = 2  # times that a thread draws it

# What shows the bar of this process, if there is one.
_shown: list[Callable[[str, float | None], None]] = []


def tell(what: str, share: float | None = None) -> None:
    """Say what a command does now, and which share of it is done."""
    for show in _shown:
        show(what, share)


@contextmanager
def showing(*, ticks: bool = False) -> Iterator[None]:
    """Show what is told in the body, if standard error is a terminal and rich is installed.

    ``ticks``: a thread draws the bar, also during a long step; not if the body forks, or measures
    what a thread disturbs.
    """
    is_terminal = (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    )
    with ExitStack() as end:
        if is_terminal and not _shown:
            with suppress(ModuleNotFoundError):
                _show_bar(end, ticks=ticks)
        yield


def _show_bar(end: ExitStack, *, ticks: bool) -> None:
    """Show a bar, which ``end`` removes. ModuleNotFoundError without rich."""
    from rich.console import Console  # noqa: PLC0415 - an optional package
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=ticks,
        refresh_per_second=EACH_S,
        # What the command prints goes where it would.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task, from_s = bar.add_task("", total=None), time.monotonic() + SILENT_S

    def show(what: str, share: float | None) -> None:
        total = None if share is None else 1.0
        bar.update(task, description=what, completed=share or 0.0, total=total)
        if not ticks and time.monotonic() >= from_s:
            bar.start()
            bar.refresh()

    end.callback(bar.stop)
    if ticks:
        first = threading.Timer(SILENT_S, bar.start)
        first.start()
        end.callback(first.join)
        end.callback(first.cancel)
    _shown.append(show)
    end.callback(_shown.clear)

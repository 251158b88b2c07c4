"""How far a long command is: a bar of the package rich on a terminal's standard error.

It is shown from two seconds on.

`showing` is entered by the command, `tell` is called by whatever takes long: where nothing is
shown, it does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENT_S = 2.0  # a command that is over by then shows nothing
EACH_S = 2  # times that a thread draws it


class Bar:
    """A line that says what is under way, drawn by `tell` and, with ``ticks``, by rich's thread."""

    def __init__(self, *, ticks: bool) -> None:
        """Show nothing yet. ModuleNotFoundError without rich."""
        from rich.console import Console  # noqa: PLC0415 - an optional package
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            *(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
            ),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=ticks,
            refresh_per_second=EACH_S,
            redirect_stdout=False,  # what is printed goes where it would
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None)
        self._from_s = time.monotonic() + SILENT_S
        self._first = threading.Timer(SILENT_S, self._progress.start)
        if ticks:
            self._first.start()

    def tell(self, what: str, share: float | None) -> None:
        """Say what is under way, and how far it is, if that is known."""
        total = None if share is None else 1.0
        self._progress.update(self._task, description=what, completed=share or 0.0, total=total)
        if not self._progress.live.auto_refresh and time.monotonic() >= self._from_s:
            self._progress.start()
            self._progress.refresh()

    def end(self) -> None:
        """Remove the line."""
        self._first.cancel()
        if self._first.ident is not None:
            self._first.join()
        self._progress.stop()


_shown: list[Bar] = []  # the bar of this process, if one is shown


def tell(what: str, share: float | None = None) -> None:
    """Say what a command is at; ``share``: of it, what is done."""
    for bar in _shown:
        bar.tell(what, share)


@contextmanager
def showing(*, ticks: bool = False) -> Iterator[None]:
    """Show what is told in the body, where standard error is a terminal and rich is installed.

    ``ticks``: by a thread, also where a step is long; not where the body forks, or measures what a
    thread disturbs.
    """
    is_terminal = (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    )
    bar = None
    if is_terminal and not _shown:
        with suppress(ModuleNotFoundError):
            bar = Bar(ticks=ticks)
            _shown.append(bar)
    try:
        yield
    finally:
        if bar is not None:
            _shown.clear()
            bar.end()

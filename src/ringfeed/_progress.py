"""How far a long command is: a bar of the package rich on standard error, from two seconds on, only on a terminal.

`showing` is entered by the command, `tell` is called by whatever takes long: where nothing is shown, it does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENT_S = 2.0  # a command that is over by then shows nothing
EVERY_S = 0.5


class Bar:
    """A line that says what is under way; drawn by `tell`, and with ``ticks`` by a thread, too."""

    def __init__(self, *, ticks: bool) -> None:
        """Show nothing yet. ModuleNotFoundError without rich."""
        from rich.console import Console  # noqa: PLC0415 - an optional package
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,  # what is printed goes where it would
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None)
        self._lock = threading.Lock()
        self._from_s = time.monotonic() + SILENT_S
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringfeed-progress", daemon=True) if ticks else None
        if self._thread is not None:
            self._thread.start()

    def tell(self, what: str, share: float | None) -> None:
        """Say what is under way, and how far it is, if that is known."""
        total = None if share is None else 1.0
        self._progress.update(self._task, description=what, completed=share or 0.0, total=total)
        self._draw()

    def end(self) -> None:
        """Remove the line."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._progress.stop()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if time.monotonic() < self._from_s:
                return
            self._from_s = time.monotonic() + EVERY_S
            self._progress.start()
            self._progress.refresh()


class _Shown:
    """The bar of this process, if one is shown."""

    bar: Bar | None = None


def tell(what: str, share: float | None = None) -> None:
    """Say what a command is at; ``share``: of it, what is done."""
    if _Shown.bar is not None:
        _Shown.bar.tell(what, share)


@contextmanager
def showing(*, ticks: bool = False) -> Iterator[None]:
    """Show what is told in the body, where standard error is a terminal and rich is installed.

    ``ticks``: by a thread, also where a step is long; not where the body forks, or measures what a thread disturbs.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if not is_terminal or _Shown.bar is not None:
        yield
        return
    try:
        _Shown.bar = bar = Bar(ticks=ticks)
    except ModuleNotFoundError:
        yield
        return
    try:
        yield
    finally:
        _Shown.bar = None
        bar.end()

"""Begins a trace of a loader: which file it makes, and what is said of the loader in it."""

from __future__ import annotations

import time
import weakref
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed.monitor.trace import Trace, save_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ringfeed.monitor._snapshot import Observer
    from ringfeed.monitor.stats import Stats

PAGES = (".html", ".htm")


def begin_trace(
    loader: Any,
    path: str | os.PathLike[str],
    observer: Callable[[], Observer | None],
    verdict: Callable[[Any, Stats], str],
) -> Trace:
    """Begin a trace that makes a page, or a file for other programs, as the name of the file says.

    ``verdict``: what the loader says of statistics. ModuleNotFoundError where a page cannot be drawn.
    """
    facts = Facts(loader, verdict)
    if Path(path).suffix.lower() not in PAGES:
        return Trace(observer, path, facts=facts, save=save_json)
    from ringfeed.monitor.page import check_bokeh, save_page  # noqa: PLC0415 - it needs an optional package

    check_bokeh()
    return Trace(observer, path, facts=facts, save=save_page)


class Facts:
    """What a loader says at the end of a trace of what was done since its beginning; it does not keep the loader."""

    def __init__(self, loader: Any, verdict: Callable[[Any, Stats], str]) -> None:
        """Remember what was done before."""
        self._loader = weakref.ref(loader)
        self._verdict = verdict
        self._before = copy(loader.stats())
        self._began = time.strftime("%Y-%m-%d %H:%M:%S %z")

    def __call__(self) -> dict[str, Any]:
        """Return it as flat JSON; of a loader that is gone, only when the trace began."""
        from ringfeed import __version__  # noqa: PLC0415 - the package itself imports this one

        facts: dict[str, Any] = {"program": "ringfeed", "version": __version__, "began": self._began}
        loader = self._loader()
        if loader is None:
            return facts
        stats = loader.stats()
        done = stats.since(self._before)
        return facts | {
            "loader": repr(loader),
            "verdict": self._verdict(loader, done),
            "batches": done.batches,
            "samples": done.samples,
            "restarts": done.restarts,
            "slot_size": loader.plan.slot_size,
            "memory": str(stats.memory),
        }

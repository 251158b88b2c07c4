"""What is logged of a DataLoader: each line once."""

from __future__ import annotations

import logging
import weakref
from typing import Any

LOG = logging.getLogger("ringfeed.torch")
_said: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def first_line(why: Exception) -> str:
    """Return the first line of what an error says."""
    return str(why).partition("\n")[0] or type(why).__name__


def say(loader: Any, what: str, level: int) -> None:
    """Log a line, once for each loader."""
    if what not in (said := _said.setdefault(loader, set())):
        said.add(what)
        LOG.log(level, "DataLoader of %s %s", type(loader.dataset).__name__, what)


def said_of(loader: Any) -> set[str]:
    """Return the lines that were logged of a DataLoader, without its name."""
    return {*_said.get(loader, ())}

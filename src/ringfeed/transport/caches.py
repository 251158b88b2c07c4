"""Functions under ``functools.lru_cache`` that travel by value."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def cached(function: Callable[..., Any], parameters: dict[str, Any]) -> object:
    """Give ``function`` an empty cache of its own, as ``functools.lru_cache`` does.

    Where the program itself opens a copy of its dataset, a function that remembers something there
    stays the program's: what it has opened, as an environment of LMDB, may not be opened twice in
    one process.
    """
    made = functools.lru_cache(**parameters)(function)
    own = getattr(sys.modules.get(function.__module__), function.__qualname__, made)
    return own if type(own) is type(made) and own.cache_info().currsize else made

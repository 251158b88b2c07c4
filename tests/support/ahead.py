"""Loaders whose workers read the next epoch ahead, or do not, whatever ringfeed finds best."""

from __future__ import annotations

from typing import Any

import ringfeed


def loader_with(dataset: Any, *, ahead: bool | None = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader that goes on with the next epoch before it begins, or rests at the end of each."""
    loader = ringfeed.Loader(dataset, **settings)
    if ahead is not None:
        loader._runner._goes_on = ahead
    return loader

"""The frames of callers: Keras tells neither its adapters nor its callbacks what they belong to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


def caller(above: int = 0) -> FrameType:
    """Return the frame that has called the function which asks here, or the one so many ``above`` it."""
    return sys._getframe(above + 2)  # noqa: SLF001 - documented, and quicker than inspect


def owner(frame: FrameType) -> Any:
    """Return the ``self`` of the method that runs in a frame; None for a function."""
    return frame.f_locals.get("self")

"""The frames of callers: Keras tells neither its adapters nor its callbacks what they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._callers import frame_above

if TYPE_CHECKING:
    from types import FrameType


def caller(above: int = 0) -> FrameType:
    """Return the frame that has called the function which asks here, or the one so many ``above`` it."""
    return frame_above(above + 2)


def owner(frame: FrameType) -> Any:
    """Return the ``self`` of the method that runs in a frame; None for a function."""
    return frame.f_locals.get("self")

"""Which line of the user's program has called this package: warnings are shown there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FRAMEWORKS = ("tensorflow", "tf_keras", "keras", "torch", "jax", "jaxlib", "flax")
NOT_THE_USERS = frozenset({"ringfeed", "threading", "concurrent", *FRAMEWORKS})


def frame_above(count: int) -> FrameType:
    """Return the frame so many above the function that asks."""
    # It is documented, and traceback.walk_stack() takes several times as long.
    return sys._getframe(count + 1)  # noqa: SLF001


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, and all that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def callers_depth() -> int:
    """Return the ``stacklevel`` with which the function that calls this warns at that line."""
    _, depth = users_frame(frame_above(1))
    return depth


def users_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost frame of the user's code, else of a framework, and its number from 1."""
    last_resort: tuple[FrameType | None, int] = None, 1
    for depth, above in enumerate(frames_from(frame), start=1):
        root = str(above.f_globals.get("__name__")).partition(".")[0]
        if root not in NOT_THE_USERS:
            return above, depth
        if root != "ringfeed" and last_resort[0] is None:
            last_resort = above, depth
    return last_resort

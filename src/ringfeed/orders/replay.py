"""A warning if a replay, which repeats reading up to a place in an epoch, takes long."""

from __future__ import annotations

import time
import warnings

from ringfeed._callers import callers_depth

PATIENCE_S = 1.0
clock = time.monotonic


class Replay:
    """Warns once, at the user's line, when a replay has taken a second."""

    def __init__(self, what: str, remedy: str, since_s: float | None = None) -> None:
        """``what``: the replay in words; ``remedy``: how to avoid it.

        ``since_s``: by `clock`, now.
        """
        self._what, self._remedy = what, remedy
        self._since_s = clock() if since_s is None else since_s
        self.is_told = False

    def note(self, done: int, total: int) -> None:
        """Note the progress of the replay."""
        if not self.is_told and (passed_s := clock() - self._since_s) > PATIENCE_S:
            self.is_told = True
            warnings.warn(
                f"going on amid an epoch: {self._what} once more, {done} of {total} in the first "
                f"{passed_s:.1f} s; {self._remedy}",
                UserWarning,
                stacklevel=callers_depth(),
            )

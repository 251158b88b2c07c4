"""How many actors a bridge has where that is "auto": more while training waits for them, fewer where it does not.

The signal is the training's own: the share of the time that it waits for batches, which the bridge reads in the control
block. It says nothing of why, so actors are added only where those that there are have no more to give. No clocks here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ringfeed.monitor.bottleneck import BUSY, HEADROOM, WAITED

LOOK_S = 2.0  # a shorter time says nothing
CALM = 5  # looks in a row without a wait, after which actors leave
SETTLED = 0.01  # of the time: training that waits less does not wait
FACTOR = 2
SPARE = 0.8  # where fewer than this part of the actors would do, the others leave


class Seen(NamedTuple):
    """Totals at one moment, in seconds: what training has waited, and what all actors have worked."""

    now_s: float
    waited_s: float
    worked_s: float


class Scaling:
    """Decides on the number of actors, from ``least`` to ``most``."""

    def __init__(self, least: int, most: int, *, may_grow: bool) -> None:
        """``may_grow``: whether workers here are as many as help."""
        self.may_grow = may_grow
        self._least, self._most = least, most
        self._seen: Seen | None = None
        self._calm = 0

    def look(self, seen: Seen, wanted: int, there: int) -> int:
        """Return how many actors there are to be, of which so many are wanted and there."""
        if self._seen is None or there < wanted:
            self._seen = seen
            return wanted
        elapsed_s = seen.now_s - self._seen.now_s
        if elapsed_s < LOOK_S:
            return wanted
        waited = (seen.waited_s - self._seen.waited_s) / elapsed_s
        busy = (seen.worked_s - self._seen.worked_s) / (elapsed_s * max(1, there))
        self._seen = seen
        self._calm = self._calm + 1 if waited < SETTLED else 0
        if waited >= WAITED and (busy >= BUSY or not there):
            return min(self._most, max(1, FACTOR * there)) if self.may_grow else wanted
        enough = max(self._least, math.ceil(there * busy * HEADROOM))
        if self._calm >= CALM and enough < SPARE * there:
            self._calm = 0
            return enough
        return wanted

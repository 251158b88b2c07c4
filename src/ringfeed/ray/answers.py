"""What answers have shown: how long a call may take, and how many an actor is to have at a time. Pure decisions."""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_WINDOW, MOST_WINDOW = 2, 8  # calls that an actor has at a time
HEDGE_S = 1.0  # a call is hedged after so long, or
HEDGE_MEDIANS = 4  # after so many medians, each of about two calls' work
FIRST_S = 10.0  # while no call was answered: an actor may import what the dataset needs
SEEN = 64  # calls that the median is of
MEAN_OF = 16  # answers of each actor that a moving mean is of
IDLE = 0.05  # of an actor's time, from which its window is too small


class Answers:
    """The answers to the calls of one bridge."""

    def __init__(self) -> None:
        """There is none yet."""
        self.window = LEAST_WINDOW
        self.count = 0
        self.flight_s = 0.0  # that their calls took, all together
        self.idle = 0.0  # share of their time that actors wait between calls: a moving mean
        self._looked_at = 0.0  # the same, since the window was made larger
        self._took_s: deque[float] = deque(maxlen=SEEN)

    def note(self, took_s: float) -> None:
        """Take note of the time from a call to its answer."""
        self._took_s.append(took_s)
        self.count += 1
        self.flight_s += took_s

    def note_idle(self, idle: float, actors: int) -> bool:
        """Take note of the share of its time that one of the actors waited; returns whether they wait too much."""
        self.idle += (idle - self.idle) / (MEAN_OF * actors)
        self._looked_at += (idle - self._looked_at) / (MEAN_OF * actors)
        return self._looked_at > IDLE and self.window < MOST_WINDOW

    def widen(self) -> None:
        """Give the actors one more call at a time."""
        self.window, self._looked_at = self.window + 1, 0.0

    @property
    def patience_s(self) -> float:
        """How long a call may take before it is made a second time."""
        return max(HEDGE_S, HEDGE_MEDIANS * median(self._took_s)) if self._took_s else FIRST_S

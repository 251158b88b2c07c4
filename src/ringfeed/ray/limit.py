"""How many calls may be under way at a time, by the room for what they answer. Pure decisions, no clocks."""

from __future__ import annotations

import sys


class Limit:
    """The limits of one bridge: its memory, the object stores that answers lie in, and what was found out."""

    def __init__(self, most_calls: int) -> None:
        """``most_calls``: that this process has memory for; one call an actor is always under way."""
        self.stores = sys.maxsize
        """How many calls have their answers in the object stores' share."""
        self.found = sys.maxsize
        """How many had room, where more had none."""
        self._most_calls = most_calls
        self._found_s = 0.0

    @property
    def is_tight(self) -> bool:
        """Whether answers have too little room for all calls that actors could take."""
        return min(self.found, self.stores) < sys.maxsize

    def calls_of(self, actors: int, window: int) -> int:
        """Return how many calls so many actors have at a time."""
        return min(self.found, self.stores, self.wished(actors, window))

    def wished(self, actors: int, window: int) -> int:
        """Return how many they would have if all stores were large."""
        return max(actors, min(window * actors, self._most_calls))

    def narrow(self, sent_s: float, now_s: float, calls: int) -> bool:
        """Halve how many of so many calls are under way, once for all that were; False: it was one alone."""
        if sent_s < self._found_s:
            return True
        is_one = self.found == 1
        self.found, self._found_s = max(1, min(self.found, calls) // 2), now_s
        return not is_one


def show_calls(count: int) -> str:
    """Say how many calls."""
    return f"{count} call{'s' * (count != 1)}"

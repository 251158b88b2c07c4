"""What a loader has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts and times since the loader was made; times in seconds.

    ``stall_s`` is what the consumer waited for batches, ``back_pressure_s`` what all workers together waited for
    free slots, ``busy_s`` what they spent on filling. ``elapsed_s`` is the time in which an epoch was under way, and
    ``verdict`` says in words what these times mean. ``skipped`` lists the dataset indices that were left
    out, ``none_batches`` counts the whole batches of None, which are left out without an error.
    """

    batches: int = 0
    samples: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0
    back_pressure_s: float = 0.0
    elapsed_s: float = 0.0
    restarts: int = 0
    skipped: list[int] = field(default_factory=list)
    none_batches: int = 0
    verdict: str = ""


def show_s(seconds: float) -> str:
    """Return a time as people read it: ``2.1 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.1f} {unit}"
    return f"{seconds / 1e-6:.1f} us"

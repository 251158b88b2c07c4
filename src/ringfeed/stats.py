"""What a loader has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts and times since the loader was made; times in seconds.

    ``stall_s`` is what the consumer waited for batches, ``back_pressure_s`` what all workers together waited for
    free slots, ``busy_s`` what they spent on filling. ``skipped`` lists the dataset indices that were left out.
    """

    batches: int = 0
    samples: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0
    back_pressure_s: float = 0.0
    restarts: int = 0
    skipped: list[int] = field(default_factory=list)

"""What makes the user's batch of a lease and its rows: between the ring and frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ringfeed.ring._ring import Lease

BuildBatch: TypeAlias = Callable[[Lease, int], Any]
"""Makes a batch of a lease and its rows; its user lets go of batches by itself."""


class BatchBuilder:
    """A `BuildBatch` whose batches keep their slots, and which makes private copies as well."""

    waits_for_slots = False
    """Whether to wait up to ``timeout_s``, not a second, for slots that views hold."""
    is_quiet = False
    """Whether its caller keeps batches as it likes, and is given copies without a warning."""
    copied_by = ""
    """How a user copies what is to be kept."""
    is_computing: Callable[[], bool] | None = None
    """Whether the framework computes with earlier batches: waiting holds up nothing then."""

    def __call__(self, lease: Lease, rows: int) -> Any:
        """Return the batch in the slot of the lease; it keeps the slot by itself."""
        raise NotImplementedError

    def private(self, lease: Lease, rows: int) -> Any:
        """Return a copy of the batch, which keeps nothing of the slot."""
        raise NotImplementedError

    def lets_go_later(self, waited_s: float, held: int) -> bool:
        """Whether the framework may still let go of one of ``held`` slots by itself."""
        del waited_s, held
        return False

"""How many rows make a ticket that is worth a call, and how many calls are under way at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.ray.options import Ray
    from ringfeed.ring._ring import Ring

WINDOW = 4  # calls that an actor has at a time: the way of one takes as long as three are made
SHARES = 2  # of an actor, that batches are cut into at least: smaller tickets need more calls
TICKET_NS = 160_000_000  # at least: a call costs a bridge 0.6 ms, and an actor 0.7 ms
TICKET_NS_AN_ACTOR = (
    2_500_000  # of a bridge, which is to spend a quarter of its time on their calls
)
MIXED_NS = 5_000_000  # beside workers here, which fill the same batches
TICKET_BYTES = 8_000_000  # what comes in an answer, and not by the object store
BYTES = 256_000_000  # of answers that a bridge waits for; one call an actor is allowed beyond


def in_flight(ray: Ray) -> int:
    """Return how many calls all actors together have at a time, at first."""
    return ray.most * SHARES


def row_size(source: Source) -> int:
    """Return the bytes of a row as an actor sends it."""
    leaves = source.spec.leaves
    return sum(leaf.nbytes // leaf.dtype.itemsize * leaf.given_dtype.itemsize for leaf in leaves)


def ticket_size(source: Source) -> int:
    """Return the most bytes of the rows of one call."""
    size, row = source.rows * max(1, row_size(source)), row_size(source)
    return size if source.at_once else min(size, max(TICKET_BYTES, row))


def most_calls(source: Source) -> int:
    """Return of how many calls the rows are no more than `BYTES`."""
    return BYTES // ticket_size(source)


def flights_size(ray: Ray, source: Source) -> int:
    """Return the most bytes of rows that are on their way at a time."""
    return max(ray.most, min(ray.most * WINDOW, ray.bridges * most_calls(source))) * ticket_size(
        source
    )


def set_pace(ring: Ring, source: Source, ray: Ray, *, workers_here: int, there: int = 0) -> None:
    """Set how batches are cut into tickets, for workers here or for the actors that are there.

    0 actors: as for all of them, since they are still to come.
    """
    most_rows = max(1, TICKET_BYTES // max(1, row_size(source)))
    actors = there or ray.most
    ticket_ns = max(TICKET_NS, TICKET_NS_AN_ACTOR * actors // ray.bridges)
    ring.set_pace(MIXED_NS if workers_here else ticket_ns, most_rows, SHARES * actors)

"""How long training waited for each batch: percentiles of the ring's histogram."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ringfeed._units import show_s
from ringfeed.monitor._snapshot import WAIT_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORTEST, PARTS, _BUCKETS = WAIT_BUCKETS
_NUMBERS = np.arange(_BUCKETS + 1)
# The last edge is the end of the last bucket.
_EDGES_S = 2.0 ** (_SHORTEST + _NUMBERS // PARTS) * (1 + _NUMBERS % PARTS / PARTS) / 1e9
_MIDDLES_S = np.append(0.0, (_EDGES_S[:-1] + _EDGES_S[1:]) / 2)


class Waits(NamedTuple):
    """How long training waited for a batch, in seconds: percentiles over ``batches``.

    All batches count except the first, which waits for the workers' start. A batch that was ready,
    or came within a microsecond, has the wait 0.0; other figures are exact to 1/32, up to 18
    minutes.
    """

    batches: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, counts: Any) -> Self:
        """Return the figures of the counts that `Observer.waits` gives, or their sum."""
        sums = np.cumsum(counts)
        total = int(sums[-1])
        found = (_quantile(sums, share * total) for share in (0.5, 0.95, 0.99, 1.0))
        return cls(total, *found)

    def __str__(self) -> str:
        """Return the figures in words: ``p50 none, p95 1.2 ms, p99 41.0 ms, longest 1.2 s``."""
        names = ("p50", "p95", "p99", "longest")
        said = zip(names, self[1:], strict=True)
        return ", ".join(f"{name} {show_s(wait_s) if wait_s else 'none'}" for name, wait_s in said)


def _quantile(sums: Any, rank: float) -> float:
    """Return the wait of the batch of this rank, counted from the shortest wait."""
    return float(_MIDDLES_S[np.searchsorted(sums, max(math.ceil(rank), 1))]) if sums[-1] else 0.0


def octaves(counts: Any) -> Iterator[tuple[float, int]]:
    """Yield powers of two of seconds, and how many batches waited at most so long."""
    sums = np.cumsum(counts)
    for edge in range(0, _BUCKETS, PARTS):
        yield float(_EDGES_S[edge]), int(sums[edge])


def sum_s(counts: Any) -> float:
    """Return what all batches waited together, by the middles of the buckets."""
    return float(counts @ _MIDDLES_S)

"""What all trainings of a share must give alike, and which part of a batch each of them reads."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ringfeed._checks import check_choice, check_integer, check_seconds
from ringfeed.orders.shard import Part

LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
)
"""The variables that launchers set: torchrun, Open MPI, MPICH and Intel MPI, MVAPICH."""
MOST_RANKS = (
    256  # of which the host keeps two descriptors each, where a process has 1024 by default
)


@dataclass(frozen=True)
class Terms:
    """The release of ringfeed, and the parameters of `share` of these names."""

    release: str
    name: str
    ranks: int
    mode: Literal["split", "broadcast"]
    on_slow: Literal["wait", "drop", "raise"]
    patience_s: float
    timeout_s: float

    def __post_init__(self) -> None:
        """Refuse what no share can be made of."""
        check_integer("ranks", self.ranks, 1, MOST_RANKS)
        check_choice("mode", self.mode, ("split", "broadcast"))
        check_choice("on_slow", self.on_slow, ("wait", "drop", "raise"))
        for name in ("patience_s", "timeout_s"):
            if getattr(self, name) is None:
                raise TypeError(
                    f"{name}=None must be a number of seconds: a share waits for no training for "
                    "ever"
                )
            check_seconds(name, getattr(self, name), "above 0")

    def differs(self, other: Terms) -> str | None:
        """Return the error for a training that gives other terms; None where they are the same."""
        here, there = asdict(self), asdict(other)
        for name, value in here.items():
            if there[name] != value:
                return (
                    f"share(name={self.name!r}) was made with {name}={value!r}, and this process "
                    f"joins it with {name}={there[name]!r}; give all its trainings the same, or "
                    "another name"
                )
        return None


def rank_of(mode: str, rank: object, ranks: int) -> int | None:
    """Return which part of each batch this process reads; None in mode "broadcast"."""
    if mode == "broadcast":
        if rank is not None:
            raise ValueError(
                f"rank={rank!r} with mode='broadcast', where each training gets all rows; leave "
                "rank out"
            )
        return None
    found = _from_launcher() if rank is None else check_integer("rank", rank, 0)
    if found is None:
        raise ValueError(
            f"mode='split' needs the rank of this process among the {ranks} of this host, and none "
            f"of {', '.join(LOCAL_RANKS)} is in the environment; give rank="
        )
    if not 0 <= found < ranks:
        raise ValueError(f"rank={found} with ranks={ranks}; ranks go from 0 to {ranks - 1}")
    return found


def _from_launcher() -> int | None:
    for name in LOCAL_RANKS:
        if name in os.environ:
            try:
                return int(os.environ[name])
            except ValueError:
                raise ValueError(
                    f"the environment has {name}={os.environ[name]!r}, expected an int; give rank="
                ) from None
    return None


@dataclass(frozen=True)
class Cut:
    """The rows of each batch that one training reads: all of them, or those of its rank."""

    rank: int | None
    ranks: int
    uneven: Any

    def rows(self, rows: int) -> np.ndarray[Any, Any] | slice:
        """Return its rows of a batch of so many: a slice where they lie side by side."""
        if self.rank is None:
            return slice(0, rows)
        own = self._shard(rows).select(np.arange(rows))
        return (
            own
            if self.padding(rows)
            else slice(int(own[0]), int(own[-1]) + 1)
            if len(own)
            else slice(0, 0)
        )

    def padding(self, rows: int) -> int:
        """Return how many of them, 0 or 1, repeat another row of the batch; the last one does."""
        return 0 if self.rank is None else self._shard(rows).padding(rows)

    def _shard(self, rows: int) -> Part:
        # Of a last global batch, which is cut into equal parts: that of a full one is the same.
        return Part(
            self.rank or 0, self.ranks, rows + 1, "keep" if self.uneven == "keep" else "pad"
        )

"""The rank of a process among several that train together, and its part of an order.

    global order     0 1 2 3 4 5 6 7 8 9 10     of any `Sampler`, the same on every rank
    global batch     0 1 2 3 | 4 5 6 7 | 8 9 10     world_size * rows samples; 2 ranks of 2 rows
    rank 0           0 1     | 4 5     | 8 9
    rank 1               2 3 |     6 7 |     10 8

Positions count the global order: the state of an epoch is the same on every rank, and another
number of ranks can continue from it.

An incomplete last global batch is split evenly: some parts may have one row less. "pad" adds a row
at the end of each shorter part. The row repeats a sample of the same global batch: the first sample
for the first such part, the second for the second, and so on. With "keep" these parts stay shorter,
and with "drop" the global batch is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ringfeed._checks import AUTO, MOST, check_choice, check_integer
from ringfeed._classes import class_names
from ringfeed.orders.sampler import CHUNK, Epoch, Sampler

if TYPE_CHECKING:
    from ringfeed.orders.permutation import Indices

Uneven: TypeAlias = Literal["pad", "drop", "keep"]
AT_ONCE = (
    16 * CHUNK
)  # positions of the global order that are read in one go, unless a global batch has more


class Shard(NamedTuple):
    """The rank of this process among those that train together: the loader's ``shard=``.

    rank: from 0 on. world_size: the number of ranks.
    uneven: "pad", "keep" or "drop" an incomplete last global batch: see docs/settings.md.
    sources: the names of those that know the rank, with ``shard="auto"``.
    """

    rank: int
    world_size: int
    uneven: Uneven = "pad"
    sources: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        return f"rank {self.rank} of {self.world_size}" + (
            f" ({self.sources})" if self.sources else ""
        )

    @classmethod
    def find(cls, uneven: Uneven = "pad") -> Shard:
        """Return the rank of this process that launchers and frameworks agree on.

        Raises ValueError if none knows the rank, or they differ.

        ``shard="auto"`` is short for ``shard=Shard.find()``.
        """
        from ringfeed.orders.ranks import find  # noqa: PLC0415 - only where it is asked for

        rank, world_size, sources = find()
        return cls(rank, world_size, uneven, sources)

    @classmethod
    def of(cls, shard: object) -> Shard:
        """Return the Shard for the loader's parameter ``shard``.

        Raises TypeError or ValueError for an invalid value.
        """
        if isinstance(shard, str) and shard == AUTO:
            return cls.find()
        this = cls(0, 1) if shard is None else shard
        if not isinstance(this, cls):
            raise ValueError(f"shard={shard!r}; give ringfeed.Shard(rank, world_size), or {AUTO!r}")  # noqa: TRY004 - as of any other word
        count = check_integer("world_size", this.world_size, 1, MOST)
        number = check_integer("rank", this.rank, 0, MOST)
        if number >= count:
            raise ValueError(
                f"rank={number} with world_size={count}; ranks go from 0 to {count - 1}"
            )
        check_choice("uneven", this.uneven, ("pad", "drop", "keep"))
        return cls(number, count, this.uneven, this.sources)

    def check(self, order: Sampler, sampler: object, seed: object) -> None:
        """Raise ValueError for orders without global batches, or with different ones on each rank.

        ``sampler`` and ``seed`` are the loader's parameters.
        """
        if self.world_size == 1:
            return
        if seed is None:
            raise ValueError(
                f"seed=None draws a seed, and each rank of {self.world_size} another; give all of "
                "them one number"
            )
        order.check_ranks(self.world_size)
        if "torch.DistributedSampler" in class_names(sampler):
            raise ValueError(
                f"sampler is a {type(sampler).__name__}, which gives the samples of one process, "
                f"and {self} would get a part of these; leave it out and give shuffle=True, or "
                "leave shard= out"
            )


class Part(NamedTuple):
    """The part of rank ``rank`` of ``world_size``: ``rows`` rows of each global batch."""

    rank: int
    world_size: int
    rows: int
    uneven: Uneven

    @property
    def step(self) -> int:
        """Samples of a global batch: each batch of a rank moves the position by this."""
        return self.world_size * self.rows

    def batches(self, samples: int) -> int:
        """Return how many batches this rank has for this number of samples.

        The last may be shorter, or padded.
        """
        begin, end, padding = self._cut(samples % self.step)
        return samples // self.step + (end - begin + padding > 0)

    def global_batches(self, samples: int) -> int:
        """Return the largest number of batches of any rank."""
        return samples // self.step + (samples % self.step > 0 and self.uneven != "drop")

    def padding(self, samples: int) -> int:
        """Return how many rows, 0 or 1, pad this rank's last batch for this number of samples."""
        return self._cut(samples % self.step)[2]

    def part_of(self, epoch: Epoch) -> Epoch:
        """Return this rank's part of an epoch, from the epoch's position on."""
        if self.world_size == 1:
            return epoch
        return epoch.part_of(self) or _PartOfEpoch(self, epoch)

    def epoch_of(self, sampler: Sampler, number: int) -> Epoch:
        """Return this rank's part of a whole epoch."""
        return self.part_of(sampler.epoch(number))

    def select(self, samples: Indices) -> Indices:
        """Return this rank's rows of some global batches; the last may be incomplete."""
        full = len(samples) // self.step * self.step
        own = samples[:full].reshape(-1, self.world_size, self.rows)[:, self.rank].reshape(-1)
        rest = samples[full:]
        begin, end, padding = self._cut(len(rest))
        if not padding:
            return np.concatenate([own, rest[begin:end]])
        shorter = self.rank * (end - begin + 1) - begin  # parts before this one
        return np.append(own, [*rest[begin:end], rest[shorter % len(rest)]])

    def _cut(self, rest: int) -> tuple[int, int, int]:
        """Return where this rank's part of the last samples begins and ends, and its padding."""
        if self.uneven == "drop":
            return 0, 0, 0
        begin, end = (-(-rank * rest // self.world_size) for rank in (self.rank, self.rank + 1))
        return (
            begin,
            end,
            -(-rest // self.world_size) - (end - begin) if self.uneven == "pad" else 0,
        )


class _PartOfEpoch(Epoch):
    """One rank's part of an epoch."""

    def __init__(self, shard: Part, epoch: Epoch) -> None:
        self._shard = shard
        self._whole = epoch
        self._own: list[Indices] = []  # of this rank, and not given yet
        self._found: list[
            tuple[int, Indices]
        ] = []  # of the global order, not in ``_own`` yet: how many were asked for
        self._is_over = False

    @property
    def whole(self) -> Epoch:
        """The epoch of all ranks."""
        return self._whole

    def take(self, count: int) -> Indices:
        """Return the sample numbers of the next batches.

        ``count`` is a multiple of a batch's rows.
        """
        step = self._shard.step
        most = max(AT_ONCE // step, 1) * step
        while not self._is_over and (missing := count - sum(map(len, self._own))) > 0:
            self._read(min(missing // self._shard.rows * step, most))
        own = np.concatenate([np.empty(0, np.int64), *self._own])
        self._own = [own[count:]]
        return own[:count]

    def _read(self, count: int) -> None:
        """Read some global batches; after Ctrl-C, the next call splits them."""
        if not self._found:
            self._found.extend(zip((count,), map(self._whole.take, (count,)), strict=True))
        asked, samples = self._found[0]
        own, is_over = self._shard.select(samples), len(samples) < asked
        self._own, self._found, self._is_over = [*self._own, own], [], is_over

    def state(self, position: int) -> Any:
        """Return the state that the global order needs, with this position, to continue."""
        return self._whole.state(position)

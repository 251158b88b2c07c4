"""The order of a `Buckets`: lists of samples, shared by some ranks, as functions of (seed, epoch, position).

    sorted samples   0 1 2 3 4 5 6 7 8 9 | 10 11 12 13 14 | 15 16 17        edges 0, 10, 15, 18; here one rank
    batches          of 4: 2, rest 2     | of 3: 1, rest 2 | of 2: 1, rest 1
    an epoch         the full batches of all buckets, mixed | the rests, mixed | the last bucket's rest

The order is part of the interface, and no later version may change it. A step is R lists of one bucket, one for each of
R ranks; the list of step s and rank r is at position s * R + r. First come the full steps of all buckets, then the
rests of the buckets but the last, as many samples for each rank, then the last bucket's rest, cut as `shard` says.

Three rows are mixed, each in groups of neighbours. In a group of n from place a on, what is at place a + i comes from
place ``a + permute(i, n, seed_a, epoch)``, where seed_a is the number in the 16 bytes of ``derive(purpose, (seed, a),
16)``, little-endian.

    "step"      The steps, bucket by bucket: one group of all full ones, one of all rests but the last.
    "bucket"    The sorted samples, of which each list is a run: each bucket that has more than one list.
    "alike"     The sorted samples, once more: all those of one length, where an edge lies between two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.orders.permutation import MAX_SORTED_LENGTH, permute
from ringfeed.orders.rng import derive
from ringfeed.orders.sampler import ByPosition, SeededSampler, Stateless
from ringfeed.orders.shard import Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.shard import Uneven


class Cut(NamedTuple):
    """Sorted samples, cut into buckets: bucket b is those from ``edges[b]`` to below ``edges[b + 1]``."""

    edges: Indices
    sizes: Indices
    """Samples of a list of each bucket."""
    alike_from: Indices
    """Where, for each edge, the samples begin that are as long as those on both sides of it; else the edge itself."""
    alike_to: Indices

    @classmethod
    def of(cls, lengths: NDArray[Any], edges: Indices, sizes: Indices) -> Self:
        """Find what the edges divide, in ascending lengths."""
        alike_from, alike_to = edges.copy(), edges.copy()
        inner = np.flatnonzero(lengths[edges[1:-1] - 1] == lengths[edges[1:-1]]) + 1
        divided = lengths[edges[inner]]
        alike_from[inner] = np.searchsorted(lengths, divided, "left")
        alike_to[inner] = np.searchsorted(lengths, divided, "right")
        return cls(edges, sizes, alike_from, alike_to)


class BucketLists(SeededSampler):
    """A `Buckets` for one loader: its lists for so many ranks."""

    parameter = "batch_sampler="

    def __init__(self, name: str, members: Indices, cut: Cut, world_size: int, uneven: Uneven) -> None:
        """``members``: the samples, sorted by length."""
        self._name = name
        self._members = members
        self._steps = Steps(cut, world_size, uneven)
        self.most = self._steps.most

    def bind(self, length: int | None, seed: int) -> BucketOrder:
        """Return the order over a dataset of ``length`` samples."""
        if length not in (None, self._members.size):
            raise ValueError(
                f"Buckets has {self._members.size} lengths, but the dataset has {length} samples; give one for each"
            )
        return BucketOrder(self._name, self._members, self._steps, seed)


class Steps:
    """What each step has, before steps are mixed: the full ones of all buckets, the rests, the last bucket's rest."""

    def __init__(self, cut: Cut, world_size: int, uneven: Uneven) -> None:
        """Share the buckets of a cut by so many ranks."""
        self.cut, self.world_size, self._uneven = cut, world_size, uneven
        self.counts = np.diff(cut.edges)  # samples of each bucket
        self.is_mixed = (self.counts > cut.sizes) | (world_size > 1)  # buckets of more than one list
        every = np.arange(cut.sizes.size)
        full, rests = np.divmod(self.counts, cut.sizes * world_size)
        self._rests_from = full * cut.sizes * world_size
        those = np.flatnonzero(rests[:-1]) if uneven != "drop" else every[:0]
        self.full, self.partial = int(full.sum()), those.size
        self.bucket = np.concatenate([np.repeat(every, full), those])
        self.rows = np.concatenate([np.repeat(cut.sizes, full), rests[those] // world_size])
        number = np.arange(self.full) - np.repeat(np.cumsum(full) - full, full)
        self.place = np.concatenate([number * self.rows[: self.full] * world_size, self._rests_from[those]])
        self._last = 0 if uneven == "drop" else int(rests[-1])  # samples
        is_whole = self._last >= world_size or (self._last and uneven == "pad")
        self._last_lists = world_size if is_whole else self._last
        self.lists = self.bucket.size * world_size + self._last_lists
        """Of an epoch, on all ranks."""
        self.most = max(int(self.rows.max(initial=1)), -(-self._last // world_size))
        """Samples of the largest."""

    def last_places(self, number: int) -> Indices:
        """Return the places of a list of the last bucket's rest."""
        shard = Shard(number, self._last_lists, int(self.cut.sizes[-1]), self._uneven)
        return int(self._rests_from[-1]) + shard.select(np.arange(self._last))

    def padding(self, rank: int) -> int:
        """Return how many rows at the end of a rank's last list repeat a sample."""
        return Shard(rank, self.world_size, int(self.cut.sizes[-1]), self._uneven).padding(self._last)


class BucketOrder(ByPosition):
    """Lists of samples of like length; a position counts the lists of all ranks."""

    pure = True
    parameter = "batch_sampler"
    keeps_world_size = True
    """Whether a position means something with as many ranks only."""

    def __init__(self, name: str, members: Indices, steps: Steps, seed: int) -> None:
        """Order the steps; ``members``: the samples, sorted by length."""
        self.order = name
        self.length = steps.lists
        self.sample_count = members.size
        """Of an epoch."""
        self.members, self.steps, self.seed = members, steps, seed

    def epoch(self, number: int, start: int = 0, state: Any = None) -> BucketEpoch:  # noqa: ARG002 (numbers say it all)
        """Return the lists of epoch ``number`` from position ``start`` on."""
        return BucketEpoch(self, number, start)

    def padding(self, shard: Shard) -> int:
        """Return how many rows at the end of a rank's last list repeat a sample."""
        return self.steps.padding(shard.rank)


class BucketEpoch(Stateless):
    """One pass, or a rank's part of one."""

    def __init__(self, order: BucketOrder, number: int, start: int, shard: Shard | None = None) -> None:
        """Begin at a position; ``shard``: the rank whose lists these are, by default all of them."""
        self._order = order
        self._number = number
        self._position = start
        self._shard = shard or Shard(0, 1, 1, "keep")
        rows = {"step": order.steps.bucket.size, "bucket": order.sample_count, "alike": order.sample_count}
        self._mixes = {purpose: _Permutations(purpose, order.seed, number, size) for purpose, size in rows.items()}

    def part_of(self, shard: Shard) -> BucketEpoch:
        """Return a rank's part, from where this is."""
        return BucketEpoch(self._order, self._number, self._position, shard)

    def take_batches(self, count: int) -> list[Indices]:
        """Return the next lists; fewer at the end of the epoch."""
        start = self._position
        stop = max(start, min(start + count * self._shard.step, self._order.length))
        lists = self._lists(self._shard.select(np.arange(start, stop, dtype=np.int64)))
        self._position = stop
        return lists

    def take(self, count: int) -> Indices:
        """Return the samples of the next ``count`` lists, side by side."""
        return np.concatenate([np.empty(0, np.int64), *self.take_batches(count)])

    def _lists(self, positions: Indices) -> list[Indices]:
        steps, shuffled = self._order.steps, self._order.steps.bucket.size
        step, rank = np.divmod(positions, steps.world_size)
        of_last = [steps.last_places(number) for number in rank[step == shuffled].tolist()]
        step, rank = self._shuffled(step[step < shuffled]), rank[step < shuffled]
        rows = steps.rows[step]
        ends = np.cumsum(rows)
        begins = steps.place[step] + rank * rows
        places = np.repeat(begins - (ends - rows), rows) + np.arange(rows.sum())
        bucket = np.repeat(steps.bucket[step], rows)
        if of_last:
            rows = np.append(rows, [found.size for found in of_last])
            places = np.concatenate([places, *of_last])
            bucket = np.append(bucket, np.full(places.size - bucket.size, steps.cut.sizes.size - 1))
        samples = self._samples(places, bucket)
        ends = np.cumsum(rows)
        return [samples[begin:end] for begin, end in zip((ends - rows).tolist(), ends.tolist(), strict=True)]

    def _shuffled(self, step: Indices) -> Indices:
        """Return which steps come in these places: the full ones first."""
        is_full, full = step < self._order.steps.full, self._order.steps.full
        firsts, counts = np.where(is_full, 0, full), np.where(is_full, full, self._order.steps.partial)
        found = step - firsts
        self._mixes["step"].mix(found, firsts, counts, counts > 1)
        return found + firsts

    def _samples(self, places: Indices, bucket: Indices) -> Indices:
        """Return the samples at some places of these buckets."""
        steps, cut = self._order.steps, self._order.steps.cut
        first = cut.edges[bucket]
        self._mixes["bucket"].mix(places, first, steps.counts[bucket], steps.is_mixed[bucket])
        row = first + places
        edge = np.where(row < cut.alike_to[bucket], bucket, bucket + 1)
        first, end = cut.alike_from[edge], cut.alike_to[edge]
        row -= first
        self._mixes["alike"].mix(row, first, end - first, (row >= 0) & (end > first))
        samples: Indices = self._order.members[row + first]
        return samples


class _Permutations:
    """Mixes of one epoch, each of one group of neighbours in a row; those of few are kept."""

    def __init__(self, purpose: str, seed: int, number: int, size: int) -> None:
        """``size``: of the row."""
        self._purpose, self._seed, self._number = purpose, seed, number
        self._kept = np.zeros(size, np.int16)  # the system gives pages as they are written
        self._is_kept = np.zeros(size, np.bool_)  # by the first of a group

    def mix(self, places: Indices, firsts: Indices, counts: Indices, which: NDArray[np.bool_]) -> None:
        """Replace some places by those that come there; ``firsts`` and ``counts`` say where their groups lie."""
        short = np.flatnonzero(which & (counts <= MAX_SORTED_LENGTH))
        fresh = short[~self._is_kept[firsts[short]]]
        for first, row in zip(*(found.tolist() for found in np.unique(firsts[fresh], return_index=True)), strict=True):
            count = int(counts[fresh[row]])
            self._kept[first : first + count] = self._permuted(np.arange(count, dtype=np.int64), first, count)
            self._is_kept[first] = True
        places[short] = self._kept[firsts[short] + places[short]]
        long = np.flatnonzero(which & (counts > MAX_SORTED_LENGTH))
        for first in np.unique(firsts[long]).tolist():
            those = long[firsts[long] == first]
            places[those] = self._permuted(places[those], first, int(counts[those[0]]))

    def _permuted(self, places: Indices, first: int, count: int) -> Indices:
        seed = int.from_bytes(derive(self._purpose, (self._seed, first), 16), "little")
        return permute(places, count, seed, self._number)

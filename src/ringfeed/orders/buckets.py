"""Batches of samples of similar length: `Buckets`, and the order of its lists.

    sorted samples   0 1 2 3 4 5 6 7 8 9 | 10 11 12 13 14 | 15 16 17    edges 0, 10, 15, 18
    batches          of 4: 2, rest 2     | of 3: 1, rest 2 | of 2: 1, rest 1
    an epoch         full batches of all buckets, mixed | the rests, mixed | the last bucket's rest

The cut into buckets is part of the interface, as is the order, and no later version may change
either. The samples are sorted by length, those of one length by number. Boundaries cut this row:
samples up to the first boundary, then those up to the second, and so on. With R ranks, n samples
and windows of w of them, each part is cut further, from its longest sample down: a bucket is the
next R * ceil(ceil(n / w) / R) batches, as long as there are samples, each of the most samples that
a batch of the longest may have. Without w, the whole part is one bucket. Then each cut between two
buckets moves down to the next multiple of R, so that the samples of every bucket but the last can
be shared by R ranks.

The order is a function of (seed, epoch, position). A step is R lists of one bucket, one for each of
R ranks; the list of step s and rank r is at position s * R + r. First come the full steps of all
buckets, then the rests of the buckets but the last, as many samples for each rank, then the last
bucket's rest, cut as `shard` says.

Three rows are mixed, each in groups of neighbours. In a group of n from place a on, what is at
place a + i comes from place ``a + permute(i, n, seed_a, epoch)``, where seed_a is the number in the
16 bytes of ``derive(purpose, (seed, a), 16)``, little-endian.

    "step"      The steps, bucket by bucket: all full ones are a group, and all rests but the last.
    "bucket"    The sorted samples of each bucket of several lists; a list is a run of them.
    "alike"     The sorted samples, once more: all of one length, where an edge lies between two.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import check_count, check_integer
from ringfeed.orders.checks import (
    check_length,
    checked_array,
    checked_number,
    digest,
    refuse_where,
)
from ringfeed.orders.permutation import Indices, permute_few
from ringfeed.orders.rng import seed_of
from ringfeed.orders.sampler import Epoch, Sampler
from ringfeed.orders.shard import Part, Uneven

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray


WINDOW = 65536  # samples
MOST_LENGTH = 2**53  # that a float64 tells from the next
PROBES = 4096  # lengths: by what they cost, one function is told from others


class Buckets(Sampler):
    """Batches of samples of similar length, so that padding to the longest takes little.

        texts = [np.arange(1 + number % 60) for number in range(500)]

        class Texts:
            def __len__(self):
                return len(texts)

            def __getitem__(self, index):
                padded = np.zeros(60, np.int64)
                padded[: len(texts[index])] = texts[index]
                return {"tokens": padded, "length": len(texts[index])}

        lengths = [len(text) for text in texts]
        buckets = ringfeed.orders.Buckets(lengths, max_tokens=512)
        loader = ringfeed.Loader(Texts(), batch_sampler=buckets)
        for batch in loader:
            tokens = batch["tokens"][:, : batch["length"].max()]  # a view: at most 512 numbers

    In the slots all samples have the shape of the longest; the loop cuts each batch to its own
    longest.

    lengths: the length of each sample, 0 or more: an array of one axis, or an iterable.
    boundaries: ascending lengths that divide the samples into parts: up to the first boundary
        inclusive, then up to the second, and so on; the last part is above all boundaries. A batch
        has samples of one part.
    batch_sizes: samples per batch: a number, or one for each of the ``len(boundaries) + 1`` parts.
    max_tokens: instead of batch_sizes, the most that a batch may cost: its number of samples times
        its longest length, as after padding. All batches of a bucket have the same number of
        samples.
    window: the number of random samples among which a batch collects similar lengths. With n
        samples, ``ceil(n / window)`` batches of neighbouring lengths are a bucket, which each epoch
        mixes again: a larger window gives less padding, a smaller one more varied batches. With a
        window of all samples, only samples of equal length change between epochs. Default: 65536;
        with boundaries, each part is one bucket.
    cost: a function that returns the cost of a batch from the ascending lengths of its samples, an
        array: for example ``np.sum`` without padding. The cost must not fall when a sample is added
        or is longer.

    Every sample comes once an epoch, and the batches of all buckets are mixed. The rest of a bucket
    makes one smaller batch at the end of the epoch; the loader's ``drop_remainder=True`` leaves
    these out. The number of batches is the same in every epoch. Slots have room for the largest
    batch; the loader's ``max_batch_size=`` limits the batches that max_tokens gives, and so the
    slots.

    At each step, all ranks have a batch of the same bucket and the same number of samples;
    therefore up to ``world_size - 1`` of a bucket's longest samples may come with the next bucket.
    Only the epoch's last batches may differ, as ``uneven`` of the `Shard` says. A state from the
    middle of an epoch needs the same number of ranks.

    The order is a function of (the loader's seed, epoch, position); `orders.buckets` defines it,
    and reading can begin at any position at once. It takes 16 bytes a sample.

    Raises TypeError for lengths that are no numbers; ValueError for lengths that are negative, NaN,
    infinite or not of one axis, for boundaries that do not ascend, for batch_sizes of another
    number than the parts', for both or neither of batch_sizes and max_tokens, for a sample that
    costs more than max_tokens by itself, and in a loader whose dataset has another length.
    """

    given_as = "batch_sampler="
    keeps_world_size = True

    def __init__(  # noqa: PLR0913 - the public parameters
        self,
        lengths: ArrayLike,
        boundaries: Sequence[float] = (),
        *,
        batch_sizes: int | Sequence[int] | None = None,
        max_tokens: float | None = None,
        window: int | None = None,
        cost: Callable[[NDArray[Any]], float] | None = None,
    ) -> None:
        given = _numbers("lengths", lengths)
        if not given.size:
            raise ValueError("lengths is empty, expected the length of each sample")
        self._boundaries = _ascending(boundaries)
        parts = self._boundaries.size + 1
        _check_one(batch_sizes, max_tokens, cost)
        self._sizes = None if batch_sizes is None else _checked_sizes(batch_sizes, parts)
        if max_tokens is not None:
            bounds = sys.float_info.min, sys.float_info.max
            expected = "a finite number above 0"
            max_tokens = checked_number("max_tokens", max_tokens, *bounds, expected)
        self._max_tokens: float = max_tokens or 0
        self._cost = cost
        window = check_count("window", WINDOW if window is None and parts == 1 else window, 1)
        self._windows = window and -(-given.size // window)
        # The samples, sorted by length, and their lengths, of which cost= is given parts.
        self._members = np.argsort(given, kind="stable").astype(np.int64, copy=False)
        self._lengths = given[self._members]
        self._lengths.flags.writeable = False
        self.sample_count = given.size
        if self._sizes is None:
            self._check_fits(given.size)
        self._name = digest(
            given, self._boundaries, repr((self._sizes, max_tokens, window, self._probe()))
        )

    def __repr__(self) -> str:
        """Return the number of lengths, and the limit of a batch."""
        limit = f"batch_sizes={self._sizes}"
        if self._sizes is None:
            limit = f"max_tokens={self._max_tokens:.10g}"
        lengths = f"{self._lengths.size} lengths from {self._lengths[0]} to {self._lengths[-1]}"
        return f"<Buckets: {lengths}, {self._boundaries.size} boundaries, {limit}>"

    def shared_by(self, world_size: int, uneven: Uneven, most: int | None) -> Buckets:
        """Return the lists of samples for these ranks, each of at most ``most`` samples."""
        largest = max(self._sizes or (0,))
        if most is not None and largest > most:
            raise ValueError(
                f"batch_sizes has {largest}, but a batch may have max_batch_size={most} samples; "
                "leave max_batch_size= out, or make batch_sizes smaller"
            )
        shared = copy(self)
        name = self._name if most is None or self._sizes else digest(self._name, str(most))
        shared.order = f"buckets:{name}"
        shared.lay_out(*self._cut(world_size, most), world_size, uneven)
        return shared

    def _cut(self, world_size: int, most: int | None) -> tuple[Indices, Indices]:
        """Return the edges of buckets in the sorted samples, and the samples of a batch of each."""
        firsts, sizes, count = [], [], self._lengths.size
        lists = None if self._windows is None else -(-self._windows // world_size) * world_size
        ends = np.searchsorted(self._lengths, self._boundaries, "right").tolist()
        for part, (first, end) in reversed([*enumerate(pairwise([0, *ends, count]))]):
            while end > first:
                size = (
                    min(self._size(first, end), most or count)
                    if self._sizes is None
                    else self._sizes[part]
                )
                end = first if lists is None else max(end - size * lists, first)  # noqa: PLW2901
                firsts.append(end)
                sizes.append(size)
        edges = np.array([count, *firsts], np.int64)[::-1]
        edges[1:-1] -= edges[1:-1] % world_size
        has_any = np.diff(edges) > 0
        return np.append(edges[:-1][has_any], count), np.array(sizes[::-1], np.int64)[has_any]

    # ---- what a batch may have ----

    def _size(self, first: int, end: int) -> int:
        """Return how many of the samples from ``first`` to below ``end`` a batch may have."""
        most, longest = end - first, self._lengths[end - 1].item()
        if self._cost is None:
            return most if longest * most <= self._max_tokens else int(self._max_tokens // longest)
        self._check_fits(end)
        costs = range(1, most + 1), self._max_tokens
        return bisect_right(*costs, key=lambda count: self._cost_of(end - count, end))

    def _check_fits(self, end: int) -> None:
        """Refuse a sample that no batch can hold: the longest of those below ``end``."""
        costs, most = self._cost_of(end - 1, end), self._max_tokens
        if costs > most:
            raise ValueError(
                f"lengths[{self._members[end - 1]}] is {self._lengths[end - 1]}, and a batch of "
                f"this sample alone costs {costs:.10g}, more than max_tokens={most:.10g}; raise "
                "max_tokens=, or leave the sample out of the dataset"
            )

    def _cost_of(self, first: int, end: int) -> float:
        lengths = self._lengths[first:end]
        if self._cost is None:
            return float(lengths[-1].item() * lengths.size)
        found = self._cost(lengths)
        try:
            costs = float(found)
        except (TypeError, ValueError):
            costs = np.nan
        if not 0 <= costs < np.inf:
            raise ValueError(
                f"cost= returned {found!r} for {lengths.size} samples of lengths {lengths[0]} to "
                f"{lengths[-1]}, expected a finite number of 0 or more, what a batch of them costs"
            )
        return costs

    def _probe(self) -> list[float]:
        """Return the costs of some batches, if ``cost`` is given."""
        most = 0 if self._cost is None else min(self._lengths.size, PROBES)
        return [
            self._cost_of(self._lengths.size - 2**power, self._lengths.size)
            for power in range(most.bit_length())
        ]

    # ---- the lists of some ranks; a position counts those of all ranks ----

    def lay_out(self, edges: Indices, sizes: Indices, world_size: int, uneven: Uneven) -> None:
        """Share buckets by ranks.

        Bucket b is the sorted samples from ``edges[b]`` to below ``edges[b + 1]``, and its lists
        have ``sizes[b]`` of them.
        """
        self._edges, self._rows = edges, sizes
        self._world_size, self._uneven = world_size, uneven
        # For each edge, where the samples lie that are as long as those on both sides of it.
        begins, ends, inner = edges.copy(), edges.copy(), edges[1:-1]
        same = 1 + np.flatnonzero(self._lengths[inner - 1] == self._lengths[inner])
        begins[same] = np.searchsorted(self._lengths, self._lengths[edges[same]], "left")
        ends[same] = np.searchsorted(self._lengths, self._lengths[edges[same]], "right")
        self._alike = [*zip(begins.tolist(), ends.tolist(), strict=True)]
        full, rests = np.divmod(np.diff(edges), sizes * world_size)
        # The first full step of each bucket, before the steps are mixed, and the end of all.
        self._steps = np.concatenate([[0], np.cumsum(full)])
        self._rests = rests * (uneven != "drop")
        # The buckets whose rest makes a step.
        self._partial = np.flatnonzero(self._rests[:-1])
        last = int(self._rests[-1])
        is_whole = last >= world_size or (last and uneven == "pad")
        self._last_lists = world_size if is_whole else last
        steps = int(self._steps[-1]) + self._partial.size
        self._samples = steps * world_size + self._last_lists
        self.most = int(max(1, *sizes[full > 0], *-(-self._rests // world_size)))
        """Samples of the largest list."""

    def check_fits(self, length: int | None) -> None:
        """Raise ValueError unless the dataset has a sample for each length."""
        check_length("Buckets", self._members.size, "lengths", length)

    def epoch(self, number: int, start: int = 0, state: Any = None) -> BucketEpoch:  # noqa: ARG002
        """Return the lists of epoch ``number`` from position ``start`` on."""
        return BucketEpoch(self, number, start, Part(0, 1, 1, "keep"))

    def padding(self, shard: Part, samples: int) -> int:  # noqa: ARG002 - of the last list alone
        """Return how many rows at the end of a rank's last list repeat a sample."""
        return self._of_last(shard.rank, self._world_size).padding(int(self._rests[-1]))

    def _of_last(self, rank: int, ranks: int) -> Part:
        """Return a rank's part of the last bucket's rest."""
        return Part(rank, ranks, int(self._rows[-1]), self._uneven)

    def list_at(self, position: int, epoch: int) -> Indices:
        """Return the samples of a list."""
        bucket, places = self._places(*divmod(position, self._world_size), epoch)
        start, stop = self._edges[bucket : bucket + 2]
        if stop - start > self._rows[bucket] or self._world_size > 1:
            places = self._mixed("bucket", places, start, stop - start, epoch)
        for first, end in {*self._alike[bucket : bucket + 2]}:
            those = (places >= first) & (places < end)
            if first < end and those.any():
                places[those] = self._mixed("alike", places[those], first, end - first, epoch)
        return self._members[places]

    def _places(self, step: int, rank: int, epoch: int) -> tuple[int, Indices]:
        """Return the bucket of a list, and its places before the bucket is mixed."""
        full, partial = int(self._steps[-1]), self._partial.size
        if step == full + partial:
            rest = self._rests[-1]
            select = self._of_last(rank, self._last_lists).select
            return self._rows.size - 1, self._edges[-1] - rest + select(np.arange(rest))
        group = (0, full) if step < full else (full, partial)
        step = int(self._mixed("step", np.array([step]), *group, epoch)[0])
        if step < full:
            bucket = int(np.searchsorted(self._steps, step, "right")) - 1
            rows = self._rows[bucket]
            first = self._edges[bucket] + (step - self._steps[bucket]) * rows * self._world_size
        else:
            bucket = int(self._partial[step - full])
            rows = self._rests[bucket] // self._world_size
            first = self._edges[bucket + 1] - self._rests[bucket]
        return bucket, first + rank * rows + np.arange(rows)

    def _mixed(self, purpose: str, places: Indices, first: int, count: int, epoch: int) -> Indices:
        """Return what comes to some places of the group of ``count`` from place ``first`` on."""
        seed = seed_of(purpose, (self.seed, int(first)))
        return first + permute_few(places - first, int(count), seed, epoch)


class BucketEpoch(Epoch):
    """One epoch, or a rank's part of it."""

    gives_lists = True

    def __init__(self, order: Buckets, number: int, start: int, shard: Part) -> None:
        """Begin at a position of all ranks' lists."""
        self._order, self._number, self._shard = order, number, shard
        self._position = start

    def part_of(self, shard: Part) -> BucketEpoch:
        """Return a rank's part, from where this is."""
        return BucketEpoch(self._order, self._number, self._position, shard)

    def take(self, count: int) -> list[Indices]:
        """Return the next lists; fewer at the end of the epoch."""
        start = self._position
        stop = max(start, min(start + count * self._shard.step, self._order.length or 0))
        positions = self._shard.select(np.arange(start, stop))
        lists = [self._order.list_at(position, self._number) for position in positions.tolist()]
        self._position = stop
        return lists


# ---- what users give ----


def _numbers(name: str, given: Any) -> NDArray[Any]:
    """Return int64 or float64; an error unless all are finite numbers of 0 or more."""
    found = checked_array(f"{name} is", given, "iuf", "integers or floats")
    refuse_where(
        ~((found >= 0) & (found <= MOST_LENGTH)), name, found, "a number from 0 to 2**53"
    )  # NaN too
    return found.astype(np.float64 if found.dtype.kind == "f" and found.size else np.int64)


def _ascending(boundaries: Any) -> NDArray[Any]:
    found = _numbers("boundaries", boundaries)
    expected = "more than the one before it: give them in ascending order"
    refuse_where(np.diff(found, prepend=-1) <= 0, "boundaries", found, expected)
    return found


def _check_one(batch_sizes: object, max_tokens: object, cost: object) -> None:
    """Raise unless exactly one of batch_sizes and max_tokens is given."""
    if batch_sizes is None and max_tokens is None:
        raise ValueError(
            "Buckets needs batch_sizes=, the samples of a batch, or max_tokens=, what a batch may "
            "cost"
        )
    if batch_sizes is not None and max_tokens is not None:
        raise ValueError(
            "batch_sizes= and max_tokens= exclude each other: give the one or the other; the "
            "loader's max_batch_size= bounds the samples that max_tokens= gives"
        )
    if cost is not None and max_tokens is None:
        raise ValueError(
            "cost= says what counts against max_tokens=; give that, or leave cost= out"
        )
    if cost is not None and not callable(cost):
        raise TypeError(
            f"cost is of type {type(cost).__name__}, expected a function from lengths to a number"
        )


def _checked_sizes(given: Any, parts: int) -> tuple[int, ...]:
    if not hasattr(given, "__iter__"):
        return (check_integer("batch_sizes", given, 1),) * parts
    sizes = tuple(
        check_integer(f"batch_sizes[{number}]", size, 1) for number, size in enumerate(given)
    )
    if len(sizes) != parts:
        raise ValueError(
            f"batch_sizes has {len(sizes)} numbers, expected {parts}: one for each part that "
            f"{parts - 1} boundaries divide the lengths into, or one number for all"
        )
    return sizes

"""Batches of samples of like length: `Buckets`.

The cut into buckets is part of the interface, as is the order that `bucket_order` makes of them, and no later version
may change either. The samples are sorted by length, those of one length by number. Boundaries cut this row: samples up
to the first boundary, then those up to the second, and so on. With R ranks, n samples and windows of w of them, each
part is cut further, from its longest sample down: a bucket is the next R * ceil(ceil(n / w) / R) batches, as long as
there are samples, each of the most samples that a batch of the longest may have. Without w, the whole part is one
bucket. Then each cut between two buckets moves down to the next multiple of R, so that the samples of every bucket but
the last can be shared by R ranks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.orders.bucket_order import BucketLists, Cut
from ringfeed.orders.sampler import SeededSampler, check_integer, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Uneven

WINDOW = 65536  # samples
MOST_LENGTH = 2**53  # that a float64 tells from the next
PROBES = 4096  # lengths: by what they cost, one function is told from others


class Buckets(SeededSampler):
    """Batches of samples of like length, so that padding them to the longest of their batch adds little.

        texts = [np.arange(1 + number % 60) for number in range(500)]

        class Texts:
            def __len__(self):
                return len(texts)

            def __getitem__(self, index):
                padded = np.zeros(60, np.int64)
                padded[: len(texts[index])] = texts[index]
                return {"tokens": padded, "length": len(texts[index])}

        lengths = [len(text) for text in texts]
        loader = ringfeed.Loader(Texts(), batch_sampler=ringfeed.Buckets(lengths, max_tokens=512))
        for batch in loader:
            tokens = batch["tokens"][:, : batch["length"].max()]  # a view: at most 512 numbers

    Samples of all lengths have one shape in the slots, the longest's; the loop cuts a batch to its own longest.

    lengths: of each sample, a number of 0 or more: an array of one axis, or an iterable.
    boundaries: ascending lengths that divide the samples: up to and with the first, above it and up to and with the
        second, and so on, the last part being above them all. A batch has samples of one part.
    batch_sizes: the samples of a batch: a number, or one for each of the ``len(boundaries) + 1`` parts.
    max_tokens: instead of batch_sizes, what a batch may cost: its samples times the length of its longest, as it takes
        when all are padded to that. All batches of a bucket have as many samples.
    window: how many samples, drawn at random, a batch finds its like among. With n samples, ``ceil(n / window)``
        batches of neighbours in length are a bucket, which is mixed anew in each epoch: a larger window means less
        padding, a smaller one more different batches. In a window of all samples, batches differ from epoch to epoch by
        samples of equal length alone. Default: 65536; with boundaries, each part is one bucket.
    cost: a function from the ascending lengths of some samples, an array, to what a batch of them costs, instead of the
        default: ``np.sum`` where nothing is padded, for example. It must not fall when a sample is added or is longer.

    Every sample comes once an epoch, and batches of all buckets come mixed. What is left of a bucket makes one smaller
    batch at the end of the epoch; ``drop_remainder=True`` of the loader leaves these out. The number of batches is the
    same in every epoch. ``max_batch_size=`` of the loader bounds what max_tokens gives, and so the slots, which have
    room for the largest batch there is.

    With several ranks all have a batch of the same bucket, of as many samples, at each step; for that, a bucket's
    longest samples, fewer than the ranks, may come with the next bucket. Only the epoch's last batches may differ, as
    ``uneven=`` says. A state from amid an epoch needs the same number of ranks.

    The order is a function of (the loader's seed, epoch, position), which `orders.buckets` and `orders.bucket_order`
    write down, and can be read at any position at once. It takes 16 bytes a sample, 24 a batch, and while an epoch is
    read up to 6 more a sample.

    Raises TypeError for what are no numbers; ValueError for lengths that are negative, NaN, infinite or not of one
    axis, for boundaries that do not ascend, for batch_sizes of another number than the parts', for both or neither of
    batch_sizes and max_tokens, for a sample that costs more than max_tokens by itself, and in a loader whose dataset
    has another length.
    """

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
        self._max_tokens = None if max_tokens is None else _checked_budget(max_tokens)
        self._cost = cost
        window = WINDOW if window is None and parts == 1 else window
        self._windows = None if window is None else -(-given.size // check_integer("window", window, 1))
        self._members = np.argsort(given, kind="stable").astype(np.int64, copy=False)
        self._sorted = given[self._members]
        self._sorted.flags.writeable = False  # cost= is given parts of it
        if self._sizes is None:
            self._check_fits(self._sorted.size)
        self._name = digest(given, self._boundaries, repr((self._sizes, self._max_tokens, window, self._probe())))

    def __repr__(self) -> str:
        """Return how many lengths there are, and what bounds a batch."""
        most = f"batch_sizes={self._sizes}" if self._max_tokens is None else f"max_tokens={self._max_tokens:.10g}"
        lengths = f"{self._sorted.size} lengths from {self._sorted[0]} to {self._sorted[-1]}"
        return f"<Buckets: {lengths}, {self._boundaries.size} boundaries, {most}>"

    def bind(self, length: int | None, seed: int) -> Sampler:  # noqa: ARG002 - refused before they matter
        """Refuse to be given as ``sampler=``."""
        raise ValueError("Buckets gives whole batches: give it as batch_sampler=, and leave sampler= out")

    def shared_by(self, world_size: int, uneven: Uneven, most: int | None) -> BucketLists:
        """Return the lists of samples for so many ranks, each of at most ``most`` samples."""
        if self._sizes is not None and most is not None and max(self._sizes) > most:
            raise ValueError(
                f"batch_sizes has {max(self._sizes)}, but a batch may have max_batch_size={most} samples; leave "
                "max_batch_size= out, or make batch_sizes smaller"
            )
        name = self._name if most is None or self._sizes else digest(self._name, str(most))
        lists = None if self._windows is None else -(-self._windows // world_size) * world_size
        buckets = [*self._buckets(lists, most or self._sorted.size)]
        edges = np.array([begin for begin, _ in buckets] + [self._sorted.size], np.int64)
        edges[1:-1] -= edges[1:-1] % world_size
        has_any = np.diff(edges) > 0
        sizes = np.array([size for _, size in buckets], np.int64)[has_any]
        edges = np.append(edges[:-1][has_any], edges[-1])
        cut = Cut.of(self._sorted, edges, sizes)
        return BucketLists(f"buckets:{name}", self._members, cut, world_size, uneven)

    def _buckets(self, lists: int | None, most: int) -> Iterable[tuple[int, int]]:
        """Return where each bucket begins in the row of sorted samples, and its samples a batch, shortest first."""
        found: list[tuple[int, int]] = []
        ends = np.searchsorted(self._sorted, self._boundaries, "right").tolist()
        for part, (first, end) in reversed([*enumerate(pairwise([0, *ends, self._sorted.size]))]):
            while end > first:
                size = min(self._size(first, end), most) if self._sizes is None else self._sizes[part]
                end = first if lists is None else max(end - size * lists, first)  # noqa: PLW2901
                found.append((end, size))
        return reversed(found)

    # ---- what a batch may have ----

    def _size(self, first: int, end: int) -> int:
        """Return how many of the samples from ``first`` on, the longest of those below ``end``, a batch may have."""
        most, longest = end - first, self._sorted[end - 1].item()
        assert self._max_tokens is not None
        if self._cost is None:
            return most if longest * most <= self._max_tokens else int(self._max_tokens // longest)
        self._check_fits(end)
        low, high = 1, 2
        while high <= most and self._cost_of(end - high, end) <= self._max_tokens:
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._cost_of(end - middle, end) <= self._max_tokens else (low, middle)
        return low

    def _check_fits(self, end: int) -> None:
        """Refuse a sample that no batch can hold: the longest of those below ``end``."""
        assert self._max_tokens is not None
        costs, most = self._cost_of(end - 1, end), self._max_tokens
        if costs > most:
            raise ValueError(
                f"lengths[{self._members[end - 1]}] is {self._sorted[end - 1]}, and a batch of this sample alone costs "
                f"{costs:.10g}, more than max_tokens={most:.10g}; raise max_tokens=, or leave the sample out of the "
                "dataset"
            )

    def _cost_of(self, first: int, end: int) -> float:
        lengths = self._sorted[first:end]
        if self._cost is None:
            return float(lengths[-1].item() * lengths.size)
        found = self._cost(lengths)
        try:
            costs = float(found)
        except (TypeError, ValueError):
            costs = np.nan
        if not 0 <= costs < np.inf:
            raise ValueError(
                f"cost= returned {found!r} for {lengths.size} samples of lengths {lengths[0]} to {lengths[-1]}, "
                "expected a finite number of 0 or more, what a batch of them costs"
            )
        return costs

    def _probe(self) -> list[float]:
        """Return what some batches cost, where a function says it."""
        most = 0 if self._cost is None else min(self._sorted.size, PROBES)
        return [self._cost_of(self._sorted.size - 2**power, self._sorted.size) for power in range(most.bit_length())]


# ---- what users give ----


def _numbers(name: str, given: Any) -> NDArray[Any]:
    """Return int64 or float64; TypeError or ValueError for what is no finite number of 0 or more."""
    if not (hasattr(given, "__array__") or hasattr(given, "__iter__")):
        raise TypeError(f"{name} is {given!r}, expected an array or another iterable of numbers")
    found = np.asarray(given if hasattr(given, "__array__") else [*given])
    if found.dtype.kind not in "iuf" and found.size:
        raise TypeError(f"{name} is an array of {found.dtype}, expected integers or floats")
    if found.ndim != 1:
        raise ValueError(f"{name} is an array of shape {found.shape}, expected one axis")
    if (wrong := np.flatnonzero(~((found >= 0) & (found <= MOST_LENGTH)))).size:  # NaN too
        raise ValueError(f"{name}[{wrong[0]}] is {found[wrong[0]]}, expected a number from 0 to 2**53")
    return found.astype(np.float64 if found.dtype.kind == "f" and found.size else np.int64)


def _ascending(boundaries: Any) -> NDArray[Any]:
    found = _numbers("boundaries", boundaries)
    if (wrong := np.flatnonzero(np.diff(found) <= 0)).size:
        place = wrong[0]
        raise ValueError(
            f"boundaries[{place + 1}] is {found[place + 1]}, expected more than boundaries[{place}], {found[place]}: "
            "give them in ascending order"
        )
    return found


def _check_one(batch_sizes: object, max_tokens: object, cost: object) -> None:
    """Raise unless exactly one of them says how many samples a batch has."""
    if batch_sizes is None and max_tokens is None:
        raise ValueError("Buckets needs batch_sizes=, the samples of a batch, or max_tokens=, what a batch may cost")
    if batch_sizes is not None and max_tokens is not None:
        raise ValueError(
            "batch_sizes= and max_tokens= exclude each other: give the one or the other; the loader's max_batch_size= "
            "bounds the samples that max_tokens= gives"
        )
    if cost is not None and max_tokens is None:
        raise ValueError("cost= says what counts against max_tokens=; give that, or leave cost= out")
    if cost is not None and not callable(cost):
        raise TypeError(f"cost is of type {type(cost).__name__}, expected a function from lengths to a number")


def _checked_sizes(given: Any, parts: int) -> tuple[int, ...]:
    if not hasattr(given, "__iter__"):
        return (check_integer("batch_sizes", given, 1),) * parts
    sizes = tuple(check_integer(f"batch_sizes[{number}]", size, 1) for number, size in enumerate(given))
    if len(sizes) != parts:
        raise ValueError(
            f"batch_sizes has {len(sizes)} numbers, expected {parts}: one for each part that {parts - 1} boundaries "
            "divide the lengths into, or one number for all"
        )
    return sizes


def _checked_budget(given: Any) -> float:
    if isinstance(given, bool | np.bool_) or not isinstance(given, int | float | np.integer | np.floating):
        raise TypeError(f"max_tokens is {given!r}, expected a number above 0")
    if not 0 < given < np.inf:
        raise ValueError(f"max_tokens is {given!r}, expected a finite number above 0")
    return given if isinstance(given, int | float) else given.item()

"""Samples that the user chooses, `SubsetSampler`, or classes in proportion, `StratifiedSampler`.

Both orders are part of the interface, and no later version may change them.

A shuffled subset of m indices comes in the order of ``permute(positions, m, seed, epoch)`` over
their places.

A stratum is all samples of one label; the strata are numbered in the order of their labels. Which
stratum a position is of, the counts of the strata alone decide, as in proportionate-progress
scheduling (S. Baruah and others, "Proportionate progress: a notion of fairness in resource
allocation", Algorithmica 15, 1996, doi:10.1007/BF01940883): with n samples, n_c of them in stratum
c, its j-th sample (j = 0, 1, ...) may come from position j * n // n_c on, and comes before position
-(-(j + 1) * n // n_c). Of the strata that may come, the one whose time ends first does, or, where
two end together, the one of the lower number. The times always suffice, and so the first k
positions hold less than one sample of any stratum more or fewer than k * n_c / n. The j-th sample
of stratum c, which is the same position in every epoch, is its sample of place ``permute(j, n_c,
seed_c, epoch)`` in the dataset's order, where seed_c is the number in the 16 bytes of
``derive("stratum", (seed, c), 16)``, little-endian.
"""

from __future__ import annotations

import sys
from array import array
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.orders.checks import check_length, checked_array, digest
from ringfeed.orders.permutation import Indices, permute
from ringfeed.orders.rng import seed_of
from ringfeed.orders.sampler import CHUNK, Positional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


MOST_LABELS = 2**31


class SubsetSampler(Positional):
    """Takes some samples of a dataset: ``Loader(dataset, sampler=SubsetSampler(train_indices))``.

    indices: the samples, each as often as its index occurs: an array of integers of one axis, or an
        iterable, which is copied, 8 bytes an index; a ``range`` takes no memory.
    shuffle: True: a new order each epoch, a function of (the loader's seed, epoch, position);
        False: the order of ``indices``. Reading can begin at any position at once.

    Raises TypeError for indices that are no integers, ValueError for more than one axis, and in a
    loader IndexError for an index that its dataset does not have.
    """

    _samples: int

    def __init__(
        self,
        indices: Iterable[int],
        shuffle: bool = True,  # noqa: FBT001, FBT002 - the public face
    ) -> None:
        if not isinstance(shuffle, bool | np.bool_):
            raise TypeError(
                f"shuffle is {shuffle!r}, expected True or False; the order of indices= is kept by "
                "False"
            )
        self._indices = (
            indices
            if isinstance(indices, range)
            else checked_array("indices are", indices, "iu", "integers", numbers=True).astype(
                np.int64
            )  # a copy
        )
        self._shuffle, self._samples = bool(shuffle), len(self._indices)
        given: Any = repr(self._indices) if isinstance(self._indices, range) else self._indices
        self.order = f"subset:{digest(given, 'shuffled' if shuffle else '')}"

    def __len__(self) -> int:
        """Return the number of indices."""
        return self._samples

    def __repr__(self) -> str:
        """Return the number of indices, and their order."""
        return (
            f"<SubsetSampler: {len(self)} indices, "
            f"{'shuffled' if self._shuffle else 'in their order'}>"
        )

    def check_fits(self, length: int | None) -> None:
        """Raise IndexError for an index that a dataset of this length does not have."""
        given, limit = self._indices, sys.maxsize if length is None else length
        numbers = np.array([*given[:1], *given[-1:]]) if isinstance(given, range) else given
        wrong = numbers[(numbers < 0) | (numbers >= limit)]
        if wrong.size:
            has = (
                "expected one of 0 or more"
                if length is None
                else f"but the dataset has {length} samples"
            )
            raise IndexError(f"SubsetSampler has the index {wrong[0]}, {has}")

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return the samples at these positions."""
        places, given = np.arange(start, stop, dtype=np.int64), self._indices
        if self._shuffle:
            places = permute(places, len(self), self.seed, number)
        return given.start + places * given.step if isinstance(given, range) else given[places]


class StratifiedSampler(Positional):
    """Gives each batch the classes in proportion: ``sampler=StratifiedSampler(labels)``.

    labels: the class of each sample: an array of one axis, or a list, of integers or of strings.

    Every sample comes once an epoch, and each batch has the classes in the proportions of the
    dataset: a class with n_c of the dataset's n samples differs from its share k * n_c / n by less
    than one sample among the first k of an epoch, and so by less than two among any k in a row. The
    class at each position is the same in every epoch; the samples of each class come in a new
    order. The order is a function of (the loader's seed, epoch, position); `orders.subsets` defines
    it, and reading can begin at any position at once. It takes 16 bytes a label, and while an epoch
    is read up to 24 more, or 96 kB a class if that is less. Making the sampler takes about 1 µs a
    label.

    Raises TypeError unless the labels are all integers or all strings, ValueError for no labels,
    for more than one axis, for more than 2**31, and in a loader whose dataset has another length.
    """

    _samples: int

    def __init__(self, labels: Iterable[int] | Iterable[str]) -> None:
        found, strata = np.unique(_checked_labels(labels), return_inverse=True)
        self.order = f"stratified:{digest(strata)}"
        self._counts = np.bincount(strata).astype(np.int64, copy=False)
        self._firsts = np.cumsum(self._counts) - self._counts  # in what lies stratum by stratum
        self._members = np.argsort(strata, kind="stable").astype(np.int64, copy=False)  # lie so
        self._samples = strata.size
        self._places = np.empty_like(self._members)  # in it, of each position
        self._places[np.argsort(schedule(self._counts), kind="stable")] = np.arange(strata.size)
        self.chunk = CHUNK * found.size

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return self._samples

    def __repr__(self) -> str:
        """Return the numbers of labels and of classes."""
        return f"<StratifiedSampler: {len(self)} labels of {self._counts.size} classes>"

    def check_fits(self, length: int | None) -> None:
        """Raise ValueError unless the dataset has a sample for each label."""
        check_length("StratifiedSampler", len(self), "labels", length)

    def indices_at(self, number: int, start: int, stop: int) -> Indices:
        """Return the samples at these positions."""
        by_stratum = np.argsort(self._places[start:stop])
        places = self._places[start:stop][by_stratum]
        bounds = [*np.searchsorted(places, self._firsts), places.size]
        for stratum in np.flatnonzero(np.diff(bounds)).tolist():
            first, count = self._firsts[stratum], int(self._counts[stratum])
            own = seed_of("stratum", (self.seed, stratum))
            those = slice(*bounds[stratum : stratum + 2])
            places[those] = first + permute(places[those] - first, count, own, number)
        samples = np.empty_like(places)
        samples[by_stratum] = self._members[places]
        return samples


def schedule(counts: NDArray[np.int64]) -> Indices:
    """Return the stratum at each of ``sum(counts)`` positions; each count is 1 or more.

    Takes 1 µs a position.
    """
    each = counts.tolist()
    length, strata = sum(each), len(each)
    taken, order = [0] * strata, array("q")
    # Strata that may come, each as the end of its time * strata + its number.
    heap: list[int] = []
    # Strata by the position from which their next sample may come.
    coming = {0: [*range(strata)]}
    for position in range(length):
        for stratum in coming.pop(position, ()):
            end = -(-(taken[stratum] + 1) * length // each[stratum])
            heappush(heap, end * strata + stratum)
        stratum = heappop(heap) % strata
        order.append(stratum)
        taken[stratum] += 1
        if taken[stratum] < each[stratum]:
            coming.setdefault(taken[stratum] * length // each[stratum], []).append(stratum)
    return np.array(order, np.int64)


def _checked_labels(labels: Any) -> NDArray[Any]:
    given = np.asarray(labels) if hasattr(labels, "__array__") else np.array([*labels], object)
    if given.ndim != 1 or not 0 < given.size <= MOST_LABELS:
        is_one_hot = given.ndim == 2  # noqa: PLR2004
        one_hot = "; .argmax(axis=1) makes labels of one-hot rows" if is_one_hot else ""
        raise ValueError(
            f"labels are an array of shape {given.shape}, expected one axis, 1 to 2**31 "
            f"labels{one_hot}"
        )
    if given.dtype == object:
        kind = str if isinstance(given[0], str) else int | np.integer
        row = next((row for row, label in enumerate(given) if not isinstance(label, kind)), None)
        if row is not None:
            raise TypeError(
                f"labels[{row}] is {given[row]!r}, expected all integers or all strings"
            )
        return given if kind is str else given.astype(np.int64)
    if given.dtype.kind not in "biuUS":
        whole = "; .astype(int) makes integers of whole numbers" if given.dtype.kind == "f" else ""
        raise TypeError(
            f"labels are an array of {given.dtype}, expected integers or strings{whole}"
        )
    return given

"""Samples drawn by priorities that training changes as it goes: `PrioritizedSampler`.

T. Schaul, J. Quan, I. Antonoglou, D. Silver, "Prioritized Experience Replay", ICLR 2016,
arXiv:1511.05952, its proportional variant. The probability of sample i is P(i) = p_i**alpha / sum
of all p_k**alpha, and its weight, for the loss, is (N P(i))**-beta over the largest such weight of
any sample that can be drawn, which comes to (least p_k**alpha above 0 / p_i**alpha)**beta. Below,
p_i**alpha is called the power of sample i.

All random bits are 64-bit words of Philox4x64-10 (see `rng`), with ``derive("prioritized", (seed,
epoch, n), 16)`` for its key, two little-endian words. Word p, counted as in `weighted`, belongs to
position p. Its upper 53 bits, as a fraction of 2**53, times the sum of all powers, are a point,
which `SumTree.find` takes to a sample.

    DrawEpoch.take() ──▶ draws, which a slot's header carries to the worker
    update() ──────────▶ powers, which the next draws are made by

    draw     weight, a float32 of 0 or more: 31 bits | the sample's number: 32 bits

A draw takes the place of a sample's number from here to the worker: in the plan, in the slot's
header, in a failure.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from ringfeed._checks import check_count, check_integer
from ringfeed.errors import StateError
from ringfeed.orders.checks import checked_array, checked_number, digest, refuse, refuse_where
from ringfeed.orders.rng import fractions_at, key_of
from ringfeed.orders.sampler import Epoch, Sampler

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ringfeed.orders.permutation import Indices, Words

    Floats: TypeAlias = NDArray[np.float64]

INDEX_BITS = 32
SIDE = 16  # numbers that a least one is of: 16 bytes a number are those of the sums
FEW = 8  # sums a changed one: with fewer, all are added up again
KEPT = 64  # of the newest batches, and at least four times what an epoch begins with
MOST_POWER = 2.0**900  # so that no sum is infinite
LEAST_POWER = 2.0**-900  # of a priority above 0
MOST_SAMPLES = 2**31
_BETA = "a number from 0 to 1"
_NO_KEY: Words = np.empty(0, np.uint64)  # of an epoch that only holds draws


def pack(indices: Indices, weights: Floats) -> Indices:
    """Return draws of these samples."""
    bits = weights.astype(np.float32).view(np.uint32).astype(np.int64)
    return bits << INDEX_BITS | indices


def index_of(draw: Any) -> Any:
    """Return a draw's sample number; a sample number is returned as it is.

    Arrays are allowed.
    """
    return draw & (1 << INDEX_BITS) - 1


class PrioritizedSampler(Sampler):
    """Draws samples by priorities that training sets: prioritized experience replay.

    (T. Schaul and others, ICLR 2016.)

        sampler = ringfeed.orders.PrioritizedSampler(n, alpha=0.6, beta=0.4)
        loader = ringfeed.Loader(memory, batch_size=256, sampler=sampler)
        for sample, index, weight in loader:
            errors = train_step(sample, weight)
            sampler.update(index, abs(errors) + 1e-6)

    A batch is a tuple of three: the batch without this sampler, the numbers of its samples (int64,
    one axis) and their weights (float32, one axis, from 0 to 1). All three lie in the slot, so that
    their rows always match: with samples left out by ``on_error="skip"``, as copies, tensors, or
    elements of tf.data.

    n: samples of the dataset, or the capacity of a replay buffer. At most 2**31. The sampler takes
        17 bytes a sample.
    alpha: sample i has the probability p_i**alpha / sum of all p_k**alpha. 0: all are equal.
    beta: how far weights correct that: (N P(i))**-beta over the largest of all samples. A number
        from 0 to 1, or a function that returns one for the number of updates so far. It may be
        assigned: ``sampler.beta = 0.7`` is used for all later draws.
    num_samples: how many are drawn in an epoch; by default n.
    filled: how many samples exist at first, numbered from 0 and with priority 1; by default n.
        `add` adds the others.

    **Age of a draw.** Batches are drawn before their use, one for each slot; with ``slots="auto"``,
    for the most slots. So a batch is drawn before the updates of the ``slots - 1`` batches before
    it; the first ``slots`` batches of an epoch use all updates before the epoch. tf.data, Keras,
    and copies to a device take further batches before the training step, which adds to the age.
    `pending` is the number of samples whose updates the next draws miss. A weight is computed at
    the moment of its draw, as in the formula.

    The draws are a function of (the loader's seed, epoch, position) and of the powers at that
    moment. So runs with the same seed, slots and updates at the same steps have the same draws,
    with any workers. The number of slots matters, since it decides the age of draws. Powers,
    p**alpha, may differ in their last bit between kinds of CPU.

    **To resume,** save `state_dict` with the loader's: take both between two batches, after the
    update. Load both, and give the loader the same number of slots. The state has the last draws,
    including those ahead of the loop, so that the run continues as without the stop. StateError if
    the loader's state was taken at another update.

    Use one sampler per loader. All methods are safe from any thread, also while the loader draws.
    The loader raises ValueError if the length of its dataset is not n, if ``dataset[i]`` is a whole
    batch, with several ranks, since these do not share updates, and if all priorities are 0.
    TypeError or ValueError for invalid parameters.
    """

    carries_weights = True
    _samples: int

    def __init__(
        self,
        n: int,
        *,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        num_samples: int | None = None,
        filled: int | None = None,
    ) -> None:
        self._count = check_integer("n", n, 1, MOST_SAMPLES)
        expected = "a finite number of 0 or more"
        self._alpha = float(checked_number("alpha", alpha, 0, sys.float_info.max, expected))
        self.beta = beta
        self._samples = check_count("num_samples", num_samples, 1) or self._count
        there = check_integer("filled", self._count if filled is None else filled, 0, self._count)
        self._lock = threading.RLock()  # a signal handler may come in again
        self._most = 1.0  # power so far
        self._updates = 0
        self._newest = DrawEpoch(self, _NO_KEY, 0, 0, np.empty(0, np.int64))
        self._answered = 0  # position in this epoch, as far as its samples were updated
        self._tree = SumTree(self._count)
        self._tree.put(np.arange(there), np.ones(there))

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return self._samples

    def __repr__(self) -> str:
        """Return how many samples can be drawn, and alpha."""
        there = np.count_nonzero(self._tree.values)
        return f"<PrioritizedSampler: {there} of {self._count} samples, alpha={self._alpha:g}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a copy in a worker or a file would get no updates."""
        raise TypeError(
            "a PrioritizedSampler stays in the process that trains; leave it out of what "
            "__getstate__ of the dataset returns, and save its state_dict()"
        )

    # ---- what training tells ----

    @property
    def beta(self) -> float | Callable[[int], float]:
        """How far weights correct the priorities: 0 to 1, or a function of the updates."""
        return self._beta

    @beta.setter
    def beta(self, beta: float | Callable[[int], float]) -> None:
        self._beta = (
            beta
            if callable(beta)
            else checked_number("beta", beta, 0, 1, f"{_BETA}, or a function to one")
        )

    def update(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set new priorities of samples, such as the absolute TD errors plus a small constant.

        indices: those of the batch, in any order; if an index comes twice, the last counts.
        priorities: one number of 0 or more per index. All later draws use them.

        Priority 0 removes a sample, and only `add` restores it: a late update of a removed sample
        does nothing.

        Raises IndexError for an index that is no sample; ValueError for priorities that are NaN,
        infinite, negative, or not as many as the indices; TypeError for values that are no numbers.
        After an error nothing has changed.
        """
        samples = checked_indices(indices, self._count)
        powers = checked_powers(priorities, samples.size, self._alpha)
        with self._lock:
            there = self._tree.values[samples] > 0
            self._put(samples[there], powers[there])
            self._updates += 1
            self._answered += samples.size

    def add(self, indices: ArrayLike, priorities: ArrayLike | None = None) -> None:
        """Make samples available for draws; call it after writing or overwriting them.

        indices: one or several. priorities: by default the highest so far, 1 at first, so that new
        samples come soon. Raises the errors of `update`.
        """
        samples = checked_indices(indices, self._count)
        powers = (
            None if priorities is None else checked_powers(priorities, samples.size, self._alpha)
        )
        with self._lock:
            self._put(samples, np.full(samples.size, self._most) if powers is None else powers)

    def remove(self, indices: ArrayLike) -> None:
        """Leave samples out until `add`, for example before the program overwrites them.

        Batches drawn before, at most ``slots``, may still have them. Raises the errors of `update`
        for indices.
        """
        samples = checked_indices(indices, self._count)
        with self._lock:
            self._put(samples, np.zeros(samples.size))

    @property
    def updates(self) -> int:
        """How often `update` was called."""
        return self._updates

    @property
    def pending(self) -> int:
        """Samples drawn in this epoch and not updated since: the next draws miss these updates.

        If a loop updates every batch, this is ``slots - 1`` batches right after an update.
        Samples that failed count until the epoch's end.
        """
        return max(self._newest.position - self._answered, 0)

    def _put(self, samples: Indices, powers: Floats) -> None:
        self._tree.put(samples, powers)
        self._most = max(self._most, float(powers.max(initial=0.0)))

    # ---- the order ----

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError for several ranks."""
        if world_size > 1:
            raise ValueError(
                f"PrioritizedSampler with world_size={world_size}: no rank knows the updates of "
                "the others, so their orders would differ; give each process a dataset and a "
                "sampler of its own, and leave shard= out"
            )

    def bind(self, length: int | None, seed: int) -> PrioritizedOrder:
        """Return the order over a dataset of ``length`` samples."""
        if length not in (None, self._count):
            raise ValueError(
                f"PrioritizedSampler is of {self._count} samples, but the dataset has {length}; "
                "give the dataset's length as n, for a replay buffer its capacity"
            )
        order = f"prioritized:{digest(f'{self._count} {self._alpha}')}"
        return PrioritizedOrder(self, order, self._count, seed)

    def begin(self, key: Words, number: int, start: int, state: int | None) -> DrawEpoch:
        """Return an epoch, the newest from now on, from a position on.

        An epoch that continues from a state keeps the draws made in advance.

        StateError if the loader's state was taken at another moment.
        """
        with self._lock:
            last, draws = self._newest, np.empty(0, np.int64)
            if state not in {None, self._updates}:
                raise StateError(
                    f"the loader's state was taken after {state} updates of its "
                    f"PrioritizedSampler, and this one has had {self._updates}; load the "
                    "sampler's own state too, taken with the loader's between two batches"
                )
            if state is not None and number == last.number:
                first, recent = last.recent
                if start < first:
                    raise StateError(
                        f"the loader's state is at sample {start} of epoch {number}, and the "
                        f"PrioritizedSampler's has the draws from sample {first} on; take the "
                        f"states within {KEPT} batches of the draw"
                    )
                draws = recent[start - first :]
            self._newest, self._answered = DrawEpoch(self, key, number, start, draws), start
            return self._newest

    def draw(self, key: Words, start: int, stop: int) -> Indices:
        """Return draws for these positions, by the current powers."""
        with self._lock:
            total, beta = self._tree.total(), self._beta_now()
            if not total > 0:
                raise ValueError(
                    f"PrioritizedSampler has nothing to draw: all {self._count} samples have "
                    "priority 0; add() those that are there, and update() with errors plus a "
                    "little, such as 1e-6"
                )
            points = fractions_at(key, start, stop) * total
            ascending = np.argsort(points)  # neighbours in memory, one after another
            found = np.empty(points.size, np.int64)
            found[ascending] = self._tree.find(points[ascending])
            with np.errstate(under="ignore"):  # a weight may be 0
                return pack(found, (self._tree.least() / self._tree.values[found]) ** beta)

    def _beta_now(self) -> float:
        if not callable(self._beta):
            return self._beta
        return checked_number(f"beta({self._updates})", self._beta(self._updates), 0, 1, _BETA)

    # ---- where it is ----

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the priorities and the state of the draws, as arrays: ``np.savez(file, **state)``.

        Take it between two batches, after the update, together with the loader's. It has 8 bytes a
        sample.
        """
        with self._lock:
            first, draws = self._newest.recent
            state = {
                "powers": self._tree.values.copy(),
                "draws": draws.copy(),
                "alpha": self._alpha,
                "beta": np.nan if callable(self._beta) else self._beta,
                "most": self._most,
                "updates": self._updates,
                "epoch": self._newest.number,
                "first": first,
            }
            return {name: np.asarray(value) for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Restore ``state``; also beta, if it is a number both now and in the state.

        Call it before the epoch that is to continue. StateError for a state of another sampler.
        """
        kept = checked_state(state, self._count, self._alpha)
        with self._lock:
            self._tree.put(np.arange(self._count), kept["powers"])
            self._most, self._updates = float(kept["most"]), int(kept["updates"])
            number, self._answered = int(kept["epoch"]), int(kept["first"])
            self._newest = DrawEpoch(self, _NO_KEY, number, self._answered, kept["draws"])
            if not callable(self._beta) and kept["beta"] >= 0:  # NaN: it was a function
                self._beta = float(kept["beta"])


class PrioritizedOrder(Sampler):
    """The draws of a sampler for one loader."""

    pure = False

    def __init__(self, sampler: PrioritizedSampler, order: str, count: int, seed: int) -> None:
        """Draw from ``count`` samples."""
        self.sampler, self.order, self.dataset_length, self.seed = sampler, order, count, seed
        self._samples = len(sampler)

    def epoch(self, number: int, start: int = 0, state: Any = None) -> DrawEpoch:
        """Return epoch ``number`` from position ``start`` on.

        ``state``: the number of updates before that.
        """
        key = key_of("prioritized", (self.seed, number, self.dataset_length or 0))
        return self.sampler.begin(key, number, start, state)

    @property
    def start_state(self) -> int:
        """The state of an epoch that has not begun: how many updates there were."""
        return self.sampler.updates

    def check_state(self, start: int, state: Any) -> None:  # noqa: ARG002 - any start will do
        """Raise StateError unless the state is a number of updates.

        An epoch begun by `skip` has no state.
        """
        if state is not None and not (type(state) is int and state >= 0):
            refuse(state, "expected the updates of a PrioritizedSampler, an int of 0 or more")


class DrawEpoch(Epoch):
    """One epoch. Its draws depend on the moment at which they are made."""

    position: int

    def __init__(
        self, sampler: PrioritizedSampler, key: Words, number: int, start: int, draws: Indices
    ) -> None:
        """Begin at a position, with draws that were made from there on."""
        self._sampler, self.key, self.number, self.position = sampler, key, number, start
        self.recent = start, draws
        """The newest draws, above all those ahead of the loop, and the position of the first.

        In one, because a signal handler may read them at any moment.
        """
        self._least_kept = 0

    def take(self, count: int) -> Indices:
        """Return the next draws; after Ctrl-C, the next call returns them."""
        position, (first, draws) = self.position, self.recent
        count = max(min(count, len(self._sampler) - position), 0)
        made, stop = first + draws.size, position + count
        if made < stop:
            draws = np.concatenate([draws, self._sampler.draw(self.key, made, stop)])
            self._least_kept = max(self._least_kept, 4 * count)
            old = max(draws.size - max(self._least_kept, KEPT * count), 0)
            first, draws = self.recent = first + old, draws[old:]
        taken = draws[position - first : stop - first]
        self.position = stop
        return taken

    def state(self, position: int) -> int:  # noqa: ARG002 - the sampler keeps later draws
        """Return how many updates there were."""
        return self._sampler.updates


class SumTree:
    """Numbers of 0 or more, with their sum and least, and a search for a point's number.

        sums     10
                4   6        a number is the sum of the two below it
               1 3 6 0       the numbers

    The search for a point descends from sum to sum, in O(log n). Each sum is computed anew from the
    two numbers below it. So the tree depends only on the current numbers, not on the order of
    changes, and rounding errors do not add up. It takes 17 bytes a number. Sums are updated at the
    next query. Not thread-safe.
    """

    def __init__(self, size: int) -> None:
        """Begin with zeros."""
        numbers = np.zeros(-(-size // SIDE) * SIDE)
        self._sums = _Levels(numbers, 2, lambda pairs: pairs[:, 0] + pairs[:, 1])
        self._least = _Levels(numbers, SIDE, _least_above_0)
        self.values = numbers[:size]
        """The numbers. Change them by `put`."""
        self._changed: list[Indices] = []

    def put(self, indices: Indices, values: Floats) -> None:
        """Change some numbers; if an index comes twice, the last one counts."""
        self._changed.append(indices)  # first: what breaks off in between is added up all the same
        self.values[indices] = values

    def total(self) -> float:
        """Return the sum of all."""
        self._add_up()
        return self._sums.top

    def least(self) -> float:
        """Return the least number above 0; infinity where there is none."""
        self._add_up()
        return self._least.top

    def find(self, points: Floats) -> Indices:
        """Return the number of each point: the first whose sum with those before exceeds it.

        Points are from 0 to below the total. A number of 0 is never found, in spite of rounding.
        """
        self._add_up()
        found, points = np.zeros(points.size, np.int64), points.copy()
        for level in reversed(self._sums.levels):
            found <<= 1
            left = level.take(found)
            right = (points >= left) & (level.take(found + 1) > 0)
            np.subtract(points, left, out=points, where=right)
            found += right
        return found

    def _add_up(self) -> None:
        """Bring the sums and the least numbers up to date."""
        if count := len(self._changed):
            changed = np.concatenate(self._changed[:count])
            self._sums.update(changed)
            self._least.update(changed)
            del self._changed[:count]  # last: Ctrl-C may have come before


class _Levels:
    """Numbers and, level by level, one number for each group of the level below."""

    def __init__(self, numbers: Floats, side: int, combine: Callable[[Floats], Floats]) -> None:
        """Combine ``side`` numbers at a time, until one group is left; all begin as zeros."""
        self.levels, self._side, self._combine = [numbers], side, combine
        while (groups := -(-self.levels[-1].size // side)) > 1:
            self.levels.append(np.zeros(-(-groups // side) * side))

    @property
    def top(self) -> float:
        """The number for the group that is left."""
        return float(self._combine(self.levels[-1].reshape(1, -1))[0])

    def update(self, changed: Indices) -> None:
        """Compute the numbers above changed ones anew."""
        for below, above in pairwise(self.levels):
            groups, changed = below.reshape(-1, self._side), changed // self._side
            if changed.size * FEW > len(groups):
                changed = np.arange(len(groups))
            above[changed] = self._combine(groups[changed])


def _least_above_0(groups: Floats) -> Floats:
    return np.where(groups > 0, groups, np.inf).min(axis=1)


# ---- what users give ----


def checked_indices(indices: ArrayLike, count: int) -> Indices:
    """Return the numbers of samples as an array of one axis."""
    given = checked_array("indices are", np.atleast_1d(np.asarray(indices)), "iu", "integers")
    expected = f"0 to {count - 1}: the sampler is of {count} samples"
    refuse_where((given < 0) | (given >= count), "indices", given, expected, IndexError)
    return given.astype(np.int64)


def checked_powers(priorities: ArrayLike, count: int, alpha: float) -> Floats:
    """Return the priorities to the power of ``alpha``; a priority above 0 stays above 0."""
    axis, name = f"({count},): one for each index", "priorities"
    given = checked_array(
        "priorities are", np.atleast_1d(np.asarray(priorities)), "biuf", "numbers", axis
    )
    if given.size != count:
        raise ValueError(f"priorities are an array of shape {given.shape}, expected {axis}")
    given = given.astype(np.float64)
    expected = "a finite number of 0 or more, such as the absolute value of an error"
    refuse_where(~(np.isfinite(given) & (given >= 0)), name, given, expected)
    with np.errstate(over="ignore", under="ignore"):
        powers: Floats = np.maximum(given**alpha, LEAST_POWER)
    powers[given == 0] = 0.0
    expected = f"at most 2**900 to the power of alpha={alpha:g}; divide all of them by the largest"
    refuse_where(powers > MOST_POWER, name, given, expected)
    return powers


_AXES = {"powers": 1, "draws": 1} | dict.fromkeys(
    ("alpha", "beta", "most", "updates", "epoch", "first"), 0
)
"""Of the arrays of a state."""
_CHANGED = "it was changed since"


def checked_state(state: Any, count: int, alpha: float) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sampler's state; StateError if the state is of another sampler."""
    arrays = _arrays_of(state)
    if (size := arrays["powers"].size) != count:
        _refuse(f"is of {size} samples, and this sampler of {count}", f"make it with n={size}")
    if (theirs := arrays["alpha"]) != alpha:
        what = f"was taken with alpha={theirs}, and this sampler has alpha={alpha}"
        _refuse(what, "give it that alpha")
    # Other values would cause wrong draws or counts later.
    for name in ("powers", "most"):
        wrong = arrays[name][~((arrays[name] >= 0) & (arrays[name] <= MOST_POWER))]
        if wrong.size:
            _refuse(f"has {wrong[0]:g} in {name!r}, expected numbers from 0 to 2**900", _CHANGED)
    for name in ("updates", "epoch", "first"):
        if arrays[name].dtype.kind != "i" or arrays[name] < 0:
            what = f"has {arrays[name]!s} for {name!r}, expected an int of 0 or more"
            _refuse(what, _CHANGED)
    draws = arrays["draws"] if arrays["draws"].size else np.empty(0, np.int64)
    if draws.dtype.kind != "i" or not np.all((draws >= 0) & (index_of(draws) < count)):
        _refuse(f"has draws that are of no sample from 0 to {count - 1}", _CHANGED)
    return {**arrays, "draws": draws}


def _arrays_of(state: Any) -> dict[str, NDArray[Any]]:
    """Return all arrays that a state has to have."""
    expected = "expected what PrioritizedSampler.state_dict() returned"
    if not isinstance(state, Mapping):
        raise StateError(f"the sampler's state is a {type(state).__name__}, {expected}")
    arrays = {name: np.array(state.get(name)) for name in _AXES}
    for name, array in arrays.items():
        if array.ndim != _AXES[name] or array.dtype.kind not in "if":
            _refuse(f"has no {name!r}", expected)
    return arrays


def _refuse(what: str, remedy: str) -> NoReturn:
    raise StateError(f"the sampler's state {what}; {remedy}")

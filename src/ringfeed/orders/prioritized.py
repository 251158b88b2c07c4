"""Samples drawn by priorities that training changes as it goes: `PrioritizedSampler`.

T. Schaul, J. Quan, I. Antonoglou, D. Silver, "Prioritized Experience Replay", ICLR 2016, arXiv:1511.05952, its
proportional variant. The probability of sample i is P(i) = p_i**alpha / sum of all p_k**alpha, and its weight, for the
loss, is (N P(i))**-beta over the largest such weight of any sample that can be drawn, which comes to
(least p_k**alpha above 0 / p_i**alpha)**beta. Below, p_i**alpha is called the power of sample i.

All random bits are 64-bit words of Philox4x64-10 (see `rng`), with ``derive("prioritized", (seed, epoch, n), 16)`` for
its key, two little-endian words. Word p, counted as in `weighted`, belongs to position p. Its upper 53 bits, as a
fraction of 2**53, times the sum of all powers, are a point, which `SumTree.find` takes to a sample.

    Epoch.take() ──▶ draws (see `draws`), which a slot's header carries to the worker
    update() ──────▶ powers, which the next draws are made by
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from ringfeed.errors import StateError
from ringfeed.orders.draws import (
    Order,
    Record,
    at_most,
    checked_indices,
    checked_number,
    checked_powers,
    checked_state,
    pack,
)
from ringfeed.orders.sampler import SeededSampler, check_integer, digest
from ringfeed.orders.sum_tree import SumTree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from ringfeed.orders.draws import Epoch
    from ringfeed.orders.permutation import Indices

    Floats: TypeAlias = NDArray[np.float64]

MOST_SAMPLES = 2**31
_BETA = "a number from 0 to 1"


class PrioritizedSampler(SeededSampler):
    """Draws samples by priorities that training tells: prioritized experience replay (Schaul and others, ICLR 2016).

        sampler = ringfeed.PrioritizedSampler(n, alpha=0.6, beta=0.4)
        loader = ringfeed.Loader(memory, batch_size=256, sampler=sampler)
        for sample, index, weight in loader:
            errors = train_step(sample, weight)
            sampler.update(index, abs(errors) + 1e-6)

    A batch is a tuple of three: what it would be without this sampler, the numbers of its samples (int64, one axis) and
    their weights (float32, one axis, from 0 to 1). All three are leaves in the slot, so that they belong together
    wherever a batch goes: with samples left out by ``on_error="skip"``, as copies, tensors, or elements of tf.data.

    n: samples of the dataset, or the room of a replay buffer that fills. At most 2**31. It takes 17 bytes a sample.
    alpha: sample i comes with probability p_i**alpha / sum of all p_k**alpha. 0: all alike.
    beta: how far weights make up for that: (N P(i))**-beta over the largest of all samples. A number from 0 to 1, or a
        function from the number of updates so far to one. It may be assigned: ``sampler.beta = 0.7`` holds for the
        draws that come after it.
    num_samples: how many are drawn in an epoch; by default n.
    filled: how many samples are there at the beginning: 0 to below it, with priority 1; by default n. The others come
        by `add`.

    **How old a draw is.** Batches are drawn ahead of their use, one for each slot; with ``slots="auto"``, for each that
    there may be. So the draws of a batch do not know the updates of the ``slots - 1`` batches ahead of it; the first
    ``slots`` batches of an epoch know all that came before the epoch. tf.data, Keras, and copies to a device take
    batches ahead of the training step, and what they take comes on top. `pending` says how many samples the next draws
    do not know of. A weight is that of the moment of its draw, as the formula wants it.

    The draws are a function of (the loader's seed, epoch, position) and of the powers at that moment. So runs of one
    seed that do the same at the same steps have the same draws, whatever their workers. The number of slots is part of
    the run, since it says how old draws are. Powers, p**alpha, may differ in their last bit between kinds of CPU.

    **To go on,** keep `state_dict` beside the loader's: both taken between two batches, after the update. Load both,
    and give the loader as many slots. The state has the last draws, those ahead of the loop included, so that the rest
    of the run is what it would have been. StateError where the loader's state was taken at another update.

    Give it to one loader. All its methods are safe from any thread, also while the loader draws. The loader raises
    ValueError where its dataset has another length than n, where ``dataset[i]`` is a whole batch, with several ranks,
    which would not know each other's updates, and where all priorities are 0. TypeError or ValueError for parameters
    that do not fit.
    """

    carries_weights = True

    def __init__(
        self,
        n: int,
        *,
        alpha: float = 0.6,
        beta: float | Callable[[int], float] = 0.4,
        num_samples: int | None = None,
        filled: int | None = None,
    ) -> None:
        self._count = at_most("n", check_integer("n", n, 1), MOST_SAMPLES)
        self._alpha = checked_number("alpha", alpha, sys.float_info.max, "a finite number of 0 or more")
        self.beta = beta
        self._num_samples = self._count if num_samples is None else check_integer("num_samples", num_samples, 1)
        there = self._count if filled is None else at_most("filled", check_integer("filled", filled, 0), self._count)
        self._lock = threading.RLock()  # a signal handler may come in again
        self._most = 1.0  # power so far
        self._updates = 0
        self._answered = 0  # samples of this epoch that were updated
        self._record = Record()  # of the newest epoch
        self._newest: Epoch | None = None
        self._tree = SumTree(self._count)
        self._tree.put(np.arange(there), np.ones(there))

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return self._num_samples

    def __repr__(self) -> str:
        """Return what can be drawn, and how."""
        there = np.count_nonzero(self._tree.values)
        return f"<PrioritizedSampler: {there} of {self._count} samples, alpha={self._alpha:g}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: what a worker, or a file, had of it would hear of no update."""
        raise TypeError(
            "a PrioritizedSampler stays in the process that trains; leave it out of what __getstate__ of the dataset "
            "returns, and save its state_dict()"
        )

    # ---- what training tells ----

    @property
    def beta(self) -> float | Callable[[int], float]:
        """How far weights make up for the priorities: a number from 0 to 1, or a function of the updates so far."""
        return self._beta

    @beta.setter
    def beta(self, beta: float | Callable[[int], float]) -> None:
        self._beta = beta if callable(beta) else checked_number("beta", beta, 1, f"{_BETA}, or a function to one")

    def update(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Give samples new priorities, such as the absolute TD errors and a little more.

        indices: as they came with the batch, in any order; of one that comes twice the last counts. priorities: as many
        numbers of 0 or more. They hold for all later draws, at once.

        A sample of priority 0 is not there any more, and only `add` brings it back: an update that comes late, for a
        sample that was removed meanwhile, does nothing.

        Raises IndexError for an index that is no sample; ValueError for priorities that are NaN, infinite, negative, or
        more or fewer than the indices; TypeError for what are no numbers. Nothing has changed then.
        """
        samples = checked_indices(indices, self._count)
        powers = checked_powers(priorities, samples.size, self._alpha)
        with self._lock:
            there = self._tree.values[samples] > 0
            self._put(samples[there], powers[there])
            self._updates += 1
            self._answered += samples.size

    def add(self, indices: ArrayLike, priorities: ArrayLike | None = None) -> None:
        """Have samples be drawn that were written, for the first time or anew: call it when they are there.

        indices: one or several. priorities: by default the highest so far, 1 at first, so that what is new comes soon.
        Raises what `update` raises.
        """
        samples = checked_indices(indices, self._count)
        powers = None if priorities is None else checked_powers(priorities, samples.size, self._alpha)
        with self._lock:
            self._put(samples, np.full(samples.size, self._most) if powers is None else powers)

    def remove(self, indices: ArrayLike) -> None:
        """Have samples not be drawn until `add`: those that the program is about to overwrite, say.

        Batches that were drawn before, at most ``slots``, may still have them. Raises what `update` raises for indices.
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
        """Samples that were drawn in this epoch, and not updated since: what the next draws do not know.

        In a loop that updates every batch, right after the update, it is ``slots - 1`` batches. Samples that failed
        count until the epoch's end.
        """
        return max(self._record.taken - self._record.begin - self._answered, 0)

    def _put(self, samples: Indices, powers: Floats) -> None:
        self._tree.put(samples, powers)
        self._most = max(self._most, float(powers.max(initial=0.0)))

    # ---- the order ----

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError for several ranks."""
        if world_size > 1:
            raise ValueError(
                f"PrioritizedSampler with world_size={world_size}: no rank knows the updates of the others, so their "
                "orders would differ; give each process a dataset and a sampler of its own, and leave rank=, "
                "world_size= and shard= out"
            )

    def bind(self, length: int | None, seed: int) -> Order:
        """Return the order over a dataset of ``length`` samples."""
        if length not in (None, self._count):
            raise ValueError(
                f"PrioritizedSampler is of {self._count} samples, but the dataset has {length}; give the dataset's "
                "length as n, for a replay buffer its capacity"
            )
        return Order(self, f"prioritized:{digest(f'{self._count} {self._alpha}')}", self._count, seed)

    def begin(self, epoch: Epoch, state: Any) -> None:
        """Have an epoch be the newest; one that goes on from a state keeps the draws that were made ahead of it."""
        number, start = epoch.number, epoch.position
        with self._lock:
            known = None if state is None else self._known(number, start, state)
            self._record, self._answered, self._newest = Record(number, start, known), 0, epoch

    def _known(self, number: int, start: int, state: Any) -> Indices | None:
        """Return the draws from there on; StateError where the loader's state is of another moment."""
        if state != self._updates:
            raise StateError(
                f"the loader's state was taken after {state} updates of its PrioritizedSampler, and this one has had "
                f"{self._updates}; load the sampler's own state too, taken with the loader's between two batches"
            )
        self._record.check(number, start)
        return self._record.since(start) if self._record.has(number, start) else None

    def draw(self, epoch: Epoch, count: int) -> Indices:
        """Return an epoch's next draws: those that are known, then others by the powers of this moment."""
        with self._lock:
            if epoch is not self._newest:
                return self._drawn(epoch, epoch.position, count)
            record, stop = self._record, epoch.position + count
            if (end := record.kept.end) < stop:
                record.append(self._drawn(epoch, end, stop - end), count)
            record.taken = stop
            return record.since(epoch.position)[:count]

    def _drawn(self, epoch: Epoch, start: int, count: int) -> Indices:
        total, beta = self._tree.total(), self._beta_now()
        if not total > 0:
            raise ValueError(
                f"PrioritizedSampler has nothing to draw: all {self._count} samples have priority 0; add() those that "
                "are there, and update() with errors plus a little, such as 1e-6"
            )
        points = epoch.points(start, start + count) * total
        ascending = np.argsort(points)  # neighbours in memory, one after another
        found = np.empty(count, np.int64)
        found[ascending] = self._tree.find(points[ascending])
        with np.errstate(under="ignore"):  # a weight may be 0
            return pack(found, (self._tree.least() / self._tree.values[found]) ** beta)

    def _beta_now(self) -> float:
        if not callable(self._beta):
            return self._beta
        return checked_number(f"beta({self._updates})", self._beta(self._updates), 1, _BETA)

    # ---- where it is ----

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the priorities and what draws depend on besides, as arrays: ``np.savez(file, **state)`` keeps them.

        Take it between two batches, after the update, together with the loader's. It takes 8 bytes a sample.
        """
        with self._lock:
            record, beta = self._record, np.nan if callable(self._beta) else self._beta
            first = record.kept.first
            found: dict[str, Any] = {"powers": self._tree.values.copy(), "draws": record.since(first)}
            found |= {"alpha": self._alpha, "beta": beta, "most": self._most}
            found |= {"updates": self._updates, "epoch": record.number, "first": first}
            return {name: np.asarray(value) for name, value in found.items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Be as when ``state`` was taken; beta too, where it is a number now and was one then.

        Do it ahead of the epoch that is to go on. StateError for a state of another sampler.
        """
        found = checked_state(state, self._count, self._alpha)
        with self._lock:
            self._tree.put_all(found["powers"])
            self._most, self._updates, self._answered = float(found["most"]), int(found["updates"]), 0
            self._record = Record(int(found["epoch"]), int(found["first"]), found["draws"])
            self._newest = None
            if not callable(self._beta) and found["beta"] >= 0:  # NaN: it was a function
                self._beta = float(found["beta"])

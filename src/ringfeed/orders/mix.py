"""The order of a mix: the dataset and the sample of each position of an epoch.

    MixSampler ──▶ MixEpoch.take(): `proportions.Pattern` says which dataset comes at each position
                                    MixSampler.samples says which of its samples comes next

It is a function of (seed, epoch, position), part of the interface, and no later version may change
it.

**Samples.** Dataset i gives its samples in order or, shuffled, in the order of
`permutation.permute` with the epoch's number and the seed ``derive("mix", (seed, i, pass), 16)``,
little-endian. When it is used up its next pass begins.

**Changing weights.** Where a function gives other weights for a batch, the pattern begins anew
there, with what is left of each dataset in the place of its length. There s of `proportions` is
floor(q f), f the fraction of b * 0x9E3779B97F4A7C15 / 2**64 and b the number of the block in its
epoch, so that roundings balance over batches of ever new weights. Where an epoch with
``per_batch=True`` goes on with another batch size, it does so with what is left of the totals.
"""

from __future__ import annotations

import zlib
from collections import deque
from functools import cached_property
from itertools import accumulate
from operator import add, sub
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.orders.checks import check_at_most, check_fields, refuse
from ringfeed.orders.permutation import Indices, permute_few
from ringfeed.orders.proportions import Pattern, shares_of, totals
from ringfeed.orders.rng import seed_of
from ringfeed.orders.sampler import Epoch, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MOST_PATTERNS = 4096  # of an epoch, that are kept: more than batches are planned ahead
MOST_INDEX = 2**62


class MixSampler(Sampler):
    """The order of several datasets of these lengths, by weight.

    weights: integers; or a function from an epoch's number and the number of a batch in it to the
        weights of this batch
    rows: of a batch
    seed: None for each dataset's own order
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        lengths: Sequence[int],
        weights: tuple[int, ...] | Callable[[int, int], Any],
        stop: str,
        rows: int,
        *,
        per_batch: bool,
        seed: int | None,
    ) -> None:
        self.lengths = tuple(lengths)
        self.weights = weights
        self.stop = stop
        self.rows = rows
        self.per_batch = per_batch
        self._seed = seed
        self._bases = [0, *accumulate(lengths)]
        self.pure = not callable(weights)
        parts = zlib.crc32(
            repr((self.lengths, weights if self.pure else "changing", per_batch)).encode()
        )
        self.order = (
            f"mix {stop}{' per batch' * per_batch}{' shuffled' * (seed is not None)} {parts:08x}"
        )
        self.why_no_length = (
            f"Mix {'goes on without end' if stop == 'never' else 'has weights that may change'}"
        )

    @cached_property
    def length(self) -> int | None:
        """The draws of an epoch; None if it has no end, or if the weights may change."""
        if callable(self.weights) or self.stop == "never":
            return None
        return sum(totals(self.weights, self.lengths, self.stop))

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError unless this is a state of a mix of these datasets."""
        if state is None:
            return
        each = len(self.lengths)
        check_fields(state, position=0, start=0, counts=each, weights=each, batch_size=0)
        check_at_most(state, "position", start, "the state's samples")
        check_at_most(state, "start", state["position"], "its position")
        if not any(state["weights"]) or not state["batch_size"]:
            refuse(state, "expected a weight and a batch_size above 0")

    def epoch(self, number: int, start: int = 0, state: Any = None) -> MixEpoch:
        """Return epoch ``number`` from a position on."""
        return MixEpoch(self, number, start, state)

    def weights_at(self, number: int, batch: int) -> tuple[int, ...]:
        """Return the weights of a batch."""
        if not callable(self.weights):
            return self.weights
        name = f"weights({number}, {batch})"
        return shares_of(self.weights(number, batch), len(self.lengths), name)

    def pattern(
        self, start: int, before: tuple[int, ...], weights: tuple[int, ...], rows: int
    ) -> Pattern:
        """Return an epoch's draws from a position on, while these weights hold."""
        if self.stop == "never":
            amounts = [*weights]
        elif self.pure:
            amounts = [*map(sub, totals(weights, self.lengths, self.stop), before)]
        else:
            left = [max(rest, 0) for rest in map(sub, self.lengths, before)]
            amounts = totals(weights, left, self.stop)
        block = rows if self.per_batch else 1
        return Pattern(start, before, weights, amounts, block, ends=self.stop != "never")

    def samples(self, member: int, first: int, count: int, number: int) -> Indices:
        """Return the samples of some draws of a dataset in epoch ``number``, pass after pass.

        A sample's index is its number among the samples of all datasets; each pass adds their
        total.
        """
        length, whole, parts = self.lengths[member], self._bases[-1], []
        for turn in range(first // length, -(-(first + count) // length)):
            begin = turn * length
            those = np.arange(max(first, begin), min(first + count, begin + length)) - begin
            if self._seed is not None:
                those = permute_few(
                    those, length, seed_of("mix", (self._seed, member, turn)), number
                )
            parts.append(those + self._bases[member] + turn % (MOST_INDEX // whole) * whole)
        return np.concatenate(parts)


class MixEpoch(Epoch):
    """One epoch of a mix."""

    def __init__(self, sampler: MixSampler, number: int, start: int, state: Any) -> None:
        """Go on at ``start``, from an earlier `state`, or from the beginning."""
        self._sampler, self._number = sampler, number
        self._asked = -1  # the batch whose weights hold, where they may change
        rows, position = sampler.rows, 0
        if state is None:
            none, self._asked = (0,) * len(sampler.lengths), 0
            pattern = sampler.pattern(0, none, sampler.weights_at(number, 0), rows)
        else:
            position, weights = state["position"], tuple(state["weights"])
            size = state["batch_size"] if sampler.per_batch else rows
            pattern = sampler.pattern(state["start"], tuple(state["counts"]), weights, size)
            if size != rows:
                # Quotas of batches of another size begin anew, with what is left of the totals.
                pattern = sampler.pattern(position, pattern.counts(position), weights, rows)
        self._patterns = deque([pattern], maxlen=MOST_PATTERNS)
        # A function is asked for the weights of each batch on the way.
        for batch in () if sampler.pure else range(position // rows, start // rows + 1):
            self._pattern_at(max(batch * rows, position))
        self._position = start
        # A position, and how often each dataset is drawn ahead of it.
        self._drawn_before: tuple[int, tuple[int, ...]] = (-1, ())

    def _pattern_at(self, position: int) -> Pattern:
        """Return the pattern that holds at a position; new weights begin one."""
        sampler, pattern = self._sampler, self._patterns[-1]
        batch = position // sampler.rows
        if sampler.pure or batch == self._asked:
            return pattern
        weights = sampler.weights_at(self._number, batch)
        if weights != pattern.weights:
            before = pattern.counts(position)
            pattern = sampler.pattern(position, before, weights, sampler.rows)
            self._patterns.append(pattern)
        self._asked = batch
        return pattern

    def take(self, count: int) -> Indices:
        """Return the indices of the next draws."""
        position, rows, found = self._position, self._sampler.rows, [np.empty(0, np.int64)]
        # Where Ctrl-C came, or an error of the weights, there may be patterns beyond what was
        # given.
        while self._patterns[-1].start > position:
            self._patterns.pop()
        stop = position + count
        while position < stop:
            pattern = self._pattern_at(position)
            most = stop - position
            if not self._sampler.pure:
                most = min(most, rows - position % rows)
            members = pattern.members(position, most)
            if not members.size:
                break
            at, before = self._drawn_before
            before = before if at == position else pattern.counts(position)
            counts = np.bincount(members, minlength=len(before)).tolist()
            found.append(self._drawn(members, before, counts))
            position += members.size
            self._drawn_before = position, tuple(map(add, before, counts))
        taken = np.concatenate(found)
        self._position = position
        return taken

    def _drawn(self, members: Indices, before: Sequence[int], counts: Sequence[int]) -> Indices:
        """Return ``counts`` draws from these datasets, after ``before`` draws."""
        found = np.empty_like(members)
        each = zip(range(len(counts)), before, counts, strict=True)
        parts = [self._sampler.samples(*draws, self._number) for draws in each if draws[2]]
        found[np.argsort(members, kind="stable")] = np.concatenate(parts)
        return found

    def state(self, position: int) -> dict[str, Any] | None:
        """Return where the pattern of this position began, with the draws of each dataset."""
        sampler = self._sampler
        if sampler.pure and not sampler.per_batch:
            return None
        patterns = [*self._patterns][::-1]  # at once: another thread may plan
        pattern = next((one for one in patterns if one.start <= position), patterns[-1])
        return {
            "position": position,
            "start": pattern.start,
            "counts": [*pattern.before],
            "weights": [*pattern.weights],
            "batch_size": sampler.rows,
        }

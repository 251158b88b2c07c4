"""The order of a mix: which dataset each position of an epoch draws from, and which of its samples.

    MixSampler ──▶ MixEpoch.take(): Pattern says which dataset each position draws from (see `proportions`)
                                    DrawOrder says which of its samples comes next

It is a function of (seed, epoch, position), part of the interface, and no later version may change it.

**Samples.** Dataset i gives its samples in order or, shuffled, in the order of `permutation.permute` with the epoch's
number and the seed ``derive("mix", (seed, i, pass), 16)``, little-endian. When it is used up its next pass begins.

**Changing weights.** Where a function gives other weights for a batch, the pattern begins anew there, with what is left
of each dataset in the place of its length. There s of `proportions` is floor(q f), f the fraction of
b * 0x9E3779B97F4A7C15 / 2**64 and b the number of the block in its epoch, so that roundings balance over batches of
ever new weights. Where an epoch with ``per_batch=True`` goes on with another batch size, it does so with what is left
of the totals.
"""

from __future__ import annotations

import zlib
from collections import deque
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.orders.checks import check_at_most, check_fields, refuse
from ringfeed.orders.proportions import Pattern, shares_of, totals
from ringfeed.orders.rng import derive
from ringfeed.orders.sampler import Sequential, Shuffled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler

MOST_SECTIONS = 4096  # of an epoch, that are kept: more than batches are planned ahead
MOST_INDEX = 2**62


# ---- which sample ----


class DrawOrder:
    """The indices of one dataset's samples in the order of its draws in an epoch, pass after pass."""

    def __init__(self, sampler: MixSampler, member: int, number: int, drawn: int) -> None:
        """Begin after ``drawn`` draws of an epoch."""
        self._sampler, self._member, self._number = sampler, member, number
        self._begin(*divmod(drawn, sampler.lengths[member]))

    def _begin(self, number: int, start: int) -> None:
        self._pass = number
        self._epoch = self._sampler.samples(self._member, number).epoch(self._number, start)

    def take(self, count: int) -> Indices:
        """Return the next indices."""
        found = [np.empty(0, np.int64)]
        while count:
            taken = self._epoch.take(count)
            found.append(taken + self._sampler.base(self._member, self._pass))
            count -= len(taken)
            if count:
                self._begin(self._pass + 1, 0)
        return np.concatenate(found)


# ---- epochs ----


class Section(NamedTuple):
    """A stretch of an epoch with the same weights."""

    start: int  # its position
    counts: tuple[int, ...]  # of the draws ahead of it
    weights: tuple[int, ...]


class MixSampler:
    """The order of several datasets of these lengths, by weight.

    weights: integers; or a function from an epoch's number and the number of a batch in it to the weights of this batch
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

    @cached_property
    def length(self) -> int | None:
        """The draws of an epoch; None where there is no end, or where the weights may change."""
        if callable(self.weights) or self.stop == "never":
            return None
        return sum(totals(self.weights, self.lengths, self.stop))

    @property
    def why_no_length(self) -> str:
        """Why there is none, in words that follow "its"."""
        return "Mix goes on without end" if self.stop == "never" else "Mix has weights that may change"

    @cached_property
    def order(self) -> str:
        """What tells this order from others, but for the seed."""
        weights = "changing" if callable(self.weights) else self.weights
        parts = zlib.crc32(repr((self.lengths, weights, self.per_batch)).encode())
        return f"mix {self.stop}{' per batch' * self.per_batch}{' shuffled' * (self._seed is not None)} {parts:08x}"

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError for what is no state of a mix of so many datasets."""
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

    def pattern(self, section: Section, rows: int) -> Pattern:
        """Return which datasets a section draws from, in batches of ``rows``."""
        amounts = self._amounts(section)
        block = rows if self.per_batch else 1
        return Pattern(amounts, section.weights, block, section.start // block, ends=self.stop != "never")

    def _amounts(self, section: Section) -> list[int]:
        """Return how often each dataset is drawn from there to the end, if that holds."""
        if self.stop == "never":
            return [*section.weights]
        if self.pure:
            whole = totals(section.weights, self.lengths, self.stop)
            return [amount - count for amount, count in zip(whole, section.counts, strict=True)]
        left = [max(length - count, 0) for length, count in zip(self.lengths, section.counts, strict=True)]
        return totals(section.weights, left, self.stop)

    def samples(self, member: int, number: int) -> Sampler:
        """Return the order of a dataset's samples in its pass of this number."""
        length = self.lengths[member]
        if self._seed is None:
            return Sequential(length)
        return Shuffled(length, int.from_bytes(derive("mix", (self._seed, member, number), 16), "little"))

    def base(self, member: int, number: int) -> int:
        """Return the index of a dataset's sample 0 in its pass of this number."""
        whole = self._bases[-1]
        return self._bases[member] + number % (MOST_INDEX // whole) * whole


class MixEpoch:
    """One pass over a mix."""

    def __init__(self, sampler: MixSampler, number: int, start: int, state: Any) -> None:
        """Go on at ``start``, from an earlier `state`, or from the beginning."""
        self._sampler, self._number = sampler, number
        self._sections: deque[Section] = deque(maxlen=MOST_SECTIONS)
        self._position = 0
        self._asked = -1  # the batch whose weights hold
        if state is None:
            self._enter(Section(0, (0,) * len(sampler.lengths), sampler.weights_at(number, 0)))
            self._asked = 0
        else:
            self._restore(state)
        self._go_to(start)
        self._given = start  # the position after what was given; before it, what `take` has begun
        self._is_torn = False  # whether it has begun
        self._begin_draws()

    def _begin_draws(self) -> None:
        counts = self._counts_at(self._position)
        self._draws = [DrawOrder(self._sampler, member, self._number, count) for member, count in enumerate(counts)]

    def _enter(self, section: Section) -> None:
        self._sections.append(section)
        self._pattern = self._sampler.pattern(section, self._sampler.rows)

    def _restore(self, state: Any) -> None:
        """Enter the section of a state; with quotas for each batch, and batches of another size, a new one."""
        sampler = self._sampler
        section = Section(state["start"], tuple(state["counts"]), tuple(state["weights"]))
        self._enter(section)
        self._position = state["position"]
        if sampler.per_batch and state["batch_size"] != sampler.rows:
            self._pattern = sampler.pattern(section, state["batch_size"])
            counts = tuple(self._counts_at(self._position))
            self._enter(section._replace(start=self._position, counts=counts))

    def _counts_at(self, position: int) -> list[int]:
        section = self._sections[-1]
        drawn = self._pattern.counts(position - section.start)
        return [before + more for before, more in zip(section.counts, drawn, strict=True)]

    def _go_to(self, start: int) -> None:
        """Go to a position; a function is asked for the weights of each batch on the way."""
        rows = self._sampler.rows
        for batch in () if self._sampler.pure else range(self._position // rows, start // rows + 1):
            self._position = max(batch * rows, self._position)
            self._follow()
        self._position = start

    def _follow(self) -> None:
        """Have the weights of the batch hold that this position is in."""
        batch = self._position // self._sampler.rows
        if batch == self._asked:
            return
        weights = self._sampler.weights_at(self._number, batch)
        self._asked = batch
        if weights != self._sections[-1].weights:
            self._enter(Section(self._position, tuple(self._counts_at(self._position)), weights))

    def take(self, count: int) -> Indices:
        """Return the next indices: a sample's number among all datasets' samples, and as many more for each pass."""
        if self._is_torn:
            self._go_back()
        self._is_torn = True
        found = [np.empty(0, np.int64)]
        while count > 0 and len(members := self._members(count)):
            found.append(self._drawn(members))
            self._position += len(members)
            count -= len(members)
        taken = np.concatenate(found)
        self._given, self._is_torn = self._position, False
        return taken

    def _go_back(self) -> None:
        """Go back to what was given last, from where Ctrl-C came, or an error of the weights."""
        self._position, self._asked = self._given, -1
        while self._sections[-1].start > self._given:
            self._sections.pop()
        self._pattern = self._sampler.pattern(self._sections[-1], self._sampler.rows)
        self._begin_draws()

    def _members(self, count: int) -> Indices:
        """Return which datasets come next: up to the end of a batch, where the weights may change there."""
        if not self._sampler.pure:
            self._follow()
            count = min(count, self._sampler.rows - self._position % self._sampler.rows)
        return self._pattern.members(self._position - self._sections[-1].start, count)

    def _drawn(self, members: Indices) -> Indices:
        found = np.empty_like(members)
        counts = np.bincount(members).tolist()
        parts = [self._draws[member].take(count) for member, count in enumerate(counts) if count]
        found[np.argsort(members, kind="stable")] = np.concatenate(parts)
        return found

    def state(self, position: int) -> dict[str, Any] | None:
        """Return the draws of each dataset where the weights, or the batch size, of this position came to hold."""
        sampler = self._sampler
        if sampler.pure and not sampler.per_batch:
            return None
        sections = [*self._sections][::-1]  # at once: another thread may plan
        section = next((one for one in sections if one.start <= position), sections[-1])
        found: dict[str, Any] = {"position": position, "start": section.start, "counts": [*section.counts]}
        return {**found, "weights": [*section.weights], "batch_size": sampler.rows}

"""Which sample comes when: an epoch hands out sample numbers, in order and in constant memory.

    Sequential         0, 1, 2, ...
    Shuffled           every number once, in the order of `permutation.permute`
    Positional         any order that is a function of (epoch, position)
    SeededSampler      what users give as sampler=, and a loader binds to its dataset and seed: see `weighted`,
                       `subsets`, `windows` and `prioritized`

A sampler makes epochs, an epoch is read by ``take(count)``: ``Shuffled(10**9, seed=0).epoch(3).take(128)``. One that
goes on where it was left begins at a position: ``.epoch(3, 5 * 10**8)``. What a position alone does not say, the epoch
keeps: see `Epoch.state`.

The shuffled order is part of the interface; `permutation` says what it is.
"""

from __future__ import annotations

import operator
import os
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ringfeed.orders._permute import MAX_LENGTH
from ringfeed.orders.checks import check_none
from ringfeed.orders.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.orders.permutation import Indices

CHUNK = 4096  # positions permuted at a time: 32 kB, which malloc keeps

IndicesAt: TypeAlias = "Callable[[int, int], Indices]"  # the samples from one position to below another


class Epoch(Protocol):
    """One pass over the samples."""

    def take(self, count: int) -> Indices:
        """Return the next ``count`` sample numbers, contiguous; fewer at the end of the epoch, then none.

        Where Ctrl-C comes, it has given nothing: it moves in its last steps, in which no call and no loop is.
        """

    def state(self, position: int) -> Any:
        """Return what `Sampler.epoch` needs besides this position to go on there, as JSON has it; None: nothing."""


class Sampler(Protocol):
    """What a loader needs to know of an order."""

    @property
    def length(self) -> int | None:
        """Samples in an epoch, where that is known."""

    @property
    def pure(self) -> bool:
        """Whether reading ahead has no visible effect."""

    @property
    def order(self) -> str:
        """A short name that tells this order from others, beside seed and length: at most 40 characters."""

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError unless `epoch` can go on at position ``start`` with this state."""

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` without its first ``start`` samples; ``state``: what `Epoch.state` said there."""


class ByPosition:
    """A sampler whose epochs go on at any position, without a state."""

    order: str

    def check_state(self, start: int, state: Any) -> None:  # noqa: ARG002 - any start will do
        """Refuse a state."""
        check_none(state, self.order)


class Sequential(ByPosition):
    """0, 1, 2, ... in every epoch; without end where the length is None, and the dataset itself has one."""

    pure = True
    order = "sequential"
    counts_up = True  # but for `shuffle`

    def __init__(self, length: int | None) -> None:
        self.length = length

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:  # noqa: ARG002  (epochs are alike)
        """Return the numbers from ``start`` on."""
        return _SequentialEpoch(sys.maxsize if self.length is None else self.length, start)


class Stateless:
    """An epoch whose position says all."""

    def state(self, position: int) -> Any:
        """Return None."""


class _SequentialEpoch(Stateless):
    def __init__(self, length: int, start: int) -> None:
        self._length = length
        self._position = start

    def take(self, count: int) -> Indices:
        start = self._position
        stop = max(start, min(start + count, self._length))
        taken = np.arange(start, stop, dtype=np.int64)
        self._position = stop
        return taken


class Positional(ByPosition):
    """An order whose every sample is a function of (epoch, position)."""

    pure = True

    def __init__(self, order: str, length: int, begin: Callable[[int], IndicesAt], chunk: int = CHUNK) -> None:
        """``begin(epoch)`` returns what gives the samples at some positions; it is asked for ``chunk`` at a time."""
        self.order = order
        self.length = length
        self._begin = begin
        self._chunk = chunk

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:  # noqa: ARG002  (numbers say it all)
        """Return the order of epoch ``number``, of 0 or more, from position ``start`` on."""
        return _PositionalEpoch(self._begin(number), self.length, start, self._chunk)


class _PositionalEpoch(Stateless):
    """Asks for a chunk at a time, since 16 thousand positions take hardly longer than a hundred."""

    def __init__(self, indices_at: IndicesAt, length: int, start: int, chunk: int) -> None:
        self._indices_at = indices_at
        self._length = length
        self._asked = start  # positions
        self._chunk = chunk
        self._ready = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> Indices:
        ready, asked = self._ready, self._asked
        if count > ready.size:
            chunks = [*self._chunks(count - ready.size)]
            ready = np.concatenate([ready, *chunks])
            asked += sum(chunk.size for chunk in chunks)
        self._ready, self._asked = ready[count:], asked
        return ready[:count]

    def _chunks(self, missing: int) -> Iterator[Indices]:
        asked = self._asked
        while missing > 0 and asked < self._length:
            stop = min(asked + self._chunk, self._length)
            chunk = self._indices_at(asked, stop)
            asked = stop
            missing -= chunk.size
            yield chunk


class Shuffled(Positional):
    """Every sample once an epoch, in an order that is a function of (seed, epoch); nothing else is kept."""

    def __init__(self, length: int, seed: int) -> None:
        if length > MAX_LENGTH:
            raise ValueError(f"cannot shuffle {length} samples: 2**62 is the most")

        def begin(number: int) -> IndicesAt:
            return lambda start, stop: permute(np.arange(start, stop, dtype=np.int64), length, seed, number)

        super().__init__("shuffled", length, begin)


class SeededSampler(ABC):
    """An order of ringfeed's own, to be given as ``sampler=`` to any number of loaders; it does not change."""

    carries_weights = False
    """Whether an epoch gives draws, numbers with weights: see `draws`."""

    @abstractmethod
    def bind(self, length: int | None, seed: int) -> Sampler:
        """Return the order over a dataset of ``length`` samples, None: unknown; ValueError where it does not fit."""

    def check_ranks(self, world_size: int) -> None:  # noqa: B027  (most orders are the same on every rank)
        """Raise ValueError where several ranks cannot share it."""


def digest(*parts: Any) -> str:
    """Return 8 letters that differ, but for one in 2**32, where arrays or texts differ."""
    from hashlib import blake2b  # noqa: PLC0415  (loads OpenSSL)

    found = blake2b(digest_size=4)
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def check_integer(name: str, value: object, least: int) -> int:
    """Return ``value`` as a Python int; TypeError or ValueError unless it is an integer of ``least`` or more."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected an integer of {least} or more")
    if number < least:
        raise ValueError(f"{name} is {number}, expected an integer of {least} or more")
    return number


def check_seed(seed: object) -> int:
    """Return ``seed`` as a Python int; TypeError or ValueError unless it is an integer of 0 or more."""
    return check_integer("seed", seed, 0)


def draw_seed() -> int:
    """Return a seed of the operating system's, of 53 bits: any reader of JSON keeps them."""
    return int.from_bytes(os.urandom(7), "little") >> 3

"""Draws by priority: the order that a `PrioritizedSampler` gives, the draws it keeps, and what it accepts.

    draw     weight, a float32 of 0 or more: 31 bits | the sample's number: 32 bits

A draw takes the place of a sample's number from here to the worker: in the plan, in the slot's header, in a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from ringfeed.errors import StateError
from ringfeed.orders.checks import refuse
from ringfeed.orders.rng import derive, words_at

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ringfeed.orders.permutation import Indices, Words
    from ringfeed.orders.prioritized import PrioritizedSampler

    Floats: TypeAlias = NDArray[np.float64]

INDEX_BITS = 32
KEPT = 64  # of the newest batches, and at least four times what an epoch begins with
MOST_POWER = 2.0**900  # so that no sum is infinite
LEAST_POWER = 2.0**-900  # of a priority above 0


def pack(indices: Indices, weights: Floats) -> Indices:
    """Return draws of these samples."""
    bits = weights.astype(np.float32).view(np.uint32).astype(np.int64)
    return bits << INDEX_BITS | indices


def index_of(draw: Any) -> Any:
    """Return the number of a draw's sample; of a sample's number, the number itself. Of arrays, too."""
    return draw & (1 << INDEX_BITS) - 1


class Order:
    """The draws of a sampler for one loader."""

    pure = False

    def __init__(self, sampler: PrioritizedSampler, order: str, count: int, seed: int) -> None:
        """Draw from ``count`` samples."""
        self.sampler = sampler
        self.length = len(sampler)
        self.order = order
        self._count = count
        self._seed = seed

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Epoch:
        """Return epoch ``number`` from position ``start`` on; ``state``: the sampler's updates before that."""
        key = np.frombuffer(derive("prioritized", (self._seed, number, self._count), 16), "<u8").astype(np.uint64)
        return Epoch(self.sampler, key, number, start, state)

    @property
    def start_state(self) -> int:
        """The state of an epoch that has not begun: how many updates there were."""
        return self.sampler.updates

    def check_state(self, start: int, state: Any) -> None:  # noqa: ARG002 - any start will do
        """Raise StateError for what is no number of updates; an epoch that was begun by `skip` has none."""
        if state is not None and not (type(state) is int and state >= 0):
            refuse(state, "expected the updates of a PrioritizedSampler, an int of 0 or more")


class Epoch:
    """One pass. Its draws depend on the moment at which they are asked for."""

    def __init__(self, sampler: PrioritizedSampler, key: Words, number: int, start: int, state: Any) -> None:
        """Begin at a position, with the draws that the sampler has kept from there on."""
        self.number = number
        """Of this epoch."""
        self.position = start
        """Of the next draw."""
        self._sampler = sampler
        self._key = key
        sampler.begin(self, state)

    def take(self, count: int) -> Indices:
        """Return the next draws. Where Ctrl-C keeps them from the caller, the next call returns them."""
        taken = self._sampler.draw(self, max(min(count, len(self._sampler) - self.position), 0))
        self.position += taken.size
        return taken

    def points(self, start: int, stop: int) -> Floats:
        """Return the random numbers, from 0 to below 1, of some positions."""
        points: Floats = (words_at(self._key, start, stop) >> np.uint64(11)) * 2.0**-53
        return points

    def state(self, position: int) -> int:  # noqa: ARG002  (the sampler keeps the draws from there on)
        """Return how many updates there were."""
        return self._sampler.updates


class Kept(NamedTuple):
    """Draws from one position of an epoch to below another."""

    first: int
    end: int
    draws: tuple[Indices, ...]


class Record:
    """The last draws of one epoch: those ahead of the loop, above all. A signal handler may look at any moment."""

    def __init__(self, number: int = 0, first: int = 0, draws: Indices | None = None) -> None:
        """Keep draws from position ``first`` of an epoch on."""
        self.number = number
        self.begin = self.taken = first
        """Positions: where the epoch began, and how far it has come."""
        self.kept = Kept(first, first, ()) if draws is None else Kept(first, first + draws.size, (draws,))
        self._least = 0

    def append(self, draws: Indices, asked: int) -> None:
        """Keep more, and the oldest no longer; ``asked``: for how many at once, known ones among them."""
        first, end, kept = self.kept
        self._least = max(self._least, 4 * asked)
        kept, end = (*kept, draws), end + draws.size
        while len(kept) > KEPT and end - first - kept[0].size >= self._least:
            first, kept = first + kept[0].size, kept[1:]
        self.kept = Kept(first, end, kept)

    def has(self, number: int, position: int) -> bool:
        """Whether the draws from a position of an epoch on are kept."""
        return number == self.number and self.kept.first <= position <= self.kept.end

    def check(self, number: int, position: int) -> None:
        """Raise StateError where an epoch is to go on ahead of what is kept."""
        if number == self.number and position < self.kept.first:
            raise StateError(
                f"the loader's state is at sample {position} of epoch {number}, and the PrioritizedSampler's has the "
                f"draws from sample {self.kept.first} on; take the states within {KEPT} batches of the draw"
            )

    def since(self, position: int) -> Indices:
        """Return the draws from a position on."""
        _, start, kept = self.kept
        found = [np.empty(0, np.int64)]
        for draws in reversed(kept):
            if start <= position:
                break
            found.append(draws)
            start -= draws.size
        return np.concatenate(found[::-1])[max(position - start, 0) :]


# ---- what users give ----


def checked_number(name: str, value: Any, most: float, expected: str) -> float:
    """Return a number from 0 to ``most``; TypeError or ValueError for any other."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not 0 <= value <= most:  # NaN neither
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return float(value)


def at_most(name: str, value: int, most: int) -> int:
    """Return a number; ValueError where it is too large."""
    if value > most:
        raise ValueError(f"{name} is {value}, expected at most {most}")
    return value


def checked_indices(indices: ArrayLike, count: int) -> Indices:
    """Return the numbers of samples as an array of one axis."""
    given = np.atleast_1d(np.asarray(indices))
    if not given.size and given.dtype.kind == "f":
        given = given.astype(np.int64)  # of []
    if given.dtype.kind not in "iu":
        raise TypeError(f"indices are an array of {given.dtype}, expected integers")
    if given.ndim != 1:
        raise ValueError(f"indices are an array of shape {given.shape}, expected one axis")
    if (wrong := np.flatnonzero((given < 0) | (given >= count))).size:
        raise IndexError(
            f"indices[{wrong[0]}] is {given[wrong[0]]}, expected 0 to {count - 1}: the sampler is of {count} samples"
        )
    return given.astype(np.int64)


def checked_powers(priorities: ArrayLike, count: int, alpha: float) -> Floats:
    """Return as many priorities to the power of ``alpha``; above 0 where they are."""
    given = _checked_priorities(priorities, count)
    with np.errstate(over="ignore", under="ignore"):
        powers: Floats = np.maximum(given**alpha, LEAST_POWER)
    powers[given == 0] = 0.0
    if (wrong := np.flatnonzero(powers > MOST_POWER)).size:
        raise ValueError(
            f"priorities[{wrong[0]}] is {given[wrong[0]]}, which to the power of alpha={alpha:g} is more than 2**900; "
            "divide all of them by the largest"
        )
    return powers


def _checked_priorities(priorities: ArrayLike, count: int) -> Floats:
    given = np.atleast_1d(np.asarray(priorities))
    if given.dtype.kind not in "biuf":
        raise TypeError(f"priorities are an array of {given.dtype}, expected numbers")
    if given.shape != (count,):
        raise ValueError(f"priorities are an array of shape {given.shape}, expected ({count},): one for each index")
    found = given.astype(np.float64)
    if (wrong := np.flatnonzero(~(np.isfinite(found) & (found >= 0)))).size:
        remedy = "; give the absolute value of an error" if found[wrong[0]] < 0 else ""
        raise ValueError(f"priorities[{wrong[0]}] is {found[wrong[0]]}, expected a finite number of 0 or more{remedy}")
    return found


SHAPES = {"powers": 1, "draws": 1, "alpha": 0, "beta": 0, "most": 0, "updates": 0, "epoch": 0, "first": 0}


def checked_state(state: Any, count: int, alpha: float) -> dict[str, NDArray[Any]]:
    """Return the arrays of a sampler's state; StateError where it is of another sampler."""
    expected = "expected what PrioritizedSampler.state_dict() returned"
    if not isinstance(state, Mapping):
        raise StateError(f"the sampler's state is a {type(state).__name__}, {expected}")
    found = {name: np.array(state[name]) for name in SHAPES if name in state}
    for name, ndim in SHAPES.items():
        if name not in found or found[name].ndim != ndim or found[name].dtype.kind not in "if":
            _refuse(f"has no {name!r}", f"{expected}")
    if found["powers"].size != count:
        size = found["powers"].size
        _refuse(f"is of {size} samples, and this sampler of {count}", f"make it with n={size}")
    if found["alpha"] != alpha:
        _refuse(f"was taken with alpha={found['alpha']}, and this sampler has alpha={alpha}", "give it that alpha")
    if not (np.isfinite(found["powers"]) & (found["powers"] >= 0)).all():
        _refuse("has powers that are negative or not finite", "it was changed since")
    _check_rest(found, count)
    return found


def _check_rest(found: Mapping[str, NDArray[Any]], count: int) -> None:
    """Raise StateError for what would be drawn or counted wrongly, later."""
    draws = found["draws"]
    for name in ("updates", "epoch", "first"):
        if found[name].dtype.kind != "i" or found[name] < 0:
            _refuse(f"has {found[name]!s} for {name!r}, expected an int of 0 or more", "it was changed since")
    if draws.size and (draws.dtype.kind != "i" or draws.min() < 0 or (index_of(draws) >= count).any()):
        _refuse(f"has draws that are of no sample from 0 to {count - 1}", "it was changed since")
    for name, most in (("powers", found["powers"].max()), ("most", found["most"])):
        if not 0 <= most <= MOST_POWER:
            _refuse(f"has {most:g} in {name!r}, expected at most 2**900", "it was changed since")


def _refuse(what: str, remedy: str) -> NoReturn:
    raise StateError(f"the sampler's state {what}; {remedy}")

"""Whether the global random numbers were drawn from, seen in nanoseconds where seeding them takes twelve microseconds.

    random, numpy.random, torch    the words of each state that a draw changes, read where they lie in memory
    where they are not found       a twin of the same seed: as long as the two draw the same, nothing else has drawn;
                                   of torch, a copy of the state

Each is looked at only where it is imported. `settle` seeds, and a look at a twin draws, so it is for worker processes
alone: a sample that draws is read again, seeded. Imports no torch.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from ringfeed.torch import _watched
from ringfeed.torch._watched import StateWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BITS = 64  # that must be the same: other draws give them once in 2**64
SEED = 2_718_281_828  # of a twin
WORDS, WORD = 624, 4  # of a Mersenne Twister, and the bytes of one
MODULES = ("numpy.random", "torch")

Place = tuple[int, int]  # an address, and how many bytes


class _Now:
    """What is looked at."""

    watch: StateWatch | None = None
    twins: tuple[Callable[[], bool], ...] = ()
    """Each says whether something was drawn from a generator whose state is not found."""
    places: dict[int, tuple[Any, list[Place] | None]] = {}  # noqa: RUF012 - by its id, a generator and its places


def absent() -> tuple[str, ...]:
    """Return the modules with generators of their own that are not imported."""
    return tuple(name for name in MODULES if name not in sys.modules)


def settle() -> None:
    """Begin to look; seeds ``random`` and ``numpy.random``, which also drops what they keep of an earlier draw."""
    watch, twins = StateWatch(absent()), []
    for generator, find, twin in _generators():
        places = _found(generator, find)
        for place in places or ():
            watch.add(generator, *place)
        if places is None:
            twins.append(twin())
    watch.changed()
    watch.settled = True
    _Now.watch, _Now.twins = watch, tuple(twins)


def forget() -> None:
    """Have the next look see a draw, unless `settle` comes first."""
    if _Now.watch is not None:
        _Now.watch.settled = False


def is_settled() -> bool:
    """Whether a look tells what was drawn since the one before."""
    return _Now.watch is not None and _Now.watch.settled


def renew() -> None:
    """Take what the generators have been seeded with for what they begin with."""
    if _Now.watch is not None:
        _Now.watch.changed()


def has_drawn() -> bool:
    """Whether anything was drawn since the last look; then `settle` begins anew."""
    watch = _Now.watch
    if watch is None or not watch.settled or watch.changed():
        return True
    return any(twin() for twin in _Now.twins)


def quick_watch() -> StateWatch | None:
    """Return what sees all draws by itself; None where twins are looked at."""
    return None if _Now.twins else _Now.watch


# ---- the generators that are imported ----


def _generators() -> Iterable[tuple[Any, Callable[[Any], list[Place] | None], Callable[[], Callable[[], bool]]]]:
    """Seed each, but for torch's; yield it, what finds its state, and what makes a twin."""
    random.seed(SEED)
    yield random._inst, _of_python, _pythons_twin  # noqa: SLF001 - whose state is global
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        generator = numpy.get_bit_generator()
        if type(generator) is numpy.MT19937:
            numpy.seed(SEED)
        yield generator, _of_numpy, _numpys_twin
    torch = sys.modules.get("torch")
    if torch is not None:
        yield getattr(torch, "default_generator", None), _of_torch, _torchs_twin


def _found(generator: Any, find: Callable[[Any], list[Place] | None]) -> list[Place] | None:
    """Return the places of a generator's state, which are looked for once."""
    if id(generator) not in _Now.places:
        _Now.places[id(generator)] = generator, find(generator)
    return _Now.places[id(generator)][1]


def _sees(generator: Any, places: list[Place], *draws: Callable[[], object]) -> list[Place] | None:
    """Return the places, if each of the draws changes them and nothing else does."""
    watch = StateWatch()
    for place in places:
        watch.add(generator, *place)
    return places if all(not watch.changed() and (draw(), watch.changed())[1] for draw in draws) else None


def _of_python(generator: Any) -> list[Place] | None:
    """Behind the head of the object: how many words are drawn, then the words."""
    place = id(generator) + object.__basicsize__
    if type(generator) is not random.Random or _watched.word_at(place) != WORDS:
        return None
    found = _sees(generator, [(place, 2 * WORD)], random.random, lambda: random.getrandbits(BITS))
    random.seed(SEED)
    return found


def _of_numpy(generator: Any) -> list[Place] | None:
    """Return the words, then how many are drawn."""
    numpy = sys.modules["numpy.random"]
    if type(generator) is not numpy.MT19937:
        return None
    place, state = _watched.state_of(generator), numpy.get_state()
    if [_watched.word_at(place), _watched.word_at(place + WORDS * WORD)] != [state[1][0], state[2]]:
        return None
    found = _sees(generator, [(place + (WORDS - 2) * WORD, 3 * WORD)], numpy.random_sample, lambda: numpy.bytes(WORD))
    numpy.seed(SEED)
    return found


_TORCHS_SEED = 0x5EED_0F_A_7_1FEED5  # which no other word of the generator is
_TORCHS_HEAD, _TORCHS_WORDS = 256, 20  # bytes ahead of which the seed lies; from there to the words


def _of_torch(generator: Any) -> list[Place] | None:
    """The seed, how many words are left, whether it is seeded, which is next; the words; then normal deviates."""
    address = getattr(generator, "_cdata", None)
    if not address:
        return None
    torch, before = sys.modules["torch"], generator.get_state()
    generator.manual_seed(_TORCHS_SEED)
    offset = _watched.find(address, _TORCHS_HEAD, _TORCHS_SEED)
    found = None
    if offset is not None:
        place = address + offset
        seen = [_watched.word_at(place + at) for at in (8, 16, _TORCHS_WORDS)]
        if seen == [1, 0, _TORCHS_SEED % 2**32]:
            places = [(place, _TORCHS_WORDS + WORD), (place + _TORCHS_WORDS + (WORDS - 1) * WORD, 32)]
            draws = [lambda: torch.rand(1), lambda: torch.randn(1), lambda: torch.randn(1), lambda: torch.randperm(2)]
            found = _sees(generator, places, *draws)
    generator.set_state(before)
    return found


# ---- twins of those whose state is not found ----


def _pythons_twin() -> Callable[[], bool]:
    twin = random.Random(SEED)  # noqa: S311 - a twin
    return lambda: random.getrandbits(BITS) != twin.getrandbits(BITS)


def _numpys_twin() -> Callable[[], bool]:
    """Of a generator of another kind, which always seems to draw, too."""
    numpy = sys.modules["numpy.random"]
    if type(numpy.get_bit_generator()) is not numpy.MT19937:
        return lambda: True
    twin = numpy.RandomState(SEED)
    return lambda: bool(numpy.random_sample() != twin.random_sample())


def _torchs_twin() -> Callable[[], bool]:
    before = [_torchs_state()]

    def has_drawn() -> bool:
        before.append(_torchs_state())
        return before.pop(0) != before[0]

    return has_drawn


def _torchs_state() -> bytes | None:
    torch = sys.modules["torch"]
    if not hasattr(torch, "default_generator"):  # it may be in the midst of its import
        return None
    state: bytes = torch.default_generator.get_state().numpy().tobytes()
    return state

"""Whether the global random numbers were drawn from, seen in a microsecond or two where seeding them takes twelve.

    random          the index into its Mersenne Twister's words, and the first of these, which each round renews
    numpy.random    the same of its own
    torch           the same in the head of its default generator's state

Each is looked at only where it is imported. A Python or a NumPy that keeps its index elsewhere than those this was
written for is noticed with a generator of our own, and then every look differs from the one before. Imports no torch.
"""

from __future__ import annotations

import ctypes
import random
import sys
from functools import cache
from itertools import count
from typing import Any

WORDS = 624  # of a Mersenne Twister; so large is the index of one that was just seeded
HEAD = 40  # bytes of torch's state: its seed, the index and the first words
_looks = count()


def look() -> tuple[Any, ...]:
    """Return what differs from the look before, where numbers were drawn since."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random.mtrand")
    return (
        _mark_of(random._inst) if _is_known() else next(_looks),  # noqa: SLF001 - no public one
        None if numpy is None else _mark_of_numpys(numpy._rand._bit_generator),  # noqa: SLF001 - likewise
        None if torch is None else torch.default_generator.get_state().numpy()[:HEAD].tobytes(),
    )


def _mark_of(generator: random.Random) -> int:
    return ctypes.c_uint64.from_address(id(generator) + object.__basicsize__).value


def _mark_of_numpys(bits: Any) -> tuple[int, int]:
    state = _address_of(bits) if _is_numpy_known() else 0
    if not state:
        return next(_looks), 0
    return ctypes.c_int.from_address(state + 4 * WORDS).value, ctypes.c_uint64.from_address(state).value


@cache
def _address_of(bits: Any) -> int:
    return int(bits.ctypes.state_address) if type(bits).__name__ == "MT19937" else 0


@cache
def _is_known() -> bool:
    own = random.Random(1)  # noqa: S311 - of no use but this
    before, state = _mark_of(own), own.getstate()[1]
    own.random()
    after = own.getstate()[1]
    known = [state[-1] + (state[0] << 32), after[-1] + (after[0] << 32)]
    return sys.byteorder == "little" and [before, _mark_of(own)] == known


@cache
def _is_numpy_known() -> bool:
    from numpy.random import MT19937, RandomState  # noqa: PLC0415 - NumPy is here

    own = RandomState(MT19937(1))
    bits = own._bit_generator  # noqa: SLF001 - as above
    own.seed(1)
    place = bits.ctypes.state_address + 4 * WORDS
    before = ctypes.c_int.from_address(place).value
    own.randint(2**31, dtype="uint32")
    return (before, ctypes.c_int.from_address(place).value) == (WORDS, 1)

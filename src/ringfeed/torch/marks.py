"""Whether the global random numbers were drawn from, seen in a microsecond where seeding them takes twelve.

    random, numpy.random    each has a twin of the same seed: as long as the two draw the same, nothing else has drawn
    torch                   the state of its default generator, whose copy costs less than a draw

Each is looked at only where it is imported. To look draws from a generator and from its twin, so it is for worker
processes alone: a sample that draws is read again, seeded. Imports no torch.
"""

from __future__ import annotations

import random
import sys
from typing import Any

BITS = 64  # that must be the same: other draws give them once in 2**64
SEED = 2_718_281_828  # of a twin


class _Twins:
    """The twins, which are as the generators were at the last look."""

    python: random.Random | None = None
    numpy: Any = None
    torch: bytes | None = None


def settle() -> None:
    """Begin to look; seeds ``random`` and ``numpy.random``, which also drops what they keep of an earlier draw."""
    _Twins.python = random.Random(SEED)  # noqa: S311 - a twin
    random.seed(SEED)
    _Twins.numpy = _numpys_twin()
    _Twins.torch = _torchs_state()


def forget() -> None:
    """Have the next look see a draw, unless `settle` comes first."""
    _Twins.python = None


def is_settled() -> bool:
    """Whether a look tells what was drawn since the one before."""
    return _Twins.python is not None


def has_drawn() -> bool:
    """Whether anything was drawn since the last look; then `settle` begins anew."""
    twin = _Twins.python
    if twin is None or random.getrandbits(BITS) != twin.getrandbits(BITS) or _numpy_has_drawn():
        return True
    if "torch" not in sys.modules:
        return False
    before, _Twins.torch = _Twins.torch, _torchs_state()
    return before != _Twins.torch


def _numpy_has_drawn() -> bool:
    found = sys.modules.get("numpy.random")
    if found is None:
        return False
    twin = _Twins.numpy
    return twin is None or found.random_sample() != twin.random_sample()


def _numpys_twin() -> Any:
    """Return a RandomState like the global one; None where that is of another kind, and always seems to draw."""
    found = sys.modules.get("numpy.random")
    if found is None or type(found.get_bit_generator()) is not found.MT19937:
        return None
    found.seed(SEED)
    return found.RandomState(SEED)


def _torchs_state() -> bytes | None:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "default_generator"):  # it may be in the midst of its import
        return None
    state: bytes = torch.default_generator.get_state().numpy().tobytes()
    return state

"""From whole numbers to floating point: what a `Cast` means, wherever it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ringfeed.errors import SpecError

STEPS = ("scale", "offset", "mean", "std")


@dataclass(frozen=True)
class Cast:
    """What becomes of uint8 on its way to the model: ``((x * scale + offset) - mean) / std``, in ``dtype``.

    What is None is left out, and no step is merged with another. ``mean`` and ``std``: one number, or one for each
    channel, which is the last axis of the sample. ``layout="CHW"``: a sample of shape (height, width, channels)
    comes out as (channels, height, width).

    SpecError for numbers that float32 does not hold, and for a ``std`` of 0.
    """

    dtype: str = "float32"
    scale: float | None = None
    offset: float | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    layout: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers, which become floats, and sequences of them, which become tuples."""
        for name in STEPS:
            if (given := getattr(self, name)) is not None:
                take = _one if name in STEPS[:2] else _one_or_each
                object.__setattr__(self, name, take(name, given))
        if self.std is not None and not np.all(np.asarray(self.std, np.float32)):
            raise SpecError(f"std={self.std!r}, expected no 0; give 1 for a channel that is always the same")
        if isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) != len(self.std):
            raise SpecError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}, expected as many; give one for each "
                f"channel, or one number for all"
            )

    @property
    def channels(self) -> int | None:
        """How many channels the sample must have; None: any number."""
        return next((len(numbers) for numbers in (self.mean, self.std) if isinstance(numbers, tuple)), None)


USER_DTYPE = 2  # what dtype.isbuiltin is for dtypes that others registered, such as bfloat16
_WIDER = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}  # by kinds


def may_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether cast=True converts a dtype into another: whole numbers into all, fractions not into whole numbers."""
    kind = "f" if wanted.isbuiltin == USER_DTYPE else wanted.kind
    return kind in _WIDER.get(given.kind, "")


def _one(name: str, given: Any) -> float:
    """Return the number of a step, or refuse it."""
    in_range = True
    if isinstance(given, Real) and not isinstance(given, bool):
        try:
            with np.errstate(over="ignore"):
                if np.isfinite(np.float32(number := float(given))):
                    return number
        except OverflowError:
            in_range = False
    expected = "a number that float32 holds" + ("" if name in STEPS[:2] else ", or one for each channel")
    example = {"scale": "1/255", "offset": "-1.0"}.get(name, "(0.485, 0.456, 0.406)")
    got = f"={given!r}" if in_range else " is out of range"
    raise SpecError(f"{name}{got}, expected {expected}; write it as in {name}={example}")


def _one_or_each(name: str, given: Any) -> float | tuple[float, ...]:
    """Return the number of a step, or those of the channels."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, (list, tuple)):
        return _one(name, given)
    return tuple(_one(name, number) for number in given) or _one(name, given)

"""Conversions: what a `Cast` makes of uint8, and which dtypes cast=True takes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.errors import SpecError
from ringfeed.spec.array import FLOAT32, TEXT, USER_DTYPE, AnyDtype, Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ringfeed.spec.spec import Spec

STEPS = ("scale", "offset", "mean", "std")
CHW_AXES = 3


@dataclass(frozen=True)
class Cast:
    """Converts uint8 to floats: ``((x * scale + offset) - mean) / std``, in ``dtype``.

    Steps that are None are left out. ``mean`` and ``std``: one number, or one for each channel,
    which is the last axis of the sample. ``layout="CHW"``: a sample of shape (height, width,
    channels) becomes (channels, height, width).

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
            raise SpecError(
                f"std={self.std!r}, expected no 0; give 1 for a channel that is always the same"
            )
        if (
            isinstance(self.mean, tuple)
            and isinstance(self.std, tuple)
            and len(self.mean) != len(self.std)
        ):
            raise SpecError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}, expected as many; "
                "give one for each channel, or one number for all"
            )

    def said(self) -> str:
        """Return the arguments that make it of an Array, as they are written there."""
        steps = ((name, getattr(self, name)) for name in (*STEPS, "layout"))
        return "".join(f", {name}={value!r}" for name, value in steps if value is not None)

    def numbers(self) -> NDArray[np.float32]:
        """Return the steps as C takes them: scale, offset, means, stds.

        A step that is left out has what leaves every float32 as it is, the sign of a zero included.
        """
        none = {"scale": 1.0, "offset": -0.0, "mean": 0.0, "std": 1.0}
        given = {
            name: none[name] if getattr(self, name) is None else getattr(self, name)
            for name in STEPS
        }
        each = [np.full(self.channels or 1, given[name], np.float32) for name in STEPS[2:]]
        return np.concatenate([np.array([given["scale"], given["offset"]], np.float32), *each])

    @property
    def channels(self) -> int | None:
        """How many channels the sample must have; None: any number."""
        return next(
            (len(numbers) for numbers in (self.mean, self.std) if isinstance(numbers, tuple)), None
        )


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
    expected = "a number that float32 holds" + (
        "" if name in STEPS[:2] else ", or one for each channel"
    )
    example = {"scale": "1/255", "offset": "-1.0"}.get(name, "(0.485, 0.456, 0.406)")
    got = f"={given!r}" if in_range else " is out of range"
    raise SpecError(f"{name}{got}, expected {expected}; write it as in {name}={example}")


def _one_or_each(name: str, given: Any) -> float | tuple[float, ...]:
    """Return the number of a step, or those of the channels."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, (list, tuple)):
        return _one(name, given)
    return tuple(_one(name, number) for number in given) or _one(name, given)


def cast_of(array: Array, steps: dict[str, Any]) -> Cast | None:
    """Return the `Cast` of an Array, None without steps; or refuse steps without a place."""
    if not isinstance(array.casts, bool):
        expected, remedy = "True or False", "write it as in cast=True"
        raise error_of("Array", f"has cast={array.casts!r}", expected, remedy)
    if array.casts:
        _check_casts(array, bool(steps))
    return _checked(Cast(**steps), array) if steps else None


def _check_casts(array: Array, converts: bool) -> None:  # noqa: FBT001
    """Refuse cast=True where there is no conversion for it."""
    if converts:
        raise error_of(
            "Array",
            "has cast=True beside scale=, offset=, mean=, std= or layout=",
            "one of them",
            "leave cast= out: uint8 is converted already",
        )
    if not may_cast(np.dtype("bool"), array.dtype):
        remedy = "leave cast= out"
        if array.dtype.kind in TEXT:
            remedy += ": shorter strings are taken anyway"
        raise error_of(
            "Array", f"has cast=True and dtype {array.dtype}", "a dtype of numbers", remedy
        )


def _checked(cast: Cast, array: Array) -> Cast:
    """Refuse steps that an Array has no place for."""
    shape, varies, is_turned = array.shape, f"variable={array.variable}", cast.layout is not None
    axis = 0 if is_turned else len(shape) - 1
    channels = shape[axis] if shape else 1
    got = expected = remedy = ""
    if array.dtype != FLOAT32:
        got, expected = f"has dtype {array.dtype}", "float32, the one that uint8 is converted to"
        remedy = "make it 'float32', or leave scale=, offset=, mean=, std= and layout= out"
    elif cast.layout not in (None, "CHW"):
        got, expected = f"has layout={cast.layout!r}", "'CHW' or None"
        remedy = "leave layout= out for what stays as it is"
    elif is_turned and len(shape) != CHW_AXES:
        got, expected = f"has layout='CHW' and shape {shape}", "the axes (channels, height, width)"
        remedy = "leave layout= out, or reshape it"
    elif is_turned and array.variable:
        got, expected = f"has layout='CHW' and {varies}", "the same shape for all batches"
        remedy = "give the one or the other, and turn the batch round in __getitem__"
    elif cast.channels is not None and axis in array.variable:
        got = f"has {varies}"
        expected = "the same channels in all batches, as mean= and std= have a number for each"
        remedy = "leave that axis out of variable="
    elif cast.channels not in {None, channels}:
        got = f"has {cast.channels} numbers in mean= or std="
        expected = f"{channels}, one a channel of {shape}"
        remedy = "give one for each, or one number for all"
    if got:
        raise error_of("Array", got, expected, remedy)
    return cast


# ---- between dtypes ----


_WIDER = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}  # by kinds


def may_cast(given: AnyDtype, wanted: AnyDtype) -> bool:
    """Whether cast=True converts a dtype: whole numbers into all, fractions into fractions."""
    kind = "f" if wanted.isbuiltin == USER_DTYPE else wanted.kind
    return kind in _WIDER.get(given.kind, "")


def refuse_in_place(spec: Spec) -> None:
    """Refuse to convert what a dataset itself writes into the slot."""
    for leaf in spec.leaves:
        if leaf.cast is not None or leaf.casts:
            steps = "cast=" if leaf.casts else "scale=, offset=, mean=, std= and layout="
            raise SpecError(
                f"{leaf.path} is converted by its Array, but read_into writes into the slot "
                f"itself; write {leaf.dtype} there and leave {steps} out, or take read_into out of "
                "the dataset"
            )

"""What becomes an array of a leaf on its way there: arrays, Python's numbers, and the leaves of mappings.

    Mapping, dataclass      a dict of its items or fields
    bool, int, float        an element of a dtype that holds it
    np.ndarray, __array__   an array

`_values.pyx` and `_writer.pyx` do the usual ones in C, and leave all others, and every refusal, to
these. What else is given, such as lists and text, is for `_coerced` and `coerced_arrays`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ringfeed._checks import error_of
from ringfeed.spec.array import (
    CONTAINERS,
    TEXT,
    USER_DTYPE,
    AnyArray,
    AnyDtype,
    Array,
    Leaf,
    fields_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable


SKIPS_NONE = "on_error='skip' leaves out samples that are None"
FEW = 8  # numbers in a list that are likely meant as a leaf each
MAX_SHOWN_BITS = 128  # of an int in an error: Python refuses to print ints of thousands of digits


def plain(value: Any) -> Any:
    """Return a dict of the items of a Mapping or the fields of a dataclass; any other value as it is."""
    if isinstance(value, Mapping):
        return value if isinstance(value, dict) else dict(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type | Array) or has_array(value):
        return value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def is_many_numbers(value: Any) -> bool:
    """Whether a value is a list of many numbers, each of which is a leaf."""
    is_list = isinstance(value, list | tuple) and fields_of(value) is None
    return is_list and len(value) > FEW and all(map(is_number, value))


# ---- numbers and arrays ----

_KINDS = {  # of Python numbers: the dtype inferred for one, and where it may go
    bool: (np.dtype("bool"), "bool only"),
    int: (np.dtype("int64"), "an integer or float dtype that holds it exactly"),
    float: (np.dtype("float32"), "float32 or float64, if it is in range"),
    complex: (np.dtype("complex64"), "complex64 or complex128, if it is in range"),
}


def is_number(value: object) -> TypeGuard[complex]:
    """Whether it is one of Python's own numbers."""
    # NumPy scalars such as np.float64 are floats too, but have a dtype of their own and keep it.
    return isinstance(value, (int, float, complex)) and not isinstance(value, np.generic)


def _may_go(value: complex, dtype: AnyDtype) -> bool:
    if isinstance(value, bool):
        return dtype.kind == "b"
    if isinstance(value, complex):
        return dtype.kind == "c" and dtype.itemsize in {8, 16}
    if isinstance(value, float):
        return dtype.kind == "f" and dtype.itemsize in {4, 8}
    return dtype.kind in "iuf" or dtype.isbuiltin == USER_DTYPE


def from_number(value: complex, dtype: AnyDtype | None, where: str) -> AnyArray:
    """Return a number as an array of the dtype (None: the one inferred); only a float may be rounded."""
    kind = next(kind for kind in _KINDS if isinstance(value, kind))
    inferred, goes_into = _KINDS[kind]
    dtype = inferred if dtype is None else dtype
    if _may_go(value, dtype):
        # Out of range means one of these errors or another value, as each dtype likes.
        with suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
            found = np.array(value, dtype)
            if _is_kept(value, found, kind):
                return found
    bits = value.bit_length() if isinstance(value, int) else 0
    got = (
        f"is an int of {bits} bits"
        if bits > MAX_SHOWN_BITS
        else f"is the {kind.__name__} {value!r}"
    )
    remedy = "convert it in __getitem__, or give another dtype in spec="
    rule = f"a Python {kind.__name__} goes into {goes_into}"
    raise error_of(where, got, f"a value for dtype {dtype}", f"{rule}: {remedy}")


def _is_kept(value: Any, found: AnyArray, kind: type) -> bool:
    """Whether an array holds a number as well as its dtype can: rounded at most, and finite where it was."""
    if kind in (float, complex):
        return all(
            np.isinf(now) <= np.isinf(was)
            for now, was in [(found.real, value.real), (found.imag, value.imag)]
        )
    return bool(int(found) == value)


def has_array(value: object) -> bool:
    """Whether a value says that it is an array."""
    # Asked of the type, because a PIL image converts its picture when it is asked itself.
    return any(
        hasattr(type(value), name)
        for name in ("__array__", "__array_interface__", "__array_struct__")
    )


def from_array(value: object, where: str) -> AnyArray | None:
    """Return an array or array-like as a plain ndarray, sharing memory if it can; None for other types."""
    if (
        isinstance(value, np.ndarray)
        and type(value) is not np.ndarray
        and isinstance(value, np.ma.MaskedArray)
    ):
        raise error_of(
            where, "is a masked array", "a plain array", "return value.filled(...) in its place"
        )
    if isinstance(value, CONTAINERS) or not has_array(value):
        return None
    try:
        return np.asarray(value)
    except Exception as error:
        got = (
            f"is {shown(value)}, whose conversion raised {type(error).__name__}: "
            f"{str(error).rstrip('.')}"
        )
        raise error_of(
            where, got, "an array", way_out(value) or "return a NumPy array from __getitem__"
        ) from error


def as_given(value: Any, leaf: Leaf, where: str) -> AnyArray:
    """Return a value for a leaf as an array, whose dtype and shape are still to be judged; or refuse it."""
    takes_others = leaf.casts or leaf.dtype.kind in TEXT
    if not takes_others and (type(value) is np.ndarray or isinstance(value, np.generic)):
        return np.asarray(value)
    return _judge()(value, leaf, where)


@cache  # an import is slow where it is done for each value
def _judge() -> Callable[[Any, Leaf, str], AnyArray]:
    from ringfeed.spec.coerced_arrays import judged  # noqa: PLC0415 - only where it is needed

    return judged


def way_out(value: Any) -> str | None:
    """Say what to return in the place of a value; None where nothing is known of its kind."""
    from ringfeed.spec.refusals import way_out as found  # noqa: PLC0415 - only where it is needed

    return found(value)

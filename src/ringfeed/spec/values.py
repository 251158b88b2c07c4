"""What a value is, as an array: a Python number, a NumPy array, or any other array.

    bool, int, float        an element of a dtype that holds it
    np.ndarray, __array__   an array

`_writer.pyx` does the usual ones in C, and leaves all others, and every refusal, to these. Lists,
text and other dtypes are for `fitting`, where the spec says what they become.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any, NoReturn, TypeGuard

import numpy as np

from ringfeed._callers import callers_depth
from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.spec.array import (
    CONTAINERS,
    USER_DTYPE,
    AnyArray,
    AnyDtype,
    Array,
    check_array,
    has_array,
    shown,
)

SKIPS_NONE = "on_error='skip' leaves out samples that are None"
FEW = 8  # numbers in a list that are likely meant as a leaf each
MAX_SHOWN_BITS = 128  # of an int in an error: Python refuses to print ints of thousands of digits
_KINDS = {  # of Python numbers: the dtype inferred for one, and where it may go
    bool: ("bool", "bool only"),
    int: ("int64", "an integer or float dtype that holds it exactly"),
    float: ("float32", "float32 or float64, if it is in range"),
    complex: ("complex64", "complex64 or complex128, if it is in range"),
}


def is_number(value: object) -> TypeGuard[complex]:
    """Whether it is one of Python's own numbers."""
    # NumPy scalars such as np.float64 are floats too, but have a dtype of their own and keep it.
    return isinstance(value, (int, float, complex)) and not isinstance(value, np.generic)


def may_go(kind: type, dtype: AnyDtype) -> bool:
    """Whether a dtype takes Python's numbers of this kind."""
    if kind is bool:
        return dtype.kind == "b"
    if kind is int:
        return dtype.kind in "iuf" or dtype.isbuiltin == USER_DTYPE
    return dtype.name in {"complex64", "complex128"} if kind is complex else dtype.name in _FLOATS


_FLOATS = {"float32", "float64"}


def from_number(value: complex, dtype: AnyDtype | None, where: str) -> AnyArray:
    """Return a number as an array of the dtype, or of the inferred; only a float is rounded."""
    kind = next(kind for kind in _KINDS if isinstance(value, kind))
    inferred, goes_into = _KINDS[kind]
    dtype = np.dtype(inferred) if dtype is None else dtype
    if may_go(kind, dtype):
        # Out of range means one of these errors or another value, as each dtype likes.
        with suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
            found = np.array(value, dtype)
            if _is_kept(value, found, kind):
                return found
    bits = value.bit_length() if isinstance(value, int) else 0
    is_long = bits > MAX_SHOWN_BITS
    got = f"is an int of {bits} bits" if is_long else f"is the {kind.__name__} {value!r}"
    remedy = "convert it in __getitem__, or give another dtype in spec="
    rule = f"a Python {kind.__name__} goes into {goes_into}"
    raise error_of(where, got, f"a value for dtype {dtype}", f"{rule}: {remedy}")


def _is_kept(value: Any, found: AnyArray, kind: type) -> bool:
    """Whether an array holds a number as well as its dtype can: at most rounded, not infinite."""
    if kind in (float, complex):
        pairs = [(found.real, value.real), (found.imag, value.imag)]
        return all(np.isinf(now) <= np.isinf(was) for now, was in pairs)
    return bool(int(found) == value)


def from_array(value: object, where: str) -> AnyArray | None:
    """Return an array or array-like as a plain ndarray, over the same memory; else None."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray) and "numpy.MaskedArray" in class_names(value):
        raise error_of(
            where, "is a masked array", "a plain array", "return value.filled(...) in its place"
        )
    if isinstance(value, CONTAINERS) or not has_array(value):
        return None
    try:
        return np.asarray(value)
    except Exception as error:
        raised = f"{type(error).__name__}: {str(error).rstrip('.')}"
        got = f"is {shown(value)}, whose conversion raised {raised}"
        remedy = way_out(value) or "return a NumPy array from __getitem__"
        raise error_of(where, got, "an array", remedy) from error


def way_out(value: Any) -> str | None:
    """Say what to return in the place of a value; None where nothing is known of its kind."""
    from ringfeed.spec.refusals import way_out as known_way_out  # noqa: PLC0415 - on demand

    return known_way_out(value)


# ---- the Array of a leaf, and the rows of a whole batch ----


def inferred(value: object, where: str) -> Array:
    """Return the Array of a leaf of sample 0, or refuse it."""
    if isinstance(value, (str, bytes, bytearray, memoryview)) and not isinstance(value, np.generic):
        from ringfeed.spec.form_arrays import proposed  # noqa: PLC0415 - only where it is needed

        return proposed(value)
    found = from_number(value, None, where) if is_number(value) else from_array(value, where)
    if found is None:
        expected = "an array or number, or a tuple, list or dict of them"
        remedy = "return one of these from __getitem__"
        if value is None:
            remedy += f"; {SKIPS_NONE}"
        raise error_of(where, f"is {shown(value)}", expected, way_out(value) or remedy)
    return inferred_array(found, found.shape, where)


def inferred_array(found: AnyArray, shape: tuple[int, ...], where: str) -> Array:
    """Return the Array of samples of this shape, or refuse what no slot can hold."""
    if found.dtype.hasobject:
        from ringfeed.spec.refusals import of_objects  # noqa: PLC0415 - only where it is needed

        expected, remedy = "one without Python objects", of_objects(found)
        raise error_of(where, f"has dtype {found.dtype}", expected, remedy)
    check_array(shape, found.dtype, where)
    return Array(shape, found.dtype)


OF_SAMPLES = (
    "return whole batches of arrays, or set batch_size= or batch_sampler= for a dataset of single "
    "samples"
)


def with_rows(value: object, where: str) -> AnyArray:
    """Return a leaf of a whole batch as an array, or refuse it."""
    found = None if is_number(value) else from_array(value, where)
    if found is None or not found.ndim:
        got = f"is {shown(value)}" if found is None else "has shape ()"
        raise error_of(where, got, "an array with a leading row axis", way_out(value) or OF_SAMPLES)
    return found


def refuse_rows(rows: int, expected: int, where: str) -> NoReturn:
    """Refuse a leaf that has not as many rows as those before it."""
    raise error_of(
        where,
        f"has {rows} rows",
        f"{expected} as in the leaves before it",
        "give all leaves of a batch the same number of rows",
    )


def warn_of_numbers(lists: list[tuple[Any, str]]) -> None:
    """Warn of the first list of many numbers, each of which is a leaf."""
    for value, where in lists:
        if len(value) > FEW and all(map(is_number, value)):
            dtype = np.asarray(value).dtype if set(map(type, value)) != {float} else "float32"
            warnings.warn(
                f"{where} is {shown(value)} numbers, each of which is a leaf and an array of its "
                "own in a batch; return numpy.asarray() of it for one leaf, or give spec= with "
                f"Array(({len(value)},), {str(dtype)!r}) in its place",
                UserWarning,
                stacklevel=callers_depth(),
            )
            return

"""What becomes an array of a leaf on its way there: mappings, lists of numbers, strings, and numbers of another dtype.

    Mapping, dataclass      a dict of its items or fields
    list of numbers         one array, where the spec has an Array in its place
    str, bytes              an element of an S or U dtype that has room for it
    another dtype           converted where the Array says cast=True, and every number arrives

`_values.pyx` and `_writer.pyx` do the usual ones in C, and leave all others, and every refusal, to these.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ringfeed._callers import callers_depth
from ringfeed.spec.array import (
    CONTAINERS,
    MAX_AXES,
    AnyArray,
    AnyDtype,
    Array,
    Leaf,
    error_of,
    expected_of,
    fields_of,
    for_dtype,
    shown,
)
from ringfeed.spec.conversion import USER_DTYPE, may_cast
from ringfeed.spec.refusals import way_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.spec.spec import Spec

FEW = 8  # numbers in a list that are likely meant as a leaf each
TEXT = "SU"
_CHARACTER = 4  # bytes of one in a U dtype
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


def warn_of_numbers(value: Any, where: str) -> None:
    """Warn of such a list."""
    dtype = np.asarray(value).dtype if set(map(type, value)) != {float} else "float32"
    message = (
        f"{where} is {shown(value)} numbers, each of which is a leaf and an array of its own in a batch; return "
        f"numpy.asarray() of it for one leaf, or give spec= with Array(({len(value)},), {str(dtype)!r}) in its place"
    )
    warnings.warn(message, UserWarning, stacklevel=callers_depth())


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
    got = f"is an int of {bits} bits" if bits > MAX_SHOWN_BITS else f"is the {kind.__name__} {value!r}"
    remedy = "convert it in __getitem__, or give another dtype in spec="
    rule = f"a Python {kind.__name__} goes into {goes_into}"
    raise error_of(where, got, f"a value for dtype {dtype}", f"{rule}: {remedy}")


def _is_kept(value: Any, found: AnyArray, kind: type) -> bool:
    """Whether an array holds a number as well as its dtype can: rounded at most, and finite where it was."""
    if kind in (float, complex):
        return all(np.isinf(now) <= np.isinf(was) for now, was in [(found.real, value.real), (found.imag, value.imag)])
    return bool(int(found) == value)


def has_array(value: object) -> bool:
    """Whether a value says that it is an array."""
    # Asked of the type, because a PIL image converts its picture when it is asked itself.
    return any(hasattr(type(value), name) for name in ("__array__", "__array_interface__", "__array_struct__"))


def from_array(value: object, where: str) -> AnyArray | None:
    """Return an array or array-like as a plain ndarray, sharing memory if it can; None for other types."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        raise error_of(where, "is a masked array", "a plain array", "return value.filled(...) in its place")
    if isinstance(value, CONTAINERS) or not has_array(value):
        return None
    try:
        return np.asarray(value)
    except Exception as error:
        got = f"is {shown(value)}, whose conversion raised {type(error).__name__}: {error}"
        raise error_of(where, got, "an array", way_out(value) or "return a NumPy array from __getitem__") from error


def as_array(value: object, leaf: Leaf, where: str) -> AnyArray:
    """Return a value for a leaf as an array, whose dtype and shape are still to be judged; or refuse it."""
    found = _alone(value, leaf, where)
    if found is None:
        found = from_array(value, where)
    if found is None:
        found = from_list(value, leaf, leaf.given_shape, where)
    if found is None:
        expected = f"an array of shape {leaf.given_shape} and dtype {leaf.given_dtype}"
        raise error_of(where, f"is {shown(value)}", expected, _instead(value))
    return found


def _alone(value: object, leaf: Leaf, where: str) -> AnyArray | None:
    """Return one of Python's numbers or strings as an array, where the leaf is of such; else None."""
    if leaf.shape or leaf.cast is not None:
        return None
    if is_number(value):
        return np.asarray(value) if leaf.casts else from_number(value, leaf.dtype, where)
    return from_text(value, leaf.dtype, where) if leaf.dtype.kind in TEXT and isinstance(value, str | bytes) else None


def _instead(value: object) -> str:
    """Say what to do about a value that is no array."""
    if value is None:
        return "make it one in __getitem__, or return None there for every index"
    return way_out(value) or "make it one in __getitem__"


# ---- lists ----


def from_list(value: Any, leaf: Leaf, shape: tuple[int, ...], where: str) -> AnyArray | None:
    """Return a list of numbers, strings or arrays, or of such lists, as one array; None for anything else.

    Python's own numbers go where each may go alone. ``shape``: what is expected.
    """
    if not isinstance(value, list | tuple) or not shape:
        return None
    held = _held(value, ())
    try:
        found = np.asarray(held)
    except Exception as error:
        got = f"is {shown(value)}, of which numpy.asarray() raised {type(error).__name__}: {error}"
        raise error_of(where, got, f"an array of shape {shape}", "return lists of one length, or an array") from error
    items, dtype = [*_items(held, where, found.ndim)], leaf.given_dtype
    if all(is_number(item) for _, item in items) and not leaf.casts:
        parts = [from_number(item, dtype, place) for place, item in items]
    elif dtype.kind in TEXT and all(isinstance(item, str | bytes) for _, item in items):
        parts = [from_text(item, dtype, place) for place, item in items]
    else:
        _check_mixed(items, found, leaf)
        return found
    return np.array(parts, dtype).reshape(found.shape)


def _held(value: Any, above: tuple[int, ...]) -> Any:
    """Return plain lists of what lists hold: NumPy would ask their own __iter__, which may have no end."""
    is_list = isinstance(value, list | tuple) and not has_array(value)
    if not is_list or id(value) in above or len(above) > MAX_AXES:
        return value
    items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
    return [_held(item, (*above, id(value))) for item in items]


def _check_mixed(items: list[tuple[str, Any]], found: AnyArray, leaf: Leaf) -> None:
    """Refuse items that only NumPy made fit, by converting them to the dtype of others or by dropping a mask."""
    judged = not leaf.casts and _takes(leaf, found.dtype)
    for place, item in items:
        array = None if is_number(item) else from_array(item, place)
        if judged and is_number(item):
            from_number(item, leaf.given_dtype, place)
        elif judged and array is not None and not _takes(leaf, array.dtype):
            expected = expected_of(leaf, str(leaf.dtype))
            raise error_of(place, f"has dtype {array.dtype}", expected, for_dtype(array, leaf))


def _takes(leaf: Leaf, dtype: AnyDtype) -> bool:
    return dtype == leaf.given_dtype or (dtype.kind in TEXT and leaf.dtype.kind in TEXT)


def _items(value: Any, where: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield what lies so deep in lists, and where."""
    if not depth or not isinstance(value, list | tuple) or has_array(value):
        yield where, value
        return
    for number, item in enumerate(value):
        yield from _items(item, f"{where}[{number}]", depth - 1)


# ---- strings ----


def from_text(value: str | bytes, dtype: AnyDtype, where: str) -> AnyArray:
    """Return one string as an array of an S or U dtype: a str is UTF-8 in the bytes of an S."""
    if isinstance(value, bytes) and dtype.kind == "U":
        remedy = f"return its .decode(), or give an S dtype in spec=, as in 'S{dtype.itemsize // _CHARACTER}'"
        raise error_of(where, "is of type bytes", f"a str for dtype {dtype}", remedy)
    if isinstance(value, str) and dtype.kind == "S":
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise error_of(
                where, f"is a str that has no UTF-8 ({error})", "text", "repair it in __getitem__"
            ) from error
    _check_text(value, dtype, where)
    return np.array(value, dtype)


def _check_text(value: str | bytes, dtype: AnyDtype, where: str) -> None:
    most, unit = (dtype.itemsize, "bytes") if dtype.kind == "S" else (dtype.itemsize // _CHARACTER, "characters")
    if len(value) > most:
        remedy = f"give a wider one in spec=, as in '{dtype.kind}{len(value)}', or cut it in __getitem__"
        raise error_of(where, f"has {len(value)} {unit}", f"at most {most}, as dtype {dtype} holds", remedy)
    if value and value[-1] in ("\0", 0):
        remedy = "return numpy.frombuffer(value, 'uint8') in place of bytes that are no text"
        raise error_of(where, "ends with a NUL", f"text, as dtype {dtype} pads it with NULs", remedy)


def _in_width(found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return strings in the width of a leaf."""
    if found.dtype == leaf.dtype:
        return found
    try:
        texts = found.tolist()
    except (ValueError, SystemError) as error:  # as the number is large or larger, say in the other byte order
        got = f"has dtype {found.dtype}, but holds numbers that are no characters"
        raise error_of(where, got, "text", "repair it in __getitem__") from error
    parts = [from_text(item, leaf.dtype, place) for place, item in _items(texts, where, found.ndim)]
    made: AnyArray = np.array(parts, leaf.dtype).reshape(found.shape)
    return made


# ---- dtypes ----


def in_dtype(found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return an array in the dtype of a leaf, where the leaf takes others, too; else as it is, to be judged."""
    if leaf.dtype.kind in TEXT and found.dtype.kind in TEXT:
        return _in_width(found, leaf, where)
    if not leaf.casts or found.dtype == leaf.dtype or not may_cast(found.dtype, leaf.dtype):
        return found
    with np.errstate(all="ignore"):
        made = found.astype(leaf.dtype)
    _check_range(found, made, where)
    return made


def _check_range(found: AnyArray, made: AnyArray, where: str) -> None:
    """Refuse numbers that the dtype has no room for: others in place of whole ones, infinities in place of finite."""
    if found.dtype.kind in "iu" and made.dtype.kind in "iu":
        with np.errstate(all="ignore"):
            bad = (made.astype(found.dtype) != found) | ((made < 0) != (found < 0))
    else:
        bad = ~np.isfinite(made) & np.isfinite(found)
    if bad.any():
        first = found[bad].flat[0]
        got, expected = f"holds {first}", f"what dtype {made.dtype} holds, into which cast=True converts {found.dtype}"
        raise error_of(where, got, expected, "give a wider dtype in spec=, or clip it in __getitem__")


def adopted(spec: Spec, given: Spec) -> Spec:
    """Return what the dataset gives for a spec, of whose casting leaves it gives these dtypes."""
    before = spec.before_cast()
    if len(before.leaves) != len(given.leaves):
        return before
    pairs = zip(before.leaves, spec.leaves, given.leaves, strict=True)
    arrays = [
        Array(one.shape, other.dtype if wanted.casts and may_cast(other.dtype, wanted.dtype) else one.dtype)
        for one, wanted, other in pairs
    ]
    return type(spec)(spec.unflatten(arrays))

"""What becomes an array of a leaf on its way there: lists of numbers, strings, and numbers of another dtype.

    list of numbers         one array, where the spec has an Array in its place
    str, bytes              an element of an S or U dtype that has room for it
    another dtype           converted where the Array says cast=True, and every number arrives

`_values.pyx` does the usual ones in C, and leaves all others, and every refusal, to these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.spec.array import MAX_AXES, TEXT, AnyArray, AnyDtype, Leaf, shown
from ringfeed.spec.number_casts import may_cast
from ringfeed.spec.refusals import expected_of, for_dtype, way_out
from ringfeed.spec.values import SKIPS_NONE, from_array, from_number, has_array, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHARACTER = 4  # bytes of one in a U dtype


def judged(value: object, leaf: Leaf, where: str) -> AnyArray:
    """Return a value for a leaf as an array, in the leaf's dtype where it takes others, too; or refuse it.

    The array's dtype and shape are still to be judged.
    """
    return in_dtype(as_array(value, leaf, where), leaf, where)


def as_array(value: object, leaf: Leaf, where: str) -> AnyArray:
    """Return a value for a leaf as an array, whose dtype and shape are still to be judged; or refuse it."""
    found = _alone(value, leaf, where)
    if found is None:
        found = from_array(value, where)
    if found is None:
        found = from_list(value, leaf, leaf.given_shape, where)
    if found is None:
        expected = f"an array of shape {leaf.given_shape} and dtype {leaf.given_dtype}"
        raise error_of(where, f"is {shown(value)}", expected, _instead(value, where))
    return found


def _alone(value: object, leaf: Leaf, where: str) -> AnyArray | None:
    """Return one of Python's numbers or strings as an array, where the leaf is of such; else None."""
    if leaf.shape or leaf.cast is not None:
        return None
    if is_number(value):
        return np.asarray(value) if leaf.casts else from_number(value, leaf.dtype, where)
    return (
        from_text(value, leaf.dtype, where)
        if leaf.dtype.kind in TEXT and isinstance(value, str | bytes)
        else None
    )


def _instead(value: object, where: str) -> str:
    """Say what to do about a value that is no array."""
    if value is None and where.endswith("sample"):
        return f"make it one in __getitem__; {SKIPS_NONE}"
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
        raise error_of(
            where, got, f"an array of shape {shape}", "return lists of one length, or an array"
        ) from error
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
        remedy = (
            "return its .decode(), or give an S dtype in spec=, as in "
            f"'S{dtype.itemsize // _CHARACTER}'"
        )
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
    most, unit = (
        (dtype.itemsize, "bytes")
        if dtype.kind == "S"
        else (dtype.itemsize // _CHARACTER, "characters")
    )
    if len(value) > most:
        remedy = (
            f"give a wider one in spec=, as in '{dtype.kind}{len(value)}', or cut it in __getitem__"
        )
        raise error_of(
            where, f"has {len(value)} {unit}", f"at most {most}, as dtype {dtype} holds", remedy
        )
    if value and value[-1] in ("\0", 0):
        remedy = "return numpy.frombuffer(value, 'uint8') in place of bytes that are no text"
        raise error_of(
            where, "ends with a NUL", f"text, as dtype {dtype} pads it with NULs", remedy
        )


def _in_width(found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return strings in the width of a leaf."""
    if found.dtype == leaf.dtype:
        return found
    try:
        texts = found.tolist()
    except (
        ValueError,
        SystemError,
    ) as error:  # as the number is large or larger, say in the other byte order
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
        got, expected = (
            f"holds {first}",
            f"what dtype {made.dtype} holds, into which cast=True converts {found.dtype}",
        )
        raise error_of(
            where, got, expected, "give a wider dtype in spec=, or clip it in __getitem__"
        )

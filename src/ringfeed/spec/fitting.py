"""A value as an array of its leaf, or the refusal: what C has not certainly recognised.

list of numbers         one array, where the spec has an Array in its place
str, bytes              an element of an S or U dtype that has room for it
another dtype           converted where the Array says cast=True, and every number arrives
a form                  an array no longer than the form has room for; bytes and text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringfeed._checks import error_of
from ringfeed.spec.array import MAX_AXES, TEXT, UINT8, AnyArray, AnyDtype, Leaf, has_array, shown
from ringfeed.spec.conversion import may_cast
from ringfeed.spec.refusals import other_dtype, other_shape, way_out
from ringfeed.spec.values import SKIPS_NONE, from_array, from_number, is_number, may_go, with_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.spec.forms import Form

_CHARACTER = 4  # bytes of one in a U dtype


def fitted(value: Any, leaf: Leaf, where: str) -> AnyArray:
    """Return a sample as an array of the leaf's dtype and of a shape that it takes, any strides."""
    if leaf.form is not None and leaf.form.unit == "bytes":
        return _bytes_of(leaf, leaf.form, value, where)
    found = _in_dtype(_as_array(value, leaf, where), leaf, where)
    return _checked(found, found.shape, leaf, where)


def fitted_batch(value: Any, leaf: Leaf, max_rows: int, where: str) -> AnyArray:
    """Return the same of a whole batch, whose rows come first."""
    found = from_list(value, leaf, (max_rows, *leaf.given_shape), where)
    if found is None:
        found = with_rows(value, where)
    _check_rows(len(found), max_rows, where)
    found = _in_dtype(found, leaf, where)
    return _checked(found, found.shape[1:], leaf, where)


def _check_rows(rows: int, max_rows: int, where: str) -> None:
    if rows > max_rows:
        raise error_of(
            where,
            f"has {rows} rows",
            f"at most {max_rows}",
            "return smaller batches, or raise max_batch_size",
        )


def _checked(found: AnyArray, shape: tuple[int, ...], leaf: Leaf, where: str) -> AnyArray:
    """Return an array if the leaf takes its dtype and ``shape``, that of one sample."""
    if found.dtype != leaf.given_dtype:
        raise other_dtype(found, leaf, where)
    most, may_be_less = leaf.given_shape, leaf.variable
    if leaf.form is not None:
        most, may_be_less = leaf.form.most, leaf.form.axes
    pairs = enumerate(zip(shape, most, strict=False))
    if len(shape) != len(most) or not all(
        own == room or (own < room and axis in may_be_less) for axis, (own, room) in pairs
    ):
        raise other_shape(shape, leaf, where, whole=found.ndim > len(shape))
    return found


def _as_array(value: Any, leaf: Leaf, where: str) -> AnyArray:
    """Return a sample as an array, whose dtype and shape are still to be judged; or refuse it."""
    dtype, shape = leaf.given_dtype, leaf.form.shape if leaf.form else leaf.given_shape
    found = None
    if not leaf.shape and leaf.cast is None:
        if is_number(value):
            return np.asarray(value) if leaf.casts else from_number(value, dtype, where)
        if dtype.kind in TEXT and isinstance(value, str | bytes):
            return _from_text(value, dtype, where)
    is_empty = isinstance(value, (list, tuple)) and not value
    if is_empty and shape and shape[0] is None:  # no box, say: NumPy's array of it has one axis
        return np.empty([axis or 0 for axis in shape], dtype)
    found = from_array(value, where)
    if found is None:
        found = from_list(value, leaf, shape, where)
    if found is None:
        remedy = way_out(value) or "make it one in __getitem__"
        if value is None:
            is_whole = where.endswith("sample")
            remedy += f"; {SKIPS_NONE}" if is_whole else ", or return None there for every index"
        raise error_of(
            where, f"is {shown(value)}", f"an array of shape {shape} and dtype {dtype}", remedy
        )
    return found


# ---- lists ----


def from_list(value: Any, leaf: Leaf, shape: tuple[int | None, ...], where: str) -> AnyArray | None:
    """Return a list of numbers, strings, arrays or such lists as one array; else None.

    Python's own numbers go where each may go alone. ``shape``: what is expected.
    """
    if not isinstance(value, list | tuple) or not shape:
        return None
    held = _held(value, ())
    try:
        found = np.asarray(held)
    except Exception as error:
        raise error_of(
            where,
            f"is {shown(value)}, of which numpy.asarray() raised {type(error).__name__}: {error}",
            f"an array of shape {shape}",
            "return lists of one length, or an array",
        ) from error
    made = None if leaf.casts else _all_alike(held, found, leaf.given_dtype)
    return _item_by_item(held, found, leaf, where) if made is None else made


def _all_alike(held: Any, found: AnyArray, dtype: AnyDtype) -> AnyArray | None:
    """Return a list of Python numbers of one kind at once; None of others, or if one is lost."""
    items = held
    for _ in range(found.ndim - 1):
        items = [item for inner in items for item in inner]
    kinds = {*map(type, items)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in (bool, int, float) or found.dtype != kind or not may_go(kind, dtype):
        return None
    made = _cast(found, dtype)
    return made if _lost(found, made, exact=kind is int) is None else None


def _item_by_item(held: Any, found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return a list of anything as an array, or refuse the item that does not fit."""
    items, dtype = [*_items(held, where, found.ndim)], leaf.given_dtype
    if all(is_number(item) for _, item in items) and not leaf.casts:
        parts = [from_number(item, dtype, place) for place, item in items]
    elif dtype.kind in TEXT and all(isinstance(item, str | bytes) for _, item in items):
        parts = [_from_text(item, dtype, place) for place, item in items]
    else:
        _check_mixed(items, found, leaf)
        return found
    made: AnyArray = np.array(parts, dtype).reshape(found.shape)
    return made


def _held(value: Any, above: tuple[int, ...]) -> Any:
    """Return plain lists: NumPy would ask a list's own __iter__, which may have no end."""
    if has_array(value) or id(value) in above or len(above) > MAX_AXES:
        return value
    items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
    inner = (*above, id(value))
    return [_held(item, inner) if isinstance(item, (list, tuple)) else item for item in items]


def _check_mixed(items: list[tuple[str, Any]], found: AnyArray, leaf: Leaf) -> None:
    """Refuse items that only NumPy made fit, by their neighbours' dtype or without their mask."""
    judged = not leaf.casts and _takes(leaf, found.dtype)
    for place, item in items:
        array = None if is_number(item) else from_array(item, place)
        if judged and is_number(item):
            from_number(item, leaf.given_dtype, place)
        elif judged and array is not None and not _takes(leaf, array.dtype):
            raise other_dtype(array, leaf, place)


def _takes(leaf: Leaf, dtype: AnyDtype) -> bool:
    return dtype == leaf.given_dtype or (dtype.kind in TEXT and leaf.dtype.kind in TEXT)


def _items(value: Any, where: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield what lies so deep in lists, and where."""
    if not depth or not isinstance(value, list | tuple) or has_array(value):
        yield where, value
        return
    for number, item in enumerate(value):
        yield from _items(item, f"{where}[{number}]", depth - 1)


# ---- other dtypes ----


def _in_dtype(found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return an array in the leaf's dtype, where the leaf takes others; else as it is."""
    if leaf.dtype.kind in TEXT and found.dtype.kind in TEXT:
        return _in_width(found, leaf, where)
    if not leaf.casts or found.dtype == leaf.dtype or not may_cast(found.dtype, leaf.dtype):
        return found
    made = _cast(found, leaf.dtype)
    lost = _lost(found, made, exact=found.dtype.kind in "iu" and made.dtype.kind in "iu")
    if lost is not None:
        raise error_of(
            where,
            f"holds {lost}",
            f"what dtype {made.dtype} holds, into which cast=True converts {found.dtype}",
            "give a wider dtype in spec=, or clip it in __getitem__",
        )
    return made


def _cast(found: AnyArray, dtype: AnyDtype) -> AnyArray:
    with np.errstate(all="ignore"):
        made: AnyArray = found.astype(dtype)
    return made


def _lost(found: AnyArray, made: AnyArray, *, exact: bool) -> Any:
    """Return the first number that another dtype has no room for, None where it holds all.

    It has another one in place of a whole number (``exact``), or infinity in place of a finite one.
    """
    if exact:
        fits = (_cast(made, found.dtype) == found) & ((made < 0) == (found < 0))
    elif not (fits := np.isfinite(made)).all():
        fits |= ~np.isfinite(found)
    return None if fits.all() else found[~fits].flat[0]


# ---- strings ----


def _from_text(value: str | bytes, dtype: AnyDtype, where: str) -> AnyArray:
    """Return one string as an array of an S or U dtype: a str is UTF-8 in the bytes of an S."""
    size = 1 if dtype.kind == "S" else _CHARACTER
    most, unit = dtype.itemsize // size, "bytes" if dtype.kind == "S" else "characters"
    if isinstance(value, bytes) and dtype.kind == "U":
        raise error_of(
            where,
            "is of type bytes",
            f"a str for dtype {dtype}",
            f"return its .decode(), or give an S dtype in spec=, as in 'S{most}'",
        )
    if isinstance(value, str) and dtype.kind == "S":
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise error_of(
                where, f"is a str that has no UTF-8 ({error})", "text", "repair it in __getitem__"
            ) from error
    if len(value) > most:
        wider = f"'{dtype.kind}{len(value)}'"
        raise error_of(
            where,
            f"has {len(value)} {unit}",
            f"at most {most}, as dtype {dtype} holds",
            f"give a wider one in spec=, as in {wider}, or cut it in __getitem__",
        )
    if value and value[-1] in ("\0", 0):
        raise error_of(
            where,
            "ends with a NUL",
            f"text, as dtype {dtype} pads it with NULs",
            "return numpy.frombuffer(value, 'uint8') in place of bytes that are no text",
        )
    return np.array(value, dtype)


def _in_width(found: AnyArray, leaf: Leaf, where: str) -> AnyArray:
    """Return strings in the width of a leaf."""
    if found.dtype == leaf.dtype:
        return found
    try:
        texts = found.tolist()
    except (ValueError, SystemError) as error:  # one or the other, as the number is large or larger
        raise error_of(
            where,
            f"has dtype {found.dtype}, but holds numbers that are no characters",
            "text",
            "repair it in __getitem__",
        ) from error
    items = _items(texts, where, found.ndim)
    parts = [_from_text(item, leaf.dtype, place) for place, item in items]
    made: AnyArray = np.array(parts, leaf.dtype).reshape(found.shape)
    return made


# ---- forms ----


def _bytes_of(leaf: Leaf, form: Form, value: Any, where: str) -> AnyArray:
    """Return the bytes of a sample of `Bytes` or `Text`."""
    found: AnyArray | None = None
    name, other = form.name.capitalize(), None
    if form.name == "text":
        expected = "a str"
        if isinstance(value, str):
            found = np.frombuffer(_encoded(value, where), UINT8)
        elif isinstance(value, (bytes, bytearray)):
            other = "Bytes"
    else:
        expected = "bytes, bytearray, memoryview or an array of uint8 with one axis"
        if isinstance(value, (bytes, bytearray)):
            found = np.frombuffer(value, UINT8)
        elif isinstance(value, memoryview):
            found = np.frombuffer(value if value.contiguous else bytes(value), UINT8)
        elif isinstance(value, str):
            other = "Text"
        elif (array := from_array(value, where)) is not None and array.ndim == 1:
            found = array if array.dtype == UINT8 else None
    if found is None:
        remedy = f"give ringfeed.{other} in spec=" if other else _ONE_OF_THESE
        raise error_of(where, f"is {shown(value)}", expected, remedy)
    if len(found) > leaf.shape[0]:
        enough = 1 << (len(found) - 1).bit_length()
        raise error_of(
            where,
            f"has {len(found)} bytes",
            f"at most max_size={leaf.shape[0]}",
            f"raise max_size in spec=, as in {name}({enough})",
        )
    return found


_ONE_OF_THESE = "return one of these from __getitem__"


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise error_of(
            where,
            f"has the surrogate {text[error.start]!a} at character {error.start}",
            "text that UTF-8 can hold",
            "decode the file with errors='replace', or give ringfeed.Bytes in spec=",
        ) from None


def fitted_samples(
    value: Any, leaf: Leaf, max_rows: int, where: str, where_batch: str
) -> list[AnyArray]:
    """Return the samples of a leaf with a form of a whole batch, each as an array that fits."""
    from ringfeed.spec.forms import Masked, Padded, Ragged, parted  # noqa: PLC0415 - on demand

    assert leaf.form is not None
    given: list[Any] | None = None
    if isinstance(value, (Padded, Masked)):
        given = parted(leaf.form, value) if leaf.form.is_padded else None
    elif isinstance(value, (list, tuple, Ragged)):
        given = _listed(value, where_batch)
    elif (array := from_array(value, where_batch)) is not None and array.ndim:
        given = [*array]
    if given is None:
        what = "ringfeed.Padded or Masked" if leaf.form.is_padded else "ringfeed.Ragged"
        expected = (
            "a list of samples, one a row, an array whose rows are samples of one shape, or a "
            f"{what}"
        )
        raise error_of(where_batch, f"is {shown(value)}", expected, _ONE_OF_THESE)
    _check_rows(len(given), max_rows, where_batch)
    found = [fitted(sample, leaf, where) for sample in given]
    need, total, unit = sum(map(len, found)), leaf.form.total, leaf.form.unit
    if total is not None and need > total:
        raise error_of(
            where_batch,
            f"needs {need} {unit}",
            f"at most total={total} a batch",
            "raise total= in spec=, or return fewer rows",
        )
    return found


def _listed(samples: Any, where: str) -> list[Any]:
    try:
        return [*samples]
    except UnicodeDecodeError as error:  # of a `Ragged` of text
        raise error_of(
            where,
            f"has bytes that are no UTF-8 ({error.reason} at byte {error.start} of a text)",
            "text",
            "decode it with errors='replace', or give ringfeed.Bytes in spec=",
        ) from None


def refuse_total(leaf: Leaf, need: int, where: str) -> NoReturn:
    """Refuse a sample that does not fit into what is left of its batch."""
    assert leaf.form is not None
    raise error_of(
        where,
        f"has {need} {leaf.form.unit}, which do not fit into what is left of the batch",
        f"total={leaf.form.total} {leaf.form.unit} a batch",
        "raise total= in spec=, or make batch_size smaller",
    )

"""Whether a sample fits a leaf with a form, or a batch its total; imported where a spec has such leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.spec.array import UINT8, shown
from ringfeed.spec.coerced_arrays import from_list, in_dtype
from ringfeed.spec.form_kinds import Masked, Padded, Ragged, parted
from ringfeed.spec.refusals import for_dtype, way_out
from ringfeed.spec.values import from_array

if TYPE_CHECKING:
    from ringfeed.errors import SpecError
    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.form_kinds import Form


def fitting(leaf: Leaf, value: Any, where: str) -> AnyArray:
    """Return a sample of a leaf with a form as an array of its dtype, no longer than it may be; of any strides."""
    assert leaf.form is not None
    if leaf.form.name in {"bytes", "text"}:
        return _bytes_of(leaf, leaf.form, value, where)
    if (
        isinstance(value, (list, tuple)) and not value and leaf.form.shape[0] is None
    ):  # no box: NumPy's is of one axis
        return np.empty([axis or 0 for axis in leaf.form.shape], leaf.dtype)
    found = from_array(value, where)
    expected = f"an array of shape {leaf.form.shape} and dtype {leaf.dtype}"
    if found is None:
        found = from_list(value, leaf, leaf.shape, where)
    if found is None:
        raise error_of(
            where, f"is {shown(value)}", expected, way_out(value) or "make it one in __getitem__"
        )
    found = in_dtype(found, leaf, where)
    if found.dtype != leaf.dtype:
        raise error_of(where, f"has dtype {found.dtype}", str(leaf.dtype), for_dtype(found, leaf))
    _check_shape(leaf.form, found.shape, where)
    return found


def _check_shape(form: Form, shape: tuple[int, ...], where: str) -> None:
    pairs = list(zip(shape, form.shape, strict=False))
    if len(shape) != len(form.shape) or any(most not in {None, own} for own, most in pairs):
        remedy = "only axes that are None in spec= may differ: crop or reshape it in __getitem__"
        raise error_of(where, f"has shape {shape}", str(form.shape), remedy)
    if any(own > most for own, most in zip(shape, form.most, strict=True)):
        remedy = "crop it in __getitem__, or give a larger max_shape in spec="
        raise error_of(where, f"has shape {shape}", f"at most {form.most}", remedy)


def _bytes_of(leaf: Leaf, form: Form, value: Any, where: str) -> AnyArray:
    """Return the bytes of a sample of `Bytes` or `Text`."""
    found: AnyArray | None = None
    if form.name == "text":
        if isinstance(value, str):
            found = np.frombuffer(_encoded(value, where), UINT8)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        found = np.frombuffer(
            bytes(value) if isinstance(value, memoryview) and not value.contiguous else value, UINT8
        )
    elif (
        (array := from_array(value, where)) is not None and array.dtype == UINT8 and array.ndim == 1
    ):
        found = array
    if found is None:
        expected = (
            "a str"
            if form.name == "text"
            else "bytes, bytearray, memoryview or an array of uint8 with one axis"
        )
        other = "Bytes" if form.name == "text" and isinstance(value, (bytes, bytearray)) else None
        other = "Text" if form.name == "bytes" and isinstance(value, str) else other
        remedy = (
            f"give ringfeed.{other} in spec=" if other else "return one of these from __getitem__"
        )
        raise error_of(where, f"is {shown(value)}", expected, remedy)
    if len(found) > leaf.shape[0]:
        remedy = (
            "raise max_size in spec=, as in "
            f"{form.name.capitalize()}({1 << (len(found) - 1).bit_length()})"
        )
        raise error_of(
            where, f"has {len(found)} bytes", f"at most max_size={leaf.shape[0]}", remedy
        )
    return found


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        got = f"has the surrogate {text[error.start]!a} at character {error.start}"
        remedy = "decode the file with errors='replace', or give ringfeed.Bytes in spec="
        raise error_of(where, got, "text that UTF-8 can hold", remedy) from None


def no_room(leaf: Leaf, where: str, need: int) -> SpecError:
    """Return the error for a sample that did not fit into what is left of its batch."""
    assert leaf.form is not None
    got = f"has {need} {leaf.form.unit}, which do not fit into what is left of the batch"
    remedy = "raise total= in spec=, or make batch_size smaller"
    return error_of(where, got, f"total={leaf.form.total} {leaf.form.unit} a batch", remedy)


def rows_of(leaf: Leaf, value: Any, where: str, max_rows: int) -> list[Any]:
    """Return the samples of a leaf of a whole batch, one by one, or refuse what are none."""
    assert leaf.form is not None
    found: list[Any] | None = None
    if isinstance(value, (Padded, Masked)):
        found = parted(leaf.form, value) if leaf.form.is_padded else None
    elif isinstance(value, Ragged):
        found = _samples_of(value, where)
    elif isinstance(value, (list, tuple)):
        found = list(value)
    elif (array := from_array(value, where)) is not None and array.ndim:
        found = list(array)
    if found is None:
        what = "ringfeed.Padded or Masked" if leaf.form.is_padded else "ringfeed.Ragged"
        expected = (
            "a list of samples, one a row, an array whose rows are samples of one shape, or a "
            f"{what}"
        )
        raise error_of(
            where, f"is {shown(value)}", expected, "return one of these from __getitem__"
        )
    if len(found) > max_rows:
        remedy = "return smaller batches, or raise max_batch_size"
        raise error_of(where, f"has {len(found)} rows", f"at most {max_rows}", remedy)
    return found


def _samples_of(ragged: Ragged, where: str) -> list[Any]:
    try:
        return list(ragged)
    except UnicodeDecodeError as error:
        got = f"has bytes that are no UTF-8 ({error.reason} at byte {error.start} of a text)"
        raise error_of(
            where, got, "text", "decode it with errors='replace', or give ringfeed.Bytes in spec="
        ) from None


def check_total(leaf: Leaf, where: str, need: int) -> None:
    """Refuse the samples of a leaf of a whole batch that are too long together."""
    assert leaf.form is not None
    assert leaf.form.total is not None
    if need > leaf.form.total:
        expected = f"at most total={leaf.form.total} a batch"
        raise error_of(
            where,
            f"needs {need} {leaf.form.unit}",
            expected,
            "raise total= in spec=, or return fewer rows",
        )

"""What to return in the place of a value that no leaf can be; no package is imported to know its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._classes import class_names
from ringfeed.spec.array import Array
from ringfeed.spec.values import SKIPS_NONE, is_number

if TYPE_CHECKING:
    from ringfeed.spec.array import AnyArray

_ARRAY_OF = "make it a list, each of whose items is a leaf, or numpy.asarray() of that list, which is one leaf"
_TIME = "return numpy.datetime64() of it or, for a framework, its .timestamp()"
_FLOAT = "return float() of it"
_WAYS_OUT = {  # the first that fits
    "collections.deque": _ARRAY_OF,
    "builtins.generator": _ARRAY_OF,
    "builtins.range": "return numpy.arange() in its place",
    "builtins.set": "a set has no order: make it a sorted list, or an array",
    "builtins.frozenset": "a set has no order: make it a sorted list, or an array",
    "decimal.Decimal": _FLOAT,
    "fractions.Fraction": _FLOAT,
    "datetime.datetime": _TIME,
    "datetime.date": "return numpy.datetime64() of it or, for a framework, its .toordinal()",
    "datetime.timedelta": "return numpy.timedelta64() of it or, for a framework, its .total_seconds()",
    "datetime.time": "return a number in its place, such as the seconds since midnight",
    "pathlib.PurePath": "return str() of it",
    "enum.Enum": "return its .value",
    "tensorflow.RaggedTensor": "return its .to_tensor(), which pads it, or its .flat_values and row lengths as leaves",
    "tensorflow.SparseTensor": "return tf.sparse.to_dense() of it, or its .indices and .values as leaves",
}
_SCIPY = "return its .toarray() or, as leaves of their own, its .data and what says where they stand"


def way_out(value: Any) -> str | None:
    """Say what to return in the place of a value; None where nothing is known of its kind."""
    names = class_names(value)
    if found := next((_WAYS_OUT[name] for name in _WAYS_OUT if name in names), None):
        return found
    if "torch.Tensor" in names:
        return _of_tensor(value)
    is_sparse = any(name.startswith("scipy.") for name in names) and hasattr(value, "toarray")
    return _SCIPY if is_sparse else None


def _of_tensor(tensor: Any) -> str | None:
    if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":
        return "NumPy has no bfloat16: return its .float(), or its bits as .view(torch.int16)"
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        return "return its .to_dense(), or its indices and values as leaves"
    return "return its .detach()" if getattr(tensor, "requires_grad", False) else None


def of_objects(array: AnyArray) -> str:
    """Say what to return in the place of an array of Python objects."""
    if array.ndim == 0 and isinstance(array.item(), str | bytes):  # a tf.string
        kind = "Text" if isinstance(array.item(), str) else "Bytes"
        return f"return it as .numpy() or .item() gives it, and give ringfeed.{kind}(64) in its place in spec="
    return "convert it by its .astype(), as to 'float32' or 'U16'"


def other_structure(value: Any, model: Any, where: str) -> str:
    """Say what to do about a value of another structure than that of sample 0."""
    same = "return the same structure for every index"
    if value is None and where.endswith("sample"):
        return f"{same}; {SKIPS_NONE}"
    if not _are_numbers(value, model):
        return same
    dtype = model[0].dtype.name
    return (
        f"each item of a {type(value).__name__} is a leaf: return numpy.asarray() of it, and give Array((None,), "
        f"{dtype!r}, max_shape=(512,), form='pad') in its place in spec=, with the longest in the place of 512"
    )


def _are_numbers(value: Any, model: Any) -> bool:
    """Whether a list of numbers stands where sample 0 has one of another length."""
    if not isinstance(value, list | tuple) or type(value) is not type(model) or not model:
        return False
    return all(isinstance(one, Array) and not one.shape for one in model) and all(map(is_number, value))

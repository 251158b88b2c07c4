"""What to return in the place of a value that no leaf can be; no package is imported to know its classes."""

from __future__ import annotations

from typing import Any

from ringfeed._classes import class_names

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
    return None

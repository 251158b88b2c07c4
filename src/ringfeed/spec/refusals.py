"""What to return in place of a value that does not fit; classes are known by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.spec.array import AnyArray, Array, Leaf, shown
from ringfeed.spec.conversion import may_cast
from ringfeed.spec.values import SKIPS_NONE, is_number

if TYPE_CHECKING:
    from ringfeed.errors import SpecError
    from ringfeed.spec.forms import Form

_ARRAY_OF = (
    "make it a list, each of whose items is a leaf, or numpy.asarray() of that list, which is one "
    "leaf"
)
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
    "datetime.timedelta": (
        "return numpy.timedelta64() of it or, for a framework, its .total_seconds()"
    ),
    "datetime.time": "return a number in its place, such as the seconds since midnight",
    "pathlib.PurePath": "return str() of it",
    "enum.Enum": "return its .value",
    "tensorflow.RaggedTensor": (
        "return its .to_tensor(), which pads it, or its .flat_values and row lengths as leaves"
    ),
    "tensorflow.SparseTensor": (
        "return tf.sparse.to_dense() of it, or its .indices and .values as leaves"
    ),
}
_SCIPY = (
    "return its .toarray() or, as leaves of their own, its .data and what says where they stand"
)


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
        return (
            f"return it as .numpy() or .item() gives it, and give ringfeed.{kind}(64) in its place "
            "in spec="
        )
    kinds = {*map(type, array.reshape(-1).tolist())}
    if kinds and kinds <= {str, bytes}:  # a batch of them, or a column
        name, code = ("Text", "U") if str in kinds else ("Bytes", "S")
        remedy = f"returned by __getitem__, give ringfeed.{name}(64) in its place in spec="
        return f"convert it by its .astype('{code}64') or, {remedy}"
    return "convert it by its .astype(), as to 'float32' or 'U16'"


def other_structure(value: Any, model: Any, where: str) -> SpecError:
    """Return the error for a value of another structure than the tree of Arrays ``model``."""
    expected, remedy = shown(model), "return the same structure for every index"
    if model is None:
        expected = "None as the spec has it there"
        remedy = "return None for every index, or for none"
    elif value is None and where.endswith("sample"):
        remedy += f"; {SKIPS_NONE}"
    elif _are_numbers(value, model):
        remedy = (
            f"each item of a {type(value).__name__} is a leaf: return numpy.asarray() of it, and "
            f"give Array((None,), {model[0].dtype.name!r}, max_shape=(512,), form='pad') in its "
            "place in spec=, with the longest in the place of 512"
        )
    return error_of(where, f"is {shown(value)}", expected, remedy)


def _are_numbers(value: Any, model: Any) -> bool:
    """Whether a list of numbers stands where sample 0 has one of another length."""
    if not isinstance(value, list | tuple) or type(value) is not type(model) or not model:
        return False
    are_leaves = all(isinstance(one, Array) and not one.shape for one in model)
    return are_leaves and all(map(is_number, value))


def other_dtype(found: AnyArray, leaf: Leaf, where: str) -> SpecError:
    """Return the error for an array of another dtype than the leaf takes."""
    remedy = "convert it in __getitem__, or give this dtype in spec="
    if leaf.cast is not None:
        remedy = (
            "return uint8 from __getitem__, or leave scale=, offset=, mean=, std= and layout= out "
            "of spec="
        )
    elif leaf.casts:
        remedy = f"cast=True makes no {leaf.dtype} of {found.dtype}: convert it in __getitem__"
    elif may_cast(found.dtype, leaf.dtype):
        remedy = (
            "convert it in __getitem__, give this dtype in spec=, or have it converted by "
            "cast=True of its Array"
        )
    return error_of(where, f"has dtype {found.dtype}", _expected(leaf, str(leaf.dtype)), remedy)


def _expected(leaf: Leaf, otherwise: str) -> str:
    """Say what the dataset is to give for a leaf that converts it."""
    if leaf.cast is None:
        return otherwise
    return f"uint8 of shape {leaf.given_shape}, which is converted to float32"


def other_shape(shape: tuple[int, ...], leaf: Leaf, where: str, *, whole: bool) -> SpecError:
    """Return the error for samples of another ``shape``; ``whole``: of a whole batch."""
    got = f"has {'rows of ' if whole else ''}shape {shape}"
    if leaf.form is not None:
        expected, remedy = _for_form(shape, leaf.form)
        return error_of(where, got, expected, remedy)
    expected, remedy = _for_shape(shape, leaf)
    if not whole and (channels := _channels(shape, leaf.given_shape)):
        return error_of(where, got, expected, channels)
    if leaf.cast is None and not leaf.variable and len(shape) == len(leaf.shape):
        remedy += (
            "; or allow many shapes: spec= with variable= and max_batch_size="
            if whole
            else "; or allow many shapes: spec= with variable=, form='pad' or form='ragged'"
        )
    return error_of(where, got, expected, remedy)


def _for_form(shape: tuple[int, ...], form: Form) -> tuple[str, str]:
    """Return what was expected of a shape that a form does not take, and what to do."""
    others = {most for own, most in zip(shape, form.shape, strict=False) if own != most}
    if len(shape) != len(form.shape) or others - {None}:
        remedy = "only axes that are None in spec= may differ: crop or reshape it in __getitem__"
        return str(form.shape), remedy
    return f"at most {form.most}", "crop it in __getitem__, or give a larger max_shape in spec="


def _for_shape(shape: tuple[int, ...], leaf: Leaf) -> tuple[str, str]:
    """Return what was expected in the place of a shape that is not the leaf's, and what to do."""
    if not leaf.variable:
        remedy = (
            "every sample must have the shape of the spec: crop, pad or resize it in __getitem__"
        )
        if shape == leaf.shape:
            remedy = (
                "return (height, width, channels), which layout='CHW' turns round, or leave "
                "layout= out of spec="
            )
        return _expected(leaf, str(leaf.shape)), remedy
    all_vary = len(leaf.variable) == len(leaf.shape)
    expected = f"{leaf.shape} or less" + ("" if all_vary else f" along the axes {leaf.variable}")
    remedy = "crop it in __getitem__, or give a larger shape in spec="
    pairs = list(zip(shape, leaf.shape, strict=False))
    if len(shape) != len(leaf.shape):
        remedy = "every batch must have the axes of the spec: reshape it in __getitem__"
    elif any(got != most for axis, (got, most) in enumerate(pairs) if axis not in leaf.variable):
        remedy = "crop, pad or resize it in __getitem__, or name the axis in variable= of spec="
    return expected, remedy


_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by channels, as PIL names them


def _channels(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Say how to convert a picture of other channels; "": it is none of the right size."""
    picture = 2  # axes
    sizes = [axes[:picture] for axes in (shape, expected)]
    counts = [axes[-1] if len(axes) > picture else 1 for axes in (shape, expected)]
    are_pictures = (
        all(len(axes) - picture in {0, 1} for axes in (shape, expected))
        and len({*map(len, sizes)}) == 1
    )
    if not are_pictures or sizes[0] != sizes[1] or any(count not in _MODES for count in counts):
        return ""
    given, wanted = (f"{count} channel{'s' * (count > 1)}" for count in counts)
    return (
        f"it is a picture of {given} where others have {wanted}: convert it in __getitem__, as by "
        f"PIL's .convert({_MODES[counts[1]]!r}), to the same shape"
    )

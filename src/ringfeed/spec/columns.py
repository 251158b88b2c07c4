"""Arrays and specs of packages other than NumPy; none of them is imported for it.

Columns of a dataset: tensors and Series of any package, or nothing of the kind.

(x, y), {"x": x, ...}    all of them arrays, tensors, Series: columns, as NumPy arrays
(x, [...]), (x, None)    refused: rows are taken of arrays alone
[x, y]                   refused, where they may be columns: up to 8 arrays of one greater length
any other list           samples

Specs of tensors, in the place of an Array:

tf.TensorSpec, jax.ShapeDtypeStruct                     Array
tf.data's NoneTensorSpec, as in Dataset.element_spec    None
a shape that is not known in full, strings              SpecError, which says what to give instead
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed._classes import class_names
from ringfeed.errors import SpecError
from ringfeed.spec.array import AnyDtype, Array, Leaf
from ringfeed.spec.conversion import may_cast

if TYPE_CHECKING:
    from ringfeed.spec.spec import Spec

FEW = 8  # arrays in a list, which may be columns; more are samples
_LAZY = {
    "h5py",
    "zarr",
    "dask",
    "netCDF4",
    "tables",
    "tensorstore",
}  # packages whose arrays lie elsewhere
_DENSE = {"tensorflow.TensorSpec", "jax.ShapeDtypeStruct"}
_RAGGED, _OTHERS = "tensorflow.RaggedTensorSpec", {"tensorflow.TypeSpec"}
_LONGEST = 300


def columns_of(
    dataset: Any, leaves: list[tuple[str, Any]], *, is_whole: bool, has_spec: bool
) -> Any:
    """Return NumPy arrays in the place of columns, and any other dataset as it is.

    ``leaves``: what is no tuple or dict, each with where it stands; ``is_whole``: one index is a
    whole batch. SpecError says what to give instead of what may be columns, and cannot be read as
    such.
    """
    if not isinstance(dataset, tuple | list | dict):
        return np.asarray(dataset)  # a Series, whose own numbers are labels
    if is_whole or not dataset:
        return dataset
    if isinstance(dataset, list):
        if not has_spec:
            _refuse_ambiguous(dataset)
        return dataset
    if all(_is_array(leaf) for _, leaf in leaves):
        return _converted(dataset, "dataset")
    _refuse_mixed(dataset, leaves)
    return dataset


def _is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor with rows, of whatever package."""
    if isinstance(value, np.ndarray):
        return True
    if not hasattr(type(value), "__array__") and not hasattr(type(value), "__array_interface__"):
        return False
    return bool(_shape(value))


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return tuple(value.shape)
    except (AttributeError, TypeError, ValueError):
        return ()


def _converted(branch: Any, path: str) -> Any:
    """Return a tuple or dict with NumPy arrays in the place of all other arrays."""
    if isinstance(branch, dict):
        return {key: _converted(child, f"{path}[{key!r}]") for key, child in branch.items()}
    if isinstance(branch, tuple):
        parts = [_converted(child, f"{path}[{number}]") for number, child in enumerate(branch)]
        return branch._make(parts) if hasattr(branch, "_make") else tuple(parts)
    if isinstance(branch, np.ndarray):
        return branch
    kind = f"{type(branch).__module__.partition('.')[0]}.{type(branch).__name__}"
    if kind.partition(".")[0] in _LAZY:
        raise SpecError(
            f"{path} is a {kind}, which is read piece by piece, expected an array in memory; give "
            "numpy.asarray() of it if it fits there, or an object whose __getitem__(i) reads row "
            "i of each column"
        )
    try:
        return np.asarray(branch)
    except Exception as error:
        remedy = of_sparse(branch) or "give a NumPy array in its place"
        raise SpecError(
            f"{path} is a {kind}, of which NumPy can make no array ({error}); {remedy}"
        ) from error


def of_sparse(value: Any) -> str:
    """Say what to give for a sparse matrix or tensor of any package; "": it is none."""
    to_dense = next(
        (name for name in ("toarray", "to_dense", "todense") if hasattr(value, name)), None
    )
    is_sparse = "sparse" in type(value).__module__ or "sparse" in str(getattr(value, "layout", ""))
    if not is_sparse or to_dense is None:
        return ""
    return (
        f"give its .{to_dense}() if that fits in memory, or an object whose __getitem__(i) makes "
        "row i of it dense and returns it with those of the other arrays"
    )


def _refuse_ambiguous(dataset: list[Any]) -> None:
    """Refuse a few arrays of one length in a list."""
    if not 0 < len(dataset) <= FEW or not all(
        _is_array(member) and _shape(member) for member in dataset
    ):
        return
    lengths = {_shape(member)[0] for member in dataset}
    if len(lengths) == 1 and (length := lengths.pop()) > len(dataset):
        count = "1 array" if len(dataset) == 1 else f"{len(dataset)} arrays"
        raise SpecError(
            f"the dataset is a list of {count} of length {length}, expected a tuple of columns or "
            f"many samples; give tuple() of it for {length} samples, numpy.stack() of it for "
            f"{len(dataset)}"
        )


def _refuse_mixed(dataset: Any, leaves: list[tuple[str, Any]]) -> None:
    """Refuse columns that are not all arrays, and would be asked for sample 0."""
    if isinstance(dataset, dict):
        if type(dataset) is not dict or any(isinstance(key, int) for key in dataset):
            return
    elif not any(map(_is_array, dataset)):
        return  # samples
    what = "dict" if isinstance(dataset, dict) else "tuple"
    for path, leaf in leaves:
        if _is_array(leaf):
            continue
        is_nest = isinstance(leaf, list) and leaf and all(map(_is_array, leaf))
        remedy = "make it a tuple, as in ((x1, x2), y)" if is_nest else "give numpy.asarray() of it"
        if sparse := of_sparse(leaf):
            remedy = sparse
        found = "None" if leaf is None else f"of type {type(leaf).__name__}"
        message = f"{path} is {found}, expected an array like all in a {what} of arrays; " + (
            "leave it out" if leaf is None else remedy
        )
        raise SpecError(message)


def check_columns(spec: Spec, inferred: Spec, given: object) -> None:
    """Refuse columns that are not what the spec takes; ``given``: as the user has written it."""
    pairs = zip(spec.leaves, inferred.leaves, strict=False)
    if spec.same_structure(inferred) and all(_takes(leaf, column) for leaf, column in pairs):
        return
    remedy = "leave spec= out"
    if any(leaf.casts for leaf in spec.leaves):
        remedy = (
            "cast=True converts arrays of the samples' shape, and none of fractions into whole "
            "numbers"
        )
    elif any(leaf.cast for leaf in spec.leaves):
        remedy = "it converts uint8 arrays of the samples' shape"
    raise SpecError(f"spec= says {given!r}, but the arrays are {inferred!r}; {remedy}")


def _takes(leaf: Leaf, column: Leaf) -> bool:
    """Whether a leaf takes the rows of a column."""
    is_right = column.dtype == leaf.given_dtype
    is_right = is_right or (leaf.casts and may_cast(column.dtype, leaf.dtype))
    return is_right and column.shape == leaf.given_shape and not leaf.variable


# ---- specs of tensors ----


def array_of_foreign(value: Any, where: str, *, has_rows: bool) -> Any:
    """Return a framework's spec of a tensor as an Array, and any other value as it is.

    ``has_rows``: of a whole batch, whose first axis is left out.
    """
    names, kind = class_names(value), type(value).__name__
    if not names & (_DENSE | _OTHERS):
        return value
    got, expected = f"is of type {kind}", "a spec of dense tensors"
    if not names & _DENSE and _RAGGED not in names:
        raise error_of(
            where, got, expected, "give a ringfeed.Array for each array that dataset[i] returns"
        )
    dtype = np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))
    try:
        shape = tuple(getattr(axis, "value", axis) for axis in value.shape)
    except ValueError:  # TensorFlow's words for a shape of unknown rank
        shape = None
    if has_rows and shape is not None:
        if not shape:
            got, expected = f"is a {kind} of shape ()", "a leading row axis"
            raise error_of(
                where,
                got,
                expected,
                "give the spec of a whole batch, whose first axis counts its rows",
            )
        shape = shape[1:]
    remedy = _with_form(shape, dtype)
    if names & _DENSE:
        if dtype.hasobject:
            got, expected = f"is a {kind} of dtype {value.dtype!r}", "a dtype of fixed width"
            remedy = (
                "give ringfeed.Text(64) for str, or ringfeed.Bytes(64) for bytes, with the most "
                "bytes of one sample"
            )
        elif shape is None or None in shape:
            shown_shape = "unknown" if shape is None else shape
            got, expected = f"is a {kind} of shape {shown_shape}", "a shape that is known"
        else:
            return Array(shape, dtype)
    raise error_of(where, got, expected, remedy)


def _with_form(shape: tuple[int | None, ...] | None, dtype: AnyDtype) -> str:
    """Say what to give in the place of a spec whose samples differ in shape."""
    if not shape or None not in shape or dtype.hasobject:
        return "give a ringfeed.Array of the shape of a sample, with form= where samples differ"
    form = "pad" if None in shape[1:] else "ragged"
    largest = tuple(_LONGEST if axis is None else axis for axis in shape)
    array = f"ringfeed.Array({shape}, {dtype.name!r}, max_shape={largest}, form={form!r})"
    return f"give {array}, with the largest sample in the place of {_LONGEST}"

"""How a dataset is read; what is none is refused, with what to give instead.

No framework is imported for it: its objects are known by the names of their classes.

    (x, y), {"x": x, ...}    all of them arrays, tensors, Series: columns, as NumPy arrays
    (x, [...]), (x, None)    refused: rows are taken of arrays alone
    [x, y]                   refused, where they may be columns: up to 8 arrays of one length, which is more than that
    any other list           samples
"""

from __future__ import annotations

import inspect
import os
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names, is_iterable
from ringfeed.data.arrays import leaf_arrays, leaves_of
from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from ringfeed.data.terms import Terms

_MAY_BE_ASYNC = ("__getitem__", "__getitems__", "read_into")
FEW = 8  # arrays in a list, which may be columns; more are samples
_LAZY = {"h5py", "zarr", "dask", "netCDF4", "tables", "tensorstore"}  # packages whose arrays lie elsewhere
_TABLES = {"pandas.DataFrame": "columns", "polars.DataFrame": "columns", "pyarrow.Table": "column_names"}
_MAKES_BATCHES = {"torch.DataLoader", "ringfeed.Loader"}
_GIVES_BATCHES = {"ringfeed.Reiterable", "ringfeed.LoaderAdapter", "ringfeed.BatchIterator", "ringfeed.Repeated"}


class Kind(Enum):
    """How a dataset is read."""

    COLUMNS = auto()
    ITERABLE = auto()
    AWAITED = auto()  # dataset[i], which is async
    INDEXED = auto()  # dataset[i]


def kind_of(dataset: Any, terms: Terms) -> tuple[Kind, Any]:
    """Say how a dataset is read, of columns with their arrays; TypeError, ValueError or SpecError where it is none."""
    batch_size = terms.batch_size
    if refusal := _refusal(dataset, batch_size):
        raise TypeError(refusal)
    if terms.max_batch_size is not None and batch_size is not None and terms.collate is None:
        message = (
            f"max_batch_size={terms.max_batch_size} is for datasets of whole batches, for batch_sampler= and for "
            f"collate_fn=; with batch_size= alone leave it out"
        )
        raise ValueError(message)
    columns = _columns_of(dataset, terms)
    if leaf_arrays(columns) is not None:
        return Kind.COLUMNS, columns
    if is_iterable(dataset):
        return Kind.ITERABLE, None
    _check_indexable(dataset)
    if batch_size is not None:
        _refuse_keras_batches(dataset, batch_size)
    is_async = any(inspect.iscoroutinefunction(getattr(type(dataset), name, None)) for name in _MAY_BE_ASYNC)
    return Kind.AWAITED if is_async else Kind.INDEXED, None


# ---- columns ----


def _columns_of(dataset: Any, terms: Terms) -> Any:
    """Return NumPy arrays in the place of columns of any package, and any other dataset as it is.

    SpecError says what to give instead of what may be columns, and cannot be read as such.
    """
    if {"pandas.Series", "polars.Series"} & class_names(dataset):
        return np.asarray(dataset)  # its own numbers are labels
    if terms.batch_size is None:
        return dataset
    if isinstance(dataset, list) and terms.spec is None:
        _refuse_ambiguous(dataset)
    if not isinstance(dataset, tuple | dict) or not dataset:
        return dataset
    leaves = [*leaves_of(dataset)]
    if all(isinstance(leaf, np.ndarray) for _, leaf in leaves):
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
        message = (
            f"{path} is a {kind}, which is read piece by piece, expected an array in memory; give numpy.asarray() of "
            f"it if it fits there, or an object whose __getitem__(i) reads row i of each column"
        )
        raise SpecError(message)
    try:
        return np.asarray(branch)
    except Exception as error:
        message = f"{path} is a {kind}, of which NumPy can make no array ({error}); give a NumPy array in its place"
        raise SpecError(message) from error


def _refuse_ambiguous(dataset: list[Any]) -> None:
    """Refuse a few arrays of one length in a list."""
    if not 0 < len(dataset) <= FEW or not all(_is_array(member) and _shape(member) for member in dataset):
        return
    lengths = {_shape(member)[0] for member in dataset}
    if len(lengths) == 1 and (length := lengths.pop()) > len(dataset):
        count = "1 array" if len(dataset) == 1 else f"{len(dataset)} arrays"
        message = (
            f"the dataset is a list of {count} of length {length}, expected a tuple of columns or many samples; give "
            f"tuple() of it for {length} samples, numpy.stack() of it for {len(dataset)}"
        )
        raise SpecError(message)


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
        found = "None" if leaf is None else f"of type {type(leaf).__name__}"
        message = f"{path} is {found}, expected an array like all in a {what} of arrays; " + (
            "leave it out" if leaf is None else remedy
        )
        raise SpecError(message)


# ---- all other objects ----


def _refusal(dataset: Any, batch_size: int | None) -> str | None:
    """Say why an object is no dataset, and what to give instead; None where it may be one."""
    names, kind = class_names(dataset), type(dataset).__name__
    if isinstance(dataset, str | bytes | os.PathLike):
        return (
            f"{dataset!r} is a {kind}, expected a dataset and not the name of one; read it into arrays, or give an "
            f"object whose __getitem__(i) reads sample i"
        )
    if tables := [_TABLES[name] for name in _TABLES if name in names]:
        return (
            f"a {kind} has no rows by number, expected a dataset; "
            f"give its columns: {{name: table[name].to_numpy() for name in table.{tables[0]}}}"
        )
    if not _MAKES_BATCHES.isdisjoint(names) and batch_size is not None:
        return (
            f"a {kind} makes batches itself, expected a dataset of samples; give what it loads, its .dataset, "
            f"or batch_size=None to have its batches as they are"
        )
    if not _GIVES_BATCHES.isdisjoint(names) and batch_size is not None:
        return (
            f"{_a(kind)} gives the batches of a loader, expected a dataset of samples; give the dataset of that "
            f"loader, "
            f"or batch_size=None to have its batches as they are"
        )
    if isinstance(dataset, type) and callable(getattr(dataset, "__getitem__", None)):
        return f"{dataset.__name__} is a class, expected a dataset; give an instance: {dataset.__name__}(...)"
    return _needs_arguments(dataset) if is_iterable(dataset) and not hasattr(type(dataset), "__iter__") else None


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _needs_arguments(function: Any) -> str | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some builtins
        return None
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        return (
            f"{name}{signature} cannot be called without arguments ({error}), as a function that returns an iterable "
            f"is; give lambda: {name}(...)"
        )
    return None


def _check_indexable(dataset: Any) -> None:
    if not callable(getattr(type(dataset), "__getitem__", None)):
        message = (
            f"{_a(type(dataset).__name__)} is no dataset: it has neither __getitem__ nor __iter__; "
            f"give an object with __len__ and __getitem__, a tuple or dict of arrays, or an iterable"
        )
        raise TypeError(message)


def _refuse_keras_batches(dataset: Any, batch_size: int) -> None:
    """Refuse a Keras PyDataset whose batches would be taken for samples."""
    if all(hasattr(dataset, name) for name in ("use_multiprocessing", "max_queue_size", "workers")):
        message = (
            f"batch_size={batch_size} for a {type(dataset).__name__}, which is a Keras dataset: its items are whole "
            f"batches already; give batch_size=None"
        )
        raise ValueError(message)

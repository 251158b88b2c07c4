"""Datasets of columns: a tuple or dict of equally long arrays, tensors or Series, whose rows are gathered in C.

No framework is imported for it: its objects are known by the names of their classes.

    (x, y), {"x": x, ...}    all of them arrays, tensors, Series: columns, as NumPy arrays
    (x, [...]), (x, None)    refused: rows are taken of arrays alone
    [x, y]                   refused, where they may be columns: up to 8 arrays of one length, which is more than that
    any other list           samples
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names
from ringfeed.data.base import Source
from ringfeed.data.rows import Rows
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Spec
from ringfeed.spec.values import adopted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.data.reader import Fill, Reader
    from ringfeed.data.terms import Terms

FEW = 8  # arrays in a list, which may be columns; more are samples
_LAZY = {"h5py", "zarr", "dask", "netCDF4", "tables", "tensorstore"}  # packages whose arrays lie elsewhere


class ArraySource(Source):
    """A dataset whose sample i is row i of each of its arrays."""

    runs_code = False
    has_columns = True

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Refuse arrays that have no common rows."""
        super().__init__(given, dataset, terms)
        if self.whole:
            message = "batch_size=None is for datasets of whole batches; arrays hold samples: give a batch_size"
            raise ValueError(message)
        arrays = self._arrays()
        if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in arrays)
            message = (
                f"the arrays of a dataset must be equally long, but their shapes are {shapes}; cut them to one length"
            )
            raise SpecError(message)

    def _arrays(self) -> list[np.ndarray[Any, Any]]:
        return leaf_arrays(self.dataset) or []

    def length(self) -> int | None:
        """Return the number of rows."""
        return len(self._arrays()[0])

    def learn(self) -> None:
        """Set the spec of the arrays; a given one may only convert them."""
        if self.terms.collate is not None:
            self.terms.collate.learn(self)
            return
        inferred, _ = Spec.infer_batch(self.dataset, 0)
        given, trial = self.terms.given_spec(), self.terms.trial
        made = self.first(lambda made, _: made) if trial is not None and self.terms.reads_first(self.length()) else None
        if trial is not None and not trial.in_place:
            self.accept(Spec.infer(made, 0) if given is None else given, self.indices)
            return
        spec = inferred if given is None else given
        _refuse_forms(spec)
        if inferred != adopted(spec, inferred):
            plain = spec is spec.before_cast()
            remedy = "leave spec= out" if plain else "it converts uint8 arrays of the samples' shape"
            if any(leaf.casts for leaf in spec.leaves):
                remedy = "cast=True converts arrays of the samples' shape, and none of fractions into whole numbers"
            message = f"spec= says {self.terms.spec!r}, but the arrays are {inferred!r}; {remedy}"
            raise SpecError(message)
        self.accept(spec, self.indices)

    def element(self, index: int) -> Any:
        """Return a row of all arrays."""
        return Rows(self.dataset)[index]

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Gather rows in C; strided rows go the way of samples."""
        arrays = [np.asarray(array) for array in leaf_arrays(dataset) or ()]
        is_cast = any(leaf.casts for leaf in self.spec.leaves)
        if not is_cast and all(len(array) == 0 or array[0, ...].flags.c_contiguous for array in arrays):
            return reader.by(reader.writer.gather, arrays)
        unflatten = self.spec.unflatten
        return reader.by(reader.writer.samples, lambda index: unflatten([array[index, ...] for array in arrays]))


def _refuse_forms(spec: Spec) -> None:
    """Refuse samples that differ in length: the rows of an array do not."""
    for leaf in spec.leaves:
        if leaf.form is not None:
            message = (
                f"{leaf.path} is {leaf.form.name} in spec=, but the dataset is made of arrays, whose rows have one "
                f"length; give an object whose __getitem__(i) returns sample i in its own length"
            )
            raise SpecError(message)


def leaf_arrays(dataset: Any) -> list[np.ndarray[Any, Any]] | None:
    """Return the arrays of a tuple or dict (nested, perhaps) of arrays, or None for any other dataset."""
    leaves = [leaf for _, leaf in _leaves(dataset)]
    return leaves if all(isinstance(leaf, np.ndarray) for leaf in leaves) else None


# ---- what users give ----


def columns_of(dataset: Any, terms: Terms) -> Any:
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
    leaves = [*_leaves(dataset)]
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


def _leaves(branch: Any, path: str = "dataset") -> Iterator[tuple[str, Any]]:
    """Yield what is no tuple or dict, or an empty one, each with where it stands."""
    if isinstance(branch, tuple | dict) and branch:
        for key, child in branch.items() if isinstance(branch, dict) else enumerate(branch):
            yield from _leaves(child, f"{path}[{key!r}]")
    else:
        yield path, branch


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

"""Datasets of columns: a tuple or dict of equally long arrays, whose rows are gathered in C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.datasets.base import Source
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Terms


class ArraySource(Source):
    """A dataset whose sample i is row i of each of its arrays."""

    runs_code = False

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Refuse arrays that have no common rows."""
        super().__init__(given, dataset, terms)
        if self.whole:
            raise ValueError(
                "batch_size=None is for datasets of whole batches; arrays hold samples: give a "
                "batch_size"
            )
        self._own = id(dataset)  # and not that of a copy
        self._learnt: Any = None  # an Array for each column whose rows are written as they are
        self._arrays()

    def _arrays(self) -> list[np.ndarray[Any, Any]]:
        """Return the arrays as they are now; SpecError where they have no common rows."""
        if self.dataset is not self.given and id(self.dataset) == self._own:
            _convert_again(self.given, self.dataset)
        for path, leaf in leaves_of(self.dataset):
            if not isinstance(leaf, np.ndarray):
                raise SpecError(
                    f"{path} is of type {type(leaf).__name__}, expected an array as when the "
                    "loader was made; give numpy.asarray() of it"
                )
        arrays = leaf_arrays(self.dataset) or []
        if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise SpecError(
                f"the arrays of a dataset must be equally long, but their shapes are {shapes}; cut "
                "them to one length"
            )
        return arrays

    def length(self) -> int | None:
        """Return the number of rows."""
        return len(self._arrays()[0])

    def check(self) -> None:
        """Raise SpecError where the rows have another spec than the loader was made for."""
        self._arrays()
        if self._learnt is not None and self._learnt != (
            now := Spec.infer_batch(self.dataset, 0)[0].tree
        ):
            raise SpecError(
                f"the arrays of the dataset are {now!r} now, expected {self._learnt!r} as when the "
                "loader was made; keep their keys, dtypes and shapes of rows, or make a new loader"
            )

    def learn(self) -> None:
        """Set the spec of the arrays; a given one may only convert them."""
        if self.collates:
            from ringfeed.datasets.trial import learn_from_batch  # noqa: PLC0415 - not for workers

            learn_from_batch(self)
            return
        inferred, _ = Spec.infer_batch(self.dataset, 0)
        given = self.terms.given_spec()
        if self.function is not None:
            from ringfeed.datasets.first import first_of  # noqa: PLC0415 - not for workers

            made = first_of(self, lambda made, _: made) if self.reads_first() else None
            if not self.in_place:
                self.accept(Spec.infer(made, 0) if given is None else given, self.indices)
                return
        spec = inferred if given is None else given
        if any(leaf.form is not None for leaf in spec.leaves):
            from ringfeed.spec.form_arrays import refuse_columns  # noqa: PLC0415 - rarely

            refuse_columns(spec)
        if inferred != spec:
            from ringfeed.spec.columns import check_columns  # noqa: PLC0415 - only where needed

            check_columns(spec, inferred, self.terms.spec)
        if not any(leaf.casts for leaf in spec.leaves):
            self._learnt = inferred.tree
        self.accept(spec, self.indices)

    def element(self, index: int) -> Any:
        """Return a row of all arrays."""
        return Rows(self.dataset)[index]

    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Gather rows in C, unless each goes through the user's functions."""
        if reader.make is not None or reader.source.collates:
            return reader.by_element(reader.reseeded(Rows(dataset, copied=True).__getitem__))
        return reader.by(reader.writer.gather, dataset)


def _convert_again(given: Any, columns: Any) -> None:
    """Convert the columns that the user's dataset has now.

    The dicts stay the same objects, since readers in this process hold them.
    """
    if isinstance(given, dict):
        from ringfeed.spec.columns import columns_of  # noqa: PLC0415 - only where needed

        now = columns_of(dict(given), [*leaves_of(given)], is_whole=False, has_spec=False)
        columns.update(now)
        for key in columns.keys() - now.keys():
            del columns[key]
    elif isinstance(given, tuple):
        for child, converted in zip(given, columns, strict=True):
            _convert_again(child, converted)


def leaf_arrays(dataset: Any) -> list[np.ndarray[Any, Any]] | None:
    """Return the arrays of a nested tuple or dict of arrays, or None for any other dataset."""
    leaves = [leaf for _, leaf in leaves_of(dataset)]
    return leaves if all(isinstance(leaf, np.ndarray) for leaf in leaves) else None


def leaves_of(branch: Any, path: str = "dataset") -> Iterator[tuple[str, Any]]:
    """Yield what is no tuple or dict, or an empty one, each with where it stands."""
    if isinstance(branch, tuple | dict) and branch:
        for key, child in branch.items() if isinstance(branch, dict) else enumerate(branch):
            yield from leaves_of(child, f"{path}[{key!r}]")
    else:
        yield path, branch


class Rows:
    """A dataset of arrays, row by row; ``copied``: for what may change a row in place."""

    def __init__(self, columns: Any, *, copied: bool = False) -> None:
        self.columns = columns
        self.copied = copied

    def __getitem__(self, index: int) -> Any:
        return self._row(self.columns, index)

    def _row(self, columns: Any, index: int) -> Any:
        if isinstance(columns, dict):
            return {key: self._row(child, index) for key, child in columns.items()}
        if isinstance(columns, tuple):
            parts = [self._row(child, index) for child in columns]
            return columns._make(parts) if hasattr(columns, "_make") else tuple(parts)
        row = np.asarray(columns)[index, ...]
        return row.copy() if self.copied else row

"""Datasets of columns: a tuple or dict of equally long arrays, whose rows are gathered in C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.data.base import Source
from ringfeed.data.rows import Rows
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.data.reader import Fill, Reader
    from ringfeed.data.terms import Terms


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
        if any(leaf.form is not None for leaf in spec.leaves):
            from ringfeed.forms.checks import refuse_columns  # noqa: PLC0415 - its room

            refuse_columns(spec)
        if inferred != spec:
            from ringfeed.coercion.columns import check_columns  # noqa: PLC0415 - its room

            check_columns(spec, inferred, self.terms.spec)
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


def leaf_arrays(dataset: Any) -> list[np.ndarray[Any, Any]] | None:
    """Return the arrays of a tuple or dict (nested, perhaps) of arrays, or None for any other dataset."""
    leaves = [leaf for _, leaf in leaves_of(dataset)]
    return leaves if all(isinstance(leaf, np.ndarray) for leaf in leaves) else None


def leaves_of(branch: Any, path: str = "dataset") -> Iterator[tuple[str, Any]]:
    """Yield what is no tuple or dict, or an empty one, each with where it stands."""
    if isinstance(branch, tuple | dict) and branch:
        for key, child in branch.items() if isinstance(branch, dict) else enumerate(branch):
            yield from leaves_of(child, f"{path}[{key!r}]")
    else:
        yield path, branch

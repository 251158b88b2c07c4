"""Decides once the kind of a dataset; refuses anything else, and says what to give instead.

No framework is imported: its objects are recognised by the names of their classes.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import class_names, is_iterable
from ringfeed.datasets.arrays import ArraySource, leaf_arrays, leaves_of
from ringfeed.datasets.indexed import IndexedSource

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.datasets.terms import Terms

_SERIES = {"pandas.Series", "polars.Series"}
_TABLES = {
    "pandas.DataFrame": "columns",
    "polars.DataFrame": "columns",
    "pyarrow.Table": "column_names",
}
_OF_BATCHES = {
    "torch.DataLoader",
    "ringfeed.Loader",
    "ringfeed.Epochs",
    "ringfeed.LoaderAdapter",
    "ringfeed.BatchIterator",
    "ringfeed.Repeated",
}


def open_source(dataset: Any, terms: Terms, *functions: Any) -> Source:
    """Return the source of a dataset, or raise the reason why there is none.

    Nothing is read here: `Source.learn` reads the first sample.

    ``functions``: the user's functions that the workers run, in the order of `Functions`; or None.

    Raises TypeError for an object that is no dataset, ValueError for settings that do not fit it,
    SpecError for invalid columns.
    """
    if any(one is not None for one in functions):
        from ringfeed.datasets.functions import Functions  # noqa: PLC0415 - only where needed

        given = Functions(*functions)
        given.check(terms.batch_size)
        terms = terms._replace(functions=given)
    if (of_own := getattr(type(dataset), "__ringfeed_source__", None)) is not None:
        own: Source = of_own(dataset, terms, open_source)
        return own
    names = class_names(dataset)
    _refuse(dataset, names, terms)
    columns = _columns_of(dataset, names, terms)
    if leaf_arrays(columns) is not None:
        return ArraySource(dataset, columns, terms)
    if is_iterable(dataset):
        if not hasattr(type(dataset), "__iter__"):
            _check_function(dataset)
        from ringfeed.datasets.streams import StreamSource  # noqa: PLC0415 - if needed

        return StreamSource(dataset, terms)
    _check_indexable(dataset, terms.batch_size)
    is_async = _is_async(type(dataset))
    source = IndexedSource(dataset, dataset, terms._replace(waits=terms.waits or is_async))
    source.is_async = is_async
    return source


def _columns_of(dataset: Any, names: set[str], terms: Terms) -> Any:
    """Return columns of any package as NumPy arrays; return other datasets unchanged."""
    if not isinstance(dataset, tuple | list | dict) and _SERIES.isdisjoint(names):
        return dataset
    leaves = [*leaves_of(dataset)]
    if all(isinstance(leaf, np.ndarray) for _, leaf in leaves):
        return dataset
    from ringfeed.spec.columns import columns_of  # noqa: PLC0415 - only where it is needed

    return columns_of(
        dataset, leaves, is_whole=terms.batch_size is None, has_spec=terms.spec is not None
    )


def add_weights(source: Source) -> None:
    """Add sample numbers and weights to samples; ValueError if a row is no sample."""
    if source.whole:
        raise ValueError(
            "PrioritizedSampler draws single samples, and with batch_size=None dataset[i] is a "
            "whole batch; give a dataset of samples and a batch_size"
        )
    if source.collates:
        raise ValueError(
            "PrioritizedSampler has an index and a weight for each row, and collate_fn= may make "
            "any rows of the samples; give transform= or batch_transform="
        )
    source.has_weights = True


def open_readers(source: Source, concurrency: int, readers: int, max_attempts: int) -> None:
    """Let each worker read many samples at a time, or some workers read for the others.

    0: neither.
    """
    if concurrency:
        from ringfeed.reading.waiting import open_waiting  # noqa: PLC0415 - if needed

        open_waiting(source, concurrency)
    if readers:
        from ringfeed.reading.relay import open_relay  # noqa: PLC0415 - only where it is needed

        open_relay(source, max_attempts)


# ---- what is no dataset ----


def _refuse(dataset: Any, names: set[str], terms: Terms) -> None:
    """Raise TypeError for an object that is no dataset, ValueError for a wrong max_batch_size.

    ``names``: of its classes.
    """
    kind, batch_size, text = type(dataset).__name__, terms.batch_size, ""
    tables = [_TABLES[name] for name in _TABLES if name in names]
    if isinstance(dataset, str | bytes | os.PathLike):
        text = (
            f"{dataset!r} is a {kind}, expected a dataset and not the name of one; read it into "
            "arrays, or give an object whose __getitem__(i) reads sample i"
        )
    elif tables:
        text = (
            f"a {kind} has no rows by number, expected a dataset; "
            f"give its columns: {{name: table[name].to_numpy() for name in table.{tables[0]}}}"
        )
    elif not _OF_BATCHES.isdisjoint(names) and batch_size is not None:
        text = (
            f"{_a(kind)} makes batches itself, expected a dataset of samples; give the loader's "
            ".dataset, or batch_size=None to have its batches as they are"
        )
    elif any(name.startswith("scipy.") for name in names) and hasattr(dataset, "toarray"):
        text = (
            f"{_a(kind)} has no rows that are arrays, expected a dataset; give a tuple of its "
            ".toarray() if that fits in memory, or an object whose __getitem__(i) makes row i "
            "dense"
        )
    elif isinstance(dataset, type) and callable(getattr(dataset, "__getitem__", None)):
        text = (
            f"{dataset.__name__} is a class, expected a dataset; give an instance: "
            f"{dataset.__name__}(...)"
        )
    if text:
        raise TypeError(text)
    collates = terms.functions is not None and terms.functions.collate_fn is not None
    if terms.max_batch_size is not None and batch_size is not None and not collates:
        raise ValueError(
            f"max_batch_size={terms.max_batch_size} is for datasets of whole batches, for "
            "batch_sampler= and for collate_fn=; with batch_size= alone leave it out"
        )


def _is_async(kind: type) -> bool:
    """Whether the class reads samples with ``async def``.

    Raises TypeError if another method is async.
    """
    for name in ("read_into", "__getitems__"):
        if inspect.iscoroutinefunction(getattr(kind, name, None)):
            raise TypeError(
                f"{name} of {kind.__name__} is async def, and only __getitem__ may be; leave "
                f"{name} out, and give concurrency= samples that are awaited at a time"
            )
    return inspect.iscoroutinefunction(getattr(kind, "__getitem__", None))


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def _check_function(function: Any) -> None:
    """Raise TypeError for a function that cannot be called for an iterable."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some builtins
        return
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        if name == "<lambda>":
            text = (
                f"a lambda of {signature} is no dataset: give an object whose __len__ is the "
                "number of samples and whose __getitem__(i) calls it or, for an iterable, a "
                "lambda without arguments that returns one"
            )
        else:
            text = (
                f"{name}{signature} cannot be called without arguments ({error}), as a function "
                f"that returns an iterable is; give lambda: {name}(...)"
            )
        raise TypeError(text) from None


def _check_indexable(dataset: Any, batch_size: int | None) -> None:
    """Refuse an object without samples by number, and a Keras PyDataset with a batch_size."""
    if not callable(getattr(type(dataset), "__getitem__", None)):
        raise TypeError(
            f"{_a(type(dataset).__name__)} is no dataset: it has neither __getitem__ nor __iter__; "
            "give an object with __len__ and __getitem__, a tuple or dict of arrays, or an "
            "iterable"
        )
    of_keras = ("use_multiprocessing", "max_queue_size", "workers")
    if batch_size is not None and all(hasattr(dataset, name) for name in of_keras):
        raise ValueError(
            f"batch_size={batch_size} for a {type(dataset).__name__}, which is a Keras dataset: "
            "its items are whole batches already; give batch_size=None"
        )

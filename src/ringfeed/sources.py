"""What a dataset is, decided once.

    mix         several of those below, in `Mix`                MixSource
    pack        rows of samples of one of them, in `Pack`       PackSource
    arrays      a tuple or dict of equally long arrays          ArraySource
    streams     an iterable, or several in `Interleave`         StreamSource
    batches     batch_size=None: dataset[i] is a whole batch    BatchSource, also of `Passes`
    samples     any other object with __getitem__               SampleSource

No worker imports this module: it unpickles the one source that it reads from.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

from ringfeed._classes import class_names
from ringfeed.data.arrays import ArraySource, columns_of, leaf_arrays
from ringfeed.data.batches import BatchSource
from ringfeed.data.passes import Passes
from ringfeed.data.samples import SampleSource
from ringfeed.data.streams import StreamSource, is_iterable
from ringfeed.datasets.mix import Mix, MixSource
from ringfeed.datasets.pack import Pack, PackSource
from ringfeed.transforms.collating import CollateSource, FirstBatch
from ringfeed.transforms.source import AsIs, TransformSource, Trial
from ringfeed.waiting.sources import of_elements

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.data.base import Source, Terms
    from ringfeed.transforms.functions import Functions

_TABLES = {"pandas.DataFrame": "columns", "polars.DataFrame": "columns", "pyarrow.Table": "column_names"}
_OF_DATASETS: tuple[tuple[type, Callable[..., Source]], ...] = ((Mix, MixSource), (Pack, PackSource))
_MAKES_BATCHES = {"torch.DataLoader", "ringfeed.Loader"}
_GIVES_BATCHES = {"ringfeed.Reiterable", "ringfeed.LoaderAdapter", "ringfeed.BatchIterator", "ringfeed.Repeated"}


def open_source(dataset: Any, terms: Terms, functions: Functions | None = None) -> Source:
    """Decide once what a dataset is, or say what is wrong with it; nothing is read before `Source.learn`.

    ``functions``: what the workers do with its samples.

    Raises TypeError for what is no dataset, ValueError for settings that do not fit it, SpecError for columns that are
    none.
    """
    if functions is not None:
        functions.check(terms.batch_size)
        return _with_functions(dataset, terms, functions)
    batch_size = terms.batch_size
    if isinstance(dataset, Passes):
        return dataset.take_over(BatchSource(dataset.dataset, dataset.dataset, terms))
    for kind, of_kind in _OF_DATASETS:
        if isinstance(dataset, kind):
            return of_kind(dataset, terms, open_source)
    if refusal := _refusal(dataset, batch_size):
        raise TypeError(refusal)
    if terms.max_batch_size is not None and batch_size is not None and terms.collate is None:
        message = (
            f"max_batch_size={terms.max_batch_size} is for datasets of whole batches, for batch_sampler= and for "
            f"collate_fn=; with batch_size= alone leave it out"
        )
        raise ValueError(message)
    columns = columns_of(dataset, terms)
    if leaf_arrays(columns) is not None:
        return ArraySource(dataset, columns, terms)
    elements = BatchSource if batch_size is None else SampleSource
    if is_iterable(dataset):
        return StreamSource(dataset, terms, elements)
    _check_indexable(dataset)
    if batch_size is not None:
        _refuse_keras_batches(dataset, batch_size)
    return of_elements(elements, dataset, terms)


def _with_functions(dataset: Any, terms: Terms, functions: Functions) -> Source:
    """Return the source of a dataset whose samples the functions change."""
    collate = functions.collate_fn
    if collate is None:
        trial = None if functions.transform is None else Trial(functions.transform)
        return TransformSource(open_source(dataset, terms._replace(trial=trial)), functions)
    if terms.batch_size is None:
        return TransformSource(open_source(dataset, terms._replace(trial=AsIs(collate))), functions)
    trial = None if functions.transform is None else Trial(functions.transform)
    return CollateSource(open_source(dataset, terms._replace(trial=trial, collate=FirstBatch(collate))), functions)


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
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


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
            f"a {type(dataset).__name__} is no dataset: it has neither __getitem__ nor __iter__; "
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

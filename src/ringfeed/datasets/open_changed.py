"""The source of a dataset whose samples the user's functions change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.datasets.collating import CollateSource, FirstBatch
from ringfeed.datasets.functions import Functions
from ringfeed.datasets.transformed import AsIs, TransformSource, Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.terms import Terms


def open_changed(
    dataset: Any, terms: Terms, given: tuple[Any, ...], open_source: Callable[[Any, Terms], Source]
) -> Source:
    """Return the source of a dataset whose samples these functions change; errors as of ``open_source``."""
    functions = Functions(*given)
    functions.check(terms.batch_size)
    collate = functions.collate_fn
    if collate is None:
        trial = None if functions.transform is None else Trial(functions.transform)
        return TransformSource(open_source(dataset, terms._replace(trial=trial)), functions)
    if terms.batch_size is None:
        return TransformSource(open_source(dataset, terms._replace(trial=AsIs(collate))), functions)
    trial = None if functions.transform is None else Trial(functions.transform)
    return CollateSource(open_source(dataset, terms._replace(trial=trial, collate=FirstBatch(collate))), functions)

"""The first element of a dataset, read in the consumer, or in a process of its own, to learn what a sample is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ringfeed.errors import SpecError, StallError, WorkerError
from ringfeed.orders.rng import SampleContext, installed
from ringfeed.spec.spec import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source

MAX_NOTHING = 1000  # batches of None that are read to find one that is none
MAX_FAILED = 32  # elements that fail before one does not
_T = TypeVar("_T")


def first_of(source: Source, look: Callable[[Any, int], _T]) -> _T:
    """Return what ``look`` sees of element 0 and its index, to learn the spec from.

    Whole batches of None are passed over and, with ``on_error="skip"``, elements that fail, up to
    `MAX_FAILED`.
    """
    length, failed = source.length(), list[Exception]()
    if length == 0:
        raise SpecError(
            "the dataset is empty, so there is no sample to infer the spec from; give spec="
        )
    last = MAX_NOTHING if length is None else min(length, MAX_NOTHING)
    for index in range(last):
        try:
            element = read(source, index)
            if element is not None or not source.whole:
                return look(element, index)
        except Exception as error:
            if source.terms.on_error != "skip" or isinstance(error, StallError):
                raise
            failed.append(error)
            if len(failed) == MAX_FAILED:
                break
    if failed:
        raise SpecError(_cannot_skip(source, failed)) from failed[0]
    raise SpecError(f"the dataset gives None in the place of its first {last} batches; give spec=")


def read(source: Source, index: int) -> Any:
    """Return an element of the dataset, to learn the spec from, with its own random numbers."""
    context, before = SampleContext(source.seed, index=index), installed.context
    try:
        installed.context = context
        element = source.element(index)
        return element if source.terms.trial is None else source.terms.trial(element)
    except (SystemExit, GeneratorExit) as error:
        # It would end the training here, as if it were done, though only a sample's code asked for
        # an end.
        message = (
            f"{source.describe(index)}, read for the spec, raised {type(error).__name__}: {error}"
        )
        raise WorkerError(message.removesuffix(": ")) from error
    finally:
        installed.context = before


def _cannot_skip(source: Source, failed: list[Exception]) -> str:
    first, what = source.first_words
    what = "batches" if source.whole else what
    raised = f"{type(failed[0]).__name__}: {failed[0]}".removesuffix(": ")
    raised = (
        raised
        if len(failed) == 1
        else f"{raised}, and the {len(failed) - 1} {what} read after it failed, too"
    )
    if source.terms.spec is not None:
        return (
            f"{first}, read to see what the functions given to the loader make of it, raised "
            f"{raised}; on_error='skip' leaves none out before that is known: put a good one first"
        )
    remedy = "spec= and max_batch_size=" if source.whole else "spec="
    return (
        f"{first}, read for the spec, raised {raised}; on_error='skip' leaves none out before the "
        f"spec is known: give {remedy}"
    )


def packages_in(sample: object) -> frozenset[str]:
    """Name the packages whose objects a sample holds."""
    sample = plain(sample)
    if not isinstance(sample, tuple | list | dict):
        return frozenset(
            [type(sample).__module__.partition(".")[0].replace("jaxlib", "jax")]
        )  # one needs the other
    children = sample.values() if isinstance(sample, dict) else sample
    return frozenset[str]().union(*map(packages_in, children))

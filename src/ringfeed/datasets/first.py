"""The first element of a dataset, read before any worker starts, to learn what a sample is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ringfeed.errors import SpecError, StallError, WorkerError
from ringfeed.orders.rng import SampleContext, installed
from ringfeed.spec.spec import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
            if not source.skips or isinstance(error, StallError):
                raise
            failed.append(error)
            if len(failed) == MAX_FAILED:
                break
    if failed:
        raise SpecError(_cannot_skip(source, failed)) from failed[0]
    raise SpecError(f"the dataset gives None in the place of its first {last} batches; give spec=")


def read(source: Source, index: int) -> Any:
    """Return an element of the dataset, to learn the spec from, with its own random numbers."""
    with sample_context(source, index, f"{source.describe(index)}, read for the spec,"):
        element = source.element(index)
        if source.function is None or (source.whole and element is None):
            return element
        from ringfeed.datasets.trial import made_of  # noqa: PLC0415 - only where needed

        return made_of(source, element)


@contextmanager
def sample_context(source: Source, index: Any, what: str) -> Iterator[None]:
    """Give the user's code the random numbers of a sample or batch; its SystemExit ends nothing."""
    context, before = SampleContext(source.seed, index=index), installed.context
    try:
        installed.context = context
        yield
    except (SystemExit, GeneratorExit) as error:
        # It would end the training here, as if it were done, though only a sample's code asked for
        # an end.
        raise WorkerError(raised_text(what, error)) from error
    finally:
        installed.context = before


def raised_text(what: str, error: BaseException) -> str:
    """Say that something has raised an error."""
    return f"{what} raised {type(error).__name__}: {error}".removesuffix(": ")


def _cannot_skip(source: Source, failed: list[Exception]) -> str:
    first = source.describe(0)
    why, known = "for the spec", "the spec is known: give spec="
    if source.whole:
        known += " and max_batch_size="
    if source.terms.spec is not None:
        why = "to see what the functions given to the loader make of it"
        known = "that is known: put a good one first"
    raised = raised_text(f"{first}, read {why},", failed[0])
    if len(failed) > 1:
        raised += f", and the {len(failed) - 1} read after it failed, too"
    return f"{raised}; on_error='skip' leaves none out before {known}"


def packages_in(sample: object) -> frozenset[str]:
    """Name the packages whose objects a sample holds."""
    sample = plain(sample)
    if not isinstance(sample, tuple | list | dict):
        # One needs the other.
        return frozenset([type(sample).__module__.partition(".")[0].replace("jaxlib", "jax")])
    children = sample.values() if isinstance(sample, dict) else sample
    return frozenset[str]().union(*map(packages_in, children))

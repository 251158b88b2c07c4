"""What went wrong with an epoch, as the error that the engine raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ringfeed._failure import Death, decode
from ringfeed.errors import (
    FunctionError,
    RingfeedError,
    SlotsHeldError,
    SpecError,
    StallError,
    WorkerError,
)
from ringfeed.monitor.lease_tracker import LeaseTracker, show_ages, summed_up
from ringfeed.ring import _ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.monitor._snapshot import Observer
    from ringfeed.spec.array import Leaf

WAYS_OUT = "copy what you keep, raise slots=, or give copy=True"
_NAMED = 4  # samples
_BODY = '/ringfeed/workers/worker_main.py"'
_CAUSE = (
    "the likely cause is a read_into, or a C extension that the dataset calls, which writes past "
    "its own row: look there"
)


class Loss(NamedTuple):
    """The error of a batch, and the rows that `Stats` counts as left out."""

    error: RingfeedError | None = None
    skipped: Sequence[int] = ()
    is_none: bool = False


Failed: TypeAlias = list[tuple[int, int, int]]  # row, index and mark of each


def slots_held(
    observer: Observer, lease_tracker: LeaseTracker, copied_by: str = ""
) -> SlotsHeldError:
    """Return the error for slots that are all held.

    ``copied_by`` says how their framework copies a batch that is to be kept.
    """
    since_ns = observer.held_since_ns()
    way = f" ({copied_by})" if copied_by else ""
    return SlotsHeldError(
        f"all {_held(since_ns, lease_tracker)}, so no batch can be filled; {WAYS_OUT}{way}"
    )


def slots_kept(observer: Observer, lease_tracker: LeaseTracker) -> str:
    """Say that all slots are held but the one of the batch just taken, and since when."""
    since_ns = observer.held_since_ns()[:-1]
    held = f"{len(since_ns)} of {_held(since_ns, lease_tracker, observer.consumer().open_slots)}"
    return (
        f"{held}, so batches are handed out as private copies until a slot comes back; {WAYS_OUT}"
    )


def _held(since_ns: list[int], lease_tracker: LeaseTracker, slots: int | None = None) -> str:
    """Say for how long views have held slots and, with `debug`, where they were taken."""
    now_ns = _ring.now_ns()
    ages = show_ages([(now_ns - taken_ns) / 1e9 for taken_ns in since_ns])
    places = [place for taken_ns in since_ns if (place := lease_tracker.where_taken(taken_ns))]
    where = f": {summed_up(places)}" if places else "; ringfeed.debug() says where"
    count = len(since_ns) if slots is None else slots
    return f"{count} slots are held by arrays that are still referenced (taken {ages} s ago{where})"


def stalled(
    observer: Observer,
    source: Source,
    lines: Sequence[str],
    timeout_s: float | None,
    *,
    are_forked: bool = False,
) -> StallError:
    """Say in which samples the workers are; ``lines`` describe each of them."""
    inside = [worker.inside for worker in observer.workers() if worker.inside is not None]
    stuck = f"{len(inside)} of {len(lines)} workers" if inside else "no worker"
    where = f"{stuck} inside {source.describe_all(inside)}"
    message = f"no batch for {timeout_s:g} s: {where}; raise timeout_s or look there"
    if are_forked:
        message += (
            ", or give backend='process', with ringfeed.torch "
            "multiprocessing_context='forkserver': a forked worker lacks the threads that "
            "libraries such as polars and tensorstore have started here, and a call that waits "
            "for them never ends"
        )
    return StallError("\n".join([message, *map(_without_start, lines)]))


def _without_start(described: str) -> str:
    """Leave out the frames from the worker's own body on: they are how each worker starts."""
    lines = described.splitlines()
    body = next((n for n, line in enumerate(lines) if _BODY in line), len(lines))
    return "\n".join(lines[:body])


_DAMAGES = {
    "header": "the control block was overwritten: its first lines",
    "record": "the control block was overwritten: the record of the slot of {where}",
    "cell": "the control block was overwritten: the word or the seal of {where}",
    "indices": "the slot was overwritten: the indices of {where}",
    "failure": "the slot was overwritten: the failures of {where}",
}


def overwritten(damage: tuple[str, int, int, int, list[int]], source: Source) -> WorkerError:
    """Return the error for shared memory that a worker has written over; see `Ring.damage`."""
    what, batch, first, rows, indices = damage
    near = f" ({', '.join(map(source.describe, indices[:_NAMED]))}" if indices else ""
    more = f" and {rows - _NAMED} more)" if len(indices) > _NAMED else ")" if indices else ""
    which = f"row {first}" if rows == 1 else f"rows {first} to {first + rows - 1}"
    thing = _DAMAGES[what].format(where=f"{which} of batch {batch}{near}{more}")
    return WorkerError(
        f"{thing} are not as they were left; {_CAUSE}; what was not delivered is lost, and the "
        "next epoch begins with fresh memory"
    )


def sample_failed(
    lease: _ring.Lease,
    failed: Failed,
    source: Source,
    death_of: Callable[[int, int], Death],
    max_attempts: int,
) -> RingfeedError:
    """Return the first failure of a batch as an error; ``death_of``: of a batch and a row."""
    row, index, mark = failed[0]
    more = f" ({len(failed) - 1} more of this batch failed)" if len(failed) > 1 else ""
    if mark == _ring.ROW_KILLED:
        place, death = source.describe_read(row, index, lease.epoch), death_of(lease.batch, row)
        if death.stage:
            place, more = (
                f"{_batch_of([index for _, index, _ in failed], source)}: {death.stage}",
                "",
            )
        workers = "its worker" if max_attempts == 1 else f"{max_attempts} workers"
        return WorkerError(
            f"{place} ended {workers}{more}; the last one {death.reason}; try it with workers=0"
        )
    return _raised(dict(lease.failures()).get(row), source.describe(index, lease.epoch), more)


def _raised(record: bytes | None, place: str, more: str) -> RingfeedError:
    """Return the error for a sample that failed; ``record``: what its worker says of it."""
    if record is None:
        return WorkerError(
            f"the slot was overwritten: {place} is marked as failed, and no worker has said why; "
            f"{_CAUSE}"
        )
    failure = decode(record)
    if isinstance(failure.error, SpecError | FunctionError):  # whose text says all
        kind = SpecError if isinstance(failure.error, SpecError) else WorkerError
        error: RingfeedError = kind(f"{failure.error}{more}")
        error.__cause__ = failure.error.__cause__
    else:
        error = WorkerError(f"{place} raised {failure.summary}{more}")
        error.__cause__ = failure.error
    return error


def _batch_of(indices: Sequence[int], source: Source) -> str:
    named = ", ".join(map(source.describe, indices[:_NAMED]))
    return f"the batch of {named}" + (
        f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    )


def over_total(indices: Sequence[int], leaf: Leaf, need: int, source: Source) -> SpecError:
    """Return the error for a batch whose samples together exceed the room of a leaf."""
    assert leaf.form is not None
    if leaf.form.total is not None and need <= leaf.form.total:
        return SpecError(
            f"{_batch_of(indices, source)}: {leaf.path} needs {need} {leaf.form.unit} of "
            f"total={leaf.form.total}, but samples came in other lengths when they were read again "
            "after a death, and room was lost; have dataset[i] return the same sample each time, "
            "as with ringfeed.rng(), or raise total= in spec="
        )
    return SpecError(
        f"{_batch_of(indices, source)}: {leaf.path} needs {need} {leaf.form.unit}, expected at "
        f"most total={leaf.form.total} a batch; raise total= in spec=, or make batch_size smaller"
    )


def source_ended(stream: str, record: bytes) -> WorkerError:
    """Return the error that ended an iterable, from the record of its end."""
    failure = decode(record)
    if isinstance(failure.error, FunctionError):  # whose text says all
        return WorkerError(str(failure.error))
    error = WorkerError(f"{stream} was ended by {failure.summary}")
    error.__cause__ = failure.error
    return error

"""What went wrong with an epoch, in the words of the error that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ringfeed import _ring
from ringfeed.errors import RingfeedError, SlotsHeldError, SpecError, StallError, WorkerError
from ringfeed.failure import Kind, decode
from ringfeed.origins import show_ages, summed_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.origins import Origins
    from ringfeed.pool import Pool
    from ringfeed.settings import Settings
    from ringfeed.source import Recipe

Failed: TypeAlias = list[tuple[int, int, int]]  # row, index and mark of each


def slots_held(ring: _ring.Ring, origins: Origins) -> SlotsHeldError:
    """Say for how long views have held the slots and, with `debug`, where they were taken."""
    now_ns, since_ns = _ring.now_ns(), sorted(ring.held_since_ns())
    ages = show_ages([(now_ns - taken_ns) / 1e9 for taken_ns in since_ns])
    places = [place for taken_ns in since_ns if (place := origins.told(taken_ns))]
    where = f": {summed_up(places)}" if places else "; ringfeed.debug() says where"
    return SlotsHeldError(
        f"all {len(since_ns)} slots are held by arrays that are still referenced (taken {ages} s ago{where}), "
        f"so no batch can be filled; copy what you keep, raise slots=, or give copy=True"
    )


def stalled(ring: _ring.Ring, recipe: Recipe, lines: Sequence[str], timeout_s: float | None) -> StallError:
    """Say in which samples the workers are; ``lines`` describe each of them."""
    at = [ring.report(number)[0] for number in range(ring.ids)]
    inside = [index for index in at if index is not None]
    who = f"{len(inside)} of {len(lines)} workers" if inside else "no worker"
    message = f"no batch for {timeout_s:g} s: {who} inside {recipe.places(inside)}; raise timeout_s or look there"
    return StallError("\n".join([message, *lines]))


def sample_failed(lease: _ring.Lease, failed: Failed, recipe: Recipe, pool: Pool, settings: Settings) -> RingfeedError:
    """Return the first failure of a batch as an error."""
    row, index, mark = failed[0]
    place = recipe.place(index)
    more = f" ({len(failed) - 1} more of this batch failed)" if len(failed) > 1 else ""
    if mark == _ring.ROW_KILLED:
        death = pool.death_of(lease.batch, row)
        workers = "its worker" if settings.max_attempts == 1 else f"{settings.max_attempts} workers"
        return WorkerError(f"{place} ended {workers}{more}; the last one {death}; try it with workers=0")
    failure = decode(dict(lease.failures())[row])
    if isinstance(failure.error, SpecError):
        error: RingfeedError = SpecError(f"{failure.error}{more}")
        error.__cause__ = failure.error.__cause__
    else:
        error = WorkerError(f"{place} raised {failure.summary}{more}")
        error.__cause__ = failure.error
    return error


def source_ended(whose: str, record: bytes) -> WorkerError:
    """Return the error that ended an iterable, from the record of its end."""
    failure = decode(bytes([Kind.ERROR]) + record[1:])
    error = WorkerError(f"{whose} was ended by {failure.summary}")
    error.__cause__ = failure.error
    return error

"""A segment's mapping into a process: all that a worker needs of it."""

from __future__ import annotations

import fcntl
import resource

from ringfeed.errors import PlanError
from ringfeed.ring import _ring


def open_ring(
    control_fd: int, slots_fd: int, sizes: tuple[int, int], fresh: dict[str, int] | None = None
) -> _ring.Ring:
    """Map a segment into this process.

    ``fresh``: the geometry of one that this process has just made, which its forked children
    inherit.

    Raises ValueError for what is no segment of this version, PlanError where there is no room for
    it.
    """
    for fd in (control_fd, slots_fd):
        if fresh is None and not _is_sealed(fd):
            raise ValueError(
                "this is no segment of ringfeed: its size is not sealed, so that reading it could "
                "be a SIGBUS"
            )
    try:
        return _ring.Ring(control_fd, slots_fd, *sizes, fresh)
    except OSError as error:
        raise PlanError(no_map(sum(sizes), error.strerror)) from error


def no_map(size: int, why: str | None) -> str:
    """Say why shared memory cannot be mapped, and what to do."""
    from ringfeed._units import show_bytes  # noqa: PLC0415 - no worker needs it
    from ringfeed.system.machine import show_limit  # noqa: PLC0415 - likewise

    return (
        f"cannot map {show_bytes(size)} of shared memory: {why}; RLIMIT_AS (ulimit -v) is "
        f"{show_limit(resource.RLIMIT_AS)}; raise it, use fewer slots, or memory="
    )


def _is_sealed(fd: int) -> bool:
    """Whether it is a memfd whose size can no longer change."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:  # no memfd
        return False

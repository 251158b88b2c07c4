"""The shared memory of one loader: two sealed memfds without a name, so that nothing can be left behind."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from ringfeed import _ring
from ringfeed.errors import PlanError
from ringfeed.plan import show_bytes, worker_ids

if TYPE_CHECKING:
    from ringfeed.plan import Plan


STDERR = 2


def keep_standard_descriptors() -> None:
    """Open /dev/null for each closed standard stream: C code would print into a memfd that got its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)  # noqa: FBT003 - the name says it
    os.close(fd)


def reserve(name: str, size: int) -> int:
    """Return a memfd of ``size`` zeroed bytes, all reserved, whose size nobody can change any more."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        message = f"cannot create shared memory: memfd_create: {error.strerror}"
        raise PlanError(message) from error
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        message = f"cannot reserve {show_bytes(size)} of shared memory: {error.strerror}; use fewer slots, or memory="
        raise PlanError(message) from error
    return fd


class Segment:
    """The control block and the slots that a plan describes. Mappings outlive ``close``, its descriptors do not."""

    def __init__(self, plan: Plan, spin_ns: int = 0) -> None:
        """Reserve and format everything, or raise PlanError and leave nothing.

        ``spin_ns``: how long a waiter looks again before it sleeps, while batches come quicker than that.
        """
        keep_standard_descriptors()
        layout = plan.layout
        self.control_size = plan.control_size
        self.slots_size = plan.slots * plan.slot_size
        self.control_fd = reserve("ringfeed-control", self.control_size)
        try:
            _ring.format_control(
                self.control_fd,
                self.control_size,
                plan.slots,
                layout.cells,
                max(plan.workers, 1),
                layout.indices,
                worker_ids(plan.workers),
                layout.slot_size,
                layout.indices_at,
                layout.marks_at,
                layout.failures_at,
                spin_ns,
            )
            self.slots_fd = reserve("ringfeed-slots", self.slots_size)
        except BaseException:
            os.close(self.control_fd)
            raise

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the control block and of all slots."""
        return self.control_size, self.slots_size

    def open(self) -> _ring.Ring:
        """Return a mapping of the segment for this process, which its forked children inherit."""
        return _ring.Ring(self.control_fd, self.slots_fd, *self.sizes, inherit=True)

    def close(self) -> None:
        """Close the descriptors; once."""
        for name in ("control_fd", "slots_fd"):
            fd = getattr(self, name)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)

"""Memory that processes share: memfds, which have no name, so that nothing can be left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import resource

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError
from ringfeed.system import _system
from ringfeed.system._system import Descriptor

STDERR = 2
FEWER_SLOTS = "use fewer slots, or memory="
_NO_CALL = (
    "; ringfeed needs Linux 3.17 or newer, and a container whose seccomp profile allows "
    "memfd_create"
)
_NO_DESCRIPTOR = "; raise RLIMIT_NOFILE (ulimit -n), or close what keeps descriptors open"
_WAYS = {
    errno.ENOSYS: _NO_CALL,
    errno.EPERM: _NO_CALL,
    errno.EACCES: _NO_CALL,
    errno.EMFILE: _NO_DESCRIPTOR,
}


def keep_standard_descriptors() -> None:
    """Open /dev/null for each closed standard stream.

    C code would print into a memfd that got its number.
    """
    while (opened := Descriptor(os.open, os.devnull, os.O_RDWR)).fileno() <= STDERR:
        os.set_inheritable(opened.detach(), True)  # noqa: FBT003 - the name says it


def reserve(
    name: str, size: int, at_first: int | None = None, remedy: str = FEWER_SLOTS
) -> Descriptor:
    """Return a memfd of ``size`` zeroed bytes, whose size can no longer change.

    All of them are reserved, or as many as ``at_first`` says: the others before they are used.
    ``remedy`` is what the error tells the user to do where there is no room.

    Where only this process uses it, the memory comes with its mapping, and the descriptor tells
    only whether it is in use.
    """
    if not _system.HAS_PROCESSES:
        return Descriptor(os.open, os.devnull, os.O_RDWR)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and size > limit:
        # Asked, as the kernel's answer may be SIGXFSZ.
        message = (
            f"RLIMIT_FSIZE (ulimit -f) is {limit} bytes, and {show_bytes(size)} of shared memory "
            "are needed"
        )
        raise PlanError(f"{message}; raise it, {remedy}")
    try:
        memfd = Descriptor(os.memfd_create, name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        message = f"cannot create shared memory: memfd_create: {error.strerror}"
        raise PlanError(message + _WAYS.get(error.errno or 0, "")) from error
    fd = memfd.fileno()
    try:
        os.fchmod(fd, 0o600)  # or another user could open it by way of /proc
        os.ftruncate(fd, size)
        if at_first is None:
            _system.reserve_huge(fd, size)
        allocate(fd, 0, size if at_first is None else at_first, remedy)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        memfd.close()  # now: the error's traceback keeps what this frame refers to
        raise
    return memfd


def allocate(fd: int, offset: int, size: int, remedy: str = FEWER_SLOTS) -> None:
    """Have the kernel set memory of a memfd aside, or raise PlanError."""
    if not _system.HAS_PROCESSES:
        return
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise PlanError(
            f"cannot reserve {show_bytes(size)} of shared memory: {error.strerror}; {remedy}"
        ) from error

"""What this machine lets a loader have: descriptors, threads, system calls.

Asked before anything starts.

How much memory it has free stands in `monitor.free_memory`.

check_shared()      whether this system has memory that processes share, and what lacks without
in_threads()        said once: workers are threads here
check_processes()   whether worker processes can be started and watched
check_futex()       whether one process can wait for another
reason()            why the kernel refused a process or a descriptor, and what to raise
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

from ringfeed.errors import WorkerError
from ringfeed.system import _system
from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    import threading

HAS_PROCESSES = _system.HAS_PROCESSES
DESCRIPTORS = 12  # of all workers together, and what starting one takes for a moment
DESCRIPTORS_A_WORKER = 3  # its channel, its pidfd, its stack
_FILES, _TASKS, _SPACE = (
    (resource.RLIMIT_NOFILE, "RLIMIT_NOFILE (ulimit -n)"),
    (resource.RLIMIT_NPROC, "RLIMIT_NPROC (ulimit -u)"),
    (resource.RLIMIT_AS, "RLIMIT_AS (ulimit -v)"),
)
_SHORTAGES = {  # a thread's stack takes address space, and its want is told as EAGAIN
    errno.EMFILE: ((_FILES,), "raise it"),
    errno.EAGAIN: ((_TASKS, _SPACE), "raise what is reached, or its cgroup's pids.max"),
    errno.ENOMEM: ((_SPACE,), "raise it, or give the machine or its cgroup more memory"),
}
_REMEDY = "it takes Linux {release} or newer, and a container whose seccomp profile allows it"


_ALONE = (
    f"needs memory that processes share, which ringfeed has on Linux alone; here ({sys.platform})"
)


def check_shared(what: str, remedy: str) -> None:
    """Raise WorkerError where no other process can share memory with this one."""
    if not HAS_PROCESSES:
        raise WorkerError(f"{what} {_ALONE} all runs in one process; {remedy}")


@cache
def in_threads() -> None:
    """Say once that threads do what processes do on Linux."""
    from ringfeed._callers import callers_depth  # noqa: PLC0415 - only where it is said

    warnings.warn(
        f"a worker process {_ALONE} workers are threads, with the same batches, orders and states; "
        "backend='thread' says so without this line",
        RuntimeWarning,
        stacklevel=callers_depth(),
    )


def check_processes(workers: int, own: int = 0) -> None:
    """Raise WorkerError unless so many worker processes can be started, watched and told.

    ``own``: descriptors of theirs that are open already.

    There is no way round a missing pidfd: exit codes and heartbeats have called living workers
    dead, which then wrote into slots that were another's.
    """
    check_shared("a worker process", "use backend='thread', or workers=0")
    _check_descriptors(workers, own)
    call, release = "pidfd_open", "5.3"
    try:
        with Descriptor(os.pidfd_open, os.getpid()) as pidfd:
            call, release = "pidfd_send_signal", "5.1"
            signal.pidfd_send_signal(pidfd.fileno(), 0)  # no signal: it only looks
        call, release = "eventfd2", "2.6.27"
        Descriptor(os.eventfd, 0).close()
    except (OSError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else "this Python was built without it"
        raise WorkerError(
            f"worker processes need the system call {call}, which is refused: {why}; "
            f"{_REMEDY.format(release=release)}; or use backend='thread', or workers=0"
        ) from error


def check_futex() -> None:
    """Raise WorkerError where the C library's own locks do not work.

    It would abort this process in the first wait.
    """
    number = _system.futex_error()
    if number:
        raise WorkerError(
            f"ringfeed needs the system call futex, which is refused: {os.strerror(number)}; "
            f"{_REMEDY.format(release='2.6.28')}"
        )


def _check_descriptors(workers: int, own: int = 0) -> None:
    limit, opened = _descriptors()
    opened -= own
    needed = DESCRIPTORS + workers * DESCRIPTORS_A_WORKER
    if opened + needed <= limit:
        return
    most = (limit - opened - DESCRIPTORS) // DESCRIPTORS_A_WORKER
    fewer = f"workers={most}" if most > 0 else "backend='thread'"
    raise WorkerError(
        f"RLIMIT_NOFILE is {limit}, and workers={workers} needs {needed} descriptors beside the "
        f"{opened} in use; raise it (ulimit -n {opened + needed}), or use {fewer}"
    )


def is_short_of_descriptors(workers: int) -> bool:
    """Whether so many workers more would leave the program less than half of its descriptors."""
    limit, opened = _descriptors()
    return 2 * (opened + DESCRIPTORS + workers * DESCRIPTORS_A_WORKER) > limit


def _descriptors() -> tuple[int, int]:
    """Return how many descriptors this process may have, and has."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize, 0
    try:
        listing = 1  # it has one too
        fds = os.listdir("/proc/self/fd")  # noqa: PTH208
        return limit, sum(int(fd) < limit for fd in fds) - listing
    except FileNotFoundError:  # no /proc: the call that is refused one says so
        return sys.maxsize, 0
    except OSError:
        return limit, limit


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; WorkerError where there is no room for one."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            # It has undone what start() was in the middle of.
            raise error.__context__ from None
        if "can't start new thread" not in str(error):  # all that Python says of a shortage
            raise
        raise WorkerError(
            f"no thread can be started: {reason(OSError(errno.EAGAIN, str(error)))}"
        ) from error


def is_shortage(error: Exception) -> TypeGuard[OSError]:
    """Whether the kernel had no room for what it was asked, so that asking again is in vain.

    A BlockingIOError is a process that does not read its messages.
    """
    if not isinstance(error, OSError) or isinstance(error, BlockingIOError):
        return False
    return error.errno in {*_SHORTAGES, errno.ENFILE}


def reason(error: OSError) -> str:
    """Say why the kernel refused a process or a descriptor, and what to do."""
    if error.errno not in _SHORTAGES:
        return str(error)
    limits, remedy = _SHORTAGES[error.errno]
    shown = ", ".join(f"{name} is {show_limit(limit)}" for limit, name in limits)
    return f"{error.strerror}: {shown}; {remedy}, or use fewer workers"


def show_limit(limit: int) -> str:
    """Return the value of a limit of this process."""
    soft, _ = resource.getrlimit(limit)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def usable_cpus() -> int:
    """Return how many CPUs this process may use; all there are, where it cannot be asked."""
    try:
        return len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # macOS has no such call
        return os.cpu_count() or 1

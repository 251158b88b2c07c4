"""Takes from Python what macOS lacks, so that what runs there can be tried on Linux.

`make test-portable` has each interpreter of its environment import this at its start.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import resource
import select
import signal
import sys

LACKS = {
    os: (
        "memfd_create MFD_ pidfd_open eventfd EFD_ sched_ posix_fallocate posix_fadvise waitid P_PIDFD "
        "splice copy_file_range O_PATH O_TMPFILE"
    ),
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SEAL_ F_SETPIPE_SZ",
    resource: "prlimit",
    select: "epoll EPOLL",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait",
    _socket: "SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SCM_RIGHTS SCM_CREDENTIALS",
}
"""The beginnings of the names that a module of Python's does not have there."""
FOLDERS = ("/proc/", "/sys/", "/dev/shm/")
LOOKS = {"open", "os.listdir", "os.scandir"}
"""The events of Python's own audit that come before something is opened."""


def check(path: object) -> None:
    """Raise FileNotFoundError for what is in a folder that only Linux has."""
    if isinstance(path, str | bytes | os.PathLike) and f"{os.fsdecode(path)}/".startswith(FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def pretend() -> None:
    """Do so, for the rest of this interpreter's life."""
    for module, names in LACKS.items():
        for name in [name for name in vars(module) if name.startswith((*names.split(),))]:
            delattr(module, name)
    sys.addaudithook(lambda event, given: check(given[0]) if event in LOOKS else None)
    stat = os.stat

    def stat_there(path: object, **more: object) -> object:
        check(path)
        return stat(path, **more)  # type: ignore[call-overload]

    os.stat = stat_there


pretend()

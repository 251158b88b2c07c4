"""Pipes of `subprocess.Popen` calls that other threads are in: a process forked now must not keep them.

Popen waits until the last copy of its error pipe is closed, and closes its own copies of the child's ends of pipes
only then. A forked process that never execs would keep all of them open for as long as it lives.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

OPENING_S = 1.0  # what another thread may take to make its pipes, which is microseconds
_INIT: Any = subprocess.Popen.__init__
_EXECUTE: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # noqa: SLF001 - no other way


def pipes_of_launches() -> set[int]:
    """Return the inodes of the pipes that other threads' calls of Popen have made for themselves."""
    deadline = time.monotonic() + OPENING_S
    while True:
        pipes: set[int] = set()
        own = threading.get_ident()
        frames = [frame for ident, frame in sys._current_frames().items() if ident != own]  # noqa: SLF001 - as above
        are_made = [_add_pipes(frame, pipes) for frame in frames]
        if all(are_made) or time.monotonic() > deadline:
            return pipes
        time.sleep(0.0005)


def _add_pipes(frame: FrameType | None, pipes: set[int]) -> bool:
    """Add what the Popen call in this stack has made; False where it is about to make more."""
    while frame is not None:
        if frame.f_code is _EXECUTE.__code__:
            names = frame.f_locals
            fds = [names[name] for name in ("errpipe_read", "errpipe_write") if name in names]
            for theirs, ours in (("p2cread", "p2cwrite"), ("c2pread", "c2pwrite"), ("errread", "errwrite")):
                if min(names[theirs], names[ours]) >= 0:  # both: subprocess.PIPE
                    fds += names[theirs], names[ours]
            pipes.update(filter(None, map(_inode_of_pipe, fds)))
            return "errpipe_write" in names
        if frame.f_code is _INIT.__code__:
            return False
        frame = frame.f_back
    return True


def _inode_of_pipe(fd: int) -> int | None:
    with suppress(OSError):  # closed meanwhile
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode):
            return found.st_ino
    return None


def close_pipes(inodes: Iterable[int]) -> None:
    """Close all descriptors of these pipes."""
    wanted = {*inodes}
    with suppress(FileNotFoundError):  # no /proc
        for fd in map(int, os.listdir("/proc/self/fd") if wanted else ()):  # noqa: PTH208 - names are enough
            if _inode_of_pipe(fd) in wanted:
                os.close(fd)

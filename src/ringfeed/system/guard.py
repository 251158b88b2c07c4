"""Worker processes end with the process that they work for, also where that is killed.

    Lifeline ── a pidfd and a pipe ──▶ become_worker(): a thread, in C, waits for the end of either

No module that takes time to import is needed here: the guard starts first.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed._process import Worker
from ringfeed.system import _system
from ringfeed.system._system import Child, Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_HEAP = 64 * 1024 * 1024
LARGEST_KEPT_BLOCK = 32 * 1024 * 1024


class Lifeline:
    """Ends worker processes with this one.

    They die when it does, or when the pipe's only writer is closed.
    """

    def __init__(self) -> None:
        """Open a pidfd of this process and a pipe."""
        self._reader, self.writer = _system.pipe()
        self._parent = Descriptor(os.pidfd_open, os.getpid())

    @property
    def fds(self) -> tuple[int, int]:
        """What a child is given."""
        return self._parent.fileno(), self._reader.fileno()

    def close(self) -> None:
        """Close the lifeline: every process that still holds it ends."""
        for end in (self._parent, self._reader, self.writer):
            end.close()

    def close_others(self, channel: Descriptor) -> None:
        """In a forked child: close every descriptor but the lifeline and its channel.

        So it keeps no pipe open.
        """
        _system.close_others(self._parent, self._reader, channel)


def flush_output() -> None:
    """Write out what has been printed, where that can be done."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, a pipe without a reader
            stream.flush()


def fork(live: Callable[[], NoReturn]) -> Child:
    """Fork a process that becomes a worker or a forkserver in ``live()``.

    Until then no signal runs our handlers in it.

    No collection there ends an object of this process: it would close descriptors that have these
    numbers there by then, or take a connection out of an epoll that both processes have. So none
    runs before all objects are frozen.
    """
    flush_output()  # or the child would write it again
    collects = gc.isenabled()
    # Since Python 3.14 a child has multiprocessing's tracker of shared memory only if
    # multiprocessing itself has forked it. With a tracker of its own a worker would remove the
    # user's shared memory at its end.
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    intent: Any = getattr(tracker, "_fork_intent", SimpleNamespace())
    try:
        gc.disable()
        intent.preserve_fd = True
        return Child(_system.fork, partial(_begin, live, intent, collects=collects))
    finally:
        intent.preserve_fd = False
        if collects:
            gc.enable()


def _begin(live: Callable[[], NoReturn], intent: Any, *, collects: bool) -> NoReturn:
    """In the forked child: keep the parent's objects.

    multiprocessing's open connections become its own.

    Without the GIL an object for which threads of the parent waited may be locked here for ever:
    what they share, such as `sys.modules`, is looked at in the parent.
    """
    gc.freeze()
    intent.preserve_fd = False
    if collects:
        gc.enable()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._run_after_forkers()  # noqa: SLF001
    live()


def become_worker(parent_fd: int, lifeline_fd: int) -> None:
    """Lead a process group that dies with the consumer, and leave Ctrl-C to the consumer."""
    Worker.is_here, Worker.consumer_fd = True, parent_fd
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    for fd in (parent_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - what the dataset starts has no part in them
    _start_guard(parent_fd, lifeline_fd)
    # All functions of os that put another program in this one's place end in these. The guard's
    # thread would not survive that.
    for name in ("execv", "execve"):
        setattr(os, name, partial(_execute, getattr(os, name), os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel sends it to stopped orphans, when a forkserver dies.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Whatever thread of the consumer started us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    if os.environ.get("RINGFEED_KEEP_HEAP", "1") != "0":
        _system.keep_heap(KEPT_HEAP, LARGEST_KEPT_BLOCK)


def _start_guard(parent_fd: int, lifeline_fd: int) -> None:
    try:
        _system.start_guard(parent_fd, lifeline_fd)
    except OSError as error:
        from ringfeed.errors import WorkerError  # noqa: PLC0415 - see below

        # The guard comes before all that takes time.
        from ringfeed.system.machine import reason  # noqa: PLC0415

        raise WorkerError(
            f"the thread that guards a worker cannot be started: {reason(error)}"
        ) from error


def _execute(execute: Callable[..., NoReturn], home: int, *arguments: Any) -> NoReturn:
    """Refuse to put another program in a worker's place.

    What the dataset has forked may become one.
    """
    if os.getpid() == home:
        raise RuntimeError(
            "a worker process cannot become another program, since nothing would end that with the "
            "training; start it with subprocess"
        )
    execute(*arguments)

"""Worker processes end with the process that they work for, also where that is killed.

    Lifeline ── a pidfd and a pipe ──▶ become_worker(): a thread, in C, waits for the end of either

No module that takes time to import is needed here: the guard starts first.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._process import Worker
from ringfeed.system import _system
from ringfeed.system._system import Child, Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

KEPT_HEAP = 64 * 1024 * 1024
LARGEST_KEPT_BLOCK = 32 * 1024 * 1024


class Lifeline:
    """Ends worker processes with this one: they die when it does, or when the pipe's only writer is closed."""

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
        """In a forked child: close every descriptor but the lifeline and its channel, so that it keeps no pipe open."""
        _system.close_others(self._parent, self._reader, channel)


def flush_output() -> None:
    """Write out what has been printed, where that can be done."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, a pipe without a reader
            stream.flush()


def fork(live: Callable[[], NoReturn]) -> Child:
    """Fork a process that becomes a worker or a forkserver in ``live()``; until then no signal runs our handlers in it.

    No collection there ends an object of this process: it would close descriptors that have these
    numbers there by then, or take a connection out of an epoll that both processes have. So none
    runs before all objects are frozen.

    Python's warning about threads is given by `forkserver.fork`, in better words.
    """
    import warnings  # noqa: PLC0415 - see above

    flush_output()  # or the child would write it again
    collects = gc.isenabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            gc.disable()
            return Child(_system.fork, partial(_begin, live, collects=collects))
        finally:
            if collects:
                gc.enable()


def _begin(live: Callable[[], NoReturn], *, collects: bool) -> NoReturn:
    """In the forked child: keep the parent's objects, and have multiprocessing's open connections of their own."""
    gc.freeze()
    if collects:
        gc.enable()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._run_after_forkers()  # noqa: SLF001 - as its own children do
    live()


def become_worker(parent_fd: int, lifeline_fd: int) -> None:
    """Lead a process group that dies with the consumer, and leave Ctrl-C to the consumer."""
    Worker.is_here, Worker.consumer_fd = True, parent_fd
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    for fd in (parent_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - what the dataset starts has no part in them
    _start_guard(parent_fd, lifeline_fd)
    for name in (
        "execv",
        "execve",
    ):  # all functions of os that put another program in this one's place end in these
        setattr(os, name, partial(_execute, getattr(os, name), os.getpid(), parent_fd, lifeline_fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # the kernel sends it to stopped orphans, when a forkserver dies
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, signal.valid_signals()
    )  # whatever thread of the consumer started us
    if os.environ.get("RINGFEED_KEEP_HEAP", "1") != "0":
        _system.keep_heap(KEPT_HEAP, LARGEST_KEPT_BLOCK)


def join_family(family: dict[str, Any] | None, name: str, fds: list[Descriptor]) -> None:
    """Be to multiprocessing what a child of the consumer's would be, by what `interpreter.family` says there.

    The descriptor that comes with it is the last of those of its message, and is taken from them.
    So proxies of its managers open here, and shared memory that is opened here is for the
    consumer's tracker to clean up: a tracker of this process would remove it as soon as this
    process ends.
    """
    if family is None:
        return
    import multiprocessing  # noqa: PLC0415 - for programs that use it
    from multiprocessing import process, resource_tracker, util  # noqa: PLC0415 - likewise

    own: Any = process.current_process()
    own.name, own.authkey = name, family["authkey"]
    parent = process._ParentProcess(family["name"], family["pid"], Worker.consumer_fd)  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing.spawn
    process._parent_process = parent  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
    if family["start_method"] is not None:
        multiprocessing.set_start_method(family["start_method"], force=True)
    if family["log_level"] is not None:
        util.get_logger().setLevel(family["log_level"])
    if family["log_to_stderr"]:
        util.log_to_stderr()
    sys.argv[:] = family["argv"]
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001 - as above
    tracker._fd, tracker._pid = (fds.pop().detach() if family["has_tracker"] else None), None  # noqa: SLF001 - as above


def _start_guard(parent_fd: int, lifeline_fd: int) -> None:
    try:
        _system.start_guard(parent_fd, lifeline_fd)
    except OSError as error:
        from ringfeed.errors import WorkerError  # noqa: PLC0415 - see below
        from ringfeed.system.machine import reason  # noqa: PLC0415 - the guard comes before all that takes time

        raise WorkerError(
            f"the thread that guards a worker cannot be started: {reason(error)}"
        ) from error


def _execute(
    execute: Callable[..., NoReturn], home: int, parent_fd: int, lifeline_fd: int, *arguments: Any
) -> NoReturn:
    """Put another program in this one's place. No thread survives that: another process guards it in the same way."""
    if os.getpid() != home:  # a child of the dataset's: it is in the guarded group
        execute(*arguments)
    myself = os.pidfd_open(home)
    guard = fork(partial(_guard_program, parent_fd, lifeline_fd, myself))
    try:
        execute(*arguments)
    finally:  # there is no such program
        os.close(myself)
        signal.pidfd_send_signal(guard.pidfd.fileno(), signal.SIGKILL)
        guard.wait()


def _guard_program(parent_fd: int, lifeline_fd: int, program: int) -> NoReturn:
    """Kill a program, which was a worker, and its group when the consumer ends; end with it."""
    poller = select.poll()
    for fd in (parent_fd, lifeline_fd, program):
        poller.register(fd, select.POLLIN)
    if program not in dict(poller.poll()):
        signal.pidfd_send_signal(program, signal.SIGKILL)
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def channel_of(channel_fd: int) -> Descriptor:
    """Return the owner of an inherited channel, which is not inherited any further."""
    os.set_inheritable(channel_fd, False)  # noqa: FBT003 - see become_worker()
    return Descriptor(int, channel_fd)

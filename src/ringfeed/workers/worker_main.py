"""A worker process: its guard, the dataset it is sent, and its last words. How it fills tickets stands in `data.base`.

A spawned process runs `main`, which starts the guard before the slow imports, then waits for its `WorkerConfig`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._process import Worker
from ringfeed.ring import _ring
from ringfeed.system import _system
from ringfeed.system._system import Child, Descriptor
from ringfeed.transport import imports as _imports

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from _typeshed import HasFileno

    from ringfeed.data.reader import Reader
    from ringfeed.workers.channel import WorkerConfig

KEPT_HEAP = 64 * 1024 * 1024
LARGEST_KEPT_BLOCK = 32 * 1024 * 1024


class WorkerMain:
    """A worker process's state: its end of the ring, and the newest dataset it was sent."""

    def __init__(self, channel: Descriptor, dataset: Any = None) -> None:
        """Wait for the `WorkerConfig` and open the segment; ``dataset`` is set in a forked worker."""
        from ringfeed.orders.rng import scatter  # noqa: PLC0415 - imports NumPy
        from ringfeed.ring.segment import open_ring  # noqa: PLC0415 - see above
        from ringfeed.workers import channel as channels  # noqa: PLC0415 - after the guard, like all that is slow

        self._receive = channels.receive
        self._channel = channel
        message, fds = self._receive(channel)
        config: WorkerConfig = message
        self._source = config.source
        self._offsets = config.offsets
        self._number = config.number
        self._worker = config.lane - 1, config.workers, config.starts
        control, slots, self._stack = fds[:3]
        self._states = self._source.kept(fds.pop(), config.states_size) if config.states_size else None  # the last
        self._ring = open_ring(control.fileno(), slots.fileno(), config.sizes)
        self._end = _ring.WorkerEnd(self._ring, self._number, config.lane)
        self._register_stack_dump(self._stack.fileno())
        _imports.expect(self._source.packages, silent=self._number > 0 or config.starts > 0)  # one of them says it
        self._version = config.version
        self._dataset = dataset if config.manifest is None else self._unpack(config.manifest, fds[3:])
        self._bars = config.bars
        scatter(self._source.seed, self._number, config.starts)
        self._reader = self._open()

    def _open(self) -> Reader:
        from ringfeed.data.reader import Port  # noqa: PLC0415 - imports NumPy

        port = Port(self._end, self._ring, self._offsets, bars=self._bars, states=self._states, worker=self._worker)
        return self._source.reader(self._dataset, port)

    @staticmethod
    def _unpack(manifest: bytes, fds: list[Descriptor]) -> Any:
        from ringfeed.transport.shared_dataset import unpack  # noqa: PLC0415 - imports NumPy

        return unpack(manifest, [fd.fileno() for fd in fds])

    @staticmethod
    def _register_stack_dump(fd: int) -> None:
        """Write this process's Python stack into ``fd`` on SIGUSR1, in C, whatever Python is doing."""
        import faulthandler  # noqa: PLC0415 - see above

        faulthandler.register(signal.SIGUSR1, file=fd, all_threads=False)

    def run(self) -> None:
        """Fill tickets until the ring stops, fetching the dataset's newer versions as batches ask for them."""
        claimed = False
        while claimed := self._reader.serve(self._version, claimed=claimed):
            self._fetch(self._end.version)

    def _fetch(self, version: int) -> None:
        """Read messages up to the version that a batch asks for: it was sent before the batch was bound."""
        while self._version != version:
            message, fds = self._receive(self._channel)
            self._version = message["version"]
            if self._version == version:
                self._dataset = self._unpack(message["manifest"], fds)
        self._reader = self._open()


def report_and_leave(channel: HasFileno) -> None:
    """Tell the consumer what went wrong outside any sample, and exit."""
    from ringfeed._failure import encode  # noqa: PLC0415
    from ringfeed.workers import channel as channels  # noqa: PLC0415 - in a process that is about to end

    error = sys.exc_info()[1]
    try:
        if error is not None and not isinstance(error, channels.PeerGoneError):
            with contextlib.suppress(OSError):  # the consumer is gone
                channels.send(channel, {"broken": encode(error)})
        flush_output()
    finally:
        os._exit(1)


def flush_output() -> None:
    """Write out what has been printed, where that can be done."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, a pipe without a reader
            stream.flush()


def fork(live: Callable[[], NoReturn]) -> Child:
    """Fork a process that becomes a worker or a forkserver in ``live()``; until then no signal runs our handlers in it.

    Python's warning about threads is given by `forkserver.fork`, in better words.
    """
    import warnings  # noqa: PLC0415 - see above

    flush_output()  # or the child would write it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return Child(_system.fork, live)


def become_worker(parent_fd: int, lifeline_fd: int) -> None:
    """Lead a process group that dies with the consumer, and leave Ctrl-C to the consumer."""
    Worker.is_here = True
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    for fd in (parent_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - what the dataset starts has no part in them
    _start_guard(parent_fd, lifeline_fd)
    for name in ("execv", "execve"):  # all functions of os that put another program in this one's place end in these
        setattr(os, name, partial(_execute, getattr(os, name), os.getpid(), parent_fd, lifeline_fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it to stopped orphans, when a forkserver dies
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())  # whatever thread of the consumer started us
    if os.environ.get("RINGFEED_KEEP_HEAP", "1") != "0":
        _system.keep_heap(KEPT_HEAP, LARGEST_KEPT_BLOCK)


def _start_guard(parent_fd: int, lifeline_fd: int) -> None:
    try:
        _system.start_guard(parent_fd, lifeline_fd)
    except OSError as error:
        from ringfeed.errors import WorkerError  # noqa: PLC0415 - see below
        from ringfeed.system.machine import reason  # noqa: PLC0415 - the guard comes before all that takes time

        raise WorkerError(f"the thread that guards a worker cannot be started: {reason(error)}") from error


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


def work(channel_fd: int, dataset: Any = None) -> None:
    """Run a worker process, from its `WorkerConfig` to the end."""
    channel = channel_of(channel_fd)
    try:
        WorkerMain(channel, dataset).run()
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    flush_output()
    os._exit(0)  # the dataset's own threads and atexit hooks must not keep a stopped worker


def main(channel_fd: int, parent_fd: int, lifeline_fd: int) -> None:
    """Run a spawned worker."""
    try:
        become_worker(parent_fd, lifeline_fd)
        import numpy as np  # noqa: F401, PLC0415 - while the consumer packs the dataset
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel_of(channel_fd))
    work(channel_fd)

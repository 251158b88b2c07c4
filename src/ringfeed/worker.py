"""A worker process: its guard, the dataset it is sent, and its last words. How it fills tickets stands in `source`.

A spawned process runs `main`, which starts the guard before the slow imports, then waits for its hello message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import warnings
from typing import TYPE_CHECKING, Any

from ringfeed import _ring

if TYPE_CHECKING:
    from ringfeed.source import Recipe, Source

KEPT_HEAP = 64 * 1024 * 1024
LARGEST_KEPT_BLOCK = 32 * 1024 * 1024


class Process:
    """A worker process's state: its end of the ring, and the newest dataset it was sent."""

    def __init__(self, channel: socket.socket, dataset: Any = None) -> None:
        """Wait for the hello message and open the segment; ``dataset`` is set in a forked worker."""
        from ringfeed import channel as channels  # noqa: PLC0415 - after the guard, like all that is slow
        from ringfeed.segment import open_ring  # noqa: PLC0415 - see above

        self._receive = channels.receive
        self._channel = channel
        hello, fds = self._receive(channel)
        self._recipe: Recipe = hello["recipe"]
        self._number: int = hello["number"]
        control_fd, slots_fd = fds[:2]
        self._ring = open_ring(control_fd, slots_fd, hello["sizes"])
        os.close(control_fd)
        os.close(slots_fd)
        self._end = _ring.WorkerEnd(self._ring, self._number, hello["lane"])
        self._register_stack_dump(fds[2])
        self._version: int = hello["version"]
        self._dataset = self._unpack(hello["manifest"], fds[3:]) if hello["manifest"] is not None else dataset
        if hello["manifest"] is not None and self._number == 0 and hello["start"] == 0:  # one of them says it
            _warn_of_frameworks()
        self._bars: list[tuple[int, int]] = hello["bars"]
        self._scatter(hello["seed"], hello["start"])
        self._source = self._open()

    def _open(self) -> Source:
        from ringfeed.source import Source  # noqa: PLC0415 - imports NumPy

        return Source(self._dataset, self._recipe, self._end, self._ring, bars=self._bars)

    def _unpack(self, manifest: bytes, fds: list[int]) -> Any:
        from ringfeed.ship import unpack  # noqa: PLC0415 - imports NumPy

        try:
            return unpack(manifest, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _scatter(self, seed: int, start: int) -> None:
        from ringfeed.randomness import scatter  # noqa: PLC0415 - see above

        scatter(seed, self._number, start)

    @staticmethod
    def _register_stack_dump(fd: int) -> None:
        """Write this process's Python stack into ``fd`` on SIGUSR1, in C, whatever Python is doing."""
        import faulthandler  # noqa: PLC0415 - see above

        faulthandler.register(signal.SIGUSR1, file=fd, all_threads=False)

    def run(self) -> None:
        """Fill tickets until the ring stops, fetching the dataset's newer versions as batches ask for them."""
        claimed = False
        while claimed := self._source.serve(self._version, claimed=claimed):
            self._fetch(self._end.version)

    def _fetch(self, version: int) -> None:
        """Read messages up to the version that a batch asks for: it was sent before the batch was bound."""
        while self._version != version:
            message, fds = self._receive(self._channel)
            self._version = message["version"]
            if self._version == version:
                self._dataset = self._unpack(message["manifest"], fds)
            else:
                for fd in fds:
                    os.close(fd)
        self._source = self._open()


def _warn_of_frameworks() -> None:
    """Name the frameworks that unpickling the dataset has brought in, and what they cost."""
    from ringfeed.standins import frameworks_loaded  # noqa: PLC0415 - loaded with the dataset

    loaded = frameworks_loaded()
    if loaded:
        warnings.warn(
            f"unpickling the dataset imported {', '.join(loaded)} in each worker, which takes seconds and hundreds of "
            f"MB; define its class in a module that does not import it, or in the script itself",
            RuntimeWarning,
            stacklevel=2,
        )


def report_and_leave(channel: socket.socket) -> None:
    """Tell the consumer what went wrong outside any sample, and exit."""
    from ringfeed import channel as channels  # noqa: PLC0415 - in a process that is about to end
    from ringfeed.failure import encode  # noqa: PLC0415

    error = sys.exc_info()[1]
    try:
        if error is not None and not isinstance(error, channels.PeerGoneError):
            with contextlib.suppress(OSError):  # the consumer is gone, and nobody wants to know
                channels.send(channel, {"broken": encode(error)})
        flush_output()
    finally:
        os._exit(1)


def flush_output() -> None:
    """Write out what has been printed, where that can be done."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, a pipe without a reader
            stream.flush()


def become_worker(parent_fd: int, lifeline_fd: int) -> None:
    """Lead a process group that dies with the consumer, and leave Ctrl-C to the consumer."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    for fd in (parent_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - what the dataset starts has no part in them
    _start_guard(parent_fd, lifeline_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it to stopped orphans, when a nursery dies
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())  # whatever thread of the consumer started us
    if os.environ.get("RINGFEED_KEEP_HEAP", "1") != "0":
        _ring.keep_heap(KEPT_HEAP, LARGEST_KEPT_BLOCK)


def _start_guard(parent_fd: int, lifeline_fd: int) -> None:
    try:
        _ring.start_guard(parent_fd, lifeline_fd)
    except OSError as error:
        from ringfeed.errors import WorkerError  # noqa: PLC0415 - see below
        from ringfeed.limits import reason  # noqa: PLC0415 - the guard comes before all that takes time

        raise WorkerError(f"the thread that guards a worker cannot be started: {reason(error)}") from error


def work(channel_fd: int, dataset: Any = None) -> None:
    """Live a worker process's life, from the hello message to the end."""
    os.set_inheritable(channel_fd, False)  # noqa: FBT003 - see become_worker()
    channel = socket.socket(fileno=channel_fd)
    channel.setblocking(True)  # noqa: FBT003 - the name says it; a forked worker has the consumer's default timeout
    try:
        Process(channel, dataset).run()
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
        report_and_leave(socket.socket(fileno=channel_fd))
    work(channel_fd)

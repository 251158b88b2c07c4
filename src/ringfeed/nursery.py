"""The nursery: a process that holds the dataset and forks workers from itself, the first ones and replacements.

It is forked from the consumer before the first batch (start_method="fork"), or spawned ("forkserver"). It never
runs user code beyond unpickling the dataset, so that what it forks is quiet.
"""

from __future__ import annotations

import os
import select
import socket
import warnings
from contextlib import suppress
from typing import Any

from ringfeed import channel as channels
from ringfeed.worker import become_worker, report_and_leave, work


class Nursery:
    """The loop of a nursery process."""

    def __init__(self, channel: socket.socket, dataset: Any) -> None:
        """Fork on the orders that come through ``channel``."""
        self._channel = channel
        self._dataset = dataset
        self._children: dict[int, int] = {}  # pidfd -> pid

    def run(self) -> None:
        """Fork workers and report their ends, until the consumer closes the channel."""
        while True:
            poller = select.poll()
            for fd in (self._channel.fileno(), *self._children):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd != self._channel.fileno():
                    self._bury(fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        try:
            _, fds = channels.receive(self._channel)
        except (EOFError, OSError):
            return False
        pid = fork()
        if pid == 0:
            self._channel.close()
            for pidfd in self._children:
                os.close(pidfd)
            channel_fd, parent_fd, lifeline_fd = fds
            live(channel_fd, parent_fd, lifeline_fd, self._dataset)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)  # no race: nobody else can wait for our child
        self._children[pidfd] = pid
        channels.send(self._channel, {"pid": pid}, (pidfd,))
        return True

    def _bury(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            channels.send(self._channel, {"ended": pid, "status": status})


def fork() -> int:
    """Fork; Python's warning about threads is given by whoever chose to fork, in better words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def live(channel_fd: int, parent_fd: int, lifeline_fd: int, dataset: Any) -> None:
    """Be a forked worker, to the end of this process."""
    try:
        become_worker(parent_fd, lifeline_fd)
        work(channel_fd, dataset)
    finally:
        os._exit(1)


def nurse(channel: socket.socket, parent_fd: int, lifeline_fd: int, dataset: Any) -> None:
    """Be a nursery, to the end of this process."""
    try:
        become_worker(parent_fd, lifeline_fd)
        Nursery(channel, dataset).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    finally:
        os._exit(1)


def main(channel_fd: int, parent_fd: int, lifeline_fd: int) -> None:
    """Run a spawned nursery: unpickle the dataset once, for all workers."""
    channel = socket.socket(fileno=channel_fd)
    try:
        from ringfeed.ship import unpack  # noqa: PLC0415 - imports NumPy, after the guard of a worker
        from ringfeed.source import Source  # noqa: F401, PLC0415 - what each worker needs, imported once

        hello, fds = channels.receive(channel)
        dataset = unpack(hello["manifest"], fds)
        for fd in fds:
            os.close(fd)
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    nurse(channel, parent_fd, lifeline_fd, dataset)

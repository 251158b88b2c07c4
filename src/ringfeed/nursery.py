"""The nursery: a process that holds the dataset and forks workers from itself, the first ones and replacements.

It is forked from the consumer before the first batch (start_method="fork"), or spawned ("forkserver"). It never
runs user code beyond unpickling the dataset, so that what it forks is quiet.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from typing import Any, NoReturn

from ringfeed import channel as channels
from ringfeed.limits import reason
from ringfeed.worker import become_worker, flush_output, report_and_leave, work


class Nursery:
    """The loop of a nursery process."""

    def __init__(self, channel: socket.socket, dataset: Any) -> None:
        """Fork on the orders that come through ``channel``."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if inherited, SIG_IGN would bury our children
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
        fds: list[int] = []
        try:
            _, fds = channels.receive(self._channel)
            pid = fork()
            if pid == 0:
                self._let_live(*fds)
            pidfd = pidfd_of(pid)
        except EOFError:
            return False
        except OSError as error:
            channels.send(self._channel, {"refused": reason(error)})
        else:
            self._children[pidfd] = pid
            channels.send(self._channel, {"pid": pid}, (pidfd,))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _let_live(self, channel_fd: int, parent_fd: int, lifeline_fd: int) -> NoReturn:
        try:
            self._channel.close()
            for pidfd in self._children:
                os.close(pidfd)
            become_worker(parent_fd, lifeline_fd)
            work(channel_fd, self._dataset)
        except BaseException:  # noqa: BLE001 - reported, whatever it is
            report_and_leave(socket.socket(fileno=channel_fd))
        finally:
            os._exit(1)

    def _bury(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        os.close(pidfd)
        end_group(pid)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError):
            channels.send(self._channel, {"ended": pid, "status": status})


def end_group(pid: int) -> None:
    """Kill what a dead child has started in its process group. Before it is waited for: its id is not another's yet."""
    with suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


def fork() -> int:
    """Fork a process that will become a worker; until it has, no signal runs the consumer's handlers in it.

    Python's warning about threads is given by whoever chose to fork, in better words.
    """
    flush_output()  # or the child would write it again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def pidfd_of(pid: int) -> int:
    """Return a pidfd of a child that was just forked; if there is no room for one, the child is ended."""
    try:
        return os.pidfd_open(pid)  # no race: nobody else can wait for our child
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def forget_the_consumer() -> None:
    """Undo, in a process forked from the consumer, what a spawned one would not have."""
    signal.set_wakeup_fd(-1)  # our signals are not for the consumer's event loop, nor for its handlers
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    if null:
        os.dup2(null, 0)
        os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the old one may hold lines that are the consumer's


def nurse(channel: socket.socket, parent_fd: int, lifeline_fd: int, dataset: Any) -> None:
    """Be a nursery that was forked from the consumer, to the end of this process."""
    try:
        forget_the_consumer()
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
        become_worker(parent_fd, lifeline_fd)
        from ringfeed.ship import unpack  # noqa: PLC0415 - imports NumPy, after the guard of a worker
        from ringfeed.source import Source  # noqa: F401, PLC0415 - what each worker needs, imported once

        hello, fds = channels.receive(channel)
        dataset = unpack(hello["manifest"], fds)
        for fd in fds:
            os.close(fd)
        Nursery(channel, dataset).run()
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    os._exit(0)

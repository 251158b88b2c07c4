"""The forkserver: a process that holds the dataset and forks workers from itself, the first ones and replacements.

It is forked from the consumer before the first batch (start_method="fork"), or spawned ("forkserver"). It never
runs user code beyond unpickling the dataset, so that what it forks is quiet.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed.ring import _ring
from ringfeed.ring._ring import Child
from ringfeed.ring.machine import reason
from ringfeed.transport import imports as _imports
from ringfeed.workers import channel as channels
from ringfeed.workers.worker_main import become_worker, flush_output, report_and_leave, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.ring._ring import Descriptor


class Forkserver:
    """The loop of a forkserver process."""

    def __init__(self, channel: socket.socket | Descriptor, dataset: Any) -> None:
        """Fork on the orders that come through ``channel``."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if inherited, SIG_IGN would bury our children
        self._channel = channel
        self._dataset = dataset
        self._children: dict[int, Child] = {}  # by pidfd

    def run(self) -> None:
        """Fork workers and report their ends, until the consumer closes the channel."""
        while True:
            poller = select.poll()
            for fd in (self._channel.fileno(), *self._children):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd != self._channel.fileno():
                    self._bury(fd)
                elif not self._handle_request():
                    return

    def _handle_request(self) -> bool:
        fds: list[int] = []
        try:
            message, fds = channels.receive(self._channel)
            if "pipes" in message:
                from ringfeed.workers.popens import close_pipes  # noqa: PLC0415 - it is loaded where pipes were found

                close_pipes(message["pipes"])
                return True
            child = fork(partial(self._run_worker, *fds))
        except EOFError:
            return False
        except OSError as error:
            channels.send(self._channel, {"refused": reason(error)})
        else:
            self._children[child.pidfd.fileno()] = child
            channels.send(self._channel, {"pid": child.pid}, (child.pidfd.fileno(),))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _run_worker(self, channel_fd: int, parent_fd: int, lifeline_fd: int) -> NoReturn:
        try:
            self._channel.close()
            for child in self._children.values():
                child.pidfd.close()
            become_worker(parent_fd, lifeline_fd)
            work(channel_fd, self._dataset)
        except BaseException:  # noqa: BLE001 - reported, whatever it is
            report_and_leave(socket.socket(fileno=channel_fd))
        finally:
            os._exit(1)

    def _bury(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        status = child.wait()
        with suppress(OSError):
            channels.send(self._channel, {"ended": child.pid, "status": status})


def end_group(pid: int) -> None:
    """Kill what a dead child has started in its process group. Before it is waited for: its id is not another's yet."""
    with suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


def fork(live: Callable[[], NoReturn]) -> Child:
    """Fork a process that becomes a worker or a forkserver in ``live()``; until then no signal runs our handlers in it.

    Python's warning about threads is given by `launch`, in better words.
    """
    flush_output()  # or the child would write it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return Child(_ring.fork, live)


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


def run_forkserver(channel: Descriptor, parent_fd: int, lifeline_fd: int, dataset: Any) -> None:
    """Run a forkserver that was forked from the consumer, to the end of this process."""
    try:
        forget_the_consumer()
        become_worker(parent_fd, lifeline_fd)
        _calm_torch()
        Forkserver(channel, dataset).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    finally:
        os._exit(1)


def _calm_torch() -> None:
    """Have torch compute in one thread: those of its pool are not here, and it would wait for them."""
    set_num_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)  # None: still being imported
    if set_num_threads is not None:
        set_num_threads(1)


def main(channel_fd: int, parent_fd: int, lifeline_fd: int) -> None:
    """Run a spawned forkserver: import what the samples need, and unpickle the dataset, once for all workers.

    The import of a framework starts no thread, so that what is forked afterwards is whole.
    """
    channel = socket.socket(fileno=channel_fd)
    try:
        become_worker(parent_fd, lifeline_fd)
        from ringfeed.data.base import Source  # noqa: F401, PLC0415 - what each worker needs, imported once
        from ringfeed.transport.shared_dataset import unpack  # noqa: PLC0415 - imports NumPy, after the guard of a worker

        hello, fds = channels.receive(channel)
        packages = hello["source"].packages
        _imports.expect(packages, silent=False)
        for framework in _imports.FRAMEWORKS:
            if framework in (packages or ()):
                importlib.import_module(framework)
        dataset = unpack(hello["manifest"], fds)
        for fd in fds:
            os.close(fd)
        Forkserver(channel, dataset).run()
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel)
    os._exit(0)

"""Making worker processes: each start method turns a channel into a running process.

    Spawner   a fresh interpreter a worker; never imports the user's main module
    Forker    a nursery process forks workers: born of the consumer ("fork") or spawned ("forkserver")

Both answer `start(channel)` with a `Worker`: its pidfd proves its death, whoever its parent is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed import channel as channels
from ringfeed.errors import WorkerError
from ringfeed.failure import decode
from ringfeed.nursery import fork, nurse
from ringfeed.standins import frameworks_loaded

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ringfeed.ship import Shipment

NURSERY_TIMEOUT_S = 60.0
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_CODE = (
    "import sys, json; order = json.loads(sys.argv.pop()); sys.path[:] = order['path']; "
    "import importlib; importlib.import_module(order['module']).main(*order['fds'])"
)


class Tether:
    """What ties processes to this one: they die when it does, or when the pipe's only writer is closed."""

    def __init__(self) -> None:
        """Open a pidfd of this process and a pipe."""
        self.parent_fd = os.pidfd_open(os.getpid())
        self.lifeline_fd, self.writer_fd = os.pipe()

    @property
    def fds(self) -> tuple[int, int]:
        """What a child is given."""
        return self.parent_fd, self.lifeline_fd

    def close(self) -> None:
        """Let go of whatever is still tied."""
        for fd in (self.parent_fd, self.lifeline_fd, self.writer_fd):
            os.close(fd)


class Worker:
    """A worker process, seen from the consumer."""

    def __init__(self, pid: int, pidfd: int, channel: socket.socket, status: Callable[[], int | None]) -> None:
        """Know a process by its pid and pidfd; ``status`` gives its exit code once it is dead, if anyone knows it."""
        self.pid = pid
        self.pidfd = pidfd
        self.channel = channel
        self._status = status

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing happens when the process is dead."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def is_dead(self, timeout_s: float = 0.0) -> bool:
        """Wait for the end of the process."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def epitaph(self) -> str:
        """Say how a dead process ended, and forget it."""
        code = self._status()
        os.close(self.pidfd)
        self.channel.close()
        if code is None:
            return "ended"
        return f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


class Spawner:
    """Starts each worker as a fresh interpreter."""

    def __init__(self, tether: Tether) -> None:
        """Start workers that are tied to this process."""
        self._tether = tether

    def start(self, theirs: socket.socket, ours: socket.socket) -> Worker:
        """Start a worker that talks through ``theirs``."""
        process = spawn("ringfeed.worker", theirs, self._tether)
        return Worker(process.pid, os.pidfd_open(process.pid), ours, process.wait)

    def close(self) -> None:
        """Nothing to close: workers are their own processes."""


def spawn(module: str, theirs: socket.socket, tether: Tether) -> subprocess.Popen[bytes]:
    """Run ``module.main(channel, parent, lifeline)`` in a fresh interpreter with this one's path and flags."""
    fds = (theirs.fileno(), *tether.fds)
    path = [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]
    order = json.dumps({"path": path, "module": module, "fds": fds})
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *flags, "-c", _CODE, order], stdin=subprocess.DEVNULL, pass_fds=fds, env=environment
    )


class Forker:
    """Starts workers by order to a nursery, which is made anew when it has died."""

    def __init__(self, tether: Tether, dataset: Any = None, shipment: Shipment | None = None) -> None:
        """Fork from this process, which holds ``dataset``, or from a spawned nursery, which is sent ``shipment``."""
        self._tether = tether
        self._dataset = dataset
        self._shipment = shipment
        self._statuses: dict[int, int] = {}
        self._nursery: Worker | None = None
        if shipment is None:
            _warn_of_threads()

    def _open(self) -> Worker:
        ours, theirs = channels.pair()
        if self._shipment is None:
            pid = fork()
            if pid == 0:
                ours.close()
                os.close(self._tether.writer_fd)  # or the lifeline would never break
                nurse(theirs, *self._tether.fds, self._dataset)
            nursery = Worker(pid, os.pidfd_open(pid), ours, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            process = spawn("ringfeed.nursery", theirs, self._tether)
            nursery = Worker(process.pid, os.pidfd_open(process.pid), ours, process.wait)
            channels.send(ours, {"manifest": self._shipment.manifest()}, self._shipment.fds)
        theirs.close()
        return nursery

    def start(self, theirs: socket.socket, ours: socket.socket) -> Worker:
        """Start a worker that talks through ``theirs``; a nursery that was killed is replaced."""
        for last_try in (False, True):
            if self._nursery is None:
                self._nursery = self._open()
            try:
                channels.send(self._nursery.channel, {}, (theirs.fileno(), *self._tether.fds))
                pid, pidfd = self._answer(self._nursery)
            except (OSError, EOFError):
                end = self._bury()
                if last_try:
                    message = f"the process that forks workers {end} twice; use start_method='spawn'"
                    raise WorkerError(message) from None
            else:
                return Worker(pid, pidfd, ours, partial(self._status_of, pid))
        raise AssertionError  # the loop returns or raises

    def _answer(self, nursery: Worker) -> tuple[int, int]:
        """Return the pid and the pidfd of the forked worker."""
        nursery.channel.settimeout(NURSERY_TIMEOUT_S)
        while True:
            message, fds = channels.receive(nursery.channel)
            if "pid" in message:
                return message["pid"], fds[0]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._statuses[message["ended"]] = os.waitstatus_to_exitcode(message["status"])
        elif "broken" in message:
            failure = decode(message["broken"])
            text = f"the dataset could not be unpickled for the workers: {failure.summary}"
            raise WorkerError(text) from failure.error

    def _status_of(self, pid: int) -> int | None:
        """Return a dead worker's exit code; None when the nursery died before it could tell."""
        deadline = time.monotonic() + 1.0
        while pid not in self._statuses and self._nursery is not None and time.monotonic() < deadline:
            self._nursery.channel.settimeout(0.1)
            try:
                message, _ = channels.receive(self._nursery.channel)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                self._bury()
                break
            self._note(message)
        return self._statuses.pop(pid, None)

    def _bury(self) -> str:
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            return "ended"
        nursery.kill()
        return nursery.epitaph()

    def close(self) -> None:
        """End the nursery; its children end by the ring."""
        self._bury()


def _warn_of_threads() -> None:
    live = frameworks_loaded()
    if live:
        warnings.warn(
            f"start_method='fork' after {', '.join(live)} was imported: its threads do not survive the fork, and a "
            f"worker that uses it hangs; use start_method='spawn'",
            RuntimeWarning,
            stacklevel=2,
        )

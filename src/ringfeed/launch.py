"""Making worker processes: each start method turns a channel into a running process.

    Spawner   a fresh interpreter a worker; never imports the user's main module
    Forker    a nursery process forks workers: born of the consumer ("fork") or spawned ("forkserver")

Both answer `start()` with a `Worker`: its pidfd proves its death, whoever its parent is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed import channel as channels
from ringfeed.errors import WorkerError
from ringfeed.failure import decode
from ringfeed.limits import is_shortage, reason
from ringfeed.nursery import end_group, fork, nurse, pidfd_of
from ringfeed.standins import frameworks_loaded
from ringfeed.tether import Tether, Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ringfeed.ship import Shipment

NURSERY_TIMEOUT_S = 60.0
LOOK_S = 0.1  # between two looks at whether we still want what we wait for
BURIAL_S = 1.0
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


class Spawner:
    """Starts each worker as a fresh interpreter."""

    def __init__(self, tether: Tether) -> None:
        """Start workers that are tied to this process."""
        self._tether = tether

    def start(self) -> Worker:
        """Start a worker."""
        return spawn("ringfeed.worker", self._tether)

    def abandon(self) -> None:
        """Nothing keeps a spawner waiting."""

    def close(self) -> None:
        """Nothing to close: workers are their own processes."""


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the kernel's refusal of another process into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"no worker can be started: {reason(error)}") from error


@_explained()
def spawn(module: str, tether: Tether) -> Worker:
    """Run ``module.main(channel, parent, lifeline)`` in a fresh interpreter with this one's path and flags."""
    ours, theirs = channels.pair()
    try:
        with theirs:
            process = _popen(module, (theirs.fileno(), *tether.fds))
        try:
            return Worker(process.pid, os.pidfd_open(process.pid), ours, partial(_wait_for, process), is_child=True)
        except BaseException:
            process.kill()
            process.wait()
            raise
    except BaseException:
        ours.close()
        raise


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for a dead child, after whatever it had started."""
    end_group(process.pid)
    return process.wait()


def _here() -> str:
    """The working directory, or "" where it is gone."""
    with suppress(OSError):
        return str(Path.cwd())
    return ""


def _popen(module: str, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    if not sys.executable:
        message = "sys.executable does not say which Python runs here, so no worker can be started; set it"
        raise WorkerError(message)
    here = _here()
    path = [entry or here for entry in sys.path if isinstance(entry, str)]
    order = json.dumps({"path": [entry for entry in path if entry], "module": module, "fds": fds})
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *flags, "-c", _CODE, order],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env=environment,
        cwd=None if here else "/",  # Python 3.13.0 cannot import NumPy in a directory that is gone
        start_new_session=True,  # so that Ctrl-C does not reach it before it can say that it wants none
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
        self._abandoned = False
        if shipment is None:
            _warn_of_threads()

    def _open(self) -> Worker:
        if self._shipment is None:
            return self._fork()
        nursery = spawn("ringfeed.nursery", self._tether)
        channels.send(nursery.channel, {"manifest": self._shipment.manifest()}, self._shipment.fds)
        return nursery

    @_explained()
    def _fork(self) -> Worker:
        ours, theirs = channels.pair()
        with theirs:
            try:
                pid = fork()
                if pid == 0:
                    self._be_a_nursery(ours, theirs)
                return Worker(pid, pidfd_of(pid), ours, partial(_status_of_child, pid), is_child=True)
            except BaseException:
                ours.close()
                raise

    def _be_a_nursery(self, ours: socket.socket, theirs: socket.socket) -> NoReturn:
        """In the forked child: never come back to what the consumer was doing."""
        try:
            ours.close()
            Tether.close_writers()
            os.environ.update({**dict.fromkeys(_ONE_THREAD, "1"), **os.environ})
            nurse(theirs, *self._tether.fds, self._dataset)
        finally:
            os._exit(1)

    def start(self) -> Worker:
        """Start a worker; a nursery that was killed is replaced."""
        for last_try in (False, True):
            try:
                return self._order()
            except (OSError, EOFError) as error:
                end = self._bury()
                # A BlockingIOError is a nursery that does not read.
                if isinstance(error, OSError) and is_shortage(error) and not isinstance(error, BlockingIOError):
                    raise WorkerError(f"no worker can be started: {reason(error)}") from error
                if last_try or self._abandoned:
                    message = f"the process that forks workers {end} twice; use start_method='spawn'"
                    raise WorkerError(message) from error
        raise AssertionError  # the loop returns or raises

    def _order(self) -> Worker:
        """Have a worker forked. A nursery that dies of it may have forked one: it knows a channel that nobody uses."""
        if self._nursery is None:
            self._nursery = self._open()
        ours, theirs = channels.pair()
        with theirs:
            try:
                channels.send(self._nursery.channel, {}, (theirs.fileno(), *self._tether.fds))
                pid, pidfd = self._answer(self._nursery)
            except BaseException as error:
                ours.close()
                if not isinstance(error, (OSError, EOFError, WorkerError)):
                    self._bury()  # Ctrl-C: its answer would pass for that to the next order
                raise
        return Worker(pid, pidfd, ours, partial(self._status_of, pid, self._nursery))

    def _answer(self, nursery: Worker) -> tuple[int, int]:
        """Return the pid and the pidfd of the forked worker."""
        deadline = time.monotonic() + NURSERY_TIMEOUT_S
        nursery.channel.settimeout(LOOK_S)
        while time.monotonic() < deadline and not self._abandoned:
            try:
                message, fds = channels.receive(nursery.channel)
            except TimeoutError:
                continue
            if "pid" in message:
                return message["pid"], fds[0]
            self._note(message)
        raise TimeoutError

    def _note(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._statuses[message["ended"]] = os.waitstatus_to_exitcode(message["status"])
        elif "broken" in message:
            failure = decode(message["broken"])
            if isinstance(failure.error, WorkerError):
                raise failure.error
            text = f"the dataset could not be unpickled for the workers: {failure.summary}"
            raise WorkerError(text) from failure.error
        elif "refused" in message:
            text = f"no worker can be started: {message['refused']}"
            raise WorkerError(text)

    def _status_of(self, pid: int, nursery: Worker) -> int | None:
        """Return a dead worker's exit code; None when its nursery died before it could tell."""
        deadline = time.monotonic() + BURIAL_S
        while pid not in self._statuses and self._nursery is nursery and time.monotonic() < deadline:
            nursery.channel.settimeout(LOOK_S)
            try:
                message, _ = channels.receive(nursery.channel)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                self._bury()
                break
            with suppress(WorkerError):  # the nursery's own end: the next order will find it
                self._note(message)
        # Not told: an orphan of a nursery that was killed. It may be ours to bury, where we are PID 1 or a subreaper.
        return self._statuses.pop(pid) if pid in self._statuses else _status_of_child(pid)

    def _bury(self) -> str:
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            return "ended"
        nursery.kill()
        nursery.is_dead(BURIAL_S)
        return nursery.epitaph()

    def abandon(self) -> None:
        """Stop waiting for the nursery; from any thread."""
        self._abandoned = True

    def close(self) -> None:
        """End the nursery; its children end by the ring."""
        self._bury()


def _status_of_child(pid: int) -> int | None:
    """The exit code of a dead process; None where it is no child of ours, or somebody else has waited for it."""
    end_group(pid)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _warn_of_threads() -> None:
    live = frameworks_loaded()
    if live:
        warnings.warn(
            f"start_method='fork' after {', '.join(live)} was imported: its threads do not survive the fork, and a "
            f"worker that uses it hangs; use start_method='spawn'",
            RuntimeWarning,
            stacklevel=2,
        )

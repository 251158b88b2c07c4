"""A process that ends all it has started, and all that these have started, when the process that it serves ends.

Ray's processes start others and leave them behind: agents, workers, actors. The keeper is their
subreaper: when a parent dies, the kernel gives its children to the keeper, so none is ever lost. It
runs one command at a time, a message of JSON, and answers with the exit status and what the command
wrote. It is no child of the process that it serves, so a test that looks at its own children does
not meet it. It imports neither ringfeed nor Ray.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES = 1 << 17  # of a message
WRITTEN = 20_000  # the last characters of what a command wrote
START_S, END_S = 60.0, 60.0


# ---- in the process that is served ----


class Keeper:
    """A keeper, and what runs below it.

    ``folder`` is removed at its end, ``apart`` gives it a network namespace.
    """

    def __init__(self, *, folder: Path | None = None, apart: bool = False) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        me = os.pidfd_open(os.getpid())
        through = ["unshare", "--net"] if apart else []
        command = [
            *through,
            sys.executable,
            __file__,
            str(its.fileno()),
            str(me),
            str(folder or ""),
        ]
        try:
            subprocess.run(
                command,
                pass_fds=[its.fileno(), me],
                check=True,
                timeout=START_S,
                stdin=subprocess.DEVNULL,
            )
        finally:
            its.close()
            os.close(me)
        self.pid: int = self._answer(START_S)
        self._pidfd = os.pidfd_open(self.pid)

    def begin(self, command: Iterable[object], environment: dict[str, str] | None = None) -> None:
        """Start a command; ``finish`` waits for it.

        A message is small: variables are those that differ.
        """
        self._socket.send(json.dumps([[*map(str, command)], environment or {}]).encode())

    def finish(self, timeout_s: float) -> str:
        """Return what the command wrote; RuntimeError where it failed."""
        command, status, written = self._answer(timeout_s)
        if status:
            raise RuntimeError(f"{command[:4]} ended with status {status}:\n{written}")
        return str(written)

    def run(self, *command: object, timeout_s: float = START_S) -> str:
        """Do both."""
        self.begin(command)
        return self.finish(timeout_s)

    def pids(self) -> set[int]:
        """Return the processes below it that live."""
        return {pid for pid in leftovers.below(self.pid) if leftovers.runs(pid)}

    def kill(self) -> None:
        """Kill all below it, and return when they are dead."""
        deadline = time.monotonic() + END_S
        while living := self.pids():
            assert time.monotonic() < deadline, f"processes that outlive SIGKILL: {living}"
            signal_all(living, signal.SIGKILL)
            time.sleep(0.005)

    def end(self) -> None:
        """Have it end all below it, and itself."""
        if self._pidfd < 0:
            return
        self._socket.shutdown(socket.SHUT_RDWR)  # a fork may have the socket, too
        self._socket.close()
        try:
            assert select.select([self._pidfd], [], [], END_S)[0], (
                f"the keeper {self.pid} does not end"
            )
        finally:
            os.close(self._pidfd)
            self._pidfd = -1

    def _answer(self, timeout_s: float) -> Any:
        if not select.select([self._socket], [], [], timeout_s)[0]:
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        if not (message := self._socket.recv(MOST_BYTES)):
            raise ConnectionError("the keeper has ended")
        return json.loads(message)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# ---- in the keeper ----


def _say(line: socket.socket, message: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the process that is served has just ended
        line.send(json.dumps(message).encode())


def _heard(line: socket.socket) -> bytes:
    """Return a message; nothing where the other end is closed, an answer unread or not."""
    try:
        return line.recv(MOST_BYTES)
    except ConnectionResetError:
        return b""


def _reaped() -> dict[int, int]:
    """Return the exit status of each process that has ended, which is then gone."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return found


def _serve(line: socket.socket, served: int, signals: int) -> None:
    """Run commands until the other end is closed, the process that is served ends, or a signal asks for the end."""
    command: list[str] = []
    written = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - one after another
    running = 0
    while True:
        ready, _, _ = select.select([line, served, signals], [], [])
        if served in ready:
            return
        if signals in ready and {*os.read(signals, 100)} - {signal.SIGCHLD}:
            return
        if line in ready:
            if not (message := _heard(line)):
                return
            command, environment = json.loads(message)
            written = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as above
            running = _start(command, {**os.environ, **environment}, written)
        status = _reaped().get(running)
        if running and status is not None:
            written.seek(0)
            _say(line, [command, status, written.read()[-WRITTEN:]])
            running = 0


def _start(command: list[str], environment: dict[str, str], written: Any) -> int:
    """Return the process; one that cannot start ends with status 127, as in a shell."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(written.fileno(), 1)
    os.dup2(1, 2)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - what was asked for
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _end_all() -> None:
    """Kill all below this process, wait until they are dead, and bury them."""
    deadline = time.monotonic() + END_S / 2
    while (below := leftovers.below(os.getpid())) and time.monotonic() < deadline:
        signal_all(below, signal.SIGKILL)
        _reaped()
        time.sleep(0.005)


def _keep(line: int, served: int, folder: str) -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    for descriptor in (line, served):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - what it is called
    with socket.socket(fileno=line) as ours:
        _say(ours, os.getpid())
        try:
            _serve(ours, served, signals)
        finally:
            _end_all()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

"""The loaders of another process of this user, found through /proc and looked at without disturbing them.

A control block is opened for reading only, through /proc/PID/fd, and no lock is shared: what is
looked at does not notice.
"""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ringfeed.errors import RingfeedError
from ringfeed.monitor._snapshot import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from ringfeed.monitor.snapshot import Snapshot

MEMORY_S = 10.0  # the verdict speaks of so much of the past
CONTROL = "/memfd:ringfeed-control (deleted)"
CONDITIONS = {"T": "stopped", "t": "traced", "Z": "dead"}  # by the letter in /proc/PID/stat


class Attached:
    """One loader of another process, and the looks at it. Its memory stays for as long as this is kept."""

    def __init__(self, number: int, fd: int) -> None:
        """Map the control block ``fd``."""
        self.number = number
        self.observer = Observer(fd)
        self.looks: deque[Snapshot] = deque()

    def look(self) -> None:
        """Look at it, and drop looks that are of no use any more."""
        self.looks.append(self.observer.snapshot())
        forget(self.looks)


def forget(looks: deque[Snapshot]) -> None:
    """Drop looks that are too old, or from before the first batch where there are two since."""
    while len(looks) > 2 and (  # noqa: PLR2004 - two make a picture
        looks[-1].at_ns - looks[1].at_ns > MEMORY_S * 1e9
        or looks[0].consumer.batches == 0 < looks[-2].consumer.batches
    ):
        looks.popleft()


class Target:
    """A process that may have loaders. Also a context manager."""

    def __init__(self, pid: int) -> None:
        """RingfeedError where there is no such process, or it may not be looked at."""
        _check_proc()
        self.pid = pid
        self.refusal = ""  # why a control block that is there could not be mapped
        self._attached: dict[int, Attached] = {}  # by inode
        self._count = 0
        try:
            self._pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            message = (
                f"there is no process {pid}; `ringfeed top` alone lists those that have a running "
                "loader"
            )
            raise RingfeedError(message) from None
        self.command = _command_of(pid)
        self._sees_pids = _pid_namespace(pid) == _pid_namespace(os.getpid())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the process and of its loaders."""
        self._attached.clear()
        os.close(self._pidfd)

    def wait(self, timeout_s: float, keys: int | None = None) -> bool:
        """Wait for so long, or until a key comes, or the process ends; returns whether it has."""
        poller = select.poll()
        for fd in (self._pidfd,) if keys is None else (self._pidfd, keys):
            poller.register(fd, select.POLLIN)
        return any(fd == self._pidfd for fd, _ in poller.poll(timeout_s * 1e3))

    def cpus(self) -> int:
        """Return how many CPUs the process may use."""
        try:
            return len(os.sched_getaffinity(self.pid))
        except OSError:
            return os.cpu_count() or 1

    def loaders(self) -> list[Attached]:
        """Return the loaders that run now; each keeps the number that it was first seen with, from 1 on."""
        try:
            files = _control_files(self.pid)
        except PermissionError:
            message = (
                f"process {self.pid} may not be looked at: it belongs to another user, or hides "
                "from its own"
            )
            raise RingfeedError(message) from None
        except (FileNotFoundError, ProcessLookupError):
            files = {}  # it has just ended
        before = self._attached
        found = {inode: before.get(inode) or self._attach(path) for inode, path in files.items()}
        self._attached = {inode: loader for inode, loader in found.items() if loader is not None}
        return [
            loader for loader in self._attached.values() if not loader.observer.consumer().stopped
        ]

    def conditions(self, look: Snapshot) -> dict[int, str]:
        """Say which worker processes do not run, by pid; nothing where their pids mean something else here."""
        pids = [worker.pid for worker in look.workers if worker.pid and self._sees_pids]
        states = {pid: "".join(_fields_of(pid)[:1]) for pid in pids}
        return {pid: CONDITIONS[letter] for pid, letter in states.items() if letter in CONDITIONS}

    def _attach(self, path: str) -> Attached | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:  # closed meanwhile, or it belongs to another user than the process
            self.refusal = str(error)
            return None
        try:
            found = Attached(self._count + 1, fd)
        except ValueError as error:  # or it is being made: the next look tells
            self.refusal = f"{error}; run the ringfeed of its own environment"
            return None
        finally:
            os.close(fd)
        self._count += 1
        return found


def running() -> str:
    """Return the processes of this user that have a running loader, a line each."""
    found = processes()
    if not found:
        return "no process of yours has a running loader"
    lines = [f"{pid:>8}  {count:>7}  {command}" for pid, count, command in found]
    return "\n".join([f"{'pid':>8}  {'loaders':>7}  command", *lines])


# ---- /proc ----


def processes() -> list[tuple[int, int, str]]:
    """Return (pid, number of loaders, command) for each process of this user that has a running loader.

    A process that was forked may have its parent's descriptors; the parent alone is meant.
    """
    _check_proc()
    owners = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is not to be looked at
            pid = int(folder.name)
            if folder.stat().st_uid == os.getuid() and (files := _control_files(pid)):
                owners[pid] = files
    found = []
    for pid, files in sorted(owners.items()):
        above = [owners[parent] for parent in _ancestors(pid) if parent in owners]
        count = sum(not any(inode in theirs for theirs in above) for inode in files)
        if count:
            found.append((pid, count, _command_of(pid)))
    return found


def _check_proc() -> None:
    if not Path("/proc/self").exists():
        message = (
            "loaders are found through /proc, which is not here: mount it (mount -t proc proc "
            "/proc)"
        )
        raise RingfeedError(message)


def _control_files(pid: int) -> dict[int, str]:
    """Return where a process has control blocks open: a path for each, by inode."""
    found: dict[int, str] = {}
    for path in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
        with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            if str(path.readlink()) == CONTROL:
                found.setdefault(path.stat().st_ino, str(path))
    return found


def _fields_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _ancestors(pid: int) -> Iterator[int]:
    while (fields := _fields_of(pid)) and (pid := int(fields[1])):
        yield pid


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(words).strip())


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return f"unknown of {pid}"

"""The loaders of another process of this user, found and looked at through /proc.

A control block is opened for reading only, through /proc/PID/fd, and no lock is shared: what is
looked at does not notice.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ringfeed.errors import RingfeedError
from ringfeed.monitor._snapshot import Observer
from ringfeed.system.channel import readable

if TYPE_CHECKING:
    from ringfeed.monitor.snapshot import Snapshot

MEMORY_S = 10.0  # the verdict speaks of so much of the past
CONTROL = "/memfd:ringfeed-control (deleted)"


class Attached:
    """One loader of another process, and the looks at it.

    The loader's control block stays mapped for as long as this is kept.
    """

    def __init__(self, number: int, fd: int) -> None:
        """Map the control block ``fd``."""
        self.number = number
        self.inode = os.fstat(fd).st_ino
        self.observer = Observer(fd)
        self.looks: deque[Snapshot] = deque()

    def look(self) -> None:
        """Look at it, and drop looks that are of no use any more."""
        self.looks.append(self.observer.snapshot(waits=True))
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
            raise RingfeedError(
                f"there is no process {pid}; `ringfeed top` alone lists those that have a running "
                "loader"
            ) from None
        self.command = _command_of(pid)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the process and of its loaders."""
        self._attached.clear()
        os.close(self._pidfd)

    def wait(self, timeout_s: float, keys: int | None = None) -> bool:
        """Wait for so long, or until a key comes, or the process ends; returns whether it has."""
        fds = (self._pidfd,) if keys is None else (self._pidfd, keys)
        return self._pidfd in readable(fds, timeout_s)

    def cpus(self) -> int:
        """Return how many CPUs the process may use."""
        try:
            return len(os.sched_getaffinity(self.pid))
        except OSError:
            return os.cpu_count() or 1

    def loaders(self) -> list[Attached]:
        """Return the loaders that run now.

        A loader keeps the number that it was first seen with; numbers begin with 1.
        """
        try:
            files = _control_files(self.pid)
        except PermissionError:
            raise RingfeedError(
                f"process {self.pid} may not be looked at: it belongs to another user, or hides "
                "from its own"
            ) from None
        except (FileNotFoundError, ProcessLookupError):
            files = {}  # it has just ended
        before = self._attached
        found = {inode: before.get(inode) or self._attach(path) for inode, path in files.items()}
        self._attached = {inode: loader for inode, loader in found.items() if loader is not None}
        return [
            loader for loader in self._attached.values() if not loader.observer.consumer().stopped
        ]

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
    """Return (pid, number of loaders, command) for each process of this user with a running loader.

    Workers and other children may have the descriptors of their parent: the lowest pid counts.
    """
    _check_proc()
    found: list[tuple[int, int, str]] = []
    seen: set[int] = set()
    for pid in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):  # it ended meanwhile, or is not to be looked at
            if Path(f"/proc/{pid}").stat().st_uid == os.getuid():
                if own := _control_files(pid).keys() - seen:
                    found.append((pid, len(own), _command_of(pid)))
                seen |= own
    return found


def variables_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; nothing where it may not be read."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition("=") for line in text.split("\0"))}


def is_started_by(pid: int, ancestor: int) -> bool:
    """Whether a process is this one, or was started by it or by one that it has started."""
    while pid not in {0, ancestor}:
        try:
            # The name of the program, in brackets, may hold anything.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            return False
        pid = int(fields.split()[1])
    return pid == ancestor


def _check_proc() -> None:
    if not Path("/proc/self").exists():
        raise RingfeedError(
            "loaders are found through /proc, which is not here: mount it (mount -t proc proc "
            "/proc)"
        )


def _control_files(pid: int) -> dict[int, str]:
    """Return where a process has control blocks open: a path for each, by inode."""
    found: dict[int, str] = {}
    for path in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
        with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            if str(path.readlink()) == CONTROL:
                found.setdefault(path.stat().st_ino, str(path))
    return found


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(words).strip())

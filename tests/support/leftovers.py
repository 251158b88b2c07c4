"""What this process has open, read from /proc: children, file descriptors, memfds, named shared memory."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0  # with what is going away: on a machine that is busy even the end of a process takes its time


def _processes() -> dict[int, tuple[int, str]]:
    """Return (parent, name) of each process of this machine.

    Hundreds are looked at, before and after most tests.
    """
    found = {}
    for place in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - a Path for each costs more than its file
        try:
            with open(f"/proc/{place}/stat", errors="replace") as stat:  # noqa: PTH123 - the same
                line = stat.read()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        name, _, fields = line.partition(" (")[2].rpartition(") ")
        state, parent = fields.split(maxsplit=2)[:2]
        found[int(place)] = (
            int(parent),
            f"{name}, dead but not waited for" if state == "Z" else name,
        )
    return found


def children(pid: int) -> set[int]:
    """Return the processes whose parent is this one."""
    return {number for number, (parent, _) in _processes().items() if parent == pid}


def _below(pid: int, processes: dict[int, tuple[int, str]]) -> set[int]:
    found = {pid}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {number for number, (parent, _) in processes.items() if parent in found}
    return found - {pid}


def below(pid: int) -> set[int]:
    """Return the processes below this one: its children, theirs, and so on."""
    return _below(pid, _processes())


def _kept() -> tuple[set[int], set[int]]:
    """Return the processes that stay on purpose, and their descriptors here.

    Those are warm forkservers, which wait for the next loader, and multiprocessing's tracker of
    shared memory, which the first loader starts once a test has imported that.
    """
    tracker = getattr(
        sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None
    )
    pids, fds = ({getattr(tracker, name, None)} - {None} for name in ("_pid", "_fd"))
    warm = sys.modules.get("ringfeed.workers.warm")
    if warm is None:
        return pids, fds
    pids.update(warm.pids())
    if (kept := warm._Kept.warm) is not None:
        fds |= {
            kept.process.pidfd,
            kept.process.channel.fileno(),
            *kept._lifeline.fds,
            kept._lifeline.writer.fileno(),
        }
    return pids, fds


def _descendants(kept: set[int]) -> Iterator[str]:
    """Yield each process below this one."""
    processes = _processes()
    yield from (
        f"process {number} ({processes[number][1]})"
        for number in _below(os.getpid(), processes) - kept
    )


def _descriptors(kept: set[int]) -> Iterator[str]:
    """Yield each open file descriptor and what it is open on."""
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as above
        if int(descriptor) in kept:
            continue
        try:
            yield f"fd {descriptor} -> {os.readlink(f'/proc/self/fd/{descriptor}')}"  # noqa: PTH115
        except FileNotFoundError:  # the descriptor of the listing itself
            continue


def _mappings() -> Iterator[str]:
    """Yield the memfd behind each mapping of one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            inode, path = line.split(maxsplit=5)[4:]
            yield f"mapping of {path}, inode {inode}"


def _named_memory() -> Iterator[str]:
    """Yield each named shared memory of this user."""
    for place in Path("/dev/shm").iterdir():
        try:
            if place.stat().st_uid == os.getuid():
                yield str(place)
        except FileNotFoundError:  # it was removed meanwhile
            continue


def _is_of_others(left: str) -> bool:
    """Whether this is named shared memory that a process maps which is none of ours: it has made it."""
    if not left.startswith("/dev/shm/"):
        return False
    with suppress(OSError):  # here and below: it has gone meanwhile, or is another user's
        inode = str(os.stat(left).st_ino)  # noqa: PTH116 - as above. A semaphore's mapping has another name
        processes = _processes()
        for number in processes.keys() - _below(os.getpid(), processes) - {os.getpid()}:
            with suppress(OSError):
                lines = Path(f"/proc/{number}/maps").read_text().splitlines()
                if any(
                    "/dev/shm/" in line and line.split(maxsplit=5)[4] == inode for line in lines
                ):
                    return True
    return False


def present() -> Counter[str]:
    """Return all that is there now, after a garbage collection, but for what stays on purpose."""
    gc.collect()
    if not Path("/proc/self").exists():  # macOS
        return Counter(f"fd {number}" for number in os.listdir("/dev/fd"))  # noqa: PTH208
    pids, fds = _kept()
    return Counter([*_descendants(pids), *_descriptors(fds), *_mappings(), *_named_memory()])


def since(before: Counter[str], patience_s: float = PATIENCE_S) -> list[str]:
    """Return what is there and was not before, once nothing is or `patience_s` have passed."""
    deadline = time.monotonic() + patience_s
    while True:
        left = [one for one in sorted((present() - before).elements()) if not _is_of_others(one)]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Return whether a process lives; one that is dead and not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

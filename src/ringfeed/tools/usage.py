"""What this process and those that it has started use, by /proc: CPU seconds and memory."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ringfeed.monitor.memory import memory_of

if TYPE_CHECKING:
    from collections.abc import Iterable

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
LOOKS = 10
PARENT, TIMES = 1, slice(11, 15)  # of the fields of /proc/PID/stat, from the state on


class Memory(NamedTuple):
    """Bytes of some processes: their own, and their parts of pages that other processes have, too."""

    private: int = 0
    shared: int = 0


def descendants() -> set[int]:
    """Return the processes that this one has started, and those that they have started; none without /proc."""
    parents = {pid: int(fields[PARENT]) for pid in _pids() if (fields := _stat(pid))}
    found: set[int] = set()
    newest = {os.getpid()}
    while newest:
        newest = {pid for pid, parent in parents.items() if parent in newest} - found
        found |= newest
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of some descendants, and of all that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(_cpu_s, pids))


def _cpu_s(pid: int) -> float:
    """Return those of a process, with its own that have ended: of living threads to the ns, else in ticks."""
    user, system, *ended = [int(ticks) * TICK_S for ticks in _stat(pid)[TIMES]] or [0.0, 0.0]
    return max(user + system, _threads_s(pid)) + sum(ended)


def _threads_s(pid: int) -> float:
    try:
        found = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except (OSError, IndexError):  # it has ended meanwhile, or this kernel does not count
        return 0.0
    return sum(found) / 1e9


def queued_s() -> float:
    """Return the seconds for which this thread was ready to run and had no processor; 0.0 where no kernel counts."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def others_running() -> float:
    """Return how many threads of the machine run or want to, this one left out: a mean of a tenth of a second."""
    found = []
    for _ in range(LOOKS):
        time.sleep(0.1 / LOOKS)
        with suppress(OSError, ValueError, IndexError):  # no /proc
            found.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1)
    return max(sum(found) / max(len(found), 1), 0.0)


def memory(pids: Iterable[int]) -> Memory:
    """Return what some processes have; one that has ended, or hides, has nothing."""
    found = [sizes for pid in pids if (sizes := memory_of(pid)) is not None]
    private = sum(own for _, own in found)
    return Memory(private, sum(pss for pss, _ in found) - private)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are what is wanted
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:  # it has ended meanwhile
        return []

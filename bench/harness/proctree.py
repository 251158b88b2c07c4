"""What the kernel says of a process and of all it started: CPU seconds, page faults, memory."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CPUCLOCK_SCHED = 2  # the clock of a whole process, of linux/posix-timers.h


class Usage(NamedTuple):
    """CPU seconds and page faults, minor and major, of a process tree since it began."""

    cpu_s: float
    faults: int

    def since(self, earlier: Usage) -> Usage:
        """The difference to an earlier reading of the same tree."""
        return Usage(self.cpu_s - earlier.cpu_s, self.faults - earlier.faults)


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on; empty when the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parents() -> dict[int, int]:
    """Every living process and its parent; zombies are left out."""
    found = {}
    for entry in PROC.glob("[0-9]*"):
        fields = stat_fields(int(entry.name))
        if fields and fields[0] not in "ZX":
            found[int(entry.name)] = int(fields[1])
    return found


def descendants(root: int) -> list[int]:
    """Every living process below `root`, children before grandchildren."""
    parent_of = parents()
    found = [root]
    for above in found:  # grows while it is walked
        found += [pid for pid, parent in parent_of.items() if parent == above]
    return found[1:]


def workers(root: int) -> list[int]:
    """The processes below `root` that do its work, oldest first: those that others were forked from do none."""
    parent_of = parents()
    below = descendants(root)
    return sorted(pid for pid in below if pid not in parent_of.values() and not _is_service(pid))


def _is_service(pid: int) -> bool:
    """Whether the process is multiprocessing's resource tracker or fork server."""
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return True
    return b"resource_tracker" in command or b"forkserver" in command


def usage_of_self() -> Usage:
    """What this process alone has used."""
    return Usage(time.process_time(), _faults(resource.RUSAGE_SELF))


def _faults(whose: int) -> int:
    used = resource.getrusage(whose)
    return used.ru_minflt + used.ru_majflt


def usage_of_tree() -> Usage:
    """What this process, its living descendants and its buried children have used, to the nanosecond."""
    living = [_usage_of(pid) for pid in descendants(os.getpid())]
    buried = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = usage_of_self()
    cpu_s = own.cpu_s + buried.ru_utime + buried.ru_stime + sum(one.cpu_s for one in living)
    return Usage(
        cpu_s, own.faults + _faults(resource.RUSAGE_CHILDREN) + sum(one.faults for one in living)
    )


def cpu_s_of_machine() -> float:
    """CPU seconds that all processes and the kernel have used since the machine started, to a hundredth."""
    ticks = (PROC / "stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _usage_of(pid: int) -> Usage:
    """What another process and its buried children have used; nothing when it is gone."""
    fields = stat_fields(pid)
    if not fields:
        return Usage(0.0, 0)
    try:
        cpu_s = time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        cpu_s = 0.0
    buried_s = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return Usage(cpu_s + buried_s, sum(map(int, fields[7:11])))


class Memory(NamedTuple):
    """Bytes: private pages and the share of mapped files; and the share of mapped shared memory."""

    own: int
    shared: int


def memory_of(pid: int) -> Memory:
    """The proportional set size of a process; nothing when it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return Memory(0, 0)
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
    }
    return Memory(sizes["Pss"] - sizes["Pss_Shmem"], sizes["Pss_Shmem"])


def memory_of_tree(pids: list[int]) -> Memory:
    """What these processes have together, shared memory with it that none of them has mapped just now."""
    sizes = [memory_of(pid) for pid in pids]
    return Memory(
        sum(size.own for size in sizes), max(sum(size.shared for size in sizes), shared_files(pids))
    )


def shared_files(pids: list[int]) -> int:
    """Bytes the kernel has allocated to the memfds and /dev/shm files these processes hold open."""
    return sum(dict(file for pid in pids for file in _open_shared_files(pid)).values())


def _open_shared_files(pid: int) -> list[tuple[tuple[int, int], int]]:
    """Identity and allocated bytes of each shared-memory file that one process holds open."""
    found = []
    # The process, or one of its files, may go while it is looked at.
    with contextlib.suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            if str(entry.readlink()).startswith(("/memfd:", "/dev/shm/")):  # noqa: S108, only looked at
                status = entry.stat()
                found.append(((status.st_dev, status.st_ino), status.st_blocks * 512))
    return found

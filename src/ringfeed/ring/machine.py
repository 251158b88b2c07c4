"""What this machine lets a loader have: memory, descriptors, threads, system calls; asked before anything starts.

free_memory()       how much a loader may reserve; check_free()
check_processes()   whether worker processes can be started and watched
check_futex()       whether one process can wait for another
beyond_caches()     how many bytes of slots no cache holds
reason()            why the kernel refused a process or a descriptor, and what to raise
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError, WorkerError
from ringfeed.ring import _ring
from ringfeed.ring._ring import Descriptor

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

DESCRIPTORS = 12  # of all workers together, and what starting one takes for a moment
DESCRIPTORS_A_WORKER = 3  # its channel, its pidfd, its stack
CACHES = 3  # times the last cache: from here on writing past the caches costs no consumer anything
USUAL_CACHE = 32 << 20  # bytes, where the kernel does not say: C's sysconf tells that of all processors of a machine
_FILES, _TASKS, _SPACE = (
    (resource.RLIMIT_NOFILE, "RLIMIT_NOFILE (ulimit -n)"),
    (resource.RLIMIT_NPROC, "RLIMIT_NPROC (ulimit -u)"),
    (resource.RLIMIT_AS, "RLIMIT_AS (ulimit -v)"),
)
_SHORTAGES = {  # a thread's stack takes address space, and its want is told as EAGAIN
    errno.EMFILE: ((_FILES,), "raise it"),
    errno.EAGAIN: ((_TASKS, _SPACE), "raise what is reached, or its cgroup's pids.max"),
    errno.ENOMEM: ((_SPACE,), "raise it, or give the machine or its cgroup more memory"),
}
_REMEDY = "it takes Linux {release} or newer, and a container whose seccomp profile allows it"


# ---- memory ----


class _Files(NamedTuple):
    """The names that one version of cgroups has for what we ask."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]  # lines of memory.stat: what the kernel takes back before it kills


_VERSIONS = (
    # Above memory.high no process is killed, but all are made to wait: as good as a hang.
    _Files(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file", "slab_reclaimable")),
    _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def free_memory(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Yield (bytes free, whose) of the machine and of each cgroup around this process that has a limit."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:  # no /proc: what is there in all is known, if not what is free of it
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the machine has at most"
        return
    yield from ((int(line.split()[1]) * 1024, "the machine has") for line in lines if line.startswith("MemAvailable:"))
    for folder in _cgroups(root):
        for names in _VERSIONS:
            yield from _free_in_cgroup(folder, names)


def check_free(needed: int, what: str) -> None:
    """Raise PlanError unless so many bytes are free, which ``what`` needs.

    Past these limits the kernel kills instead of refusing, so it has to be asked before.
    """
    for free, whose in free_memory():
        if needed > free:
            has = f"{whose} {show_bytes(max(free, 0))} free"
            message = f"{what}, but {has}; use fewer slots, a smaller batch_size, or memory="
            raise PlanError(message)


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's memory cgroups, from its own to the outermost that is mounted here."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = list(_mounts((root / "proc/self/mountinfo").read_text().splitlines()))
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for mount in mounts:
            if mount.version == (1 if controllers else 2) and (not controllers or "memory" in controllers.split(",")):
                yield from (root / folder.lstrip("/") for folder in _between(mount, PurePosixPath(path)))


class _Mount(NamedTuple):
    version: int
    outermost: PurePosixPath  # the cgroup that is mounted
    place: PurePosixPath


def _mounts(lines: list[str]) -> Iterator[_Mount]:
    """Yield where memory cgroups are mounted: mostly under /sys/fs/cgroup, in a container without what is above."""
    for line in lines:
        where, _, what = line.partition(" - ")
        kind, _, options = what.split()[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            outermost, place = map(PurePosixPath, where.split()[3:5])
            yield _Mount(2 if kind == "cgroup2" else 1, outermost, place)


def _between(mount: _Mount, path: PurePosixPath) -> Iterator[str]:
    """Yield the folders of a cgroup and of all around it, as far as they are mounted."""
    inside = path.is_relative_to(mount.outermost)
    own = mount.place / path.relative_to(mount.outermost) if inside else mount.place
    yield from (str(folder) for folder in (own, *own.parents) if folder.is_relative_to(mount.place))


def _free_in_cgroup(folder: Path, names: _Files) -> Iterator[tuple[int, str]]:
    for limit_name in names.limits:
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / names.usage).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if limit != "max":
            reclaimable = sum(int(statistics.get(name, 0)) for name in names.reclaimable)
            yield int(limit) - usage + reclaimable, f"its cgroup ({folder / limit_name}) has"


# ---- processes and threads ----


def check_processes(workers: int, own: int = 0) -> None:
    """Raise WorkerError unless so many worker processes can be started, watched and told.

    ``own``: descriptors of theirs that are open already.

    There is no way round a missing pidfd: exit codes and heartbeats have called living workers dead, which then
    wrote into slots that were another's.
    """
    _check_descriptors(workers, own)
    call, release = "pidfd_open", "5.3"
    try:
        with Descriptor(os.pidfd_open, os.getpid()) as pidfd:
            call, release = "pidfd_send_signal", "5.1"
            signal.pidfd_send_signal(pidfd.fileno(), 0)  # no signal: it only looks
        call, release = "eventfd2", "2.6.27"
        Descriptor(os.eventfd, 0).close()
    except (OSError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else "this Python was built without it"
        raise WorkerError(
            f"worker processes need the system call {call}, which is refused: {why}; "
            f"{_REMEDY.format(release=release)}; or use backend='thread', or workers=0"
        ) from error


def check_futex() -> None:
    """Raise WorkerError where the C library's own locks do not work: it would abort this process in the first wait."""
    number = _ring.futex_error()
    if number:
        raise WorkerError(
            f"ringfeed needs the system call futex, which is refused: {os.strerror(number)}; "
            f"{_REMEDY.format(release='2.6.28')}"
        )


def _check_descriptors(workers: int, own: int = 0) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        listing = 1  # it has one too
        opened = sum(int(fd.name) < limit for fd in Path("/proc/self/fd").iterdir()) - listing - own
    except FileNotFoundError:  # no /proc: the call that is refused one says so
        return
    except OSError:
        opened = limit
    needed = DESCRIPTORS + workers * DESCRIPTORS_A_WORKER
    if opened + needed <= limit:
        return
    most = (limit - opened - DESCRIPTORS) // DESCRIPTORS_A_WORKER
    fewer = f"workers={most}" if most > 0 else "backend='thread'"
    raise WorkerError(
        f"RLIMIT_NOFILE is {limit}, and workers={workers} needs {needed} descriptors beside the {opened} in use; "
        f"raise it (ulimit -n {opened + needed}), or use {fewer}"
    )


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; WorkerError where there is no room for one."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it has undone what start() was in the middle of
            raise error.__context__ from None
        if "can't start new thread" not in str(error):  # all that Python says of a shortage
            raise
        raise WorkerError(f"no thread can be started: {reason(OSError(errno.EAGAIN, str(error)))}") from error


def is_shortage(error: OSError) -> bool:
    """Whether the kernel had no room for what it was asked, so that asking again is in vain."""
    return error.errno in {*_SHORTAGES, errno.ENFILE}


def reason(error: OSError) -> str:
    """Say why the kernel refused a process or a descriptor, and what to do."""
    if error.errno not in _SHORTAGES:
        return str(error)
    limits, remedy = _SHORTAGES[error.errno]
    shown = ", ".join(f"{name} is {show_limit(limit)}" for limit, name in limits)
    return f"{error.strerror}: {shown}; {remedy}, or use fewer workers"


def show_limit(limit: int) -> str:
    """Return the value of a limit of this process."""
    soft, _ = resource.getrlimit(limit)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def beyond_caches(file: str = "/sys/devices/system/cpu/cpu0/cache/index3/size") -> int:
    """Return how many bytes of slots are too many for a batch to be found in a cache, by the size of the last one."""
    try:
        size = int(Path(file).read_text().removesuffix("K\n")) * 1024
    except (OSError, ValueError):
        size = USUAL_CACHE
    return CACHES * size


def usable_cpus() -> int:
    """Return how many CPUs this process may use; all there are, where it cannot be asked."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1

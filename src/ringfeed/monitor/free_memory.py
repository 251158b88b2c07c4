"""How much memory this machine, and each cgroup around this process, has free; asked before anything is reserved."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


NO_LIMIT = 2**60  # bytes; version 1 says so many, less a page, where there is none


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


def check_free(needed: int, what: str, fits: Callable[[int], str] = lambda _: "") -> None:
    """Raise PlanError unless so many bytes are free, which ``what`` needs; ``fits`` says what so many would hold.

    Past these limits the kernel kills instead of refusing, so it has to be asked before.
    """
    for free, whose in free_memory():
        if needed > free:
            has = f"{whose} {show_bytes(max(free, 0))} free"
            message = f"{what}, but {has}; use fewer slots, a smaller batch_size, or memory={fits(free)}"
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
        if not what.startswith("cgroup"):
            continue
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
    """Yield what a cgroup has free below each of its limits.

    The kernel adds up all of a cgroup when its statistics are read, which takes a millisecond, so they are asked
    only where there is a limit.
    """
    for name in names.limits:
        try:
            limit = (folder / name).read_text().strip()
            if limit == "max" or int(limit) >= NO_LIMIT:
                continue
            usage = int((folder / names.usage).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        reclaimable = sum(int(statistics.get(line, 0)) for line in names.reclaimable)
        yield int(limit) - usage + reclaimable, f"its cgroup ({folder / name}) has"

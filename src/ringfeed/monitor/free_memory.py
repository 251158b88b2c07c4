"""The free memory of this machine and of the cgroups around this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_VERSIONS = (
    # Above memory.high no process is killed, but all are made to wait: as good as a hang.
    (
        ("memory.max", "memory.high"),
        "memory.current",
        ("inactive_file", "active_file", "slab_reclaimable"),
    ),
    (
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""For each version of cgroups the files of limits and of what is used, and the lines of memory.stat
that say what the kernel takes back before it kills."""
NO_LIMIT = 2**60  # bytes; version 1 says so many, less a page, where there is none


def free_memory(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Yield (bytes free, whose) of the machine and of each cgroup around it that has a limit."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:  # no /proc: what is there in all is known, if not what is free of it
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the machine has at most"
        return
    yield from (
        (int(line.split()[1]) * 1024, "the machine has")
        for line in lines
        if line.startswith("MemAvailable:")
    )
    for folder in _cgroups(root):
        yield from _free_in_cgroup(folder)


def check_free(needed: int, what: str, fits: Callable[[int], str] = lambda _: "") -> None:
    """Raise PlanError unless the bytes that ``what`` needs are free; ``fits`` says what fits.

    Past these limits the kernel kills instead of refusing, so it has to be asked before.
    """
    for free, whose in free_memory():
        if needed > free:
            has = f"{whose} {show_bytes(max(free, 0))} free"
            raise PlanError(
                f"{what}, but {has}; use fewer slots, a smaller batch_size, or memory={fits(free)}"
            )


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's memory cgroups, from its own to the outermost.

    A container may have its own cgroup mounted in the place of the outermost one, without what is
    above it: then only the end of the path is found.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            parts = path.strip("/").split("/")
            ends = (mount.joinpath(*parts[count:]) for count in range(len(parts)))
            own = next((folder for folder in ends if folder.is_dir()), mount)
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _free_in_cgroup(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield what a cgroup has free below each of its limits.

    The kernel adds up all of a cgroup when its statistics are read, which takes a millisecond, so
    they are asked only where there is a limit.
    """
    for limits, usage, reclaimable in _VERSIONS:
        for name in limits:
            with suppress(OSError):
                limit = (folder / name).read_text().strip()
                if limit != "max" and int(limit) < NO_LIMIT:
                    used = int((folder / usage).read_text())
                    statistics = dict(
                        line.split() for line in (folder / "memory.stat").read_text().splitlines()
                    )
                    used -= sum(int(statistics.get(line, 0)) for line in reclaimable)
                    yield int(limit) - used, f"its cgroup ({folder / name}) has"

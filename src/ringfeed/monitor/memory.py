"""The memory of a running loader: what was planned, and what the kernel says of it now.

    planned     the plan, made before anything was there
    reserved    what the kernel has given to the memfds: of the plan all that is shared
    resident    what processes have touched of it

A page of a slot lies in the page tables of several processes. The kernel's Pss divides it among
them, so that the shares of all processes add up to what there is; Rss counts it in each that has
touched it. Processes are looked at one after another: where workers touch new pages meanwhile, the
sum is off by those.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._html import table
from ringfeed._units import show_bytes
from ringfeed.monitor.lease_tracker import show_ages, summed_up
from ringfeed.monitor.words import sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

BLOCK = 512  # bytes of a block, whatever the file system's own are
KILOBYTE = 1024  # what /proc means by kB
PROC = Path("/proc")
_MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) +/memfd:ringfeed-.*\n"
    rb"(?:[A-Z].*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB$",
    re.MULTILINE,
)
_LIBRARY = re.compile(rb"/(tensorflow|torch|jax)(?:lib)?/\S*\.so")
_FIELD = re.compile(rb"^(Pss|Private_\w+): +(\d+) kB$", re.MULTILINE)


class Held(NamedTuple):
    """A slot that views hold: for how long, and with `debug` where its batch was taken."""

    age_s: float
    place: str = ""


class Pages(NamedTuple):
    """The bytes of a loader's memfds that one process has in its page tables.

    ``touched`` counts a page in full (Rss), ``share`` divided by the processes that have it, too
    (Pss). The kernel gives both in whole kB for each mapping.
    """

    touched: int
    share: int


NO_PAGES = Pages(0, 0)


@dataclass(frozen=True)
class WorkerMemory:
    """A worker process: its pages of the loader, and all it has, in bytes."""

    pid: int
    pages: Pages
    pss: int
    private: int
    name: str = "worker"

    def __str__(self) -> str:
        """Return one line."""
        touched, pss, private = map(show_bytes, (self.pages.touched, self.pss, self.private))
        return (
            f"{self.name} {self.pid}: touched {touched}; with its interpreter {pss}, of which "
            f"{private} are its own"
        )


@dataclass(frozen=True)
class Memory:
    """The memory of a loader at one moment, in bytes; ``str()`` gives it as text.

    plan: the planned memory, part by part; ``planned`` is its total.
    reserved: what the kernel has reserved for the slots, the control block and the dataset that was
        sent to workers: 0 before the first epoch and after `close`, even if views still hold slots.
    pages: those of them that this process has touched; None if /proc does not say.
    held: the slots that views hold, the oldest first.
    workers: the worker processes that /proc shows.
    forkservers: the processes that fork them: this loader's, and the warm ones, which all loaders
        of this process use.
    """

    plan: Any
    reserved: int = 0
    pages: Pages | None = NO_PAGES
    held: tuple[Held, ...] = ()
    workers: tuple[WorkerMemory, ...] = ()
    forkservers: tuple[WorkerMemory, ...] = ()

    @property
    def planned(self) -> int:
        """Bytes of the plan, as `Loader.memory`."""
        total: int = self.plan.total
        return total

    @property
    def touched(self) -> int | None:
        """The reserved bytes that this process has in its page tables."""
        return None if self.pages is None else self.pages.touched

    @property
    def resident(self) -> int | None:
        """The reserved bytes in the page tables of all these processes, each page once."""
        if self.pages is None:
            return None
        others = (*self.workers, *self.forkservers)
        return self.pages.share + sum(process.pages.share for process in others)

    def lines(self) -> list[tuple[str, str]]:
        """Return what a person wants to know, as lines of a table."""
        unknown = f"unknown: {PROC}/self/smaps cannot be read"
        touched = unknown if self.touched is None else f"{show_bytes(self.touched)} by this process"
        return [
            ("planned", sizes_of(self.plan)),
            ("reserved", show_bytes(self.reserved)),
            ("touched", touched),
            ("held", self._held()),
        ]

    def __str__(self) -> str:
        """Return what a person wants to know, in lines."""
        lines = [f"{name:11}{text}" for name, text in self.lines()]
        return "\n".join([*lines, *map(str, (*self.workers, *self.forkservers))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        workers = (str(worker).split(": ", 1) for worker in (*self.workers, *self.forkservers))
        return table("Memory", [*self.lines(), *workers])

    def _held(self) -> str:
        count = f"{len(self.held)} of {self.plan.slots} slots"
        places = summed_up(held.place for held in self.held if held.place)
        ages = f", for {show_ages([held.age_s for held in self.held])} s" if self.held else ""
        return count + ages + (f": {places}" if places else "")


def look(
    plan: Any,
    descriptors: Callable[[], list[int]],
    pids: Iterable[int],
    held: Iterable[Held],
    forkservers: Mapping[int, str] = MappingProxyType({}),
) -> Memory:
    """Ask the kernel about some memfds and processes: milliseconds beside a framework.

    ``forkservers``: what each is called.
    """
    files = _sizes(descriptors)
    workers = tuple(worker for pid in pids if (worker := _worker(pid, files)))
    others = tuple(
        found for pid, name in forkservers.items() if (found := _worker(pid, files, name))
    )
    return Memory(
        plan,
        sum(files.values()),
        _pages(_read("self", "smaps"), files),
        tuple(held),
        workers,
        others,
    )


def frameworks_in(pids: Iterable[int]) -> list[str]:
    """Return the frameworks whose libraries these processes have mapped, as far as /proc says."""
    found: set[bytes] = set()
    for pid in pids:
        found.update(_LIBRARY.findall(_read(pid, "maps")))
    return sorted(name.decode() for name in found)


def _sizes(descriptors: Callable[[], list[int]]) -> dict[int, int]:
    """Return the bytes that the kernel has given to each memfd, by its inode."""
    while True:
        fds = descriptors()
        found = {}
        for fd in fds:
            with suppress(OSError):  # closed meanwhile
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode):
                    found[status.st_ino] = status.st_blocks * BLOCK
        # Closing a descriptor forgets its number first: if all are known still, none has been
        # another file's.
        if fds == descriptors():
            return found


# ---- what /proc says ----


def _worker(pid: int, files: Collection[int], name: str = "worker") -> WorkerMemory | None:
    """Return what a worker has; None for one that has ended, or where /proc says nothing."""
    text = _read(pid, "smaps")
    if (pages := _pages(text, files)) is None:
        return None
    fields = _FIELD.findall(text)
    pss = _bytes(kb for field, kb in fields if field == b"Pss")
    private = _bytes(kb for field, kb in fields if field != b"Pss")
    return WorkerMemory(pid, pages, pss, private, name)


def _read(process: int | str, name: str) -> bytes:
    """Return a file of /proc; nothing where it cannot be read, or the process is dead."""
    try:
        return (PROC / str(process) / name).read_bytes()
    except OSError:
        return b""


def _pages(text: bytes, files: Collection[int]) -> Pages | None:
    """Return the pages of these inodes in a process's smaps; None where it cannot be read."""
    found = [match.groups() for match in _MAPPING.finditer(text) if int(match[1]) in files]
    return (
        Pages(_bytes(rss for _, rss, _ in found), _bytes(pss for *_, pss in found))
        if text
        else None
    )


def own_bytes(process: int | str) -> int:
    """Return the bytes of the pages that no other process has; 0 where /proc does not say.

    This is `WorkerMemory.private`, without the rest; it takes milliseconds beside a framework.
    """
    fields = _FIELD.findall(_read(process, "smaps_rollup"))
    return _bytes(kb for field, kb in fields if field != b"Pss")


def _bytes(kilobytes: Iterable[bytes]) -> int:
    return KILOBYTE * sum(map(int, kilobytes))

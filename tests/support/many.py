"""Loaders opened, used and ended in one process, one after another, and what they leave of themselves.

    python tests/support/many.py --loaders 1000
    python tests/support/many.py --seed 1234 --loaders 40 --every 1

Kinds of workers and ways to end take turns at random; half of the loaders end by an exception or a
kill. Every batch that is taken is checked. What is there after each so many loaders must be what
was there before the first: processes, file descriptors, mappings, threads. The process's own memory
may grow while the allocator's pools fill, and not after. A failure names the seed: the same seed
gives the same loaders in the same order.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import leftovers
from lives import Rotation
from ringfeed.workers import warm

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 100
LOADER_S = 300.0
WARM_UP = 200  # loaders after which the allocator's pools have been filled
GROWTH = 4096  # bytes that a loader may leave on average after that, lost to fragments: a tenth of what one takes
BLOCKS = 1.0  # Python objects and buffers, likewise: a leak would be a whole number
PATIENCE_S = 60.0  # with what still ends


@dataclass(frozen=True)
class Footprint:
    """What this process is made of at a moment."""

    fds: int
    processes: int
    mappings: int  # of any kind; those of memfds are compared one by one
    threads: int
    resident: int  # bytes, without what is shared with others or read from files
    blocks: int  # of Python's allocator

    @classmethod
    def now(cls) -> Footprint:
        """What there is now, once the allocator has given back what it can."""
        ctypes.CDLL(None).malloc_trim(0)
        present = leftovers.present()
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        return cls(
            fds=sum(name.startswith("fd ") for name in present.elements()),
            processes=sum(name.startswith("process ") for name in present.elements()),
            mappings=len(Path("/proc/self/maps").read_text().splitlines()),
            threads=len(list(Path("/proc/self/task").iterdir())),
            resident=int(status["RssAnon"].split()[0]) * 1024,
            blocks=sys.getallocatedblocks(),
        )

    def __str__(self) -> str:
        """All of it in a line."""
        return (
            f"{self.fds} fds, {self.processes} processes, {self.threads} threads, {self.mappings} "
            f"mappings, {self.resident / 1e6:.2f} MB, {self.blocks} blocks"
        )


def _threads() -> Counter[str]:
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            found[(task / "comm").read_text().strip() + ", a thread"] += 1
    return found


def present() -> Counter[str]:
    """All that a loader could leave, one by one.

    A warm forkserver has a thread here, and ends first.
    """
    warm.end()
    return leftovers.present() + _threads()


def left_since(before: Counter[str]) -> list[str]:
    """What there is and was not before, once nothing is or PATIENCE_S have passed."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := present() - before) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return sorted(left.elements())


def run(
    seed: int,
    loaders: int,
    every: int = EVERY,
    tell: Callable[[str], object] = str,
    *,
    bounded: bool = False,
) -> list[Footprint]:
    """Run so many loaders; the footprint before the first and after each `every`. AssertionError: one left something.

    ``tell`` is given a line for each footprint; ``bounded`` ends the process if a loader hangs.
    """
    rotation = Rotation(seed)
    if bounded:
        faulthandler.dump_traceback_later(LOADER_S, exit=True)  # has a thread
    before = present()
    found = [Footprint.now()]
    tell(f"loader    0: {found[0]}")
    for number in range(1, loaders + 1):
        if bounded:
            faulthandler.dump_traceback_later(LOADER_S, exit=True)
        rotation.run(number)
        if number % every == 0 or number == loaders:
            rotation.let_all_go()
            left = left_since(before)
            assert not left, (
                f"python tests/support/many.py --seed {seed}: left behind up to loader {number}: "
                f"{left}"
            )
            found.append(Footprint.now())
            tell(f"loader {number:4}: {found[-1]}")
    if bounded:
        faulthandler.cancel_dump_traceback_later()
    tell(", ".join(f"{name} {count}" for name, count in sorted(rotation.ended.items())))
    return found


def growth(footprints: list[Footprint], every: int) -> tuple[float, float] | None:
    """Bytes and blocks that a loader left on average after the warm-up.

    None where the run is too short to tell.
    """
    steady = footprints[-(-WARM_UP // every) :]
    if len(steady) < 3:
        return None
    loaders = (len(steady) - 1) * every
    first, last = steady[0], steady[-1]
    return (last.resident - first.resident) / loaders, (last.blocks - first.blocks) / loaders


def main() -> int:
    """Run from the command line; 1 when memory grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loaders", type=int, default=1000, help="1000")
    parser.add_argument("--every", type=int, default=EVERY, help=f"look after so many: {EVERY}")
    parser.add_argument("--seed", type=int)
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    tell = functools.partial(print, flush=True)
    tell(f"seed {seed}")
    began_s = time.monotonic()
    left = growth(run(seed, chosen.loaders, chosen.every, tell, bounded=True), chosen.every)
    if left is None:
        verdict = (
            f"nothing left behind; too few loaders to judge memory, which takes {WARM_UP} and "
            "twice --every more"
        )
    else:
        flat = "flat" if is_flat(left) else "NOT FLAT"
        verdict = (
            f"nothing left behind; memory {flat}: {left[0]:.0f} bytes and {left[1]:.2f} blocks "
            "more a loader"
        )
    tell(f"{verdict}; {time.monotonic() - began_s:.0f} s")
    return 0 if left is None or is_flat(left) else 1


def is_flat(left: tuple[float, float]) -> bool:
    """Whether a loader leaves no more bytes and blocks than it may."""
    return left[0] <= GROWTH and left[1] < BLOCKS


if __name__ == "__main__":
    sys.exit(main())

"""Kill processes that fill a cache, at random moments, and look at what they leave: `python tests/support/cache_kills.py`.

Several processes fill one file by reading all samples in orders of their own; each is killed by
SIGKILL after a random time, and another one takes its place. A file on disk changes hands often:
each new process is another run, which checks all checksums. Now and then some bytes of the file are
damaged, or its end is cut off while nobody has it. Every sample that anyone reads is compared with
what the dataset gives, and a process that finds a wrong one ends with exit status 9.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import ringfeed
from cached import Lengths
from ringfeed.cache.file import begins_of

SAMPLES, PROCESSES = 400, 3
WRONG = 9
MOST_S = 60.0
DAMAGED_EACH = 20  # kills


class Large(Lengths):
    """Samples of some pages, and of lengths that differ."""

    def __getitem__(self, index: int) -> Any:
        noise = np.random.default_rng(index).integers(0, 256, 5000 + 997 * (index % 31), np.uint8)
        return noise, index, "x" * index


def is_right(sample: Any, index: int) -> bool:
    """Whether a sample is what the dataset gives."""
    noise, label, text = sample
    return np.array_equal(noise, Large(SAMPLES)[index][0]) and (label, len(text)) == (index, index)


def fill(cache: ringfeed.Cache, seed: int) -> None:
    """Read all samples in some order, again and again; end at the first that is wrong."""
    for index in random.Random(seed).choices(range(SAMPLES), k=100 * SAMPLES):  # noqa: S311
        if not is_right(cache[index], index):
            os._exit(WRONG)
    os._exit(0)


def child_of(cache: ringfeed.Cache | None, path: Path, seed: int) -> int:
    """Fork a process that fills the file: one of this run's, or another run."""
    child = os.fork()
    if not child:
        try:
            own = cache or ringfeed.Cache(Large(SAMPLES), path=path)
            fill(own, seed)
        except BaseException as error:  # noqa: BLE001 - said by the exit status
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
        os._exit(8)
    return child


def damage(path: Path, rng: random.Random) -> None:
    """Write over some bytes behind the head, or cut some off behind the table."""
    begins = begins_of(SAMPLES)
    size = path.stat().st_size
    if size <= begins:
        return
    with path.open("r+b") as file:
        for _ in range(20):
            file.seek(rng.randrange(4096, size))
            file.write(rng.randbytes(rng.randrange(1, 64)))
        if rng.random() < 0.3:
            file.truncate(rng.randrange(begins, size))


def reap(child: int) -> int:
    """Wait for a process, not for ever; returns its exit status, or minus the signal."""
    until_s = time.monotonic() + MOST_S
    while time.monotonic() < until_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    raise SystemExit(f"process {child} does not end")


def kill_some(kills: int, seed: int, *, damages: bool = True) -> dict[str, int]:
    """Kill so many processes; returns what was found: wrong ones, and samples in the end."""
    rng = random.Random(seed)  # noqa: S311
    folder = Path(tempfile.mkdtemp())
    path = folder / "cache.rf"
    found = {"kills": 0, "wrong": 0, "failed": 0}
    try:
        run = ringfeed.Cache(Large(SAMPLES), memory=10**9)
        children: list[int] = []
        while found["kills"] < kills:
            while len(children) < PROCESSES:
                own = run if len(children) == 0 else None
                children.append(child_of(own, path, rng.randrange(2**30)))
            time.sleep(rng.expovariate(1 / 0.02))
            victim = children.pop(rng.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            status = reap(victim)
            found["kills"] += 1
            found["wrong"] += status == WRONG
            found["failed"] += status == WRONG - 1
            if damages and found["kills"] % DAMAGED_EACH == 0:
                while children:
                    os.kill(children[-1], signal.SIGKILL)
                    status = reap(children.pop())
                    found["wrong"] += status == WRONG
                    found["failed"] += status == WRONG - 1
                damage(path, rng)
        for child in children:
            os.kill(child, signal.SIGKILL)
            reap(child)
        for cache in (run, ringfeed.Cache(Large(SAMPLES), path=path)):
            for _ in range(2):
                found["wrong"] += sum(not is_right(cache[index], index) for index in range(SAMPLES))
            found["kept"] = cache.stats().samples
        return found
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began_s = time.monotonic()
    result = kill_some(options.kills, options.seed)
    sys.stdout.write(f"{result}, {time.monotonic() - began_s:.0f} s, seed {options.seed}\n")
    sys.exit(bool(result["wrong"] or result["failed"]))

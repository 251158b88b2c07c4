"""A training whose rows actors make, as a process of its own: `remote.py` starts it, and kills what it likes meanwhile.

It reads whole epochs until all actors are there, says so, and then counts: for so many seconds, or
until the file ``stop`` is there, to the end of the epoch that it is in. Its last line is what it
has found, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = "ready"
THERE_S = 240.0  # for all actors to come
LONG_S = 0.1  # from which a pause between batches is told by itself


@dataclass(frozen=True)
class Terms:
    """What a training is told. Without actors it has ``local`` workers alone."""

    address: str = ""
    actors: int = 0
    local: int = 0
    bridges: int = 1
    num_cpus: float = 0.1
    count: int = 512  # samples of an epoch
    size: int = 12_000  # bytes of a sample
    sample_s: float = 0.0
    whole: bool = False  # whether the dataset gives whole batches
    floats: bool = False  # whether a sample is float32; else it is uint8
    scaled: bool = False  # whether it is float32 in the batch
    batch_size: int = 32
    step_s: float = 0.0
    slots: int | None = None
    seconds: float = 5.0
    stop: str = ""
    hashed: bool = False
    epochs: tuple[int, ...] = ()  # those to hash, and no others


class Samples:
    """Samples that are waited for; with random numbers where they are hashed, else all alike."""

    def __init__(self, terms: Terms) -> None:
        self.count, self.sample_s, self.drawn = terms.count, terms.sample_s, terms.hashed
        dtype = np.float32 if terms.floats else np.uint8
        self.value = np.arange(terms.size // np.dtype(dtype).itemsize, dtype=np.int64).astype(dtype)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.sample_s:
            time.sleep(self.sample_s)
        if not self.drawn:
            return self.value, index
        return self.value + ringfeed.rng().integers(0, 256, self.value.shape, np.uint8), index


class Batches(Samples):
    """Whole batches of one row."""

    def __getitem__(self, index: int) -> Any:
        value, _ = super().__getitem__(index)
        return value[None], np.full(1, index)


def loader_of(terms: Terms) -> ringfeed.Loader[Any]:
    """Return the loader."""
    given: dict[str, Any] = {"workers": terms.local, "slots": terms.slots}
    if terms.actors:
        given["backend"] = ringfeed.ray.Ray(
            workers=terms.actors,
            num_cpus=terms.num_cpus,
            address=terms.address,
            bridges=terms.bridges,
        )
    if terms.scaled:
        given["spec"] = (
            ringfeed.Array((terms.size,), "float32", scale=1 / 255),
            ringfeed.Array((), "int64"),
        )
    if terms.whole:
        return ringfeed.Loader(Batches(terms), batch_size=None, shuffle=True, seed=0, **given)
    return ringfeed.Loader(
        Samples(terms), batch_size=terms.batch_size, shuffle=True, seed=0, **given
    )


class Reading:
    """What is read, and when."""

    def __init__(self, terms: Terms, loader: ringfeed.Loader[Any]) -> None:
        self.terms, self.loader = terms, loader
        self.hashes: dict[int, str] = {}
        self.times_s: list[float] = []
        self.samples = self.size = 0
        self.is_wrong = False

    def epoch(self, number: int, until_s: float = float("inf")) -> None:
        """Read an epoch; one that is not hashed may end early."""
        self.loader.set_epoch(number)
        seen, digest = [], hashlib.sha256()
        for values, indices in self.loader:
            self.times_s.append(time.monotonic())
            self.samples += len(indices)
            self.size += values.nbytes
            if self.terms.hashed:
                digest.update(values.tobytes())
                seen.append(np.array(indices))
            if self.terms.step_s:
                time.sleep(self.terms.step_s)
            if time.monotonic() > until_s and not self.terms.hashed:
                return
        if self.terms.hashed:
            order = np.concatenate(seen)
            self.is_wrong |= sorted(order.tolist()) != [*range(self.terms.count)]
            digest.update(order.tobytes())
            self.hashes[number] = digest.hexdigest()[:16]

    def forget(self) -> None:
        """Begin to count."""
        self.hashes, self.times_s, self.samples, self.size = {}, [], 0, 0

    def rate(self) -> float:
        """Return the samples a second from the first batch to the last."""
        batches = len(self.times_s)
        return (
            self.samples / batches * (batches - 1) / (self.times_s[-1] - self.times_s[0])
            if batches > 1
            else 0.0
        )

    def pauses(self) -> list[tuple[float, float]]:
        """Return when each long pause began, and how long it was."""
        times = self.times_s
        return [(a, b - a) for a, b in pairwise(times) if b - a > LONG_S]


SAID = (
    "there",
    "bridge_cpu_s",
    "calls",
    "flight_s",
    "work_s",
    "hedged",
    "rerun",
    "dropped",
    "deaths",
)


def said(loader: ringfeed.Loader[Any]) -> dict[str, float]:
    """Return what the loader says of its actors."""
    remote = loader.stats().remote
    return {name: getattr(remote, name) for name in SAID} if remote is not None else {}


def numbers(terms: Terms) -> Iterator[int]:
    """Yield the epochs to count."""
    if terms.epochs:
        yield from terms.epochs
        return
    until_s = time.monotonic() + terms.seconds
    number = 1000  # beyond those that have warmed up
    while not (Path(terms.stop).exists() if terms.stop else time.monotonic() > until_s):
        yield number
        number += 1


def run(terms: Terms) -> dict[str, Any]:
    """Read, and return what was found."""
    began_s = time.monotonic()
    with loader_of(terms) as loader:
        reading = Reading(terms, loader)
        number = 0
        while terms.actors and (number == 0 or said(loader).get("there", 0) < terms.actors):
            reading.epoch(number, time.monotonic() + 1.0)
            number += 1
            if time.monotonic() > began_s + THERE_S:
                break
        there_s = time.monotonic() - began_s
        print(READY, os.getpid(), flush=True)
        before = said(loader)
        reading.forget()
        counted_s = time.monotonic()
        until_s = float("inf") if terms.stop else counted_s + terms.seconds
        for number in numbers(terms):
            reading.epoch(number, until_s)
        took_s = time.monotonic() - counted_s
        after = said(loader)
        plan = loader.memory
    return {
        "terms": {**asdict(terms), "stop": ""},  # a place of this machine
        "there_s": there_s,
        "took_s": took_s,
        "samples": reading.samples,
        "rate": reading.rate(),
        "bytes": reading.size,
        "batches": len(reading.times_s),
        "hashes": reading.hashes,
        "wrong": reading.is_wrong,
        "pauses": reading.pauses(),
        "bridge_cpu_s": after.get("bridge_cpu_s", 0.0) - before.get("bridge_cpu_s", 0.0),
        "said": after,
        "plan_bytes": plan,
        "ray_here": "ray" in sys.modules,
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(run(Terms(**{**given, "epochs": tuple(given.get("epochs", ()))}))))

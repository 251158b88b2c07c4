"""What is the same for all frameworks: the datasets, how long a copy and a step take, and what hides of a copy."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PINNED, PAGEABLE = "ringfeed, pinned", "ringfeed, pageable"
WORKERS, SLOTS = max(2, min(12, len(os.sched_getaffinity(0)) - 2)), 8


@dataclass(frozen=True)
class Scale:
    """How much is measured: rows and shape of a batch, copies, steps, and the seconds that a step is to take alone.

    Samples are photographs where a folder with their files is named, and else lie in memory.
    """

    rows: int = 64
    shape: tuple[int, ...] = (224, 224, 3)  # 38.5 MB of float32 a batch
    samples: int = 256
    copies: int = 20
    steps: int = 40
    warm_up: int = SLOTS + 2
    step_s: float = 0.02  # several copies long on any bus of today, and longer than a loader needs
    width: int = 4096  # of the matrices that a step multiplies
    folder: str = ""

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch."""
        return 4 * self.rows * math.prod(self.shape)

    @property
    def order(self) -> Any:
        """The samples of an epoch that is long enough for steps, and for batches without steps."""
        return np.arange((2 * (self.warm_up + self.steps) + SLOTS) * self.rows) % self.samples


class Pictures:
    """Samples that lie in memory."""

    def __init__(self, scale: Scale) -> None:
        self.order = scale.order
        self.pictures = np.random.default_rng(0).random((scale.samples, *scale.shape), np.float32)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.pictures[self.order[index]]

    def read_into(self, index: int, out: Any) -> None:
        """Copy the sample into its row of the slot."""
        out[...] = self.pictures[self.order[index]]


class Photographs:
    """Random parts of photographs, decoded from JPEG for each sample; by Pillow where simplejpeg or OpenCV is missing."""

    def __init__(self, scale: Scale) -> None:
        from studies import photograph_loaders as by  # noqa: PLC0415 - in the fresh process alone

        write = by.by_simplejpeg if decoder() == "simplejpeg" else by.write_by_pillow
        self.files = by.PhotographsIntoSlots(Path(scale.folder), write)
        self.order = scale.order % len(self.files)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.files[int(self.order[index])][0]

    def read_into(self, index: int, out: Any) -> None:
        """Decode the sample into its row of the slot."""
        self.files.write_to(int(self.order[index]), out)


def decoder() -> str:
    """The package that decodes photographs here."""
    fast = all(importlib.util.find_spec(name) for name in ("simplejpeg", "cv2"))
    return "simplejpeg" if fast else "Pillow"


def dataset_of(scale: Scale) -> Pictures | Photographs:
    """The samples."""
    return Photographs(scale) if scale.folder else Pictures(scale)


class Gpu(Protocol):
    """A device of a framework."""

    name: str

    def put(self, batch: Any) -> Any:
        """Copy a batch of the CPU's there, and wait."""

    def multiply(self, rounds: int, batch: Any) -> None:
        """Begin so many multiplications of matrices, and a look at a batch that is there, if there is one."""

    def wait(self) -> None:
        """Wait for all that was begun."""


class Feed(NamedTuple):
    """What a contender gives: batches of the CPU's, and batches on the device."""

    host: Iterable[Any]
    device: Iterable[Any]


@contextmanager
def loader(scale: Scale, dataset: Any = None, *, pin: bool = True) -> Iterator[Any]:
    """A loader whose slots a framework registers when it is asked for a GPU, or is kept from registering."""
    import ringfeed  # noqa: PLC0415 - rivals run without it

    settings = {"batch_size": scale.rows, "workers": WORKERS, "slots": SLOTS, "timeout_s": 120}
    with ringfeed.Loader(dataset or dataset_of(scale), **settings) as made:
        if not pin:
            made._slots.register = lambda _registrar: None  # noqa: SLF001 - a user has no word for it
        yield made


def copy_s(gpu: Gpu, batch: Any, scale: Scale) -> float:
    """The median of a copy, alone on the machine; what comes first warms up, and is left out."""
    found = []
    for _ in range(scale.warm_up + scale.copies):
        began_s = time.perf_counter()
        gpu.put(batch)
        found.append(time.perf_counter() - began_s)
    return median(found[scale.warm_up :])


def rounds_for(gpu: Gpu, scale: Scale) -> int:
    """How many multiplications take about as long as a step is to take."""
    gpu.multiply(2, None)
    gpu.wait()
    many = 1
    while True:
        began_s = time.perf_counter()
        gpu.multiply(many, None)
        gpu.wait()
        took_s = time.perf_counter() - began_s
        if took_s >= scale.step_s or many > 1 << 16:
            return max(1, round(many * scale.step_s / took_s))
        many *= 2


def step_s(gpu: Gpu, walk: Iterator[Any], rounds: int, scale: Scale) -> float:
    """The mean of a step, once the input is warm; without rounds, of a batch that is only looked at."""
    for batch in islice(walk, scale.warm_up):
        gpu.multiply(rounds, batch)
    gpu.wait()
    began_s, count = time.perf_counter(), 0
    for batch in islice(walk, scale.steps):
        gpu.multiply(rounds, batch)
        count += 1
    gpu.wait()
    if count < scale.steps:
        raise ValueError(f"{count} batches came, expected {scale.steps}")
    return (time.perf_counter() - began_s) / count


def figures(gpu: Gpu, feed: Feed, scale: Scale) -> dict[str, Any]:
    """A copy alone, a step with a batch that is there, a fed step, the part of the copy that it hides, and the input alone."""
    host = next(iter(feed.host))
    copy = copy_s(gpu, host, scale)
    rounds = rounds_for(gpu, scale)
    alone = step_s(gpu, repeat(gpu.put(host)), rounds, scale)
    del host
    walk = iter(feed.device)
    fed = step_s(gpu, walk, rounds, scale)
    found = of_steps(alone, fed, scale) | {
        "gpu": gpu.name,
        "copy_s": copy,
        "gigabytes_per_s": scale.batch_bytes / copy / 1e9,
        "input_s": step_s(gpu, walk, 0, scale),
    }
    if found["input_s"] < alone:  # else the step waits for the loader, whatever the copy takes
        found["hidden"] = min(1.0, 1 - (fed - alone) / copy)
    return found


def of_steps(alone_s: float, fed_s: float, scale: Scale) -> dict[str, Any]:
    """What follows from a step alone and a fed one; `idle` is the share of time that the GPU waits in."""
    facts = {"decoder": decoder(), "images_per_s": scale.rows / fed_s} if scale.folder else {}
    return facts | {
        "batch_bytes": scale.batch_bytes,
        "workers": WORKERS,
        "step_alone_s": alone_s,
        "step_s": fed_s,
        "idle": max(0.0, 1 - alone_s / fed_s),
    }

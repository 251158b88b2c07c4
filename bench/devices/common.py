"""What is the same for all frameworks: the pictures, how long a copy and a step take, and what hides of a copy."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PINNED, PAGEABLE = "ringfeed, pinned", "ringfeed, pageable"
WORKERS, SLOTS = 2, 4


@dataclass(frozen=True)
class Scale:
    """How much is measured: rows and shape of a batch, copies, steps, and the seconds that a step is to take alone."""

    rows: int = 64
    shape: tuple[int, ...] = (224, 224, 3)  # 38.5 MB of float32 a batch
    samples: int = 256
    copies: int = 20
    steps: int = 40
    warm_up: int = 5
    step_s: float = 0.01  # several copies long on any bus of today
    width: int = 4096  # of the matrices that a step multiplies

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch."""
        return 4 * self.rows * math.prod(self.shape)

    @property
    def order(self) -> list[int]:
        """The samples of an epoch that is long enough."""
        return (
            np.arange((self.warm_up + self.steps + self.copies + 2 * SLOTS) * self.rows)
            % self.samples
        ).tolist()


class Pictures:
    """Samples that lie in memory."""

    def __init__(self, scale: Scale) -> None:
        self.order = scale.order
        self.pictures = np.random.default_rng(0).random((scale.samples, *scale.shape), np.float32)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.pictures[self.order[index]]


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


def loader(scale: Scale, *, pin: bool) -> Any:
    """A loader of the pictures."""
    import ringfeed  # noqa: PLC0415 - rivals run without it

    settings: dict[str, Any] = {
        "batch_size": scale.rows,
        "workers": WORKERS,
        "slots": SLOTS,
        "timeout_s": 120,
    }
    return registered(ringfeed.Loader(Pictures(scale), **settings), pin=pin)


def registered(made: Any, *, pin: bool) -> Any:
    """A loader whose slots torch registers from the start, or never."""
    slots = made._slots  # noqa: SLF001 - a user's are registered once a device is asked for
    if pin:
        import torch  # noqa: PLC0415 - the others need none

        from ringfeed.frameworks.torch import CudaDevice  # noqa: PLC0415 - rivals run without it

        registrar = CudaDevice(torch.device("cuda")).registrar
        made._runner.on_start.append(lambda _engine: slots.register(registrar))  # noqa: SLF001 - likewise
    else:
        slots.register = lambda _registrar: None
    return made


def copy_s(gpu: Gpu, batches: Iterable[Any], scale: Scale) -> float:
    """The median of a copy, alone on the machine; what comes first warms up, and is left out."""
    found = []
    walk = iter(batches)
    batch = next(walk)
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


def step_s(gpu: Gpu, batches: Iterable[Any], rounds: int, scale: Scale) -> float:
    """The mean of a step, once the input is warm."""
    walk = iter(batches)
    for batch in islice(walk, scale.warm_up):
        gpu.multiply(rounds, batch)
    gpu.wait()
    began_s, count = time.perf_counter(), 0
    for batch in islice(walk, scale.steps):
        gpu.multiply(rounds, batch)
        count += 1
    gpu.wait()
    return (time.perf_counter() - began_s) / count


def resident(gpu: Gpu, batches: Iterable[Any], scale: Scale) -> Iterator[Any]:
    """One batch that lies on the device, again and again."""
    batch = gpu.put(next(iter(batches)))
    for _ in range(scale.warm_up + scale.steps):
        yield batch


def figures(gpu: Gpu, feed: Feed, scale: Scale) -> dict[str, Any]:
    """A copy alone, a step with a batch that is there, a fed step, and the part of the copy that it hides."""
    copy = copy_s(gpu, feed.host, scale)
    rounds = rounds_for(gpu, scale)
    alone = step_s(gpu, resident(gpu, feed.host, scale), rounds, scale)
    fed = step_s(gpu, feed.device, rounds, scale)
    return {
        "gpu": gpu.name,
        "batch_bytes": scale.batch_bytes,
        "copy_s": copy,
        "gigabytes_per_s": scale.batch_bytes / copy / 1e9,
        "step_alone_s": alone,
        "step_s": fed,
        "hidden": min(1.0, 1 - (fed - alone) / copy),
    }

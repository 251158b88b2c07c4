"""JAX: `to_jax(device)`, and `device_put` one ahead of the step, of ringfeed's batches or of torch's DataLoader."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import set_forkserver_preload
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from devices.common import PAGEABLE, PINNED, Feed, Scale, loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def why_not() -> str:
    """Why nothing can be measured; empty where it can."""
    try:
        return "" if jax.devices("gpu") else f"jax {jax.__version__} sees no GPU"
    except RuntimeError:  # what it raises for a platform that it lacks
        return f"jax {jax.__version__} sees no GPU"


class Gpu:
    """The first GPU."""

    def __init__(self, device: str = "gpu", scale: Scale | None = None) -> None:
        self.device = jax.devices(device)[0]
        self.name = self.device.device_kind
        width = (scale or Scale()).width
        self.numbers = jax.device_put(jnp.ones((width, width)), self.device)
        self.product = jax.jit(lambda numbers: numbers @ numbers)
        self.total = jax.jit(jnp.sum)
        self.begun: list[Any] = []

    def put(self, batch: Any) -> Any:
        """`may_alias=False`: on the CPU there would be no copy."""
        return jax.block_until_ready(jax.device_put(batch, self.device, may_alias=False))

    def multiply(self, rounds: int, batch: Any) -> None:
        """Each is dispatched, and not waited for."""
        for _ in range(rounds):
            self.begun.append(self.product(self.numbers))
        if batch is not None:
            self.begun.append(self.total(batch))
        del self.begun[:-2]  # a stream computes in order: the last are waited for

    def wait(self) -> None:
        """For the last that was begun."""
        jax.block_until_ready(self.begun)


@contextmanager
def feed(contender: str, scale: Scale, device: str = "gpu") -> Iterator[Feed]:
    """The batches of a contender; the rival in memory has a copy of each batch of a loader."""
    place = jax.devices(device)[0]
    if contender.startswith("DataLoader"):
        from devices.by_torch import data_loader  # noqa: PLC0415 - the others need no torch

        set_forkserver_preload(["torch"])
        # Not forked: JAX has threads. The tensors lie in shared memory, which NumPy looks at.
        batches = data_loader(scale, multiprocessing_context="forkserver")
        arrays = _Each(batches, lambda batch: batch.numpy())
        yield Feed(arrays, _put(arrays, place))
        return
    with loader(scale, pin=contender == PINNED) as made:
        if contender in {PINNED, PAGEABLE}:
            next(iter(made.to_jax(place)))  # which has JAX register the slots
            yield Feed(made, made.to_jax(place))
        else:
            yield Feed(made, _put(_Each(made, lambda batch: batch.copy()), place))


@dataclass
class _Each:
    """What becomes of each batch; an epoch begins when it is asked for, and not before."""

    batches: Iterable[Any]
    change: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.change, self.batches)


def _put(batches: Iterable[Any], place: Any) -> Iterator[Any]:
    ahead = None
    for batch in batches:
        coming = jax.device_put(batch, place)
        if ahead is not None:
            yield ahead
        ahead = coming
    yield ahead

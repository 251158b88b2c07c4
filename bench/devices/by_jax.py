"""JAX: `to_jax(device)`, and `device_put` of NumPy batches, one ahead of the step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from devices.common import PAGEABLE, PINNED, Feed, Scale, loader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PUT = "device_put, one ahead"
CONTENDERS = (PINNED, PAGEABLE, PUT)


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
    """The batches of a contender; the rival has its batches from a loader's workers, as copies."""
    place = jax.devices(device)[0]
    with (
        loader(scale, pin=contender == PINNED) as host,
        loader(scale, pin=contender == PINNED) as fed,
    ):
        yield Feed(host, _put(fed, place) if contender == PUT else fed.to_jax(place))


def _put(batches: Iterable[Any], place: Any) -> Iterator[Any]:
    ahead = None
    for batch in batches:
        coming = jax.device_put(batch.copy(), place)
        if ahead is not None:
            yield ahead
        ahead = coming
    yield ahead

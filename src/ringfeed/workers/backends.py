"""What may fill slots, by the loader's ``backend``: a pool is one file, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.workers.pool import InProcess
from ringfeed.workers.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.workers.pool import Pool, PoolConfig


def _threads(config: PoolConfig) -> Pool:
    from ringfeed.workers.threads import Threads  # noqa: PLC0415 - most loaders have none

    return Threads(config)


POOLS: dict[str, Callable[[PoolConfig], Pool]] = {"process": Processes, "thread": _threads}


def make_pool(backend: str, config: PoolConfig) -> Pool:
    """Return a pool that runs nothing yet; without workers the consumer fills its batches itself."""
    if config.remote is not None:
        return config.remote.make_pool(config)
    return POOLS[backend](config) if config.workers else InProcess(config)

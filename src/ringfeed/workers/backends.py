"""What may fill slots, by the loader's ``backend``: a pool is one file, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.workers.pool import InProcess, Threads
from ringfeed.workers.processes import Processes

if TYPE_CHECKING:
    from ringfeed.workers.pool import Pool, PoolConfig

POOLS: dict[str, type[Pool]] = {"process": Processes, "thread": Threads}


def make_pool(backend: str, config: PoolConfig) -> Pool:
    """Return a pool that runs nothing yet; without workers the consumer fills its batches itself."""
    if config.remote is not None:
        from ringfeed.remote.pool import Mixed  # noqa: PLC0415 - its room

        return Mixed(config)
    return POOLS[backend](config) if config.workers else InProcess(config)

"""The start and the end of a bridge's process: its guard runs before the slow imports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ringfeed.workers.worker_main import run_spawned

if TYPE_CHECKING:
    from ringfeed.system._system import Descriptor


def _bridge(channel: Descriptor, _: tuple[int, int]) -> None:
    from ringfeed.ray.bridge import Bridge  # noqa: PLC0415 - slow: after the guard

    Bridge(channel).run()


main = partial(run_spawned, _bridge)

"""The start and the end of a bridge's process: its guard runs before the slow imports."""

from __future__ import annotations

from ringfeed.system.guard import become_worker, channel_of
from ringfeed.workers.worker_main import live


def main(channel_fd: int, parent_fd: int, lifeline_fd: int) -> None:
    """Run a bridge."""
    channel = channel_of(channel_fd)

    def bridge() -> None:
        become_worker(parent_fd, lifeline_fd)
        from ringfeed.ray.bridge import Bridge  # noqa: PLC0415 - after the guard, like all that is slow

        Bridge(channel).run()

    live(channel, bridge)

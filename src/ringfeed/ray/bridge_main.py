"""The start and the end of a bridge's process: its guard runs before the slow imports."""

from __future__ import annotations

import os
from contextlib import suppress

from ringfeed.system.guard import become_worker, channel_of, flush_output
from ringfeed.workers.worker_main import report_and_leave


def main(channel_fd: int, parent_fd: int, lifeline_fd: int) -> None:
    """Run a bridge."""
    channel = None
    try:
        become_worker(parent_fd, lifeline_fd)
        channel = channel_of(channel_fd)
        from ringfeed.ray.bridge import Bridge  # noqa: PLC0415 - after the guard, like all that is slow

        Bridge(channel).run()
    except BaseException:  # noqa: BLE001 - reported, whatever it is
        report_and_leave(channel or channel_of(channel_fd))
    with suppress(Exception):
        flush_output()
    os._exit(0)  # Ray's threads must not keep it

"""The process of a warm forkserver: it imports, and forks the forkservers of loaders.

See `warm`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from ringfeed.system import _system
from ringfeed.system import channel as channels
from ringfeed.system._system import Descriptor
from ringfeed.system.guard import become_worker, flush_output, fork
from ringfeed.workers.forkserver import ForkserverMain, serve
from ringfeed.workers.worker_main import live, run_spawned

IDLE_MS = 60_000  # of one that no loader came to use


class WarmMain(ForkserverMain):
    """The loop of a warm forkserver.

    Its children are forkservers, each with a channel and a lifeline of its own.
    """

    _idle_ms: int | None = IDLE_MS

    def __init__(self, channel: Descriptor, lifeline: tuple[int, int]) -> None:
        """Do what is ordered through ``channel``."""
        super().__init__(channel, lifeline)
        self._nowhere = Descriptor(os.open, os.devnull, os.O_WRONLY)

    def run(self) -> None:
        """Keep no pipe of the user's open, and do what is ordered."""
        _print_to(self._nowhere, self._nowhere)
        super().run()

    def _obey(self, message: dict[str, Any], fds: list[Descriptor]) -> bool:
        if "preload" not in message:
            self._fork_forkserver(*fds)
            return True
        self._idle_ms = round(1000 * message.pop("idle_s"))
        _print_to(*fds)
        for fd in fds:
            # Now: what an import raised may keep this frame alive, and the user's pipes with it.
            fd.close()
        super()._obey(message, fds)
        flush_output()
        _print_to(self._nowhere, self._nowhere)
        if self._imported:  # an open file, a thread: each loader would share it with the others
            order = message["preload"]
            channels.send(
                self._channel, {"unfit": order["modules"] or sorted(order["packages"] or ())}
            )
        return not self._imported

    def _fork_forkserver(self, *fds: Descriptor) -> None:
        channel = fds[0]
        try:
            child = fork(partial(live, channel, partial(self._serve, *fds)))
        except OSError:
            return  # the loader finds its channel closed
        self._children[child.pidfd.fileno()] = child, channel

    def _serve(self, channel: Descriptor, *fds: Descriptor) -> None:
        """In the forked child: have nothing of the warm forkserver's but what it has imported."""
        _system.close_others(channel, *fds)
        for fd in self._lifeline:
            os.close(fd)
        _print_to(*fds[2:])
        for output in fds[2:]:
            output.close()
        parent, lifeline = (fd.detach() for fd in fds[:2])
        become_worker(parent, lifeline)
        channels.send(channel, {"pid": os.getpid()}, (os.pidfd_open(os.getpid()),))
        ForkserverMain(channel, (parent, lifeline)).run()


def _print_to(output: Descriptor, errors: Descriptor) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)


main = partial(run_spawned, partial(serve, WarmMain))

"""The first and the last steps of every process that works for a loader.

main    a fresh interpreter: the guard first, then the module with what it is for
live    the end of all of them, forked ones too: the consumer is told what went wrong
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ringfeed.system._system import Descriptor
from ringfeed.system.guard import become_worker, flush_output

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import HasFileno


def main(module: str, channel_fd: int, *lifeline: int) -> NoReturn:
    """Start the guard, then import a module and call its ``main(channel, lifeline)``.

    Imports take longest, and the consumer may die meanwhile: so the guard comes before them.
    """
    os.set_inheritable(channel_fd, False)  # noqa: FBT003 - see become_worker()
    channel = Descriptor(int, channel_fd)

    def body() -> None:
        become_worker(*lifeline)
        importlib.import_module(module).main(channel, lifeline)

    live(channel, body)


def live(channel: HasFileno, body: Callable[[], object]) -> NoReturn:
    """Run all that a process is for, and leave.

    The consumer is told what goes wrong outside any sample. The dataset's own threads and atexit
    hooks must not keep a process that is done.
    """
    status = 1
    try:
        try:
            body()
            status = 0
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            from ringfeed._failure import encode  # noqa: PLC0415 - slow: after the guard
            from ringfeed.system import channel as channels  # noqa: PLC0415 - likewise

            with suppress(OSError):  # the consumer is gone
                if not isinstance(error, channels.PeerGoneError):
                    channels.send(channel, {"broken": encode(error)})
        flush_output()
    finally:
        os._exit(status)

"""The start of the host process: it leaves the training that started it, and then imports."""

from __future__ import annotations

import os


def main(listener: int) -> None:
    """Run the host of the share that this socket listens for, in a process without a parent."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os.read(
            reader, 1
        )  # until the child has a group of its own: the training ends that of this process
        os._exit(0)
    os.setsid()
    os.close(reader)
    os.close(writer)
    from ringfeed.sharing.host import Host  # noqa: PLC0415 - imports NumPy, which may start threads

    Host(listener).run()

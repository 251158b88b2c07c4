"""The first step of the host process: it lets go of the training that has started it, before anything is imported."""

from __future__ import annotations

import os


def main(listener: int) -> None:
    """Run the host of the share whose connections come to this socket, in a process of its own that has no parent."""
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

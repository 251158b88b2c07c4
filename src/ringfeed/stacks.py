"""Workers' Python stacks on demand, for a StallError: faulthandler writes them in C, whatever Python is doing."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.tether import Worker

WRITING_S = 0.5


class Stacks:
    """A memfd for each worker id, into which the worker writes its stack when it is asked by SIGUSR1."""

    def __init__(self) -> None:
        """Nothing is open before the first worker."""
        self._fds: dict[int, int] = {}

    def fd_of(self, number: int) -> int:
        """Return the file that worker ``number`` is to write into."""
        if number not in self._fds:
            self._fds[number] = os.memfd_create("ringfeed-stack", os.MFD_CLOEXEC)
        return self._fds[number]

    def read(self, number: int, worker: Worker) -> str:
        """Have a worker that is ready for it write its stack, and return it; "" where it does not."""
        fd = self.fd_of(number)
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)  # its descriptor shares our offset
        worker.kill(signal.SIGUSR1)
        deadline = time.monotonic() + WRITING_S
        text = b""
        while True:
            time.sleep(0.02)
            late = time.monotonic() >= deadline  # before the look, so that a busy machine has one too
            before, text = text, os.pread(fd, 1 << 16, 0)
            if late or (text and text == before):
                break
        return text.decode(errors="replace")

    def close(self) -> None:
        """Close all files."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

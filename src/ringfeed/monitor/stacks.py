"""Workers' Python stacks on demand, for a StallError: faulthandler writes them in C, whatever Python is doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Protocol

from ringfeed.ring._ring import Descriptor

WRITING_S = 0.5


class Process(Protocol):
    """A worker process, as far as it is asked for its stack."""

    @property
    def pid(self) -> int:
        """Its number."""

    def kill(self, number: signal.Signals, /) -> None:
        """Send a signal."""


class Stacks:
    """A memfd for each worker id, into which the worker writes its stack when it is asked by SIGUSR1."""

    def __init__(self) -> None:
        """Nothing is open before the first worker."""
        self._files: dict[int, Descriptor] = {}

    def fd_of(self, number: int) -> int:
        """Return the file that worker ``number`` is to write into."""
        if number not in self._files:
            self._files[number] = Descriptor(os.memfd_create, "ringfeed-stack", os.MFD_CLOEXEC)
            os.fchmod(self._files[number].fileno(), 0o600)  # as the segment's
        return self._files[number].fileno()

    def read(self, number: int, worker: Process) -> str:
        """Have a worker write its stack, and return it, or why it was not asked; "" where it does not answer."""
        if refusal := _why_not(worker.pid):
            return refusal
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
        for file in self._files.values():
            file.close()
        self._files.clear()


def _why_not(pid: int) -> str:
    """Say why a process is not to be asked: SIGUSR1 ends one that does not catch it; "" where it does."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        lines = []
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigCgt:")), None)
    if caught is None:
        return f"no stack: /proc/{pid}/status does not say whether the worker catches SIGUSR1, which asks for it"
    if not caught >> (signal.SIGUSR1 - 1) & 1:
        return "no stack: the dataset has taken away the handler of SIGUSR1, which asks for it"
    return ""

"""Python stacks of workers and threads for a StallError: faulthandler writes them in C."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable

WRITING_S = 0.5
_NAME = "ringfeed-stack"
_kept: list[Descriptor] = []


class Stacks:
    """A memfd for each worker id, into which the worker writes its stack on SIGUSR1."""

    def __init__(self) -> None:
        """Nothing is open before the first worker."""
        self._files: dict[int, Descriptor] = {}

    def fd_of(self, number: int) -> int:
        """Return the file that worker ``number`` is to write into."""
        if number not in self._files:
            self._files[number] = _file()
        return self._files[number].fileno()

    def read(self, number: int, worker: Any) -> str:
        """Return the stack that a worker writes, or why it was not asked; "" for no answer."""
        return _written(worker.pid, self.fd_of(number), worker.kill)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def stacks_by_thread() -> dict[int | None, str]:
    """Return where each thread of this process is, the innermost call first.

    faulthandler stops all threads for it: without the GIL, looking at a frame that runs may end
    Python. It shows 100 frames of the newest 100 threads.
    """
    import faulthandler  # noqa: PLC0415 - these are for errors only
    import re  # noqa: PLC0415
    from tempfile import TemporaryFile  # noqa: PLC0415

    with suppress(OSError), TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return {
            int(stack[1], 16): stack[0]
            for stack in re.finditer(r".*hread 0x(\w+).*\n(  .*\n)*", file.read())
        }
    return {}  # no room for a file


def keep_own() -> int:
    """Write this process's stack into a file on each SIGUSR1; return its fd, for `of_process`."""
    import faulthandler  # noqa: PLC0415 - as few need it

    _kept.append(file := _file())
    faulthandler.register(signal.SIGUSR1, file=file.fileno(), all_threads=False)
    return file.fileno()


def of_process(pid: int, fd: int) -> str:
    """Return the stack that another process of this machine writes, or why it was not asked."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        if _NAME not in str(Path(path).readlink()):
            return f"no stack: process {pid} is another by now"
        with Descriptor(os.open, path, os.O_RDWR | os.O_CLOEXEC) as file:
            return _written(pid, file.fileno(), partial(os.kill, pid))
    except OSError as error:
        return f"no stack: process {pid} cannot be asked: {error.strerror}"


def _file() -> Descriptor:
    file = Descriptor(os.memfd_create, _NAME, os.MFD_CLOEXEC)
    os.fchmod(file.fileno(), 0o600)  # as the segment's
    fcntl.fcntl(
        file.fileno(), fcntl.F_SETFL, os.O_APPEND
    )  # a stack that was asked for begins where the file ends
    return file


def _written(pid: int, fd: int, kill: Callable[[signal.Signals], None]) -> str:
    if not _catches_usr1(pid):
        return (
            f"no stack: /proc/{pid}/status shows no handler of SIGUSR1, which asks for it; the "
            "dataset may have taken it away"
        )
    os.ftruncate(fd, 0)
    kill(signal.SIGUSR1)
    deadline = time.monotonic() + WRITING_S
    text = b""
    while True:
        time.sleep(0.02)
        late = time.monotonic() >= deadline  # before the look, so that a busy machine has one too
        before, text = text, os.pread(fd, 1 << 16, 0)
        if late or (text and text == before):
            break
    return text.decode(errors="replace")


def _catches_usr1(pid: int) -> bool:
    """Whether a process catches SIGUSR1, which would else end it; not where /proc does not say."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False

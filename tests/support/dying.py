"""A dataset that ends its worker, or fails, at a chosen point of the worker's life. Importable in workers.

The deeds are listed in the dataset, and done once each, over all workers: a file for each deed says
that it is due.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import struct
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from datasets import Oracle
from ringfeed.ring import _ring
from ringfeed.workers import worker_main as worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SPACING = 8  # deed k is done at index 8 k + 3, where a point has an index
FIRST = 3
FUTEX_SYSCALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine())

# ---- deaths ----


def _segfault() -> None:
    faulthandler.disable()  # pytest's own, in a forked worker: its report is of no use to anybody
    ctypes.string_at(0)


def _abort() -> None:
    faulthandler.disable()
    os.abort()


DEATHS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": _segfault,
    "SIGABRT": _abort,
    "exit 0": partial(os._exit, 0),
    "exit 3": partial(os._exit, 3),
}
IN_C: dict[str, Callable[[Any], object]] = {  # the GIL is held: see PyDLL
    "SIGSEGV in C": lambda libc: libc.memset(None, 0, 1),
    "SIGABRT in C": lambda libc: libc.abort(),
    "exit 0 in C": lambda libc: libc._exit(0),
    "exit 3 in C": lambda libc: libc._exit(3),
}


def _die_in_c(name: str) -> None:
    faulthandler.disable()
    IN_C[name](ctypes.PyDLL(None))


# ---- errors ----


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a lock")


def _raise_unpicklable() -> NoReturn:
    raise UnpicklableError("stays here")


def _raise_local() -> NoReturn:
    class LocalError(Exception):
        """Cannot be found by its name."""

    raise LocalError("made on the spot")


def _raise_plain() -> NoReturn:
    raise OSError("no such picture")


def _exhaust_memory() -> None:
    bytearray(1 << 62)


def _recurse() -> None:
    _recurse()


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


ERRORS: dict[str, Callable[[], object]] = {
    "sys.exit": partial(sys.exit, 3),
    "exception": _raise_plain,
    "unpicklable exception": _raise_unpicklable,
    "local exception": _raise_local,
    "MemoryError": _exhaust_memory,
    "RecursionError": _recurse,
    "KeyboardInterrupt": _interrupt,
}

# ---- death at the wake ----

WAKE_ENDS = {
    "SIGSYS at the wake": None,
    "SIGABRT at the wake": "abort",
    "exit 31 at the wake": "_exit",
}


def _end_at_the_wake(name: str) -> None:
    """Have the kernel end this process at its next FUTEX_WAKE between processes: Python's own are all private.

    A filter of system calls either kills it, or has it call a function of C's library with the
    signal's number.
    """
    faulthandler.disable()
    libc = ctypes.CDLL(None)
    verdict = 0x80000000  # SECCOMP_RET_KILL_PROCESS
    function = WAKE_ENDS[name]
    if function:
        verdict = 0x00030000  # SECCOMP_RET_TRAP
        libc.signal(int(signal.SIGSYS), ctypes.cast(libc[function], ctypes.c_void_p))
    load, equal, leave = 0x20, 0x15, 0x06
    number_at, operation_at, wake, allow = 0, 24, 1, 0x7FFF0000
    steps = [
        (load, 0, 0, number_at),
        (equal, 0, 3, FUTEX_SYSCALL),
        (load, 0, 0, operation_at),
        (equal, 0, 1, wake),
        (leave, 0, 0, verdict),
        (leave, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    )
    no_new_privileges, filter_calls, mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(filter_calls, mode, program, 0, 0):
        os._exit(99)


# ---- points ----


class StagedEnd:
    """A worker's end of the ring with points before and after each of its steps."""

    def __init__(self, end: Any, dataset: Doomed) -> None:
        self._end = end
        self._dataset = dataset
        self._claims = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def claim(self, timeout_ns: int) -> int:
        if self._claims:
            self._dataset.arrive("before claim")
        answer: int = self._end.claim(timeout_ns)
        if answer == _ring.TAKEABLE:
            self._claims += 1
            self._dataset.arrive("claimed", self._end.indices)
        return answer

    def serve(  # noqa: PLR0913, PLR0917 - as in C
        self,
        read: Callable[[], bool],
        context: Any,
        fail: Callable[[BaseException], None],
        version: int,
        idle_ns: int,
        claimed: bool = False,  # noqa: FBT001, FBT002 - as in C
    ) -> bool:
        """Do step by step what is one call otherwise."""
        while True:
            if not claimed:
                answer = self.claim(idle_ns)
                if answer == _ring.STOPPED:
                    return False
                if answer != _ring.TAKEABLE:
                    continue
                if self._end.version != version:
                    return True
            claimed, cancelled = False, False
            context.epoch = self._end.epoch
            try:
                cancelled = not read()
            except BaseException as error:  # noqa: BLE001 - as in C
                fail(error)
            self.publish(cancelled=cancelled)

    def publish(self, *, cancelled: bool = False) -> None:
        indices = self._end.indices
        self._dataset.arrive("before publish", indices)
        self._dataset.arrive("published, not woken", indices)
        self._end.publish(cancelled=cancelled)
        self._dataset.arrive("published", indices)


def _stage(dataset: Doomed) -> None:
    """Put the points into this worker's life; called while it opens the dataset."""
    run = worker.WorkerMain.run
    if run.__name__ != "run":
        return

    def staged(self: Any) -> None:
        self._reader.end = StagedEnd(self._port.end, dataset)
        self._port = self._port._replace(end=self._reader.end)
        run(self)

    worker.WorkerMain.run = staged  # type: ignore[method-assign]
    threading.Thread(target=dataset.lurk, daemon=True).start()


class Doomed(Oracle):
    """An Oracle that does its deeds at one point.

    At each of its epochs a new version is sent, if asked for.
    """

    def __init__(
        self, where: str, deeds: Sequence[str], flags: Path, *, length: int = 48, once: bool = True
    ) -> None:
        super().__init__(
            length, sleep_s=0.001
        )  # both workers have their share, and the consumer sleeps
        self.where = where
        self.deeds = list(deeds)
        self.flags = flags
        self.once = once
        self.epoch = 0
        self.home = os.getpid()

    def due(self, number: int) -> None:
        """Have a deed done; all of them are due from the start, except those that wait for it."""
        (self.flags / str(number)).touch()

    def on_epoch_begin(self) -> None:
        self.epoch += self.where == "unpickling anew"

    def __getattribute__(self, name: str) -> Any:
        if (
            name in {"__getitem__", "read_into"} and self.home != os.getpid()
        ):  # the worker opens the dataset
            self.arrive("opening")
            _stage(self)
        return object.__getattribute__(self, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.arrive("unpickling anew" if self.epoch > 1 else "unpickling")

    def __getitem__(self, index: int) -> Any:
        self.arrive("sample", [index])
        self.arrive("C code", [index])
        return super().__getitem__(index)

    def arrive(self, where: str, indices: Sequence[int] | None = None) -> None:
        """Do the deed that is due here, if there is one."""
        if where != self.where:
            return
        for number, name in enumerate(self.deeds):
            if (indices is None or SPACING * number + FIRST in indices) and self._is_due(number):
                self._do(number, name)
                return

    def _is_due(self, number: int) -> bool:
        try:
            if self.once:
                (self.flags / str(number)).unlink()
        except FileNotFoundError:
            return False
        return True

    def _do(self, number: int, name: str) -> None:
        if name in DEATHS:
            DEATHS[name]()
        elif name in ERRORS:
            ERRORS[name]()
        elif name in WAKE_ENDS:
            _end_at_the_wake(name)
        elif name in IN_C:
            _die_in_c(name)
        else:
            self._hold_the_gil(number)

    def _hold_the_gil(self, number: int) -> None:
        """Sleep in C with the GIL held, having told the consumer which process to end."""
        faulthandler.disable()
        draft = self.flags / f"draft {number}"
        draft.write_text(str(os.getpid()))
        draft.rename(self.flags / f"held {number}")
        ctypes.PyDLL(None).sleep(600)

    def lurk(self) -> None:
        """Do what is due while the worker's own thread sleeps in the ring."""
        while self.where == "asleep":
            self.arrive("asleep")
            time.sleep(0.002)


class DoomedInto(Doomed):
    """Writes its samples into their rows: the same content."""

    def read_into(self, index: int, out: Any) -> None:
        self.arrive("read_into", [index])
        content, number, checksum = super().__getitem__(index)
        out[0][:2] = content[:2]
        out[1][...] = -1
        self.arrive("mid-row", [index])
        out[0][...] = content
        out[1][...] = number
        out[2][...] = checksum

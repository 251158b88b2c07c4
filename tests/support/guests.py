"""Datasets that misbehave: what they do to the process that makes their sample, and to what they have given before."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import fcntl
import gc
import importlib
import locale
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets import Oracle

if TYPE_CHECKING:
    from pathlib import Path

AT = 5  # the sample that does it


class Guest(Oracle):
    """Does a deed whenever its sample 5 is made, and is an Oracle."""

    def __init__(self, deed: str, flag: Path | None = None) -> None:
        super().__init__(24)
        self.deed = deed
        self.flag = flag

    def __getitem__(self, index: int) -> Any:
        if index == AT and not (self.flag and self.flag.exists()):
            if self.flag:
                self.flag.touch()  # once is enough
            DEEDS[self.deed]()
        return super().__getitem__(index)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError("too slow")


def _in_a_thread(*, daemon: bool) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=daemon).start()


def _fail_in_a_thread() -> None:
    threading.excepthook = lambda _: None
    thread = threading.Thread(target=_raise_timeout)
    thread.start()
    thread.join(120)


def _fork(then: Any) -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
    if os.fork() == 0:
        then()
        os._exit(0)


def _pool() -> None:
    warnings.simplefilter("ignore")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]


def _executor(kind: Any) -> None:
    with kind(1) as executor:
        assert executor.submit(abs, -1).result(10) == 1


async def _wait_a_little() -> None:
    await asyncio.sleep(0.001)


def _read_input() -> None:
    assert os.read(0, 1) == b""


def _no_input() -> None:
    os.closerange(0, 1)
    sys.stdin = None


def _no_output() -> None:
    sys.stdout = sys.stderr = None
    os.closerange(1, 3)


def _broken_output() -> None:
    sys.stdout = sys.stderr = object()


def _reuse_descriptors() -> None:
    os.closerange(3, 256)
    for _ in range(30):
        os.open(os.devnull, os.O_RDWR)


def _start_a_group() -> None:
    with contextlib.suppress(PermissionError):  # it leads a session
        os.setpgid(0, 0)


def _forget_modules() -> None:
    for name in [
        name
        for name in sys.modules
        if name.startswith("ringfeed") or name in {"os", "socket", "pickle"}
    ]:
        del sys.modules[name]


def _recurse() -> None:
    _recurse()


def _trace(*_: object) -> Any:
    return _trace


DEEDS: dict[str, Any] = {
    "blocks all signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "ignores the death of children": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "sets a timer that it ignores": lambda: (
        signal.signal(signal.SIGALRM, signal.SIG_IGN),
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001),
    ),
    "sets a timer that interrupts": lambda: (
        signal.signal(signal.SIGALRM, lambda *_: None),
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001),
    ),
    "changes the locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "empties the environment": os.environ.clear,
    "empties sys.path": sys.path.clear,
    "forgets modules": _forget_modules,
    "forbids descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)),
    "forbids files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    "sets the umask": lambda: os.umask(0o777),
    "changes directory": lambda: os.chdir("/proc"),
    "becomes nicer": lambda: os.nice(19),
    "stays on one CPU": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    "recurses little": lambda: sys.setrecursionlimit(sys.getrecursionlimit() // 2),
    "traces": lambda: (sys.settrace(_trace), threading.settrace(_trace)),
    "profiles": lambda: sys.setprofile(_trace),
    "has no output": _no_output,
    "has broken output": _broken_output,
    "has no input": _no_input,
    "reads its input": _read_input,
    "collects no garbage": gc.disable,
    "freezes its garbage": gc.freeze,
    "takes warnings for errors": lambda: (warnings.simplefilter("error"), np.seterr(all="raise")),
    "starts a daemon thread": lambda: _in_a_thread(daemon=True),
    "starts a thread": lambda: _in_a_thread(daemon=False),
    "fails in a thread": _fail_in_a_thread,
    "leaves a child": lambda: _fork(lambda: time.sleep(600)),
    "leaves a child that dies": lambda: _fork(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "leaves a process": lambda: subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"]
    ),
    "runs a process": lambda: subprocess.run(
        [sys.executable, "-c", "pass"], check=True, timeout=240
    ),
    "uses a pool of processes": _pool,
    "uses an executor of threads": lambda: _executor(concurrent.futures.ThreadPoolExecutor),
    "runs an event loop": lambda: asyncio.run(_wait_a_little()),
    "registers an exit hook": lambda: atexit.register(time.sleep, 600),
    "reuses all descriptors": _reuse_descriptors,
    "starts a group": _start_a_group,
    "allocates": lambda: np.ones(1 << 23),
    "makes its output wait": lambda: fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK),
    # These end in an error, or a death.
    "recurses": _recurse,
    "imports what is not there": lambda: importlib.import_module("no_such_module"),
    "is too slow": lambda: (
        signal.signal(signal.SIGALRM, _raise_timeout),
        signal.setitimer(signal.ITIMER_REAL, 0.01),
        time.sleep(600),
    ),
    "allocates without end": lambda: np.ones(1 << 60, np.uint8),
    "asks for an alarm": lambda: (signal.setitimer(signal.ITIMER_REAL, 0.01), time.sleep(600)),
    "kills its group": lambda: (os.kill(0, signal.SIGTERM), time.sleep(600)),
}


class Mutating(Oracle):
    """Counts its calls in itself, fills one buffer again and again, and changes what it has given before."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.buffer = np.zeros((5, 7), np.uint8)
        self.calls: list[int] = []
        self.given: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        content, number, checksum = super().__getitem__(index)
        self.calls.append(index)
        for array in self.given:
            array[...] = 255
        self.buffer[...] = content
        self.given = [self.buffer[::-1][::-1], np.array(number)]
        return self.buffer, self.given[1], checksum


class MutatingBatches(Mutating):
    """The same in whole batches of one sample."""

    def __getitem__(self, index: int) -> Any:
        content, number, checksum = super().__getitem__(index)
        return content[None], number[None], np.array([checksum])


class Length:
    """Has a length that is computed, and numbers for samples."""

    def __init__(self, length: Any) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> Any:
        self.asked += 1
        return self.length(self.asked)

    def __getitem__(self, index: int) -> int:
        return index


class Returning:
    """Numbers, and behind them whatever functions return."""

    def __init__(self, functions: list[Any]) -> None:
        self.functions = functions

    def __len__(self) -> int:
        return 4 + len(self.functions)

    def __getitem__(self, index: int) -> Any:
        return index if index < 4 else self.functions[index - 4]()


class Leaving:
    """Tells the process of a child that lives on."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        return pid


class Versions(Oracle):
    """Changes between epochs, and closes the descriptors of its worker in the first."""

    def __init__(self) -> None:
        super().__init__(12)
        self.begun = 0

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def __getitem__(self, index: int) -> Any:
        if index == AT and self.begun == 1:
            _reuse_descriptors()
        content, number, checksum = super().__getitem__(index)
        return content, number + 100 * self.begun, checksum

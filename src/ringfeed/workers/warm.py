"""The warm forkserver forks the forkserver of each loader, and holds no dataset.

    begin() ── order ──▶ the warm one ──fork──▶ that of one loader ──fork──▶ its workers

It imports what loaders need of installed packages, so that only the first of them waits for that.
The user's own modules, which may change between two loaders, are imported by each loader's
forkserver, as is the dataset. What processes cannot share is not imported here either: see
`forkserver.private`.

There is one. It serves as long as this process is as it was when the warm forkserver started: see
`_surroundings`; another takes its place then. It ends with this process, by `end`, and when no
loader has had a forkserver of its own for `RINGFEED_WARM_S` seconds (60; 0: there is none): a
program that makes a loader for each epoch waits once.

No thread waits for the lock of this module for long: a user's finalizer may close a loader, and so
wait for another thread, while this thread holds it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ringfeed._process import Worker
from ringfeed.errors import WorkerError
from ringfeed.system import channel as channels
from ringfeed.system._system import Descriptor
from ringfeed.system.guard import Lifeline
from ringfeed.system.interpreter import surroundings
from ringfeed.transport.modules import is_installed
from ringfeed.workers.process import NOT_FORKED, WorkerProcess, spawn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


IDLE_S = 60.0
LOCK_S = 5.0  # that the lock is waited for; what is done under it takes milliseconds
DEATH_S = 1.0  # what SIGKILL may take, which is milliseconds
OUTPUT = (1, 2)  # where workers print is where this process prints when the loader is made
_OF_A_THREAD = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "SigIgn",
    "Cap",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed",
    "Mems_a",
)


class Warm:
    """A warm forkserver, seen from the consumer."""

    def __init__(self, around: object) -> None:
        """Start one that has imported no more than every worker does."""
        self.around = around
        self._imported: set[str] = set()  # that it was told to import
        self._lifeline = Lifeline()
        self.process = spawn("ringfeed.workers.forkserver", self._lifeline)
        self._warm_up(None, ())

    def preload(self, packages: frozenset[str] | None, modules: Collection[str]) -> None:
        """Have it import what it has not imported yet."""
        wanted = {*modules, *(packages or ())}
        if not wanted <= self._imported:
            self._warm_up(packages, sorted({*modules} - self._imported))
            self._imported |= wanted

    def _warm_up(self, packages: frozenset[str] | None, modules: Collection[str]) -> None:
        imports = {"packages": packages, "modules": modules}
        order = {"do": "warm_up", "idle_s": _idle_s(), **imports}
        channels.send(self.process.channel, order, OUTPUT)

    def fork(self, channel: Descriptor, lifeline: Lifeline) -> None:
        """Have it fork a loader's forkserver, which sends its pid through ``channel``."""
        fds = channel.fileno(), *lifeline.fds, *OUTPUT
        channels.send(self.process.channel, {"do": "fork_forkserver"}, fds)

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._lifeline.close()  # its guard ends it, also where signals by pidfd are refused
        with suppress(OSError, EOFError, TimeoutError):
            _Kept.unfit.update(channels.receive(self.process.channel, 0)[0]["unfit"])
        self.process.end(DEATH_S)


class _Kept:
    """The warm forkserver of this process."""

    lock = threading.RLock()
    warm: Warm | None = None
    unfit: set[str]  # modules whose import makes what processes cannot share

    @classmethod
    def forget(cls) -> None:
        """Have none; in a forked child that of its parent goes on."""
        cls.lock, cls.warm, cls.unfit = threading.RLock(), None, set()


_Kept.forget()
os.register_at_fork(after_in_child=_Kept.forget)


@contextmanager
def _locked() -> Iterator[bool]:
    """Hold the lock.

    Gives False, and does not hold it, where another thread has it for too long.
    """
    lock = _Kept.lock
    is_locked = lock.acquire(timeout=LOCK_S)
    try:
        yield is_locked
    finally:
        if is_locked:
            lock.release()


def expect(framework: str | None = None) -> None:
    """Have it come up, and import a framework, where samples will surely hold that."""
    with suppress(OSError, WorkerError), _serving() as warm:
        if warm is not None and framework is not None:
            warm.preload(frozenset((framework,)), ())


def begin(
    lifeline: Lifeline, packages: frozenset[str] | None, modules: Collection[str]
) -> WorkerProcess | None:
    """Order a loader's forkserver, and return it; it is to be forked yet.

    None where this process must spawn one.

    ``packages``: those whose objects samples hold.
    """
    with suppress(OSError, WorkerError), _serving() as warm:
        if warm is None or not _Kept.unfit.isdisjoint(packages or ()):
            return None
        warm.preload(packages, {name for name in modules if is_installed(name)} - _Kept.unfit)
        ours, theirs = channels.pair()
        with theirs:
            warm.fork(theirs, lifeline)
        return WorkerProcess(NOT_FORKED, Descriptor(), ours, parent=warm.process)
    return None


def end() -> None:
    """End it. Loaders go on: their own forkservers are other processes."""
    with _locked():
        # First: a signal handler, or a finalizer, may come in here again.
        warm, _Kept.warm = _Kept.warm, None
        if warm is not None:
            warm.close()


atexit.register(end)


def pids() -> list[int]:
    """Return the process, if there is one."""
    with _locked():
        warm = _alive()
        return [] if warm is None else [warm.process.pid]


def _alive() -> Warm | None:
    if _Kept.warm is not None and _Kept.warm.process.is_dead():
        end()
    return _Kept.warm


@contextmanager
def _serving() -> Iterator[Warm | None]:
    """Hold the lock, and give the one that may serve this process as it is now.

    None where there must be none, or where another thread has the lock for too long.
    """
    with _locked() as is_locked:
        yield _serving_now() if is_locked else None


def _serving_now() -> Warm | None:
    around, warm = _surroundings(), _alive()
    if around is None:
        return None
    if warm is not None and warm.around == around:
        return warm
    end()
    warm = _Kept.warm = Warm(around)
    with suppress(RuntimeError):  # no room for a thread: the next loader finds it dead
        threading.Thread(
            target=_await_end, args=(warm.process,), name="ringfeed-warm", daemon=True
        ).start()
    return warm


def _await_end(process: WorkerProcess) -> None:
    """Close what this process has of another as soon as that has ended.

    It ends long after the last loader.
    """
    process.is_dead(None)
    with _locked() as is_locked:
        if is_locked:
            _alive()


def _idle_s() -> float:
    try:
        return float(os.environ.get("RINGFEED_WARM_S", IDLE_S))
    except ValueError:
        return IDLE_S


def _surroundings() -> object:
    """Return what a process has from the one that starts it, and what imports may depend on.

    What an older process would have otherwise: another user, limit, container or environment
    variable than now. None: /proc does not say, or no warm forkserver is wanted; none is in a
    process that works for a loader of another one.
    """
    if _idle_s() <= 0 or Worker.is_here:
        return None
    texts, here = {}, "/proc/thread-self"
    try:
        for name in ("status", "cgroup", "limits"):
            with open(f"{here}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                texts[name] = file.readlines()
        links = [f"{here}/ns/{name}" for name in os.listdir(f"{here}/ns")]  # noqa: PTH208
        namespaces = sorted(map(os.readlink, [*links, f"{here}/root"]))
    except OSError:
        return None
    texts["status"] = [line for line in texts["status"] if line.startswith(_OF_A_THREAD)]
    scheduling = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    python: Any = subprocess
    flags = python._args_from_interpreter_flags()  # noqa: SLF001
    # The folder is told each forkserver.
    around = {name: value for name, value in surroundings().items() if name != "here"}
    return around, sys.executable, flags, texts, namespaces, scheduling

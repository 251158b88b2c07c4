"""The warm forkserver: it holds no dataset, serves all loaders that are open, and forks the forkserver of each.

    Forkserver.begin() ──▶ begin() ── order ──▶ WarmMain ──fork──▶ ForkserverMain of one loader ──fork──▶ its workers

It imports what loaders need of installed packages, so that only the first of them waits for that.
The user's own modules, which may change between two loaders, are imported by each loader's
forkserver, as is the dataset. What processes cannot share is not imported here either: see
`ForkserverMain.private`.

There is one for each set of frameworks, and it serves as long as this process is as it was when it
started: see `_around`. The newest two are kept. They end with this process, by `end`, and when no
loader has had a forkserver of theirs for `RINGFEED_WARM_S` seconds (60; 0: there is none): a
program that makes a loader for each epoch waits once.

No thread waits for the lock of this module for long: a user's finalizer may close a loader, and so
wait for another thread, while this thread holds it.
"""

from __future__ import annotations

import atexit
import os
import resource
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ringfeed._callers import FRAMEWORKS
from ringfeed._process import Worker
from ringfeed.errors import WorkerError
from ringfeed.system import channel as channels
from ringfeed.system._system import wait_for
from ringfeed.system.guard import Lifeline
from ringfeed.system.interpreter import surroundings
from ringfeed.transport.modules import frameworks_of, is_installed
from ringfeed.workers.process import spawn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ringfeed.system._system import Descriptor
    from ringfeed.workers.process import WorkerProcess

IDLE_S = 60.0
LOCK_S = 5.0  # that the lock is waited for; what is done under it takes milliseconds
DEATH_S = 1.0  # what SIGKILL may take, which is milliseconds
REPORT_S = 5.0  # what its report of an end may take, which is a wake-up on a machine of its own
POLL_S = 0.001
MOST_KEPT = 2
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
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Warm:
    """A warm forkserver, seen from the consumer."""

    def __init__(self, around: object, idle_s: float) -> None:
        """Start one that has imported no more than every worker does."""
        self.around = around
        self.frameworks: frozenset[str] | None = (
            None  # that it has been told to import; None: nothing yet
        )
        self._modules: set[str] = set()
        self._lifeline = Lifeline()
        self.process = spawn("ringfeed.workers.warm_main", self._lifeline)
        self._idle_s = idle_s
        self._statuses: dict[int, int] = {}

    def preload(
        self, frameworks: frozenset[str], packages: frozenset[str] | None, modules: Iterable[str]
    ) -> None:
        """Have it import what it has not imported yet."""
        new = set(modules) - self._modules
        if new or self.frameworks is None:
            order = {"packages": packages, "modules": sorted(new)}
            channels.send(self.process.channel, {"preload": order, "idle_s": self._idle_s}, OUTPUT)
            self.frameworks = frameworks
            self._modules |= new

    def fork(self, channel: Descriptor, lifeline: Lifeline) -> None:
        """Have it fork a loader's forkserver, which says so through ``channel`` once there is one."""
        channels.send(self.process.channel, {}, (channel.fileno(), *lifeline.fds, *OUTPUT))

    def is_dead(self) -> bool:
        """Whether it has ended; note what it has told meanwhile."""
        with suppress(OSError, EOFError, TimeoutError):
            while self.process.pidfd >= 0:  # it is not closed
                message, _ = channels.receive(self.process.channel, 0)
                if "ended" in message:
                    self._statuses[message["ended"]] = message["status"]
                elif "unfit" in message:
                    _Kept.unfit.update(message["unfit"])
        return self.process.is_dead()

    def status_of(self, pid: int) -> int | None:
        """Return the exit code of a dead forkserver that it had forked; None where it was not told."""
        deadline = time.monotonic() + REPORT_S
        is_over = False
        while True:
            with _locked(0) as is_locked:
                if is_locked:
                    is_over = self.process.is_dead()  # asked first: then nothing more can come
                    self.is_dead()  # notes what it has told
                if pid in self._statuses:
                    return self._statuses.pop(pid)
            if is_over or time.monotonic() > deadline:
                return wait_for(
                    pid
                )  # not told: an orphan. It may be ours to wait for, as PID 1 or a subreaper.
            time.sleep(POLL_S)

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._lifeline.close()  # its guard ends it, also where signals by pidfd are refused
        if self.process.pidfd >= 0:  # it is not closed already
            with suppress(OSError):
                self.process.kill()
        self.process.is_dead(DEATH_S)
        self.is_dead()  # what it has told last
        self.process.exit_reason()


class _Kept:
    """The warm forkservers of this process, the oldest first."""

    lock = threading.RLock()
    all: list[Warm]
    unfit: set[str]  # modules whose import makes what processes cannot share

    @classmethod
    def forget(cls) -> None:
        """Have none; in a forked child those of its parent go on."""
        cls.lock, cls.all, cls.unfit = threading.RLock(), [], set()


_Kept.forget()
os.register_at_fork(after_in_child=_Kept.forget)


@contextmanager
def _locked(wait_s: float = LOCK_S) -> Iterator[bool]:
    """Hold the lock; gives False, and does not hold it, where another thread has it for so long."""
    lock = _Kept.lock
    is_locked = lock.acquire(timeout=wait_s)
    try:
        yield is_locked
    finally:
        if is_locked:
            lock.release()


def expect(framework: str | None = None) -> None:
    """Have one come up, and import a framework, where samples will surely hold that."""
    with _locked() as is_locked, suppress(OSError, WorkerError):
        around = _around()
        if around is None or not is_locked:
            return
        if framework is not None:
            _one_for(around, frozenset((framework,)), frozenset((framework,)), ())
        elif not _serving(around):
            _new(around)


def begin(
    lifeline: Lifeline, packages: frozenset[str] | None, modules: Collection[str]
) -> tuple[Descriptor, Warm] | None:
    """Order a loader's forkserver; returns the channel to it and what forks it, or None: this process must spawn one.

    ``packages``: those whose objects samples hold.
    """
    with _locked() as is_locked, suppress(OSError, WorkerError):
        around = _around()
        installed = {module for module in modules if is_installed(module)} - _Kept.unfit
        frameworks = (
            frozenset(packages or ()).intersection(FRAMEWORKS).union(*map(frameworks_of, installed))
        )
        if around is None or not is_locked or frameworks & _Kept.unfit:
            return None
        warm = _one_for(around, frameworks, packages, installed)
        ours, theirs = channels.pair()
        with theirs:
            warm.fork(theirs, lifeline)
        return ours, warm
    return None


def end() -> None:
    """End all of them. Loaders go on: their own forkservers are other processes."""
    with _locked():
        _keep(0)


def pids() -> list[int]:
    """Return the processes."""
    with _locked():
        return [warm.process.pid for warm in _alive()]


atexit.register(end)


def _one_for(
    around: object,
    frameworks: frozenset[str],
    packages: frozenset[str] | None,
    modules: Collection[str],
) -> Warm:
    """Return one that has imported this, or has been told to."""
    serving = _serving(around)
    fitting = [warm for warm in serving if warm.frameworks == frameworks]
    fitting += [warm for warm in serving if warm.frameworks is None]
    warm = fitting[0] if fitting else _new(around)
    warm.preload(frameworks, packages, modules)
    return warm


def _serving(around: object) -> list[Warm]:
    return [warm for warm in _alive() if warm.around == around]


def _alive() -> list[Warm]:
    for warm in [warm for warm in _Kept.all if warm.is_dead()]:
        _end(warm)
    return _Kept.all


def _end(warm: Warm) -> None:
    """End one. It is forgotten first: a signal handler, or a finalizer, may come in here again."""
    with suppress(ValueError):  # it was forgotten
        _Kept.all.remove(warm)
    warm.close()


def _new(around: object) -> Warm:
    _keep(MOST_KEPT - 1)
    warm = Warm(around, _idle_s())
    _Kept.all.append(warm)
    with suppress(RuntimeError):  # no room for a thread: the next loader finds it dead
        threading.Thread(
            target=_await_end, args=(warm.process,), name="ringfeed-warm", daemon=True
        ).start()
    return warm


def _await_end(process: WorkerProcess) -> None:
    """Close what there is here of a process as soon as it has ended: it does so long after the last loader."""
    poller = select.poll()
    with suppress(ValueError):  # it is closed already
        poller.register(process.pidfd, select.POLLIN)
        poller.poll()
    with _locked() as is_locked:
        if is_locked:
            _alive()


def _keep(most: int) -> None:
    """End the oldest, so that no more than so many are left."""
    while len(_Kept.all) > most:
        _end(_Kept.all[0])


def _idle_s() -> float:
    try:
        return float(os.environ.get("RINGFEED_WARM_S", IDLE_S))
    except ValueError:
        return IDLE_S


def _around() -> object:
    """Return what a process has from the one that starts it, and what imports may depend on.

    What an older process would have otherwise: another user, limit, container or environment
    variable than now. None: /proc does not say, or no warm forkserver is wanted; none is in a
    process that works for a loader of another one.
    """
    if _idle_s() <= 0 or Worker.is_here:
        return None
    try:
        with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - quicker
            status = [line for line in file if line.startswith(_OF_A_THREAD)]
        with open("/proc/thread-self/cgroup", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - likewise
            status.append(file.read())
        links = [f"/proc/thread-self/ns/{name}" for name in os.listdir("/proc/thread-self/ns")]  # noqa: PTH208
        namespaces = sorted(map(os.readlink, [*links, "/proc/thread-self/root"]))
    except OSError:
        return None
    limits = [resource.getrlimit(number) for number in _LIMITS]
    scheduling = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    flags: Any = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as spawn
    around = {
        name: value for name, value in surroundings().items() if name != "here"
    }  # that is told each forkserver
    return around, sys.executable, flags, status, namespaces, limits, scheduling

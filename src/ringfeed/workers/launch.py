"""Making worker processes: each start method turns a channel into a running process.

    Spawner   a fresh interpreter a worker; never imports the user's main module
    Forker    a forkserver process forks workers: born of the consumer ("fork") or spawned ("forkserver")

Both answer `start()` with a `WorkerProcess`: its pidfd proves its death, even where its parent is another process.
"""

from __future__ import annotations

import marshal
import math
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed.errors import WorkerError
from ringfeed.ring._ring import Child, Descriptor
from ringfeed.ring.failure import decode
from ringfeed.ring.machine import is_shortage, reason
from ringfeed.ring.segment import STDERR
from ringfeed.transport.framework_stubs import frameworks_loaded
from ringfeed.workers import channel as channels
from ringfeed.workers.forkserver import end_group, fork, run_forkserver
from ringfeed.workers.popens import close_pipes, pipes_of_launches
from ringfeed.workers.process import Lifeline, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringfeed.data.base import Source
    from ringfeed.transport.shared_dataset import Shipment

LOOK_S = 0.1  # between two looks at whether the caller still waits
BURIAL_S = 1.0
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
# Until sys.path is the consumer's, only what is built into the interpreter is imported. Whatever that path has now, a
# module that the consumer has from the standard library comes from there.
_CODE = """
import sys, marshal, posix
from _frozen_importlib_external import PathFinder
with open(int(sys.argv.pop()), "rb") as file:
    order = marshal.load(file)
class Library:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, order["library"]) if path is None and name in order["names"] else None
sys.meta_path.insert(0, Library)
sys.path[:] = order["path"]
order["lost"] and posix.chdir("/")
for fd in order["inherited"]:
    posix.close(fd)
__import__(order["module"], fromlist=["main"]).main(*order["fds"])
"""
_NO_FOLDER_FIRST = ("-P",) if sys.version_info >= (3, 11) else ()  # Python 3.13 imports modules before it runs _CODE


class Spawner:
    """Starts each worker as a fresh interpreter."""

    def __init__(self, lifeline: Lifeline) -> None:
        """Start workers that are tied to this process."""
        self._lifeline = lifeline

    def start(self) -> WorkerProcess:
        """Start a worker."""
        return spawn("ringfeed.workers.worker_main", self._lifeline)

    def abandon(self) -> None:
        """Nothing keeps a spawner waiting."""

    def close(self) -> None:
        """Nothing to close: workers are their own processes."""


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the kernel's refusal of another process into a WorkerError with the reason."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"no worker can be started: {reason(error)}") from error


@_explained()
def spawn(module: str, lifeline: Lifeline) -> WorkerProcess:
    """Run ``module.main(channel, parent, lifeline)`` in a fresh interpreter with this one's path and flags."""
    ours, theirs = channels.pair()
    with theirs:
        process = _popen(module, (theirs.fileno(), *lifeline.fds))
    return WorkerProcess(process.pid, process.pidfd, ours, process.wait, is_child=True)


def _here() -> str:
    """The working directory, or "" where it is gone."""
    with suppress(OSError):
        return str(Path.cwd())
    return ""


def _popen(module: str, fds: tuple[int, ...]) -> Child:
    """Start an interpreter. Not by Popen, which can lose it to Ctrl-C and waits for copies of its pipe in others."""
    if not sys.executable:
        message = "sys.executable does not say which Python runs here, so no worker can be started; set it"
        raise WorkerError(message)
    here = _here()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    inherited = {*_inherited()} - {*fds}
    beyond = [
        fd for fd in inherited if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    ]  # posix_spawn refuses these
    with Descriptor(os.memfd_create, "ringfeed-order", os.MFD_CLOEXEC) as file:  # an argument is at most 128 KiB
        os.fchmod(file.fileno(), 0o600)
        os.pwrite(file.fileno(), _order(module, fds, beyond, here), 0)
        return Child(
            os.posix_spawn,
            sys.executable,
            [sys.executable, *flags, *_NO_FOLDER_FIRST, "-c", _CODE, str(file.fileno())],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in (*fds, file.fileno())),  # to the same number: it is inherited
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in inherited.difference(beyond)),
            ],
            setsid=True,  # so that Ctrl-C does not reach it before it can say that it wants none
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
        )


def _order(module: str, fds: tuple[int, ...], inherited: list[int], here: str) -> bytes:
    """Return what `_CODE` reads: what to run, which descriptors to close, and where modules come from."""
    path = [str.__str__(entry) or here for entry in sys.path if isinstance(entry, str)]
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - as it stands on sys.path
    folders = [library, os.path.join(library, "lib-dynload")]  # noqa: PTH118 - likewise
    names = [name for name in sys.stdlib_module_names & sys.modules.keys() if _folder_of(name) in folders]
    order = {"path": [entry for entry in path if entry], "library": folders, "names": names, "lost": not here}
    return marshal.dumps({**order, "module": module, "fds": fds, "inherited": inherited})


def _folder_of(name: str) -> str:
    """Return the folder from which a module was imported; "" where it comes from none."""
    module = sys.modules.get(name)  # another thread may have removed it meanwhile
    file = getattr(module, "__file__", None) or ""
    return os.path.dirname(os.path.dirname(file) if hasattr(module, "__path__") else file)  # noqa: PTH120 - as above


def _inherited() -> Iterator[int]:
    """Yield the descriptors, but for the standard ones, that a program started here would be given."""
    with suppress(FileNotFoundError):  # no /proc
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names are enough
            with suppress(OSError):  # closed meanwhile
                if fd > STDERR and os.get_inheritable(fd):
                    yield fd


class Forker:
    """Starts workers by order to a forkserver, which is made anew when it has died."""

    def __init__(
        self,
        lifeline: Lifeline,
        dataset: Any = None,
        shipment: Shipment | None = None,
        source: Source | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Fork from this process, which holds ``dataset``, or from a spawned forkserver, which is sent ``shipment``.

        ``source``: what the dataset is; a spawned forkserver imports for all workers what reading it takes.
        """
        self._source = source
        self._lifeline = lifeline
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._dataset = dataset
        self._shipment = shipment
        self._statuses: dict[int, int] = {}
        self._forkserver: WorkerProcess | None = None
        self._abandoned = False
        if shipment is None:
            from ringfeed.transport.opened import refuse_to_share  # noqa: PLC0415 - of no use but here

            refuse_to_share(dataset)  # also what was opened since the loader was made
            _warn_of_threads()

    def _open(self) -> WorkerProcess:
        if self._shipment is None:
            return self._fork()
        forkserver = spawn("ringfeed.workers.forkserver", self._lifeline)
        hello = {"manifest": self._shipment.manifest(), "source": self._source}
        channels.send(forkserver.channel, hello, self._shipment.fds)
        return forkserver

    @_explained()
    def _fork(self) -> WorkerProcess:
        ours, theirs = channels.pair()
        with theirs:
            child = fork(partial(self._become_forkserver, theirs, pipes_of_launches()))
        pipes = pipes_of_launches()  # a call of Popen may have begun before the fork, and is held up by it now
        if pipes:
            channels.send(ours, {"pipes": pipes})
        return WorkerProcess(child.pid, child.pidfd, ours, child.wait, is_child=True)

    def _become_forkserver(self, theirs: Descriptor, pipes: Iterable[int]) -> NoReturn:
        """In the forked child: never come back to what the consumer was doing."""
        try:
            self._lifeline.close_others(theirs)
            close_pipes(pipes)
            os.environ.update({**dict.fromkeys(_ONE_THREAD, "1"), **os.environ})
            run_forkserver(theirs, *self._lifeline.fds, self._dataset)
        finally:
            os._exit(1)

    def start(self) -> WorkerProcess:
        """Start a worker; a forkserver that was killed is replaced."""
        for last_try in (False, True):
            try:
                return self._order()
            except (OSError, EOFError) as error:
                end = self._bury()
                # A BlockingIOError is a forkserver that does not read.
                if isinstance(error, OSError) and is_shortage(error) and not isinstance(error, BlockingIOError):
                    raise WorkerError(f"no worker can be started: {reason(error)}") from error
                if last_try or self._abandoned:
                    message = f"the process that forks workers {end} twice; use start_method='spawn'"
                    raise WorkerError(message) from error
        raise AssertionError  # the loop returns or raises

    def _order(self) -> WorkerProcess:
        """Have a worker forked. A forkserver that dies meanwhile may have forked one, which ends with its channel."""
        if self._forkserver is None:
            self._forkserver = self._open()
        ours, theirs = channels.pair()
        with theirs:
            try:
                channels.send(self._forkserver.channel, {}, (theirs.fileno(), *self._lifeline.fds))
                pid, pidfd = self._answer(self._forkserver)
            except BaseException as error:
                if not isinstance(error, (OSError, EOFError, WorkerError)):
                    self._bury()  # Ctrl-C: its answer would pass for that to the next order
                raise
        return WorkerProcess(pid, pidfd, ours, partial(self._status_of, pid, self._forkserver))

    def _answer(self, forkserver: WorkerProcess) -> tuple[int, Descriptor]:
        """Return the pid and the pidfd of the forked worker."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and not self._abandoned:
            with suppress(TimeoutError):
                message, fds = channels.receive_owned(forkserver.channel, LOOK_S)
                if "pid" in message:
                    return message["pid"], fds[0]
                self._note(message)
        if self._abandoned:
            raise EOFError
        self._bury()
        at = "unpickle the dataset and " if self._shipment is not None else ""
        text = f"the process that is to {at}fork workers has not answered for {self._timeout_s:g} s; raise timeout_s"
        raise WorkerError(text)

    def _note(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._statuses[message["ended"]] = message["status"]
        elif "broken" in message:
            failure = decode(message["broken"])
            if isinstance(failure.error, WorkerError):
                raise failure.error
            text = f"the dataset could not be unpickled for the workers: {failure.summary}"
            raise WorkerError(text) from failure.error
        elif "refused" in message:
            text = f"no worker can be started: {message['refused']}"
            raise WorkerError(text)

    def _status_of(self, pid: int, forkserver: WorkerProcess) -> int | None:
        """Return a dead worker's exit code; None when its forkserver died before it could tell."""
        deadline = time.monotonic() + BURIAL_S
        while pid not in self._statuses and self._forkserver is forkserver and time.monotonic() < deadline:
            try:
                message, _ = channels.receive_owned(forkserver.channel, LOOK_S)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                self._bury()
                break
            with suppress(WorkerError):  # the forkserver's own end: the next order will find it
                self._note(message)
        # Not told: an orphan of a forkserver that was killed. It may be ours to wait for, as PID 1 or a subreaper.
        return self._statuses.pop(pid) if pid in self._statuses else _status_of_child(pid)

    def _bury(self) -> str:
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is None:
            return "ended"
        forkserver.kill()
        forkserver.is_dead(BURIAL_S)
        return forkserver.exit_reason()

    def abandon(self) -> None:
        """Stop waiting for the forkserver; from any thread."""
        self._abandoned = True

    def close(self) -> None:
        """End the forkserver; its children end by the ring."""
        self._bury()


def _status_of_child(pid: int) -> int | None:
    """The exit code of a dead process; None where it is no child of ours, or another thread has waited for it."""
    end_group(pid)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _warn_of_threads() -> None:
    live = [name for name in frameworks_loaded() if name != "torch"]  # it computes in one thread there
    if live:
        warnings.warn(
            f"start_method='fork' after {', '.join(live)} was imported: its threads do not survive the fork, and a "
            f"worker that uses it hangs; use start_method='spawn'",
            RuntimeWarning,
            stacklevel=2,
        )

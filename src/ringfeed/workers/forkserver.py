"""The forkserver: a process that holds the dataset and forks workers from itself.

It is forked from the consumer before the first batch (backend="fork"), or spawned when the loader
is made ("forkserver"). It runs no user code but imports and the unpickling of the dataset, so that
what it forks is quiet.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed._callers import FRAMEWORKS
from ringfeed.system import channel as channels
from ringfeed.system.guard import become_worker, fork, join_family
from ringfeed.system.machine import reason
from ringfeed.transport import imports as _imports
from ringfeed.workers.worker_main import WorkerMain, live, run_spawned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ringfeed.system._system import Child, Descriptor

Private = tuple[str, str]
# What each worker needs, whatever its dataset is: imported once for all of them.
OWN = (
    "ringfeed.datasets.reader",
    "ringfeed.datasets.arrays",
    "ringfeed.datasets.indexed",
    "ringfeed.orders.rng",
    "ringfeed.transport.unpacking",
    "ringfeed.ring.mapping",
    "faulthandler",
    "encodings.ascii",
)


class ForkserverMain:
    """The loop of a forkserver process."""

    _idle_ms: int | None = None  # how long it may have no child and nothing to do; None: for ever

    def __init__(self, channel: Descriptor, lifeline: tuple[int, int], dataset: Any = None) -> None:
        """Do what is ordered through ``channel``.

        ``lifeline``: the descriptors that tie a worker to the consumer.
        """
        # If inherited, SIG_IGN would bury our children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel = channel
        self._lifeline = lifeline
        self._dataset = dataset
        self._may_fork = True
        # What imports have brought that processes cannot share.
        self._imported: set[Private] = set()
        # By pidfd, with the channel that is told of the end.
        self._children: dict[int, tuple[Child, Descriptor]] = {}

    def run(self) -> None:
        """Fork workers and report their ends, until the consumer closes the channel."""
        while True:
            poller = select.poll()
            for fd in (self._channel.fileno(), *self._children):
                poller.register(fd, select.POLLIN)
            found = poller.poll(None if self._children else self._idle_ms)
            if not found:
                return
            for fd, _ in found:
                if fd != self._channel.fileno():
                    self._note_exit(fd)
                elif not self._handle_request():
                    return

    def _handle_request(self) -> bool:
        try:
            message, fds = channels.receive(self._channel)
        except EOFError:
            return False
        except OSError as error:
            channels.send(self._channel, {"refused": reason(error)})
            return True
        return self._obey(message, fds)

    def _obey(self, message: dict[str, Any], fds: list[Descriptor]) -> bool:
        if "preload" in message:
            before = private()
            # Imports make no garbage, and a tenth of the time would go into looking for some.
            gc.disable()
            preload(**message["preload"])
            gc.enable()
            self._imported |= private() - before
            # A collection in a worker would copy every page that it looks at: tens of MB, half a
            # second.
            gc.freeze()
        elif "manifest" in message:
            move_to(**message["surroundings"])
            join_family(message["family"], "ringfeed-forkserver", fds)
            if message["manifest"] is not None:
                self._unpack(message["manifest"], fds)
        elif "pipes" in message:
            # It is loaded where pipes were found.
            from ringfeed.workers.fork import close_pipes  # noqa: PLC0415

            close_pipes(message["pipes"])
        elif self._may_fork:
            self._fork_worker(fds[0])
        else:
            return False
        return True

    def _unpack(self, manifest: bytes, fds: list[Descriptor]) -> None:
        """Unpickle the dataset, unless that or an import makes what workers must not share.

        Then each worker unpickles it for itself. Where it stays here without the dataset, this
        process must not fork.
        """
        # Imports NumPy, after the guard of a worker.
        from ringfeed.transport.unpacking import unpack  # noqa: PLC0415

        before = private() - self._imported
        frozen = {found for found in self._imported if found[0] == "generator"}
        self._dataset = unpack(manifest, [fd.fileno() for fd in fds])
        if frozen or private() - before:
            self._dataset = None
            self._may_fork = not (frozen or private() - before)
            channels.send(self._channel, {"apart": True})

    def _fork_worker(self, channel: Descriptor) -> None:
        try:
            child = fork(partial(live, channel, partial(self._work, channel)))
        except OSError as error:
            channels.send(self._channel, {"refused": reason(error)})
        else:
            self._children[child.pidfd.fileno()] = child, self._channel
            channels.send(self._channel, {"pid": child.pid}, (child.pidfd.fileno(),))

    def _work(self, channel: Descriptor) -> None:
        """In the forked child: be a worker."""
        self._channel.close()
        for child, _ in self._children.values():
            child.pidfd.close()
        become_worker(*self._lifeline)
        WorkerMain(channel, self._dataset).run()

    def _note_exit(self, pidfd: int) -> None:
        child, channel = self._children.pop(pidfd)
        status = child.wait()
        with suppress(OSError):
            channels.send(channel, {"ended": child.pid, "status": status})


def preload(packages: frozenset[str] | None, modules: Collection[str]) -> None:
    """Import what unpickling the dataset will import.

    What cannot be imported fails there, and is explained there.

    The import of a framework starts no thread, so that what is forked afterwards is whole.
    """
    _imports.expect(packages, silent=False)
    for framework in FRAMEWORKS:
        if framework in (packages or ()):
            _import(framework)
    with _imports.watched():
        for module in modules:
            _import(module)


def _import(module: str) -> None:
    with suppress(Exception):
        importlib.import_module(module)


def move_to(environment: dict[str, str], here: str, path: list[str]) -> None:
    """Take over what has changed in the consumer since this process was started."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    with suppress(OSError):  # gone
        os.chdir(here or "/")
    sys.path[:] = path
    importlib.invalidate_caches()  # they know folders as they were


def private() -> set[Private]:
    """Return what each process must have of its own: open files, threads, random generators.

    Forked workers would share the position of a file, lack the threads, and draw the same numbers.
    """
    found = {*_readable(), *(("thread", thread) for thread in _threads())}
    return found | {("generator", str(id(generator))) for generator in _generators()}


def _threads() -> Iterator[str]:
    """Name the threads of this process, those of C code too.

    A framework starts some with its first tensor.
    """
    main = threading.main_thread()
    yield from (thread.name for thread in threading.enumerate() if thread is not main)
    with suppress(FileNotFoundError):  # no /proc
        yield from os.listdir("/proc/self/task")  # noqa: PTH208 - names are enough


def _generators() -> Iterator[object]:
    """Yield the generators of random numbers that were made after the last `gc.freeze()`."""
    import random  # noqa: PLC0415 - with NumPy, which is imported after the guard of a worker
    from tempfile import _RandomNameSequence  # type: ignore[attr-defined]  # noqa: PLC0415

    from numpy.random import BitGenerator  # noqa: PLC0415 - see above

    objects = gc.get_objects()
    kinds = {
        kind for kind in set(map(type, objects)) if issubclass(kind, BitGenerator | random.Random)
    }
    kinds.discard(random.SystemRandom)
    if kinds:
        # Those that name temporary files and semaphores are made anew in another process.
        names = {
            id(vars(found).get("_rng")) for found in objects if type(found) is _RandomNameSequence
        }
        yield from (found for found in objects if type(found) in kinds and id(found) not in names)


def _readable() -> set[Private]:
    """Return each descriptor that can be read, and what it is open on.

    A log may be shared.
    """
    found = set()
    with suppress(FileNotFoundError):  # no /proc
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are enough
            with suppress(OSError):  # that of the listing itself
                if fcntl(int(fd), F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                    found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))  # noqa: PTH115 - as above
    return found


def forget_the_consumer() -> None:
    """Undo, in a process forked from the consumer, what a spawned one would not have."""
    # Our signals are not for the consumer's event loop, nor for its handlers.
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    if null:
        os.dup2(null, 0)
        os.close(null)
    # The old one may hold lines that are the consumer's.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def begin_forked(lifeline: tuple[int, int]) -> None:
    """Be a process of its own, in one that was forked from the consumer."""
    forget_the_consumer()
    become_worker(*lifeline)
    _calm_torch()


def run_forked(channel: Descriptor, lifeline: tuple[int, int], dataset: Any) -> NoReturn:
    """Run a forkserver that was forked from the consumer, to the end of this process."""

    def serve() -> None:
        begin_forked(lifeline)
        ForkserverMain(channel, lifeline, dataset).run()

    live(channel, serve)


def _calm_torch() -> None:
    """Have torch compute in one thread.

    The threads of its pool are not here, and it would wait for them.
    """
    # None: still being imported.
    set_num_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if set_num_threads is not None:
        set_num_threads(1)


def serve(kind: type[ForkserverMain], channel: Descriptor, lifeline: tuple[int, int]) -> None:
    """Run a spawned forkserver of this kind."""
    for module in OWN:
        importlib.import_module(module)
    kind(channel, lifeline).run()


main = partial(run_spawned, partial(serve, ForkserverMain))

"""Forkservers: processes that fork others from themselves, by order of the consumer.

    the warm one        imports what loaders need of installed packages, and forks
    one of a loader     unpickles its dataset, and forks its workers

A loader's is forked from the warm one, or spawned where that must not be ("process"), or forked
from the consumer with its dataset ("fork"). It runs no user code but imports and the unpickling of
the dataset, so that what it forks is quiet.

An order is a message that names a method of `ForkserverMain` and its arguments.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._callers import FRAMEWORKS
from ringfeed.system import channel as channels
from ringfeed.system._system import Child, Descriptor, close_others
from ringfeed.system.guard import become_worker, flush_output, fork
from ringfeed.transport import imports as _imports
from ringfeed.transport.unpacking import unpack
from ringfeed.workers.start import live
from ringfeed.workers.worker_main import WorkerMain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


Private = tuple[str, str]
# What most workers need beside `worker_main`, whatever their dataset is: imported once for all.
OWN = ("ringfeed.datasets.indexed", "encodings.ascii")


class ForkserverMain:
    """The loop of a forkserver process."""

    _idle_s: float | None = None  # how long it may have no child and nothing to do; None: for ever
    _may_fork = True

    def __init__(self, channel: Descriptor, lifeline: tuple[int, ...], dataset: Any = None) -> None:
        """Do what is ordered through ``channel``.

        ``lifeline``: the descriptors that tie what is forked to the consumer.
        """
        # If inherited, SIG_IGN would bury our children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel = channel
        self._lifeline = lifeline
        self._dataset = dataset
        # What imports have brought that processes cannot share.
        self._imported: set[Private] = set()
        # By pidfd, with the channel that is told of the end.
        self._children: dict[int, tuple[Child, Descriptor]] = {}

    def run(self) -> None:
        """Obey, and report the ends of children, until the consumer closes the channel."""
        while True:
            ready = channels.readable(
                (self._channel, *self._children), None if self._children else self._idle_s
            )
            if not ready:
                return
            for fd in ready:
                if fd != self._channel.fileno():
                    self._note_exit(fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Do what the next message orders; False where this process is to end."""
        try:
            order, fds = channels.receive(self._channel)
        except EOFError:
            return False
        except OSError as error:
            channels.send(self._channel, {"refused": _reason(error)})
            return False
        return getattr(self, order.pop("do"))(fds, **order) is not False

    def _fork(self, channel: Descriptor, body: Callable[[], None]) -> None:
        """Fork a process; through its own channel the consumer is told its pid, and its end."""
        child = fork(partial(live, channel, body))
        self._children[child.pidfd.fileno()] = child, channel
        answer = {"pid": child.pid, "holds_dataset": self._dataset is not None}
        with suppress(ConnectionError):  # the order was given up; the child will find it so
            channels.send(channel, answer, (child.pidfd.fileno(),))

    def _note_exit(self, pidfd: int) -> None:
        child, channel = self._children.pop(pidfd)
        with suppress(OSError):
            channels.send(channel, {"status": child.wait()})

    # ---- orders to both ----

    def preload(self, _: object, packages: frozenset[str] | None, modules: Collection[str]) -> None:
        """Import what unpickling the dataset will import, and the frameworks among ``packages``.

        What cannot be imported fails in the unpickling, and is explained there. The import of a
        framework starts no thread, so that what is forked afterwards is whole.
        """
        _imports.expect(packages, silent=False)
        if packages or modules:
            before = private()
            # Imports make no garbage, and a tenth of the time would go into looking for some.
            gc.disable()
            for framework in FRAMEWORKS:
                if framework in (packages or ()):
                    _import(framework)
            with _imports.watched():
                for module in modules:
                    _import(module)
            gc.enable()
            self._imported |= private() - before
        # A collection in a worker would copy every page that it looks at: tens of MB, half a
        # second.
        gc.freeze()

    # ---- orders to the warm one ----

    def warm_up(self, fds: list[Descriptor], idle_s: float, **imports: Any) -> bool:
        """Preload for all loaders; print where the consumer prints now.

        It ends where imports bring what each loader would share with the others.
        """
        self._idle_s = idle_s
        _print_to(*fds)
        for fd in fds:
            # Now: what an import raises may keep this frame alive, and the user's pipes with it.
            fd.close()
        self.preload(None, **imports)
        flush_output()
        with Descriptor(os.open, os.devnull, os.O_WRONLY) as nowhere:
            _print_to(nowhere, nowhere)
        if self._imported:
            unfit = imports["modules"] or sorted(imports["packages"] or ())
            channels.send(self._channel, {"unfit": unfit})
        return not self._imported

    def fork_forkserver(self, fds: list[Descriptor]) -> None:
        """Fork a loader's forkserver; where that fails, the loader finds its channel closed."""
        with suppress(OSError):
            self._fork(fds[0], partial(self._serve_loader, *fds))

    def _serve_loader(self, *fds: Descriptor) -> None:
        """In the forked child: have nothing of the warm forkserver's but what it has imported."""
        channel, parent, writer, *output = fds
        close_others(*fds)
        for inherited in self._lifeline:
            os.close(inherited)
        _print_to(*output)
        for fd in output:
            fd.close()
        lifeline = parent.detach(), writer.detach()
        become_worker(*lifeline)
        ForkserverMain(channel, lifeline).run()

    # ---- orders to a loader's ----

    def take_dataset(
        self,
        fds: list[Descriptor],
        surroundings: dict[str, Any],
        family: dict[str, Any] | None,
        manifest: bytes | None,
    ) -> None:
        """Unpickle the dataset, unless that or an import makes what workers must not share.

        Then each worker unpickles it for itself. Where it stays here without the dataset, this
        process must not fork.
        """
        _move_to(**surroundings)
        if family is not None:
            from ringfeed.system.interpreter import join_family  # noqa: PLC0415 - with multiprocessing only

            join_family(family, "ringfeed-forkserver", fds)
        if manifest is None:
            return
        before = private() - self._imported
        frozen = {found for found in self._imported if found[0] == "generator"}
        self._dataset = unpack(manifest, [fd.fileno() for fd in fds])
        if frozen or private() - before:
            self._dataset = None
            self._may_fork = not (frozen or private() - before)
            if not self._may_fork:
                channels.send(self._channel, {"apart": True})

    def close_pipes(self, _: object, pipes: set[int]) -> None:
        """Close what a process that was forked from the consumer has of other threads' pipes."""
        from ringfeed.workers.fork import close_pipes  # noqa: PLC0415 - it is loaded there

        close_pipes(pipes)

    def fork_worker(self, fds: list[Descriptor]) -> bool:
        """Fork a worker, unless it would share what it must not."""
        (channel,) = fds
        if self._may_fork:
            try:
                self._fork(channel, partial(self._work, channel))
            except OSError as error:
                with suppress(ConnectionError):  # likewise
                    channels.send(channel, {"refused": _reason(error)})
        return self._may_fork

    def _work(self, channel: Descriptor) -> None:
        """In the forked child: be a worker."""
        self._channel.close()
        for child, others in self._children.values():
            child.pidfd.close()
            others.close()
        become_worker(*self._lifeline)
        WorkerMain(channel, self._dataset).run()


def _reason(error: OSError) -> str:
    from ringfeed.system.machine import reason  # noqa: PLC0415 - no worker needs it

    return reason(error)


def _print_to(output: Descriptor, errors: Descriptor) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)


def _import(module: str) -> None:
    with suppress(Exception):
        importlib.import_module(module)


def _move_to(environment: dict[str, str], here: str, path: list[str]) -> None:
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


def main(channel: Descriptor, lifeline: tuple[int, ...]) -> None:
    """Run a spawned forkserver."""
    for module in OWN:
        importlib.import_module(module)
    ForkserverMain(channel, lifeline).run()

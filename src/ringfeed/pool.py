"""Who fills the slots: worker processes that are watched and replaced, threads, or the consumer itself.

Each pool answers the loader's few questions in the same words:

    start(dataset, version)   begin to work
    update(dataset, version)  batches bound from now on name this version
    step()                    do some work in the calling thread, if that is where it is done
    failure                   the error that ended the pool, or None
    stalled(...)              what the workers are doing, for a StallError
    stop()                    end all of it, within about a second
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ringfeed import _ring
from ringfeed import channel as channels
from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.failure import decode
from ringfeed.launch import Forker, Spawner, Tether, Worker
from ringfeed.ship import Shipment, pack, ship
from ringfeed.source import Recipe, Source
from ringfeed.worker import serve

if TYPE_CHECKING:
    from ringfeed.segment import Segment

STOP_S = 1.0
STACK_S = 0.5
EARLY_DEATHS = 3


@dataclass(frozen=True)
class Crew:
    """What every pool is made of."""

    ring: _ring.Ring
    segment: Segment
    recipe: Recipe
    workers: int
    start_method: str = "spawn"
    max_restarts: int | None = None


class Pool(Protocol):
    """What the loader asks of its workers."""

    failure: RingfeedError | None
    restarts: int

    def start(self, dataset: Any, version: int) -> None:
        """Begin to work."""

    def update(self, dataset: Any, version: int) -> bool:
        """Make batches of ``version`` possible; False when the dataset has not changed."""

    def step(self) -> bool:
        """Work in the calling thread; False when there was nothing to do, or others do it."""

    def death_of(self, batch: int, row: int) -> str:
        """Say how the last worker died that tried this row."""

    def stalled(self, *, kill: bool) -> list[str]:
        """Describe each worker, with its Python stack; kill those inside a sample if asked."""

    def stop(self) -> None:
        """End all workers."""


class InProcess:
    """The consumer fills the batch it is about to take; the same code path, without other processes."""

    def __init__(self, crew: Crew) -> None:
        """Fill on demand."""
        self.failure: RingfeedError | None = None
        self.restarts = 0
        self._crew = crew
        self._end = _ring.WorkerEnd(crew.ring, 0)
        self._source: Source

    def start(self, dataset: Any, version: int) -> None:  # noqa: ARG002 - there is one version: the object itself
        """Keep the dataset."""
        crew = self._crew
        self._source = Source(dataset, crew.recipe, self._end, crew.ring, interruptible=True)

    def update(self, dataset: Any, version: int) -> bool:  # noqa: ARG002 - see start
        """Nothing to send: the dataset is this process's own."""
        return False

    def step(self) -> bool:
        """Fill one ticket, if there is one."""
        if self._end.claim(0) != _ring.TAKEABLE:
            return False
        try:
            filled = self._source.fill()
        except BaseException:
            self._crew.ring.reap(0, blame=False)  # Ctrl-C: the ticket is nobody's fault, and will be run again
            raise
        self._end.publish(cancelled=not filled)
        return True

    def death_of(self, batch: int, row: int) -> str:  # noqa: ARG002 - nobody dies here
        """Never asked."""
        return ""

    def stalled(self, *, kill: bool) -> list[str]:  # noqa: ARG002 - there is nobody to kill
        """There are no workers to describe."""
        return []

    def stop(self) -> None:
        """Nothing runs by itself."""


class Threads:
    """Worker threads of this process: for datasets that release the GIL, or cannot be pickled."""

    def __init__(self, crew: Crew) -> None:
        """Prepare ``crew.workers`` threads."""
        self.failure: RingfeedError | None = None
        self.restarts = 0
        self._crew = crew
        self._threads: list[threading.Thread] = []

    def start(self, dataset: Any, version: int) -> None:  # noqa: ARG002 - there is one version: the object itself
        """Start the threads; they never keep the interpreter alive."""
        for number in range(self._crew.workers):
            end = _ring.WorkerEnd(self._crew.ring, number)
            source = Source(dataset, self._crew.recipe, end, self._crew.ring)
            thread = threading.Thread(target=serve, args=(end, source), name=f"ringfeed-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def update(self, dataset: Any, version: int) -> bool:  # noqa: ARG002 - see start
        """Nothing to send: the threads see the same object."""
        return False

    def step(self) -> bool:
        """The threads work by themselves."""
        return False

    def death_of(self, batch: int, row: int) -> str:  # noqa: ARG002 - threads do not die
        """Never asked."""
        return ""

    def stalled(self, *, kill: bool) -> list[str]:  # noqa: ARG002 - a thread cannot be killed
        """Describe each thread."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way to another thread's stack
        lines = []
        for number, thread in enumerate(self._threads):
            stack = traceback.format_stack(frames[thread.ident]) if thread.ident in frames else []
            lines.append(_describe(self._crew.ring, number, f"thread {thread.name}", "".join(stack)))
        return lines

    def stop(self) -> None:
        """Wait a little for the threads; one inside a long sample ends after it."""
        self._crew.ring.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(STOP_S / len(self._threads))


class Processes:
    """Worker processes, watched by a thread that reaps the dead and starts others in their place."""

    def __init__(self, crew: Crew) -> None:
        """Prepare ``crew.workers`` processes."""
        self.failure: RingfeedError | None = None
        self.restarts = 0
        self._crew = crew
        self._tether = Tether()
        self._launcher: Spawner | Forker
        self._workers: dict[int, Worker] = {}
        self._stacks: dict[int, int] = {}  # a memfd a worker, for its Python stack
        self._shipment: Shipment | None = None
        self._version = 0
        self._starts = [0] * crew.workers
        self._claims_before = [0] * crew.workers
        self._early_deaths = 0
        self._deaths: dict[tuple[int, int], str] = {}
        self._stopping = False
        self._lock = threading.RLock()  # workers, versions and starts change together
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watcher = threading.Thread(target=self._watch, name="ringfeed-watcher", daemon=True)

    # ---- starting ----

    def start(self, dataset: Any, version: int) -> None:
        """Start the processes first, so that their interpreters come up while the dataset is packed."""
        self._version = version
        try:
            with self._lock:
                if self._crew.start_method == "spawn":
                    self._launcher = Spawner(self._tether)
                    self._launch_all()
                    self._shipment = ship(pack(dataset))
                else:
                    if self._crew.start_method == "forkserver":
                        self._shipment = ship(pack(dataset))
                    self._launcher = Forker(self._tether, dataset, self._shipment)
                    self._launch_all()
                for number, worker in self._workers.items():
                    self._introduce(number, worker)
        except BaseException:
            self.stop()
            raise
        self._watcher.start()

    def _launch_all(self) -> None:
        for number in range(self._crew.workers):
            self._workers[number] = self._launch()

    def _launch(self) -> Worker:
        ours, theirs = channels.pair()
        with theirs:
            try:
                return self._launcher.start(theirs, ours)
            except BaseException:
                ours.close()
                raise

    def _introduce(self, number: int, worker: Worker) -> None:
        """Send the hello message: the segment, the recipe, and the dataset unless it was forked along."""
        if number not in self._stacks:
            self._stacks[number] = os.memfd_create("ringfeed-stack", os.MFD_CLOEXEC)
        segment = self._crew.segment
        forked = self._crew.start_method != "spawn" and self._version == 0
        hello = {
            "recipe": self._crew.recipe,
            "number": number,
            "sizes": segment.sizes,
            "version": self._version,
            "manifest": None if forked or self._shipment is None else self._shipment.manifest(),
            "seed": self._crew.recipe.seed,
            "start": self._starts[number],
        }
        fds = () if hello["manifest"] is None or self._shipment is None else self._shipment.fds
        self._starts[number] += 1
        self._claims_before[number] = self._crew.ring.report(number)[-1]
        with suppress(OSError):  # dead already: the watcher will see
            channels.send(worker.channel, hello, (segment.control_fd, segment.slots_fd, self._stacks[number], *fds))

    def update(self, dataset: Any, version: int) -> bool:
        """Send every worker what has changed in the dataset; it arrives before the first batch that asks for it."""
        shipment = ship(pack(dataset), self._shipment)
        if shipment is None:
            return False
        with self._lock:
            previous, self._shipment, self._version = self._shipment, shipment, version
            for worker in self._workers.values():
                try:
                    channels.send(worker.channel, {"version": version, "manifest": shipment.manifest()}, shipment.fds)
                except BlockingIOError:  # it has not read for hundreds of versions
                    worker.kill()
                except OSError:  # dead: its replacement starts with this version
                    pass
            if previous is not None:
                previous.close()
        return True

    # ---- watching ----

    def _watch(self) -> None:
        while not self._stopping and self.failure is None:
            poller = select.poll()
            with self._lock:
                pidfds = {worker.pidfd: number for number, worker in self._workers.items()}
            for fd in (self._wake_fd, *pidfds):
                poller.register(fd, select.POLLIN)
            try:
                for fd, _ in poller.poll():
                    if fd in pidfds and not self._stopping:
                        self._replace(pidfds[fd])
            except BaseException as error:  # noqa: BLE001 - the consumer must hear of it
                self._fail(error)

    def _replace(self, number: int) -> None:
        """Take back what a dead worker had claimed, and start another in its place."""
        with self._lock:
            worker = self._workers.pop(number)
            last_words = self._last_words(worker)
            epitaph = worker.epitaph()
            _, _, _, batch, row, given_up = self._crew.ring.reap(number, blame=True)
            if given_up:
                self._deaths[batch, row] = epitaph
            if last_words is not None:
                raise last_words
            self._count_death(number, epitaph)
            self._workers[number] = self._launch()
            self._introduce(number, self._workers[number])

    def _count_death(self, number: int, epitaph: str) -> None:
        claimed = self._crew.ring.report(number)[-1] != self._claims_before[number]
        self._early_deaths = 0 if claimed else self._early_deaths + 1
        self.restarts += 1
        if self._early_deaths >= EARLY_DEATHS:
            message = (
                f"{EARLY_DEATHS} workers in a row ended before they filled anything; the last {epitaph}; "
                f"look at its output above, or try workers=0"
            )
            raise WorkerError(message)
        most = self._crew.max_restarts
        if most is not None and self.restarts > most:
            message = f"a worker {epitaph}, and max_restarts={most} are used up; raise it or look at the dataset"
            raise WorkerError(message)

    @staticmethod
    def _last_words(worker: Worker) -> WorkerError | None:
        """Return what a dead worker said of an error outside any sample."""
        worker.channel.setblocking(False)  # noqa: FBT003 - the name says it
        try:
            message, _ = channels.receive(worker.channel)
        except (OSError, EOFError):
            return None
        failure = decode(message["broken"])
        error = WorkerError(f"a worker could not open the dataset: {failure.summary}; try workers=0")
        error.__cause__ = failure.error
        return error

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, RingfeedError):
            cause = error
            error = WorkerError(f"a worker could not be replaced: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        self.failure = error
        self._crew.ring.alarm()

    # ---- answers ----

    def step(self) -> bool:
        """The processes work by themselves."""
        return False

    def death_of(self, batch: int, row: int) -> str:
        """Say how the last worker died that tried this row."""
        with self._lock:
            return self._deaths.pop((batch, row), "ended")

    def stalled(self, *, kill: bool) -> list[str]:
        """Describe each worker; with ``kill``, end those inside a sample, whose rows then run again."""
        with self._lock:
            lines = [self._stalled(number, worker) for number, worker in sorted(self._workers.items())]
            for number, worker in self._workers.items():
                if kill and self._crew.ring.report(number)[1]:
                    worker.kill()
        return lines

    def _stalled(self, number: int, worker: Worker) -> str:
        stack = self._stack_of(number, worker)
        return _describe(self._crew.ring, number, f"pid {worker.pid}", stack)

    def _stack_of(self, number: int, worker: Worker) -> str:
        """Have the worker write its Python stack, in C, into its memfd."""
        if self._crew.ring.report(number)[-1] == self._claims_before[number]:
            return ""  # still starting: it would die of the signal
        fd = self._stacks[number]
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)  # its descriptor shares our offset
        worker.kill(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_S
        text = b""
        while time.monotonic() < deadline:
            time.sleep(0.02)
            before, text = text, os.pread(fd, 1 << 16, 0)
            if text and text == before:
                break
        return text.decode(errors="replace")

    # ---- stopping ----

    def stop(self) -> None:
        """Let idle workers leave, end the others by SIGKILL, and close everything; once."""
        if self._stopping:
            return
        self._stopping = True
        self._crew.ring.stop()
        os.eventfd_write(self._wake_fd, 1)
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            self._watcher.join()
        with self._lock:
            self._bury_all()
        for fd in (*self._stacks.values(), self._wake_fd):
            os.close(fd)
        if self._shipment is not None:
            self._shipment.close()
        self._tether.close()

    def _bury_all(self) -> None:
        deadline = time.monotonic() + STOP_S
        for worker in self._workers.values():
            worker.channel.close()  # ends one that still waits for its hello
        for worker in self._workers.values():
            if not worker.is_dead(max(0.0, deadline - time.monotonic())):
                worker.kill()
        for worker in self._workers.values():
            worker.is_dead(STOP_S)
            worker.epitaph()
        self._workers.clear()
        if hasattr(self, "_launcher"):
            self._launcher.close()


def _describe(ring: _ring.Ring, number: int, who: str, stack: str) -> str:
    """Say what one worker is at, with its stack indented below."""
    index, since_ns = ring.report(number)[:2]
    seconds = (_ring.now_ns() - since_ns) / 1e9
    doing = "waits for a slot" if not since_ns else f"has been at it for {seconds:.1f} s"
    where = "" if index is None else f" inside dataset[{index}],"
    indented = "".join(f"\n    {line}" for line in stack.strip().splitlines())
    return f"worker {number} ({who}):{where} {doing}{indented}"

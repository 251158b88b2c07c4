"""A worker process as the consumer sees it, and what starts it.

Backend="spawn": a fresh interpreter.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._failure import decode
from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.system import channel as channels
from ringfeed.system._system import Child, Descriptor, wait_for
from ringfeed.system.guard import Lifeline
from ringfeed.system.interpreter import explained, start_interpreter
from ringfeed.system.memory import keep_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.transport.shared_dataset import SharedDataset


END_S = 1.0  # what SIGKILL may take, which is milliseconds
NOT_FORKED = 0  # the pid of a process that another is to fork yet
REPORT_S = 5.0  # what the report of an end may take, which is a wake-up on a machine of its own


class WorkerProcess:
    """A worker process, seen from the consumer: with what a pool notes of it, see `Roster`."""

    number = 0
    """Its id in the ring."""
    stream = 0
    """What it reads of iterables, also its place among the workers, from 1 on."""
    started_ns = 0
    """When it was sent its first message."""
    samples_before = tickets_before = 0
    """What workers had filled and claimed that had the id before."""
    is_leaving = False
    """Whether it was asked to leave, and is not replaced."""
    is_killed = False
    """Whether it was killed since it was stuck, or could not be told."""
    killed_inside: int | None = None
    """The sample that it was killed in."""
    is_quarantined = False
    """Whether it is not dead all the same, and replaced: its id stays its own."""

    def __init__(
        self,
        pid: int,
        pidfd: Descriptor,
        channel: Descriptor,
        *,
        child: Child | None = None,
        parent: WorkerProcess | None = None,
    ) -> None:
        """Know a child of this process, or one of a ``parent`` that tells how it ended."""
        self.pid = pid
        self._pidfd = pidfd
        self.channel = channel
        self._child = child
        self.parent = parent
        self.told: dict[str, Any] = {}
        """What it has said of itself, and its parent of its end."""

    @classmethod
    def of_child(cls, child: Child, channel: Descriptor) -> WorkerProcess:
        """Return a child of this process."""
        return cls(child.pid, child.pidfd, channel, child=child)

    @property
    def pidfd(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._pidfd.fileno()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing happens when the process is dead, or closed."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, number)

    def is_dead(self, timeout_s: float | None = 0.0) -> bool:
        """Wait for the end of the process; None: for as long as it takes."""
        if self.pidfd < 0:
            return True  # and buried
        return bool(channels.readable([self.pidfd], timeout_s))

    def exit_reason(self) -> str:
        """Hear the last words of a dead process, say how it ended, and close its descriptors.

        A thread waits for one that SIGKILL does not end.
        """
        if self.pidfd < 0:
            return "ended"
        code = None
        try:
            if self.is_dead():
                code = self._exit_code()
            elif self._child is not None:
                with suppress(RuntimeError):
                    # No room for a thread, or the interpreter's end: a zombie is left.
                    threading.Thread(
                        target=self._child.wait, name="ringfeed-reaper", daemon=True
                    ).start()
        finally:
            self._pidfd.close()
            self.channel.close()
        if code is None:
            return "ended"
        # But for real-time signals.
        names = {number.value: number.name for number in signal.Signals}
        return (
            f"exited with status {code}"
            if code >= 0
            else f"was killed by {names.get(-code, f'signal {-code}')}"
        )

    def _exit_code(self) -> int | None:
        with suppress(OSError, EOFError):  # there is no more
            while "status" not in self.told and self.channel.fileno() >= 0:
                wait_s = REPORT_S if self._child is None else 0
                self.told.update(channels.receive(self.channel, wait_s)[0])
        if self._child is not None:
            return self._child.wait()
        if "status" in self.told:
            return int(self.told["status"])
        # An orphan of a forkserver that was killed. It may be ours to wait for, as PID 1 or a
        # subreaper, once its parent is dead: the channel closes before.
        if self.parent is not None:
            self.parent.is_dead(END_S)
        return wait_for(self.pid)

    def end(self, timeout_s: float) -> str:
        """Kill it, and say how it ended."""
        self.kill()
        self.is_dead(timeout_s)
        return self.exit_reason()

    def send(self, message: object, fds: tuple[int, ...]) -> None:
        """Send a message.

        A worker that cannot take it, and would wait for it, is killed; its replacement gets it.
        """
        try:
            channels.send(self.channel, message, fds)
        except OSError:
            self.kill()

    def startup_error(self) -> WorkerError | None:
        """Return the error outside any sample that a worker had before it died, if any."""
        if "broken" not in self.told:
            return None
        failure = decode(self.told["broken"])
        if isinstance(failure.error, RingfeedError):
            error = WorkerError(f"a worker could not start: {failure.error}")
        else:
            error = WorkerError(
                f"a worker could not open the dataset: {failure.summary}; try workers=0"
            )
        error.__cause__ = failure.error
        return error


class Launcher(ABC):
    """Starts worker processes; each start method has its own.

    What it owns ends when nothing refers to it any more.
    """

    sends_dataset = True  # whether the dataset is sent in shared memory
    holds_dataset = False  # whether a worker that is started has the dataset already
    descriptors = 0  # that it has when it has begun

    def __init__(self) -> None:
        """Start nothing yet."""
        keep_standard_descriptors()
        self.lifeline = Lifeline()

    def begin(self, workers: int) -> None:  # noqa: B027 - not every start method can
        """Begin to start so many workers, without the dataset."""

    def hold(self, dataset: Any, sent: SharedDataset | None) -> None:  # noqa: B027
        # Not every start method can.
        """Have the workers that are started from now on hold the dataset, if possible."""

    @abstractmethod
    def start(self) -> WorkerProcess:
        """Start a worker; its pidfd proves its death, even where its parent is another process."""

    def forkservers(self) -> dict[int, str]:
        """Return the processes that workers are forked from, and what they are called."""
        return {}

    def request_stop(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Stop waiting; from any thread."""

    def close(self) -> None:
        """End what belongs to no worker, and with the lifeline all workers."""
        self.lifeline.close()


class Spawner(Launcher):
    """Starts each worker as a fresh interpreter."""

    _begun: Sequence[WorkerProcess] = ()

    def __init__(self, module: str = "ringfeed.workers.worker_main") -> None:
        """Start none yet; ``module``: whose ``main`` they run."""
        super().__init__()
        self._module = module

    def begin(self, workers: int) -> None:
        """Start the first workers now.

        Their interpreters come up while the dataset is packed.
        """
        self._begun = [spawn(self._module, self.lifeline) for _ in range(workers)]

    def start(self) -> WorkerProcess:
        """Return a worker that has begun, or start one."""
        if not self._begun:
            return spawn(self._module, self.lifeline)
        worker, *self._begun = self._begun
        return worker

    def close(self) -> None:
        """End what has begun and is no worker yet."""
        self._begun = ()
        super().close()


@explained()
def spawn(module: str, lifeline: Lifeline) -> WorkerProcess:
    """Run ``main(channel, lifeline)`` of a module in a fresh interpreter: see `start`."""
    ours, theirs = channels.pair()
    with theirs:
        fds = theirs.fileno(), *lifeline.fds
        process = start_interpreter("ringfeed.workers.start", fds, module)
    return WorkerProcess.of_child(process, ours)


def terminate_all(workers: list[WorkerProcess], timeout_s: float) -> None:
    """End the workers.

    SIGKILL those that do not leave within ``timeout_s``, and wait as long again.
    """
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        worker.channel.shutdown()  # ends one that still waits for its first message
    for worker in workers:
        if not worker.is_dead(max(0.0, deadline - time.monotonic())):
            worker.kill()
    deadline += timeout_s
    for worker in workers:
        worker.is_dead(max(0.0, deadline - time.monotonic()))
        worker.exit_reason()

"""A worker process as the consumer sees it, and what starts it.

Backend="spawn": a fresh interpreter.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._failure import decode
from ringfeed.errors import RingfeedError, WorkerError
from ringfeed.system import channel as channels
from ringfeed.system.guard import Lifeline
from ringfeed.system.interpreter import explained, start_interpreter
from ringfeed.system.memory import keep_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.system._system import Child, Descriptor
    from ringfeed.transport.shared_dataset import SharedDataset


class WorkerProcess:
    """A worker process, seen from the consumer."""

    def __init__(
        self,
        pid: int,
        pidfd: Descriptor,
        channel: Descriptor,
        status: Callable[[], int | None],
        *,
        is_child: bool = False,
    ) -> None:
        """Know a process by its pid and pidfd.

        ``status`` gives its exit code once it is dead, if that is known.
        """
        self.pid = pid
        self._pidfd = pidfd
        self.channel = channel
        self._status = status
        self._is_child = is_child

    @classmethod
    def of_child(cls, child: Child, channel: Descriptor) -> WorkerProcess:
        """Return a child of this process."""
        return cls(child.pid, child.pidfd, channel, child.wait, is_child=True)

    @property
    def pidfd(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._pidfd.fileno()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing happens when the process is dead, or closed."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, number)

    def is_dead(self, timeout_s: float = 0.0) -> bool:
        """Wait for the end of the process."""
        if self.pidfd < 0:
            return True  # and buried
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def exit_reason(self) -> str:
        """Say how a dead process ended, and close its descriptors.

        A thread waits for one that SIGKILL does not end.
        """
        if self.pidfd < 0:
            return "ended"
        try:
            dead = self.is_dead()
            code = self._status() if dead else None
            if self._is_child and not dead:
                with suppress(RuntimeError):
                    # No room for a thread, or the interpreter's end: a zombie is left.
                    threading.Thread(
                        target=self._status, name="ringfeed-reaper", daemon=True
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
        """Return the error outside any sample that a dead worker has sent, if any."""
        try:
            message, _ = channels.receive(self.channel, 0)
        except (OSError, EOFError):
            return None
        failure = decode(message["broken"])
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
    """Run ``module.main(channel, parent, lifeline)`` in a fresh interpreter like this one."""
    ours, theirs = channels.pair()
    with theirs:
        process = start_interpreter(module, (theirs.fileno(), *lifeline.fds))
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

"""Launchers that order their workers from a forkserver, a process that forks them from itself (`main`).

Forker        the orders and the answers; a forkserver that has died is replaced
  Forkserver  it is spawned, early: it imports while the user's program goes on, and is sent the dataset later
  Fork        it is forked from this process, which holds the dataset (see `fork`)
"""

from __future__ import annotations

import math
import time
import weakref
from abc import abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._failure import Failure, decode
from ringfeed.errors import ClosedError, WorkerError
from ringfeed.system import channel as channels
from ringfeed.system._system import wait_for
from ringfeed.system.interpreter import family, surroundings
from ringfeed.system.machine import is_shortage, reason
from ringfeed.workers import warm
from ringfeed.workers.process import Launcher, WorkerProcess, spawn

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringfeed.system._system import Descriptor
    from ringfeed.transport.shared_dataset import SharedDataset
    from ringfeed.workers.warm import Warm

LOOK_S = 0.1  # between two looks at whether the caller still waits
END_S = 1.0
ARRIVAL_S = (
    10.0  # for an interpreter to come up, on whatever machine, and however short a sample's time is
)
CLOSED = "this loader is closed; make a new one"
MOST_WAITING = (
    8  # forkservers that wait for a first epoch: each is a process, and has four descriptors here
)


class NoAnswerError(WorkerError):
    """A process that is to fork does not answer in time."""

    def __init__(self, at: str, timeout_s: float) -> None:
        super().__init__(
            f"the process that is to {at}fork workers has not answered for {timeout_s:g} s; raise "
            "timeout_s"
        )


class Forker(Launcher):
    """Starts workers by order to a forkserver, which is made anew when it has died."""

    holds_dataset = True
    _at = ""  # what the forkserver does before it forks, in the words of an error

    def __init__(self, timeout_s: float | None = None) -> None:
        """Wait so long for an answer of the forkserver."""
        super().__init__()
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._statuses: dict[int, int] = {}
        self._forkserver: WorkerProcess | None = None
        self._is_stopping = False

    @abstractmethod
    def _open(self) -> WorkerProcess:
        """Make a forkserver that has what its workers need."""

    def start(self) -> WorkerProcess:
        """Start a worker; a forkserver that was killed is replaced."""
        held = self.holds_dataset
        for last_try in (False, True):
            try:
                return self._order()
            except (OSError, EOFError) as error:
                end = self._end_forkserver()
                if held and not self.holds_dataset:
                    return (
                        self.start()
                    )  # by one that does not unpickle the dataset: see `ForkserverMain._unpack`
                # A BlockingIOError is a forkserver that does not read.
                if (
                    isinstance(error, OSError)
                    and is_shortage(error)
                    and not isinstance(error, BlockingIOError)
                ):
                    raise WorkerError(f"no worker can be started: {reason(error)}") from error
                if last_try or self._is_stopping:
                    message = f"the process that forks workers {end} twice; use backend='spawn'"
                    raise WorkerError(message) from error
        raise AssertionError  # the loop returns or raises

    def _order(self) -> WorkerProcess:
        """Have a worker forked. A forkserver that dies meanwhile may have forked one, which ends with its channel."""
        if self._forkserver is None:
            self._forkserver = self._open()
        ours, theirs = channels.pair()
        with theirs:
            try:
                with suppress(ConnectionError):  # it has ended, and may have said why
                    channels.send(self._forkserver.channel, {}, (theirs.fileno(),))
                pid, pidfd = self._answer(self._forkserver.channel)
            except BaseException as error:
                if not isinstance(error, (OSError, EOFError, WorkerError)):
                    self._end_forkserver()  # Ctrl-C: its answer would pass for that to the next order
                raise
        return WorkerProcess(pid, pidfd, ours, partial(self._status_of, pid, self._forkserver))

    def _answer(self, channel: Descriptor, least_s: float = 0.0) -> tuple[int, Descriptor]:
        """Return the pid and the pidfd of what was forked; wait for it for ``timeout_s``, and at least so long."""
        wait_s = max(self._timeout_s, least_s)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not self._is_stopping:
            with suppress(TimeoutError):
                message, fds = channels.receive(channel, LOOK_S)
                if "pid" in message:
                    return message["pid"], fds[0]
                self._note(message)
        if self._is_stopping:
            raise ClosedError(CLOSED)
        self._end_forkserver()
        raise NoAnswerError(self._at, wait_s)

    def _note(self, message: dict[str, Any]) -> None:
        if "apart" in message:
            self.holds_dataset = False
        elif "ended" in message:
            self._statuses[message["ended"]] = message["status"]
        elif "broken" in message:
            raise _broken(decode(message["broken"]))
        elif "refused" in message:
            text = f"no worker can be started: {message['refused']}"
            raise WorkerError(text)

    def _status_of(self, pid: int, forkserver: WorkerProcess) -> int | None:
        """Return a dead worker's exit code; None when its forkserver died before it could tell."""
        deadline = time.monotonic() + END_S
        while (
            pid not in self._statuses
            and self._forkserver is forkserver
            and time.monotonic() < deadline
        ):
            try:
                message, _ = channels.receive(forkserver.channel, LOOK_S)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                self._end_forkserver()
                break
            with suppress(WorkerError):  # the forkserver's own end: the next order will find it
                self._note(message)
        # Not told: an orphan of a forkserver that was killed. It may be ours to wait for, as PID 1
        # or a subreaper.
        return self._statuses.pop(pid) if pid in self._statuses else wait_for(pid)

    def _end_forkserver(self) -> str:
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is None:
            return "ended"
        forkserver.kill()
        forkserver.is_dead(END_S)
        return forkserver.exit_reason()

    def forkservers(self) -> dict[int, str]:
        """Return the forkserver, if there is one."""
        forkserver = self._forkserver
        return {} if forkserver is None else {forkserver.pid: "forkserver"}

    def request_stop(self) -> None:
        """Stop waiting for the forkserver; from any thread."""
        self._is_stopping = True

    def close(self) -> None:
        """End the forkserver; its children end by the ring."""
        self._end_forkserver()
        super().close()


class Forkserver(Forker):
    """Has workers forked by a forkserver that is spawned."""

    descriptors = 5  # three of the lifeline, a channel and a pidfd
    _is_alone = False  # whether no warm forkserver has to do with it
    _at = "unpickle the dataset and "

    def __init__(
        self,
        timeout_s: float | None = None,
        packages: frozenset[str] | None = None,
        modules: Collection[str] = (),
    ) -> None:
        """Have the forkserver import ``modules``, and the frameworks among ``packages``, whose objects samples hold."""
        super().__init__(timeout_s)
        self._preload = {"packages": packages, "modules": sorted(modules)}
        self._sent: SharedDataset | None = None
        self._begun: WorkerProcess | None = None  # a forkserver that has no dataset yet
        self._ordered: tuple[Descriptor, Warm] | None = (
            None  # the channel to one, and the warm one that is to fork it
        )

    @classmethod
    def begun(cls, *terms: Any) -> Forkserver | None:
        """Return one that starts before the first epoch; None where many others wait for theirs."""
        if len(_waiting) >= MOST_WAITING:
            return None
        forkserver = cls(*terms)
        _waiting.add(forkserver)
        forkserver.begin()
        return forkserver

    def begin(self, workers: int = 0) -> None:  # noqa: ARG002 - it forks as many as are asked for
        """Start the forkserver, unless it has begun: it imports while this process does something else."""
        if self._begun is None and self._ordered is None:
            # Where something opens a file, each worker imports for itself: see
            # `ForkserverMain._unpack`.
            imports = self._preload if self.holds_dataset else {**self._preload, "modules": ()}
            self._ordered = None if self._is_alone else warm.begin(self.lifeline, **imports)
            if self._ordered is not None:
                channel = self._ordered[0]
            else:
                self._begun = spawn("ringfeed.workers.forkserver", self.lifeline)
                channel = self._begun.channel
            with suppress(OSError):  # it is dead: `start` will find out
                channels.send(channel, {"preload": imports})

    def hold(self, dataset: Any, sent: SharedDataset | None) -> None:  # noqa: ARG002 - it is sent
        """Have the dataset unpickled in the forkserver, once for all workers."""
        self._sent = sent

    def start(self) -> WorkerProcess:
        """Start a worker. Where the forkserver hangs in an import or in the dataset, each worker does both for itself.

        There it is watched: see `Watchdog`.
        """
        try:
            return super().start()
        except NoAnswerError:
            if not self.holds_dataset:
                raise
            self.holds_dataset = False
            return super().start()

    def _open(self) -> WorkerProcess:
        _waiting.discard(self)
        self.begin()  # again, where one has died
        forkserver = self._arrived() or self._begun
        if forkserver is None:  # the warm one has died, or must not have forked it
            self._is_alone = True
            self.begin()
            forkserver = self._begun
        self._begun = None
        assert forkserver is not None
        assert self._sent is not None
        told, tracker = family()
        order: dict[str, Any] = {"surroundings": surroundings(), "family": told, "manifest": None}
        fds: tuple[int, ...] = ()
        if self.holds_dataset:
            order["manifest"], fds = self._sent.manifest(), self._sent.fds
        channels.send(forkserver.channel, order, (*fds, *tracker))
        return forkserver

    def forkservers(self) -> dict[int, str]:
        """Return this loader's, and those that are kept warm."""
        return {**super().forkservers(), **dict.fromkeys(warm.pids(), "warm forkserver")}

    def _arrived(self) -> WorkerProcess | None:
        """Return what a warm forkserver was ordered to fork, once it has; None where there is no such."""
        ordered, self._ordered = self._ordered, None
        if ordered is None:
            return None
        channel, by = ordered
        try:
            pid, pidfd = self._answer(channel, ARRIVAL_S)
        except (OSError, EOFError):
            return None
        except NoAnswerError:
            by.close()  # it hangs in an import
            raise
        return WorkerProcess(pid, pidfd, channel, partial(by.status_of, pid))

    def close(self) -> None:
        """End the forkserver; its children end by the ring."""
        _waiting.discard(self)
        ordered, self._ordered = self._ordered, None
        if ordered is not None:
            channel, by = ordered
            with suppress(
                OSError, EOFError, TimeoutError
            ):  # it is not forked yet, and will find its channel closed
                message, fds = channels.receive(channel, 0)
                if "pid" in message:
                    self._begun = WorkerProcess(
                        message["pid"], fds[0], channel, partial(by.status_of, message["pid"])
                    )
        if self._begun is not None:
            self._forkserver, self._begun = self._begun, None
        super().close()


def _broken(failure: Failure) -> WorkerError:
    """Return why the dataset could not be unpickled, with no reference to it in the frame that raises it: no cycle."""
    if isinstance(failure.error, WorkerError):
        return failure.error
    found = WorkerError(f"the dataset could not be unpickled for the workers: {failure.summary}")
    found.__cause__ = failure.error
    return found


_waiting: weakref.WeakSet[Forkserver] = weakref.WeakSet()  # for a first epoch

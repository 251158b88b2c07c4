"""Launchers that order their workers from a forkserver, which forks them from itself.

Forker        the orders and the answers; a forkserver that has died is replaced
  Forkserver  it starts early, imports while the user's program goes on, and is sent the dataset
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

LOOK_S = 0.1  # between two looks at whether the caller still waits
END_S = 1.0
REPORT_S = 5.0  # what the report of an end may take, which is a wake-up on a machine of its own
# For an interpreter to come up, on whatever machine, and however short a sample's time is.
ARRIVAL_S = 10.0
CLOSED = "this loader is closed; make a new one"
# Forkservers that wait for a first epoch: each is a process, and has four descriptors here.
MOST_WAITING = 8


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
                    # By one that does not unpickle the dataset: see `ForkserverMain._unpack`.
                    return self.start()
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
        """Have a worker forked.

        A forkserver that dies meanwhile may have forked one, which ends with its channel.
        """
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
                    # Ctrl-C: its answer would pass for that to the next order.
                    self._end_forkserver()
                raise
        parent = self._forkserver
        status = partial(_status_of, self._statuses, pid, parent.channel, parent)
        return WorkerProcess(pid, pidfd, ours, status)

    def _answer(self, channel: Descriptor, least_s: float = 0.0) -> tuple[int, Descriptor]:
        """Return the pid and the pidfd of what was forked.

        Wait for it for ``timeout_s``, and at least so long.
        """
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

    def _end_forkserver(self) -> str:
        forkserver, self._forkserver = self._forkserver, None
        return "ended" if forkserver is None else forkserver.end(END_S)

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
        """Have the forkserver import ``modules``, and the frameworks among ``packages``.

        Samples hold objects of ``packages``.
        """
        super().__init__(timeout_s)
        self._preload = {"packages": packages, "modules": sorted(modules)}
        self._sent: SharedDataset | None = None
        self._begun: WorkerProcess | None = None  # a forkserver that has no dataset yet
        self._ordered: Descriptor | None = None  # the channel to one that the warm one is to fork

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
        """Start the forkserver, unless it has begun.

        It imports while this process does something else.
        """
        if self._begun is None and self._ordered is None:
            # Where something opens a file, each worker imports for itself: see
            # `ForkserverMain._unpack`.
            imports = self._preload if self.holds_dataset else {**self._preload, "modules": ()}
            self._ordered = None if self._is_alone else warm.begin(self.lifeline, **imports)
            channel = self._ordered
            if channel is None:
                self._begun = spawn("ringfeed.workers.forkserver", self.lifeline)
                channel = self._begun.channel
            with suppress(OSError):  # it is dead: `start` will find out
                channels.send(channel, {"preload": imports})

    def hold(self, dataset: Any, sent: SharedDataset | None) -> None:  # noqa: ARG002 - it is sent
        """Have the dataset unpickled in the forkserver, once for all workers."""
        self._sent = sent

    def start(self) -> WorkerProcess:
        """Start a worker.

        Where the forkserver hangs in an import or in the dataset, each worker does both for itself.

        There it is watched: see `Roster`.
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
        """Return what a warm forkserver was ordered to fork, once it has.

        None where there is no such.
        """
        channel, self._ordered = self._ordered, None
        if channel is None:
            return None
        try:
            pid, pidfd = self._answer(channel, ARRIVAL_S)
        except (OSError, EOFError):
            return None
        except NoAnswerError:
            warm.end()  # it hangs in an import
            raise
        status = partial(_status_of, self._statuses, pid, channel)
        return WorkerProcess(pid, pidfd, channel, status)

    def close(self) -> None:
        """End the forkserver; its children end by the ring."""
        _waiting.discard(self)
        channel, self._ordered = self._ordered, None
        if channel is not None:
            # It is not forked yet, and will find its channel closed.
            with suppress(OSError, EOFError, TimeoutError):
                message, fds = channels.receive(channel, 0)
                if "pid" in message:
                    status = partial(_status_of, self._statuses, message["pid"], channel)
                    self._begun = WorkerProcess(message["pid"], fds[0], channel, status)
        if self._begun is not None:
            self._forkserver, self._begun = self._begun, None
        super().close()


def _status_of(
    statuses: dict[int, int], pid: int, channel: Descriptor, parent: WorkerProcess | None = None
) -> int | None:
    """Return the exit code of a dead process, which its parent tells through ``channel``.

    None where the parent has died before it could tell. ``statuses``: of those that were told. No
    launcher is referred to: it refers to its forkserver, and so that would be a cycle.
    """
    deadline = time.monotonic() + REPORT_S
    while pid not in statuses and channel.fileno() >= 0 and time.monotonic() < deadline:
        try:
            message, _ = channels.receive(channel, LOOK_S)
        except TimeoutError:
            continue
        except (OSError, EOFError):  # the next order finds the forkserver dead
            break
        if "ended" in message:
            statuses[message["ended"]] = message["status"]
    if pid in statuses:
        return statuses.pop(pid)
    # Not told: an orphan of a forkserver that was killed. It may be ours to wait for, as PID 1
    # or a subreaper, once its parent is dead: the channel closes before.
    if parent is not None:
        parent.is_dead(END_S)
    return wait_for(pid)


def _broken(failure: Failure) -> WorkerError:
    """Return why the dataset could not be unpickled.

    The frame that raises the error has no reference to it, so there is no cycle.
    """
    if isinstance(failure.error, WorkerError):
        return failure.error
    found = WorkerError(f"the dataset could not be unpickled for the workers: {failure.summary}")
    found.__cause__ = failure.error
    return found


_waiting: weakref.WeakSet[Forkserver] = weakref.WeakSet()  # for a first epoch

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
from typing import TYPE_CHECKING, Any

from ringfeed._failure import Failure, decode
from ringfeed.errors import ClosedError, WorkerError
from ringfeed.system import channel as channels
from ringfeed.system.interpreter import family, surroundings
from ringfeed.system.machine import is_shortage, reason
from ringfeed.workers import warm
from ringfeed.workers.process import END_S, NOT_FORKED, Launcher, WorkerProcess, spawn

if TYPE_CHECKING:
    from collections.abc import Collection

    from ringfeed.system._system import Descriptor
    from ringfeed.transport.shared_dataset import SharedDataset

LOOK_S = 0.1  # between two looks at whether the caller still waits
# For an interpreter to come up, on whatever machine, and however short a sample's time is.
ARRIVAL_S = 10.0
MOST_DEATHS = 2  # of forkservers, for one worker
CLOSED = "this loader is closed; make a new one"
# Forkservers that wait for a first epoch: each is a process, and has four descriptors here.
MOST_WAITING = 8


class Forker(Launcher):
    """Starts workers by order to a forkserver, which is made anew when it has died."""

    holds_dataset = True
    _at = ""  # what the forkserver does before it forks, in the words of an error

    def __init__(self, timeout_s: float | None = None) -> None:
        """Wait so long for an answer of the forkserver."""
        super().__init__()
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._forkserver: WorkerProcess | None = None
        self._is_stopping = False

    @abstractmethod
    def _open(self) -> WorkerProcess:
        """Make a forkserver that has what its workers need."""

    def start(self) -> WorkerProcess:
        """Start a worker; a forkserver that was killed is replaced.

        Where it hangs in an import or in the dataset, each worker does both for itself. There it is
        watched: see `Roster`.
        """
        deaths = 0
        while True:
            try:
                return self._order()
            except TimeoutError as error:
                self._end_forkserver()
                if not (self.sends_dataset and self.holds_dataset):
                    raise WorkerError(
                        f"the process that is to {self._at}fork workers has not answered for "
                        f"{error.args[0]:g} s; raise timeout_s"
                    ) from None
                self.holds_dataset = False
            except (OSError, EOFError) as error:
                end, told = self._end_forkserver()
                if "broken" in told:
                    raise _broken(decode(told["broken"]))  # noqa: B904 - it has a cause
                if "apart" in told:
                    # Replaced by one that does not unpickle the dataset: see
                    # `ForkserverMain.take_dataset`.
                    self.holds_dataset = False
                    continue
                if why := told.get("refused") or (is_shortage(error) and reason(error)):
                    raise WorkerError(f"no worker can be started: {why}") from error
                deaths += 1
                if deaths == MOST_DEATHS or self._is_stopping:
                    raise WorkerError(
                        f"the process that forks workers {end} twice; use backend='spawn'"
                    ) from error

    def _order(self) -> WorkerProcess:
        """Have a worker forked.

        A forkserver that dies meanwhile may have forked one, which ends with its channel.
        """
        parent = self._forkserver = self._forkserver or self._open()
        ours, theirs = channels.pair()
        with theirs, suppress(ConnectionError):  # it has ended: `ours` is closed, too
            channels.send(parent.channel, {"do": "fork_worker"}, (theirs.fileno(),))
        try:
            worker = self._arrived(ours, parent)
        except ClosedError:
            # It is ended before it forks: what it forks now would be an orphan, and stay a zombie
            # where orphans come to this process.
            self._end_forkserver()
            raise
        self.holds_dataset = self.holds_dataset and worker.told["holds_dataset"]
        return worker

    def _arrived(
        self, channel: Descriptor, parent: WorkerProcess, least_s: float = 0.0
    ) -> WorkerProcess:
        """Return a process that was ordered of ``parent``, when that has forked it.

        TimeoutError after ``timeout_s``, or after ``least_s`` where that is longer.
        """
        wait_s = max(self._timeout_s, least_s)
        deadline = time.monotonic() + wait_s
        told: dict[str, Any] = {}
        while time.monotonic() < deadline:
            # A process that is forked already is taken, so that the pool ends and buries it.
            is_last = self._is_stopping
            try:
                message, fds = channels.receive(channel, LOOK_S)
            except TimeoutError:
                if is_last:
                    raise ClosedError(CLOSED) from None
                if parent.is_dead():
                    # What it has forked, and not told of, has the channel, too.
                    raise channels.PeerGoneError from None
                continue
            told.update(message)
            if "refused" in told:
                raise WorkerError(f"no worker can be started: {told['refused']}")
            if "pid" in message:
                process = WorkerProcess(message["pid"], fds[0], channel, parent=parent)
                process.told = told
                return process
        raise TimeoutError(wait_s)

    def _end_forkserver(self) -> tuple[str, dict[str, Any]]:
        """End the forkserver, if there is one; return how it ended, and what it has said."""
        forkserver, self._forkserver = self._forkserver, None
        return ("ended", {}) if forkserver is None else (forkserver.end(END_S), forkserver.told)

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
    """Has workers forked by a forkserver of its own: the warm one forks it, or it is spawned."""

    descriptors = 5  # three of the lifeline, a channel and a pidfd
    _is_alone = False  # whether no warm forkserver has to do with it
    _at = "unpickle the dataset and "
    _sent: SharedDataset | None = None
    _begun: WorkerProcess | None = None  # a forkserver that has no dataset yet

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
        if self._begun is None:
            # Where something opens a file, each worker imports for itself: see
            # `ForkserverMain.take_dataset`.
            imports = self._preload if self.holds_dataset else {**self._preload, "modules": ()}
            forkserver = None if self._is_alone else warm.begin(self.lifeline, **imports)
            self._begun = forkserver or spawn("ringfeed.workers.forkserver", self.lifeline)
            with suppress(OSError):  # it is dead: `start` will find out
                channels.send(self._begun.channel, {"do": "preload", **imports})

    def hold(self, dataset: Any, sent: SharedDataset | None) -> None:  # noqa: ARG002 - it is sent
        """Have the dataset unpickled in the forkserver, once for all workers."""
        self._sent = sent

    def _open(self) -> WorkerProcess:
        _waiting.discard(self)
        forkserver = self._arrived_forkserver()
        told, tracker = family()
        order: dict[str, Any] = {"surroundings": surroundings(), "family": told, "manifest": None}
        fds: tuple[int, ...] = ()
        assert self._sent is not None
        if self.holds_dataset:
            order["manifest"], fds = self._sent.manifest(), self._sent.fds
        channels.send(forkserver.channel, {"do": "take_dataset", **order}, (*fds, *tracker))
        return forkserver

    def _arrived_forkserver(self) -> WorkerProcess:
        """Return the forkserver that has begun, or another where it has died."""
        self.begin()
        forkserver, self._begun = self._begun, None
        assert forkserver is not None
        if forkserver.pid != NOT_FORKED:
            return forkserver
        assert forkserver.parent is not None
        try:
            return self._arrived(forkserver.channel, forkserver.parent, ARRIVAL_S)
        except TimeoutError:
            warm.end()  # it hangs in an import
            raise
        except (OSError, EOFError):
            # The warm one has died, or must not have forked it.
            self._is_alone = True
            return self._arrived_forkserver()

    def forkservers(self) -> dict[int, str]:
        """Return this loader's, and those that are kept warm."""
        return {**super().forkservers(), **dict.fromkeys(warm.pids(), "warm forkserver")}

    def close(self) -> None:
        """End the forkserver; its children end by the ring.

        One that the warm one is to fork ends by its channel or its lifeline.
        """
        _waiting.discard(self)
        self._forkserver, self._begun = self._forkserver or self._begun, None
        super().close()


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

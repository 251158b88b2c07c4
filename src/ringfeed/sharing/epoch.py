"""A training's place in a share, the host's messages to it, and the iterator over an epoch.

A message is done with when its batch is about to be returned. Until then `Joined` keeps all of it:
after Ctrl-C the next ``next()`` goes on with it. What Ctrl-C has lost before it was kept, the host
sends again.
"""

from __future__ import annotations

import pickle
import sys
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._callers import callers_depth
from ringfeed._failure import decode, users_frames
from ringfeed._process import Forks
from ringfeed.errors import ClosedError, SlotsHeldWarning, SupersededError
from ringfeed.sharing.mapping import Mapping, SlotLease
from ringfeed.spec._fields import Fields
from ringfeed.spec.array import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.sharing.door import Connection
    from ringfeed.sharing.host_loader import SharedInfo
    from ringfeed.sharing.terms import Cut

    BuildLeaves: TypeAlias = Callable[[list[Any]], Any]
    """Makes what is handed out of the arrays of a batch, one a leaf."""


class SharedStats(NamedTuple):
    """Counts and times of one training of a share.

    batches, samples: those that it received. wait_s: seconds that it waited for them. copies:
    batches that were private copies, since the arrays of the trainings held the slots. lost:
    batches that it did not get with ``on_slow="drop"``.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    copies: int = 0
    lost: int = 0

    def plus(self, **more: float) -> SharedStats:
        """Return the statistics with so much more of these."""
        return self._replace(**{name: getattr(self, name) + value for name, value in more.items()})


@dataclass(eq=False)
class Message:
    """One message. ``state``: that of the training, once it is done with."""

    serial: int
    kind: str
    epoch_id: int
    content: Any
    state: dict[str, Any]
    lease: SlotLease | None = None


class Joined:
    """One training's place in a share: its connection, facts about the loader, and how far it is.

    It leaves the share when its loaders and iterators are gone, also where arrays are still held.
    """

    _connection: Connection | None = None  # where it has not joined yet, or has left

    def __init__(self, connection: Connection, info: SharedInfo, cut: Cut) -> None:
        """Know what the host has said of its loader."""
        self.share, self.info, self.cut = connection.share, info, cut
        self._mapping: Mapping | None = None
        self._segment = 0  # whose slots are mapped
        self._leases: weakref.WeakSet[SlotLease] = weakref.WeakSet()
        self.done = self._opened = Message(0, "welcome", 0, None, info.state)
        """The last one that is done with."""
        self.fields = Fields(info.spec, info.offsets)
        self.stats = SharedStats()
        self.padding = 0
        self.epoch_id = 0  # of the newest iterator
        self.is_told_of_copies = False
        self.wish: list[Any] | None = None
        """Where the next epoch begins, if not after the last: ["epoch", int], ["state", state]."""
        self._forks = Forks.count
        self._connection = connection  # last: until then there is nothing to leave

    def check_open(self) -> Connection:
        """Return the connection; ClosedError where nothing can be asked for any more."""
        if self._forks != Forks.count:
            raise ClosedError(
                f"{self.share} was joined by the process that this one was forked from; join it "
                "here as well"
            )
        if self._connection is None:
            raise ClosedError(f"{self.share}: this training has left it; join it again")
        return self._connection

    def begin(self, build: BuildLeaves) -> SharedEpoch:
        """Ask for the next epoch."""
        connection = self.check_open()
        self.break_off(self.epoch_id)
        self.epoch_id += 1
        wish, self.wish = self.wish, None
        connection.tell("ask", self.epoch_id, wish and pickle.dumps(wish))
        return SharedEpoch(self, self.epoch_id, build)

    def break_off(self, epoch_id: int) -> None:
        """Leave the epoch of this id, if it is the newest."""
        if epoch_id and epoch_id == self.epoch_id and self._connection is not None:
            self._connection.tell("break_off", epoch_id)

    def close(self) -> None:
        """Leave the share; arrays stay valid, since their leases have the connection, too."""
        if self._connection is not None:
            self._connection.tell("retire")
            self._connection = self._mapping = None
            self._opened = self.done

    # ---- messages ----

    def open(self) -> Message:
        """Return the next message, waiting for it as long as the host may take."""
        connection = self.check_open()
        found = self._receive(connection, wait=False)
        while found is None:
            connection.tell("want", self.done.serial, [lease.number for lease in self._leases])
            found = self._receive(connection, wait=True)
        return found

    def _receive(self, connection: Connection, *, wait: bool) -> Message | None:
        while self._opened is self.done:
            heard = connection.hear(wait=wait)
            if heard is None:
                return None
            message, fds = heard
            if message[0] == "failed":  # the host has put this training out, by its last message
                error = decode(message[1]).error
                assert error is not None
                raise error
            serial, kind, epoch_id, content = message
            if serial <= self.done.serial:
                continue  # it was sent again, and had come after all
            if fds and content["segment"] != self._segment:
                self._mapping = Mapping(fds[0].fileno(), self.info.slot_size)
                self._segment = content["segment"]
            state = self.done.state
            if "state" in content:
                state = pickle.loads(content["state"])  # noqa: S301 - see `names.identify`
            self._opened = Message(serial, kind, epoch_id, content, state)
        return self._opened

    def lease(self, message: Message) -> SlotLease:
        """Return the lease of a batch, the same each time."""
        if message.lease is None:
            assert self._mapping is not None
            content = message.content
            message.lease = SlotLease(
                self.check_open(), self._mapping, content["slot"], content["number"]
            )
            self._leases.add(message.lease)
        message.lease.arm()
        return message.lease

    def finish(self, message: Message) -> None:
        """Be done with a message: Ctrl-C comes before the last line of this, or after all of it."""
        self.check_open().tell("took", message.serial)
        self.done, message.lease = message, None

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave the share."""
        if not is_exiting():
            self.close()


class SharedEpoch:
    """The batches of one epoch of a training; the newest iterator wins."""

    def __init__(self, joined: Joined, epoch_id: int, build: BuildLeaves) -> None:
        """Iterate over the epoch of this id; ``build`` makes a batch of its leaves."""
        self._joined, self._epoch_id, self._build = joined, epoch_id, build
        self._is_over = False

    def __iter__(self) -> SharedEpoch:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch; the loader's errors are raised in their place."""
        joined = self._joined
        joined.check_open()
        if self._is_over:
            raise StopIteration
        if joined.epoch_id != self._epoch_id:
            raise SupersededError(
                "a newer iterator of this loader has taken over; finish one before you make the "
                "next"
            )
        began_s = time.monotonic()
        while True:
            message = joined.open()
            if message.epoch_id not in {0, self._epoch_id}:
                joined.finish(message)  # of an epoch that was broken off
            elif message.kind != "batch":
                self._look_at(message)
            elif (batch := self._batch(message, began_s)) is not None:
                return batch[0]

    def _batch(self, message: Message, began_s: float) -> tuple[Any] | None:
        """Return the batch, in a tuple; None where no row of it is this training's."""
        joined, content = self._joined, message.content
        wait_s = time.monotonic() - began_s
        self._tell_of_lost(content)
        if content["private"]:
            self._tell_of_copy()
        padding = joined.cut.padding(content["rows"])
        leaves = self._leaves(message)
        rows = len(leaves[0])
        batch = self._build(leaves)
        stats = joined.stats.plus(
            batches=1, samples=rows - padding, wait_s=wait_s, copies=int(content["private"])
        )
        joined.finish(message)  # no more calls: Ctrl-C would lose the batch
        if not rows:
            return None
        joined.padding, joined.stats = padding, stats
        return (batch,)

    def _leaves(self, message: Message) -> list[Any]:
        """Return this training's rows: over the slot, or as copies."""
        joined, content = self._joined, message.content
        rows = joined.cut.rows(content["rows"])
        lease: Any = joined.lease(message)  # of which it needs the address, as of the ring's
        views = joined.fields.views(lease, content["rows"])
        leaves = [view[rows] for view in views]
        return (
            [copy_of(leaf) for leaf in leaves] if content["private"] or joined.info.copy else leaves
        )

    def _look_at(self, message: Message) -> None:
        """Do what a message says that is no batch."""
        content, finish = message.content, self._joined.finish
        if message.kind == "warning":
            finish(message)
            warnings.warn(content["text"], UserWarning, stacklevel=callers_depth())
        elif message.kind == "end":
            self._is_over = True
            finish(message)
            self._tell_of_lost(content)
            raise StopIteration
        else:
            error = decode(content["error"]).error
            assert error is not None
            finish(message)
            raise error.with_traceback(users_frames(error, error.__traceback__))

    def _tell_of_lost(self, content: dict[str, Any]) -> None:
        lost, content["lost"] = content["lost"], 0  # told once, also where warnings are errors
        if lost:
            self._joined.stats = self._joined.stats.plus(lost=lost)
            share = self._joined.share
            warnings.warn(
                f"{share}: this training was slower than the others and has lost {lost} batches "
                "(on_slow='drop')",
                UserWarning,
                stacklevel=callers_depth(),
            )

    def _tell_of_copy(self) -> None:
        joined = self._joined
        if joined.is_told_of_copies:
            return
        joined.is_told_of_copies = True
        warnings.warn(
            f"{joined.share}: the trainings' arrays hold all slots but one, so that batches are "
            "handed out as private copies; let go of each batch when you have the next, copy what "
            "you keep, or give more slots=",
            SlotsHeldWarning,
            stacklevel=callers_depth(),
        )

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off, unless it is over."""
        if not is_exiting() and not self._is_over:
            self._joined.break_off(self._epoch_id)

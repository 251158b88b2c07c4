"""Which training of a share gets what and when; tests place it, without sockets and ring.

    add() ──▶ queue of a training ── sent, one ahead ──▶ unread ── took() ──▶ held ── free()
                     ▲                      │
                     └── lost (on_slow)     └── as a private copy, where too many slots are held

Of ``slots`` at most ``slots - 1`` are out of the ring, so that the workers have one to fill: lent,
which is sent or held by arrays, or waiting in queues. Where all of them are held for longer than a
moment, the last slot goes round alone: its batch is copied by each training that gets it, and the
slot is given back at once.

A training for which others wait is waited for, loses batches or is put out, as ``on_slow`` says.
Not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfeed._failure import encode
from ringfeed.errors import StallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.sharing.terms import Terms

MIN_SLOTS = 3  # one to fill, one in hand, and the next
MOST_QUEUED = 64  # entries of one training, where errors come without end
GRACE_S = 1.0  # that a training is given to let go of a slot before another one is handed a copy


@dataclass(eq=False)
class Batch:
    """A batch that is out of the ring."""

    number: int
    lease: Any  # and the file that its slot is in
    waits: set[Training] = field(default_factory=set)  # queued for them, or sent and not picked up
    lent: set[Training] = field(default_factory=set)  # sent to them or held by them, in the slot
    holds: set[Training] = field(default_factory=set)  # picked up, and not given back


@dataclass(eq=False)
class Entry:
    """What a training is sent: "batch", "end", "error" or "warning"."""

    kind: str
    epoch_id: int  # of the training's own epochs; 0: whichever it is in
    content: dict[str, Any]  # "state": where the training is when it has it
    batch: Batch | None = None
    serial: int = 0  # of all that the training was sent, once this is
    private: bool = False  # whether the batch is to be copied, and given back at once


@dataclass(eq=False)
class Training:
    """A process that has joined."""

    pid: int
    rank: int | None = None
    queue: deque[Entry] = field(default_factory=deque)
    unread: Entry | None = None  # what it was sent last, until it has picked it up
    serial: int = 0
    epoch_id: int = 0  # of the epoch that it is in, as it counts them; 0: in none
    epoch: int = 0  # the last that it was in, as the flow counts them
    asked: tuple[int, Any] | None = (
        None  # for its next epoch: the number of that, and where it is to begin
    )
    lost: int = 0  # batches that it is to be told of
    waits_since: float | None = None  # its next() waits
    blocks_since: float | None = None  # others wait for it
    is_told: bool = False  # the others were warned of it
    is_late: bool = False  # the others wait for it no longer, until it has caught up
    error: bytes | None = None  # with which it was put out

    def __str__(self) -> str:
        """Return which one it is, in words."""
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"


class Flow:
    """The trainings of one share, and the batches that are out of the ring."""

    def __init__(
        self,
        terms: Terms,
        slots: int,
        send: Callable[[Any, Entry], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no training. ``send`` must not wait."""
        self.terms, self.slots = terms, slots
        self._send, self._clock = send, clock
        self.trainings: list[Training] = []
        self.has_gathered = False
        """Whether all have come once: what has left since is not waited for."""
        self.is_on = False
        """Whether an epoch is under way."""
        self._epoch = 0
        self._taken = 0  # batches of it
        self.out: dict[int, Batch] = {}
        self._number = 0
        self._progress_s = 0.0  # when a batch was added last
        self._held_since: float | None = (
            None  # how long a training has waited while the others hold all slots but one
        )

    # ---- trainings come and go ----

    def join(self, training: Training) -> str | None:
        """Take a training in; or say, in the words of its error, why there is no place for it."""
        if len(self.trainings) >= self.terms.ranks:
            there = ", ".join(map(str, self.trainings))
            return (
                f"share(name={self.terms.name!r}) has the {self.terms.ranks} trainings that it was "
                f"made for ({there}), and this is one more; give all of them a larger ranks=, or "
                "another name"
            )
        same = [other for other in self.trainings if other.rank == training.rank is not None]
        if same:
            return (
                f"share(name={self.terms.name!r}) has a training of rank {training.rank} already "
                f"(pid {same[0].pid}); give each process a rank of its own"
            )
        self.trainings.append(training)
        self.has_gathered = self.has_gathered or len(self.trainings) == self.terms.ranks
        return None

    def retire(self, training: Training, but: Batch | None = None) -> None:
        """Take a training out; what it holds it still holds, and one batch it may still pick up."""
        if training in self.trainings:
            self.trainings.remove(training)
        self._revoke(training, but)
        self._after_leaving()

    def leave(self, training: Training) -> None:
        """Forget a training whose process has gone, or holds nothing any more."""
        self.retire(training)
        for batch in [*self.out.values()]:
            self._let_go(batch, training)
        self._feed_all()

    def break_off(self, training: Training, epoch_id: int) -> None:
        """Have a training leave its epoch: it will not look at what it was sent of it."""
        if epoch_id in {training.epoch_id, training.asked and training.asked[0]}:
            self._revoke(training)
            self._after_leaving()

    def _revoke(self, training: Training, but: Batch | None = None) -> None:
        """Take back all that a training has not picked up, but for one batch."""
        training.epoch_id, training.asked = 0, None
        training.queue.clear()
        for batch in [*self.out.values()]:
            if training in batch.waits and batch is not but:
                self._let_go(batch, training)

    def _after_leaving(self) -> None:
        self.is_on = self.is_on and any(training.epoch_id for training in self.trainings)
        self._feed_all()

    # ---- epochs ----

    def ask(self, training: Training, epoch_id: int, wish: Any) -> None:
        """Note that a training asks for its next epoch, its own number ``epoch_id``."""
        if training.error is not None:
            self._tell_error(training, epoch_id, training.error)
            return
        training.asked, training.is_late = (epoch_id, wish), False
        self._moves(training)
        if (
            self.is_on
            and self.terms.on_slow == "drop"
            and training.epoch != self._epoch
            and wish is None
        ):
            training.lost += self._taken
            self._enter(training)

    def due(self) -> list[Training]:
        """Return the trainings whose epoch is to begin now, if one is."""
        asked = [training for training in self.trainings if training.asked is not None]
        waits_for = [
            training
            for training in self.trainings
            if training.asked is None and not training.is_late
        ]
        return [] if self.is_on or waits_for or not self.has_gathered else asked

    def begin(self, trainings: list[Training]) -> None:
        """Begin an epoch."""
        self.is_on, self._taken = True, 0
        self._epoch += 1
        self._progress_s = self._clock()
        for training in trainings:
            if training in self.trainings and training.asked is not None:
                self._enter(training)
        self._after_leaving()

    def refuse(self, trainings: list[Training], error: bytes) -> None:
        """Answer those that have asked for an epoch with an error; they may ask again."""
        for training in trainings:
            if training.asked is not None:
                self._tell_error(training, training.asked[0], error)
                training.asked = None

    def end(self, state: Any) -> None:
        """End the epoch; ``state`` is where the next one begins."""
        self.is_on = False
        for training in self._inside():
            self._queue(training, Entry("end", training.epoch_id, {"state": state}))
            training.epoch_id = 0

    def _enter(self, training: Training) -> None:
        assert training.asked is not None
        training.epoch_id, training.asked, training.epoch = training.asked[0], None, self._epoch

    def _inside(self) -> list[Training]:
        return [training for training in self.trainings if training.epoch_id]

    # ---- batches ----

    @property
    def may_take(self) -> bool:
        """Whether another batch may be taken from the ring."""
        left = self.slots - len(self.out)
        return (
            self.is_on
            and (left > 1 or (left == 1 and self._are_all_held and not self._is_hopeful))
            and all(len(training.queue) < MOST_QUEUED for training in self._inside())
        )

    def add(self, lease: Any, content: Any) -> None:
        """Queue a batch that was taken from the ring for all trainings of the epoch."""
        self._number += 1
        self._taken += 1
        self._progress_s = self._clock()
        batch = Batch(self._number, lease)
        inside = self._inside()
        if not inside:
            return
        self.out[self._number] = batch
        batch.waits.update(inside)
        for training in inside:
            self._queue(training, Entry("batch", training.epoch_id, content, batch))

    def fail(self, error: bytes, state: Any) -> None:
        """Queue an error of the loader, in its place, for all trainings of the epoch."""
        for training in self._inside():
            self._queue(
                training, Entry("error", training.epoch_id, {"error": error, "state": state})
            )

    def took(self, training: Training, serial: int) -> None:
        """Note that a training has picked up what it was sent."""
        sent = training.unread
        if sent is None or sent.serial != serial:
            return
        training.unread = None
        batch = sent.batch
        if batch is not None and training in batch.waits:
            batch.waits.remove(training)
            batch.holds.add(training)
        training.is_late = training.is_late and bool(training.queue)
        self._moves(training)
        self._feed(training)  # which may have been put out
        self._feed_all()

    def free(self, training: Training, number: int) -> None:
        """Note that a training has let go of a batch."""
        batch = self.out.get(number)
        if batch is None:
            return
        if training in batch.lent:
            self._held_since = None
        self._let_go(batch, training)
        self._feed_all()

    def want(self, training: Training, serial: int, held: frozenset[int]) -> None:
        """Note that a training waits, and ``held``: the batches that it holds.

        What it was sent after ``serial``, and has lost to Ctrl-C, it is sent again. What it holds
        no longer goes back: Ctrl-C may have kept it from saying so.
        """
        for batch in [*self.out.values()]:
            if training in batch.holds and batch.number not in held:
                self.free(training, batch.number)
        if training.unread is not None and training.unread.serial > serial:
            self._send(training, training.unread)
        elif training.waits_since is None:
            training.waits_since = self._clock()
            training.is_late = False

    def _moves(self, training: Training) -> None:
        training.waits_since = training.blocks_since = None
        training.is_told = False

    def _let_go(self, batch: Batch, training: Training) -> None:
        """Have a training have nothing to do with a batch any more."""
        for trainings in (batch.waits, batch.lent, batch.holds):
            trainings.discard(training)
        if not batch.waits and not batch.holds:
            self.out.pop(batch.number, None)
            batch.lease = None
        if self._is_hopeful:
            self._held_since = None

    # ---- copies ----

    @property
    def _are_all_held(self) -> bool:
        """Whether all slots but one are held, and no training has one still to pick up."""
        awaited = {training for training in self.trainings if not training.is_late}
        return len(self.out) >= self.slots - 1 and not any(
            batch.waits & awaited for batch in self.out.values()
        )

    @property
    def _is_hopeful(self) -> bool:
        """Whether a slot may come back before a copy is made; it is waited for once in vain."""
        return self._held_since is None or self._clock() - self._held_since < GRACE_S

    def _wait_for_slot(self) -> None:
        self._held_since = self._clock() if self._held_since is None else self._held_since

    # ---- sending ----

    def _queue(self, training: Training, entry: Entry, *, first: bool = False) -> None:
        """Have a training be sent this, as the last or as the first of what waits."""
        (training.queue.appendleft if first else training.queue.append)(entry)
        self._feed(training)

    def _tell_error(
        self, training: Training, epoch_id: int, error: bytes, *, first: bool = False
    ) -> None:
        """Queue an error for one training."""
        self._queue(training, Entry("error", epoch_id, {"error": error}), first=first)

    def _feed_all(self) -> None:
        for training in self.trainings:
            self._feed(training)

    def _feed(self, training: Training) -> None:
        """Send a training what comes next, if it has picked up all that it was sent."""
        if training.unread is not None or not training.queue:
            return
        entry = training.queue[0]
        if entry.batch is not None:
            # One slot is left to the workers where the slot of this batch is lent, too.
            lent = sum(bool(other.lent) for other in self.out.values())
            entry.private = not entry.batch.lent and lent >= self.slots - 1
            if not entry.private:
                entry.batch.lent.add(training)
            elif training.waits_since is None:
                return
            else:
                self._wait_for_slot()
                if self._is_hopeful:
                    return
        training.queue.popleft()
        training.serial += 1
        training.unread, entry.serial = entry, training.serial
        training.waits_since = None
        self._send(training, entry)

    # ---- time ----

    def tick(self) -> None:
        """Do what time asks for; a few times a second."""
        self._feed_all()
        waiting = [training for training in self.trainings if training.waits_since is not None]
        if waiting and self.is_on and self._are_all_held:
            self._wait_for_slot()
        now, blocking = self._clock(), self._blocking(waiting)
        for training in [*self.trainings]:
            if training not in blocking:
                training.blocks_since = None
                continue
            since = training.blocks_since = (
                now if training.blocks_since is None else training.blocks_since
            )
            if training.is_late or now - since >= self.terms.patience_s:
                self._pass_over(training, waiting, now - since)
        for training in waiting:
            since = max(
                now if training.waits_since is None else training.waits_since, self._progress_s
            )
            if now - since >= self.terms.timeout_s:
                training.waits_since = None
                self._tell_error(
                    training, 0, encode(self._stall(training, now - since)), first=True
                )

    def _blocking(self, waiting: list[Training]) -> list[Training]:
        """Return the trainings that others wait for."""
        if not waiting or not self.has_gathered:
            return []
        if self.is_on:
            late = (
                set().union(*(batch.waits for batch in self.out.values()))
                if not self.may_take
                else set()
            )
            return [
                training
                for training in self.trainings
                if training in late and training not in waiting
            ]
        asks = any(training.asked is not None for training in waiting)
        # Not before its first epoch: models take their time to be built.
        return [
            training
            for training in self.trainings
            if asks and training.asked is None and training.epoch
        ]

    def _pass_over(self, training: Training, waiting: list[Training], waited_s: float) -> None:
        """Do what ``on_slow`` says."""
        if self.terms.on_slow == "drop":
            training.is_late = True
            while self.is_on and not self.may_take and self._lose_one(training):
                pass
        elif self.terms.on_slow == "raise":
            self._put_out(training, waited_s)
        elif not training.is_told:
            training.is_told = True
            text = (
                f"{self._is_slow(training, waited_s)}; on_slow='drop' or 'raise' goes on without it"
            )
            for other in waiting:
                self._queue(other, Entry("warning", 0, {"text": text}), first=True)

    def _lose_one(self, training: Training) -> bool:
        """Take the oldest batch from a training's queue; whether there was one."""
        for entry in training.queue:
            if entry.batch is not None:
                training.queue.remove(entry)
                training.lost += 1
                self._let_go(entry.batch, training)
                return True
        return False

    def _put_out(self, training: Training, waited_s: float) -> None:
        """Go on without a training; it gets this error now, and whenever it asks for an epoch."""
        text = f"{self._is_slow(training, waited_s)}; on_slow='raise' has put it out"
        epoch_id, training.error = training.epoch_id, encode(StallError(text))
        self.retire(training, None if training.unread is None else training.unread.batch)
        self._tell_error(training, epoch_id, training.error)

    def _is_slow(self, training: Training, waited_s: float) -> str:
        what = "taken a batch" if self.is_on else "asked for the next epoch"
        return (
            f"share(name={self.terms.name!r}): the other trainings have waited {waited_s:.1f} s "
            f"for {training}, which has not {what}"
        )

    def _stall(self, training: Training, waited_s: float) -> StallError:
        share = f"share(name={self.terms.name!r})"
        if not self.has_gathered:
            there, count = ", ".join(map(str, self.trainings)), len(self.trainings)
            return StallError(
                f"{share}: {count} of {self.terms.ranks} trainings have come within {waited_s:.0f} "
                f"s ({there}); start the others, or give ranks= and timeout_s= as they are"
            )
        late = [other for other in self.trainings if other.asked is None]
        slow = ", ".join(map(str, self._blocking([training]) if self.is_on else late))
        why = f"it waits for {slow}" if slow else "its loader has none"
        return StallError(
            f"{share}: no batch for {training} within {waited_s:.0f} s: {why}; raise timeout_s or "
            "look there"
        )

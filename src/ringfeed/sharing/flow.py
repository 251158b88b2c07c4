"""Which training of a share gets what and when; no sockets and no ring, so that tests place each state.

    add() ──▶ queue of each training ── sent, one ahead ──▶ unread ── took() ──▶ held ── free() ──▶ the slot goes back
                     ▲                      │
                     └── lost (on_slow)     └── as a private copy, where the trainings hold too many slots

Of ``slots`` at most ``slots - 1`` are out of the ring, so that the workers have one to fill: lent, which is sent or
held by arrays, or waiting in queues. Where all of them are held for longer than a moment, the last slot goes round
alone: its batch is copied by each training that gets it, and the slot is given back at once.

Not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ringfeed.sharing.copy_policy import CopyPolicy
from ringfeed.sharing.trainings import Ask, Batch, Entry, Sent, Training
from ringfeed.sharing.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.sharing.terms import Terms

MIN_SLOTS = 3  # one to fill, one in hand, and the next
MOST_QUEUED = 64  # entries of one training, where errors come without end


class Flow:
    """The trainings of one share, and the batches that are out of the ring."""

    def __init__(
        self,
        terms: Terms,
        slots: int,
        send: Callable[[Training, Sent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no training. ``send`` must not wait."""
        self.terms, self.slots = terms, slots
        self._send, self.clock = send, clock
        self._watchdog, self._copy_policy = Watchdog(self), CopyPolicy(self)
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

    # ---- trainings come and go ----

    def join(self, training: Training) -> str | None:
        """Take a training in; or say, in the words of its error, why there is no place for it."""
        if len(self.trainings) >= self.terms.ranks:
            there = ", ".join(map(str, self.trainings))
            return (
                f"share(name={self.terms.name!r}) has the {self.terms.ranks} trainings that it was made for ({there}), "
                "and this is one more; give all of them a larger ranks=, or another name"
            )
        same = [other for other in self.trainings if other.rank == training.rank is not None]
        if same:
            return (
                f"share(name={self.terms.name!r}) has a training of rank {training.rank} already (pid {same[0].pid}); "
                "give each process a rank of its own"
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

    def put_out(self, training: Training, error: bytes) -> None:
        """Take a training out, which does not know of it yet; it gets this error, now and whenever it asks."""
        epoch_id, training.error = training.epoch_id, error
        self.retire(training, None if training.unread is None else training.unread.entry.batch)
        self.tell_error(training, epoch_id, error)

    def leave(self, training: Training) -> None:
        """Forget a training whose process has gone, or holds nothing any more."""
        self.retire(training)
        for batch in [*self.out.values()]:
            self.let_go(batch, training)
        self._feed_all()

    def break_off(self, training: Training, epoch_id: int) -> None:
        """Have a training leave its epoch: it will not look at what it was sent of it."""
        if epoch_id in {training.epoch_id, training.asked and training.asked.epoch_id}:
            self._revoke(training)
            self._after_leaving()

    def _revoke(self, training: Training, but: Batch | None = None) -> None:
        """Take back all that a training has not picked up, but for one batch that it may pick up yet."""
        training.epoch_id, training.asked = 0, None
        training.queue.clear()
        for batch in [*self.out.values()]:
            if training in batch.waits and batch is not but:
                self.let_go(batch, training)

    def _after_leaving(self) -> None:
        self.is_on = self.is_on and any(training.epoch_id for training in self.trainings)
        self._feed_all()

    # ---- epochs ----

    def ask(self, training: Training, epoch_id: int, wish: Any) -> None:
        """Note that a training asks for its next epoch, its own number ``epoch_id``."""
        if training.error is not None:
            self.tell_error(training, epoch_id, training.error)
            return
        training.asked, training.is_late = Ask(epoch_id, wish), False
        self._moves(training)
        if self.is_on and self.terms.on_slow == "drop" and training.epoch != self._epoch and wish is None:
            training.lost += self._taken
            self._enter(training)

    def due(self) -> list[Training]:
        """Return the trainings whose epoch is to begin now, if one is."""
        asked = [training for training in self.trainings if training.asked is not None]
        waits_for = [training for training in self.trainings if training.asked is None and not training.is_late]
        return [] if self.is_on or waits_for or not self.has_gathered else asked

    def begin(self, trainings: list[Training]) -> None:
        """Begin an epoch."""
        self.is_on, self._taken = True, 0
        self._epoch += 1
        self._progress_s = self.clock()
        for training in trainings:
            if training in self.trainings and training.asked is not None:
                self._enter(training)
        self._after_leaving()

    def refuse(self, trainings: list[Training], error: bytes) -> None:
        """Answer those that have asked for an epoch with an error; they may ask again."""
        for training in trainings:
            if training.asked is not None:
                self.tell_error(training, training.asked.epoch_id, error)
                training.asked = None

    def end(self, state: Any) -> None:
        """End the epoch; ``state`` is where the next one begins."""
        self.is_on = False
        for training in self._inside():
            self.queue(training, Entry("end", training.epoch_id, {"state": state}))
            training.epoch_id = 0

    def _enter(self, training: Training) -> None:
        assert training.asked is not None
        training.epoch_id, training.asked, training.epoch = training.asked.epoch_id, None, self._epoch

    def _inside(self) -> list[Training]:
        return [training for training in self.trainings if training.epoch_id]

    # ---- batches ----

    @property
    def may_take(self) -> bool:
        """Whether another batch may be taken from the ring."""
        inside = self._inside()
        return (
            self.is_on
            and self._copy_policy.for_one_more
            and all(len(training.queue) < MOST_QUEUED for training in inside)
        )

    def add(self, lease: Any, content: Any) -> None:
        """Queue a batch that was taken from the ring for all trainings of the epoch."""
        self._number += 1
        self._taken += 1
        self._progress_s = self.clock()
        batch = Batch(self._number, lease, content)
        inside = self._inside()
        if not inside:
            return
        self.out[self._number] = batch
        batch.waits.update(inside)
        for training in inside:
            self.queue(training, Entry("batch", training.epoch_id, content, batch))

    def fail(self, error: bytes, state: Any) -> None:
        """Queue an error of the loader, in its place among the batches, for all trainings of the epoch."""
        for training in self._inside():
            self.queue(training, Entry("error", training.epoch_id, {"error": error, "state": state}))

    def took(self, training: Training, serial: int) -> None:
        """Note that a training has picked up what it was sent."""
        sent = training.unread
        if sent is None or sent.serial != serial:
            return
        training.unread = None
        batch = sent.entry.batch
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
        self._copy_policy.note(lent=training in batch.lent)
        self.let_go(batch, training)
        self._feed_all()

    def want(self, training: Training, serial: int, held: frozenset[int]) -> None:
        """Note that a training waits, and ``held``: the batches that it holds.

        What it was sent after ``serial``, and has lost to Ctrl-C, it is sent again. What it holds no longer goes back:
        Ctrl-C may have kept it from saying so.
        """
        for batch in [*self.out.values()]:
            if training in batch.holds and batch.number not in held:
                self.free(training, batch.number)
        if training.unread is not None and training.unread.serial > serial:
            self._send(training, training.unread)
        elif training.waits_since is None:
            training.waits_since = self.clock()
            training.is_late = False

    def _moves(self, training: Training) -> None:
        training.waits_since = training.blocks_since = None
        training.is_told = False

    def let_go(self, batch: Batch, training: Training) -> None:
        """Have a training have nothing to do with a batch any more."""
        for trainings in (batch.waits, batch.lent, batch.holds):
            trainings.discard(training)
        if not batch.waits and not batch.holds:
            self.out.pop(batch.number, None)
            batch.lease = None
        self._copy_policy.note(lent=False)

    # ---- sending ----

    def queue(self, training: Training, entry: Entry, *, first: bool = False) -> None:
        """Have a training be sent this, as the last or as the first of what waits."""
        (training.queue.appendleft if first else training.queue.append)(entry)
        self._feed(training)

    def tell_error(self, training: Training, epoch_id: int, error: bytes, *, first: bool = False) -> None:
        """Queue an error for one training."""
        self.queue(training, Entry("error", epoch_id, {"error": error}), first=first)

    def _feed_all(self) -> None:
        for training in self.trainings:
            self._feed(training)

    def _feed(self, training: Training) -> None:
        """Send a training what comes next, if it has picked up all that it was sent."""
        if training.unread is not None or not training.queue:
            return
        batch, private = training.queue[0].batch, False
        if batch is not None and not batch.lent and self._copy_policy.is_crowded:
            private = self._copy_policy.must_copy(training)
            if not private:
                return
        if batch is not None and not private:
            batch.lent.add(training)
        training.serial += 1
        training.unread = Sent(training.serial, training.queue.popleft(), private)
        training.waits_since = None
        self._send(training, training.unread)

    # ---- time ----

    def tick(self) -> None:
        """Do what time asks for; a few times a second."""
        self._feed_all()
        waiting = [training for training in self.trainings if training.waits_since is not None]
        if waiting:
            self._copy_policy.look()
        self._watchdog.look(waiting, self.clock(), self._progress_s)

"""Which training of a share gets what and when; states are placed by hand, time is the test's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringfeed import Loader, Shard, StallError
from ringfeed._failure import decode
from ringfeed.sharing.flow import GRACE_S, Entry, Flow, Training
from ringfeed.sharing.terms import Cut, Terms

pytestmark = pytest.mark.once
SLOTS = 4


class Stage:
    """A flow whose trainings have asked for their first epoch, and what each was sent."""

    def __init__(self, ranks: int = 2, slots: int = SLOTS, **given: Any) -> None:
        given = {"on_slow": "wait", "patience_s": 5.0, "timeout_s": 60.0, **given}
        terms = Terms(release="1", name="t", ranks=ranks, mode="broadcast", **given)
        self.now = 0.0
        self.sent: dict[int, list[Entry]] = {}
        self.flow = Flow(terms, slots, self._note, clock=lambda: self.now)
        self.trainings = [Training(pid) for pid in range(1, ranks + 1)]
        for training in self.trainings:
            assert self.flow.join(training) is None
            self.flow.ask(training, 1, None)
        self.flow.begin(self.flow.due())

    def _note(self, training: Training, sent: Entry) -> None:
        self.sent.setdefault(training.pid, []).append(sent)

    def fill(self) -> int:
        """Add batches while there may be more; returns how many."""
        count = 0
        while self.flow.may_take:
            self.flow.add(object(), {})
            count += 1
        return count

    def numbers(self, training: Training) -> list[int]:
        """Return the batches that a training was sent."""
        return [
            sent.batch.number for sent in self.sent.get(training.pid, []) if sent.batch is not None
        ]

    def texts(self, training: Training) -> list[str]:
        """Return the warnings and errors that it was sent."""
        entries = self.sent.get(training.pid, [])
        told = [entry.content["text"] for entry in entries if entry.kind == "warning"]
        return told + [
            decode(entry.content["error"]).text for entry in entries if entry.kind == "error"
        ]

    def take(self, training: Training) -> int:
        """Have a training pick up the batch that it was sent; returns its number."""
        assert training.unread is not None
        assert training.unread.batch is not None
        number = training.unread.batch.number
        self.flow.took(training, training.unread.serial)
        return number

    def pass_by(self, training: Training, batches: int) -> None:
        """Have a training pick up batches, each let go of when the next is there."""
        held = 0
        for _ in range(batches):
            if training.unread is None:
                self.wait(training, GRACE_S)
            number = self.take(training)
            self.flow.free(training, held)
            held = number
            self.fill()
        self.flow.free(training, held)
        self.fill()

    def wait(self, training: Training, seconds: float) -> None:
        """Have a training wait so long."""
        holds = {number for number, batch in self.flow.out.items() if training in batch.holds}
        self.flow.want(training, training.serial, frozenset(holds))
        self.flow.tick()
        self.now += seconds
        self.flow.tick()


def test_one_slot_is_left_to_the_workers() -> None:
    """Of four slots three are taken, and each training is sent one batch ahead."""
    stage = Stage()
    assert stage.fill() == SLOTS - 1
    assert [stage.numbers(training) for training in stage.trainings] == [[1], [1]]


def test_a_slot_goes_back_when_the_last_has_let_go() -> None:
    """A batch that one of two trainings holds keeps its slot."""
    stage = Stage()
    stage.fill()
    first, second = stage.trainings
    stage.flow.free(first, stage.take(first))
    assert not stage.flow.may_take
    stage.flow.free(second, stage.take(second))
    assert stage.flow.may_take


def test_a_training_that_holds_the_slots_is_handed_copies() -> None:
    """Where all slots that may be lent are held, a copy comes after a moment, the next at once."""
    stage = Stage(ranks=1)
    (training,) = stage.trainings
    stage.fill()
    held = [stage.take(training) for _ in range(3)]
    assert stage.numbers(training) == [1, 2, 3], "the fourth would take the last slot"
    stage.wait(training, GRACE_S / 2)
    assert stage.fill() == 0
    stage.now += GRACE_S
    for _ in range(3):
        stage.wait(training, 0.0)
        assert stage.fill() == 1
        assert stage.sent[training.pid][-1].private
        stage.flow.free(training, stage.take(training))
    stage.flow.free(training, held[0])
    assert stage.fill() == 1
    assert not stage.sent[training.pid][-1].private, "a slot has come back"


def test_what_was_lost_is_sent_again() -> None:
    """A training that waits though it was sent something gets it once more, as one batch."""
    stage = Stage(ranks=1)
    (training,) = stage.trainings
    stage.fill()
    stage.flow.want(training, 0, frozenset())
    assert stage.numbers(training) == [1, 1]
    assert stage.take(training) == 1
    assert stage.take(training) == 2


def test_what_is_held_no_longer_goes_back() -> None:
    """A training that waits says what it holds: Ctrl-C may have kept back what it gave back."""
    stage = Stage(ranks=1)
    (training,) = stage.trainings
    stage.fill()
    first, second, third = (stage.take(training) for _ in range(3))
    stage.flow.want(training, training.serial, frozenset({second}))
    assert stage.fill() == 2
    assert {first, third}.isdisjoint(stage.flow.out)
    assert second in stage.flow.out


def test_a_training_that_leaves_may_keep_arrays() -> None:
    """What it holds stays; what else it was sent goes back, also where few slots are left."""
    stage = Stage(slots=3)
    first, second = stage.trainings
    stage.fill()
    stage.take(second)
    stage.pass_by(first, 1)
    assert not stage.flow.may_take
    stage.flow.retire(second)
    for number in range(2, 12):
        assert stage.take(first) == number
        stage.flow.free(first, number)
        assert stage.fill() == 1
    assert [*stage.flow.out] == [1, 12]


def test_an_epoch_that_is_not_wanted_before_it_begins() -> None:
    """An iterator that is dropped before its epoch begins does not take part in it."""
    stage = Stage()
    first, second = stage.trainings
    stage.flow.end({})
    stage.flow.ask(first, 2, None)
    stage.flow.break_off(first, 2)
    stage.flow.ask(second, 2, None)
    assert not stage.flow.due()
    stage.flow.ask(first, 3, None)
    assert stage.flow.due() == [first, second]


def test_the_end_of_a_training_frees_what_it_had() -> None:
    """Held, sent or queued: nothing of a dead training keeps a slot, and the others go on."""
    stage = Stage()
    first, second = stage.trainings
    stage.fill()
    stage.take(second)
    stage.pass_by(first, 1)
    assert not stage.flow.may_take
    stage.flow.leave(second)
    assert stage.flow.may_take
    stage.fill()
    stage.pass_by(first, 20)
    assert stage.numbers(first) == [*range(1, 23)]


def test_the_last_to_leave_ends_the_epoch() -> None:
    """Where no training is in an epoch any more, no batch is taken for it."""
    stage = Stage()
    for training in stage.trainings:
        assert stage.flow.is_on
        stage.flow.break_off(training, 1)
    assert not stage.flow.is_on
    assert not stage.flow.may_take


def test_no_epoch_begins_before_all_ask() -> None:
    """The next epoch begins when the slowest asks for it, and without a training that has left."""
    stage = Stage(ranks=3)
    first, second, third = stage.trainings
    stage.flow.end({})
    stage.flow.ask(first, 2, None)
    assert not stage.flow.due()
    stage.flow.leave(third)
    assert not stage.flow.due()
    stage.flow.ask(second, 2, None)
    assert stage.flow.due() == [first, second]


def test_wait_tells_the_others_once() -> None:
    """With "wait" the others hear which training they wait for, and it loses nothing."""
    stage = Stage()
    first, second = stage.trainings
    stage.fill()
    stage.pass_by(first, 3)
    stage.wait(first, 5.0)
    stage.wait(first, 5.0)
    assert stage.texts(first) == [
        "share(name='t'): the other trainings have waited 5.0 s for pid 2, which has not taken a "
        "batch; on_slow='drop' or 'raise' goes on without it"
    ]
    stage.flow.took(first, first.serial)
    stage.pass_by(second, 3)
    assert stage.numbers(second)[:3] == [1, 2, 3]


def test_drop_loses_the_slow_ones_batches() -> None:
    """With "drop" the others go on; the slow one is told its loss, and goes on with the next."""
    stage = Stage(on_slow="drop")
    first, second = stage.trainings
    stage.fill()
    stage.pass_by(first, 3)
    stage.wait(first, 5.0)
    stage.fill()
    assert stage.numbers(first) == [1, 2, 3, 4]
    stage.pass_by(first, 1)
    stage.wait(first, 0.0)  # it is late already
    stage.fill()
    assert stage.numbers(first) == [1, 2, 3, 4, 5]
    assert second.lost == 2 + 1 - 1
    assert stage.take(second) == 1


@pytest.mark.parametrize("on_slow", ["drop", "raise"])
def test_the_slow_one_may_have_all_slots(on_slow: Any) -> None:
    """Where it has all slots but one, in hand or on their way, the last goes round as copies."""
    stage = Stage(slots=3, on_slow=on_slow)
    first, second = stage.trainings
    stage.fill()
    stage.take(second)
    stage.pass_by(first, 2)
    stage.wait(first, 5.0)
    for number in range(3, 8):
        stage.wait(first, GRACE_S)
        assert stage.fill() == 1
        assert stage.sent[first.pid][-1].private
        assert stage.take(first) == number
        stage.flow.free(first, number)


def test_raise_puts_the_slow_one_out() -> None:
    """With "raise" it gets an error, now and whenever it asks again; the others go on."""
    stage = Stage(on_slow="raise")
    first, second = stage.trainings
    stage.fill()
    stage.pass_by(first, 3)
    stage.wait(first, 5.0)
    stage.fill()
    stage.pass_by(first, 5)
    text = (
        "share(name='t'): the other trainings have waited 5.0 s for pid 2, which has not taken a "
        "batch; on_slow='raise' has put it out"
    )
    stage.flow.free(second, stage.take(second))
    assert stage.texts(second) == [text]
    stage.flow.took(second, second.serial)
    stage.flow.ask(second, 2, None)
    assert stage.texts(second) == [text, text]
    stage.flow.end({})
    stage.flow.ask(first, 2, None)
    assert stage.flow.due() == [first]


def test_drop_goes_on_at_the_border() -> None:
    """With "drop" an epoch begins without a training that is late, which joins amid it."""
    stage = Stage(on_slow="drop")
    first, second = stage.trainings
    stage.flow.end({})
    stage.flow.ask(first, 2, None)
    stage.wait(first, 4.0)
    assert not stage.flow.due()
    stage.wait(first, 1.0)
    assert stage.flow.due() == [first]
    stage.flow.begin([first])
    stage.fill()
    stage.flow.took(second, second.serial)
    stage.flow.ask(second, 2, None)
    assert (second.epoch_id, second.lost) == (2, SLOTS - 1)


def test_a_wait_without_end_is_an_error() -> None:
    """After timeout_s it says how many have come, or which training is waited for."""
    flow = Stage(ranks=2).flow
    stage = Stage(ranks=1)
    stage.flow.terms = flow.terms
    stage.flow.has_gathered, stage.flow.is_on = False, False
    stage.wait(stage.trainings[0], 60.0)
    assert stage.texts(stage.trainings[0]) == [
        "share(name='t'): 1 of 2 trainings have come within 60 s (pid 1); start the others, or "
        "give ranks= and timeout_s= as they are"
    ]
    stage.flow.has_gathered = True
    stage.flow.join(Training(2))
    stage.flow.took(stage.trainings[0], 1)
    text = (
        "share(name='t'): no batch for pid 1 within 60 s: it waits for pid 2; raise timeout_s or "
        "look there"
    )
    stage.trainings[0].asked = 2, None
    stage.wait(stage.trainings[0], 60.0)
    assert stage.texts(stage.trainings[0])[-1] == text, (
        "before its first epoch a training may take its time"
    )
    stage = Stage()
    first, _ = stage.trainings
    stage.fill()
    stage.pass_by(first, 3)
    stage.wait(first, 60.0)
    stage.flow.took(first, first.serial)  # the warning
    stage.wait(first, 60.0)
    stage.flow.took(first, first.serial)
    assert stage.texts(first)[-1] == text
    assert isinstance(StallError(), TimeoutError)


def test_one_more_than_there_may_be() -> None:
    """One more training, or one of a rank that is there, is refused in words."""
    stage = Stage(ranks=2)
    assert stage.flow.join(Training(9)) == (
        "share(name='t') has the 2 trainings that it was made for (pid 1, pid 2), and this is one "
        "more; give all of them a larger ranks=, or another name"
    )
    stage.flow.leave(stage.trainings[0])
    stage.trainings[1].rank = 1
    assert stage.flow.join(Training(9, rank=1)) == (
        "share(name='t') has a training of rank 1 already (pid 2); give each process a rank of "
        "its own"
    )
    assert stage.flow.join(Training(9, rank=0)) is None


@pytest.mark.parametrize("uneven", ["pad", "keep"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_are_those_of_a_loader(ranks: int, uneven: Any) -> None:
    """The rows of a global batch that a rank reads are those that a loader of that rank has."""
    for length in range(8, 8 + 3 * ranks):
        whole = Loader(np.arange(length), batch_size=4 * ranks, workers=0)
        batches = [batch.copy() for batch in whole]
        for rank in range(ranks):
            cut = Cut(rank, ranks, uneven)
            parts = [batch[cut.rows(len(batch))].tolist() for batch in batches]
            with Loader(
                np.arange(length), batch_size=4, workers=0, shard=Shard(rank, ranks, uneven)
            ) as loader:
                assert [part for part in parts if part] == [batch.tolist() for batch in loader]
                assert cut.padding(len(batches[-1])) == loader.padding
        whole.close()

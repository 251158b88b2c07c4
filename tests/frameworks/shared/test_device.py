"""Copies ahead of the step, against a device that reads slots as late as its events allow."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from typing import Any

import pytest

import ringfeed
from datasets import Misbehaving, Oracle, check, flat
from fakedevice import (
    LENGTH,
    ROWS,
    FakeDevice,
    at_once,
    at_random,
    epochs_of,
    held,
    never,
    oracle,
    outcomes,
    until_ready,
)
from ringfeed.engine import settling as waiting
from ringfeed.frameworks.device import AHEAD

pytestmark = pytest.mark.once

FILLED_BY = [{"workers": 0}, {"workers": 2, "backend": "thread"}, {"workers": 2}]


# ---- content and order ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("slots", [2, 3, 6])
@pytest.mark.parametrize("how", FILLED_BY, ids=str)
@pytest.mark.parametrize("pace", [never, at_once, at_random], ids=["slow", "quick", "random"])
def test_delivers_every_batch_right_and_in_order(
    pace: Any, how: dict[str, Any], slots: int
) -> None:
    """Slots are read before they are filled again and no batch is lost, however slow copies are."""
    device = FakeDevice(pace)
    with oracle(slots=slots, **how) as loader:
        epochs = epochs_of(loader, device)
        assert len(epochs) == 8
        for _ in range(2):
            batches = outcomes(epochs)
            assert [len(batch) for batch in batches] == [8] * 7 + [4]
            assert flat(batches) == list(range(LENGTH))
            assert len(loader._slots) == 0
            assert held(loader) == 0


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("deed", ["raises", "dies", "wrong_shape", "wrong_dtype"])
def test_errors_come_in_their_place(deed: str, on_error: Any) -> None:
    """Each next() is what it is without a device: the batch of that number, its error, the end."""
    settings = {"dataset": Misbehaving(deed), "max_attempts": 1, "on_error": on_error, "workers": 1}
    with oracle(**settings, copy=True) as loader:
        expected = outcomes(loader)
    for pace in (never, at_once):
        with oracle(**settings) as loader:
            found = outcomes(epochs_of(loader, FakeDevice(pace)))
        assert found == expected


def test_a_batch_of_failed_samples_alone_is_left_out() -> None:
    """Where on_error="skip" leaves nothing of a ready batch, the next one comes in its place."""
    with oracle(
        Misbehaving("raises", length=24), batch_size=1, workers=1, slots=3, on_error="skip"
    ) as loader:
        found = outcomes(epochs_of(loader, FakeDevice()))
    assert flat(found) == [index for index in range(24) if index != 17]


def test_a_batch_is_handed_over_when_it_is_asked_for() -> None:
    """The device hears of a batch in the thread of its next(), and not when its copy begins."""
    device = FakeDevice()
    with oracle() as loader:
        for count, _ in enumerate(epochs_of(loader, device), 1):
            assert device.handed_over == device.begun[:count]


# ---- how far ahead ----


def test_copies_one_ready_batch_ahead() -> None:
    """The next batch is under way while the program has one, and no more than AHEAD."""
    device = FakeDevice()
    with oracle(slots=4) as loader:
        epochs = iter(epochs_of(loader, device))
        until_ready(loader, 4)
        next(epochs)
        assert len(device.begun) == 1 + AHEAD
        until_ready(loader, 2)
        next(epochs)
        assert len(device.begun) == 2 + AHEAD


class Gated(Oracle):
    """Gives its first batch, and the others when the gate is open."""

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.gate = threading.Event()

    def __getitem__(self, index: int) -> Any:
        if index >= ROWS:
            assert self.gate.wait(120)
        return super().__getitem__(index)


def test_waits_for_no_batch_that_was_not_asked_for() -> None:
    """A batch is handed out although the next one is not there."""
    dataset = Gated()
    with oracle(dataset, workers=1, backend="thread") as loader:
        epochs = iter(epochs_of(loader, FakeDevice()))
        first = next(epochs)
        dataset.gate.set()
        rest = outcomes(epochs)
        assert check(first) + flat(rest) == list(range(LENGTH))


@pytest.mark.parametrize(("slots", "free"), [(2, 1), (3, 1), (4, 2)])
def test_leaves_the_workers_a_slot(slots: int, free: int) -> None:
    """Between two next() a slot is left to fill, also if no copy has passed by itself."""
    with oracle(slots=slots) as loader:
        epochs = iter(epochs_of(loader, FakeDevice()))
        until_ready(loader, slots)
        next(epochs)
        assert held(loader) == len(loader._slots) == slots - free


def test_gives_a_slot_back_when_its_copy_has_passed() -> None:
    """Not before, and at the next next() even if that takes no new batch."""
    device = FakeDevice()
    with oracle(Oracle(2 * ROWS), slots=4, ahead=False) as loader:
        epochs = iter(epochs_of(loader, device))
        until_ready(loader, 2)
        next(epochs)
        assert held(loader) == 2
        device.has_come = at_once
        assert held(loader) == 2
        next(epochs)
        assert held(loader) == 0
        assert device.waits == 0


def test_waits_for_its_copies_before_it_waits_for_a_batch() -> None:
    """No slot is held by a copy while workers may lack one."""
    dataset = Gated()
    device = FakeDevice()
    with oracle(dataset, workers=1, backend="thread", slots=2) as loader:
        epochs = iter(epochs_of(loader, device))
        next(epochs)
        assert held(loader) == 1
        thread = threading.Thread(target=next, args=(epochs,))
        thread.start()
        deadline_s = time.monotonic() + 120
        while held(loader):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        dataset.gate.set()
        thread.join(120)


def test_waits_for_a_framework_that_lets_go_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework may hold every slot beyond the copy: it is waited for as long as for a batch."""
    monkeypatch.setattr(waiting, "HELD_NS", 10**7)
    device, kept = FakeDevice(at_once), []
    copy = device.copy
    monkeypatch.setattr(device, "copy", lambda tensors: (kept.append(tensors), copy(tensors))[1])
    with oracle(slots=2, workers=1, backend="thread") as loader:
        epochs = iter(epochs_of(loader, device))
        found = [next(epochs), next(epochs)]
        assert held(loader) == 2
        timer = threading.Timer(0.3, lambda: (monkeypatch.undo(), kept.clear()))
        timer.start()
        found += list(epochs)
        timer.join(120)
        assert flat([check(batch) for batch in found]) == list(range(LENGTH))


# ---- ends ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", FILLED_BY, ids=str)
def test_breaking_off_gives_every_slot_back_at_once(how: dict[str, Any]) -> None:
    """A dropped iterator finishes its copies, lets go without a collection, and breaks off."""
    device = FakeDevice()
    with oracle(slots=3, **how) as loader:
        epochs = epochs_of(loader, device)
        gc.disable()
        try:
            for _ in range(3):
                batch = next(iter(epochs))
                assert len(loader._slots) == 0
                assert held(loader) == 0
                assert check(batch) == list(range(ROWS))
                loader.set_epoch(0)
        finally:
            gc.enable()
        assert flat(outcomes(epochs)) == list(range(LENGTH))


def test_an_error_holds_no_slot() -> None:
    """An error of a dropped iterator keeps neither slot nor iterator, without a collection."""
    with oracle(Misbehaving("raises"), slots=2, workers=1) as loader:
        gc.disable()
        try:
            epochs = iter(epochs_of(loader, FakeDevice()))
            found = 0
            while not found:
                try:
                    next(epochs)
                except ringfeed.WorkerError:
                    found = 1
            iterator = weakref.ref(epochs)
            del epochs
            assert iterator() is None
            assert held(loader) == 0
        finally:
            gc.enable()


def test_an_error_ahead_holds_no_slot() -> None:
    """An error that is kept for the next next() holds no slot meanwhile."""
    with oracle(Misbehaving("raises", at=ROWS), slots=4, workers=1) as loader:
        epochs = iter(epochs_of(loader, FakeDevice()))
        until_ready(loader, 4)
        assert check_later(next(epochs), loader) == list(range(ROWS))
        assert isinstance(epochs._queue[0][0], ringfeed.WorkerError)
        assert held(loader) == 0
        with pytest.raises(ringfeed.WorkerError, match="bad seventeen"):
            next(epochs)


def check_later(batch: Any, loader: ringfeed.Loader) -> list[int]:
    """Return the indices of a batch, once its copy is there."""
    loader._slots.wait()
    return check(batch)


def test_a_closed_loader_has_no_batch() -> None:
    """close() waits for the copies; the next next() says that the loader is closed."""
    loader = oracle(slots=4)
    epochs = iter(epochs_of(loader, FakeDevice()))
    until_ready(loader, 4)
    first = next(epochs)
    loader.close()
    assert len(loader._slots) == 0
    assert check(first) == list(range(ROWS))
    with pytest.raises(ringfeed.ClosedError) as caught:
        next(epochs)
    assert str(caught.value) == "this loader is closed; make a new one"


def test_an_older_iterator_is_superseded() -> None:
    """The newest iterator wins, though the older one has a batch that it copied ahead."""
    device = FakeDevice()
    with oracle(slots=4) as loader:
        epochs = epochs_of(loader, device)
        older = iter(epochs)
        until_ready(loader, 4)
        next(older)
        newer = iter(epochs)
        with pytest.raises(ringfeed.SupersededError) as caught:
            next(older)
        assert str(caught.value) == (
            "a newer iterator of this loader has taken over; finish one before you make the next"
        )
        assert flat(outcomes(newer)) == list(range(LENGTH))


def test_a_copy_that_cannot_begin_is_an_error_in_its_place() -> None:
    """A device out of memory costs one batch: its slot comes back, and the next next() goes on."""
    device = FakeDevice()
    with oracle(slots=2) as loader:
        epochs = iter(epochs_of(loader, device))
        found = [next(epochs)]
        device.refuses = MemoryError("no room on the device")
        lost = 0
        while not lost:
            try:
                found.append(next(epochs))
            except MemoryError:
                lost = len(found)
        rest = outcomes(epochs)
        expected = [number for number in range(LENGTH) if number // ROWS != lost]
        assert [*flat([check(batch) for batch in found]), *flat(rest)] == expected
        assert held(loader) == 0


def test_a_copy_that_breaks_gives_its_slot_back() -> None:
    """An error of the device is raised, and no slot stays held for it."""
    device = FakeDevice(at_once)
    with oracle(slots=2) as loader:
        epochs = iter(epochs_of(loader, device))
        next(epochs)
        device.breaks = RuntimeError("the device fell off the bus")
        with pytest.raises(RuntimeError, match=r"^the device fell off the bus$"):
            for _ in epochs:
                pass
        del epochs
        assert len(loader._slots) == 0
        assert held(loader) == 0


def test_a_forked_child_waits_for_no_copy() -> None:
    """A forked child that drops the iterator asks the device nothing; the copies go on."""
    device = FakeDevice()
    with oracle(workers=0) as loader:
        epochs = iter(epochs_of(loader, device))
        first = next(epochs)
        child = os.fork()
        if not child:
            status = 1
            try:
                del epochs
                loader.close()
                gc.collect()
                status = 2 if device.waits else 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rest = flat(outcomes(epochs))
        assert check(first) + rest == list(range(LENGTH))


# ---- the state ----


@pytest.mark.parametrize("pace", [never, at_once])
def test_the_state_counts_what_the_step_has(pace: Any) -> None:
    """What is copied ahead comes again after a resume; the last batch ends the epoch."""
    with oracle(workers=1, slots=4) as loader:
        epochs = epochs_of(loader, FakeDevice(pace))
        for count, _ in enumerate(epochs, 1):
            until_ready(loader, min(1, 7 - count))
            state = epochs.state_dict()
            assert (state["epoch"], state["samples"]) == (
                (0, count * ROWS) if count < 8 else (1, 0)
            )
        epochs.load_state_dict({**state, "epoch": 0, "samples": 3 * ROWS})
        assert flat(outcomes(epochs)) == [*range(3 * ROWS, LENGTH)]


@pytest.mark.parametrize("pace", [never, at_once])
def test_one_iterator_over_several_epochs(pace: Any) -> None:
    """What repeat() gives has the batches and the states of as many loops."""
    with oracle(workers=1, slots=4) as loader:
        epochs = epochs_of(loader, FakeDevice(pace))
        batches = epochs.repeat(2)
        for count, _ in enumerate(batches, 1):
            until_ready(loader, min(1, -count % 8))
            state = epochs.state_dict()
            assert (state["epoch"], state["samples"]) == (count // 8, count % 8 * ROWS)
        assert count == 16
        assert next(batches, None) is None
        assert flat(outcomes(epochs.repeat(2))) == [*range(LENGTH)] * 2


@pytest.mark.usefixtures("irreplaceable")
def test_workers_that_have_failed_end_repeat() -> None:
    """As without a device."""
    with oracle(Dying(LENGTH), workers=1, backend="fork", spec=Oracle.SPEC) as loader:
        batches = epochs_of(loader, FakeDevice(at_once)).repeat()
        with pytest.raises(ringfeed.WorkerError):
            next(batches)
        assert next(batches, None) is None


class Dying(Oracle):
    """Its workers die before they fill anything."""

    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


# ---- statistics ----


@pytest.mark.parametrize("computes", [False, True])
def test_a_wait_in_which_the_device_computes_is_no_stall(*, computes: bool) -> None:
    """The device has work left when the batch comes: the wait held up nothing."""
    device = FakeDevice(at_once)
    device.computes = computes
    with oracle(Oracle(LENGTH, sleep_s=0.01), workers=1) as loader:
        assert len(outcomes(epochs_of(loader, device))) == 8
        stats = loader.stats()
        assert (stats.stall_s - stats.startup_s < 1e-6) == computes

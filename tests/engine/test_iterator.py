"""Batches taken in one call, without the engine: whatever else happens to the loader meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import FOREVER_S, Oracle, check
from ringfeed.engine import engine as waits
from ringfeed.engine._iterator import BatchIterator
from ringfeed.engine.runner import EpochRunner
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH, ROWS = 400, 4


@pytest.fixture
def loader() -> Iterator[ringfeed.Loader]:
    """A loader of 100 batches; its iterator takes those during which nothing is to be planned."""
    with ringfeed.Loader(
        Oracle(LENGTH), batch_size=ROWS, workers=1, backend="thread", slots=4
    ) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the epochs of which the engine was asked for a batch."""
    ids: list[int] = []
    original = EpochRunner.resolve

    def counting(self: EpochRunner, epoch_id: int, *arguments: Any, **others: Any) -> None:
        ids.append(epoch_id)
        original(self, epoch_id, *arguments, **others)

    monkeypatch.setattr(EpochRunner, "resolve", counting)
    return ids


def all_ready(loader: ringfeed.Loader) -> None:
    """Wait until every slot that nobody holds has its batch."""
    wait_until(lambda: set(loader.slot_states()) <= {"ready", "held"})


def test_the_engine_is_asked_at_the_ends_only(loader: ringfeed.Loader, asked: list[int]) -> None:
    """An epoch that fits into one plan needs the engine for its first batch and its end."""
    iterator = iter(loader)
    assert isinstance(iterator, BatchIterator)
    assert iterator is iter(iterator)
    seen = [index for batch in iterator for index in check(batch)]
    assert seen == list(range(LENGTH))
    assert asked == [1, 1]
    assert loader.stats().batches == LENGTH // ROWS
    assert loader.stats().samples == LENGTH


def test_what_was_taken_is_counted_meanwhile(loader: ringfeed.Loader) -> None:
    """Statistics asked for in the midst of an epoch know every batch, and each once."""
    for number, _ in enumerate(loader, 1):
        if number % 7 == 0:
            assert (loader.stats().batches, loader.stats().samples) == (number, ROWS * number)
    assert loader.stats().batches == LENGTH // ROWS


def test_a_stall_in_one_call_is_counted() -> None:
    """What the iterator waits for by itself counts as stall, for statistics and onlookers."""
    with ringfeed.Loader(
        Oracle(16, sleep_s=0.02), batch_size=1, workers=1, backend="thread"
    ) as loader:
        began_s = time.monotonic()
        assert sum(1 for _ in loader) == 16
        took_s = time.monotonic() - began_s
        assert 0.1 < loader.stats().stall_s <= took_s


def test_there_is_always_more_planned_than_slots(asked: list[int]) -> None:
    """The iterator takes no more than leaves each slot a batch to be bound.

    Of a long epoch the engine plans more.
    """
    with ringfeed.Loader(
        np.arange(300_000), batch_size=8, workers=1, backend="thread", slots=4
    ) as loader:
        for batch in loader:
            engine = loader._runner.engine
            assert engine is not None
            assert engine.ring.planned >= 3 or engine.lookahead.order is None, batch
    assert 10 < len(asked) < 1000


def test_places_are_noted_from_now_on(loader: ringfeed.Loader) -> None:
    """debug() holds for the next batch, though the iterator had been given more than that."""
    iterator = iter(loader)
    held = [next(iterator)]
    ringfeed.debug()
    try:
        held.append(next(iterator))
        places = [held.place for held in loader.stats().memory.held]
    finally:
        ringfeed.debug(on=False)
    assert [Path(place.split(":")[0]).name for place in places] == [
        "before ringfeed.debug()",
        "test_iterator.py",
    ]


def test_an_older_iterator_takes_nothing(loader: ringfeed.Loader) -> None:
    """What was given to an iterator is the newer one's from its first moment on."""
    older = iter(loader)
    check(next(older))
    newer = iter(loader)
    seen = check(next(newer))
    all_ready(loader)
    with pytest.raises(ringfeed.SupersededError):
        next(older)
    assert seen + [index for batch in newer for index in check(batch)] == list(range(LENGTH))


def test_a_dropped_iterator_breaks_its_epoch_off(loader: ringfeed.Loader) -> None:
    """The last reference to the iterator is the caller's own: nothing that was lent keeps it."""
    iterator = iter(loader)
    check(next(iterator))
    del iterator
    assert loader._runner.engine is not None
    assert loader._runner.engine.ring.planned == 0


def test_nothing_is_taken_of_a_closed_loader(loader: ringfeed.Loader) -> None:
    """Closed means closed, also for batches that are ready and lent."""
    iterator = iter(loader)
    check(next(iterator))
    all_ready(loader)
    loader._runner.request_stop()
    with pytest.raises(ringfeed.ClosedError):
        next(iterator)


def test_a_forked_child_takes_nothing(loader: ringfeed.Loader) -> None:
    """In a forked child the iterator is refused, and the parent's next batch is still its own."""
    iterator = iter(loader)
    seen = check(next(iterator))
    all_ready(loader)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except ringfeed.ClosedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    seen += [index for batch in iterator for index in check(batch)]
    assert seen == list(range(LENGTH))


class Failing(Oracle):
    """One sample of it raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 42:
            raise KeyError(index)
        return super().__getitem__(index)


def test_a_failure_is_left_to_the_engine() -> None:
    """Among batches that are taken in one call, a failed one is an error in its place."""
    seen, errors = [], []
    with ringfeed.Loader(Failing(100), batch_size=ROWS, workers=1, backend="thread") as loader:
        iterator = iter(loader)
        while True:
            try:
                seen += check(next(iterator))
            except ringfeed.WorkerError as error:
                errors.append((len(seen), str(error)))
            except StopIteration:
                break
    assert errors == [(40, "dataset[42] raised KeyError: 42")]
    assert seen == [index for index in range(100) if index // ROWS != 42 // ROWS]


def test_threads_share_an_iterator() -> None:
    """Of an iterator that several threads use each batch comes once, whoever waits.

    All are told of the end.
    """
    seen: list[list[int]] = [[] for _ in range(4)]
    with ringfeed.Loader(
        Oracle(LENGTH, sleep_s=0.0005), batch_size=ROWS, workers=2, backend="thread", slots=6
    ) as loader:
        iterator = iter(loader)

        def take(mine: list[int]) -> None:
            for batch in iterator:
                mine += check(batch)

        threads = [threading.Thread(target=take, args=(mine,), daemon=True) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert sorted(index for mine in seen for index in mine) == list(range(LENGTH))
        assert loader.stats().batches == LENGTH // ROWS


@pytest.fixture
def wait_for_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The iterator waits by itself for as long as it takes."""
    monkeypatch.setattr(waits, "OWN_WAIT_NS", FOREVER_S * 10**9)


class Gate:
    """Its samples from 8 on come when the gate is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.int64:
        if index >= 8:
            self.opened.wait(FOREVER_S)
        return np.int64(index)


class Waiting:
    """A loader whose iterator waits by itself in the main thread when a signal comes."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.loader = ringfeed.Loader(
            self.gate, batch_size=4, workers=1, backend="thread", timeout_s=FOREVER_S
        )
        self.iterator = iter(self.loader)
        for _ in range(2):
            next(self.iterator)

    def interrupted_by(self, act: Any) -> None:
        """Have a signal's handler act while the next batch is waited for."""
        signal.signal(signal.SIGALRM, lambda *_: act(self))
        signal.setitimer(signal.ITIMER_REAL, 0.3)


@pytest.fixture
def waiting(wait_for_slots: None) -> Iterator[Waiting]:  # noqa: ARG001 - it is in force
    """Such a loader, with the signal's former handler put back."""
    before = signal.getsignal(signal.SIGALRM)
    made = Waiting()
    try:
        yield made
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        made.gate.opened.set()
        made.loader.close()


def test_a_handler_takes_the_batch_that_is_waited_for(waiting: Waiting) -> None:
    """A signal's handler that iterates, too, has its batch.

    Whoever was interrupted has the next one.
    """
    by_handler: list[Any] = []

    def act(waiting: Waiting) -> None:
        waiting.gate.opened.set()
        by_handler.extend(next(waiting.iterator))

    waiting.interrupted_by(act)
    assert list(next(waiting.iterator)) == [12, 13, 14, 15]
    assert by_handler == [8, 9, 10, 11]
    assert [next(iter(batch)) for batch in waiting.iterator] == list(range(16, 40, 4))
    assert waiting.loader.stats().batches == 10


def test_a_handler_that_raises_loses_no_batch(waiting: Waiting) -> None:
    """An exception out of a wait, as Ctrl-C is, leaves the batch to the next call.

    The wait counts.
    """

    def act(waiting: Waiting) -> None:
        waiting.gate.opened.set()
        raise KeyboardInterrupt

    waiting.interrupted_by(act)
    with pytest.raises(KeyboardInterrupt):
        next(waiting.iterator)
    assert waiting.loader.stats().stall_s > 0.1
    assert [next(iter(batch)) for batch in waiting.iterator] == list(range(8, 40, 4))


def test_a_handler_that_closes_ends_the_wait(waiting: Waiting) -> None:
    """A loader that is closed while its iterator waits says so."""
    waiting.interrupted_by(lambda waiting: waiting.loader.close())
    with pytest.raises(ringfeed.ClosedError):
        next(waiting.iterator)


def test_a_handler_that_begins_an_epoch_supersedes(waiting: Waiting) -> None:
    """Who waited in an epoch that a handler breaks off is told, and takes none of the next."""
    newer: list[Any] = []
    waiting.interrupted_by(
        lambda waiting: (newer.append(iter(waiting.loader)), waiting.gate.opened.set())
    )
    for _ in range(2):
        with pytest.raises(ringfeed.SupersededError):
            next(waiting.iterator)
        wait_until(lambda: "ready" in waiting.loader.slot_states())
    assert [next(iter(batch)) for batch in newer[0]] == list(range(0, 40, 4))


def test_another_thread_closes_during_the_wait(waiting: Waiting) -> None:
    """Closing from another thread ends the wait at once, not at the end of the wait."""
    closer = threading.Timer(0.3, waiting.loader._runner.request_stop)
    closer.start()
    with pytest.raises(ringfeed.ClosedError):
        next(waiting.iterator)
    closer.join(60)


def test_vain_waits_count_towards_the_timeout() -> None:
    """The iterator's own waits and the engine's are one wait.

    StallError comes after timeout_s, with its text.
    """
    gate = Gate()
    with ringfeed.Loader(gate, batch_size=4, workers=1, backend="thread", timeout_s=0.4) as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        began_s = time.monotonic()
        with pytest.raises(ringfeed.StallError):
            next(iterator)
        assert time.monotonic() - began_s >= 0.4
        gate.opened.set()
        assert next(iterator).tolist() == [8, 9, 10, 11]


def test_a_form_that_raises_loses_its_batch_only(loader: ringfeed.Loader) -> None:
    """What an adapter makes of a batch may fail.

    The slot is free again, and the next batch comes.
    """

    def form(lease: Any, rows: int) -> tuple[int, int]:
        if lease.batch % 10 == 3:
            raise TimeoutError(lease.batch)
        return lease.batch, rows

    made, errors = [], 0
    iterator = loader._stream.epoch(form)
    while True:
        try:
            made.append(next(iterator))
        except TimeoutError:
            errors += 1
        except StopIteration:
            break
    assert errors == 10
    assert made == [(number, ROWS) for number in range(100) if number % 10 != 3]
    assert "held" not in loader.slot_states()


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        (np.arange(8), np.ndarray),
        ((np.arange(8), np.arange(8)), tuple),
        ({"a": np.arange(8), "b": (np.arange(8), np.arange(8))}, dict),
    ],
    ids=["leaf", "tuple", "nested"],
)
def test_batches_have_the_structure_of_a_sample(dataset: Any, kind: type) -> None:
    """Both ways of taking give the same structure, with copies and without."""
    for copy in (False, True):
        with ringfeed.Loader(
            dataset, batch_size=4, workers=1, backend="thread", copy=copy
        ) as loader:
            batches = list(loader)
            assert [type(batch) for batch in batches] == [kind, kind]
            found = (
                batches[1]["b"][1]
                if kind is dict
                else batches[1][1]
                if kind is tuple
                else batches[1]
            )
            assert found.tolist() == [4, 5, 6, 7]
            del batches, found

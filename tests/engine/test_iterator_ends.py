"""Batches taken in one call.

What is lent while the engine is stopped, superseded, changed or due to be looked at.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import FOREVER_S
from ringfeed.engine.engine import Engine
from ringfeed.keras.pydataset import DatasetFeed
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_EXIT = """
import atexit, threading, time
atexit.register(time.sleep, 0.5)  # runs after the loader's end
import numpy as np
import ringfeed

def train():
    for batch in iterator:
        time.sleep(0.001)

iterator = iter(ringfeed.Loader(np.arange(400_000), batch_size=8, workers=1, backend="thread", slots=4))
next(iterator)
threading.Thread(target=train, daemon=True).start()
time.sleep(0.2)
"""


def test_a_daemon_thread_iterates_on_at_the_interpreters_end() -> None:
    """A thread that asks for batches when its loader's engine has been stopped is parked.

    The exit is a clean one.
    """
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


class Gate:
    """Its samples from 4 on come when the gate is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        if index >= 4:
            self.opened.wait(FOREVER_S)
        return np.int64(index)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Whatever handles SIGALRM meanwhile, the former handler is put back."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_whoever_is_superseded_in_the_engine_is_lent_nothing() -> None:
    """A handler that begins an epoch while the engine waits gets the newer epoch's batches."""
    gate = Gate()
    newer: list[Any] = []
    with ringfeed.Loader(
        gate, batch_size=4, workers=1, backend="thread", slots=4, timeout_s=FOREVER_S
    ) as loader:
        older = iter(loader)
        assert loader._runner.engine is not None
        assert next(older)[0] == 0
        loader._runner.engine.intake.own_wait_ns = 0  # so that the wait is the engine's

        def begin(*_: object) -> None:
            newer.append(iter(loader))
            gate.opened.set()

        signal.signal(signal.SIGALRM, begin)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        for _ in range(2):
            with pytest.raises(ringfeed.SupersededError):
                next(older)
            wait_until(lambda: "ready" in loader.slot_states())
        assert [batch[0] for batch in newer[0]] == list(range(0, 400, 4))


@pytest.mark.usefixtures("alarm")
def test_a_handler_that_takes_between_the_look_and_the_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ready batch that a handler takes from the engine is waited for again, not an error."""
    gate = Gate()
    with ringfeed.Loader(
        gate, batch_size=4, workers=1, backend="thread", slots=4, timeout_s=FOREVER_S
    ) as loader:
        iterator = iter(loader)
        engine = loader._runner.engine
        assert engine is not None
        seen = [next(iterator)[0]]
        original = Engine.wait

        def wait(self: Engine, build: Any) -> None:
            monkeypatch.setattr(Engine, "wait", original)
            gate.opened.set()
            original(self, build)
            seen.extend([next(iterator)[0] for _ in range(3)])

        engine.intake.own_wait_ns = 0
        monkeypatch.setattr(Engine, "wait", wait)
        seen.extend(batch[0] for batch in iterator)
        assert seen == list(range(0, 400, 4))


def test_a_look_that_is_due_is_not_put_off() -> None:
    """However many batches were to come between two looks when they came fast.

    The tuner looks when it is time to.
    """
    with ringfeed.Loader(
        np.arange(80_000), batch_size=8, workers=1, backend="thread", slots="auto"
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._runner.engine is not None
        resizer = loader._runner.engine.resizer
        assert resizer is not None
        wait_until(lambda: "ready" in loader.slot_states())
        next(iterator)
        due_ns = resizer.due_ns
        time.sleep(0.2)  # a step that is slow
        wait_until(lambda: "ready" in loader.slot_states())
        next(iterator)
        assert resizer.due_ns > due_ns


def test_no_slot_is_opened_of_an_engine_that_is_stopped() -> None:
    """A wait for views at the interpreter's end goes on, and sees that the engine is stopped."""
    with ringfeed.Loader(
        np.arange(80_000), batch_size=8, workers=1, backend="thread", slots="auto"
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        engine = loader._runner.engine
        assert engine is not None
        assert engine.resizer is not None
        engine.stop()
        assert not engine.resizer.open_another()
        with pytest.raises(ringfeed.ClosedError):
            list(iterator)


class Changing:
    """Whole batches of what a hook has counted; batch 95 waits until that has run."""

    def __init__(self) -> None:
        self.ended = 0
        self.changed = threading.Event()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        ended = self.ended
        if index == 95:
            self.changed.wait(FOREVER_S)
        return np.full((1, 1), ended)

    def on_epoch_end(self) -> None:
        self.ended += 1


def test_a_hook_that_runs_during_a_wait_reaches_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where another thread's hook runs during a wait for a batch, that batch is read anew."""
    dataset = Changing()
    seen: list[int] = []
    original = Engine.wait

    def wait(engine: Engine, build: Any) -> None:
        if len(seen) == 95 and not dataset.ended:
            wait_until(
                lambda: engine.observer.states().count("ready") >= 3
            )  # behind it, as they were before
            feed.run_hook("on_epoch_end")
            dataset.changed.set()
        original(engine, build)

    monkeypatch.setattr(Engine, "wait", wait)
    feed = DatasetFeed(dataset, workers=2, backend="thread", slots=6, timeout_s=FOREVER_S)
    with feed.loader:
        seen.extend(
            int(batch[0, 0]) for batch in feed.loader
        )  # one at a time: it is looked at meanwhile
    assert dataset.ended == 1
    assert seen == [0] * 95 + [1] * 5

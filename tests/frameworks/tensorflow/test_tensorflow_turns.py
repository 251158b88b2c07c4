"""Iterations over one loader that meet each other, Ctrl-C, and hooks that raise.

Right batches or an error.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf

import ringfeed
from datasets import Oracle, check
from leftovers import present
from watching import PATIENCE_S, wait_until


def eager(loader: ringfeed.Loader) -> tf.data.Dataset:
    """A dataset of which nothing is asked ahead."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return loader.to_tf_dataset().with_options(options)


def rows(batch: Any) -> list[int]:
    """The indices of an Oracle's batch, which must be right."""
    return list(check(tuple(leaf.numpy() for leaf in batch)))


def test_close_gives_the_memory_back() -> None:
    """The slots go when the loader is closed, though its dataset stays."""
    before = {line for line in present() if "mapping" in line}
    with ringfeed.Loader(Oracle(96), batch_size=8, workers=1, backend="thread", slots=3) as loader:
        dataset = loader.to_tf_dataset()
        assert sum(len(rows(batch)) for batch in dataset) == 96
    wait_until(lambda: not {line for line in present() if "mapping" in line} - before)
    assert dataset.cardinality() == 12


class Stuck:
    """Samples of which the ninth does not come before it is let through."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.float32:
        if index == 8:
            self.go_on.wait(PATIENCE_S)
        return np.float32(index)


def test_a_new_epoch_has_the_whole_timeout() -> None:
    """What an iteration has waited that was taken over is not counted against the next one."""
    stuck, waited_ns = Stuck(), int(PATIENCE_S / 2 * 1e9)
    with ringfeed.Loader(
        stuck, batch_size=4, workers=1, backend="thread", slots=6, timeout_s=PATIENCE_S
    ) as loader:
        errors: list[str] = []

        def walk() -> None:
            try:
                list(eager(loader))
            except tf.errors.OpError as error:
                errors.append(str(error))

        thread = threading.Thread(target=walk)
        thread.start()
        wait_until(lambda: loader.stats().batches == 2)
        ring = loader._runner.engine.ring  # type: ignore[union-attr]
        ring.waited_ns = waited_ns
        batches = iter(loader)
        assert ring.waited_ns < waited_ns
        stuck.go_on.set()
        assert next(batches).tolist() == [0, 1, 2, 3]
        thread.join(120)
    assert "SupersededError" in errors[0]


class Hooked(Oracle):
    """The second epoch cannot begin."""

    begun = 0

    def on_epoch_begin(self) -> None:
        self.begun += 1
        if self.begun == 2:
            raise KeyError(self.begun)


class Ends(Oracle):
    """The end of its epoch raises."""

    def on_epoch_end(self) -> None:
        raise KeyError


@pytest.mark.parametrize("copy", [False, True])
def test_an_end_that_raises_costs_no_batch(copy: bool) -> None:  # noqa: FBT001 - a parameter
    """Of the op, and where TensorFlow takes batches through Python."""
    with ringfeed.Loader(Ends(32), batch_size=8, workers=1, backend="thread", copy=copy) as loader:
        batches, found, errors = iter(eager(loader)), list[int](), list[str]()
        while True:
            try:
                found += rows(next(batches))
            except StopIteration:
                break
            except tf.errors.OpError as error:
                errors.append(str(error))
    assert found == [*range(32)]
    assert ["KeyError" in error for error in errors] == [True]


def test_an_epoch_that_cannot_begin_takes_over() -> None:
    """A call for an epoch ends the one before, also where the hook raises."""
    with ringfeed.Loader(Hooked(96), batch_size=8, workers=1, backend="thread", slots=3) as loader:
        old = iter(eager(loader))
        assert rows(next(old)) == list(range(8))
        with pytest.raises(KeyError):
            iter(loader)
        with pytest.raises(tf.errors.OpError, match="SupersededError: a newer iterat"):
            next(old)


class FailingOnce:
    """The first sample fails, or takes a second."""

    fails = False

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> np.float32:
        if index == 0 and self.fails:
            raise KeyError(index)
        time.sleep(1 if index == 0 else 0)
        return np.float32(index)


def test_an_older_iteration_takes_no_batch_of_a_newer_one() -> None:
    """An iteration whose first batch was an error hears at the next that a newer one has begun."""
    dataset = FailingOnce()
    with ringfeed.Loader(
        dataset, batch_size=4, workers=1, backend="thread", slots=3, timeout_s=120
    ) as loader:
        batches = eager(loader)
        dataset.fails = True
        older = iter(batches)
        with pytest.raises(tf.errors.OpError, match="KeyError: 0"):
            next(older)
        dataset.fails = False
        newer, found = iter(batches), []
        thread = threading.Thread(target=lambda: found.append(next(newer).numpy().tolist()))
        thread.start()
        wait_until(lambda: loader.epoch == 2)
        time.sleep(0.1)
        with pytest.raises(tf.errors.OpError, match="SupersededError"):
            next(older)
        thread.join(120)
    assert found == [[0, 1, 2, 3]]


class Interrupted:
    """A ring; Ctrl-C comes when more has been planned for the first time."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring
        self.armed = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ring, name)

    def set_low_water(self, batches: int) -> None:
        self.ring.set_low_water(batches)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def test_an_epoch_goes_on_after_ctrl_c() -> None:
    """A Ctrl-C that is caught between two steps of the engine loses no batch of the epoch."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with ringfeed.Loader(
            {"i": np.arange(64000)}, batch_size=32, workers=1, on_error="skip"
        ) as loader:
            batches = iter(eager(loader))
            seen = [len(next(batches)["i"]) for _ in range(100)]
            engine: Any = loader._runner.engine
            engine.lookahead._ring = Interrupted(engine.ring)
            errors = 0
            while errors < 3:
                try:
                    seen.append(len(next(batches)["i"]))
                except StopIteration:
                    break
                except (tf.errors.OpError, KeyboardInterrupt):
                    errors += 1
            assert sum(seen) == 64000
            assert errors == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_copies_hold_no_slots() -> None:
    """With copy=True what is kept of a dataset holds no slot."""
    with ringfeed.Loader(np.arange(96.0), batch_size=8, workers=1, slots=4, copy=True) as loader:
        kept = list(eager(loader))
        assert "held" not in loader.slot_states()
        assert np.concatenate(kept).tolist() == list(range(96))
        gc.collect()

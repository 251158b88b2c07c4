"""A batch that the engine settles.

Whatever else takes, closes, plans anew or is interrupted meanwhile.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Oracle, check
from ringfeed.engine.engine import Engine
from ringfeed.engine.settling import Settler
from ringfeed.ring import _ring
from watching import wait_until


class Gaps(Oracle):
    """The samples 1, 6, 11 and so on raise."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 1:
            raise ValueError(index)
        return super().__getitem__(index)


GOOD = [index for index in range(60) if index % 5 != 1]


@pytest.mark.parametrize("step", ["_good_rows", "_loss", "find_place"])
def test_a_handler_that_takes_the_batch_being_settled(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps are closed once: a handler that iterates in the midst of it has that batch.

    Its caller the next one.
    """
    seen: list[int] = []
    with ringfeed.Loader(
        Gaps(60), batch_size=10, workers=1, backend="thread", slots=4, on_error="skip"
    ) as loader:
        batches = iter(loader)
        original = getattr(Settler, step)

        def nested(*arguments: Any) -> Any:
            monkeypatch.setattr(Settler, step, original)
            found = original(*arguments)
            seen.extend(check(next(batches)))
            return found

        monkeypatch.setattr(Settler, step, nested)
        for batch in batches:
            seen.extend(check(batch))
        assert seen == GOOD
        stats = loader.stats()
        assert (stats.batches, stats.samples, sorted(stats.skipped)) == (
            6,
            48,
            list(range(1, 60, 5)),
        )


@pytest.mark.parametrize("act", ["close", "epoch"])
def test_a_handler_that_ends_the_epoch_of_the_batch_being_settled(
    act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is told, and nothing of the batch is handed out."""
    with ringfeed.Loader(
        Gaps(60), batch_size=10, workers=1, backend="thread", slots=2, on_error="skip"
    ) as loader:
        batches = iter(loader)
        newer: list[Any] = []
        original = Settler.find_place

        def nested(settler: Settler, build: Any) -> None:
            monkeypatch.setattr(Settler, "find_place", original)
            if act == "close":
                loader.close()
            else:
                newer.append(iter(loader))
            original(settler, build)

        monkeypatch.setattr(Settler, "find_place", nested)
        with pytest.raises(ringfeed.ClosedError if act == "close" else ringfeed.SupersededError):
            next(batches)
        if newer:
            assert [index for batch in newer[0] for index in check(batch)] == GOOD


def test_an_answer_may_be_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that was empty, or at another epoch, ends no epoch of planned batches."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend="thread") as loader:
        batches = iter(loader)
        original = Engine.resolve
        answers = iter([_ring.STALE, _ring.DRY])

        def late(self: Engine, answer: int, *arguments: Any, **others: Any) -> None:
            original(self, next(answers, answer), *arguments, **others)

        monkeypatch.setattr(Engine, "resolve", late)
        assert [index for batch in batches for index in check(batch)] == list(range(40))


class Gate:
    """Samples that come when the gate is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self.opened.wait(600)
        return np.int64(index)


def test_each_stall_is_waited_for_as_long() -> None:
    """After a StallError the next wait has all of timeout_s, and the batch comes when it can."""
    gate = Gate()
    with ringfeed.Loader(
        gate,
        batch_size=4,
        workers=1,
        backend="thread",
        timeout_s=0.2,
        spec=ringfeed.Array((), "int64"),
    ) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(ringfeed.StallError):
                next(batches)
            assert loader._runner.engine is not None
            assert loader._runner.engine.ring.waited_ns == 0
        gate.opened.set()
        assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_is_dropped_before_it_is_handed_out_is_not_counted() -> None:
    """A batch whose warning is raised, and whose epoch is then broken off, was not delivered."""
    with ringfeed.Loader(
        Gaps(60), batch_size=10, workers=1, backend="thread", slots=3, on_error="skip"
    ) as loader:
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ringfeed.SlotsHeldWarning):
                next(batches)
        newer = iter(loader)
        assert (loader.stats().batches, loader.stats().samples) == (
            2,
            sum(len(check(batch)) for batch in kept),
        )
        del newer


def test_debug_that_ctrl_c_ends_leaves_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator goes on though Ctrl-C comes while debug() is switched off."""
    original = _ring.note_takes

    def interrupted(on: bool) -> None:  # noqa: FBT001 - as the original
        if not on:
            monkeypatch.undo()
            raise KeyboardInterrupt
        original(on)

    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend="thread") as loader:
        batches = iter(loader)
        ringfeed.debug()
        try:
            seen = check(next(batches))
            monkeypatch.setattr(_ring, "note_takes", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ringfeed.debug(on=False)
            wait_until(lambda: "ready" in loader.slot_states())
            seen += [index for batch in batches for index in check(batch)]
        finally:
            ringfeed.debug(on=False)
        assert seen == list(range(40))

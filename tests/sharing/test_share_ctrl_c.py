"""Ctrl-C, at each step where Python may raise it."""

from __future__ import annotations

import itertools
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import shared

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Interrupter:
    """Raises KeyboardInterrupt where Python may: at the n-th call of our functions, or return."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.has_come = False

    def __call__(self, frame: Any, event: str, _argument: Any) -> None:
        """Be told of a call."""
        if event in {"call", "c_return"} and "/sharing/" in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                self.has_come = True
                raise KeyboardInterrupt

    def run(self, call: Callable[[], Any]) -> Any:
        """Return what the call does, which may be interrupted."""
        sys.setprofile(self)
        try:
            return call()
        finally:
            sys.setprofile(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_each_step(share: shared.Share) -> None:
    """Wherever Ctrl-C comes in ``next()``, the next call gives that batch, and no slot is lost."""
    (training,) = share.all(1)
    batches: Any = iter(())
    found = []
    for number in itertools.count(1):
        interrupter, batch = Interrupter(number), None
        while batch is None:
            try:
                batch = interrupter.run(partial(next, batches, None))
                batches = iter(training) if batch is None else batches
            except KeyboardInterrupt:
                assert interrupter.has_come
        assert shared.is_right(batch)
        batch[0][...] = 0
        found.append(batch[1].tolist())
        if not interrupter.has_come:
            break
    assert number > 20
    assert found == shared.expected(-(-number // 12))[:number]
    assert training.stats().copies == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_as_an_epoch_begins(share: shared.Share) -> None:
    """The place that was asked for is asked for again."""
    (training,) = share.all(1)
    for number in itertools.count(1):
        training.set_epoch(number % 3)
        interrupter = Interrupter(number)
        try:
            batches = interrupter.run(partial(iter, training))
        except KeyboardInterrupt:
            batches = iter(training)
        assert next(batches)[1].tolist() == shared.expected(3)[number % 3 * 12]
        if not interrupter.has_come:
            break
    assert number > 10

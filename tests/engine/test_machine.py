"""A state machine over everything a user can do with a loader, with a list as the model."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ringfeed
from datasets import Oracle, check

pytestmark = pytest.mark.once

LENGTH = 23
ROWS = 3
SLOTS = 4


class LoaderMachine(RuleBasedStateMachine):
    """next / hold / drop / slice / break / new epoch / close, in any order."""

    how: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.loader = ringfeed.Loader(
            Oracle(LENGTH), batch_size=ROWS, shuffle=True, seed=3, slots=SLOTS, **self.how
        )
        orders = ringfeed.Loader(
            np.arange(LENGTH), batch_size=ROWS, shuffle=True, seed=3, workers=0, copy=True
        )
        self.epochs = [[batch.tolist() for batch in orders] for _ in range(12)]
        orders.close()
        self.epoch = -1
        self.iterator: Any = None
        self.model: list[list[int]] = []  # what the iterator has yet to give
        self.held: list[tuple[Any, list[int]]] = []  # whole batches, and the indices they must show
        self.pieces: list[tuple[Any, Any]] = []  # slices, and their content
        self.open = True

    @precondition(lambda self: self.open and self.epoch < 11)
    @rule()
    def begin_epoch(self) -> None:
        """A new epoch begins, whatever is left of the old one."""
        self.iterator = iter(self.loader)
        self.epoch += 1
        self.model = list(self.epochs[self.epoch])

    @precondition(lambda self: self.open and self.iterator is not None)
    @rule(hold=st.booleans(), cut=st.booleans())
    def take(self, hold: bool, cut: bool) -> None:  # noqa: FBT001 - drawn
        """The next batch is the model's next, or the end."""
        batch = next(self.iterator, None)
        if not self.model:
            assert batch is None
            return
        assert check(batch) == self.model[0]
        indices = self.model.pop(0)
        if hold:
            self.held.append((batch, indices))
        elif cut:
            piece = batch[0][1:, ::2]
            self.pieces.append((piece, piece.copy()))

    def batches_in_hand(self) -> int:
        """How many batches the machine keeps, as views or as private copies."""
        return len(self.held) + len(self.pieces)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        """Any held batch is let go, in any order."""
        del self.held[which % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def slice(self, which: int) -> None:
        """A slice takes the place of a held batch."""
        batch, _ = self.held.pop(which % len(self.held))
        piece = batch[0][:2, 1]
        self.pieces.append((piece, piece.copy()))

    @precondition(lambda self: self.pieces)
    @rule(which=st.integers(0, 99))
    def drop_slice(self, which: int) -> None:
        """Any slice is let go."""
        del self.pieces[which % len(self.pieces)]

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def break_off(self) -> None:
        """The iterator is dropped in mid-epoch."""
        self.iterator = None
        self.model = []

    @precondition(lambda self: self.open and self.epoch >= 2)
    @rule()
    def close(self) -> None:
        """The loader is closed; held views stay."""
        self.loader.close()
        self.open = False
        self.iterator = None

    @rule()
    def look_on(self) -> None:
        """Statistics are there at all times; a closed loader refuses to begin."""
        assert self.loader.stats().samples <= LENGTH * (self.epoch + 1)
        if not self.open:
            with pytest.raises(ringfeed.ClosedError):
                iter(self.loader)

    @invariant()
    def views_are_untouched(self) -> None:
        """Nothing held was overwritten, no more slots are held than views hold.

        One is left to be filled.
        """
        for batch, indices in self.held:
            assert check(batch) == indices
        for piece, before in self.pieces:
            assert (piece == before).all()
        if self.open:
            assert self.loader.slot_states().count("held") <= min(self.batches_in_hand(), SLOTS - 1)

    def teardown(self) -> None:
        """Close, and let go."""
        self.loader.close()
        self.held.clear()
        self.pieces.clear()
        self.iterator = None
        gc.collect()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning")
@pytest.mark.parametrize(
    ("how", "examples"),
    [
        ({"workers": 0}, 60),
        ({"workers": 2, "backend": "thread"}, 40),
        ({"workers": 2, "backend": "fork"}, 20),
    ],
    ids=["in process", "threads", "fork"],
)
def test_any_order_of_steps(how: dict[str, Any], examples: int) -> None:
    """Whatever the order of steps, batches are the model's and views are untouched."""
    machine = type("Machine", (LoaderMachine,), {"how": how})
    bounded = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=bounded)

"""What an order adds to a loader's state.

What does not fit is a StateError when it is loaded, and changes nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

LENGTH = 24
CHANGED = "; it was changed since"
SHOWN = r"the state's 'sampler' is \{.*(\}|\.\.\.[0-9a-f]{8})"  # what there is, shortened


class Numbers:
    """Goes on by itself where its own state was taken."""

    def __init__(self, rows: int = 0) -> None:
        self.rows = rows
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        for at in range(self.begun, LENGTH, self.rows or 1):
            self.begun = at + (self.rows or 1)
            yield list(range(at, self.begun)) if self.rows else at
        self.begun = 0

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun = state["begun"]


def over_samples(**settings: Any) -> ringfeed.Loader:
    """Return a loader of a plain dataset."""
    return ringfeed.Loader(np.arange(LENGTH), workers=0, **settings)


def over_mix(**settings: Any) -> ringfeed.Loader:
    """Return a loader of two datasets, with a quota of each in every batch."""
    mix = ringfeed.datasets.Mix(
        [np.arange(12), np.arange(12)], weights=[1, 2], per_batch=True, stop="never"
    )
    return ringfeed.Loader(mix, batch_size=4, workers=0, **settings)


def over_iterables(count: int) -> ringfeed.Loader:
    """Return a loader of iterables in turn."""
    parts = [partial(range, 10 * number, 10 * number + 9) for number in range(count)]
    return ringfeed.Loader(
        parts[0] if count == 1 else ringfeed.datasets.Interleave(parts), batch_size=4, workers=0
    )


LOADERS = {
    "sequential": partial(over_samples, batch_size=4),
    "sampler": lambda: over_samples(batch_size=4, sampler=Numbers()),
    "lists": lambda: over_samples(batch_sampler=Numbers(4)),
    "array": partial(over_samples, batch_size=4, sampler=range(LENGTH)),
    "mix": over_mix,
    "priorities": lambda: over_samples(
        batch_size=4, sampler=ringfeed.orders.PrioritizedSampler(LENGTH)
    ),
    "iterable": partial(over_iterables, 1),
    "iterables": partial(over_iterables, 3),
}
REFUSED: list[tuple[str, Any, str]] = [
    (
        "sequential",
        {},
        "the state's 'sampler' is {}, expected none with order 'sequential'" + CHANGED,
    ),
    (
        "iterable",
        {"given": 4},
        "the state's 'sampler' is {'given': 4}, expected none with order 'streams'" + CHANGED,
    ),
    (
        "array",
        {"position": 4, "of": 1},
        "the state has one of sampler's own, and this one (a range) has no state_dict() and "
        "load_state_dict(); give the sampler that it was taken with",
    ),
    ("sampler", [4], f"the state's 'sampler' is [4], expected a dict of position, of{CHANGED}"),
    (
        "sampler",
        {"position": 4},
        f"the state's 'sampler' is {{'position': 4}}, expected a dict of position, of{CHANGED}",
    ),
    (
        "lists",
        {"position": "4", "of": 1},
        "the state's 'sampler' is {'position': '4', 'of': 1}, whose position is '4', expected an "
        "int of 0 or more" + CHANGED,
    ),
    (
        "sampler",
        {"position": 9, "of": 1},
        "the state's 'sampler' is {'position': 9, 'of': 1}, whose position is 9, expected at most "
        "the state's samples, "
        "8" + CHANGED,
    ),
    (
        "mix",
        {"counts": ...},
        "SHOWN, expected a dict of position, start, counts, weights, batch_size" + CHANGED,
    ),
    (
        "mix",
        {"counts": 3},
        "SHOWN, whose counts is 3, expected a list of 2 ints of 0 or more" + CHANGED,
    ),
    (
        "mix",
        {"counts": [1, 2, 3]},
        "SHOWN, whose counts is [1, 2, 3], expected a list of 2 ints of 0 or more" + CHANGED,
    ),
    (
        "mix",
        {"weights": [1, -1]},
        "SHOWN, whose weights is [1, -1], expected a list of 2 ints of 0 or more" + CHANGED,
    ),
    ("mix", {"weights": [0, 0]}, "SHOWN, expected a weight and a batch_size above 0" + CHANGED),
    ("mix", {"batch_size": 0}, "SHOWN, expected a weight and a batch_size above 0" + CHANGED),
    (
        "mix",
        {"position": None},
        "SHOWN, whose position is None, expected an int of 0 or more" + CHANGED,
    ),
    (
        "mix",
        {"position": 12},
        "SHOWN, whose position is 12, expected at most the state's samples, 8" + CHANGED,
    ),
    ("mix", {"start": 9}, "SHOWN, whose start is 9, expected at most its position, 8" + CHANGED),
    *(
        (
            "priorities",
            updates,
            f"the state's 'sampler' is {updates!r}, expected the updates of a PrioritizedSampler, "
            "an int of 0 or more" + CHANGED,
        )
        for updates in (-1, "3", {"updates": 3}, 2.0)
    ),
    ("iterables", None, "the state's 'sampler' is None, expected a dict of given, read" + CHANGED),
    (
        "iterables",
        {"read": [4, 4]},
        "SHOWN, whose read is [4, 4], expected a list of 3 ints of 0 or more" + CHANGED,
    ),
    (
        "iterables",
        {"given": 4},
        "SHOWN, whose given is 4, expected the state's samples, 8" + CHANGED,
    ),
    *(
        (
            "iterables",
            {"turn": turn},
            (
                f"SHOWN, whose turn is {turn!r}, expected a list of those of [0, 1, 2] that have "
                f"not ended{CHANGED}"
            ),
        )
        for turn in (None, [0, 0], [0, 3], ["0"])
    ),
]


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED)
def test_a_part_that_does_not_fit(kind: str, change: Any, message: str) -> None:
    """The whole text says what was expected, and what is there; the loader is where it was."""
    with LOADERS[kind]() as loader:
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
        part = change
        if "SHOWN" in message and change is not None:
            part = {
                name: value
                for name, value in {**state["sampler"], **change}.items()
                if value is not ...
            }
        with pytest.raises(ringfeed.StateError) as raised:
            loader.load_state_dict({**state, "sampler": part})
        assert re.fullmatch(re.escape(message).replace("SHOWN", SHOWN), str(raised.value)), str(
            raised.value
        )
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_iterables_in_turn_are_not_skipped() -> None:
    """Where one of them ends shows only when it is read."""
    with over_iterables(3) as loader:
        loader.skip(batches=0)
        with pytest.raises(ValueError, match="skip") as raised:
            loader.skip(batches=2)
        assert str(raised.value) == (
            "skip(batches=2) of 3 iterables in turn: only reading shows which of them have ended "
            "by then; take so many batches, and drop them"
        )
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]

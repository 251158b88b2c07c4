"""Whether random numbers were drawn, seen without seeding or copying a state."""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
marks = importlib.import_module("ringfeed.torch.marks")

if TYPE_CHECKING:
    from collections.abc import Callable

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "shuffle": lambda: random.shuffle([1, 2]),
    "a normal of two": lambda: (random.gauss(0, 1), random.gauss(0, 1)),  # the second is kept from the first
    "numpy": np.random.rand,
    "normal": lambda: np.random.normal(size=3),  # noqa: NPY002
    "permutation": lambda: np.random.permutation(2),  # noqa: NPY002
    "a whole round of numpy's": lambda: np.random.rand(312),  # noqa: NPY002
    "a whole round": lambda: [random.random() for _ in range(312)],  # noqa: S311
    "a whole round of torch's": lambda: torch.rand(624),
    "torch": lambda: torch.rand(1),
    "randperm": lambda: torch.randperm(3),
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)),
    "seed": lambda: torch.manual_seed(random.getrandbits(30)),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_each_draw_is_seen(kind: str) -> None:
    """Whatever of it is drawn, a look after it differs, and looks without a draw between them do not."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    marks.settle()
    for _ in range(700):  # past the end of a Mersenne Twister's words
        assert not marks.has_drawn()
        DRAWS[kind]()
        assert marks.has_drawn()
        marks.settle()


def test_what_a_generator_keeps_of_an_earlier_draw_is_dropped() -> None:
    """A normal deviate comes in two: the second, which advances nothing, would not be seen."""
    for draw in (lambda: random.gauss(0, 1), np.random.normal):
        draw()
        marks.settle()
        draw()
        assert marks.has_drawn()


def test_another_kind_of_generator_always_seems_to_draw() -> None:
    """What cannot be told is taken for a draw, and so is a module that has just been imported."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.Philox(1))
    try:
        marks.settle()
        assert marks.has_drawn()
    finally:
        np.random.set_bit_generator(before)
    marks.settle()
    assert not marks.has_drawn()
    marks.forget()
    assert marks.has_drawn()
    assert not marks.is_settled()

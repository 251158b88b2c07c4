"""Whether random numbers were drawn, seen without seeding or copying a state."""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
marks = importlib.import_module("ringfeed.torch.draw_watch")

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


@pytest.fixture(params=["in memory", "by twins"])
def seen(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """See draws where the states lie, or, as where they are not found, by twins."""
    monkeypatch.setattr(marks._Now, "places", {})
    if request.param == "by twins":
        monkeypatch.setattr(marks, "_sees", lambda *_: None)
    marks.settle()
    assert (marks.quick_watch() is None) == (request.param == "by twins")


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.usefixtures("seen")
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


@pytest.mark.usefixtures("seen")
def test_what_a_generator_keeps_of_an_earlier_draw_is_dropped() -> None:
    """A normal deviate comes in two: the second, which advances nothing, would not be seen."""
    for draw in (lambda: random.gauss(0, 1), np.random.normal):
        draw()
        marks.settle()
        draw()
        assert marks.has_drawn()


@pytest.mark.usefixtures("seen")
def test_the_second_of_two_normal_deviates_of_torchs_is_seen() -> None:
    """It advances nothing but what the generator keeps."""
    torch.manual_seed(3)
    marks.settle()
    for _ in range(4):
        torch.randn(1)
        assert marks.has_drawn()
        assert not marks.has_drawn()


def test_looking_for_torchs_state_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator is seeded and drawn from on the way, and put back."""
    monkeypatch.setattr(marks._Now, "places", {})
    torch.manual_seed(5)
    torch.randn(1)
    expected = torch.get_rng_state().tolist()
    marks.settle()
    assert torch.get_rng_state().tolist() == expected
    assert torch.initial_seed() == 5


def test_seeds_after_which_nothing_is_drawn_are_no_draw() -> None:
    """`renew` takes them for the beginning; what is drawn after it is seen."""
    marks.settle()
    for draws in (False, True):
        random.seed(4)
        np.random.seed(4)  # noqa: NPY002
        torch.manual_seed(4)
        marks.renew()
        if draws:
            random.random()  # noqa: S311
        assert marks.has_drawn() is draws


def test_an_import_is_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module whose generator was not looked at."""
    import sys  # noqa: PLC0415 - for its modules

    monkeypatch.delitem(sys.modules, "torch")
    marks.settle()
    assert not marks.has_drawn()
    monkeypatch.undo()
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

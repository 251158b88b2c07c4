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


def test_it_is_known_where_the_states_are() -> None:
    """This Python and this NumPy keep their index where it is looked for."""
    assert marks._is_known()
    assert marks._is_numpy_known()


@pytest.mark.parametrize("kind", DRAWS)
def test_each_draw_is_seen(kind: str) -> None:
    """Whatever of it is drawn, a look after it differs, and looks without a draw between them do not."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    for _ in range(700):  # past the end of a Mersenne Twister's words
        before = marks.look()
        assert marks.look() == before
        DRAWS[kind]()
        assert marks.look() != before

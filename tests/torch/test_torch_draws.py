"""Samples draw from global generators seeded for them, and are read again only where they draw."""

from __future__ import annotations

import importlib
import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.orders.rng import SampleContext, installed, reseed

torch = pytest.importorskip("torch", reason="torch is not installed")
samples = importlib.import_module("ringfeed.torch.samples")

if TYPE_CHECKING:
    from collections.abc import Callable

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "shuffle": lambda: random.sample([1, 2, 3, 4, 5, 6], 6),
    "a normal": lambda: random.gauss(0, 1),
    "a normal of two": lambda: (
        random.gauss(0, 1),
        random.gauss(0, 1),
    ),  # the second is kept from the first
    "numpy": np.random.rand,
    "numpy's normal": np.random.normal,
    "normals": lambda: np.random.normal(size=3),  # noqa: NPY002
    "permutation": lambda: np.random.permutation(9),  # noqa: NPY002
    "a whole round of numpy's": lambda: np.random.rand(312),  # noqa: NPY002
    "a whole round": lambda: [random.random() for _ in range(312)],  # noqa: S311
    "a whole round of torch's": lambda: torch.rand(624),
    "torch": lambda: torch.rand(1),
    "torch's normal": lambda: torch.randn(1),
    "randperm": lambda: torch.randperm(9),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5)),
    "ringfeed's own, too": lambda: (random.random(), ringfeed.rng().random()),  # noqa: S311
    "seed": lambda: torch.manual_seed(random.getrandbits(30)).initial_seed(),
}


class Drawing:
    """The first thousand samples are their numbers; those after them draw."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return index if index < LATER else self.draw()


LATER = 1000  # from here on samples draw


@pytest.fixture(autouse=True)
def context() -> Any:
    """Reads samples as a worker does; the generators keep something of an earlier draw."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.gauss(0, 1)
    np.random.normal()  # noqa: NPY002
    torch.randn(1)
    installed.context = SampleContext(3, epoch=1)
    yield installed.context
    installed.context = None
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


def reading(dataset: Any) -> Callable[[int], Any]:
    """Return what reads a sample of a DataLoader's dataset, in a worker that reads no other."""
    found = samples.Samples(dataset, samples.WorkerStart(1, 0, None))

    def read(index: int) -> Any:
        installed.context.index = index
        return found[index]

    read.samples = found  # type: ignore[attr-defined]
    return read


def seeded(draw: Callable[[], Any], index: int) -> str:
    """Return what a sample draws with the generators seeded for it."""
    installed.context.index = index
    reseed(installed.context)
    return repr(draw())


@pytest.mark.parametrize("kind", DRAWS)
def test_a_sample_draws_the_same_wherever_it_is_read(kind: str) -> None:
    """The first that draws, were it after a whole Mersenne Twister's words, is read twice."""
    dataset = Drawing(DRAWS[kind])
    expected = [seeded(DRAWS[kind], index) for index in (LATER, LATER + 1)]
    assert expected[0] != expected[1]
    for before in ([], [*range(3)], [*range(700)]):
        dataset.read.clear()
        read = reading(dataset)
        assert [*map(read, before)] == before
        assert [repr(read(index)) for index in (LATER, LATER + 1)] == expected
        assert dataset.read == [*before, *[LATER] * (2 if before else 1), LATER + 1]


@pytest.mark.parametrize("kind", DRAWS)
def test_what_a_collate_fn_draws_is_no_sample_that_draws(kind: str) -> None:
    """It is seeded for its batch, and leaves nothing to the samples of the next one."""
    dataset = Drawing(DRAWS[kind])
    expected = seeded(DRAWS[kind], 7), seeded(DRAWS[kind], LATER)
    read = reading(dataset)
    assert read(0) == 0
    installed.context.index = 7
    samples: Any = read.samples  # type: ignore[attr-defined]
    assert repr(samples.seeded(lambda _: DRAWS[kind](), [0])) == expected[0]
    assert [read(1), read(2)] == [1, 2]
    assert repr(read(LATER)) == expected[1]
    assert dataset.read == [0, 1, 2, LATER, LATER]


@pytest.mark.parametrize(("draw", "reads"), [(random.random, 2), (int, 1)])
def test_a_sample_that_raises_is_read_again_only_where_it_draws(
    draw: Callable[[], Any], reads: int
) -> None:
    """Its error is that of the seeded one."""

    def fail() -> None:
        raise ValueError(draw())

    with pytest.raises(ValueError) as expected:  # noqa: PT011 - its argument is compared
        seeded(fail, LATER)
    dataset = Drawing(fail)
    read = reading(dataset)
    read(0)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - as above
        read(LATER)
    assert error.value.args == expected.value.args
    assert dataset.read == [0] + [LATER] * reads
    assert read(1) == 1


def test_an_import_of_torch_is_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch begins with numbers that are not the sample's; those after it are read once again."""
    monkeypatch.delitem(sys.modules, "torch")
    dataset = Drawing(monkeypatch.undo)
    read = reading(dataset)
    read(0)
    read(LATER)
    assert [read(1), read(2)] == [1, 2]
    assert dataset.read == [0, LATER, LATER, 1, 2]


def test_each_epoch_begins_with_a_sample_that_is_seeded() -> None:
    """Whatever was drawn between two epochs is no sample's."""
    dataset = Drawing(random.random)
    read = reading(dataset)
    read(0)
    random.random()  # noqa: S311 - as worker code may
    installed.context.epoch = 2
    expected = seeded(random.random, LATER)
    random.random()  # noqa: S311 - as above
    read(1)
    assert repr(read(LATER)) == expected
    assert dataset.read == [0, 1, LATER, LATER]

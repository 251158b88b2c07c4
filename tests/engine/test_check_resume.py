"""`ringfeed.testing.check_resume`: what resumes passes, what does not is named with its cause."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import ringfeed
import ringfeed.testing
from ringfeed.testing import check_resume

pytestmark = pytest.mark.once


class Samples:
    """Fifty samples, which depend on the index and `ringfeed.rng()` alone."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "noise": float(self.noise())}

    def noise(self) -> float:
        return float(ringfeed.rng().random())


class OfGlobalState(Samples):
    """Draws from a state that all share."""

    def noise(self) -> float:
        return random.random()  # noqa: S311 - no secret


class OfTheClock(Samples):
    """Differs each time."""

    def noise(self) -> float:
        return float(np.float32(time.monotonic_ns() % 10**6))


class OfItsOwn(Samples):
    """A generator in the dataset: where it stands depends on what was read before."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(0)

    def noise(self) -> float:
        return float(self.draws.random())


class OfItsHook(Samples):
    """What the hook does depends on when it runs."""

    order = np.arange(50)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": int(self.order[index]), "noise": 0.0}

    def on_epoch_end(self) -> None:
        self.order = np.random.default_rng().permutation(50)


def make(kind: type[Samples], **settings: Any) -> ringfeed.Loader:
    """Return a new loader of a new dataset."""
    return ringfeed.Loader(kind(), **{"batch_size": 8, "workers": 0, **settings})


@pytest.mark.parametrize(
    "settings",
    [{}, {"shuffle": True}, {"workers": 2}, {"batch_size": 50}, {"shuffle": True, "seed": None}],
    ids=str,
)
def test_what_resumes_passes(settings: dict[str, Any]) -> None:
    """A dataset that depends on index and rng() alone."""
    check_resume(partial(make, Samples, **settings), cuts=4)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            OfGlobalState,
            "batch 0 of epoch 0 differs in sample['noise'] in a second run that was not cut. A "
            "likely cause: dataset[i] draws from a global random state (random, numpy.random, "
            "torch); draw from ringfeed.rng(), or give the loader reseed=True",
        ),
        (
            OfTheClock,
            "batch 0 of epoch 0 differs in sample['noise'] in a second run that was not cut. A "
            "likely cause: dataset[i] depends on a clock, on the operating system's random "
            "numbers, on a generator of its own, or on what it was asked for before; make it "
            "depend on i and ringfeed.rng() alone",
        ),
        (
            OfItsOwn,
            "batch 1 of epoch 0 differs in sample['noise'] after a resume at sample 8 of epoch 0. "
            "A likely cause: dataset[i] depends on a clock, on the operating system's random "
            "numbers, on a generator of its own, or on what it was asked for before; make it "
            "depend on i and ringfeed.rng() alone",
        ),
        (
            OfItsHook,
            "batch 0 of epoch 1 differs in sample['index'] in a second run that was not cut. A "
            "likely cause: on_epoch_begin() or on_epoch_end() changes the dataset in a way that "
            "running it again does not; give the dataset state_dict() and load_state_dict(), or "
            "have it draw from a generator of its own with a fixed seed",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_does_not_is_named(kind: type[Samples], message: str) -> None:
    """The first batch that differs, the leaf, and the likely cause."""
    with pytest.raises(AssertionError) as raised:
        check_resume(partial(make, kind), cuts=15)
    assert str(raised.value) == message


def test_a_sampler_that_draws_anew() -> None:
    """Each loader's order is another."""

    def loader() -> ringfeed.Loader:
        return make(Samples, sampler=np.random.default_rng().permutation(50))

    message = (
        "batch 0 of epoch 0 differs in sample['index'] in a second run that was not cut. A likely "
        "cause: the sampler gives another order each time it is made; seed it by the epoch, or "
        "give it state_dict() and load_state_dict()"
    )
    with pytest.raises(AssertionError) as raised:
        check_resume(loader)
    assert str(raised.value) == message

"""A slice of the fuzz for every run of the tests, and proof that it would see a fault.

See fuzz.py.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import fuzz
import orders
import ringfeed
import thread_fuzz
from ringfeed.workers import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = pytest.mark.filterwarnings(
    "ignore::ringfeed.SlotsHeldWarning"
)  # rounds hold as many slots as they like
SEED = 20_260_000
SLICE_S = 6.0


def run_rounds(seeds: Iterator[int], holds: Callable[[orders.Tally], bool], **how: bool) -> None:
    """Run rounds for a while, and until something has happened that is to happen, and workers were replaced."""
    tally, deadline_s = orders.Tally(), time.monotonic() + SLICE_S
    while not (holds(tally) and tally.restarts) or time.monotonic() < deadline_s:
        fuzz.run_round(next(seeds), tally, **how)


def test_nothing_is_lost_whoever_is_killed() -> None:
    """Random kills, stops, held views and broken epochs: every batch is right, and nothing is left behind."""
    run_rounds(count(time.time_ns() % 10**9), lambda tally: tally.kills > 0)


def test_who_outlives_sigkill_spoils_nothing() -> None:
    """Workers that are stopped and that SIGKILL does not end wake up later, and write on: every batch is right."""
    seeds = (seed for seed in count(time.time_ns() % 10**9) if orders.Script(seed).method == "fork")
    run_rounds(seeds, lambda tally: tally.unkillable > 0, unkillable=True)


def test_threads_that_share_a_loader_lose_nothing() -> None:
    """Several take from one iterator while others ask, collect garbage, begin and close."""
    tally, deadline_s = orders.Tally(), time.monotonic() + SLICE_S
    for seed in count(time.time_ns() % 10**9):
        thread_fuzz.run_round(seed, tally)
        if time.monotonic() > deadline_s:
            break
    assert tally.batches


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same loader, the same deeds and the same choices of the consumer."""
    one, other = orders.Script(SEED, unkillable=True), orders.Script(SEED, unkillable=True)
    assert list(islice(one.deeds(), 200)) == list(islice(other.deeds(), 200))
    assert one.consumer.random() == other.consumer.random()
    ignored = {"consumer"}
    assert {**vars(one), **dict.fromkeys(ignored)} == {**vars(other), **dict.fromkeys(ignored)}


def failure(seeds: Iterable[int]) -> AssertionError:
    """Return how the first of some rounds fails that does."""
    with pytest.raises(AssertionError) as caught:
        _run(seeds)
    return caught.value


def _run(seeds: Iterable[int]) -> None:
    for seed in seeds:
        fuzz.run_round(seed, orders.Tally())


def roomy() -> int:
    """Return a seed whose round has batches of several rows, and a slot to spare for the test."""
    scripts = map(orders.Script, range(SEED, SEED + 1000))
    return next(script.seed for script in scripts if script.slots > 3 and script.batch_size > 1)


class Careless:
    """A ring whose reaper does nothing."""

    def __init__(self, ring: Any) -> None:
        self._ring = ring

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)

    def reap(self, *_: object, **__: object) -> tuple[int, int, int, int, int, int, bool, str]:
        return -1, 0, 0, 0, 0, 0, False, ""


def test_it_sees_a_ticket_that_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dead are replaced and not reaped, the fuzz fails, and names the seed."""
    monkeypatch.setattr(orders, "TIMEOUT_S", 1.5)
    carefully = processes.Processes._replace

    def careless(self: Any, numbers: list[int]) -> None:
        config = self._config
        self._config = replace(config, ring=Careless(config.ring))
        try:
            carefully(self, numbers)
        finally:
            self._config = config

    monkeypatch.setattr(processes.Processes, "_replace", careless)
    # With on_stall="restart" it would be tried again and again instead.
    error = failure(seed for seed in range(SEED, SEED + 40) if not orders.Script(seed).suspicious)
    assert str(error).startswith("python tests/support/fuzz.py --seed 202600")
    assert isinstance(error.__cause__, ringfeed.StallError)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("byte", "has 1 wrong bytes"),
        ("swap", "has samples"),
        ("late", "a view that was held has changed"),
    ],
)
def test_it_sees_what_is_wrong_in_a_batch(
    fault: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong byte, two rows that changed places, and a write into a view that is held are all found."""
    past: list[Any] = []
    begin = ringfeed.Loader.__iter__

    def spoilt(iterator: Any) -> Any:
        contents, indices = batch = next(iterator)
        if fault == "byte":
            contents[-1, 2, 3] ^= 1
        elif fault == "swap":
            indices[[0, -1]] = indices[[-1, 0]]
        elif past:
            np.bitwise_xor(past[-1], 1, out=past[-1])
        past[:] = [contents[:]]
        return batch

    class Spoilt:
        """An iterator whose batches are wrong."""

        def __init__(self, loader: Any) -> None:
            self._iterator = begin(loader)

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return spoilt(self._iterator)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._iterator, name)

    monkeypatch.setattr(ringfeed.Loader, "__iter__", lambda loader: Spoilt(loader))  # noqa: PLW0108 - bound
    assert text in str(failure([roomy()]))

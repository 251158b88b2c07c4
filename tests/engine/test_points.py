"""Ctrl-C at every point of `next` where Python may raise it: it costs no batch, no error and no count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import points
import ringfeed


class Numbers:
    """Samples that are their own index."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Make a loader that fills its batches itself, so that each life comes to the same points."""
    how = {"batch_size": 4, "workers": 0, "timeout_s": 0.5, "spec": ringfeed.Array((), "int64"), **settings}
    return ringfeed.Loader(dataset, **how)


@pytest.mark.parametrize("settings", [{}, {"shuffle": True, "slots": 2}], ids=["in order", "shuffled"])
def test_ctrl_c_at_any_point_of_next_changes_nothing(settings: dict[str, Any]) -> None:
    """All batches come, in order, and are counted once."""
    assert points.differing(lambda: loader_of(Numbers(), **settings), np.ndarray.tolist) == {}


CASES = {
    "copies": (lambda: loader_of(Numbers(), copy=True), np.ndarray.tolist),
    "a dict": (
        lambda: loader_of(Dicts(), spec={"number": ringfeed.Array((), "int64")}),
        lambda batch: batch["number"].tolist(),
    ),
}


class Dicts(Numbers):
    """Samples with a name."""

    def __getitem__(self, index: int) -> Any:
        return {"number": np.int64(index)}


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_in_a_builder_costs_no_batch(case: str) -> None:
    """What was taken and not handed out comes with the next call."""
    assert points.differing(*CASES[case]) == {}


def rest_of(point: int, state: dict[str, Any]) -> tuple[points.Points, list[int]]:
    """Go on from a state; Ctrl-C comes at a point of the first `iter`, and the second one goes on all the same."""
    hit = points.Points(point)
    with loader_of(Numbers()) as loader:
        loader.load_state_dict(state)
        try:
            with hit:
                batches = iter(loader)
        except KeyboardInterrupt:
            batches = iter(loader)
        return hit, [int(index) for batch in batches for index in batch]


def test_ctrl_c_in_iter_leaves_the_place_that_was_loaded() -> None:
    """An epoch whose iterator the user's code never got is not over, and its rest is not lost."""
    with loader_of(Numbers()) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    counting, expected = rest_of(points.ALL, state)
    assert expected == list(range(8, 24))
    wrong = {}
    for point in range(1, 1 + points.ALL - counting.left):
        hit, found = rest_of(point, state)
        if found != expected:
            wrong[hit.where] = found[:4]
    assert wrong == {}

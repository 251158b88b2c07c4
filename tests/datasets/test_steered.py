"""What a program changes in its dataset between two epochs.

Each later epoch is of the dataset as it is then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from numbered import same
from ringfeed.transport.pickler import MOST_COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("nothing_left")

BACKENDS: dict[str, dict[str, Any]] = {
    "process": {"workers": 2},
    "spawn": {"workers": 2, "backend": "spawn"},
    "fork": {"workers": 2, "backend": "fork"},
    "thread": {"workers": 2, "backend": "thread"},
    "here": {"workers": 0},
}


class Samples:
    """Each sample is the level."""

    def __init__(self) -> None:
        self.level = 0

    def steer(self, level: int) -> None:
        self.level = level

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.float32(self.level)


class InPlace(Samples):
    """Has its level in an array."""

    def __init__(self) -> None:
        self.levels = np.zeros(10_000, np.float32)

    def steer(self, level: int) -> None:
        self.levels[-1] = level

    def __getitem__(self, index: int) -> Any:
        return self.levels[-1]


class Within(Samples):
    """Has its level in what it holds."""

    def __init__(self) -> None:
        self.held = {"levels": [0]}

    def steer(self, level: int) -> None:
        self.held["levels"].append(level)

    def __getitem__(self, index: int) -> Any:
        return np.float32(self.held["levels"][-1])


class WholeBatches(Samples):
    """Gives batches."""

    def __getitem__(self, index: int) -> Any:
        return np.full(2, self.level, np.float32)


class InOrder(Samples):
    """An iterable."""

    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        for _ in range(8):
            yield np.float32(self.level)


KINDS: dict[str, tuple[type[Samples], dict[str, Any]]] = {
    "attribute": (Samples, {}),
    "array in place": (InPlace, {}),
    "list within": (Within, {}),
    "transform": (Samples, {"transform": same}),
    "whole batches": (WholeBatches, {"batch_size": None}),
    "iterable": (InOrder, {}),
    "iterable for many workers": (InOrder, {"transform": same}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_of_the_dataset_as_it_is_when_it_begins(kind: str, backend: str) -> None:
    """What was set between two epochs is in all samples of the later one, however far ahead."""
    make, settings = KINDS[kind]
    workers = BACKENDS[backend]
    if make is InOrder and kind == "iterable" and workers["workers"]:
        workers = workers | {"workers": 1}
    dataset = make()
    with ringfeed.Loader(
        dataset, **{"batch_size": 2, "timeout_s": 50} | settings | workers
    ) as loader:
        for level in range(4):
            if level != 2:  # one epoch has nothing new
                dataset.steer(level)
            found = {float(value) for batch in loader for value in batch}
            assert found == {1.0 if level == 2 else float(level)}


def test_a_mix_is_of_its_datasets_as_they_are() -> None:
    """What changes in a member of a Mix is sent, too."""
    one, two = Samples(), Samples()
    with ringfeed.Loader(
        ringfeed.datasets.Mix([one, two], weights=[1, 1]), batch_size=2, workers=1, timeout_s=50
    ) as loader:
        for level in range(3):
            one.level, two.level = level, level + 10
            assert {float(value) for batch in loader for value in batch} == {level, level + 10}


class Counting(Samples):
    """Each sample is how many this copy of the dataset has given."""

    def __getitem__(self, index: int) -> Any:
        self.level += 1
        return np.float32(self.level)


@pytest.mark.parametrize("backend", ["process", "fork"])
def test_workers_keep_their_copy_where_nothing_has_changed(backend: Any) -> None:
    """What a worker has in its copy of the dataset, such as a cache, stays from epoch to epoch."""
    settings: dict[str, Any] = {"spec": ringfeed.Array((), "float32"), "backend": backend}
    with ringfeed.Loader(Counting(), batch_size=2, workers=1, timeout_s=50, **settings) as loader:
        seen = [float(value) for _ in range(3) for batch in loader for value in batch]
    assert seen == [*range(1, 25)]


@pytest.mark.parametrize("held", [bytes(MOST_COMPARED), threading.Lock()])
def test_what_cannot_be_compared_stays_as_it_was_forked(held: Any) -> None:
    """A dataset that is large, or has no pickle, is forked as it is and read so in all epochs."""
    dataset: Any = Samples()
    dataset.held = held
    with ringfeed.Loader(dataset, batch_size=2, workers=1, timeout_s=50, backend="fork") as loader:
        for level in range(2):
            dataset.level = level
            assert {float(value) for batch in loader for value in batch} == {0.0}


@pytest.mark.parametrize("backend", ["process", "fork"])
def test_what_can_no_longer_be_sent_is_an_error(backend: Any) -> None:
    """A dataset that was given a lock between two epochs is refused by name.

    Without it the loader goes on.
    """
    dataset: Any = Samples()
    with ringfeed.Loader(dataset, batch_size=2, workers=1, timeout_s=50, backend=backend) as loader:
        assert sum(1 for _ in loader) == 4
        dataset.lock, dataset.level = threading.Lock(), 1
        with pytest.raises(ringfeed.ShipError, match=r"^dataset\.lock is a lock"):
            iter(loader)
        del dataset.lock
        assert {float(value) for batch in loader for value in batch} == {1.0}


def test_hooks_of_classes_that_are_keras_own_are_hooks() -> None:
    """Only the hooks of Keras' base classes do nothing.

    Those of its other classes run, whatever module they are of.
    """
    base: Any = type(
        "PyDataset", (), {"on_epoch_end": lambda _self: None, "__module__": "keras.src.trainers"}
    )
    made: Any = type(
        "Flow", (base,), {"on_epoch_end": lambda _self: None, "__module__": "keras.src.legacy"}
    )
    users: Any = type("Sequence", (), {"on_epoch_end": lambda _self: None, "__module__": "mine"})
    for kind, hooks in (
        (base, False),
        (made, True),
        (users, True),
        (type("Own", (made,), {}), True),
    ):
        dataset = type("Sized", (kind, Samples), {})()
        with ringfeed.Loader(dataset, batch_size=2, workers=0) as loader:
            assert bool(loader._runner.source.hooks) is hooks

"""Iterables in Keras and tf.data.

Of unknown length, and read no further ahead than there are slots.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 8
pytestmark = pytest.mark.usefixtures("nothing_left")


class Line:
    """Points of a line; keeps what it has given."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.given: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count() if self.count is None else range(self.count):
            self.given.append(number)
            yield np.full(1, number, np.float32), np.full(1, 2 * number, np.float32)


def line_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader whose iterable this process reads."""
    return ringfeed.Loader(
        dataset, batch_size=BATCH, **{"backend": "thread", "timeout_s": 100, **settings}
    )


def identity() -> Any:
    """Return a model that gives what it gets."""
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(loss="mse", run_eagerly=False)
    return model


@pytest.mark.parametrize("slots", [2, 4, 10])
def test_predict_reads_no_further_ahead_than_slots(slots: int) -> None:
    """Steps over an endless iterable read no more than their batches and what the slots hold."""
    line = Line()
    with line_of(line, slots=slots) as loader:
        found = identity().predict(loader.to_keras(), steps=10, verbose=0)
        assert found[:, 0].tolist() == list(range(10 * BATCH))
        assert 10 * BATCH <= len(line.given) <= (10 + slots) * BATCH


@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data"
)  # as with any length that Keras does not know
def test_fit_ends_an_epoch_with_the_iterable() -> None:
    """Keras learns the length by reading.

    Each epoch reads all of it, the shorter last batch included.
    """
    line = Line(3 * BATCH + 2)
    seen = []
    with line_of(line) as loader:
        steps = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(batch)  # noqa: ARG005
        )
        identity().fit(loader.to_keras(), epochs=2, verbose=0, callbacks=[steps])
    assert seen == [0, 1, 2, 3] * 2


def test_a_tf_dataset_ends_with_the_iterable() -> None:
    """Its length is unknown, and it gives all elements in order, twice."""
    with line_of(Line(3 * BATCH + 2)) as loader:
        dataset = loader.to_tf_dataset()
        assert int(dataset.cardinality()) == -2
        for _ in range(2):
            numbers = [number for x, _ in dataset for number in x.numpy()[:, 0].tolist()]
            assert numbers == list(range(3 * BATCH + 2))
        del dataset


def test_several_come_in_turn_through_a_tf_dataset() -> None:
    """A reader's shorter batch amid the epoch counts; plans beyond its end do not show."""
    with line_of(
        ringfeed.datasets.Interleave([Line(BATCH + 1), Line(3 * BATCH)]), workers=2
    ) as loader:
        dataset = loader.to_tf_dataset()
        assert [len(x) for x, _ in dataset] == [BATCH, BATCH, 1, BATCH, BATCH]
        del dataset

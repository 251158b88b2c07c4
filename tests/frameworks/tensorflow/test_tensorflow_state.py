"""A loader's state where tf.data reads ahead of the step."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ringfeed

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

WAYS: list[dict[str, Any]] = [{}, {"copy": True}]  # by the op, and in Python
UNTOLD = (
    "tf.data and Keras read ahead of the step, so only the training loop knows how far it is; "
    "give the batches of this epoch that it has had: state_dict(batches=n)"
)
LATE = (
    "the loader goes on amid an epoch, and this tf.data.Dataset has whole epochs; make it after "
    "load_state_dict() or skip()"
)


def loader_of(**settings: Any) -> ringfeed.Loader:
    """Return a loader of ten batches."""
    return ringfeed.Loader((np.arange(40),), batch_size=4, workers=1, backend="thread", **settings)


def indices(dataset: Any) -> list[int]:
    """Return the samples that come."""
    return [int(number) for batch in dataset.as_numpy_iterator() for number in batch[0]]


@pytest.mark.parametrize("way", WAYS)
def test_the_loop_tells_how_far_it_is(way: dict[str, Any]) -> None:
    """Without that the state is refused, never guessed; the end of the epoch is known."""
    with loader_of(**way) as loader:
        iterator = iter(loader.to_tf_dataset().prefetch(2))
        for _ in range(3):
            next(iterator)
        with pytest.raises(ringfeed.StateError, match=re.escape(UNTOLD)):
            loader.state_dict()
        state = loader.state_dict(batches=3)
        assert state["samples"] == 12
    with loader_of(**way) as loader:
        loader.load_state_dict(state)
        dataset = loader.to_tf_dataset()
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert indices(dataset) == [*range(12, 40)]
        assert indices(dataset) == [*range(40)]


@pytest.mark.parametrize("way", WAYS)
def test_a_dataset_of_whole_epochs_is_not_given_a_part(way: dict[str, Any]) -> None:
    """One that was made before the state was loaded says so."""
    with loader_of(**way) as loader:
        dataset = loader.to_tf_dataset()
        assert indices(dataset) == [*range(40)]
        loader.skip(batches=2)
        with pytest.raises(tf.errors.OpError, match=re.escape(LATE)):
            indices(dataset)
        loader.set_epoch(7)
        assert indices(dataset) == [*range(40)]

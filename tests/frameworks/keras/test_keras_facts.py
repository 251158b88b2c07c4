"""What scripts ask `to_keras()` for, and what Keras says of a loader that is given as it is."""

from __future__ import annotations

import numpy as np
import pytest

import ringfeed
from training import small_model

pytestmark = pytest.mark.usefixtures("nothing_left")
X, Y = np.random.default_rng(0).random((10, 8, 8, 1)).astype(np.float32), np.arange(10)


def test_an_adapter_answers_as_a_loader_of_torchs() -> None:
    """Length, dataset, sampler, batches and a line of its own; set_epoch is the loader's."""
    order = [3, 1, 2, 7]
    with ringfeed.Loader((X, Y), batch_size=3, sampler=order, workers=0) as loader:
        data = loader.to_keras()
        assert (len(data), data.dataset, data.sampler, data.batch_size) == (
            2,
            loader.dataset,
            order,
            3,
        )
        assert repr(data) == f"<LoaderAdapter of {loader!r}>"
        x, y = next(iter(data))
        assert isinstance(x, np.ndarray)
        assert y.tolist() == [3, 1, 2]
        data.set_epoch(5)
        assert loader.epoch == 5


def test_an_unknown_length_is_no_falsehood() -> None:
    """Where an epoch has no known length, the adapter is still there."""
    with ringfeed.Loader(lambda: iter([(X[0], 1)]), batch_size=1, workers=0) as loader:
        data = loader.to_keras()
        with pytest.raises(TypeError, match="the length of this loader is unknown"):
            len(data)
        assert data


def test_fit_leads_to_the_adapter() -> None:
    """Keras' own error for the loader itself says what to give."""
    with ringfeed.Loader((X, Y), batch_size=5, workers=0) as loader:
        assert "to_keras" not in f"{loader}"
        with pytest.raises(ValueError, match=r"expected what its to_keras\(\) returns"):
            small_model().fit(loader, verbose=0)

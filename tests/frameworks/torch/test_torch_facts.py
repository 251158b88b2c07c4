"""What training scripts of torch ask a DataLoader for, of what `to_torch()` returns."""

from __future__ import annotations

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_epochs_answer_as_a_loader_of_torchs() -> None:
    """Length, dataset, batch size, sampler and a line of their own; set_epoch is the loader's."""
    data = np.arange(10)
    sampler = torch.utils.data.SequentialSampler(data)
    with ringfeed.Loader(data, batch_size=4, sampler=sampler, workers=0) as loader:
        epochs = loader.to_torch()
        assert (len(epochs), epochs.dataset, epochs.batch_size) == (3, loader.dataset, 4)
        assert epochs.sampler is sampler
        assert repr(epochs) == f"<Epochs of {loader!r}>"
        epochs.set_epoch(3)
        assert loader.epoch == 3
    with ringfeed.Loader(data, batch_sampler=[[1, 2], [3]], workers=0) as loader:
        assert (loader.to_torch().batch_size, loader.to_torch().sampler) == (None, [[1, 2], [3]])
    with ringfeed.Loader(data, workers=0) as loader:
        assert loader.to_torch().sampler is None

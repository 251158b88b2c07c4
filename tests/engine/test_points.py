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

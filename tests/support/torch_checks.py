"""Comparing a DataLoader of ringfeed's with torch's own, batch for batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as Own

from ringfeed.torch import DataLoader


def check_alike(ours: Any, own: Any) -> None:
    """Fail unless two batches are the same, in their containers, dtypes and values."""
    assert type(ours) is type(own)
    if isinstance(own, torch.Tensor):
        assert (ours.dtype, ours.shape) == (own.dtype, own.shape)
        assert torch.equal(ours, own)
    elif isinstance(own, np.ndarray):
        assert ours.dtype == own.dtype
        assert np.array_equal(ours, own)
    elif isinstance(own, Mapping):
        assert [*ours] == [*own]
        for key in own:
            check_alike(ours[key], own[key])
    elif isinstance(own, list | tuple):
        assert len(ours) == len(own)
        for one, other in zip(ours, own, strict=True):
            check_alike(one, other)
    else:
        assert ours == own


def both(dataset: Any, *, seed: int | None = None, **settings: Any) -> tuple[Any, Any]:
    """Return a DataLoader of ringfeed's and one of torch's, with equal generators where there is a seed."""
    made = []
    for kind in (DataLoader, Own):
        given = {} if seed is None else {"generator": torch.Generator().manual_seed(seed)}
        made.append(kind(dataset, **settings, **given))
    return made[0], made[1]


def check_epochs(ours: Any, own: Any, epochs: int = 1) -> None:
    """Fail unless both give the same epochs, and leave their generators in the same state."""
    for _ in range(epochs):
        for one, other in zip(ours, own, strict=True):
            check_alike(one, other)
        if own.generator is not None:
            assert torch.equal(ours.generator.get_state(), own.generator.get_state())


def close(loader: Any) -> None:
    """End what a DataLoader keeps for its next epoch."""
    if isinstance(loader, DataLoader):
        loader._rings.close()

"""A `ringfeed.Cache` of samples that are tensors, and under torch's own loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ringfeed
import ringfeed.torch


class Tensors:
    """Samples of all sorts of tensors."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        image = torch.arange(12.0).reshape(3, 4) * index
        return {
            "image": image,
            "turned": image.T,
            "brain": image.bfloat16(),
            "grad": torch.ones(2, requires_grad=True) * index,
            "label": torch.tensor(index),
        }


def doubled(sample: Any) -> Any:
    """Make a new sample of tensors; they may be written to."""
    sample["image"] += 1
    assert all(isinstance(leaf, torch.Tensor) for leaf in sample.values())
    assert sample["brain"].dtype == torch.bfloat16
    return sample["image"] * 2, sample["brain"].float(), sample["grad"].detach(), sample["label"]


def test_tensors_come_back_as_they_were() -> None:
    """With dtype, shape and values, to a transform of the loader."""
    cache = ringfeed.Cache(Tensors(), memory="1MB")
    batches = []
    for dataset in (Tensors(), cache):
        with ringfeed.Loader(dataset, batch_size=6, transform=doubled, workers=2) as loader:
            batches += [[[leaf.copy() for leaf in batch] for batch in loader] for _ in range(2)]
    assert cache.stats().samples == 24
    for epoch in batches[1:]:
        for batch, first in zip(epoch, batches[0], strict=True):
            for leaf, expected in zip(batch, first, strict=True):
                np.testing.assert_array_equal(leaf, expected)


def test_rows_of_tensors_are_gathered() -> None:
    """Without any function of the user's."""

    class Pairs(Tensors):
        def __getitem__(self, index: int) -> Any:
            return torch.full((3, 4), index), index

    cache = ringfeed.Cache(Pairs(), memory="1MB")
    with ringfeed.Loader(cache, batch_size=6, workers=1) as loader:
        for _ in range(2):
            assert [batch[0][:, 0, 0].tolist() for batch in loader] == [
                [*range(first, first + 6)] for first in range(0, 24, 6)
            ]


def test_torchs_own_loader_has_the_cache() -> None:
    """Its workers are forked, and keep samples for each other; so do those of ringfeed's in its place."""

    class Numbers(Tensors):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index])

    for kind in (torch.utils.data.DataLoader, ringfeed.torch.DataLoader):
        cache = ringfeed.Cache(Numbers(), memory="1MB")
        for _ in range(2):
            loader = kind(cache, batch_size=6, num_workers=2)
            assert sorted(torch.cat([*loader]).flatten().tolist()) == [*range(24)]
        assert cache.stats().samples == 24
        assert cache.stats().hits >= 24

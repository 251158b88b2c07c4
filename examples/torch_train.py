"""Train a torch model on handwritten digits, with torch's own dataset and sampler classes.

Run it: python torch_train.py (needs torch and scikit-learn). It has no main guard, because workers
never import the script. Nor do they import torch, since the samples are made with NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, SubsetRandomSampler

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable

HELD_OUT = 397


def moved_and_dimmed(image: np.ndarray) -> np.ndarray:
    """Return the image moved by up to a pixel, and dimmed."""
    random = ringfeed.rng()  # the same numbers on any worker
    return np.roll(image, random.integers(-1, 2, size=2), axis=(0, 1)) * random.uniform(0.7, 1.3)


class Digits(Dataset):
    """Digits of 8 x 8 pixels and their classes."""

    def __init__(self, transform: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        digits = load_digits()
        self.images = digits.images / 16
        self.classes = digits.target
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image[None].astype(np.float32), self.classes[index]


torch.manual_seed(0)
torch.set_num_threads(1)  # the net is too small to share
train, held_out = Digits(moved_and_dimmed), Digits()
order = torch.randperm(len(train))
sampler = SubsetRandomSampler(order[:-HELD_OUT], torch.Generator().manual_seed(0))

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(32, 64, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

with (
    ringfeed.Loader(train, batch_size=64, sampler=sampler, workers=2, slots=3) as loader,
    ringfeed.Loader(
        held_out, batch_size=64, sampler=order[-HELD_OUT:], workers=1, slots=3
    ) as held_out_loader,
):
    batches = loader.to_torch()  # every `for` over it is the next epoch; nothing is copied
    for epoch in range(8):
        total = 0.0
        for images, classes in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(batches)
        print(f"epoch {epoch}: loss {total:.3f}")
    with torch.no_grad():
        right = sum(
            (model(images).argmax(1) == classes).sum().item()
            for images, classes in held_out_loader.to_torch()
        )
    print(f"accuracy on {HELD_OUT} digits never seen: {right / HELD_OUT:.1%}")
    print(f"shared memory: {(loader.memory + held_out_loader.memory) / 1e6:.1f} MB")

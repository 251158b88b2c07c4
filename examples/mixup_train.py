"""Train a torch model on handwritten digits, which the workers mix by MixUp and CutMix in the slots.

Run it: python mixup_train.py (needs torch and scikit-learn). `transform` makes a sample, with a share
for each class instead of the class; `batch_transform` mixes the rows of a batch in place. Both draw
from generators that belong to the sample and the batch, so the run is the same with any number of
workers.

MixUp: H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz, "mixup: Beyond Empirical Risk Minimization",
ICLR 2018. CutMix: S. Yun and others, "CutMix: Regularization Strategy to Train Strong Classifiers
with Localizable Features", ICCV 2019.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

import ringfeed

HELD_OUT = 397
CLASSES = 10


def prepared(sample: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return an image with its channel first, and the share that each class has in it."""
    image, label = sample
    shares = np.zeros(CLASSES, np.float32)
    shares[label] = 1
    return np.float32(image[None] / 16), shares


def mixup(batch: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    """Blend each image, and its shares, with another one of the batch."""
    other = rng.permutation(len(batch[0]))
    kept = rng.beta(0.4, 0.4)
    for rows in batch:
        rows[:] = kept * rows + (1 - kept) * rows[other]


def cutmix(batch: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    """Put a part of another image into each, and as much of its shares."""
    images, shares = batch
    other = rng.permutation(len(images))
    height, width = images.shape[-2:]
    side = np.sqrt(1 - rng.beta(1, 1))
    top, left = rng.integers(height), rng.integers(width)
    bottom, right = min(height, top + round(side * height)), min(width, left + round(side * width))
    images[..., top:bottom, left:right] = images[other][..., top:bottom, left:right]
    cut = (bottom - top) * (right - left) / (height * width)
    shares[:] = (1 - cut) * shares + cut * shares[other]


def mixed(batch: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    """Mix a batch by one or the other."""
    (mixup, cutmix)[rng.integers(2)](batch, rng)


torch.manual_seed(0)
torch.set_num_threads(1)  # the net is too small to share
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.images))
train, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
images = torch.from_numpy(digits.images[held_out] / 16).float()[:, None]

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(32, 64, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(256, CLASSES),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

with ringfeed.Loader(
    (digits.images[train], digits.target[train]),
    batch_size=64,
    shuffle=True,
    workers=2,
    transform=prepared,
    batch_transform=mixed,
) as loader:
    batches = loader.to_torch()
    for epoch in range(8):
        total = 0.0
        for pictures, shares in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pictures), shares)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(batches)
        print(f"epoch {epoch}: loss {total:.3f}")
    with torch.no_grad():
        right = (model(images).argmax(1).numpy() == digits.target[held_out]).sum()
    print(f"accuracy on {HELD_OUT} digits never seen: {right / HELD_OUT:.1%}")
    print(f"shared memory: {loader.memory / 1e6:.1f} MB")

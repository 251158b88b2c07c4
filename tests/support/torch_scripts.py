"""Five training scripts of the usual kinds, on made-up data, small; each takes the DataLoader that it imports.

Each returns the losses of its steps. What a sample is depends on its number alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as scripts call it
from torch.utils.data import Dataset, random_split

if TYPE_CHECKING:
    from collections.abc import Callable


def numbers(index: int, *shape: int) -> np.ndarray[Any, Any]:
    """Return noise that depends on the index alone."""
    return np.random.default_rng(index).standard_normal(shape, np.float32)


def trained(
    model: nn.Module, batches: Any, loss_of: Callable[[Any], torch.Tensor], epochs: int = 2
) -> list[float]:
    """Train for some epochs; return the loss of each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


# ---- image classification ----


class Pictures(Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Pictures of bytes, and the class of each."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        picture = (numbers(index, 16, 16, 3) * 40 + 128).clip(0, 255).astype(np.uint8)
        return self.transform(picture), index % 4


def as_tensor(picture: Any) -> torch.Tensor:
    """Scale, normalize and put the channels first."""
    return (torch.from_numpy(picture).permute(2, 0, 1).float() / 255 - 0.5) / 0.25


def image_classification(loader: Callable[..., Any]) -> list[float]:
    """Train and validate a convolutional network, with a split of the data."""
    torch.manual_seed(0)
    train, valid = random_split(
        Pictures(as_tensor), [32, 8], generator=torch.Generator().manual_seed(1)
    )
    train_batches = loader(
        train, batch_size=8, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
    )
    valid_batches = loader(valid, batch_size=5, num_workers=1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 4)
    )
    losses = trained(model, train_batches, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    with torch.no_grad():
        return losses + [F.cross_entropy(model(x), y).item() for x, y in valid_batches]


# ---- segmentation ----


class Masked(Dataset):  # type: ignore[misc]
    """Pictures and their masks, by name."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> dict[str, Any]:
        picture = numbers(index, 3, 24, 24)
        return {
            "image": torch.from_numpy(picture),
            "mask": (picture[0] > 0).astype(np.int64),
            "name": f"{index}.png",
        }


def segmentation(loader: Callable[..., Any]) -> list[float]:
    """Train a network that says a class for each pixel; the names come along."""
    torch.manual_seed(0)
    batches = loader(
        Masked(), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(2)
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def loss_of(batch: dict[str, Any]) -> torch.Tensor:
        assert all(name.endswith(".png") for name in batch["name"])
        return F.cross_entropy(model(batch["image"]), batch["mask"])

    return trained(model, batches, loss_of)


# ---- text ----


class Reviews(Dataset):  # type: ignore[misc]
    """Texts of several lengths, and whether they praise."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[int, str]:
        return index % 2, " ".join(f"word{(index * step) % 17}" for step in range(1, 3 + index % 9))


def bagged(samples: list[tuple[int, str]]) -> Any:
    """Make of texts one row of word numbers, and where each text begins."""
    labels, texts = zip(*samples, strict=True)
    words = [torch.tensor([int(word[4:]) for word in text.split()]) for text in texts]
    offsets = torch.tensor([0, *map(len, words[:-1])]).cumsum(0)
    return torch.tensor(labels), torch.cat(words), offsets


def text_classification(loader: Callable[..., Any]) -> list[float]:
    """Train a bag of embeddings, whose batches a collate_fn makes."""
    torch.manual_seed(0)
    batches = loader(Reviews(), batch_size=7, shuffle=True, num_workers=2, collate_fn=bagged)
    embedding, head = nn.EmbeddingBag(17, 8), nn.Linear(8, 2)
    model = nn.ModuleList([embedding, head])
    return trained(
        model, batches, lambda batch: F.cross_entropy(head(embedding(batch[1], batch[2])), batch[0])
    )


# ---- detection ----


class Boxes(Dataset):  # type: ignore[misc]
    """Pictures of several sizes, and the boxes in each."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> Any:
        target = {"boxes": torch.from_numpy(numbers(index, index % 3 + 1, 4)), "image_id": index}
        return torch.from_numpy(numbers(index, 3, 16 + index % 5, 16)), target


def listed(samples: list[Any]) -> tuple[Any, ...]:
    """Leave pictures and targets as they are: each has its own size."""
    return tuple(zip(*samples, strict=True))


def detection(loader: Callable[..., Any]) -> list[float]:
    """Train on lists of pictures and of targets."""
    torch.manual_seed(0)
    batches = loader(Boxes(), batch_size=3, shuffle=True, num_workers=2, collate_fn=listed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def loss_of(batch: Any) -> torch.Tensor:
        pictures, targets = batch
        found = [
            (model(picture[None]) - target["boxes"]).square().mean()
            for picture, target in zip(*batch, strict=True)
        ]
        assert len(pictures) == len({target["image_id"] for target in targets})
        return torch.stack(found).mean()

    return trained(model, batches, loss_of)


# ---- audio ----

WORDS = ["yes", "no", "up"]


class Spoken(Dataset):  # type: ignore[misc]
    """Waveforms of several lengths, with the rate, and the word that is said."""

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        return torch.from_numpy(numbers(index, 1, 800 + 10 * (index % 7))), 8000, WORDS[index % 3]


def in_time(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill the waveforms up to the longest."""
    waves = nn.utils.rnn.pad_sequence([wave.T for wave, _, _ in samples], batch_first=True).permute(
        0, 2, 1
    )
    return waves, torch.tensor([WORDS.index(word) for _, _, word in samples])


def audio(loader: Callable[..., Any]) -> list[float]:
    """Train a network over waveforms that a collate_fn fills up."""
    torch.manual_seed(0)
    batches = loader(
        Spoken(), batch_size=6, shuffle=True, num_workers=2, collate_fn=in_time, prefetch_factor=3
    )
    model = nn.Sequential(
        nn.Conv1d(1, 8, 80, stride=16),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    return trained(model, batches, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))


SCRIPTS = (image_classification, segmentation, text_classification, detection, audio)

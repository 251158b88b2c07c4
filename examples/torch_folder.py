"""Train a torch model on a folder of JPEG files, one folder a class, with transforms of torch's own.

Run it: python torch_folder.py (needs torch, pillow and scikit-learn, whose digits it writes into a
folder first). Workers decode the files to uint8 and import no torch. The transforms run on whole
batches, in the training process or on the GPU (not tried on a GPU yet). torchvision is not needed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

import ringfeed

HELD_OUT = 397
SIDE = 16


def write_folder(folder: Path) -> None:
    """Write each digit as a JPEG file, such as train/7/0123.jpg."""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = (
            folder
            / ("train" if number < len(digits.images) - HELD_OUT else "held_out")
            / str(label)
        )
        part.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((image * 15.9).astype(np.uint8)).resize((SIDE, SIDE))
        picture.save(part / f"{number:04}.jpg", quality=95)


class Folder:
    """The pictures below a folder, and the number of the folder that each lies in."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        file = self.files[index]
        with Image.open(file) as image:
            return np.asarray(image)[None], self.classes.index(file.parent.name)


def transformed(images: torch.Tensor) -> torch.Tensor:
    """Turn, scale and move each picture of a batch a little, by torch alone."""
    count = len(images)
    angle, scale = 0.4 * (torch.rand(count) - 0.5), 1 + 0.2 * (torch.rand(count) - 0.5)
    move = 0.2 * (torch.rand(2, count) - 0.5)
    rows = (
        torch.cos(angle) * scale,
        -torch.sin(angle),
        move[0],
        torch.sin(angle),
        torch.cos(angle) * scale,
        move[1],
    )
    grid = affine_grid(
        torch.stack(rows, 1).reshape(-1, 2, 3), list(images.shape), align_corners=False
    )
    return grid_sample(images, grid, align_corners=False)


torch.manual_seed(0)
torch.set_num_threads(1)  # the net is too small to share
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, stride=2),
    torch.nn.ReLU(),
    torch.nn.Conv2d(16, 32, 3),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(800, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_folder(folder)
    with (
        ringfeed.Loader(Folder(folder / "train"), batch_size=64, shuffle=True, workers=2) as loader,
        ringfeed.Loader(Folder(folder / "held_out"), batch_size=64, workers=1) as held_out,
    ):
        batches = loader.to_torch(
            cast=("float32", None)
        )  # uint8 in the slots, float32 on the device
        for epoch in range(8):
            total = 0.0
            for images, classes in batches:
                optimizer.zero_grad()
                loss = cross_entropy(model(transformed(images / 255)), classes)
                loss.backward()
                optimizer.step()
                total += loss.item() / len(batches)
            print(f"epoch {epoch}: loss {total:.3f}")
        with torch.no_grad():
            right = sum(
                (model(images / 255).argmax(1) == classes).sum().item()
                for images, classes in held_out.to_torch(cast=("float32", None))
            )
        print(f"accuracy on {HELD_OUT} digits never seen: {right / HELD_OUT:.1%}")
        print(f"shared memory: {(loader.memory + held_out.memory) / 1e6:.1f} MB")

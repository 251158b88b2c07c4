"""Train a torch model on tar shards, as WebDataset writes them: one worker reads each shard in order.

Run it: python tar_shards.py (needs torch and scikit-learn, whose digits it writes into shards first).
A sample is two neighbouring files of a shard, such as 000123.npy and 000123.cls. The package
webdataset is not needed.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_digits

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_OUT = 397
SHARDS = 4


def write_shard(path: Path, images: np.ndarray, classes: np.ndarray) -> None:
    """Write samples into a tar file, one after another."""
    with tarfile.open(path, "w") as tar:
        for number, (image, label) in enumerate(zip(images, classes, strict=True)):
            content = io.BytesIO()
            np.save(content, image)
            for name, written in (
                (f"{number:06}.npy", content.getvalue()),
                (f"{number:06}.cls", b"%d" % label),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(written)
                tar.addfile(member, io.BytesIO(written))


class Shard:
    """The samples of a shard, in the order of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        with tarfile.open(self.path, "r:") as tar:
            files = (tar.extractfile(member) for member in tar)
            for image, label in zip(files, files, strict=True):  # two files are a sample
                yield np.load(io.BytesIO(image.read())), int(label.read())


digits = load_digits()
images, classes = (digits.images[:, None] / 16).astype(np.float32), digits.target
order = np.random.default_rng(0).permutation(
    len(images)
)  # shards are shuffled when they are written
torch.manual_seed(0)
torch.set_num_threads(1)  # the net is too small to share
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

with tempfile.TemporaryDirectory() as folder:
    paths = [Path(folder) / f"digits-{number}.tar" for number in range(SHARDS)]
    for path, rows in zip(paths, np.array_split(order[HELD_OUT:], SHARDS), strict=True):
        write_shard(path, images[rows], classes[rows])
    shards = ringfeed.datasets.Interleave(
        [Shard(path) for path in paths]
    )  # one batch of each shard in turn
    with ringfeed.Loader(shards, batch_size=64, workers=2) as loader:
        for epoch in range(8):
            losses = []
            for pictures, labels in loader.to_torch():
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {np.mean(losses):.3f}")
        with torch.no_grad():
            found = model(torch.from_numpy(images[order[:HELD_OUT]])).argmax(1).numpy()
        print(
            f"accuracy on {HELD_OUT} digits never seen: "
            f"{(found == classes[order[:HELD_OUT]]).mean():.1%}"
        )
        print(f"shared memory: {loader.memory / 1e6:.1f} MB")

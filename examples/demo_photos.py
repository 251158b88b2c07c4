"""The photographs, and random crops of them: the dataset that every worker of the demo holds.

Everything here is free of Keras and TensorFlow, so a worker process starts in a fraction of a
second.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageEnhance

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LONGEST = 512
CROP_SIDE = 96
MARGIN = 20  # cut off after the tilt, which leaves the corners black
BILINEAR = Image.Resampling.BILINEAR


def folder_of(package: str) -> Path:
    """Return where `package` is installed, without the seconds that importing it would take each worker."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"no module named {package!r}; its photographs are needed", name=package
        )
    return Path(found.origin).parent


SKIMAGE = folder_of("skimage") / "data"
SKLEARN = folder_of("sklearn") / "datasets" / "images"
PHOTOGRAPHS = {
    "astronaut": SKIMAGE / "astronaut.png",
    "cameraman": SKIMAGE / "camera.png",
    "cat": SKIMAGE / "chelsea.png",
    "coffee": SKIMAGE / "coffee.png",
    "coins": SKIMAGE / "coins.png",
    "flower": SKLEARN / "flower.jpg",
    "galaxies": SKIMAGE / "hubble_deep_field.jpg",
    "motorcycle": SKIMAGE / "motorcycle_left.png",
    "retina": SKIMAGE / "retina.jpg",
    "rocket": SKIMAGE / "rocket.jpg",
    "temple": SKLEARN / "china.jpg",
    "tissue": SKIMAGE / "ihc.png",
}
"""Name and file of each photograph.

All of them lie inside the wheels of scikit-image and scikit-learn.
"""


def encoded_photographs() -> list[NDArray[np.uint8]]:
    """Return each photograph as a JPEG file of at most LONGEST pixels a side, in an array.

    Arrays, because ringfeed shares them with all workers, where `bytes` would be copied to each.
    """
    return [np.frombuffer(encoded(path), np.uint8) for path in PHOTOGRAPHS.values()]


def encoded(path: Path) -> bytes:
    """Return the photograph at `path` as a JPEG file.

    Some are PNG files, slow to decode, or very large.
    """
    photograph = Image.open(path).convert("RGB")
    photograph.thumbnail((LONGEST, LONGEST))
    file = io.BytesIO()
    photograph.save(file, "JPEG", quality=90)
    return file.getvalue()


def random_crop(file: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Decode a photograph's JPEG file and return a random part of it: (CROP_SIDE, CROP_SIDE, 3) in uint8.

    Place, size, tilt, left-right flip, brightness and contrast are drawn from `rng`.
    """
    photograph = Image.open(io.BytesIO(file.data)).convert("RGB")
    side = rng.uniform(0.35, 0.6) * min(photograph.size)
    left = rng.uniform(0, photograph.width - side)
    top = rng.uniform(0, photograph.height - side)
    wide = CROP_SIDE + 2 * MARGIN
    crop = photograph.resize((wide, wide), BILINEAR, (left, top, left + side, top + side))
    crop = crop.rotate(rng.uniform(-15, 15), BILINEAR)
    crop = crop.crop((MARGIN, MARGIN, MARGIN + CROP_SIDE, MARGIN + CROP_SIDE))
    if rng.integers(2):
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    crop = ImageEnhance.Brightness(crop).enhance(rng.uniform(0.7, 1.3))
    return np.asarray(ImageEnhance.Contrast(crop).enhance(rng.uniform(0.7, 1.3)))


class Crops:
    """A dataset of `(crop, number of its photograph)`, made when asked for.

    Without `fixed_seed` the crops are new in every epoch, drawn from `ringfeed.rng()`: the same
    ones for any number of workers. With it they never change, as held-out crops must not.
    """

    def __init__(
        self, photographs: Sequence[NDArray[np.uint8]], samples: int, fixed_seed: int | None = None
    ) -> None:
        self.photographs = photographs
        self.samples = samples
        self.fixed_seed = fixed_seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        rng = ringfeed.rng()
        if self.fixed_seed is not None:
            rng = np.random.default_rng([self.fixed_seed, index])
        label = index % len(self.photographs)
        return random_crop(self.photographs[label], rng), label

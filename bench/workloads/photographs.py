"""Real photographs as JPEG files in memory: decoded, cropped and flipped for each sample."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np

IMAGE = (224, 224, 3)
PHOTOGRAPHS = {
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "skimage": tuple(
        f"data/{name}"
        for name in (
            "astronaut.png",
            "chelsea.png",
            "coffee.png",
            "hubble_deep_field.jpg",
            "rocket.jpg",
        )
    ),
}
CLASSES = sum(map(len, PHOTOGRAPHS.values()))


class Photographs:
    """Random 224 x 224 crops of real photographs, decoded from JPEG each time, half of them flipped, with a label."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._files = [
            _as_jpeg(path) for package in PHOTOGRAPHS for path in _photographs_of(package)
        ]

    def __len__(self) -> int:
        """Crops."""
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """Decode, crop where a hash of the index says, and flip if it says so."""
        from PIL import Image  # noqa: PLC0415, only the workers that decode need it

        label = index % len(self._files)
        picture = Image.open(io.BytesIO(self._files[label]))
        dice = index * 2654435761 & 0xFFFFFFFF  # Knuth's multiplicative hash
        left = (dice >> 16) % (picture.width - IMAGE[1])
        top = (dice & 0xFFFF) % (picture.height - IMAGE[0])
        crop = picture.crop((left, top, left + IMAGE[1], top + IMAGE[0]))
        flipped = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if dice & 1 << 15 else crop
        return np.asarray(flipped), label


def _photographs_of(package: str) -> list[Path]:
    """Where the photographs lie that come inside a package, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise RuntimeError(
            f"workload jpeg: package {package!r} is not installed, expected its photographs; "
            "run: pip install scikit-learn scikit-image pillow"
        )
    return [Path(found.submodule_search_locations[0]) / path for path in PHOTOGRAPHS[package]]


def _as_jpeg(path: Path) -> bytes:
    """The photograph in colour as a JPEG file, in memory, all at one quality."""
    from PIL import Image  # noqa: PLC0415, as above

    file = io.BytesIO()
    Image.open(path).convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()

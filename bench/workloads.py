"""The workloads: datasets as a user would write them, and what each of their batches must hold.

Worker processes import this module, so that nothing heavy stands at its top. Every dataset is a pure function
of the index: any batch can be computed again, and compared with what a loader delivered.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE = (224, 224, 3)


class Dataset(Protocol):
    """What every loader takes: a length, and a sample for each index."""

    def __len__(self) -> int:
        """How many samples, or ready batches, there are."""

    def __getitem__(self, index: int) -> Any:
        """The sample, or the ready batch, number `index`."""


class Window(NamedTuple):
    """How long to measure: `warmup` batches untimed, then until `most` batches or `seconds` have passed."""

    warmup: int
    most: int
    seconds: float

    @property
    def length(self) -> int:
        """Batches in an epoch that does not end within the window, nor while read-ahead runs dry."""
        return self.warmup + self.most + 64


@dataclass(frozen=True)
class Workload:
    """A dataset, how it is cut into batches, and how long it is measured."""

    name: str
    dataset: Dataset
    batch_size: int | None  # None: dataset[i] is a whole batch
    window: Window

    def leaves(self, number: int) -> tuple[Any, ...]:
        """The fields of sample (or ready batch) `number` in order."""
        sample = self.dataset[number]
        return sample if isinstance(sample, tuple) else (sample,)

    def buffers(self) -> tuple[np.ndarray, ...]:
        """New zeroed arrays that hold one batch."""
        rows = () if self.batch_size is None else (self.batch_size,)
        arrays = [np.asarray(leaf) for leaf in self.leaves(0)]
        return tuple(np.zeros(rows + array.shape, array.dtype) for array in arrays)

    def fill(self, number: int, out: tuple[np.ndarray, ...]) -> None:
        """Write batch `number` into `out`, each sample copied once."""
        if self.batch_size is None:
            for place, leaf in zip(out, self.leaves(number), strict=True):
                place[...] = leaf
            return
        start = number * self.batch_size
        if len(out) == 1:  # apart, so that the ideal pays for nothing but the samples
            place = out[0]
            for row in range(self.batch_size):
                place[row] = self.dataset[start + row]
            return
        for row in range(self.batch_size):
            for place, leaf in zip(out, self.dataset[start + row], strict=True):
                place[row] = leaf

    def batch(self, number: int) -> Any:
        """Batch `number` as a careful user makes it without a loader: ready ones as they are, others new."""
        if self.batch_size is None:
            return self.dataset[number]
        rows = (self.batch_size,)
        arrays = [np.asarray(leaf) for leaf in self.leaves(number * self.batch_size)]
        out = tuple(np.empty(rows + array.shape, array.dtype) for array in arrays)
        self.fill(number, out)
        return out if len(out) > 1 else out[0]

    def batch_bytes(self) -> int:
        """Bytes in one batch."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def is_right(self, number: int, batch: Any) -> bool:
        """Whether `batch` is bit for bit batch `number`."""
        expected = self.buffers()
        self.fill(number, expected)
        got = batch if isinstance(batch, (tuple, list)) else (batch,)
        same_fields = len(got) == len(expected)
        return same_fields and all(_same(*pair) for pair in zip(got, expected, strict=True))


def _same(got: Any, expected: np.ndarray) -> bool:
    got = np.asarray(got)  # a tensor becomes an array over the same memory
    return got.dtype == expected.dtype and np.array_equal(got, expected)


def touch(batch: Any) -> Any:
    """Read one element of the batch's first field, as little as a consumer can do."""
    first = batch[0] if isinstance(batch, (tuple, list)) else batch
    return first[(0,) * first.ndim]


class Ready:
    """A ready batch of 1 kB (32 rows of 32 bytes) for each index: what is left is the hand-over alone."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._ready = [np.full((32, 8), number, np.float32) for number in range(256)]

    def __len__(self) -> int:
        """Ready batches."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """An array that exists already."""
        return self._ready[index % 256]


class Resident:
    """Views of the samples of one array in memory, as many as fit, over and over."""

    def __init__(self, length: int, shape: tuple[int, ...], distinct: int) -> None:
        self._length = length
        count = distinct * int(np.prod(shape))
        self._samples: np.ndarray = np.arange(count, dtype=np.float32).reshape(distinct, *shape)

    def __len__(self) -> int:
        """Samples, each of the resident ones many times."""
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        """A view: the loader makes the one copy."""
        sample: np.ndarray = self._samples[index % len(self._samples)]
        return sample


PHOTOGRAPHS = {
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "skimage": tuple(
        f"data/{name}" for name in ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg")
    ),
}
CLASSES = sum(map(len, PHOTOGRAPHS.values()))


class Photographs:
    """Random 224 x 224 crops of real photographs, decoded from JPEG each time, with its number."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._files = [_as_jpeg(path) for package in PHOTOGRAPHS for path in _photographs_of(package)]

    def __len__(self) -> int:
        """Crops."""
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """Decode, crop where a hash of the index says."""
        from PIL import Image  # noqa: PLC0415, only the workers that decode need it

        label = index % len(self._files)
        picture = Image.open(io.BytesIO(self._files[label]))
        dice = index * 2654435761 & 0xFFFFFFFF  # Knuth's multiplicative hash
        left = (dice >> 16) % (picture.width - IMAGE[1])
        top = (dice & 0xFFFF) % (picture.height - IMAGE[0])
        crop = picture.crop((left, top, left + IMAGE[1], top + IMAGE[0]))
        return np.asarray(crop), label


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


class Stamped:
    """Samples that follow from their index by a hash and carry it: any loss, double or mix-up shows."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """3 kB of hash, and the index."""
        stream = hashlib.shake_128(index.to_bytes(8, "little")).digest(32 * 32 * 3)
        return np.frombuffer(stream, np.uint8).reshape(32, 32, 3), index


def _ready(window: Window) -> Workload:
    return Workload("ready", Ready(window.length), None, window)


def _tiny(window: Window) -> Workload:
    return Workload("tiny", Resident(32 * window.length, (8,), 4096), 32, window)


def _resident(window: Window) -> Workload:
    return Workload("resident", Resident(64 * window.length, IMAGE, 256), 64, window)


def _jpeg(window: Window) -> Workload:
    return Workload("jpeg", Photographs(32 * window.length), 32, window)


def _kill(window: Window) -> Workload:
    return Workload("kill", Stamped(32 * window.most), 32, window)


WORKLOADS: dict[str, tuple[Callable[[Window], Workload], int, int]] = {  # with warm-up and most batches
    "ready": (_ready, 1000, 400_000),
    "tiny": (_tiny, 500, 100_000),
    "resident": (_resident, 8, 2000),
    "jpeg": (_jpeg, 8, 2000),
    "kill": (_kill, 0, 400),
}


def make(name: str, seconds: float) -> Workload:
    """The named workload, to be measured for so many seconds at most."""
    build, warmup, most = WORKLOADS[name]
    return build(Window(warmup, most, seconds))

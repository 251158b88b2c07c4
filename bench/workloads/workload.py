"""The workloads: how each dataset is cut into batches, how long it is measured, and what each batch must hold.

Worker processes import this module, so that nothing heavy stands at its top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from workloads.photographs import IMAGE, Photographs
from workloads.samples import Arrays, Fields, Ready, Resident, Stamped, Uneven, Waiting, Witnessed

if TYPE_CHECKING:
    from collections.abc import Callable


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
    given: Any = None  # what ringfeed is given in the dataset's place
    shuffled: bool = (
        False  # by ringfeed, epoch after epoch; the last field of a sample is its number
    )

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
        elif isinstance(self.dataset, Arrays):
            self.dataset.gather(number * self.batch_size, out)
        else:
            self._fill_rows(number * self.batch_size, range(self.batch_size), out)

    def _fill_rows(self, start: int, rows: range, out: tuple[np.ndarray, ...]) -> None:
        """Write the samples of these rows of the batch that begins with sample `start`."""
        if len(out) == 1:  # apart, so that the ideal pays for nothing but the samples
            place = out[0]
            for row in rows:
                place[row] = self.dataset[start + row]
            return
        for row in rows:
            for place, leaf in zip(out, self.dataset[start + row], strict=True):
                place[row] = leaf

    def batch(self, number: int) -> Any:
        """Batch `number` as a careful user makes it without a loader: ready ones as they are, others new."""
        if self.batch_size is None:
            return self.dataset[number]
        start = number * self.batch_size
        first = [np.asarray(leaf) for leaf in self.leaves(start)]
        out = tuple(np.empty((self.batch_size, *leaf.shape), leaf.dtype) for leaf in first)
        if isinstance(self.dataset, Arrays):
            self.dataset.gather(start, out)
        else:
            for place, leaf in zip(out, first, strict=True):
                place[0] = leaf
            self._fill_rows(start, range(1, self.batch_size), out)
        return out if len(out) > 1 else out[0]

    def batch_bytes(self) -> int:
        """Bytes in one batch."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def is_right(self, number: int, batch: Any) -> bool:
        """Whether `batch` is bit for bit batch `number`; or, where the loader shuffles, any batch of this dataset."""
        if self.shuffled:
            return bool(self.dataset.holds(batch))  # type: ignore[attr-defined]
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


def _ready(window: Window) -> Workload:
    return Workload("ready", Ready(window.length), None, window)


def _tiny(window: Window) -> Workload:
    return Workload("tiny", Resident(32 * window.length, (8,), 4096), 32, window)


def _resident(window: Window) -> Workload:
    return Workload("resident", Resident(64 * window.length, IMAGE, 256), 64, window)


def _pixels(window: Window) -> Workload:
    return Workload("pixels", Resident(64 * window.length, IMAGE, 256, np.uint8), 64, window)


def _jpeg(window: Window) -> Workload:
    return Workload("jpeg", Photographs(32 * window.length), 32, window)


def _arrays(window: Window) -> Workload:
    dataset = Arrays(128 * window.length, (32, 32, 3), 50_000)
    return Workload("arrays", dataset, 128, window, given=dataset.given, shuffled=True)


def _slow(window: Window) -> Workload:
    return Workload("slow", Waiting(16 * window.length), 16, window)


def _variable(window: Window) -> Workload:
    return Workload("variable", Uneven(32 * window.length), 32, window)


def _epochs(window: Window) -> Workload:
    return Workload("epochs", Ready(16), None, window)


def _kill(window: Window) -> Workload:
    return Workload("kill", Stamped(32 * window.most), 32, window)


def _witnessed(window: Window) -> Workload:
    return Workload("witnessed", Witnessed(32 * window.most), 32, window)


def _of_bytes(size: int, window: Window) -> Workload:
    dataset = Ready(window.length, (size // 4,), 4 if size > 1 << 20 else 256)
    return Workload("bytes", dataset, None, window)


def _of_fields(count: int, window: Window) -> Workload:
    return Workload("fields", Fields(32 * window.length, count), 32, window)


def _of_length(length: int, window: Window) -> Workload:
    return Workload("length", Fields(length, 2), 32, window, shuffled=True)


def _of_epoch(length: int, window: Window) -> Workload:
    return Workload("epoch", Ready(length), None, window)


WORKLOADS: dict[
    str, tuple[Callable[[Window], Workload], int, int]
] = {  # with warm-up and most batches
    "ready": (_ready, 1000, 400_000),
    "tiny": (_tiny, 500, 100_000),
    "resident": (_resident, 60, 2000),
    "pixels": (_pixels, 60, 5000),
    "jpeg": (_jpeg, 8, 2000),
    "arrays": (_arrays, 1000, 50_000),
    "slow": (_slow, 8, 2000),
    "variable": (_variable, 8, 5000),
    "epochs": (_epochs, 0, 40),  # epochs, not batches
    "kill": (_kill, 0, 400),
    "kill_one": (_witnessed, 0, 300),
    "ahead": (_witnessed, 0, 2000),
}
SIZED: dict[
    str, tuple[Callable[[int, Window], Workload], int, int]
] = {  # of the size behind the slash
    "bytes": (_of_bytes, 60, 100_000),
    "fields": (_of_fields, 50, 50_000),
    "length": (_of_length, 50, 50_000),
    "epoch": (_of_epoch, 0, 400),  # epochs, not batches
    "slots": (lambda _, window: _ready(window), 1000, 400_000),
    "workers": (lambda _, window: _tiny(window), 500, 100_000),
}


def make(name: str, seconds: float) -> Workload:
    """The named workload (`ready`; the same in `calls/ready`, `ready/warm`), measured for so many seconds at most."""
    kind, _, rest = name.partition("/")
    if kind in SIZED:
        sized, warmup, most = SIZED[kind]
        return sized(int(rest), Window(warmup, most, seconds))
    build, warmup, most = WORKLOADS[kind if kind in WORKLOADS else rest]
    return build(Window(warmup, most, seconds))

"""Datasets and orders of which a loader may disturb or miss nothing: for `differential`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---- datasets: each is made anew for each run ----


class Rows:
    """A sample is a function of its index, of the hooks that have run, and of what the loop has set."""

    def __init__(self, length: int, first: int = 0) -> None:
        self.length = length
        self.first = first
        self.begun = self.ended = self.level = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        version = np.full(3, self.begun * 10000 + self.ended * 100 + self.level)
        return {"index": np.int64(self.first + index), "version": version}

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


class Steered:
    """Has no hooks: what changes is what the loop sets."""

    level = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"index": np.int64(index), "version": np.full(3, self.level)}


class Asked(Rows):
    """Answers by `__getitems__`, from any list of indices."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Opened(Rows):
    """Opens what it reads on first use, and leaves numbers and objects that mean nothing elsewhere in itself."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.source: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.source is None:
            self.source = Path(os.devnull).open("rb"), (number for number in range(2))  # noqa: SIM115 - it stays open
        assert os.fstat(self.source[0].fileno()).st_rdev == Path(os.devnull).stat().st_rdev
        return super().__getitem__(index)


class Failing(Rows):
    """Has samples that raise."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


class Awaited(Rows):
    """Is awaited."""

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return super().__getitem__(index)


class Columns(dict[str, Any]):
    """Arrays, of which a hook replaces one."""

    def __init__(self, length: int) -> None:
        super().__init__(index=np.arange(length), version=np.zeros((length, 3), np.int64))

    def on_epoch_end(self) -> None:
        self["version"] = self["version"] + 1


class Windows(dict[str, Any]):
    """A series, seen as windows that lie over each other, backwards."""

    def __init__(self, length: int) -> None:
        series = np.arange(length + 4, dtype=np.float32)
        super().__init__(
            version=np.lib.stride_tricks.sliding_window_view(series, 5)[::-1],
            index=np.arange(length),
        )


class Whole(Rows):
    """Whole batches, in an order that a hook draws."""

    def __init__(self, length: int, rows: int) -> None:
        super().__init__(length)
        self.rows = rows
        self.order = np.arange(length)

    def __len__(self) -> int:
        return (self.length + self.rows - 1) // self.rows

    def __getitem__(self, index: int) -> Any:
        taken = self.order[index * self.rows : (index + 1) * self.rows]
        return {"index": taken, "version": np.full((len(taken), 3), self.ended * 100 + self.level)}

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.order = np.random.default_rng(self.ended).permutation(self.length)


class OneBuffer:
    """An iterable that fills one buffer again and again."""

    def __init__(self, length: int, first: int = 0) -> None:
        self.length = length
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        buffer = np.zeros(3, np.int64)
        for index in range(self.first, self.first + self.length):
            buffer[:] = index
            yield {"index": np.int64(index), "version": buffer}


class OwnPlace(OneBuffer):
    """An iterable that keeps its place in itself, and has a state that goes on changing."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.left = [*range(length)]

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            yield {"index": np.int64(self.left.pop(0)), "version": np.zeros(3, np.int64)}
        self.left = [*range(self.length)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = [*state["left"]]


# ---- orders ----


class Popped:
    """A sampler that pops what is left from a list of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.left = [*range(length)]

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop()
        self.left = [*range(self.length)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = [*state["left"]]


class OneList:
    """A batch sampler that fills one list again and again, with lists of different lengths."""

    def __init__(self, length: int, most: int) -> None:
        self.length = length
        self.most = most

    def __iter__(self) -> Iterator[list[int]]:
        indices: list[int] = []
        place, size = 0, 1
        while place < self.length:
            indices[:] = range(place, min(self.length, place + size))
            place += len(indices)
            size = size % self.most + 1
            yield indices


def doubled(sample: Any) -> Any:
    """Return another sample than it was given."""
    return {**sample, "version": sample["version"] * 2}


def in_place(sample: Any) -> None:
    """Change a sample."""
    sample["version"] += 1


def drawn(sample: Any, rng: np.random.Generator) -> Any:
    """Return a sample with random numbers."""
    return {**sample, "version": rng.integers(0, 1000, 3)}


def refusing(sample: Any) -> Any:
    """Raise for some samples."""
    if sample["index"] % 7 == 4:
        raise ValueError(sample["index"])
    return sample


def whole_in_place(batch: Any) -> None:
    """Change a batch."""
    batch["version"] += batch["index"].max()


def collated(samples: list[Any]) -> Any:
    """Return a batch as torch's function would."""
    return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}


class Understated(OneBuffer):
    """An iterable whose length is less than what comes."""

    def __len__(self) -> int:
        return self.length // 2

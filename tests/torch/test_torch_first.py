"""No sample is read that torch would not read: a copy or a forked process shows the spec."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from ringfeed.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]

COUNT = 12
WAYS = [None, "fork", "forkserver"]


class Taking(Dataset):
    """Gives what it takes out of what it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.held, dict):
            return self.held.pop(index)
        return int(self.held.pop(0) if isinstance(self.held, list) else next(self.held))


class Growing(Dataset):
    """Counts what was read of it, in a tensor and in a number."""

    def __init__(self) -> None:
        self.table, self.reads = torch.zeros(COUNT, 4096), 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.table[index] += 1
        self.reads += 1
        return self.table[index, 0].item(), self.reads


class Stream(IterableDataset):
    """Gives what is left."""

    def __init__(self) -> None:
        self.held = [*range(COUNT)]

    def __iter__(self) -> Iterator[int]:
        while self.held:
            yield self.held.pop(0)


def numbers(dataset: Any, way: Any, **settings: Any) -> list[Any]:
    """All numbers of an epoch with one worker."""
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context=way, **settings
    )
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("collates", [False, True])
@pytest.mark.parametrize("kind", ["list", "dict", "iterator", "stream"])
def test_what_a_sample_takes_out_is_there(kind: str, way: Any, *, collates: bool) -> None:
    """The worker begins with all, and this process keeps all."""
    held = {
        "list": [*range(COUNT)],
        "dict": {n: n for n in range(COUNT)},
        "iterator": iter(range(COUNT)),
    }
    dataset = Stream() if kind == "stream" else Taking(held[kind])
    settings = {"collate_fn": torch.tensor} if collates else {}
    assert numbers(dataset, way, **settings) == [*range(COUNT)]
    assert kind == "iterator" or len(dataset.held) == COUNT


@pytest.mark.parametrize("way", WAYS)
def test_a_dataset_that_changes_in_place(way: Any) -> None:
    """Tensors and counts begin as they are."""
    dataset = Growing()
    loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=way)
    found = [
        one for table, reads in loader for one in zip(table.tolist(), reads.tolist(), strict=True)
    ]
    assert found == [(1, count + 1) for count in range(COUNT)]
    assert (dataset.table.sum().item(), dataset.reads) == (0, 0)


@pytest.mark.parametrize("way", [None, "fork"])
def test_lines_of_an_open_file(way: Any, tmp_path: Path) -> None:
    """They come in the file's order: the process that looks ahead has a position of its own."""
    (tmp_path / "rows").write_text("".join(f"{number}\n" for number in range(COUNT)))

    class Lines(Taking):
        def __getitem__(self, index: int) -> Any:
            return int(next(self.held)[0])

    with (tmp_path / "rows").open() as file:
        assert numbers(Lines(csv.reader(file)), way) == [*range(COUNT)]

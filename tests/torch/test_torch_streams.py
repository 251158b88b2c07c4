"""`ringfeed.torch.DataLoader` over an IterableDataset: a copy in each worker, batches in turn."""

from __future__ import annotations

import importlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
both, check_alike, check_epochs, close = (
    checks.both,
    checks.check_alike,
    checks.check_epochs,
    checks.close,
)
sets = torch.utils.data
DataLoader = ringfeed.torch.DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]


class Counting(sets.IterableDataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Numbers from ``start`` to below ``end``, of which each worker gives its part."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        step = 1 if info is None else info.num_workers
        first = self.start + (0 if info is None else info.id)
        return ((np.full(2, number), number) for number in range(first, self.end, step))


class Uneven(Counting):
    """Worker k has k * 5 + 2 numbers."""

    def __iter__(self) -> Iterator[Any]:
        number = torch.utils.data.get_worker_info().id
        return iter(range(100 * number, 100 * number + 5 * number + 2))


class Configured(Counting):
    """Numbers from ``start`` to below ``end``, which ``worker_init_fn`` sets."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.start, self.end))


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"batch_size": 4, "drop_last": True}])
def test_copies_share_the_data_by_their_worker_info(settings: Any) -> None:
    """Batches and generators are those of torch, epoch after epoch."""
    ours, own = both(Counting(3, 24), num_workers=2, seed=1, **settings)
    check_epochs(ours, own, 2)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


def test_copies_of_several_lengths_come_in_turn() -> None:
    """One that has ended leaves the rotation, after a batch that is shorter."""
    ours, own = both(Uneven(0, 0), num_workers=3, batch_size=2)
    check_epochs(ours, own)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


def test_worker_init_fn_configures_each_copy_once() -> None:
    """What it changes in its worker's dataset stays: a part of a part is never taken."""

    def configure(number: int) -> None:
        dataset = torch.utils.data.get_worker_info().dataset
        half = (dataset.end - dataset.start) // 2
        dataset.start += number * half
        dataset.end = dataset.start + half

    ours, own = both(Configured(0, 20), num_workers=2, batch_size=4, worker_init_fn=configure)
    check_epochs(ours, own, 2)
    close(ours)


def test_more_batches_than_were_said_warn() -> None:
    """Where copies give the same data, ``len()`` was wrong."""

    class Doubled(Configured):
        pass

    ours, own = both(Doubled(0, 4), num_workers=2)
    started = iter(ours)  # before len(): it counts on nothing
    assert len(ours) == len(own) == 4
    assert sum(1 for _ in started) == 8
    said = []
    for loader in (ours, own):
        with pytest.warns(UserWarning, match="samples have been fetched") as warned:
            assert sum(1 for _ in loader) == 8
        said.append([str(one.message).replace(str(loader.dataset), "it") for one in warned])
    close(ours)
    assert said[0] == [
        "Length of IterableDataset it was reported to be 4(when accessing len(dataloader)), but "
        f"{count} samples have been fetched. For multiprocessing data-loading, this comes of "
        "workers that each give all of the data: have each copy give its own part, by "
        "torch.utils.data.get_worker_info()"
        for count in (5, 6, 7, 8)
    ]
    assert [text.partition(", this")[0] for text in said[0]] == [
        text.partition(", this")[0] for text in said[1]
    ]


def test_a_warning_that_is_an_error_costs_no_batch() -> None:
    """It is raised once; the batch that it is about comes after it."""
    ours = DataLoader(Configured(0, 2), num_workers=2)
    assert len(ours) == 2
    batches, found = iter(ours), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found += [next(batches).item() for _ in range(2)]
        for _ in range(2):
            with pytest.raises(UserWarning, match="samples have been fetched"):
                next(batches)
            found.append(next(batches).item())
    assert [*batches] == []
    close(ours)
    assert found == [0, 0, 1, 1]


def test_what_can_be_read_once_loses_nothing() -> None:
    """The first worker gets the first element of a generator, which only a fork takes there."""

    class Once(Counting):
        def __init__(self) -> None:
            super().__init__(0, 0)
            self.numbers = (number for number in range(7))

        def __iter__(self) -> Iterator[Any]:
            return self.numbers

    ours = DataLoader(Once(), num_workers=1, batch_size=4)
    assert [batch.tolist() for batch in ours] == [[0, 1, 2, 3], [4, 5, 6]]
    assert ours._rings.own_reason is None


def test_copies_that_a_slot_has_no_place_for_go_as_bytes(caplog: Any) -> None:
    """From the batch on that does not fit; what was handed out does not come again."""

    class Growing(Counting):
        def __iter__(self) -> Iterator[Any]:
            return (np.zeros(2 if number < 8 else 3) + number for number in range(16))

    ours, own = both(Growing(0, 16), num_workers=1, batch_size=4, seed=3)
    with caplog.at_level(logging.INFO, "ringfeed.torch"):
        check_epochs(ours, own, 2)
    assert "has its batches pickled: " in caplog.messages[1]
    assert "expected (2,)" in caplog.messages[1]
    close(ours)

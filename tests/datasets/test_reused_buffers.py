"""What the user's code fills again and again.

Each batch has what was there when it was handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from numbered import MADE, same
from ringfeed import Loader, Shard
from ringfeed.datasets import Interleave
from ringfeed.keras import GeneratorEnqueuer
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 24
pytestmark = pytest.mark.usefixtures("closed")


class OneArray:
    """Gives the same array each time, filled again."""

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        buffer = np.zeros(self.size, np.int64)
        for number in range(COUNT):
            buffer[:] = number
            yield buffer


class OneDict(OneArray):
    """Gives the same dict of the same array and a list, filled again."""

    def __iter__(self) -> Iterator[Any]:
        sample: dict[str, Any] = {"x": np.zeros(self.size, np.int64), "y": [np.int64(0)]}
        for number in range(COUNT):
            sample["x"][:] = number
            sample["y"][0] = np.int64(number)
            yield sample


class Counted(OneArray):
    """One array, of an iterable that says how many it gives."""

    def __len__(self) -> int:
        return COUNT


class Bulk:
    """A dataset whose ``__getitems__`` is a generator that fills one array again."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index, np.int64)

    def __getitems__(self, indices: list[int]) -> Iterator[Any]:
        buffer = np.zeros(3, np.int64)
        for index in indices:
            buffer[:] = index
            yield buffer


def one_array() -> Iterator[Any]:
    """Return a generator of one array."""
    return iter(OneArray())


def stacked(samples: list[Any]) -> Any:
    """Return a batch of all samples."""
    if isinstance(samples[0], dict):
        return {
            "x": np.stack([one["x"] for one in samples]),
            "y": [np.stack([one["y"][0] for one in samples])],
        }
    return np.stack(samples)


def numbers(batches: Any) -> list[int]:
    """Return what the elements of all batches were filled with.

    Fails where one is not filled with one number.
    """
    found = list[int]()
    for batch in batches:
        array = batch["x"] if isinstance(batch, dict) else batch
        assert (array == array[:, :1]).all()
        if isinstance(batch, dict):
            assert (batch["y"][0] == array[:, 0]).all()
        found += array[:, 0].tolist()
    return found


def fed(dataset: Any, **parameters: Any) -> Loader:
    """Return a loader."""
    MADE.append(
        Loader(
            dataset, **{"batch_size": 4, "backend": "fork", "timeout_s": PATIENCE_S, **parameters}
        )
    )
    return MADE[-1]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    "work", [{"transform": same}, {"collate_fn": stacked}, {"batch_transform": same}]
)
@pytest.mark.parametrize(
    "dataset", [OneArray(), OneDict(), OneArray(5000)], ids=["array", "dict", "large"]
)
def test_an_iterable_may_fill_what_it_yields_again(
    dataset: Any, work: dict[str, Any], workers: int
) -> None:
    """An element is what it was when it was yielded, whatever reads it."""
    assert numbers(fed(dataset, workers=workers, **work)) == [*range(COUNT)]


@pytest.mark.parametrize("work", [{}, {"collate_fn": stacked}])
@pytest.mark.parametrize("dataset", [OneArray(), OneDict()], ids=["array", "dict"])
def test_an_iterable_of_several_ranks_may_too(dataset: Any, work: dict[str, Any]) -> None:
    """Elements of a rank are kept until its global batch is read, as they were."""
    found = [
        numbers(fed(dataset, workers=0, shard=Shard(rank, 2, "drop"), **work)) for rank in range(2)
    ]
    expected = np.arange(COUNT).reshape(-1, 2, 4)
    assert found == [expected[:, rank].reshape(-1).tolist() for rank in range(2)]


@pytest.mark.parametrize("uneven", ["pad", "keep", "drop"])
def test_an_iterable_of_several_ranks_that_says_its_length_may_too(uneven: Any) -> None:
    """The row that pads a last batch is the element as it was."""
    found = [
        numbers(fed(Counted(), batch_size=5, workers=0, shard=Shard(rank, 3, uneven)))
        for rank in range(3)
    ]
    plain = [
        numbers(fed(np.repeat(np.arange(COUNT)[:, None], 3, 1), batch_size=5, workers=0, shard=Shard(rank, 3, uneven)))
        for rank in range(3)
    ]  # fmt: skip
    assert found == plain


@pytest.mark.parametrize("work", [{}, {"collate_fn": stacked}])
def test_iterators_and_several_iterables_may_too(work: dict[str, Any]) -> None:
    """A generator's first elements, read to learn the spec, stay as well; several in turn, too."""
    assert numbers(fed(one_array(), workers=0, **work)) == [*range(COUNT)]
    found = numbers(fed(Interleave([OneArray(), OneArray()]), workers=1, **work))
    assert found == np.repeat(np.arange(COUNT).reshape(-1, 1, 4), 2, 1).reshape(-1).tolist()


def test_a_generator_of_many_samples_may_too() -> None:
    """collate_fn gets each sample as it was, though ``__getitems__`` yields one array each time."""
    assert numbers(fed(Bulk(), workers=0, collate_fn=stacked)) == [*range(COUNT)]


def test_the_batches_of_an_enqueuer_are_what_was_yielded() -> None:
    """A generator that fills one batch again is read ahead, into slots."""
    enqueuer = GeneratorEnqueuer(np.repeat(one[None], 2, 0) * 0 + one for one in OneArray())
    enqueuer.start(workers=1, max_queue_size=4)
    try:
        found = [batch[0, 0] for batch in enqueuer.get()]
    finally:
        enqueuer.stop()
    assert found == [*range(COUNT)]


def test_random_numbers_of_elements_that_are_kept_are_their_own() -> None:
    """What an element has drawn goes on in its transform, on several ranks, too."""

    def element(sample: Any) -> Any:
        return sample, ringfeed.rng().random()

    alone = [batch[1].tolist() for batch in fed(OneArray(), workers=0, transform=element)]
    ranks = [
        [batch[1].tolist() for batch in fed(OneArray(), workers=0, transform=element, shard=Shard(rank, 2, "drop"))]
        for rank in range(2)
    ]  # fmt: skip
    assert [*ranks[0], *ranks[1]] == [*alone[0::2], *alone[1::2]]

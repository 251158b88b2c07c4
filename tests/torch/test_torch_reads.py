"""`ringfeed.torch.DataLoader` reads samples once, by torch's indices, as many at once as torch."""

from __future__ import annotations

import csv
import importlib
import itertools
import multiprocessing
import queue
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
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
DataLoader, Own = ringfeed.torch.DataLoader, sets.DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
    pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning"),  # of batches that are kept
]
# Where torch's own loader sends tensors and values of processes, its memory and its server stay:
# `nothing_left_here`.
nothing_is_left = pytest.mark.usefixtures("nothing_left")

LENGTH = 12
CALLS = [0]  # of this process, and of workers that are forked from it


class Taking(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Samples that a function takes out of something."""

    def __init__(self, take: Callable[[Any, int], Any], held: Any) -> None:
        self.take = take
        self.held = held

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.take(self.held, index)


def counted(held: Any, _: int) -> int:
    """A counter in the dataset."""
    held["count"] += 1
    return int(held["count"])


def counted_here(_held: Any, _: int) -> int:
    """A counter in this module."""
    CALLS[0] += 1
    return CALLS[0]


def halved(held: Any, index: int) -> Any:
    """A row that is changed where it lies."""
    held[index] /= 2
    return held[index]


def filled(kind: Any) -> Any:
    """A queue with elements enough."""
    found = kind()
    for number in range(3 * LENGTH):
        found.put(number)
    return found


def lines(of: Path) -> Any:
    """An open file that csv reads."""
    of.write_text("".join(f"{number}\n" for number in range(3 * LENGTH)))
    return csv.reader(of.open())


TAKEN: dict[str, tuple[Callable[[Any, int], Any], Callable[[Path], Any]]] = {
    "a list": (lambda held, _: held.pop(), lambda _: [*range(3 * LENGTH)]),
    "a deque": (lambda held, _: held.popleft(), lambda _: deque(range(3 * LENGTH))),
    "a dict": (
        lambda held, _: held.popitem()[1],
        lambda _: {number: number for number in range(3 * LENGTH)},
    ),
    "a set": (lambda held, _: held.pop(), lambda _: {*range(3 * LENGTH)}),
    "an iterator": (lambda held, _: next(held), lambda _: iter([*range(3 * LENGTH)])),
    "a generator": (lambda held, _: next(held), lambda _: (number for number in range(3 * LENGTH))),
    "a count": (lambda held, _: next(held), lambda _: itertools.count()),
    "a counter": (counted, lambda _: {"count": 0}),
    "a counter of the module's": (counted_here, lambda _: None),
    "a queue": (lambda held, _: held.get(timeout=10), lambda _: filled(queue.Queue)),
    "rows in place": (halved, lambda _: np.full((LENGTH, 2), 8.0)),
    "NumPy's generator": (lambda held, _: held.random(), lambda _: np.random.default_rng(0)),
    "torch's generator": (
        lambda held, _: torch.rand(1, generator=held),
        lambda _: torch.Generator().manual_seed(0),
    ),
    "a count, and draws": (
        lambda held, _: (next(held), torch.rand(1).numel(), np.random.rand(2).size),  # noqa: NPY002
        lambda _: itertools.count(),
    ),
    "a list, of a function": (lambda held, _: held(), lambda _: [*range(3 * LENGTH)].pop),
}
SHARED: dict[
    str, tuple[Callable[[Any, int], Any], Callable[[Path], Any]]
] = {  # by processes that are forked
    "a queue of processes": (
        lambda held, _: held.get(),
        lambda _: filled(multiprocessing.get_context("fork").SimpleQueue),
    ),
    "a value of processes": (
        lambda held, _: held.__setattr__("value", held.value + 1) or held.value,
        lambda _: multiprocessing.get_context("fork").Value("q", 0),
    ),
    "a shared tensor": (
        lambda held, _: held.add_(1).item(),
        lambda _: torch.zeros(()).share_memory_(),
    ),
    "an open file": (lambda held, _: int(held.readline()), lambda of: (lines(of), of.open())[1]),
    "an open file in C": (lambda held, _: int(next(held)[0]), lines),
}


def results(make: Any, dataset: Any, **settings: Any) -> list[Any]:
    """Return what two epochs give."""
    loader = make(dataset, **settings)
    found = [
        [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]
        for _ in range(2)
    ]
    if make is DataLoader:
        close(loader)
    return found


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", TAKEN)
@nothing_is_left
def test_no_sample_is_read_that_torch_does_not_read(
    kind: str, workers: int, tmp_path: Path
) -> None:
    """What a dataset changes in itself is in each worker what it is in torch's, and not here."""
    take, held = TAKEN[kind]
    CALLS[0] = 0
    found = [
        results(make, Taking(take, held(tmp_path)), batch_size=4, num_workers=workers)
        for make in (DataLoader, Own)
    ]
    check_alike(*found)
    assert CALLS[0] == 0


def epochs(loader: Any, count: int) -> list[list[Any]]:
    """Return so many epochs of a loader, which then keeps nothing."""
    found = [[*loader] for _ in range(count)]
    close(loader)
    return found


@contextmanager
def nothing_left_here() -> Iterator[None]:
    """Fail if this part leaves something; torch's own loader, which ran ahead of it, does."""
    before = leftovers.present()
    yield
    assert leftovers.since(before) == []


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("kind", SHARED)
def test_nothing_is_taken_ahead_of_what_processes_share(kind: str, tmp_path: Path) -> None:
    """The first worker gets the first of queues, shared values and tensors, and files."""
    take, held = SHARED[kind]

    def taken(make: Any) -> list[list[Any]]:
        return epochs(make(Taking(take, held(tmp_path / "lines")), batch_size=4, num_workers=1), 1)

    expected = taken(Own)
    with nothing_left_here():
        check_alike(taken(DataLoader), expected)


@nothing_is_left
def test_what_a_program_holds_stays_as_it_is(tmp_path: Path) -> None:
    """To read ahead changes no dataset here, and no place in a file."""
    dataset = Taking(halved, np.full((LENGTH, 2), 8.0))
    (tmp_path / "words").write_text("one two")
    with (tmp_path / "words").open() as file:
        assert file.read(4) == "one "
        place = file.buffer.raw.tell()
        dataset.take, dataset.more = halved, [file.buffer.raw]
        assert next(iter(DataLoader(dataset, batch_size=4, num_workers=1)))[0].tolist() == [
            4.0,
            4.0,
        ]
        assert file.buffer.raw.tell() == place
    assert (dataset.held == 8.0).all()


# ---- indices ----


class Echo(sets.Dataset):  # type: ignore[misc]
    """What it is asked for, and of which type."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: Any) -> Any:
        return repr(index), type(index).__name__


ALONE: dict[str, Any] = {
    "arrays": np.array_split(np.arange(12), 3),
    "tensors": [torch.arange(3), torch.tensor(2)],
    "pairs": [(1, 0), (2, 1)],
    "ranges": [range(4), range(4, 8)],
    "slices": [slice(0, 4), slice(4, 8, 2)],
    "lists": [[0, 1], [2]],
    "a list and then an int": [[0, 1], 2, (3,)],
    "negative": [-1, -12],
    "bools": [True, False],
    "numbers of NumPy's": [np.int64(3), np.uint8(4)],
    "texts": ["a", "é"],
    "dicts": [{"scale": 2, "index": 3}],
    "None": [None, 0],
    "large": [2**80, -(2**70)],
}


def check_echo(**settings: Any) -> None:
    """Fail unless the dataset gets the same indices from both loaders, and ours leaves nothing."""
    expected = epochs(Own(Echo(), num_workers=2, **settings), 2)
    with nothing_left_here():
        ours = DataLoader(Echo(), num_workers=2, **settings)
        check_alike(epochs(ours, 2), expected)
        assert ours._rings.own_reason is None
        del ours


@pytest.mark.parametrize("kind", ALONE)
def test_without_batch_size_an_index_reaches_the_dataset_whole(kind: str) -> None:
    """Whatever the sampler gives."""
    check_echo(batch_size=None, sampler=ALONE[kind])


LISTS: dict[str, Any] = {
    "negative": [[0, -1], [-2, 3]],
    "bools": [[True, False], [1, 0]],
    "numbers of NumPy's": [np.array([3, 4]), [np.int64(5)]],
    "tensors": [torch.tensor([1, 2]), [torch.tensor(3)]],
    "ranges": [range(3), range(3, 5)],
    "tuples": [(1, 2), (3,)],
    "sets": [{4}, frozenset({5})],
    "texts": [["a", "b"], "cd"],
    "pairs": [[(0, 1), (2, 3)]],
    "plain, then other": [[0, 1], [2, 3], [np.int64(4), -5], [6]],
    "longer and longer": [[0], [*range(12)], [*range(12)] * 100, [1, 2]],
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_reach_the_dataset_as_they_are(kind: str) -> None:
    """Each index of them, as the batch_sampler gives it."""
    check_echo(batch_sampler=LISTS[kind])


@nothing_is_left
def test_a_batch_sampler_may_give_generators() -> None:
    """No other process can have one, and torch's worker is never told of it: it is read here."""

    class Generated:
        def __iter__(self) -> Any:
            return ((index for index in (first, first + 1)) for first in (0, 2, 4))

    ours = DataLoader(Echo(), batch_sampler=Generated(), num_workers=1)
    assert [batch[0] for batch in ours] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert ours._rings.own_reason is None


# ---- many at once ----


class MixUp(sets.Dataset):  # type: ignore[misc]
    """Each sample with its neighbour in the batch."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index])

    def __getitems__(self, indices: Any) -> Any:
        return [
            torch.tensor([one, other])
            for one, other in zip(indices, indices[1:] + indices[:1], strict=True)
        ]


class Collated(MixUp):
    """A batch that is made at once, and how it was asked for."""

    def __getitems__(self, indices: Any) -> Any:
        return {"sum": torch.tensor(sum(indices)), "of": type(indices).__name__}


def as_it_is(batch: Any) -> Any:
    """Collate nothing."""
    return batch


GETITEMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "batches": (MixUp(), {"batch_size": 8}),
    "shuffled": (MixUp(), {"batch_size": 5, "shuffle": True}),
    "a subset": (sets.Subset(MixUp(), [5, 3, 1, 0, 2]), {"batch_size": 3}),
    "of one": (MixUp(), {}),
    "a whole batch": (Collated(), {"batch_size": 5, "collate_fn": as_it_is}),
    "tuples": (Collated(), {"batch_sampler": [(0, 1), (2,)], "collate_fn": as_it_is}),
    "no batch": (MixUp(), {"batch_size": None}),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", GETITEMS)
@nothing_is_left
def test_getitems_is_given_all_indices_of_a_batch(kind: str, workers: int) -> None:
    """As torch's workers do, with any number of them."""
    dataset, settings = GETITEMS[kind]
    ours, own = both(dataset, num_workers=workers, seed=4, **settings)
    check_epochs(ours, own, 2)
    assert ours._rings.own_reason is None


@nothing_is_left
def test_an_error_of_getitems_says_where() -> None:
    """It is raised as it is, in its place, and the next batch comes."""

    class Failing(MixUp):
        def __getitems__(self, indices: Any) -> Any:
            if 4 in indices:
                message = "no such rows"
                raise KeyError(message)
            return super().__getitems__(indices)

    batches = iter(DataLoader(Failing(), batch_size=3, num_workers=1))
    next(batches)
    with pytest.raises(KeyError, match="no such rows") as error:
        next(batches)
    assert error.value.__notes__ == [
        "in a worker process of ringfeed's DataLoader: dataset.__getitems__([3, 4, 5])"
    ]
    assert len(next(batches)) == 3


# ---- which worker reads what ----


@nothing_is_left
def test_workers_take_batches_in_turn() -> None:
    """Each batch is one worker's, beginning with the first in each epoch, as with torch."""

    class Numbered(Echo):
        def __getitem__(self, index: int) -> int:
            return int(torch.utils.data.get_worker_info().id)

    for settings in (
        {},
        {"persistent_workers": True},
        {"collate_fn": sets.default_collate},
        {"collate_fn": list},
    ):
        ours, own = both(Numbered(), batch_size=2, num_workers=3, **settings)
        check_epochs(ours, own, 2)
        assert ours._rings.own_reason is None
        close(ours)


@pytest.mark.parametrize("collate_fn", [sets.default_collate, list])
@nothing_is_left
def test_longer_lists_go_to_the_same_workers(collate_fn: Any) -> None:
    """A list may be much longer than the first: the dataset keeps what it has changed in itself."""
    lists = [[0], [1, 2], [*range(LENGTH)] * 5, [3] * 3000, [4]]
    ours, own = both(
        Taking(counted, {"count": 0}), batch_sampler=lists, num_workers=2, collate_fn=collate_fn
    )
    check_epochs(ours, own, 2)
    assert ours._rings.own_reason is None


@nothing_is_left
def test_batches_larger_than_slots_are_made_once(tmp_path: Path) -> None:
    """They lie apart from the slots and may be kept; the next epoch has larger slots."""
    log = tmp_path / "log"

    class Growing(Echo):
        def __getitem__(self, index: int) -> Any:
            with log.open("a") as file:
                file.write(f"{index}\n")
            return torch.full((1 + 100_000 * (index > 3),), index)

    def of_any_length(samples: list[Any]) -> Any:
        return samples

    ours, own = both(Growing(), batch_size=2, num_workers=2, collate_fn=of_any_length)
    kept = [[*ours] for _ in range(2)]
    # The first is read once more, ahead of the first epoch, and what it writes to files stays.
    assert sorted(map(int, log.read_text().split())) == sorted([0, *[*range(LENGTH)] * 2])
    for epoch in kept:
        for one, other in zip(epoch, own, strict=True):
            check_alike(one, other)
    assert ours._rings.own_reason is None

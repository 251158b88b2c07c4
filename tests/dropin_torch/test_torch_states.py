"""`state_dict` and `load_state_dict` of `ringfeed.torch.DataLoader`: a run goes on where it was cut."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
close = checks.close
sets = torch.utils.data
DataLoader = ringfeed.torch.DataLoader

pytestmark = pytest.mark.usefixtures("nothing_left")


class Squares(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Numbers, and what is drawn beside them."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return index, np.random.rand()  # noqa: NPY002


class Words(Squares):
    """Samples for which a slot has no place."""

    def __getitem__(self, index: int) -> Any:
        return index, str(index)


class Streamed(sets.IterableDataset):  # type: ignore[misc]
    """Numbers in order."""

    def __iter__(self) -> Any:
        return iter(range(23))


MADE: dict[str, Any] = {
    "shuffled, one generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "shuffled by the global generator": lambda: {"shuffle": True},
    "lists": lambda: {
        "batch_sampler": [[n, n + 1] for n in range(0, 22, 2)],
        "generator": torch.Generator().manual_seed(3),
    },
    "in order": dict,
}


def numbers(batch: Any) -> Any:
    """Return what a batch holds, in Python's own numbers."""
    return [[*leaf] if isinstance(leaf, tuple) else leaf.tolist() for leaf in batch]


def run(make: Any, cut: int, dataset: Any, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Return what two epochs give, and what they give where they are cut after some batches."""
    found: list[list[Any]] = []
    for cuts in (False, True):
        torch.manual_seed(9)
        loader, state, had = DataLoader(dataset, **settings, **make()), None, []
        for number, batch in enumerate(batch for _ in range(2) for batch in loader):
            had.append(numbers(batch))
            if cuts and number + 1 == cut:
                state = json.loads(json.dumps(loader.state_dict()))
                break
        close(loader)
        if state is not None:
            torch.manual_seed(1234)
            loader = DataLoader(dataset, **settings, **make())
            loader.load_state_dict(state)
            had += [numbers(batch) for _ in range(2 - state["epoch"]) for batch in loader]
            close(loader)
        found.append(had)
    return found[0], found[1]


@pytest.mark.parametrize("cut", [2, 6, 8])
@pytest.mark.parametrize("kind", ["shuffled, one generator", "lists"])
def test_a_cut_run_goes_on(kind: str, cut: int) -> None:
    """Amid an epoch, at its end, and in the next: the same samples in the same order, with the same numbers."""
    sizes = {} if kind == "lists" else {"batch_size": 4}
    whole, resumed = run(lambda: sizes | MADE[kind](), cut, Squares(), num_workers=1)
    assert resumed == whole


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("dataset", [Squares(), Words()])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_cut_run_goes_on_in_either_way(kind: str, dataset: Any, workers: int) -> None:
    """Without workers, and where torch makes the batches; an epoch after that draws from the program's generator."""
    sizes = {} if kind == "lists" else {"batch_size": 4}
    whole, resumed = run(lambda: sizes | MADE[kind](), 3, dataset, num_workers=workers)
    assert [batch[0] for batch in resumed][:6] == [batch[0] for batch in whole][:6]


def test_another_batch_size_goes_on_with_the_next_sample() -> None:
    """The state counts samples."""
    first = DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=0, generator=torch.Generator().manual_seed(1))
    batches = iter(first)
    had = [*next(batches)[0].tolist(), *next(batches)[0].tolist()]
    rest = [number for batch in batches for number in batch[0].tolist()]
    again = iter(first)
    next(again)
    other = DataLoader(Squares(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1))
    state = DataLoader(
        Squares(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)
    ).state_dict() | {"batches": 2, "samples": 8}
    other.load_state_dict(state)
    assert [number for batch in other for number in batch[0].tolist()] == rest
    assert len({*had, *rest}) == 23


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on(workers: int) -> None:
    """An IterableDataset is read up to its place."""
    settings = {"batch_size": 4, "num_workers": workers}
    loader = DataLoader(Streamed(), **settings)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    close(loader)
    other = DataLoader(Streamed(), **settings)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    assert other.state_dict()["epoch"] == 1
    close(other)


def test_a_foreign_state_is_refused() -> None:
    """What is no state of a DataLoader is named."""
    loader = DataLoader(Squares())
    with pytest.raises(ringfeed.StateError) as error:
        loader.load_state_dict({"version": 1, "epoch": 3})
    assert str(error.value) == (
        "the state is a dict without 'batches', expected what state_dict() of a DataLoader returned"
    )

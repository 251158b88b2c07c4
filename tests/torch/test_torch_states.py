"""States of `ringfeed.torch.DataLoader`: a run goes on where it was cut."""

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


class Drawn(Squares):
    """Numbers that torch's generator draws."""

    def __getitem__(self, index: int) -> Any:
        return torch.randint(1000, ())


class Words(Squares):
    """Samples for which a slot has no place."""

    def __getitem__(self, index: int) -> Any:
        return index, str(index)


class Streamed(sets.IterableDataset):  # type: ignore[misc]
    """Numbers in order."""

    def __iter__(self) -> Any:
        return iter(range(23))


MADE: dict[str, Any] = {
    "shuffled, one generator": lambda: {
        "shuffle": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "shuffled by the global generator": lambda: {"shuffle": True},
    "lists": lambda: {
        "batch_sampler": [[n, n + 1] for n in range(0, 22, 2)],
        "generator": torch.Generator().manual_seed(3),
    },
    "in order": dict,
}


def numbers(batch: Any) -> Any:
    """Return what a batch holds, in Python's own numbers."""
    return [
        [*leaf] if isinstance(leaf, tuple) else leaf if isinstance(leaf, int) else leaf.tolist()
        for leaf in batch
    ]


def run(make: Any, cut: int, dataset: Any, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Return what three epochs give, and what they give where they are cut after some batches."""
    found: list[list[Any]] = []
    for cuts in (False, True):
        torch.manual_seed(9)
        loader, state, had = DataLoader(dataset, **settings, **make()), None, []
        for number, batch in enumerate(batch for _ in range(3) for batch in loader):
            had.append(numbers(batch))
            if cuts and number + 1 == cut:
                state = json.loads(json.dumps(loader.state_dict()))
                break
        close(loader)
        if state is not None:
            torch.manual_seed(1234)
            loader = DataLoader(dataset, **settings, **make())
            loader.load_state_dict(state)
            had += [numbers(batch) for _ in range(3 - state["epoch"]) for batch in loader]
            close(loader)
        found.append(had)
    return found[0], found[1]


@pytest.mark.parametrize("cut", [2, 6, 8])
@pytest.mark.parametrize("kind", ["shuffled, one generator", "lists"])
def test_a_cut_run_goes_on(kind: str, cut: int) -> None:
    """Amid an epoch, at its end and in the next, samples, draws and order are the same."""
    sizes = {} if kind == "lists" else {"batch_size": 4}
    whole, resumed = run(lambda: sizes | MADE[kind](), cut, Squares(), num_workers=1)
    assert resumed == whole


@pytest.mark.parametrize(
    ("kind", "cut"),
    [*((kind, 8) for kind in MADE), ("shuffled by the global generator", 6), ("lists", 11)],
)
@pytest.mark.parametrize(
    "settings", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_a_cut_run_goes_on_in_order(kind: str, cut: int, settings: Any) -> None:
    """So do the later epochs, which draw from the global generator or keep their base seed."""
    sizes = {} if kind == "lists" else {"batch_size": 4}
    whole, resumed = run(lambda: sizes | MADE[kind](), cut, Words(), **settings)
    assert [batch[0] for batch in resumed] == [batch[0] for batch in whole]


@pytest.mark.parametrize(("cut", "left"), [(8, False), (12, False), (8, True)])
def test_workers_that_persist_keep_their_base_seed(cut: int, *, left: bool) -> None:
    """A resumed epoch and those after it draw none, over a ring and torch's own way."""

    def made() -> Any:
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(
            Squares(),
            batch_size=4,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            generator=generator,
        )
        if left:
            loader._rings.own_reason = "the test says so"
        return loader

    def next_of(loader: Any, batches: Any) -> Any:
        return [batch[0].tolist() for batch in batches], loader.generator.get_state().tolist()

    first = made()
    batches = (batch for _ in range(4) for batch in first)
    for _ in range(cut):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    expected = next_of(first, batches)
    close(first)
    other = made()
    other.load_state_dict(state)
    assert next_of(other, (batch for _ in range(4 - state["epoch"]) for batch in other)) == expected
    close(other)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_from_before_the_first_batch_begins_the_epoch(workers: int) -> None:
    """A sampler draws its seed with its first index, as often as in the epoch begun first."""
    loader = DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers=workers)
    batches = iter(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in batches] + [batch.tolist() for batch in loader]
    loader.load_state_dict(state)
    assert [batch.tolist() for _ in range(2) for batch in loader] == expected
    close(loader)


def test_a_state_of_ringfeed_0_2_goes_on() -> None:
    """It has no base seed and no global generator: the order of workers that persist is theirs."""
    settings = {"batch_size": 4, "shuffle": True, "num_workers": 1, "persistent_workers": True}
    first = DataLoader(Squares(), **settings, generator=torch.Generator().manual_seed(3))
    assert sum(1 for _ in first) == 6
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    expected = [batch[0].tolist() for batch in batches]
    close(first)
    del state["base_seed"], state["draws"]["now"]
    other = DataLoader(Squares(), **settings, generator=torch.Generator().manual_seed(3))
    before = torch.get_rng_state()
    other.load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), before)
    assert [batch[0].tolist() for batch in other] == expected
    close(other)


def test_a_batch_samplers_own_sampler_goes_on() -> None:
    """Its generator is in the state, too."""

    def made() -> Any:
        numbers = sets.RandomSampler(range(23), generator=torch.Generator().manual_seed(3))
        return DataLoader(Squares(), batch_sampler=sets.BatchSampler(numbers, 4, drop_last=False))

    first = made()
    batches = (batch[0].tolist() for _ in range(3) for batch in first)
    for _ in range(8):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    other = made()
    other.load_state_dict(state)
    assert [batch[0].tolist() for _ in range(2) for batch in other] == [*batches]


def test_another_batch_size_goes_on_with_the_next_sample() -> None:
    """The state counts samples."""
    first = DataLoader(
        Squares(),
        batch_size=4,
        shuffle=True,
        num_workers=0,
        generator=torch.Generator().manual_seed(1),
    )
    batches = iter(first)
    had = [*next(batches)[0].tolist(), *next(batches)[0].tolist()]
    rest = [number for batch in batches for number in batch[0].tolist()]
    again = iter(first)
    next(again)
    other = DataLoader(
        Squares(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
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


class Stateful(sets.IterableDataset):  # type: ignore[misc]
    """Numbers of this worker's part, with a state of its own; counts how many were read."""

    def __init__(self) -> None:
        self.at = self.start = self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]

    def __iter__(self) -> Any:
        info = sets.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        begin, self.start, self.read = self.start, 0, 0
        for position in range(begin, 3000):
            self.at, self.read = position + 1, self.read + 1
            yield position * step + first, self.read


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterables_own_state_is_gone_on_from(workers: int) -> None:
    """Few elements are read again, the next epoch is whole, and the dataset here is unchanged."""
    settings = {
        "batch_size": 8,
        "num_workers": workers,
        "generator": torch.Generator().manual_seed(1),
    }
    loader = DataLoader(Stateful(), **settings)
    batches = iter(loader)
    had = [next(batches)[0].tolist() for _ in range(200)]
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    whole = [batch[0].tolist() for batch in loader]
    close(loader)
    other = DataLoader(Stateful(), **settings)
    other.load_state_dict(state)
    rest = [(numbers.tolist(), read.tolist()) for numbers, read in other]
    assert had + [numbers for numbers, _ in rest] == whole
    assert rest[-1][1][-1] < 3000, "it was read from the start"
    assert [batch[0].tolist() for batch in other] == whole
    close(other)


class Counted(Stateful):
    """Numbers, and how often they were all read before."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def __iter__(self) -> Any:
        begin, self.start = self.start, 0
        for position in range(begin, 5):
            self.at = position + 1
            yield position, self.epoch
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start, self.epoch = state["at"], state["epoch"]


def test_an_iterable_with_states_counts_the_epochs_of_workers_that_persist() -> None:
    """They go on with one dataset, as torch's do."""
    loader = DataLoader(Counted(), num_workers=1, persistent_workers=True, batch_size=None)
    epochs = [[numbers(sample) for sample in loader] for _ in range(3)]
    assert epochs == [[[position, epoch] for position in range(5)] for epoch in range(3)]
    close(loader)


class Itself(Stateful):
    """A dataset that is its own iterator, and goes on where it is."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.at == 5:
            raise StopIteration
        self.at += 1
        return self.at

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_dataset_that_this_process_has_read_goes_on_by_its_state(count: int) -> None:
    """Also from before the first batch."""
    loader = DataLoader(dataset := Itself(), batch_size=None)
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [*batches]
    other = DataLoader(dataset, batch_size=None)
    other.load_state_dict(state)
    assert [*other] == rest == [*range(count + 1, 6)]


class Tensors(Counted):
    """The same with a state that is not JSON."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor(self.at)}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_is_not_json_is_left_out(workers: int) -> None:
    """The iterable is read up to its place, with a warning."""
    settings = {"num_workers": workers, "batch_size": None}
    loader = DataLoader(Tensors(), **settings)
    samples = (numbers(sample) for sample in loader)
    had = [next(samples) for _ in range(3)]
    with pytest.warns(
        UserWarning,
        match="state_dict.. of .*terable.* is not JSON: Object of type Tensor is not JSON",
    ):
        state = json.loads(json.dumps(loader.state_dict()))
    rest = [*samples]
    close(loader)
    other = DataLoader(Tensors(), **settings)
    other.load_state_dict(state)
    assert [numbers(sample) for sample in other] == rest
    assert len(had + rest) == 5
    close(other)


def test_another_number_of_workers_cannot_go_on_with_a_stream() -> None:
    """Their copies have other elements."""
    loader = DataLoader(Streamed(), batch_size=4)
    next(iter(loader))
    other = DataLoader(Streamed(), batch_size=4, num_workers=2)
    with pytest.raises(ringfeed.StateError) as error:
        other.load_state_dict(loader.state_dict())
    assert str(error.value) == (
        "the state was taken amid an epoch of an IterableDataset with num_workers=0, and this "
        "DataLoader has 2, with other elements in each batch; give it num_workers=0"
    )


def test_a_foreign_state_is_refused() -> None:
    """What is no state of a DataLoader is named."""
    loader = DataLoader(Squares())
    with pytest.raises(ringfeed.StateError) as error:
        loader.load_state_dict({"version": 1, "epoch": 3})
    assert str(error.value) == (
        "the state is a dict without 'batches', expected what state_dict() of a DataLoader returned"
    )


def test_a_sampler_of_what_has_no_length_has_a_state() -> None:
    """Accelerate unpickles a DataLoader of a class, in whose place it then puts what it pickled."""
    assert DataLoader(Squares).state_dict()["length"] is None


class Refusing(Squares):
    """Samples of which each fifth raises."""

    def __getitem__(self, index: int) -> int:
        if index % 5 == 3:
            raise ZeroDivisionError
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_that_failed_are_behind_a_state(num_workers: int) -> None:
    """A resumed epoch goes on after the error of a batch, whether a ring or torch makes the batches."""

    def taken(batches: Any, count: int) -> list[Any]:
        found = []
        for _ in range(count):
            try:
                found.append(next(batches).tolist())
            except ZeroDivisionError:
                found.append("failed")
        return found

    loader = DataLoader(Refusing(), batch_size=2, num_workers=num_workers)
    batches = iter(loader)
    assert taken(batches, 5) == [[0, 1], "failed", [4, 5], [6, 7], "failed"]
    state = loader.state_dict()
    del batches
    loader.load_state_dict(state)
    assert taken(iter(loader), 3) == [[10, 11], "failed", [14, 15]]
    close(loader)


class OfWorker(Squares):
    """The number of the worker that reads a sample."""

    def __getitem__(self, index: int) -> Any:
        return index, sets.get_worker_info().id


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("collate_fn", [None, list])
def test_a_resumed_epoch_goes_on_with_the_worker_whose_turn_it_is(
    cut: int, collate_fn: Any
) -> None:
    """Worker n % num_workers reads batch n, as with torch, whatever `worker_init_fn` has set."""
    loader = DataLoader(OfWorker(), batch_size=4, num_workers=2, collate_fn=collate_fn)
    whole = [repr(batch) for batch in loader]
    batches = iter(loader)
    for _ in range(cut):
        next(batches)
    state = loader.state_dict()
    del batches
    loader.load_state_dict(state)
    assert [repr(batch) for batch in loader] == whole[cut:]
    close(loader)


def test_a_state_that_was_loaded_is_the_state() -> None:
    """Until an iterator has begun: a trainer may save before its first step."""
    loader = DataLoader(Squares(), batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    other = DataLoader(Squares(), batch_size=4)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert len([*other]) == 5
    assert other.state_dict()["epoch"] == 1

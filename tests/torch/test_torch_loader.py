"""`ringfeed.torch.DataLoader`: torch's batches, orders and generators, over a ring or by torch."""

from __future__ import annotations

import copy
import gc
import importlib
import logging
import pickle
import random
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
collation = importlib.import_module("ringfeed.torch.collation")
both, check_alike, check_epochs, close = (
    checks.both,
    checks.check_alike,
    checks.check_epochs,
    checks.close,
)
Form, DataLoader = collation.Form, ringfeed.torch.DataLoader
sets = torch.utils.data
Own = sets.DataLoader

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]


class Point(NamedTuple):
    """A sample with names."""

    x: Any
    y: Any


class Of(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Samples that a function makes of their numbers."""

    def __init__(self, make: Any, length: int = 21) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def pair(index: int) -> Any:
    """A picture and its label."""
    return np.full((2, 3), index, np.float32), index  # a worker that reads it imports no torch


def drawn(index: int) -> Any:
    """What torch, NumPy and Python draw in a sample, and its number."""
    return index, float(torch.rand(())), np.random.rand(2), random.random()  # noqa: NPY002, S311


KINDS: dict[str, Any] = {
    "a tensor": lambda i: torch.full((3,), i, dtype=torch.int16),
    "a number": lambda i: i,
    "a tuple": lambda i: (torch.full((2,), i), i, i / 3, i % 2 == 0),
    "a list": lambda i: [np.full((2, 2), i, np.float16), np.float32(i)],
    "a dict": lambda i: {"x": np.arange(i, i + 3), "y": {"z": (i, [float(i)])}},
    "a NamedTuple": lambda i: Point(np.uint8(i), Point(np.bool_(i % 2), torch.tensor(i))),
    "an OrderedDict": lambda i: OrderedDict(b=i, a=np.full(2, i, np.float64)),
    "unsigned": lambda i: (
        np.uint16(i),
        np.full(2, i, np.uint32),
        torch.full((2,), i, dtype=torch.uint64),
    ),
    "complex": lambda i: (np.complex64(i + 1j), torch.full((2,), i, dtype=torch.complex128)),
    "of no elements": lambda i: (torch.zeros(0, 3), i),
    "transposed": lambda i: (np.arange(6).reshape(2, 3).T + i, torch.arange(6).reshape(2, 3).T + i),
    "text": lambda i: "é" * i,
    "text in tuples": lambda i: (i, "a" * i, {"b": [b"x" * i, str(i)]}),
    "a nest": lambda i: ((((i,),),), [[{"a": (i, i)}]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_default_collate(kind: str) -> None:
    """Containers, dtypes and values of a batch are torch's; its tensors lie over the slot."""
    dataset = Of(KINDS[kind], 8)
    form = Form.of(dataset[3])
    with ringfeed.Loader(dataset, batch_size=4, spec=form.tree, workers=0) as loader:
        stream = loader._stream
        batches = [*stream.epoch(collation.batch_builder(stream.info, form.batch_of, pinned=False))]
    for number, batch in enumerate(batches):
        check_alike(
            batch,
            sets.default_collate([dataset[index] for index in range(4 * number, 4 * number + 4)]),
        )


REFUSED: dict[str, Any] = {
    "None": (lambda i: (i, None), "default_collate: batch must contain tensors"),
    "bfloat16": (
        lambda _: torch.zeros(2, dtype=torch.bfloat16),
        "sample is of type torch.Tensor, for which a slot has no place",
    ),
    "a gradient": (
        lambda _: {"x": torch.zeros(2, requires_grad=True)},
        "sample['x'] is of type torch.Tensor, for which a slot has no place",
    ),
    "a sparse tensor": (
        lambda _: torch.eye(2).to_sparse(),
        "Batches of sparse tensors are not currently supported",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_place_in_a_slot_is_named(kind: str) -> None:
    """The reason names the place in the sample, or is torch's own."""
    make, text = REFUSED[kind]
    with pytest.raises((ringfeed.SpecError, TypeError, RuntimeError)) as error:
        Form.of(make(1))
    assert str(error.value).startswith(text)


# ---- epochs ----


def test_epochs_are_torchs() -> None:
    """Shuffled epochs, a shorter last batch and the generator's state are as torch has them."""
    ours, own = both(Of(pair), batch_size=4, shuffle=True, num_workers=2, seed=3)
    check_epochs(ours, own, 3)
    assert len(ours) == len(own) == 6
    assert isinstance(ours, Own)
    close(ours)


SAMPLERS: dict[str, Any] = {
    "in order, the rest dropped": lambda _g: {"batch_size": 4, "drop_last": True},
    "one by one": lambda _g: {},
    "weighted": lambda g: {
        "sampler": sets.WeightedRandomSampler(range(21), 9, generator=g),
        "batch_size": 4,
    },
    "a subset": lambda g: {
        "sampler": sets.SubsetRandomSampler([5, 9, 2, 2, 7], generator=g),
        "batch_size": 2,
    },
    "with replacement": lambda g: {
        "sampler": sets.RandomSampler(range(21), replacement=True, num_samples=70, generator=g),
        "batch_size": 8,
    },
    "lists": lambda _g: {"batch_sampler": [[1, 2, 3], [4], [5, 6]]},
    "numbers of NumPy's": lambda _g: {"sampler": np.arange(20, 0, -1), "batch_size": 4},
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_give_torchs_order(kind: str) -> None:
    """Each sampler of torch's, and lists, with one generator for the sampler and the loader."""
    loaders = []
    for make in (DataLoader, Own):
        generator = torch.Generator().manual_seed(5)
        loaders.append(
            make(Of(pair), num_workers=1, generator=generator, **SAMPLERS[kind](generator))
        )
    check_epochs(*loaders)
    assert loaders[0]._rings.own_reason is None, "it went torch's own way"
    close(loaders[0])


class OneList:
    """A batch_sampler that fills one list again."""

    def __iter__(self) -> Iterator[list[int]]:
        one: list[int] = []
        for number in range(0, 20, 2):
            one[:] = number, number + 1
            yield one


def test_a_list_that_is_filled_again_is_read_as_it_was() -> None:
    """Lists are drawn ahead of their batches, and each is a copy."""
    loader = DataLoader(Of(pair), batch_sampler=OneList(), num_workers=1)
    try:
        assert [labels.tolist() for _, labels in loader] == [[n, n + 1] for n in range(0, 20, 2)]
    finally:
        close(loader)


def test_the_global_generator_is_drawn_from_as_torch_does() -> None:
    """Without a generator, the order and the program's later draws are those of torch's class."""
    found = []
    for make in (DataLoader, Own):
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        random.seed(7)
        loader = make(Of(drawn), batch_size=4, shuffle=True, num_workers=1)
        order = [batch[0].tolist() for batch in loader]
        by_numpy, by_python = np.random.rand(2).tolist(), random.random()  # noqa: NPY002, S311
        found.append((order, torch.rand(2).tolist(), by_numpy, by_python))
        if make is DataLoader:
            close(loader)
    assert found[0] == found[1]


def test_a_sampler_that_draws_as_it_is_begun_is_begun_as_often_as_torch_does() -> None:
    """An ``__iter__`` that is no generator function draws twice for an iterator with workers."""

    class Permuting:
        def __len__(self) -> int:
            return 21

        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(21).tolist())

    found = []
    for make in (DataLoader, Own):
        torch.manual_seed(7)
        loader = make(Of(pair), batch_size=7, sampler=Permuting(), num_workers=1)
        found.append(
            [batch[1].tolist() for batch in loader] + [batch[1].tolist() for batch in loader]
        )
        if make is DataLoader:
            close(loader)
    assert found[0] == found[1]


TORCHS_OWN: dict[str, Any] = {
    "tensors": sets.TensorDataset(torch.arange(42.0).reshape(21, 2), torch.arange(21)),
    "a subset": sets.Subset(Of(pair), [3, 20, 4]),
    "concatenated": sets.ConcatDataset(
        [Of(pair, 3), sets.TensorDataset(torch.ones(2, 2, 3), torch.arange(2))]
    ),
    "stacked": sets.StackDataset(a=Of(pair), b=sets.TensorDataset(torch.arange(21))),
}


@pytest.mark.parametrize("kind", TORCHS_OWN)
def test_torchs_datasets(kind: str) -> None:
    """Datasets of torch's own, those that are read in bulk too."""
    ours, own = both(TORCHS_OWN[kind], batch_size=2, num_workers=1)
    check_epochs(ours, own, 2)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


def test_persistent_workers_draw_one_base_seed() -> None:
    """As torch's do: the generator's states stay equal, epoch after epoch."""
    ours, own = both(
        Of(pair), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True, seed=1
    )
    check_epochs(ours, own, 3)
    close(ours)


def test_what_is_drawn_in_samples_does_not_depend_on_the_workers() -> None:
    """Global states give a sample the same numbers with any workers; no two epochs repeat."""
    runs = []
    for workers in (1, 3):
        ours = DataLoader(
            Of(drawn), batch_size=4, num_workers=workers, generator=torch.Generator().manual_seed(2)
        )
        runs.append([[leaf.tolist() for leaf in batch] for _ in range(2) for batch in ours])
        close(ours)
    assert runs[0] == runs[1]
    assert len({number for batch in runs[0] for number in batch[1]}) == 2 * 21


# ---- iterators ----


@pytest.mark.filterwarnings(
    "ignore::ringfeed.SlotsHeldWarning"
)  # of zip(), which keeps a batch or two
def test_each_iterator_has_its_own_place() -> None:
    """Two iterators at once, and a loop within a loop, give what torch's give."""
    ours, own = both(Of(pair), batch_size=8, shuffle=True, num_workers=1, seed=4)
    for (a, b), (c, d) in zip(
        zip(ours, ours, strict=True), zip(own, own, strict=True), strict=True
    ):
        check_alike([a, b], [c, d])
    for outer, expected in zip(ours, own, strict=True):
        check_alike(outer, expected)
        check_epochs(ours, own)
    assert not ours._rings._idle


def test_breaking_off_leaves_the_next_epoch_whole() -> None:
    """Where workers persist, an iterator dropped amid its epoch gives its ring to the next one."""
    ours, own = both(
        Of(pair), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True, seed=4
    )
    for loader in (ours, own):
        for _ in loader:
            break
    ring = ours._rings._idle
    check_epochs(ours, own)
    assert ours._rings._idle is ring
    close(ours)


def test_tensors_are_kept_as_they_are() -> None:
    """What the program keeps is never written over; one warning says what it costs."""
    ours, own = both(Of(pair), batch_size=2, num_workers=1)
    with pytest.warns(ringfeed.SlotsHeldWarning, match=r"a tensor is copied by \.clone\(\)"):
        found = [*ours]
    for one, other in zip(found, own, strict=True):
        check_alike(one, other)
    close(ours)
    check_alike(found[0], next(iter(own)))


@pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning")
def test_a_loop_that_begins_to_keep_batches_goes_on() -> None:
    """With the fewest slots that there can be, one is always left to be filled and copied from."""
    ours, kept = DataLoader(Of(pair, 40), batch_size=2, num_workers=1, prefetch_factor=1), []
    for number, (_, numbers) in enumerate(ours):
        if number > 5:
            kept.append(numbers)
    assert torch.cat(kept).tolist() == [*range(12, 40)]
    assert ours._rings.own_reason is None
    close(ours)


def test_no_sample_no_batch() -> None:
    """An empty dataset has empty epochs, and needs no workers."""
    ours = DataLoader(Of(pair, 0), batch_size=2, num_workers=1)
    assert [*ours] == []
    assert not ours._rings._idle


def test_copies_and_pickles_leave_the_workers_behind() -> None:
    """A DataLoader that has run can be pickled and copied, as torch's can."""
    ours = DataLoader(sets.TensorDataset(torch.arange(4)), num_workers=1)
    next(iter(ours))
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert other._rings is not ours._rings
        assert not other._rings._idle
        assert [*other.dataset] == [*ours.dataset]
    close(ours)


def test_the_end_of_a_loader_is_that_of_its_workers() -> None:
    """A loader that nothing refers to leaves nothing behind; an iterator keeps what it needs."""
    iterator = iter(DataLoader(Of(pair), batch_size=8, num_workers=1))
    gc.collect()
    assert sum(1 for _ in iterator) == 3
    del iterator
    gc.collect()


# ---- the dataset ----


def test_changes_of_the_dataset_reach_the_workers() -> None:
    """What the program changes between epochs is read in the next, as by torch's new workers."""
    dataset = Of(pair)
    ours, own = both(dataset, batch_size=8, num_workers=1)
    check_epochs(ours, own)
    dataset.make = lambda index: (np.full((2, 3), -index, np.float32), index)
    check_epochs(ours, own)
    close(ours)


def seen(index: int) -> Any:
    """What a worker is told that it is."""
    info = torch.utils.data.get_worker_info()
    assert info.dataset.make is seen
    return index, info.id, info.num_workers, info.seed, getattr(info.dataset, "told", -1)


def test_workers_know_which_they_are() -> None:
    """get_worker_info() works in samples and in worker_init_fn, which may change the dataset."""

    def tell(number: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert torch.initial_seed() == info.seed
        info.dataset.told = number + 10

    ours = DataLoader(  # whose first sample is read here, where this says that it is worker 0
        Of(seen, 40),
        batch_size=4,
        num_workers=2,
        worker_init_fn=tell,
        generator=torch.Generator().manual_seed(1),
    )
    base_seed = (
        torch.empty((), dtype=torch.int64)
        .random_(generator=torch.Generator().manual_seed(1))
        .item()
    )
    for _, number, workers, seed, told in ours:
        assert set(workers.tolist()) == {2}
        assert seed.tolist() == [base_seed + one for one in number.tolist()]
        assert told.tolist() == [one + 10 for one in number.tolist()]
    close(ours)
    assert torch.utils.data.get_worker_info() is None


def failing(index: int) -> Any:
    """One sample fails."""
    if index == 5:
        message = "no such picture"
        raise KeyError(message)
    return index


def test_a_samples_own_error_is_raised() -> None:
    """By its own type, in its place; the batches after it come, as with torch."""
    ours = iter(loader := DataLoader(Of(failing), batch_size=4, num_workers=1))
    assert next(ours).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no such picture") as error:
        next(ours)
    assert error.value.__notes__ == ["in a worker process of ringfeed's DataLoader: dataset[5]"]
    assert next(ours).tolist() == [8, 9, 10, 11]
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    del ours
    close(loader)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("place", ["sample", "iterable", "collate_fn"])
def test_what_asks_for_an_end_in_a_worker_does_not_end_the_training(
    error: BaseException, place: str
) -> None:
    """The batch is an error: a training that ended with status 0 would seem to be done."""

    def ending(index: int) -> int:
        if index == 5:
            raise error
        return index

    class Ending(sets.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return map(ending, range(12))

    def collated(samples: list[int]) -> Any:
        return torch.tensor([*map(ending, samples)])

    datasets = {"sample": Of(ending, 12), "iterable": Ending(), "collate_fn": range(12)}
    functions = {"collate_fn": collated} if place == "collate_fn" else {}
    loader = DataLoader(datasets[place], batch_size=4, num_workers=1, **functions)
    ours = iter(loader)
    assert next(ours).tolist() == [0, 1, 2, 3]
    with pytest.raises(ringfeed.WorkerError, match=f"raised {type(error).__name__}") as caught:
        next(ours)
    assert type(caught.value.__cause__) is type(error)
    del ours, caught
    close(loader)


# ---- torch's own way ----


def test_a_dataset_that_cannot_travel_is_left_to_torch(caplog: Any) -> None:
    """Forked workers would share an open file's place: one line says so, and torch takes over."""
    dataset = Of(pair)
    with Path(__file__).open() as dataset.file:
        ours, own = both(dataset, batch_size=8, shuffle=True, num_workers=1, seed=6)
        with caplog.at_level(logging.WARNING, "ringfeed.torch"):
            check_epochs(ours, own, 2)
    (line,) = caplog.messages
    assert line.startswith(
        f"DataLoader of Of is left to torch: dataset.file is an open file ({__file__!r}), and "
        "forked "
    )
    assert not ours._rings._idle


def test_a_dataset_that_waits_for_other_workers_is_not_read_ahead(caplog: Any) -> None:
    """A lock of multiprocessing's shows it: its first sample might wait without end."""
    import multiprocessing  # noqa: PLC0415 - for its lock

    class Meeting(Of):
        def __init__(self) -> None:
            super().__init__(None, 2)
            self.lock = multiprocessing.get_context("fork").Lock()
            self.lock.acquire()

        def __getitem__(self, index: int) -> int:
            self.lock.release()
            self.lock.acquire()
            return index

    dataset = Meeting()
    with caplog.at_level(logging.INFO, "ringfeed.torch"):
        assert [batch.item() for batch in DataLoader(dataset, num_workers=1)] == [0, 1]
    reason, ring = caplog.messages
    assert reason == (
        "DataLoader of Meeting has its batches pickled: dataset.lock is of multiprocessing's, and "
        "a read ahead could change it for all"
    )
    assert ring.startswith("DataLoader of Meeting runs over ringfeed: ")


def test_no_workers_are_torchs_own_way(caplog: Any) -> None:
    """num_workers=0 draws and reads in this process, in torch's own order, without a word."""
    with caplog.at_level(logging.INFO, "ringfeed.torch"):
        for make in (Of(drawn), sets.TensorDataset(torch.arange(4))):
            found = []
            for kind in (DataLoader, Own):
                torch.manual_seed(1)
                np.random.seed(1)  # noqa: NPY002
                random.seed(1)
                found.append([*kind(make, batch_size=2, shuffle=True)])
            check_alike(*found)
    assert caplog.messages == []


def test_the_log_says_what_it_takes(caplog: Any) -> None:
    """Workers, slots and memory of a ring, once."""
    ours = DataLoader(Of(pair), batch_size=8, num_workers=1, prefetch_factor=3)
    with caplog.at_level(logging.INFO, "ringfeed.torch"):
        assert sum(1 for _ in range(2) for _ in ours) == 6
    (line,) = caplog.messages
    assert line.startswith("DataLoader of Of runs over ringfeed: 1 worker process, 4 slots, ")
    assert line.endswith(" kB of shared memory")
    close(ours)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of torch's half-made iterator
def test_parameters_are_refused_in_torchs_words() -> None:
    """The class is torch's own: its checks are, too."""
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        DataLoader(Of(pair), shuffle=True, sampler=[1])
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(DataLoader(Of(pair), num_workers=1, prefetch_factor=0))
    ours = DataLoader(Of(pair))
    with pytest.raises(
        ValueError, match="batch_size attribute should not be set after DataLoader is initialized"
    ):
        ours.batch_size = 3


def test_words_of_ringfeeds_own_loader_are_translated() -> None:
    """Each has torch's word for it; all are one error."""
    with pytest.raises(TypeError) as error:
        DataLoader(Of(pair), workers=2, drop_remainder=True)
    assert str(error.value) == (
        "workers= is Loader's, and here that is num_workers=; drop_remainder= is Loader's, and "
        "here that is drop_last="
    )

"""torch's own datasets and samplers, as they are, with a worker process that fills from them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.workers import warm
from watching import PATIENCE_S

torch = pytest.importorskip("torch", reason="torch is not installed")
sets = torch.utils.data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 20
X = torch.arange(ROWS * 3, dtype=torch.float32).reshape(ROWS, 3)


class Pairs(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """A map-style dataset of tensors, as torch's users write them, with a transform."""

    def __init__(self, transform: Callable[[Any], Any] | None = None) -> None:
        self.x = X
        self.transform = transform

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, int]:
        x = self.x[index]
        return x if self.transform is None else self.transform(x), index


class Compose:
    """Transforms one after another, as torchvision's has them."""

    def __init__(self, *transforms: Callable[[Any], Any]) -> None:
        self.transforms = transforms

    def __call__(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x


class Stream(sets.IterableDataset):  # type: ignore[misc]
    """A dataset without indices."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


def loaded(dataset: Any, **settings: Any) -> list[Any]:
    """Return copies of all batches, filled by one worker process; its own warnings are hidden."""
    with ringfeed.Loader(
        dataset, **{"batch_size": 8, "workers": 1, "timeout_s": 40, **settings}
    ) as loader:
        return [[leaf.clone() for leaf in batch] for batch in loader.to_torch()]


def rows(batches: list[Any], leaf: int = 1) -> list[int]:
    """Return the indices that the batches carry, having checked that x belongs to them."""
    x, indices = (
        torch.cat([batch[0] for batch in batches]),
        torch.cat([batch[leaf] for batch in batches]),
    )
    assert torch.equal(x, X[indices])
    return indices.tolist()  # type: ignore[no-any-return]


# ---- datasets ----

SPLIT = sets.random_split(Pairs(), [15, 5], torch.Generator().manual_seed(0))
DATASETS: dict[str, tuple[Any, list[int]]] = {
    "map-style": (Pairs(), list(range(ROWS))),
    "tensors": (sets.TensorDataset(X, torch.arange(ROWS)), list(range(ROWS))),
    "subset": (sets.Subset(Pairs(), [5, 3, 17, 3]), [5, 3, 17, 3]),
    "concatenated": (
        sets.ConcatDataset([Pairs(), sets.Subset(Pairs(), [2, 1])]),
        [*range(ROWS), 2, 1],
    ),
    "split": (SPLIT[0], list(SPLIT[0].indices)),
    "subset of tensors": (
        sets.Subset(sets.TensorDataset(X, torch.arange(ROWS)), range(4, 9)),
        [4, 5, 6, 7, 8],
    ),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_datasets_are_taken_as_they_are(kind: str) -> None:
    """Samples arrive in order, of whichever of torch's datasets, tensors as what they are."""
    dataset, expected = DATASETS[kind]
    batches = loaded(dataset)
    assert rows(batches) == expected
    assert (batches[0][0].dtype, batches[0][1].dtype) == (torch.float32, torch.int64)


def test_stacked_datasets_keep_their_structure() -> None:
    """A StackDataset of names gives dicts."""
    stacked = sets.StackDataset(pair=Pairs(), label=sets.TensorDataset(torch.arange(ROWS)))
    with ringfeed.Loader(stacked, batch_size=ROWS, workers=1, timeout_s=PATIENCE_S) as loader:
        (batch,) = loader.to_torch()
    assert torch.equal(batch["pair"][0], X)
    assert batch["label"][0].tolist() == list(range(ROWS))


def test_transforms_run_in_the_worker() -> None:
    """Functions, closures and modules of torch travel with the dataset and work as here."""
    scale = 2.0
    transform = Compose(lambda x: x * scale, torch.nn.Softmax(0), torch.Tensor.numpy)
    dataset = Pairs(transform)
    batches = loaded(dataset)
    expected = np.stack([dataset[index][0] for index in range(ROWS)])
    np.testing.assert_array_equal(torch.cat([x for x, _ in batches]).numpy(), expected)


def test_a_worker_computes_in_one_thread() -> None:
    """Torch in a worker does not take the cores of the others."""

    class Threads(Pairs):
        def __getitem__(self, index: int) -> Any:
            return X[index], torch.get_num_threads()

    assert {int(n) for _, threads in loaded(Threads()) for n in threads} == {1}


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (
            torch.zeros(2, requires_grad=True),
            "dataset[0]: sample is of type Tensor, whose conversion raised RuntimeError: Can't "
            "call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead, "
            "expected an array; return its .detach()",
        ),
        (
            torch.zeros(2, dtype=torch.bfloat16),
            "dataset[0]: sample is of type Tensor, whose conversion raised TypeError: Got "
            "unsupported ScalarType BFloat16, expected an array; NumPy has no bfloat16: return "
            "its .float(), or its bits as .view(torch.int16)",
        ),
    ],
)
def test_tensors_that_are_no_arrays_are_refused(sample: Any, text: str) -> None:
    """What torch itself does not make an array of is refused with torch's reason."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader([sample] * 2, workers=0)
    assert str(caught.value) == text


@pytest.mark.parametrize("dataset", [Stream(), sets.ChainDataset([Stream()])])
def test_datasets_without_indices_are_iterables(dataset: Any) -> None:
    """An IterableDataset is read in its own order, anew in each epoch."""
    with ringfeed.Loader(dataset, workers=0, batch_size=8) as loader:
        for _ in range(2):
            assert [number for batch in loader.to_torch() for number in batch.tolist()] == list(
                range(ROWS)
            )


# ---- samplers ----


def seeded() -> Any:
    """Return the same source of random numbers every time."""
    return torch.Generator().manual_seed(3)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: sets.SequentialSampler(range(ROWS)),
    "random": lambda: sets.RandomSampler(range(ROWS), generator=seeded()),
    "with replacement": lambda: sets.RandomSampler(
        range(ROWS), replacement=True, num_samples=33, generator=seeded()
    ),
    "weighted": lambda: sets.WeightedRandomSampler(
        torch.arange(ROWS) / ROWS, 12, generator=seeded()
    ),
    "subset": lambda: sets.SubsetRandomSampler([3, 4, 19], generator=seeded()),
    "subset of a tensor": lambda: sets.SubsetRandomSampler(
        torch.tensor([3, 4, 19]), generator=seeded()
    ),
    "a tensor": lambda: torch.randperm(ROWS, generator=seeded()),
    "distributed": lambda: sets.distributed.DistributedSampler(range(ROWS), 2, 1, shuffle=False),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_are_taken_as_they_are(kind: str) -> None:
    """Two epochs come in the order, and of the length, that the sampler itself gives for two."""
    twin = SAMPLERS[kind]()
    with ringfeed.Loader(Pairs(), batch_size=8, workers=0, sampler=SAMPLERS[kind]()) as loader:
        tensors = loader.to_torch()
        assert len(tensors) == -(-len(twin) // 8)
        for _ in range(2):
            assert rows([[leaf.clone() for leaf in batch] for batch in tensors]) == [
                int(index) for index in twin
            ]


def test_a_distributed_sampler_is_told_the_epoch() -> None:
    """Each epoch of the loader is that epoch of the sampler; torch's users must set it."""
    own, twin = (sets.distributed.DistributedSampler(range(ROWS), 2, 0, seed=1) for _ in range(2))
    with ringfeed.Loader(Pairs(), batch_size=8, workers=0, sampler=own) as loader:
        for epoch in range(3):
            twin.set_epoch(epoch)
            assert rows([[leaf.clone() for leaf in batch] for batch in loader.to_torch()]) == list(
                twin
            )


def test_a_distributed_sampler_is_not_shared_out_again() -> None:
    """Each rank would get a part of its own part."""
    sampler = sets.DistributedSampler(range(20), num_replicas=2, rank=1)
    with pytest.raises(ValueError, match="DistributedSampler") as raised:
        ringfeed.Loader(Pairs(), sampler=sampler, shard=ringfeed.Shard(1, 2), workers=0)
    assert str(raised.value) == (
        "sampler is a DistributedSampler, which gives the samples of one process, and rank 1 of 2 "
        "would get a part of these; leave it out and give shuffle=True, or leave shard= out"
    )


def test_a_sampler_of_batches_is_refused() -> None:
    """A BatchSampler yields lists; it is no sampler of single numbers, there as here."""
    batches = sets.BatchSampler(sets.SequentialSampler(range(ROWS)), 8, drop_last=False)
    text = (
        r"^sampler yielded \[0, 1, 2, 3, 4, 5, 6, 7\] of type list at position 0.*"
        r"for batch_sampler=$"
    )
    with (
        ringfeed.Loader(Pairs(), workers=0, sampler=batches) as loader,
        pytest.raises(TypeError, match=text),
    ):
        iter(loader)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_batch_sampler_is_taken_as_it_is(kind: str, *, drop_last: bool) -> None:
    """Two epochs have the batches that it gives for two, and it is not read ahead of the first."""
    own, twin = (sets.BatchSampler(SAMPLERS[kind](), 8, drop_last) for _ in range(2))
    with ringfeed.Loader(Pairs(), workers=0, batch_sampler=own) as loader:
        tensors = loader.to_torch()
        assert len(tensors) == len(twin)
        for _ in range(2):
            batches = [[leaf.clone() for leaf in batch] for batch in tensors]
            assert [batch[1].tolist() for batch in batches] == [[*map(int, one)] for one in twin]


def test_a_batch_sampler_passes_the_epoch_on() -> None:
    """To the DistributedSampler inside."""
    own, twin = (sets.distributed.DistributedSampler(range(ROWS), 2, 1, seed=1) for _ in range(2))
    with ringfeed.Loader(
        Pairs(), workers=0, batch_sampler=sets.BatchSampler(own, 4, drop_last=False)
    ) as loader:
        for epoch in range(3):
            twin.set_epoch(epoch)
            assert rows([[leaf.clone() for leaf in batch] for batch in loader.to_torch()]) == list(
                twin
            )


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_distributed_sampler_goes_on(cut: int) -> None:
    """A new loader with a new sampler has the rest of the epoch, by either parameter."""
    for by_lists in (False, True):

        def make() -> ringfeed.Loader:
            sampler = sets.distributed.DistributedSampler(range(ROWS), 2, 1, seed=1)
            lists = sets.BatchSampler(sampler, 2, drop_last=False)
            given: dict[str, Any] = {"sampler": sampler, "batch_size": 2}
            if by_lists:  # noqa: B023
                given = {"batch_sampler": lists}
            return ringfeed.Loader(Pairs(), workers=0, **given)

        with make() as loader:
            whole = [batch[1].tolist() for _ in range(2) for batch in loader]
        with make() as loader:
            iterator = iter(loader)
            for _ in range(cut):
                next(iterator)
            state = loader.state_dict()
        with make() as loader:
            loader.load_state_dict(state)
            assert [batch[1].tolist() for batch in loader] == whole[cut:5]


def test_nothing_is_warned_of_a_dataset_without_torch() -> None:
    """A worker of a map-style dataset whose samples are made without torch never imports it."""

    class Plain(sets.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> tuple[Any, int]:
            import sys  # noqa: PLC0415 - asked in the worker

            assert "torch" not in sys.modules
            return np.arange(3 * index, 3 * index + 3, dtype=np.float32), index

    warm.end()  # it holds what the loaders before this one needed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            len(
                loaded(Plain(), spec=(ringfeed.Array((3,), "float32"), ringfeed.Array((), "int64")))
            )
            == 3
        )


class Opening(Pairs):
    """Opens its file on first use, as torch's documents advise."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.file = self.file or self.path.open("rb")
        self.file.seek(12 * index)
        return np.frombuffer(self.file.read(12), np.float32), index


@pytest.mark.parametrize("method", ["spawn", "process"])
def test_a_subset_of_a_dataset_that_opens_its_file(method: str, tmp_path: Path) -> None:
    """A file that reading sample 0 has opened, two datasets below, does not stop the travel."""
    (tmp_path / "rows").write_bytes(X.numpy().tobytes())
    halves = sets.random_split(
        Opening(tmp_path / "rows"), [12, 8], torch.Generator().manual_seed(1)
    )
    assert rows(loaded(halves[0], workers=2, backend=method)) == list(halves[0].indices)


def test_tensors_given_whole_are_columns() -> None:
    """A tuple of two tensors of one shape is no dataset of two samples; a list is refused."""
    (batch,) = loaded((X, -X), batch_size=ROWS)
    assert torch.equal(batch[0], X)
    assert torch.equal(batch[1], -X)
    (batch,) = loaded((X, torch.arange(ROWS)), batch_size=ROWS)
    assert rows([batch]) == list(range(ROWS))
    with pytest.raises(
        ringfeed.SpecError,
        match=r"^the dataset is a list of 2 arrays of length 20, expected a tuple",
    ):
        ringfeed.Loader([X, -X])
    with pytest.raises(
        ringfeed.SpecError,
        match=r"^dataset\[1\] is a torch.Tensor, of which NumPy can make no array",
    ):
        ringfeed.Loader((X, torch.ones(ROWS, requires_grad=True)))


def test_a_dataloader_is_no_dataset() -> None:
    """It makes batches itself."""
    with pytest.raises(
        TypeError, match=r"^a DataLoader makes batches itself, expected a dataset of samples; give"
    ):
        ringfeed.Loader(sets.DataLoader(Pairs(), batch_size=8), shuffle=True)

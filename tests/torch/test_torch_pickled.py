"""`ringfeed.torch.DataLoader`: what goes over the ring as bytes, and what of it torch must make."""

from __future__ import annotations

import importlib
import logging
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
pickled = importlib.import_module("ringfeed.torch.pickled")
both, check_alike, check_epochs, close = (
    checks.both,
    checks.check_alike,
    checks.check_epochs,
    checks.close,
)
sets = torch.utils.data
DataLoader = ringfeed.torch.DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]

Target = namedtuple("Target", "boxes labels")  # noqa: PYI024 - it is found by its name


class Of(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Samples that a function makes of their numbers."""

    def __init__(self, make: Any, length: int = 21) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.make(index)


class Stream(sets.IterableDataset):  # type: ignore[misc]
    """The same in order, each worker its part."""

    def __init__(self, make: Any, length: int = 21) -> None:
        self.make = make
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = sets.get_worker_info()
        numbers = (
            range(self.length) if info is None else range(info.id, self.length, info.num_workers)
        )
        return map(self.make, numbers)


# ---- as bytes and back ----

BATCHES: dict[str, Any] = {
    "a tensor": torch.arange(6.0).reshape(2, 3),
    "layouts": [
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(3, 4).T,
        torch.rand(4)[::2],
    ],
    "of no elements, and of no axes": (
        torch.zeros(0, 3),
        torch.tensor(5, dtype=torch.bfloat16),
        torch.ones(2) > 0,
    ),
    "expanded": torch.ones(1).expand(3, 2),
    "parts of one": [part for x in [torch.rand(6, 4)] for part in (x[:, :3], x[:, 3], x[2:4])],
    "a small part of a large one": torch.rand(100, 3)[7],
    "conjugated": [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag],
    "a storage of another length": torch.arange(15, dtype=torch.uint8)[:8].view(torch.float64),
    "arrays": {
        "a": np.arange(5)[::2],
        "b": np.array(["x", "yz"]),
        "c": np.array([1, "x"], object),
        "d": np.float32(3),
        "e": np.ones((2, 3)).T,
        "f": np.array(7),
    },
    "objects": [None, "text", 7, {1, 2}, Target(torch.ones(2, 4), [1, 2]), b"bytes"],
    "the same twice": [*[torch.arange(3)] * 2],
    "a gradient": torch.ones(2, requires_grad=True),
    "sparse": [torch.eye(2).to_sparse()],
}


def same(ours: Any, own: Any) -> bool:
    """Whether two batches are the same, those of NumPy and torch in their memory's layout."""
    if isinstance(own, np.ndarray):
        layout = ours.flags.fnc == own.flags.fnc
        return layout and ours.dtype == own.dtype and np.array_equal(ours, own)
    if isinstance(own, torch.Tensor):
        layout = own.layout is not torch.strided or own.stride() == ours.stride()
        layout = layout and (own.is_conj(), own.is_neg()) == (ours.is_conj(), ours.is_neg())
        return layout and ours.dtype == own.dtype and torch.equal(ours.to_dense(), own.to_dense())
    if isinstance(own, dict):
        return [*ours] == [*own] and all(same(ours[key], own[key]) for key in own)
    if isinstance(own, list | tuple):
        return type(ours) is type(own) and all(map(same, ours, own))
    return bool(ours == own)


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_comes_back_as_it_was(kind: str) -> None:
    """So do its structure, dtypes, values and layouts; its tensors are parts of the bytes."""
    parts = pickled.parts_of(BATCHES[kind])
    memory = np.zeros(pickled.size_of(parts), np.uint8)
    pickled.write(parts, memory)
    found = pickled.read(memory)
    assert same(found, BATCHES[kind])
    if kind == "a tensor":
        assert memory.ctypes.data <= found.data_ptr() < memory.ctypes.data + len(memory)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_back_as_they_were(layout: Any) -> None:
    """Each with its own values, which torch looks for at the start of a storage."""
    batch = [
        torch.nested.nested_tensor([torch.rand(5), torch.rand(3)], layout=layout) for _ in range(2)
    ]
    parts = pickled.parts_of(batch)
    memory = np.zeros(pickled.size_of(parts), np.uint8)
    pickled.write(parts, memory)
    for found, own in zip(pickled.read(memory), batch, strict=True):
        assert found.layout is layout
        assert same([*found.unbind()], [*own.unbind()])


def test_tensors_that_share_memory_share_it_afterwards() -> None:
    """What is written into one is seen in the others, as in torch's batches."""
    whole = torch.zeros(4, 3)
    parts = pickled.parts_of([whole, whole[1], whole.T])
    assert len(parts) == 2
    memory = np.zeros(pickled.size_of(parts), np.uint8)
    pickled.write(parts, memory)
    found = pickled.read(memory)
    found[1].fill_(5)
    assert found[0][1].tolist() == found[2][:, 1].tolist() == [5, 5, 5]


def test_what_cannot_be_sent_says_why() -> None:
    """A class of a function, a lock, and a tensor of a graph."""

    class Local:
        pass

    graph = torch.ones(2, requires_grad=True) * 2
    for batch, why in (
        (Local(), "a class that no other process can find"),
        (graph, ""),
        (lambda: 0, ""),
    ):
        with pytest.raises(
            pickled.UnsendableError,
            match="a batch cannot be sent to the training process: .*" + why,
        ):
            pickled.parts_of(batch)


# ---- over the ring ----


def detection(index: int) -> Any:
    """A picture of its own size, and the boxes in it."""
    return np.full((3, 4 + index % 3, 5), index, np.float32), {
        "boxes": np.ones((index % 4, 4)),
        "name": f"n{index}",
    }


def zipped(samples: list[Any]) -> Any:
    """Collate as detection scripts do."""
    pictures, targets = zip(*samples, strict=True)
    return [torch.from_numpy(one) for one in pictures], targets


def padded(samples: list[Any]) -> Any:
    """Collate texts of several lengths, time first."""
    lengths = torch.tensor([len(one) for one in samples])
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(one) for one in samples]), lengths


def mixed(samples: list[Any]) -> Any:
    """Draw in collating."""
    weight = torch.rand(()).item() + np.random.rand()  # noqa: NPY002
    return sets.default_collate(samples) * weight


def ragged(index: int) -> Any:
    """The samples of the batch of 8 to 11 have another shape."""
    return np.full(3 if 8 <= index < 12 else 2, index), index


def listed(index: Any) -> Any:
    """A dataset that takes lists of indices."""
    return {"rows": np.asarray(index) * 2, "kind": type(index).__name__}


LISTS = sets.BatchSampler(sets.SequentialSampler(range(21)), 4, drop_last=False)
FED: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "another shape": (ragged, {"batch_size": 4}),
    "a long text": (lambda i: (i, "x" * (1 + 5000 * (i == 13))), {"batch_size": 4}),
    "bfloat16": (lambda i: torch.full((2,), i, dtype=torch.bfloat16), {"batch_size": 4}),
    "detection": (detection, {"batch_size": 4, "collate_fn": zipped}),
    "texts": (
        lambda i: np.arange(i + 1),
        {"batch_size": 4, "collate_fn": padded, "drop_last": True},
    ),
    "tuples": (lambda i: i, {"batch_size": 4, "collate_fn": tuple}),
    "nothing": (lambda i: i, {"batch_size": 4, "collate_fn": lambda _: None}),
    "lists with a collate_fn": (
        lambda i: i,
        {"batch_sampler": [[1, 2], [3], [4, 5, 6, 7, 8]], "collate_fn": list},
    ),
    "without batch_size": (lambda i: (np.full(i, i), f"s{i}", i, None), {"batch_size": None}),
    "a collate_fn of one": (
        lambda i: i,
        {"batch_size": None, "collate_fn": lambda one: torch.full((2,), one)},
    ),
    "default_collate of one": (
        lambda i: [np.full(2, i), np.full(2, i + 1)],
        {"batch_size": None, "collate_fn": sets.default_collate},
    ),
    "lists of indices": (listed, {"batch_size": None, "sampler": LISTS}),
    "lists and a collate_fn": (
        listed,
        {"batch_size": None, "sampler": LISTS, "collate_fn": lambda one: one["rows"]},
    ),
}


@pytest.mark.parametrize("kind", FED)
def test_batches_of_any_structure_come_over_the_ring(kind: str, caplog: Any) -> None:
    """They are torch's, epoch after epoch, and nothing is left to torch."""
    make, settings = FED[kind]
    ours, own = both(Of(make), num_workers=2, seed=6, **settings)
    with caplog.at_level(logging.WARNING, "ringfeed.torch"):
        check_epochs(ours, own, 2)
    assert caplog.messages == []
    assert ours._rings.own_reason is None
    close(ours)


@pytest.mark.parametrize("kind", ["texts", "without batch_size", "a collate_fn of one"])
def test_streams_of_any_structure_come_over_the_ring(kind: str, caplog: Any) -> None:
    """A copy in each worker, and batches in turn."""
    make, settings = FED[kind]
    ours, own = both(Stream(make), num_workers=2, seed=6, **settings)
    with caplog.at_level(logging.WARNING, "ringfeed.torch"):
        check_epochs(ours, own, 2)
    assert caplog.messages == []
    assert ours._rings.own_reason is None
    close(ours)


def test_a_batch_for_which_slots_are_too_small_lies_apart(caplog: Any) -> None:
    """In a stream and by index, amid an epoch: nothing is lost or doubled, and the ring stays."""

    def make(index: int) -> Any:
        return np.full(100_000 * (index == 13) + 1, index)

    for kind in (Of, Stream):
        ours, own = both(kind(make), num_workers=1, batch_size=3, collate_fn=list)
        with caplog.at_level(logging.INFO, "ringfeed.torch"):
            for one, other in zip(ours, own, strict=True):
                assert same(one, other)
        assert [line.partition(" of ")[2].partition(":")[0] for line in caplog.messages] == [
            f"{kind.__name__} runs over ringfeed"
        ]
        close(ours)
        caplog.clear()


def test_what_is_drawn_in_collating_depends_on_the_batch_alone() -> None:
    """Not on the workers; no two batches and no two epochs draw the same."""
    runs = []
    for workers in (1, 3):
        generator = torch.Generator().manual_seed(2)
        ours = DataLoader(
            Of(lambda _: 1.0), 4, num_workers=workers, generator=generator, collate_fn=mixed
        )
        runs.append([batch[0].item() for _ in range(2) for batch in ours])
        close(ours)
    assert runs[0] == runs[1]
    assert len({*runs[0]}) == 12


def test_an_error_in_collating_is_the_users() -> None:
    """It is raised as it is, in its place, and the batches after it come."""

    def refusing(samples: list[int]) -> Any:
        if 5 in samples:
            message = "no fives"
            raise KeyError(message)
        return samples

    ours = iter(loader := DataLoader(Of(lambda i: i), 4, num_workers=1, collate_fn=refusing))
    assert next(ours) == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no fives"):
        next(ours)
    assert next(ours) == [8, 9, 10, 11]
    del ours
    close(loader)


def test_tensors_that_are_kept_stay_as_they_are() -> None:
    """Parts of a slot keep it."""
    ours, own = both(Of(detection), num_workers=1, batch_size=2, collate_fn=zipped)
    with pytest.warns(ringfeed.SlotsHeldWarning, match=r"a tensor is copied by \.clone\(\)"):
        found = [*ours]
    close(ours)
    for one, other in zip(found, own, strict=True):
        check_alike(one[0], other[0])


def test_a_batch_that_cannot_be_sent_is_an_error_in_its_place() -> None:
    """Torch's own way waits for it without end."""

    class Odd:
        pass

    def local(samples: list[int]) -> Any:
        return samples, Odd() if 1 in samples else (lambda: 0) if 5 in samples else None

    ours = iter(
        loader := DataLoader(Of(lambda i: i), num_workers=1, batch_size=4, collate_fn=local)
    )
    with pytest.raises(
        ringfeed.ShipError,
        match=r"a batch cannot be (sent to|made again in) the training process: ",
    ):
        next(ours)
    with pytest.raises(
        ringfeed.ShipError,
        match=r"a batch cannot be (sent to|made again in) the training process: ",
    ):
        next(ours)
    assert next(ours) == ([8, 9, 10, 11], None)
    del ours
    close(loader)


def test_what_a_first_look_changes_is_undone() -> None:
    """A dataset that counts its reads finds no trace here or in workers, as with torch."""

    class Counts(Of):
        count = 0

        def __getitem__(self, index: int) -> int:
            self.count += 1
            return self.count

    dataset = Counts(None, 4)
    ours = DataLoader(dataset, 4, num_workers=1)
    assert next(iter(ours)).tolist() == [1, 2, 3, 4]
    assert dataset.count == 0
    close(ours)

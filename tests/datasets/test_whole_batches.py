"""Datasets whose items are whole batches.

None among them, shapes of their own, rows that differ, no end.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from exports import capsules_of
from ringfeed.frameworks.dlpack import Exported
from ringfeed.spec.array import Array
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once

BACKENDS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    {"workers": 2, "backend": "spawn"},
    {"workers": 2, "backend": "fork"},
]
HERE = BACKENDS[:2]  # for what is the same in a process


def outcomes(loader: ringfeed.Loader) -> list[Any]:
    """Return the first number of each batch of an epoch, or the text of its error."""
    found: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            found.append(int(next(batches)[0][0]))
        except StopIteration:
            return found
        except ringfeed.RingfeedError as error:
            found.append(str(error))


# ---- batches of None ----


class Gappy:
    """Batches of two rows that hold their index; None at some indices, and an error at others."""

    def __init__(self, length: int, gaps: Any, bad: Any = ()) -> None:
        self.length = length
        self.gaps, self.bad = frozenset(gaps), frozenset(bad)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise KeyError(index)
        return (
            None if index in self.gaps else (np.full(2, index), np.full((2, 3), index, np.float32))
        )


GAPS = (0, 3, 4, 9)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("how", BACKENDS, ids=str)
@pytest.mark.usefixtures("nothing_left")
def test_batches_of_none_are_left_out(how: dict[str, Any], on_error: Any) -> None:
    """First, last or in between, they are no error and count as nothing.

    The length stays the most there can be.
    """
    with ringfeed.Loader(Gappy(10, GAPS), batch_size=None, on_error=on_error, **how) as loader:
        expected = [index for index in range(10) if index not in GAPS]
        assert outcomes(loader) == expected
        assert outcomes(loader) == expected
        stats = loader.stats()
        assert (len(loader), stats.batches, stats.samples, stats.skipped) == (10, 12, 24, [])
        assert (stats.none_batches, loader._stream.exact_length) == (8, None)


@pytest.mark.parametrize("how", HERE, ids=str)
def test_beside_errors(how: dict[str, Any]) -> None:
    """An error keeps its place among batches of None, and is the only one to count as skipped."""
    dataset = Gappy(9, {1, 2, 6}, bad={0, 3, 8})
    given: Any = {
        "batch_size": None,
        "max_batch_size": 2,
        "spec": (Array((), "int64"), Array((3,), "float32")),
    }
    with ringfeed.Loader(dataset, **given, **how) as loader:
        bad = {index: f"dataset[{index}] raised KeyError: {index}" for index in (0, 3, 8)}
        assert outcomes(loader) == [bad[0], bad[3], 4, 5, 7, bad[8]]
    with ringfeed.Loader(dataset, on_error="skip", **given, **how) as loader:
        assert outcomes(loader) == [4, 5, 7]
        assert loader.stats().skipped == [0, 3, 8]


@pytest.mark.parametrize("how", HERE, ids=str)
def test_nothing_but_none(how: dict[str, Any]) -> None:
    """An epoch of batches of None is empty, however many there are and however few the slots."""
    spec = Array((), "int64"), Array((3,), "float32")
    with ringfeed.Loader(
        Gappy(300, range(300)), batch_size=None, max_batch_size=2, spec=spec, slots=2, **how
    ) as loader:
        assert outcomes(loader) == []
        assert outcomes(loader) == []


@pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning")
@pytest.mark.parametrize("how", HERE, ids=str)
def test_held_batches_stay_as_they_are(how: dict[str, Any]) -> None:
    """A long run of None goes through the one free slot; held slots are not written."""
    with ringfeed.Loader(Gappy(100, range(1, 99)), batch_size=None, slots=2, **how) as loader:
        batches = iter(loader)
        first = next(batches)
        del batches
        batches = iter(loader)
        assert next(batches)[0].tolist() == [0, 0]
        assert next(batches)[0].tolist() == [99, 99]
        assert first[0].tolist() == [0, 0]
        assert next(batches, None) is None


def test_none_as_a_leaf_is_an_error() -> None:
    """Only None in the place of the whole batch is left out."""

    class Half(Gappy):
        def __getitem__(self, index: int) -> Any:
            numbers, rest = super().__getitem__(index)
            return numbers, None if index == 1 else rest

    with ringfeed.Loader(Half(3, ()), batch_size=None, workers=0) as loader:
        text = (
            "return whole batches of arrays, or set batch_size= or batch_sampler= for a dataset "
            "of single samples"
        )
        assert outcomes(loader) == [
            0,
            f"dataset[1]: batch[1] is None, expected an array with a leading row axis; {text}",
            2,
        ]


@pytest.mark.parametrize("length", [3, 5000])
def test_a_dataset_without_batches_is_refused(length: int) -> None:
    """The first batch that is not None tells the spec; where there is none for long, spec= must."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader(Gappy(length, range(length)), batch_size=None, workers=0)
    assert (
        str(caught.value)
        == f"the dataset gives None in the place of its first {min(length, 1000)} batches; give spec="
    )


class DyingThenNone(Gappy):
    """Kills its worker once, and gives None where it was."""

    def __init__(self, mark: Path) -> None:
        super().__init__(8, {5})
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_killed_beside_none(tmp_path: Path) -> None:
    """Whoever runs the batch again finds it to be None."""
    with ringfeed.Loader(DyingThenNone(tmp_path / "died"), batch_size=None, workers=1) as loader:
        assert outcomes(loader) == [0, 1, 2, 3, 4, 6, 7]
        wait_until(lambda: loader.stats().restarts == 1)


# ---- batches of their own shape ----

MOST = (6, 5, 3)
PICTURES = {
    "picture": Array(MOST, "float32", variable=(0, 1)),
    "text": Array((7,), "int64", variable=True),
}
SPEC = {**PICTURES, "label": Array((), "int32")}
LENGTH = 12


def batch_of(index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return what batch ``index`` holds.

    All shapes are reached, the largest and the empty ones too.
    """
    random = np.random.default_rng(index)
    rows, height, width, words = 1 + index % 4, 6 - index % 7, index % 6, 7 - index % 8
    picture = random.random((rows, width, height, 3), np.float32).transpose(0, 2, 1, 3)  # strided
    return {
        "picture": picture,
        "text": random.integers(0, 99, (rows, words)),
        "label": np.full(rows, index, np.int32),
    }


class Pictures:
    """Batches whose shape goes with their index."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        return batch_of(index)


def pictures(**settings: Any) -> ringfeed.Loader:
    """Return a loader over Pictures."""
    return ringfeed.Loader(
        Pictures(), **{"batch_size": None, "max_batch_size": 4, "spec": SPEC, **settings}
    )


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_each_batch_has_its_own_shape(how: dict[str, Any]) -> None:
    """What comes is what was given, in its very shape, contiguous, and aligned in the slot."""
    with pictures(slots=3, **how) as loader:
        seen = 0
        for index, batch in enumerate(loader):
            for name, expected in batch_of(index).items():
                assert (batch[name].shape, batch[name].dtype) == (expected.shape, expected.dtype)
                assert batch[name].tobytes() == expected.tobytes()
                assert batch[name].flags.c_contiguous
                assert batch[name].ctypes.data % 64 == 0
                assert not batch[name].flags.owndata
            seen += 1
        assert seen == LENGTH


def test_copies_have_their_own_shape() -> None:
    """With copy=True as well; a view that is kept does not change with the batches after it."""
    with pictures(workers=1, backend="thread", copy=True) as loader:
        kept = list(loader)
    with pictures(workers=1, backend="thread", slots=LENGTH + 2) as loader:
        views = list(loader)
    for index, (copy, view) in enumerate(zip(kept, views, strict=True)):
        for name, expected in batch_of(index).items():
            np.testing.assert_array_equal(copy[name], expected)
            np.testing.assert_array_equal(view[name], expected)


def test_dlpack_has_the_shape_of_the_batch() -> None:
    """What frameworks take has the batch's shape too, and is the slot itself."""
    with pictures(workers=0) as loader:
        taken = loader._stream.epoch(lambda lease, rows: (lease, capsules_of(loader, lease, rows)))
        for index, (lease, capsules) in enumerate(taken):
            arrays = [np.from_dlpack(Exported(capsule)) for capsule in capsules]
            del capsules
            for offset, array, expected in zip(
                loader.plan.layout.offsets, arrays, batch_of(index).values(), strict=True
            ):
                np.testing.assert_array_equal(array, expected)
                assert not array.size or array.ctypes.data == lease.address + offset


def test_a_scribbled_shape_stays_within_the_field() -> None:
    """Whatever a worker leaves in the place of the shape, nobody reads beyond what was reserved."""
    with pictures(workers=0) as loader:

        def scribbled(lease: Any, rows: int) -> Any:
            shapes = np.frombuffer(lease, np.int64, 3, loader.plan.layout.offsets[0] - 64)
            assert shapes.tolist() == [*batch_of(0)["picture"].shape[1:]]
            np.asarray(lease).view(np.int64)[loader.plan.layout.offsets[0] // 8 - 8 :][:3] = (
                2**60,
                -1,
                2**60,
            )
            return np.from_dlpack(Exported(capsules_of(loader, lease, rows)[0])).shape

        assert next(loader._stream.epoch(scribbled)) == (1, 6, 0, 3)


SHAPE_ERRORS: list[tuple[dict[str, Any], str]] = [
    (
        {"picture": np.zeros((2, 7, 5, 3), np.float32)},
        "batch['picture'] has rows of shape (7, 5, 3), expected (6, 5, 3) or less along the axes "
        "(0, 1); crop it in __getitem__, or give a larger shape in spec=",
    ),
    (
        {"picture": np.zeros((2, 1, 1, 1), np.float32)},
        "batch['picture'] has rows of shape (1, 1, 1), expected (6, 5, 3) or less along the axes "
        "(0, 1); crop, pad or resize it in __getitem__, or name the axis in variable= of spec=",
    ),
    (
        {"picture": np.zeros((2, 6, 5), np.float32)},
        "batch['picture'] has rows of shape (6, 5), expected (6, 5, 3) or less along the axes (0, "
        "1); every batch must have the axes of the spec: reshape it in __getitem__",
    ),
    (
        {"text": np.zeros((2, 8), np.int64)},
        "batch['text'] has rows of shape (8,), expected (7,) or less; crop it in __getitem__, or "
        "give a larger shape in spec=",
    ),
    (
        {"text": np.zeros((2, 7), np.int32)},
        "batch['text'] has dtype int32, expected int64; convert it in __getitem__, give this "
        "dtype in spec=, or have it converted by cast=True of its Array",
    ),
]


@pytest.mark.parametrize("how", HERE, ids=str)
@pytest.mark.parametrize(("change", "text"), SHAPE_ERRORS, ids=map(str, range(len(SHAPE_ERRORS))))
def test_a_shape_beyond_the_declared_is_named(
    change: dict[str, Any], text: str, how: dict[str, Any]
) -> None:
    """Another rank, a fixed axis of another length, or more than was declared.

    An error in its place, with a remedy.
    """

    class Bad(Pictures):
        def __getitem__(self, index: int) -> Any:
            return (
                {**batch_of(index), "label": np.zeros(2, np.int32), **change}
                if index == 1
                else batch_of(index)
            )

    with ringfeed.Loader(Bad(), batch_size=None, max_batch_size=4, spec=SPEC, **how) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ringfeed.SpecError) as caught:
            next(batches)
        assert str(caught.value) == f"dataset[1]: {text}"
        assert next(batches)["label"].tolist() == [2, 2, 2]


class Samples:
    """Single samples of no fixed shape."""

    trailing: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.zeros((index, *self.trailing), np.int64)


def test_samples_of_different_shapes_are_padded() -> None:
    """With a batch_size variable= says in short what form="pad" says at length.

    An axis of 0 is as long as any.
    """
    array = Array((7, 2, 0), "int64", variable=True)
    for spec, shape in ((array, (3, 2, 1, 0)), (Array((7,), "int64", variable=True), (3, 2))):
        samples = Samples()
        samples.trailing = shape[2:]
        with ringfeed.Loader(samples, batch_size=8, spec=spec, workers=0) as loader:
            (batch,) = loader
            assert batch.shape == shape
            assert not batch.any()
            size = loader.plan.slot_size
    long = Array((None,), "int64", max_shape=(7,), form="pad")
    with ringfeed.Loader(Samples(), batch_size=8, spec=long, workers=0) as loader:
        assert loader.plan.slot_size == size


def test_samples_that_are_converted_are_not_padded() -> None:
    """The refusal says what to do."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader(
            Samples(),
            batch_size=8,
            spec=Array((7,), "float32", variable=True, scale=0.5),
            workers=0,
        )
    assert str(caught.value) == (
        "sample has variable=(0,) and converts its samples, expected samples that are not "
        "converted, as they are padded with zeros to make a batch of several; give batch_size=1, "
        "convert them in __getitem__, or leave scale=, offset=, mean= and std= out"
    )


class AnyShape:
    """Pictures of any size, each with its number."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            raise ValueError("corrupt")
        return np.full((index, 7 - index, 3), index + 1, np.uint8), index


ANY_SHAPE = (Array((6, 7, 3), "uint8", variable=(0, 1)), Array((), "int64"))


@pytest.mark.parametrize("how", HERE, ids=str)
def test_samples_of_any_shape_come_one_by_one(how: dict[str, Any]) -> None:
    """With batch_size=1 each is a batch of one row of its own shape; a failed one is left out."""
    with ringfeed.Loader(
        AnyShape(), batch_size=1, spec=ANY_SHAPE, on_error="skip", copy=True, **how
    ) as loader:
        found = [*loader]
    assert [(x.shape, set(x.ravel().tolist()), y.tolist()) for x, y in found] == [
        ((1, index, 7 - index, 3), {index + 1} if index else set(), [index])
        for index in (0, 1, 2, 3, 5)
    ]


def test_a_sample_of_any_shape_is_changed_in_place() -> None:
    """A transform gets a view of the shape that the sample has."""

    def change(sample: Any) -> None:
        sample[0][...] = 9

    settings: dict[str, Any] = {
        "batch_size": 1,
        "spec": ANY_SHAPE,
        "workers": 0,
        "copy": True,
        "transform": change,
    }
    with ringfeed.Loader(AnyShape(), sampler=[3, 5], **settings) as loader:
        assert [(x.shape, x.min(), x.max()) for x, _ in loader] == [
            ((1, 3, 4, 3), 9, 9),
            ((1, 5, 2, 3), 9, 9),
        ]


def test_a_sample_beyond_the_largest_shape_is_refused() -> None:
    """The error says along which axes it may be smaller."""
    spec = (Array((2, 7, 3), "uint8", variable=(0, 1)), Array((), "int64"))
    with (
        ringfeed.Loader(AnyShape(), batch_size=1, spec=spec, workers=0, sampler=[3]) as loader,
        pytest.raises(ringfeed.SpecError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == (
        "dataset[3]: sample[0] has shape (3, 4, 3), expected (2, 7, 3) or less along the axes (0, "
        "1); crop it in __getitem__, or give a larger shape in spec="
    )


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_a_dataset_could_write_itself(batch_size: int) -> None:
    """read_into would be given the whole row of the slot, and is not used."""

    class Own(AnyShape):
        def read_into(self, index: int, out: Any) -> None:
            raise AssertionError((index, out))

    settings: dict[str, Any] = {"batch_size": batch_size, "spec": ANY_SHAPE, "on_error": "skip"}
    with ringfeed.Loader(Own(), workers=0, **settings) as loader:
        assert [number for _, numbers in loader for number in numbers] == [0, 1, 2, 3, 5]


def test_the_plan_counts_the_shapes() -> None:
    """The kernel reserves the plan to the byte; fields start where they did, behind shapes."""
    with pictures(workers=0, slots=3) as loader:
        next(iter(loader))
        names = ("ringfeed-control", "ringfeed-slots")
        fds = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        fds = [fd for fd in fds if any(name in str(fd.readlink()) for name in names)]
        assert sum(fd.stat().st_blocks * 512 for fd in fds) == loader.memory
        picture, text = 4 * 6 * 5 * 3 * 4, 4 * 7 * 8  # bytes of four rows
        second = 64 + picture + -picture % 64 + 64
        assert loader.plan.layout.offsets == (64, second, second + text + -text % 64)


# ---- rows ----


class Rows:
    """Batches of so many rows each."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.rows[index], index), np.full((self.rows[index], 3), index, np.float32)


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_rows_up_to_max_batch_size(how: dict[str, Any]) -> None:
    """Batches grow after the first, shrink, and may have no rows at all.

    An empty batch is one all the same.
    """
    sizes = 2, 9, 0, 1, 9, 0
    with ringfeed.Loader(Rows(*sizes), batch_size=None, max_batch_size=9, **how) as loader:
        found = [(numbers.tolist(), rest.shape) for numbers, rest in loader]
        assert found == [([index] * rows, (rows, 3)) for index, rows in enumerate(sizes)]
        assert (loader.stats().batches, loader.stats().samples) == (6, 21)


def test_a_first_batch_without_rows() -> None:
    """It tells the spec, and max_batch_size the rows."""
    with ringfeed.Loader(Rows(0, 3), batch_size=None, max_batch_size=3, workers=0) as loader:
        assert [len(numbers) for numbers, _ in loader] == [0, 3]


class Weighted(Rows):
    """x, y and sample_weight, of which one has other rows in batch 1."""

    def __init__(self, leaf: int) -> None:
        super().__init__(4, 4)
        self.leaf = leaf

    def __getitem__(self, index: int) -> Any:
        rows = [3 if index == 1 and leaf == self.leaf else 4 for leaf in range(3)]
        return (
            np.zeros((rows[0], 2), np.float32),
            np.zeros(rows[1], np.int64),
            np.zeros(rows[2], np.float32),
        )


@pytest.mark.parametrize(
    ("leaf", "where", "got", "expected"), [(0, 1, 4, 3), (1, 1, 3, 4), (2, 2, 3, 4)]
)
def test_leaves_of_unequal_rows_are_refused(leaf: int, where: int, got: int, expected: int) -> None:
    """x, y and sample_weight go together row by row."""
    with ringfeed.Loader(Weighted(leaf), batch_size=None, workers=0) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ringfeed.SpecError) as caught:
            next(batches)
    assert str(caught.value) == (
        f"dataset[1]: batch[{where}] has {got} rows, expected {expected} as in the leaves before "
        "it; give all leaves of a batch the same number of rows"
    )


def test_more_rows_than_reserved() -> None:
    """Without max_batch_size the first batch says the most, and a larger one how to raise it."""
    with ringfeed.Loader(Rows(2, 3), batch_size=None, workers=0) as loader:
        assert outcomes(loader) == [
            0,
            (
                "dataset[1]: batch[0] has 3 rows, expected at most 2; return smaller batches, or "
                "raise max_batch_size"
            ),
        ]


# ---- without an end ----


class Endless:
    """Batches for ever; every third is None."""

    def __getitem__(self, index: int) -> Any:
        return None if index % 3 == 2 else (np.full(2, index), np.zeros(2))


class Unsized(Endless):
    """Says by len() that it has no length."""

    def __len__(self) -> int:
        raise NotImplementedError


class ByCount(Endless):
    """Says how many batches it has as Keras' datasets do."""

    def __init__(self, num_batches: int | None) -> None:
        self.num_batches = num_batches

    @property
    def num_batches(self) -> int | None:
        return self._count

    @num_batches.setter
    def num_batches(self, count: int | None) -> None:
        self._count = count


class Overruled(ByCount):
    """Has a len() as well, which says less."""

    def __len__(self) -> int:
        return 4


ENDLESS: list[Callable[[], Any]] = [
    Endless,
    Unsized,
    lambda: ByCount(None),
    lambda: Overruled(None),
]


@pytest.mark.parametrize("how", BACKENDS, ids=str)
@pytest.mark.parametrize(
    "make", ENDLESS, ids=["no len", "len raises", "num_batches None", "num_batches overrules len"]
)
@pytest.mark.usefixtures("nothing_left")
def test_a_dataset_without_end(make: Callable[[], Any], how: dict[str, Any]) -> None:
    """It is read in order for as long as anybody asks.

    Each epoch, also after a break, begins at its first batch.
    """
    with ringfeed.Loader(make(), batch_size=None, **how) as loader:
        expected = [index for index in range(60) if index % 3 != 2]
        for _ in range(2):
            batches = (int(batch[0][0]) for batch in loader)
            assert list(itertools.islice(batches, 40)) == expected
        with pytest.raises(TypeError) as caught:
            len(loader)
        assert str(caught.value) == (
            "the length of this loader is unknown: its dataset has no len(), and goes on without "
            "end"
        )


def test_an_endless_dataset_is_not_shuffled() -> None:
    """There is no order of what has no end."""
    with pytest.raises(ValueError, match="shuffle=True needs a dataset with a length") as caught:
        ringfeed.Loader(Endless(), batch_size=None, shuffle=True, workers=0)
    assert (
        str(caught.value)
        == "shuffle=True needs a dataset with a length; shuffle inside the dataset instead"
    )


class Shrinking(ByCount):
    """Counts its batches as Keras' datasets do, and has two fewer after each epoch."""

    def on_epoch_end(self) -> None:
        assert self.num_batches is not None
        self.num_batches -= 2


def test_num_batches_is_the_length() -> None:
    """A dataset that counts its batches without len() is asked again after its hooks."""
    with ringfeed.Loader(Shrinking(7), batch_size=None, workers=0) as loader:
        assert len(loader) == 7
        assert outcomes(loader) == [0, 1, 3, 4, 6]
        assert outcomes(loader) == [0, 1, 3, 4]
        assert len(loader) == 3

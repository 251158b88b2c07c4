"""`transform=`.

What a function makes of samples of every kind, in every worker, and what is refused.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import Given
from refusing import raised
from ringfeed import Array, Loader, ShipError, SpecError, WorkerError
from ringfeed.datasets import Interleave, Mix
from ringfeed.orders import PrioritizedSampler
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "two": {"workers": 2},
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 2, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}
LENGTH = 41
X = np.arange(LENGTH * 3, dtype=np.float32).reshape(LENGTH, 3)
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Samples:
    """Dicts of a view of the dataset's own array and of a number, with a number that was drawn."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.x = X.copy()
        self.function = function

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        sample = {"x": self.x[index], "y": index, "drawn": float(ringfeed.rng().random())}
        return sample if self.function is None else self.function(sample, ringfeed.rng())


class Many(Samples):
    """The same, many at once; nothing is drawn."""

    def __getitem__(self, index: int) -> Any:
        sample = {"x": self.x[index], "y": index}
        return sample if self.function is None else self.function(sample, ringfeed.rng())

    def __getitems__(self, indices: list[int]) -> Any:
        assert self.function is None
        return (self[index] for index in indices)


class OneByOne(Many):
    """The same, one by one."""

    __getitems__ = None  # type: ignore[assignment]


class Written(Many):
    """The same, written into the slot."""

    __getitems__ = None  # type: ignore[assignment]

    def read_into(self, index: int, out: dict[str, Any]) -> None:
        out["x"][:] = self.x[index]
        out["y"][...] = index


class Stream(Many):
    """The same, in order."""

    __getitem__ = __getitems__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        return (Many.__getitem__(self, index) for index in range(LENGTH))


def changed(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Change a sample in place."""
    sample["x"] *= 2
    sample["x"] += rng.random(dtype=np.float32)
    sample["y"][...] += 1


def made(sample: dict[str, Any], rng: np.random.Generator) -> Any:
    """Return a new sample."""
    return sample["x"].astype(np.float64) + rng.random(), {"y": int(sample["y"]) + 1}


def expected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a dataset of its own does for a transform."""

    def apply(sample: dict[str, Any], rng: np.random.Generator) -> Any:
        given = {
            key: value if isinstance(value, float) else np.array(value)
            for key, value in sample.items()
        }
        answer = function(given, rng)
        return given if answer is None else answer

    return apply


def content(batch: Any) -> list[Any]:
    """Return all arrays of a batch, as lists."""
    if isinstance(batch, np.ndarray):
        return [str(batch.dtype), batch.tolist()]
    return [content(part) for part in (batch.values() if isinstance(batch, dict) else batch)]


def batches(dataset: Any, **settings: Any) -> list[Any]:
    """Return the batches of two epochs."""
    with Loader(dataset, batch_size=7, seed=5, copy=True, **settings) as loader:
        return [content(batch) for _ in range(2) for batch in loader]


# ---- what comes ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [changed, made])
@pytest.mark.parametrize("kind", [Samples, Many, Written])
def test_each_sample_is_transformed_with_its_own_numbers(
    kind: type[Any], function: Any, way: str
) -> None:
    """A transform gives what a dataset that calls it gives, and leaves the dataset as it is."""
    dataset = kind()
    found = batches(dataset, shuffle=True, transform=function, **WAYS[way])
    by_hand = (Samples if kind is Samples else OneByOne)(expected(function))
    assert found == batches(by_hand, shuffle=True, workers=0)
    assert np.array_equal(dataset.x, X)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [changed, made])
def test_rows_of_arrays(function: Any, way: str) -> None:
    """Columns come transformed, and stay as they are."""
    columns = {"x": X.copy(), "y": np.arange(LENGTH)}
    found = batches(columns, shuffle=True, transform=function, **WAYS[way])
    assert found == batches(OneByOne(expected(function)), shuffle=True, workers=0)
    assert np.array_equal(columns["x"], X)


@pytest.mark.parametrize("way", ["here", "two", "threads"])
@pytest.mark.parametrize("function", [changed, made])
def test_elements_of_iterables(function: Any, way: str) -> None:
    """An iterable's elements are transformed, alone and interleaved, with their random numbers."""
    found = batches(Stream(), transform=function, **WAYS[way])
    assert found == batches(OneByOne(expected(function)), workers=0)
    pair = batches(Interleave([Stream(), Stream()]), transform=function, **WAYS[way])
    assert pair == batches(
        Interleave([Stream(expected(function)), Stream(expected(function))]), workers=0
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [changed, made])
def test_members_of_a_mix(function: Any, way: str) -> None:
    """Samples of all datasets of a mix are transformed, rows of arrays among them."""
    columns = {"x": X.copy(), "y": np.arange(LENGTH)}
    found = batches(Mix([OneByOne(), columns]), shuffle=True, transform=function, **WAYS[way])
    by_hand = [OneByOne(expected(function)), OneByOne(expected(function))]
    assert found == batches(Mix(by_hand), shuffle=True, workers=0)
    assert np.array_equal(columns["x"], X)


@pytest.mark.parametrize("way", ["here", "two"])
def test_columns_stay_as_they_are(way: str) -> None:
    """A transform that writes into a row of an array and returns a new sample gets a copy."""

    def rewritten(sample: dict[str, Any]) -> list[Any]:
        sample["x"] *= 2
        return [sample["x"], sample["y"]]

    columns = {"x": X.copy(), "y": np.arange(LENGTH)}
    for dataset in (columns, Mix([columns])):
        with Loader(
            dataset, batch_size=LENGTH, copy=True, transform=rewritten, **WAYS[way]
        ) as loader:
            found = [batch[0] for _ in range(2) for batch in loader]
        assert np.array_equal(found, [X * 2, X * 2])
    assert np.array_equal(columns["x"], X)


@pytest.mark.parametrize("function", [changed, made])
def test_samples_that_are_drawn_by_priority(function: Any) -> None:
    """Under a PrioritizedSampler the sample is transformed.

    Its number and weight are as they are.
    """
    by_hand = OneByOne(expected(function))
    settings: dict[str, Any] = {"batch_size": 8, "copy": True, "workers": 2}
    with (
        Loader(
            OneByOne(), transform=function, sampler=PrioritizedSampler(LENGTH), **settings
        ) as loader,
        Loader(by_hand, sampler=PrioritizedSampler(LENGTH), **settings) as other,
    ):
        assert [content(batch) for batch in loader] == [content(batch) for batch in other]


def test_a_sample_is_changed_in_the_slot() -> None:
    """What a transform in place is given are arrays over the very memory that is handed out."""
    given = []

    def keep(sample: dict[str, Any]) -> None:
        given.append(sample["x"])

    with Loader(Samples(), batch_size=LENGTH, workers=0, transform=keep) as loader:
        (batch,) = loader
        rows = given[-LENGTH:]
        assert [np.shares_memory(row, batch["x"][place]) for place, row in enumerate(rows)] == [
            True
        ] * LENGTH


def test_a_sample_that_is_returned_was_changed_in_place() -> None:
    """Torch's manner, to change a dict and return it, does not change the dataset."""

    def doubled(sample: dict[str, Any]) -> dict[str, Any]:
        sample["x"] *= 2
        return sample

    dataset = Samples()
    with Loader(dataset, batch_size=LENGTH, workers=0, transform=doubled) as loader:
        for _ in range(2):
            (batch,) = loader
            assert np.array_equal(batch["x"], X * 2)
    assert np.array_equal(dataset.x, X)


class Kept:
    """Something of another package that is changed in place, and taken for an array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, dtype)


@pytest.mark.parametrize("way", ["here", "two"])
@pytest.mark.parametrize("kind", ["other leaves", "other objects"])
def test_what_is_returned_otherwise_is_a_copy(kind: str, way: str) -> None:
    """A dataset that gives its own dicts or objects stays as it is when these are changed."""

    def halved(sample: dict[str, Any]) -> dict[str, Any]:
        sample["x"] = sample["x"] / np.float64(2)
        return sample

    def raised_by_one(sample: dict[str, Any]) -> dict[str, Any]:
        sample["x"].values += 1
        return sample

    rows = [{"x": Kept(row.copy()) if kind == "other objects" else row.copy()} for row in X]
    function = raised_by_one if kind == "other objects" else halved
    with Loader(
        Given(rows), batch_size=LENGTH, copy=True, transform=function, **WAYS[way]
    ) as loader:
        found = [batch["x"] for _ in range(2) for batch in loader]
    expect = X + 1 if kind == "other objects" else X / np.float64(2)
    assert np.array_equal(found, [expect, expect])


def test_parts_of_the_slot_may_be_returned() -> None:
    """A sample that is seen to be changed in place may come back anew.

    Its own parts, in other places, stay whole.
    """

    def turned(sample: list[Any]) -> list[Any]:
        if sample[2] == 0:
            return sample
        return [sample[1], sample[0][::-1], sample[2]]

    rows = [[X[index], X[index] + 1, index] for index in range(LENGTH)]
    with Loader(Given(rows), batch_size=LENGTH, workers=0, transform=turned) as loader:
        ((first, second, _),) = loader
    assert np.array_equal(first[1:], X[1:] + 1)
    assert np.array_equal(second[1:], X[1:, ::-1])
    assert np.array_equal(first[0], X[0])


def test_numbers_that_only_arrays_can_change() -> None:
    """A transform that writes into a number is given an array for it; sample 0 shows that."""

    def numbered(sample: dict[str, Any]) -> None:
        sample["y"][...] = 7

    with Loader(OneByOne(), batch_size=LENGTH, workers=0, transform=numbered) as loader:
        (batch,) = loader
    assert batch["y"].tolist() == [7] * LENGTH


def test_a_function_of_this_process_travels() -> None:
    """A lambda and what it refers to are sent to spawned workers."""
    scale = np.float32(3)
    with Loader(X, batch_size=LENGTH, workers=1, transform=lambda row: row * scale) as loader:
        (batch,) = loader
        assert np.array_equal(batch, X * 3)


def test_a_given_spec_is_that_of_what_comes_out() -> None:
    """With spec= sample 0 is read all the same, to see what the transform does.

    An empty dataset has none.
    """
    spec = (Array((3,), "float64"), {"y": Array((), "int64")})
    assert batches(OneByOne(), spec=spec, transform=made) == batches(
        OneByOne(expected(made)), workers=0
    )
    with Loader(Given([]), batch_size=7, workers=0, spec=spec, transform=made) as loader:
        assert [*loader] == []
    with Loader(
        np.zeros((0, 3)), batch_size=7, workers=0, spec=Array((), "int8"), transform=made
    ) as loader:
        assert [*loader] == []


def test_legacy_numbers_with_reseed() -> None:
    """With reseed=True what a transform draws from numpy.random belongs to the sample."""

    def drawn(row: Any) -> None:
        row[0] = np.random.random()  # noqa: NPY002 - what is tested

    found = [
        batches(X.copy(), reseed=True, transform=drawn, **WAYS[way]) for way in ("here", "two")
    ]
    assert found[0] == found[1]


# ---- what goes wrong ----


def never(sample: Any) -> Any:
    """Raise for one sample."""
    if sample["y"] == 11:
        raise ValueError("eleven")
    return sample["x"] + 1


def never_in_place(sample: Any) -> None:
    """Raise for one sample, else change it."""
    if sample["y"] == 11:
        raise ValueError("eleven")
    sample["x"] += 1


@pytest.mark.parametrize("way", ["here", "two", "threads"])
@pytest.mark.parametrize("function", [never, never_in_place])
@pytest.mark.parametrize("dataset", [OneByOne(), Many(), {"x": X, "y": np.arange(LENGTH)}])
def test_a_transform_that_raises_is_named(dataset: Any, function: Any, way: str) -> None:
    """The error names the sample and the function, the user's own is its cause.

    With "skip" the sample is left out.
    """
    settings: dict[str, Any] = {
        "batch_size": LENGTH,
        "transform": function,
        "copy": True,
        **WAYS[way],
    }
    with Loader(dataset, **settings) as loader, pytest.raises(WorkerError) as caught:
        next(iter(loader))
    assert str(caught.value) == "dataset[11]: transform raised ValueError: eleven"
    assert type(caught.value.__cause__) is ValueError
    with Loader(dataset, on_error="skip", **settings) as loader:
        (batch,) = loader
        rows = batch if function is never else batch["x"]
        assert np.array_equal(rows, np.delete(X, 11, 0) + 1)
        assert loader.stats().skipped == [11]


def test_a_transform_that_raises_at_once() -> None:
    """What it raises with sample 0 comes out as it is; with "skip" there is a way out."""

    def failing(_: Any) -> Any:
        raise ValueError("never")

    assert raised(ValueError, lambda: Loader(Samples(), transform=failing)) == "never"
    assert raised(SpecError, lambda: Loader(Samples(), transform=failing, on_error="skip")) == (
        "dataset[0], read for the spec, raised ValueError: never, and the 31 read after "
        "it failed, too; on_error='skip' leaves none out before the spec is known: give spec="
    )
    spec = Array((), "int64")
    assert raised(
        SpecError, lambda: Loader(Samples(), transform=failing, on_error="skip", spec=spec)
    ) == (
        "dataset[0], read to see what the functions given to the loader make of it, raised "
        "ValueError: never, and the 31 read after it failed, too; on_error='skip' leaves "
        "none out before that is known: put a good one first"
    )


def sometimes(sample: Any) -> Any:
    """Return a sample or None."""
    return None if sample["y"] == 11 else sample["x"] + 1


def replaced(sample: dict[str, Any]) -> None:
    """Put another array in the place of that in the slot, but for the first sample."""
    if sample["y"] > 0:
        sample["x"] = sample["x"] + 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            sometimes,
            "dataset[11]: transform returned None, expected a sample as of the first one; return "
            "it always, or never and change it in place",
        ),
        (
            replaced,
            "dataset[1]: sample['x'] was replaced, expected to be written into; use "
            "sample['x'][...] = in transform (39 more of this batch failed)",
        ),
        (
            lambda sample: sample["x"][: 3 - (sample["y"] == 11)] + 0,
            "dataset[11]: sample has shape (2,), expected (3,); every sample must have the shape "
            "of the spec: crop, pad or resize it in __getitem__; or allow many shapes: "
            "spec= with variable=, form='pad' or form='ragged'",
        ),
    ],
)
def test_what_a_transform_returns_is_checked(function: Any, text: str) -> None:
    """What is no sample of the spec is named."""
    with Loader(Samples(), batch_size=LENGTH, workers=0, transform=function) as loader:
        assert raised(SpecError, lambda: next(iter(loader))) == text


def test_what_cannot_be_changed_in_place_is_refused() -> None:
    """A number that cannot be changed as an array, and a converted leaf, are named."""
    names = {0: "zero"}

    def looked_up(sample: dict[str, Any]) -> None:
        sample["x"] += len(names.get(sample["y"], ""))

    assert raised(TypeError, lambda: Loader(Samples(), transform=looked_up)) == (
        "transform returned None, so it is given samples as arrays over the slot, numbers too, "
        "and that raised TypeError: unhashable type: 'numpy.ndarray'; return a new sample instead"
    )
    spec = Array((4,), "float32", scale=1 / 255)
    pictures = np.zeros((9, 4), np.uint8)
    assert raised(SpecError, lambda: Loader(pictures, spec=spec, transform=lambda _: None)) == (
        "sample is converted by its Array, but transform changes it in the slot, where it is "
        "float32 already; return a new sample, or leave scale=, offset=, mean=, std= and layout= "
        "out"
    )


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (3, TypeError, "transform is of type int, expected a function of a sample"),
        (
            lambda image, label: image + label,
            TypeError,
            "transform=<lambda>(image, label) cannot be called as it is to be (missing a required "
            "argument: 'label'), expected a function of a sample, and of rng where it draws "
            "random numbers; give lambda sample: ...",
        ),
    ],
)
def test_what_is_no_transform(function: Any, kind: type[Exception], text: str) -> None:
    """It is refused before anything is read."""
    assert raised(kind, lambda: Loader(Samples(), transform=function)) == text


def test_whole_batches_have_no_transform() -> None:
    """With batch_size=None there are no samples."""
    assert raised(ValueError, lambda: Loader([X], batch_size=None, transform=changed)) == (
        "transform= is for single samples, and with batch_size=None dataset[i] is a whole batch; "
        "give batch_transform="
    )


def test_what_cannot_travel_is_named_as_the_user_knows_it() -> None:
    """A lock in a transform, or in the dataset beside one, is named by its own path."""
    lock = threading.Lock()

    def locked(sample: Any) -> Any:
        with lock:
            return sample["x"] + 1

    text = raised(ShipError, lambda: Loader(Samples(), workers=1, transform=locked))
    assert text.startswith(
        "transform: variable 'lock' is a lock and cannot be sent to a worker process; "
    ), text
    dataset = Samples()
    dataset.lock = lock  # type: ignore[attr-defined]
    text = raised(ShipError, lambda: Loader(dataset, workers=1, transform=made))
    assert text.startswith("dataset.lock is a lock and cannot be sent to a worker process; "), text


def test_a_worker_that_dies_in_a_transform_costs_nothing(tmp_path: Path) -> None:
    """The row runs again in another worker."""
    died = str(tmp_path / "died")

    def mortal(sample: dict[str, Any], rng: np.random.Generator) -> None:
        if sample["y"] == 11 and not os.path.exists(died):  # noqa: PTH110 - what is sent is small
            open(died, "x").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        changed(sample, rng)

    found = batches(OneByOne(), transform=mortal, workers=2)
    assert found == batches(OneByOne(expected(changed)), workers=0)


# ---- batch_transform ----


class Whole:
    """Whole batches of 7 rows."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = range(7 * index, min(7 * index + 7, LENGTH))
        return {"x": X[rows.start : rows.stop].copy(), "y": np.array(rows)}


def mixed(batch: dict[str, Any], rng: np.random.Generator) -> None:
    """Mix each row with another, as MixUp does."""
    order = rng.permutation(len(batch["y"]))
    batch["x"] += batch["x"][order] * rng.random(dtype=np.float32)
    batch["y"][:] = batch["y"][order]


def mixed_anew(batch: dict[str, Any], rng: np.random.Generator) -> Any:
    """Return the same as another batch, of whose arrays one lies in the slot."""
    copies = {key: value.copy() for key, value in batch.items()}
    mixed(copies, rng)
    return {"x": copies["x"], "y": copies["y"]}


COLUMNS = {"x": X, "y": np.arange(LENGTH)}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "samples": (OneByOne(), {"batch_size": 7, "shuffle": True}),
    "many": (Many(), {"batch_size": 7, "shuffle": True}),
    "written": (Written(), {"batch_size": 7, "shuffle": True}),
    "arrays": (COLUMNS, {"batch_size": 7, "shuffle": True}),
    "stream": (Stream(), {"batch_size": 7}),
    "mix": (Mix([OneByOne(), COLUMNS]), {"batch_size": 7, "shuffle": True}),
    "lists": (OneByOne(), {"batch_sampler": [[3, 1, 4], [1], [5, 9]]}),
    "whole": (Whole(), {"batch_size": None, "shuffle": True}),
}


def mixed_batches(kind: str, function: Any, **settings: Any) -> list[Any]:
    """Return the batches of two epochs."""
    dataset, own = KINDS[kind]
    with Loader(dataset, seed=5, copy=True, batch_transform=function, **own, **settings) as loader:
        return [content(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_transformed_alike_everywhere(kind: str) -> None:
    """A batch is changed once, with random numbers of its own, whatever makes it."""
    here = mixed_batches(kind, mixed, workers=0)
    assert mixed_batches(kind, mixed_anew, workers=0) == here
    plain = mixed_batches(kind, None, workers=0)
    assert len(here) == len(plain)
    for batch, other in zip(here, plain, strict=True):
        assert sorted(batch[1][1]) == sorted(other[1][1])
    assert here != plain
    for way in ("two", "threads", "process"):
        assert mixed_batches(kind, mixed, **WAYS[way]) == here, way


def test_a_batch_draws_by_its_samples() -> None:
    """Its random numbers are those of seed, epoch and its samples in their order.

    Not of workers, slots or place.
    """

    def drawn(batch: dict[str, Any], rng: np.random.Generator) -> None:
        batch["x"][:, 0] = rng.random(dtype=np.float32)
        batch["x"][:, 1] = ringfeed.rng().random(
            dtype=np.float32
        )  # the same generator, one step on

    def numbers(
        lists: list[list[int]], epoch: int = 0, **settings: Any
    ) -> list[tuple[float, float]]:
        loader = Loader(
            OneByOne(), batch_sampler=lists, max_batch_size=3, batch_transform=drawn, **settings
        )
        with loader:
            loader.set_epoch(epoch)
            return [(float(batch["x"][0, 0]), float(batch["x"][0, 1])) for batch in loader]

    found = numbers([[1, 2, 3], [2, 1, 3], [3], [1, 2]], workers=0)
    assert len({*found}) == 4
    assert all(first != second for first, second in found)
    assert numbers([[3], [1, 2, 3]], workers=2, slots=3) == [found[2], found[0]]
    assert numbers([[3]], seed=1, workers=0) != found[2:3] != numbers([[3]], epoch=1, workers=0)


def test_a_batch_is_changed_in_the_slot_after_its_samples() -> None:
    """A batch_transform gets the batch as transform has left its samples."""
    given = []

    def keep(batch: Any) -> None:
        assert np.array_equal(batch, X + 1)
        given.append(batch)

    settings: dict[str, Any] = {"batch_size": LENGTH, "workers": 0}
    with Loader(X, transform=lambda row: row + 1, batch_transform=keep, **settings) as loader:
        (batch,) = loader
        assert np.shares_memory(given[0], batch)


def test_one_worker_makes_a_batch() -> None:
    """With a batch_transform the default is the slots of whole batches, else four."""
    with Loader(X, batch_size=4, workers=5, batch_transform=lambda _: None) as loader:
        assert (loader.plan.slots, loader.plan.layout.cells) == (7, 1)
    with Loader(X, batch_size=4, workers=5) as loader:
        assert (loader.plan.slots, loader.plan.layout.cells) == (4, 4)


def test_batches_that_are_drawn_by_priority() -> None:
    """Under a PrioritizedSampler samples are changed, but not their numbers and weights."""

    def emptied(batch: dict[str, Any]) -> None:
        batch["x"][:] = len(batch)

    sampler = PrioritizedSampler(LENGTH)
    with Loader(
        OneByOne(), batch_size=8, sampler=sampler, workers=1, batch_transform=emptied
    ) as loader:
        sample, numbers, weights = next(iter(loader))
        assert np.array_equal(sample["x"], np.full((8, 3), 2))
        assert np.array_equal(sample["y"], numbers)
        assert weights.dtype == np.float32


def test_resumed_batches_are_those_of_the_whole_run() -> None:
    """Gone on with amid an epoch, the rest of the batches are the same to the last bit."""
    settings: dict[str, Any] = {
        "batch_size": 7,
        "shuffle": True,
        "copy": True,
        "batch_transform": mixed,
    }
    with Loader(OneByOne(), workers=0, **settings) as loader:
        whole = [content(batch) for batch in loader]
    with Loader(OneByOne(), workers=2, **settings) as loader:
        batches = iter(loader)
        found = [content(next(batches)) for _ in range(2)]
        state = loader.state_dict()
    with Loader(OneByOne(), workers=0, **settings) as loader:
        loader.load_state_dict(state)
        assert found + [content(batch) for batch in loader] == whole


def spoilt(batch: dict[str, Any]) -> None:
    """Raise for the batch of one sample."""
    if 11 in batch["y"]:
        raise ValueError("eleven")


@pytest.mark.parametrize("way", ["here", "two", "threads"])
def test_a_batch_transform_that_raises_is_named(way: str) -> None:
    """The error names the batch and the function, and the next batch comes.

    With "skip" the batch is left out.
    """
    settings: dict[str, Any] = {
        "batch_size": 7,
        "batch_transform": spoilt,
        "copy": True,
        **WAYS[way],
    }
    with Loader(OneByOne(), **settings) as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(WorkerError) as caught:
            next(epoch)
        assert (
            str(caught.value)
            == "the batch of dataset[7] and 6 more: batch_transform raised ValueError: eleven"
        )
        assert type(caught.value.__cause__) is ValueError
        assert len([*epoch]) == 4
    with Loader(OneByOne(), on_error="skip", **settings) as loader:
        assert len([*loader]) == 5
        assert sorted(loader.stats().skipped) == [*range(7, 14)]
    with (
        Loader(Whole(), **{**settings, "batch_size": None}) as loader,
        pytest.raises(WorkerError) as caught,
    ):
        assert len([*loader]) == 6
    assert str(caught.value) == "the batch of dataset[1]: batch_transform raised ValueError: eleven"


class Poisoned(OneByOne):
    """The same, but for a sample that raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            raise ValueError("eleven")
        return super().__getitem__(index)


@pytest.mark.parametrize("way", ["here", "two"])
def test_a_batch_without_a_failed_sample(way: str) -> None:
    """With "skip" a batch_transform is given the samples that there are.

    Else it is not called for the batch.
    """
    seen = []

    def doubled(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["y"].tolist())
        batch["x"] *= 2
        return batch

    settings: dict[str, Any] = {
        "batch_size": LENGTH,
        "batch_transform": doubled,
        "copy": True,
        **WAYS[way],
    }
    with Loader(Poisoned(), on_error="skip", **settings) as loader:
        (batch,) = loader
        assert np.array_equal(batch["x"], np.delete(X, 11, 0) * 2)
        assert loader.stats().skipped == [11]
    assert way != "here" or seen == [np.delete(np.arange(LENGTH), 11).tolist()]
    with Loader(Poisoned(), **settings) as loader:
        assert (
            raised(WorkerError, lambda: next(iter(loader)))
            == "dataset[11] raised ValueError: eleven"
        )
    assert way != "here" or len(seen) == 1


def put_in_place(batch: dict[str, Any]) -> None:
    """Put another array in the place of that in the slot."""
    batch["x"] = batch["x"] * 2


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            put_in_place,
            "dataset[0]: batch['x'] was replaced, expected to be written into; use "
            "batch['x'][...] = in batch_transform",
        ),
        (
            lambda batch: {**batch, "x": batch["x"][:, :2]},
            "dataset[0]: batch['x'] has shape (7, 2), expected (7, 3) as before batch_transform; "
            "change shapes in transform=",
        ),
        (
            lambda batch: {**batch, "y": batch["y"][:4]},
            "dataset[0]: batch['y'] has shape (4,), expected (7,) as before batch_transform; "
            "change shapes in transform=",
        ),
        (
            lambda batch: batch["x"],
            (
                "dataset[0]: batch is of type ndarray, expected a dict; return the same structure "
                "for every index"
            ),
        ),
    ],
)
def test_what_a_batch_transform_returns_is_checked(function: Any, text: str) -> None:
    """What is no batch of the spec, with as many rows, is named."""
    with Loader(OneByOne(), batch_size=7, workers=0, batch_transform=function) as loader:
        assert raised(SpecError, lambda: next(iter(loader))) == text


def test_what_is_no_batch_transform() -> None:
    """It is refused before anything is read."""
    assert raised(TypeError, lambda: Loader(Samples(), batch_transform=3)) == (
        "batch_transform is of type int, expected a function of a batch"
    )
    assert raised(TypeError, lambda: Loader(Samples(), batch_transform=lambda x, y: x + y)) == (
        "batch_transform=<lambda>(x, y) cannot be called as it is to be (missing a required "
        "argument: 'y'), expected a function of a batch, and of rng where it draws random "
        "numbers; give lambda batch: ..."
    )


# ---- worker_init_fn and worker_info ----


class Informed:
    """Samples that say which worker they were made in."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int, int, bool, int]:
        info = ringfeed.worker_info()
        if info is None:
            return -1, -1, -1, False, os.getpid()
        return info.id, info.workers, info.seed, type(info.dataset) is Informed, os.getpid()


def test_a_worker_knows_which_it_is() -> None:
    """In a worker, worker_info() gives its number, the count, a seed of its own and its dataset."""
    for way in (
        {"workers": 2},
        {"workers": 2, "backend": "thread"},
        {"workers": 2, "backend": "fork"},
    ):
        with Loader(Informed(), batch_size=1, copy=True, worker_init_fn=int, **way) as loader:
            rows = [tuple(int(part[0]) for part in batch) for batch in loader]
        assert {row[0] for row in rows} <= {0, 1}
        assert {row[1] for row in rows} == {2}
        assert (
            len({row[:3] for row in rows})
            == len({row[0] for row in rows})
            == len({row[2] for row in rows})
        )
        assert all(0 <= row[2] < 2**32 and row[3] for row in rows)
    assert ringfeed.worker_info() is None
    with Loader(Informed(), batch_size=1, copy=True, workers=0) as loader:
        assert {int(batch[0][0]) for batch in loader} == {-1}


def test_the_dataset_of_a_worker_is_the_users() -> None:
    """What wraps a dataset on its way is not seen."""

    def kinds(sample: Any) -> tuple[Any, bool]:
        found = ringfeed.worker_info()
        if found is None:  # here, to learn the spec
            return sample["x"] + 0, False
        dataset = found.dataset
        return sample["x"] + 0, isinstance(dataset, OneByOne) or (
            isinstance(dataset, tuple) and [type(one) for one in dataset] == [OneByOne, OneByOne]
        )

    for dataset in (OneByOne(), Mix([OneByOne(), OneByOne()])):
        with Loader(dataset, batch_size=7, workers=1, copy=True, transform=kinds) as loader:
            assert all(batch[1].all() for batch in loader)


class Prepared:
    """Samples that say how often their worker was prepared, and end one worker."""

    died = ""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 11 and not os.path.exists(self.died):  # noqa: PTH110 - as above
            open(self.died, "x").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return len(self.__dict__.get("prepared", ())), os.getpid()


def prepare(number: int) -> None:
    """Note in the worker's own dataset that it is prepared."""
    info = ringfeed.worker_info()
    assert info is not None
    assert info.id == number
    info.dataset.__dict__.setdefault("prepared", []).append(number)


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_each_worker_is_prepared_once(method: str, tmp_path: Path) -> None:
    """worker_init_fn runs once in each worker, replacements included, ahead of its first sample."""
    dataset = Prepared()
    dataset.died = str(tmp_path / "died")
    settings: dict[str, Any] = {"workers": 2, "backend": method, "worker_init_fn": prepare}
    with Loader(dataset, batch_size=1, copy=True, **settings) as loader:
        rows = [tuple(int(part[0]) for part in batch) for _ in range(2) for batch in loader]
        wait_until(
            lambda: loader.stats().restarts == 1
        )  # the other worker may have done all that was left
    assert {row[0] for row in rows} == {1}


def test_each_thread_is_prepared_once() -> None:
    """Threads are workers; without workers nothing is prepared."""
    prepared: list[tuple[int, str]] = []

    def note(number: int) -> None:
        prepared.append((number, threading.current_thread().name))

    with Loader(X, batch_size=4, workers=2, backend="thread", worker_init_fn=note) as loader:
        for _ in range(2):
            assert len([None for _ in loader]) == 11
    assert sorted(prepared) == [(0, "ringfeed-0"), (1, "ringfeed-1")]
    with Loader(X, batch_size=4, workers=0, worker_init_fn=note) as loader:
        assert len([None for _ in loader]) == 11
    assert len(prepared) == 2


@pytest.mark.parametrize("way", ["two", "threads", "fork", "process"])
def test_a_worker_that_cannot_be_prepared_is_named(way: str) -> None:
    """What worker_init_fn raises ends the loader, with the user's error behind it."""

    def failing(number: int) -> None:
        raise OSError(f"no licence for {number * 0 + 5}")

    with Loader(X, batch_size=4, worker_init_fn=failing, **WAYS[way]) as loader:
        with pytest.raises(WorkerError) as caught:
            next(iter(loader))
        text = str(caught.value)
    assert re.fullmatch(
        r"a worker could not start: worker_init_fn\([01]\) raised OSError: no licence for 5", text
    ), text
    cause: Any = caught.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    assert type(cause) is OSError


def test_what_is_no_worker_init_fn() -> None:
    """It is refused before anything is read."""
    assert raised(TypeError, lambda: Loader(Samples(), worker_init_fn="seed")) == (
        "worker_init_fn is of type str, expected a function of the number of a worker"
    )
    assert raised(TypeError, lambda: Loader(Samples(), worker_init_fn=lambda: None)) == (
        "worker_init_fn=<lambda>() cannot be called as it is to be (too many positional "
        "arguments), expected a function of the number of a worker; give lambda worker: ..."
    )

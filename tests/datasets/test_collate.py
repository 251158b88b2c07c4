"""`collate_fn=`.

Batches that a function makes of samples, of every kind, in every worker, and what is refused.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from refusing import raised
from ringfeed import Array, Loader, SpecError, WorkerError
from ringfeed.datasets import Interleave, Mix
from ringfeed.loader import stream_of
from ringfeed.orders import Buckets, PrioritizedSampler
from ringfeed.testing import check_resume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringfeed.frameworks.base import LoaderInfo

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
    """Dicts of a row, its number, and a number that was drawn."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "y": index, "drawn": np.float64(ringfeed.rng().random())}


class Written(Samples):
    """The same, which can be written into a slot, too."""

    def read_into(self, index: int, out: dict[str, Any]) -> None:
        for key, value in self[index].items():
            out[key][...] = value


class Plain(Samples):
    """The same, with nothing drawn."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": X[index], "y": index}


class Many(Plain):
    """The same, many at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        return (self[index] for index in indices)


class Stream(Plain):
    """The same, in order."""

    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        return (Plain.__getitem__(self, index) for index in range(LENGTH))


COLUMNS = {"x": X, "y": np.arange(LENGTH)}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "samples": (Samples(), {"batch_size": 7, "shuffle": True}),
    "written": (Written(), {"batch_size": 7, "shuffle": True}),
    "many": (Many(), {"batch_size": 7, "shuffle": True}),
    "arrays": (COLUMNS, {"batch_size": 7, "shuffle": True}),
    "stream": (Stream(), {"batch_size": 7}),
    "interleaved": (Interleave([Stream(), Stream()]), {"batch_size": 7}),
    "mix": (Mix([Plain(), COLUMNS]), {"batch_size": 7, "shuffle": True}),
    "lists": (Samples(), {"batch_sampler": [[3, 1, 4], [1], [5, 9]]}),
    "buckets": (Samples(), {"batch_sampler": Buckets(range(1, LENGTH + 1), max_tokens=90)}),
    "shard": (Samples(), {"batch_size": 7, "shuffle": True, "shard": ringfeed.Shard(1, 3)}),
    "remainder": (Samples(), {"batch_size": 7, "shuffle": True, "drop_remainder": True}),
}


def stacked(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the batch that a loader makes by itself."""
    return {key: np.stack([np.asarray(sample[key]) for sample in samples]) for key in samples[0]}


def batches(dataset: Any, **settings: Any) -> list[Any]:
    """Return the batches of two epochs."""
    with Loader(dataset, **{"seed": 5, "copy": True, **settings}) as loader:
        return [
            {key: (str(leaf.dtype), leaf.tolist()) for key, leaf in one.items()}
            for _ in "ab"
            for one in loader
        ]


# ---- what comes ----


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_stacks_changes_nothing(kind: str) -> None:
    """Its batches and their random numbers are those of a loader without it."""
    dataset, settings = KINDS[kind]
    plain = batches(dataset, workers=0, **settings)
    ways = WAYS if kind == "samples" else ("here", "two")
    for way in ways:
        assert batches(dataset, collate_fn=stacked, **settings, **WAYS[way]) == plain, way


def test_one_worker_makes_a_batch() -> None:
    """A batch is one ticket, with as many slots as whole batches have; its rows are not fixed."""
    with Loader(X, batch_size=4, workers=5, drop_remainder=True, collate_fn=np.stack) as loader:
        assert (loader.plan.slots, loader.plan.layout.cells, loader.plan.layout.rows) == (7, 1, 4)
        info: LoaderInfo = stream_of(loader).info
        assert (info.max_rows, info.fixed_rows) == (4, None)


@pytest.mark.parametrize("way", ["here", "threads"])
def test_rows_need_not_be_samples(way: str) -> None:
    """Fewer rows, or more up to max_batch_size.

    The spec is that of the first batch, or the one that is given.
    """

    def of_even(samples: list[Any]) -> Any:
        return np.stack([row for row in samples if row[0] % 2 == 0])

    settings: dict[str, Any] = {"batch_size": 5, "copy": True, **WAYS[way]}
    with Loader(X, collate_fn=of_even, **settings) as loader:
        assert loader.plan.layout.rows == 3
        assert np.array_equal(np.concatenate([*loader]), X[::2])
    spec = Array((3,), "float32")
    with Loader(X, collate_fn=of_even, spec=spec, **settings) as loader:
        assert loader.plan.layout.rows == 5
        assert np.array_equal(np.concatenate([*loader]), X[::2])
    with Loader(
        X, collate_fn=lambda rows: np.repeat(rows, len(rows), axis=0), max_batch_size=30, **settings
    ) as loader:
        assert loader.plan.layout.rows == 30
        assert [len(batch) for batch in loader] == [25] * 8 + [1]


@pytest.mark.parametrize("way", ["here", "threads"])
def test_batches_that_are_padded_to_their_longest(way: str) -> None:
    """Samples may differ in length, or be objects that no slot could hold."""

    class Texts:
        def __len__(self) -> int:
            return 23

        def __getitem__(self, index: int) -> tuple[str, int]:
            return "x" * (index % 7 + 1), index

    def padded(samples: list[tuple[str, int]]) -> tuple[Any, Any]:
        longest = max(len(text) for text, _ in samples)
        rows = [np.frombuffer(text.ljust(longest).encode(), np.uint8) for text, _ in samples]
        return np.stack(rows), np.array([number for _, number in samples])

    spec = Array((7,), "uint8", variable=(0,)), Array((), "int64")
    with Loader(
        Texts(), batch_size=4, collate_fn=padded, spec=spec, copy=True, **WAYS[way]
    ) as loader:
        found = [*loader]
    assert [batch[0].shape for batch in found] == [(4, 4), (4, 7), (4, 5), (4, 7), (4, 6), (3, 7)]
    assert np.concatenate([batch[1] for batch in found]).tolist() == [*range(23)]
    assert all(((batch[0] == ord("x")).sum(1) == batch[1] % 7 + 1).all() for batch in found)


@pytest.mark.parametrize("way", ["here", "threads"])
def test_it_stands_between_transform_and_batch_transform(way: str) -> None:
    """Samples are changed before it, in place or not, and the dataset stays.

    The batch in the slot after it.
    """

    def in_place(sample: dict[str, Any]) -> None:
        sample["x"] += 1
        sample["y"][...] *= 2

    def anew(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": sample["x"] + 1, "y": 2 * sample["y"]}

    def halved(batch: dict[str, Any]) -> None:
        assert batch["x"].flags.writeable
        batch["x"] /= 2

    before = X.copy()
    for dataset in (Plain(), {"x": X, "y": np.arange(LENGTH)}):
        for transform in (in_place, anew):
            given = {"transform": transform, "collate_fn": stacked, "batch_transform": halved}
            (batch, _) = batches(dataset, batch_size=LENGTH, **given, **WAYS[way])
            assert batch["x"] == ("float32", ((before + 1) / 2).tolist())
            assert batch["y"][1] == [*range(0, 2 * LENGTH, 2)]
    assert np.array_equal(before, X)


@pytest.mark.parametrize("way", ["here", "threads"])
def test_its_random_numbers_are_those_of_the_batch(way: str) -> None:
    """They depend on seed, epoch and the samples; they go on in batch_transform."""

    def drawn(_: Any, rng: np.random.Generator) -> Any:
        return np.array([[rng.random(), ringfeed.rng().random(), 0]])

    def more(batch: Any, rng: np.random.Generator) -> None:
        batch[:, 2] = rng.random()

    def alone(batch: Any, rng: np.random.Generator) -> None:
        batch[0] = rng.random(3)

    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True, "copy": True, **WAYS[way]}
    with Loader(X, collate_fn=drawn, batch_transform=more, **settings) as loader:
        found = [batch[0].tolist() for _ in range(2) for batch in loader]
    assert len({*map(tuple, found)}) == 12
    with Loader(X.astype(np.float64), batch_transform=alone, **settings) as loader:
        assert [batch[0].tolist() for _ in range(2) for batch in loader] == found


@pytest.mark.parametrize("way", ["here", "threads"])
def test_whole_batches_are_converted(way: str) -> None:
    """With batch_size=None each dataset[i] goes through it; None is left out, by either."""
    given = [[3, 1, 4], [1], None, [5, 9], [2, 6]]

    class Lists:
        def __len__(self) -> int:
            return len(given)

        def __getitem__(self, index: int) -> Any:
            return given[index]

    def converted(numbers: list[int]) -> Any:
        return None if numbers == [2, 6] else np.array(numbers)

    for dataset in (Lists(), lambda: iter(given)):
        with Loader(
            dataset, batch_size=None, collate_fn=converted, copy=True, **WAYS[way]
        ) as loader:
            assert [batch.tolist() for batch in loader] == [[3, 1, 4], [1], [5, 9]]
            assert loader.stats().none_batches == 2


def test_resumed_batches_are_those_of_the_whole_run() -> None:
    """Cut anywhere and gone on with, also where the rows are not as many as the samples."""

    def uneven(samples: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
        rows = [sample for sample in samples if sample["y"] % 3]
        batch = stacked(rows)
        batch["drawn"] += rng.random(len(rows))
        return batch

    check_resume(
        lambda: Loader(
            Samples(), batch_size=7, shuffle=True, workers=0, max_batch_size=7, collate_fn=uneven
        ),
        cuts=4,
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchs_own(capfd: pytest.CaptureFixture[str]) -> None:
    """default_collate gives what a plain loader gives.

    Workers import torch for it without a warning.
    """
    import torch  # noqa: PLC0415 - where it is installed

    plain = batches(Plain(), batch_size=7, workers=0)
    collate: Any = torch.utils.data.default_collate
    for way in ("here", "two"):
        assert batches(Plain(), batch_size=7, collate_fn=collate, **WAYS[way]) == plain
    assert not capfd.readouterr().err


def test_a_first_batch_may_be_short() -> None:
    """A first iterable may have fewer elements than a batch, and others full batches."""
    with Loader(
        Interleave([X[:3].__iter__, Stream10()]), batch_size=8, collate_fn=np.stack, workers=0
    ) as loader:
        assert loader.plan.layout.rows == 8
        assert [len(batch) for batch in loader] == [3, 8, 2]
    with Loader(X[:3], batch_size=8, collate_fn=np.stack, workers=0) as loader:
        assert [len(batch) for batch in loader] == [3]


class Stream10:
    """Ten rows in order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(X[:10])


# ---- what goes wrong ----


class Poisoned(Plain):
    """The same, but for a sample that raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            raise ValueError("eleven")
        return super().__getitem__(index)


class PoisonedMany(Poisoned, Many):
    """The same, many at once."""


@pytest.mark.parametrize("way", ["here", "two"])
@pytest.mark.parametrize("dataset", [Poisoned(), PoisonedMany()])
def test_a_sample_that_fails_is_named(dataset: Any, way: str) -> None:
    """It is the sample that is at fault; with "skip" the batch is made of the others."""
    settings: dict[str, Any] = {"batch_size": 7, "collate_fn": stacked, "copy": True, **WAYS[way]}
    with Loader(dataset, **settings) as loader:
        epoch = iter(loader)
        next(epoch)
        assert raised(WorkerError, lambda: next(epoch)) == "dataset[11] raised ValueError: eleven"
        assert len([*epoch]) == 4
    with Loader(dataset, on_error="skip", **settings) as loader:
        found = [batch["y"].tolist() for batch in loader]
        assert found[1] == [7, 8, 9, 10, 12, 13]
        assert [*chain(*found)] == [number for number in range(LENGTH) if number != 11]
        assert loader.stats().skipped == [11]


def refusing(batch: Any) -> Any:
    """Refuse a batch that is shorter."""
    if len(batch) < 5:
        message = "too short"
        raise ValueError(message)
    return np.asarray(batch)


@pytest.mark.parametrize("function", ["collate_fn", "batch_transform"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("way", ["here", "two"])
def test_a_last_batch_of_an_iterable_that_fails_is_named(
    way: str, on_error: Any, function: str
) -> None:
    """Its error is raised in its place, though the iterable has ended within it.

    The epoch ends after it.
    """
    given: dict[str, Any] = {function: refusing, "on_error": on_error, **WAYS[way]}
    with Loader(lambda: map(np.int64, range(12)), batch_size=5, **given) as loader:
        for _ in range(2):
            epoch = iter(loader)
            assert [next(epoch).tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
            if on_error == "raise":
                assert raised(WorkerError, lambda: next(epoch)).endswith(  # noqa: B023
                    f"{function} raised ValueError: too short"
                )
            assert [*epoch] == []


class Miscounted(Many):
    """Forgets a sample where it is asked for many."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in (indices if len(indices) == 1 else indices[1:])]


def test_samples_that_are_read_again_come_once() -> None:
    """What was given for many in vain is not in the batch."""
    with Loader(Miscounted(), batch_size=7, collate_fn=stacked, workers=0, copy=True) as loader:
        assert [batch["y"].tolist() for batch in loader][:2] == [[*range(7)], [*range(7, 14)]]


def spoilt(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Raise for the batch of one sample."""
    if any(sample["y"] == 11 for sample in samples):
        raise ValueError("eleven")
    return stacked(samples)


@pytest.mark.parametrize("way", ["here", "two"])
def test_a_batch_that_fails_is_named(way: str) -> None:
    """The error names its samples and the function; with "skip" the batch is left out."""
    settings: dict[str, Any] = {"collate_fn": spoilt, "copy": True, **WAYS[way]}
    with Loader(Plain(), batch_size=7, **settings) as loader:
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(WorkerError) as caught:
            next(epoch)
        assert str(caught.value) == (
            "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): collate_fn raised ValueError: "
            "eleven"
        )
        assert type(caught.value.__cause__) is ValueError
        assert len([*epoch]) == 4
    with Loader(Plain(), batch_size=11, on_error="skip", **settings) as loader:
        assert [batch["y"][0] for batch in loader] == [0, 22, 33]
        assert sorted(loader.stats().skipped) == [*range(11, 22)]
    with Loader(Plain(), batch_size=11, **settings) as loader:
        assert raised(WorkerError, lambda: [*loader]) == (
            "the batch of dataset[i] (i = 11, 12, 13, 14, 15, 16, 17, 18) and 3 more: collate_fn "
            "raised ValueError: eleven"
        )


@pytest.mark.parametrize("way", ["here", "two"])
def test_a_function_that_exits_is_named(way: str) -> None:
    """sys.exit() in it is an error like any other, and ends no training.

    Nor in the first batch, read for the spec.
    """

    def ending(samples: list[Any]) -> Any:
        if samples[0]["y"] in {0, 7}:
            sys.exit(0)
        return stacked(samples)

    text = "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): collate_fn raised SystemExit: 0"
    spec = Loader(Plain(), batch_size=7, collate_fn=stacked, workers=0).spec
    with Loader(
        Plain(), batch_size=7, collate_fn=ending, spec=spec, copy=True, **WAYS[way]
    ) as loader:
        epoch = iter(loader)
        assert raised(WorkerError, lambda: next(epoch)) == text.replace(
            "7, 8, 9, 10, 11, 12, 13", "0, 1, 2, 3, 4, 5, 6"
        )
        assert raised(WorkerError, lambda: next(epoch)) == text
        assert len([*epoch]) == 4
    assert raised(
        WorkerError, lambda: Loader(Plain(), batch_size=7, collate_fn=ending, **WAYS[way])
    ) == (
        "the batch of dataset[i] (i = 0, 1, 2, 3, 4, 5, 6), made for the spec: collate_fn raised "
        "SystemExit: 0"
    )


@pytest.mark.parametrize("way", ["here", "threads"])
def test_it_may_leave_a_batch_out(way: str) -> None:
    """None, or no rows."""

    def chosen(rows: list[Any]) -> Any:
        return None if rows[0][0] == 21 else np.stack(rows)[: 0 if rows[0][0] == 42 else None]

    with Loader(X, batch_size=7, collate_fn=chosen, copy=True, **WAYS[way]) as loader:
        assert [len(batch) for batch in loader] == [7, 0, 7, 7, 6]
        assert (loader.stats().none_batches, loader.stats().skipped) == (1, [])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_end_of_an_iterable_is_found_beside_failed_samples(on_error: str) -> None:
    """The samples before it are a shorter batch, or none with drop_remainder."""
    settings: dict[str, Any] = {
        "batch_size": 7,
        "collate_fn": stacked,
        "copy": True,
        "workers": 1,
        "backend": "thread",
    }

    def late(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["y"] == 38 and on_error == "skip":
            raise ValueError("late")
        return {**sample, "x": sample["x"] + 0}

    for drop in (False, True):
        with Loader(
            Stream(), transform=late, on_error=on_error, drop_remainder=drop, **settings
        ) as loader:
            sizes = [len(batch["y"]) for batch in loader]
            assert sizes == [7] * 5 + ([] if drop else [6 if on_error == "raise" else 5])
            assert [len(batch["y"]) for batch in loader] == sizes


def test_a_worker_that_dies_in_it_costs_nothing(tmp_path: Path) -> None:
    """The batch is made again by another."""
    died = str(tmp_path / "died")

    def mortal(samples: list[dict[str, Any]]) -> dict[str, Any]:
        if any(sample["y"] == 11 for sample in samples) and not os.path.exists(died):  # noqa: PTH110 - small to send
            open(died, "x").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return stacked(samples)

    plain = batches(Plain(), batch_size=7, shuffle=True, workers=0)
    assert (
        batches(Plain(), batch_size=7, shuffle=True, workers=2, spec=spec_of(), collate_fn=mortal)
        == plain
    )


def spec_of() -> dict[str, Array]:
    """Return the spec of plain samples."""
    return {"x": Array((3,), "float32"), "y": Array((), "int64")}


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda samples: {
                **stacked(samples),
                "x": np.zeros((7, 3 - (samples[0]["y"] > 0)), np.float32),
            },
            "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): batch['x'] has rows of shape "
            "(2,), expected (3,); every sample must have the shape of the spec: crop, pad or "
            "resize it in collate_fn; or allow many shapes: spec= with variable= and "
            "max_batch_size=",
        ),
        (
            lambda samples: {
                **stacked(samples),
                "x": np.zeros((7 + (samples[0]["y"] > 0), 3), np.float32),
            },
            "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): batch['x'] has 8 rows, "
            "expected at most 7; return smaller batches, or raise max_batch_size",
        ),
        (
            lambda samples: {
                **stacked(samples),
                "y": np.zeros(7 - (samples[0]["y"] > 0), np.int64),
            },
            "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): batch['y'] has 6 rows, "
            "expected 7 as in the leaves before it; give all leaves of a batch the same number of "
            "rows",
        ),
        (
            lambda samples: stacked(samples) if samples[0]["y"] == 0 else samples,
            "the batch of dataset[i] (i = 7, 8, 9, 10, 11, 12, 13): batch is a list of 7, expected "
            "a dict; return the same structure for every index",
        ),
    ],
)
@pytest.mark.parametrize("way", ["here", "threads"])
def test_what_it_returns_is_checked(function: Any, text: str, way: str) -> None:
    """What is no batch of the spec is named by the samples that it is of."""
    with Loader(Plain(), batch_size=7, collate_fn=function, **WAYS[way]) as loader:
        assert raised(SpecError, lambda: [*loader]) == text


def test_what_it_returns_first_is_checked() -> None:
    """With the first batch, which is made at once.

    As it is raised, or with "skip" with a way out.
    """

    def failing(_: Any) -> Any:
        raise ValueError("never")

    assert raised(ValueError, lambda: Loader(Plain(), batch_size=3, collate_fn=failing)) == "never"
    where = "the batch of dataset[i] (i = 0, 1, 2)"
    assert raised(
        SpecError, lambda: Loader(Plain(), batch_size=3, collate_fn=failing, on_error="skip")
    ) == (
        f"{where}, made for the spec: collate_fn raised ValueError: never; on_error='skip' cannot "
        "leave it out before the spec is known: give spec="
    )
    assert raised(SpecError, lambda: Loader(Plain(), batch_size=3, collate_fn=lambda _: None)) == (
        f"{where}: collate_fn returned None, so there is no batch to infer the spec from; give "
        "spec="
    )
    assert raised(
        SpecError, lambda: Loader(Plain(), batch_size=3, collate_fn=lambda rows: rows)
    ) == (
        f"{where}: batch[0]['y'] is of type int, expected an array with a leading row axis; return "
        "arrays with a row axis from collate_fn"
    )
    assert raised(
        ValueError, lambda: Loader(Plain(), batch_size=3, collate_fn=stacked, max_batch_size=2)
    ) == (f"max_batch_size=2, but {where} has 3 rows; raise it")


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        (
            {"collate_fn": 3},
            TypeError,
            "collate_fn is of type int, expected a function of a list of samples",
        ),
        (
            {"collate_fn": lambda images, labels: (images, labels)},
            TypeError,
            "collate_fn=<lambda>(images, labels) cannot be called as it is to be (missing a "
            "required argument: 'labels'), expected a function of a list of samples, and of rng "
            "where it draws random numbers; give lambda samples: ...",
        ),
        (
            {"collate_fn": stacked, "sampler": PrioritizedSampler(LENGTH)},
            ValueError,
            "PrioritizedSampler has an index and a weight for each row, and collate_fn= may make "
            "any rows of the samples; give transform= or batch_transform=",
        ),
        (
            {"max_batch_size": 7},
            ValueError,
            "max_batch_size=7 is for datasets of whole batches, for batch_sampler= and for "
            "collate_fn=; with batch_size= alone leave it out",
        ),
    ],
)
def test_what_cannot_be(settings: Any, kind: type[Exception], text: str) -> None:
    """It is refused before anything is read."""
    assert raised(kind, lambda: Loader(Plain(), **settings)) == text

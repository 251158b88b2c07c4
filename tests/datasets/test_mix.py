"""`Mix`.

Samples of several datasets by weight, through every kind of worker, with errors that name them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import (
    SAID,
    Batches,
    Bulk,
    Imported,
    Misbehaving,
    Oracle,
    ReadInto,
    Reshuffling,
    drain,
)
from refusing import raised
from ringfeed import Array, Loader, SpecError
from ringfeed.datasets import Mix
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from watching import lose_patience, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "one": {"workers": 1},
    "two": {"workers": 2},
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 2, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}
ALIKE = (
    "a Mix needs samples of one structure, shape and dtype: convert those of one dataset in its "
    "__getitem__"
)
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Named:
    """Samples that say which dataset they are of, which they are, and what they have drawn."""

    def __init__(self, name: int, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        return self.name, index, float(ringfeed.rng().random())


class Mortal(Named):
    """Ends the first worker that comes to one of its samples."""

    mark: Path

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        if index == 5 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def three(**settings: Any) -> Mix:
    """Return a mix of three datasets of unlike lengths."""
    return Mix([Named(0, 60), Named(1, 30), Named(2, 7)], **settings)


def rows_of(loader: Loader, epochs: int = 1) -> list[list[Any]]:
    """Return all samples of some epochs, batch by batch."""
    return [np.stack(batch, 1).tolist() for _ in range(epochs) for batch in loader]


# ---- what comes ----


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weights": [0.5, 0.3, 0.2], "stop": "all"},
        {"weights": [2, 1, 1], "stop": "all", "per_batch": True},
    ],
)
def test_the_same_bits_from_all_workers(settings: dict[str, Any]) -> None:
    """Order and random numbers depend on seed, epoch and position alone."""
    found = {}
    for name, way in WAYS.items():
        with Loader(
            three(**settings), batch_size=8, shuffle=True, seed=3, copy=True, **way
        ) as loader:
            found[name] = rows_of(loader, 2)
            assert len(found[name]) == 2 * len(loader)
    assert all(rows == found["here"] for rows in found.values())
    assert found["here"][: len(found["here"]) // 2] != found["here"][len(found["here"]) // 2 :]


def test_each_sample_once_without_weights() -> None:
    """Without weights an epoch is all samples, each dataset's spread over all of it."""
    with Loader(three(), batch_size=97, workers=0) as loader:
        rows = np.array(rows_of(loader)[0])
    for name, length in enumerate((60, 30, 7)):
        places = np.flatnonzero(rows[:, 0] == name)
        assert rows[places, 1].tolist() == [*range(length)]
        assert np.diff(places).max() <= 2 * 97 / length + 1


def test_a_batch_has_its_quotas() -> None:
    """With per_batch=True and whole shares each batch has the same rows of each dataset."""
    mix = Mix([Named(0, 1000), Named(1, 1000), Named(2, 1000)], [0.5, 0.25, 0.25], per_batch=True)
    with Loader(mix, batch_size=32, workers=0, shuffle=True, drop_remainder=True) as loader:
        assert [np.bincount(names).tolist() for names, _, _ in loader] == [[16, 8, 8]] * len(loader)


def test_no_two_samples_share_random_numbers() -> None:
    """Sample 0 of each dataset, and each pass of an epoch over it, has a stream of its own."""
    mix = Mix([Named(0, 3), Named(1, 3)], [1, 2], stop="all")
    with Loader(mix, batch_size=9, workers=0) as loader:
        (batch,) = rows_of(loader)
    assert [row[:2] for row in batch].count([1, 0]) == 2
    assert len({row[2] for row in batch}) == 9


def test_a_worker_that_dies_costs_nothing(tmp_path: Path) -> None:
    """A worker killed amid a mix is replaced; the batches are those of an undisturbed run."""
    mortal = Mortal(1, 30)
    mortal.mark = tmp_path / "died"
    mix = Mix([Named(0, 60), mortal], [0.6, 0.4], stop="all")
    with Loader(mix, batch_size=8, shuffle=True, workers=2, copy=True) as loader:
        found = rows_of(loader)
        wait_until(lambda: loader.stats().restarts == 1)
    with Loader(mix, batch_size=8, shuffle=True, workers=0, copy=True) as loader:
        assert rows_of(loader) == found


# ---- how datasets are read ----

IMAGE = {"image": Array((3, 4), "uint8"), "label": Array((), "int64")}


@pytest.mark.parametrize(
    ("datasets", "method"),
    [
        ([Bulk(9), Bulk(5)], "__getitems__"),
        ([Bulk(9), Oracle(5)], "__getitem__"),
        (
            [
                Oracle(9),
                tuple(
                    np.stack(leaf)
                    for leaf in zip(*map(Oracle(9).__getitem__, range(5)), strict=True)
                ),
            ],
            "",
        ),
        ([Oracle(9), [*map(Oracle(9).__getitem__, range(5))]], "__getitem__"),
    ],
    ids=["bulk", "some bulk", "arrays", "list"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_of_any_kind_are_mixed(datasets: list[Any], method: str, workers: int) -> None:
    """Rows of arrays, lists and objects with faster methods arrive alike."""
    assert open_source(Mix(datasets), Terms(4)).method == (method or "__getitem__")  # type: ignore[attr-defined]
    with Loader(Mix(datasets), batch_size=4, workers=workers) as loader:
        assert sorted(drain(loader)) == sorted([*range(9), *range(5)])


def test_read_into_of_all_datasets() -> None:
    """Where every dataset writes its samples itself, the slot is all that they are written to."""
    with Loader(Mix([ReadInto(), ReadInto()]), batch_size=60, workers=0, spec=IMAGE) as loader:
        (batch,) = [{name: leaf.copy() for name, leaf in batch.items()} for batch in loader]
    assert sorted(batch["label"].tolist()) == sorted([*range(30)] * 2)
    assert (batch["image"] == batch["label"][:, None, None]).all()


def test_a_cast_where_one_dataset_has_no_read_into() -> None:
    """Samples are converted on their way into the slot where ringfeed itself writes them."""
    spec = {"image": Array((3, 4), "float32", scale=0.5), "label": Array((), "int64")}
    samples = [{"image": np.full((3, 4), 2, np.uint8), "label": 7}]
    with Loader(Mix([ReadInto(), samples]), batch_size=31, workers=0, spec=spec) as loader:
        ((images, labels),) = [(batch["image"].copy(), batch["label"].copy()) for batch in loader]
    assert (images[:, 0, 0] == np.where(labels == 7, images[:, 0, 0], labels * 0.5)).all()


def test_columns_of_any_structure() -> None:
    """Nested columns are read row by row, and the order of their keys may differ."""
    one = {"x": (np.arange(4), np.ones((4, 2))), "y": np.arange(4.0)}
    other = {"y": np.arange(3.0), "x": (np.arange(3), np.zeros((3, 2)))}
    with Loader(Mix([one, other]), batch_size=7, workers=1) as loader:
        for batch in loader:
            assert batch["x"][0].tolist() == batch["y"].tolist()
            assert sorted(batch["y"].tolist()) == [0, 0, 1, 1, 2, 2, 3]
            assert batch["x"][1].sum() == 8


def test_whole_batches_are_mixed() -> None:
    """With batch_size=None each element is a batch of one dataset, with its own rows."""
    with Loader(
        Mix([Batches(3), Batches(2)], [1, 1], stop="all"), batch_size=None, workers=1
    ) as loader:
        found = [(int(rest[0, 0]), len(numbers)) for numbers, rest in loader]
    assert sorted(found) == [(0, 6), (0, 6), (0, 6), (1, 4), (1, 6), (2, 4)]


class Gaps(Batches):
    """Has no batch 1."""

    def __getitem__(self, index: int) -> Any:
        return None if index == 1 else super().__getitem__(index)


def test_batches_of_none_are_left_out() -> None:
    """What a dataset of whole batches leaves out is left out of a mix, too."""
    with Loader(Mix([Batches(3), Gaps(3)]), batch_size=None, workers=0) as loader:
        assert len([len(batch) for batch in loader]) == 5
        assert loader.stats().none_batches == 1


def test_hooks_of_all_datasets_run() -> None:
    """Each dataset's hooks run once an epoch; what they change, even a length, reaches workers."""
    changing = Reshuffling()
    with Loader(Mix([[100, 101, 102], changing]), batch_size=50, workers=1) as loader:
        for epoch in range(3):
            (batch,) = [batch.tolist() for batch in loader]
            kept = range(4 * ((epoch + 1) // 2), 40 - 4 * (epoch // 2))
            assert sorted(batch) == [*kept, 100, 101, 102]
    assert (changing.begun, changing.ended) == (3, 3)


def test_a_worker_imports_only_what_reads_a_mix() -> None:
    """No worker imports samplers, or other kinds of dataset than the arrays in the mix."""
    settings: Any = {"workers": 1, "backend": "spawn", "spec": Array((SAID,), "uint8")}
    with Loader(Mix([Imported(), Imported()]), batch_size=1, **settings) as loader:
        for batch in loader:
            assert batch.tobytes().decode().split() == [
                "datasets.arrays",
                "datasets.base",
                "datasets.mix",
                "datasets.reader",
                "datasets.terms",
                "datasets.worker_info",
                "orders.rng",
            ]


def test_a_source_travels_without_its_datasets() -> None:
    """What each worker is told of a mix is small, and names none of its datasets."""
    source = open_source(Mix([Oracle(5), np.zeros((5, 10**6))]), Terms(2, Oracle.SPEC[1]))
    assert source.length() == 10
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    found = pickle.loads(pickled)
    assert found.describe(7) == source.describe(7) == "dataset 1[2]"
    assert not {"given", "dataset", "terms", "members", "elements"} & vars(found).keys()
    assert not source.without_dataset().members


def test_what_cannot_be_sent_is_named() -> None:
    """The path to what cannot travel leads through the mix as the user has it."""
    bad = Named(0, 4)
    bad.handle = (number for number in range(3))  # type: ignore[attr-defined]
    text = raised(
        ringfeed.ShipError, lambda: Loader(Mix([Oracle(4), bad]), workers=1, spec=Oracle.SPEC)
    )
    assert text.startswith("dataset.datasets[1].handle ")


# ---- where it was ----


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weights": [0.5, 0.3, 0.2], "stop": "all", "per_batch": True},
        {"weights": lambda _, batch: [1 + batch % 3, 1, 0.5], "stop": "all"},
    ],
    ids=["lengths", "quotas", "function"],
)
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_loader_goes_on_where_it_was(settings: dict[str, Any], cut: int) -> None:
    """The rest of the epoch, and the next, are those of an undisturbed run, in other workers."""
    with Loader(three(**settings), batch_size=8, shuffle=True, workers=0, copy=True) as loader:
        whole = rows_of(loader, 2)
    with Loader(three(**settings), batch_size=8, shuffle=True, workers=0, copy=True) as loader:
        first = [np.stack(batch, 1).tolist() for batch in islice(loader, cut)]
        state = loader.state_dict()
    assert len(json.dumps(state)) < 400
    with Loader(three(**settings), batch_size=8, shuffle=True, workers=1, copy=True) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state
        assert first + rows_of(loader, 2) == whole


@pytest.mark.parametrize("per_batch", [False, True])
def test_the_batch_size_may_change(per_batch: bool) -> None:  # noqa: FBT001
    """Each sample of the epoch comes exactly once, in batches of one size and then of another."""
    mix = three(per_batch=per_batch)
    with Loader(mix, batch_size=8, shuffle=True, workers=0) as loader:
        first = [
            tuple(row[:2]) for batch in islice(loader, 3) for row in np.stack(batch, 1).tolist()
        ]
        state = loader.state_dict()
    with Loader(mix, batch_size=5, shuffle=True, workers=0) as loader:
        loader.load_state_dict(state)
        assert loader.remaining == 15
        rest = [tuple(row[:2]) for batch in rows_of(loader) for row in batch]
    assert sorted(first + rest) == [
        (name, index) for name, length in enumerate((60, 30, 7)) for index in range(length)
    ]


def test_ranks_share_a_mix() -> None:
    """Each rank's batches have the quotas, and together the ranks have each sample once."""
    mix, found = Mix([Named(0, 100), Named(1, 50), Named(2, 50)], per_batch=True), []
    for rank in range(4):
        settings: dict[str, Any] = {
            "shard": ringfeed.Shard(rank, 4, "keep"),
            "workers": 0,
            "shuffle": True,
        }
        with Loader(mix, batch_size=8, **settings) as loader:
            batches = [np.stack(batch, 1).tolist() for batch in loader]
        assert [[row[0] for row in batch].count(0) for batch in batches[:6]] == [4] * 6
        found += [tuple(row[:2]) for batch in batches for row in batch]
    assert sorted(found) == [
        (name, index) for name, length in enumerate((100, 50, 50)) for index in range(length)
    ]


def test_a_state_of_another_mix_is_refused() -> None:
    """Other weights are another order."""
    with Loader(three(), workers=0) as loader:
        state = loader.state_dict()
    with Loader(three(weights=[60, 30, 8]), workers=0) as loader:
        text = raised(ringfeed.StateError, lambda: loader.load_state_dict(state))
    assert text.startswith("the state was taken with length 97, and this loader has length ")
    with Loader(three(), workers=0, shuffle=True) as loader:
        text = raised(ringfeed.StateError, lambda: loader.load_state_dict(state))
    assert re.match(
        r"the state was taken with order 'mix first [0-9a-f]{8}', and this loader has order 'mix",
        text,
    )


def test_weights_may_be_set_at_run_time() -> None:
    """New weights of a function reach the loop after the batches that were planned."""
    now = [1, 0]
    mix = Mix([Named(0, 10), Named(1, 10)], lambda _, __: now, stop="never")
    with Loader(mix, batch_size=5, workers=1, slots=2, copy=True) as loader:
        batches = iter(loader)
        assert next(batches)[0].tolist() == [0] * 5
        now[:] = [0, 1]
        names = [next(batches)[0].tolist() for _ in range(5)]
        assert names[3:] == [[1] * 5] * 2
        assert raised(TypeError, lambda: len(loader)) == (
            "the length of this loader is unknown: its Mix goes on without end"
        )


def test_changing_weights_have_no_length() -> None:
    """An epoch of weights that may change ends where a dataset does, and only reading shows it."""
    with Loader(
        Mix([Named(0, 10), Named(1, 10)], lambda _, batch: [1 + batch, 1]), batch_size=4, workers=0
    ) as loader:
        assert raised(TypeError, lambda: len(loader)) == (
            "the length of this loader is unknown: its Mix has weights that may change"
        )
        names = [name for batch in loader for name in batch[0].tolist()]
        assert (names.count(0), names.count(1) > 0) == (10, True)


# ---- errors ----


def mishap(deed: str, **settings: Any) -> Loader:
    """Return a loader of a mix whose dataset 1 does it at its sample 17."""
    spec = settings.pop("spec", Oracle.SPEC)
    return Loader(Mix([Oracle(40), Misbehaving(deed)]), batch_size=80, spec=spec, **settings)


@pytest.mark.parametrize("way", ["here", "one", "threads"])
@pytest.mark.parametrize(
    ("deed", "kind", "text"),
    [
        ("raises", ringfeed.WorkerError, "dataset 1[17] raised KeyError: 'bad seventeen'"),
        (
            "wrong_shape",
            SpecError,
            "dataset 1[17]: sample[0] has shape (5, 8), expected (5, 7); every sample must have "
            "the shape of the spec: crop, pad or resize it in __getitem__; or allow many shapes: "
            "spec= with variable=, form='pad' or form='ragged'",
        ),
        (
            "wrong_structure",
            SpecError,
            (
                "dataset 1[17]: sample is a list of 3, expected a tuple of 3; return the same "
                "structure for every index"
            ),
        ),
    ],
)
def test_a_failed_sample_is_named(way: str, deed: str, kind: type[Exception], text: str) -> None:
    """What a sample does wrong names its dataset and its own number, whichever worker reads it."""
    with mishap(deed, **WAYS[way]) as loader:
        assert raised(kind, lambda: next(iter(loader))) == text


def test_a_sample_that_kills_is_named() -> None:
    """So does the error of a sample that ends its workers."""
    with mishap("dies", workers=1, max_attempts=1) as loader:
        assert raised(ringfeed.WorkerError, lambda: next(iter(loader))) == (
            "dataset 1[17] ended its worker; the last one was killed by SIGKILL; try it with "
            "workers=0"
        )


def test_a_skipped_sample_is_counted_by_its_index() -> None:
    """stats().skipped has the samples of the datasets ahead in front of a sample's number."""
    with mishap("raises", workers=0, on_error="skip") as loader:
        assert [len(batch[0]) for batch in loader] == [79]
        assert loader.stats().skipped == [57]


def test_a_stuck_worker_is_shown() -> None:
    """A StallError says in which sample of which dataset each worker is."""
    loader = mishap("sleeps", workers=1)
    batches = iter(loader)
    wait_until(lambda: loader._runner.engine.observer.worker(0).inside == 57)  # type: ignore[union-attr]
    lose_patience(loader, 0.1)
    lines = raised(ringfeed.StallError, lambda: next(batches)).splitlines()
    assert (
        lines[0]
        == "no batch for 0.1 s: 1 of 1 workers inside dataset 1[17]; raise timeout_s or look there"
    )
    assert re.match(
        r"worker 0 \(.*\): inside dataset 1\[17\], has been at it for \d+\.\d s$", lines[1]
    )
    loader.close()


class Lying(Bulk):
    """Gives too few or too many samples."""

    def __init__(self, length: int, change: int) -> None:
        super().__init__(length)
        self.change = change

    def __getitems__(self, indices: list[int]) -> list[Any]:
        found = super().__getitems__(indices)
        return found[: self.change] if self.change < 0 else found + found[: self.change]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (-1, "__getitems__ returned fewer samples than 1 indices"),
        (1, "__getitems__ returned more than 1 samples for as many indices"),
    ],
)
def test_getitems_that_lie(change: int, text: str) -> None:
    """A dataset that gives too few or too many samples is an error that names the sample."""
    with Loader(
        Mix([Bulk(3), Lying(3, change)]), batch_size=6, workers=0, spec=Oracle.SPEC
    ) as loader:
        found = raised(ringfeed.WorkerError, lambda: next(iter(loader)))
    assert found == f"dataset 1[0] raised ValueError: {text} (2 more of this batch failed)"


UNLIKE: dict[str, tuple[list[Any], str]] = {
    "shape": (
        [np.zeros((3, 2)), np.zeros((3, 4))],
        "dataset 1[0]: sample is Array((4,), 'float64'), expected Array((2,), 'float64') as in "
        "dataset 0; ",
    ),
    "dtype": (
        [Oracle(3), Oracle(3), [(np.zeros((5, 7), np.uint8), 1.0, 1)]],
        "dataset 2[0]: sample[1] is Array((), 'float32'), expected Array((), 'int64') as in "
        "dataset 0; ",
    ),
    "tuple": (
        [Oracle(3), [[np.zeros((5, 7), np.uint8), 1, 1]]],
        "dataset 1[0]: sample is [Array((5, 7), 'uint8'), Array((), 'int64'), Array((), 'int64')], "
        "expected (Array((5, 7), 'uint8'), Array((), 'int64'), Array((), 'int64')) as in dataset 0; ",
    ),
    "leaf": (
        [Oracle(3), np.zeros((3, 2))],
        "dataset 1[0]: sample is Array((2,), 'float64'), expected (Array((5, 7), 'uint8'), "
        "Array((), 'int64'), Array((), 'int64')) as in dataset 0; ",
    ),
    "deeper": (
        [[1.0], [(1.0, 2.0)]],
        "dataset 1[0]: sample is (Array((), 'float32'), Array((), 'float32')), expected "
        "Array((), 'float32') as in dataset 0; ",
    ),
    "keys": (
        [[{"a": 1}], [{"b": 1}]],
        (
            "dataset 1[0]: sample is {'b': Array((), 'int64')}, expected {'a': Array((), 'int64')} "
            "as in dataset 0; "
        ),
    ),
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_unlike_datasets_are_refused(unlike: str) -> None:
    """Samples that differ between datasets are an error that says what differs, and where."""
    datasets, text = UNLIKE[unlike]
    assert raised(SpecError, lambda: Loader(Mix(datasets), workers=0)) == text + ALIKE


class Unmeasured:
    """Has no length."""

    def __getitem__(self, index: int) -> int:
        return index


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "none": (lambda: Mix([]), ValueError, "Mix() got no datasets; give at least one"),
    "one": (
        lambda: Mix(5),
        TypeError,
        "datasets is of type int, expected several datasets, as in Mix([a, b])",
    ),  # type: ignore[arg-type]
    "dict": (
        lambda: Mix({"a": [1]}),
        TypeError,
        "datasets is of type dict, expected several datasets, as in Mix([a, b])",
    ),
    "mix": (
        lambda: Mix([[1], Mix([[1]])]),
        TypeError,
        "dataset 1 of Mix() is a Mix; give its datasets to the outer one, each with its share of "
        "the weight that the inner one would have",
    ),
    "iterable": (
        lambda: Mix([[1], iter([1])]),
        TypeError,
        "dataset 1 of Mix() is an iterable (a list_iterator), whose elements have no numbers; "
        "give an object with __len__ and __getitem__, or iterables to Interleave()",
    ),
    "weights": (
        lambda: Mix([[1], [2]], [1]),
        ValueError,
        "weights has length 1, expected 2, a number for each dataset",
    ),
    "stop": (
        lambda: Mix([[1]], stop="last"),  # type: ignore[arg-type]
        ValueError,
        "stop='last'; choose one of 'first', 'all', 'never'",
    ),
    "set": (
        lambda: setattr(Mix([[1]], [1]), "weights", [2]),
        AttributeError,
        "the weights of a Mix are fixed, since batches are planned far ahead by them; give "
        "weights= a function, as in lambda epoch, batch: now, and change what it returns",
    ),
    "empty": (
        lambda: Loader(Mix([[1], []]), workers=0),
        ValueError,
        "dataset 1 of the Mix is empty; leave it out",
    ),
    "unmeasured": (
        lambda: Loader(Mix([[1], Unmeasured()]), workers=0),
        TypeError,
        (
            "dataset 1 of the Mix (a Unmeasured) has no length, so its share is unknown; give it "
            "a __len__"
        ),
    ),
    "per_batch": (
        lambda: Loader(Mix([Batches(), Batches()], per_batch=True), batch_size=None, workers=0),
        ValueError,
        "per_batch=True shares batches among datasets; with batch_size=None leave it out",
    ),
    "sampler": (
        lambda: Loader(Mix([[1], [2]]), sampler=[0], workers=0),
        ValueError,
        "sampler= is for one dataset, and a Mix has an order of its own; give Mix() weights=, and "
        "the loader shuffle=True or False",
    ),
    "window": (
        lambda: Loader(Mix([[1], [2]]), shuffle=100, workers=0),  # type: ignore[arg-type]
        ValueError,
        "shuffle=100 is for one dataset, and a Mix has an order of its own; give Mix() weights=, "
        "and the loader shuffle=True or False",
    ),
    "lists": (
        lambda: Loader(Mix([[1], [2]]), batch_sampler=[[0]], workers=0),
        ValueError,
        "batch_sampler= is for one dataset, and a Mix has an order of its own; give Mix() "
        "weights=, and the loader shuffle=True or False",
    ),
    "no dataset": (
        lambda: Loader(Mix([[1], "train"]), workers=0),
        TypeError,
        "dataset 1: 'train' is a str, expected a dataset and not the name of one; read it into "
        "arrays, or give an object whose __getitem__(i) reads sample i",
    ),
    "arrays": (
        lambda: Loader(Mix([[1], (np.zeros(3), np.zeros(4))]), workers=0),
        SpecError,
        "dataset 1: the arrays of a dataset must be equally long, but their shapes are (3,), "
        "(4,); cut them to one length",
    ),
    "sample": (
        lambda: Loader(Mix([[1], ["text"]]), workers=0),
        SpecError,
        "dataset 1[0]: sample is a str, expected an array or number, or spec= for it; give "
        "spec=ringfeed.Text(64), where Text has the most bytes of one sample",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_cannot_be_mixed(refused: str) -> None:
    """Each is refused with what it is, where, and what to give instead."""
    call, kind, text = REFUSED[refused]
    assert raised(kind, call) == text


def test_weights_are_shown_as_they_are_understood() -> None:
    """The attributes of a mix say what it is."""
    mix = Mix([[1], [2]], [0.75, 0.25], stop="all", per_batch=True)
    assert (mix.datasets, mix.weights, mix.stop, mix.per_batch) == (([1], [2]), (3, 1), "all", True)
    assert Mix([[1]]).weights is None


class Fingerprinted(Oracle):
    """Has what Hugging Face's datasets have."""

    _fingerprint = "1a2b"


def test_fingerprints_go_together() -> None:
    """A mix of datasets that have fingerprints has theirs in its state; of others, none."""
    for other, found in ((Fingerprinted(5), "1a2b 1a2b"), (Oracle(5), None)):
        with Loader(Mix([Fingerprinted(5), other]), workers=0) as loader:
            assert loader.state_dict().get("fingerprint") == found


def test_a_mix_can_be_profiled() -> None:
    """`ringfeed profile` and `plan` read a mix as they read other datasets."""
    from ringfeed.tools.profile import profile  # noqa: PLC0415 - for one test

    found = profile(Mix([Oracle(30), Oracle(20)]), batch_size=4, workers=1, seconds=0.2)
    assert {sample.index for sample in found.samples} <= set(range(50))
    assert len(ringfeed.plan(Mix([Oracle(3), Oracle(2)]), batch_size=4, workers=0).rows) == 1

"""Kinds of dataset.

What each is taken for, what is refused, and rows of every dtype, shape and stride.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import pickle
import random
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

import ringfeed
from ahead import loader_with
from datasets import (
    SAID,
    Batches,
    Bulk,
    Imported,
    ImportedBatches,
    Oracle,
    ReadInto,
    check,
    imported_in_turn,
)
from ringfeed.datasets.reader import Reader
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.spec.spec import Spec
from ringfeed.workers import warm

if TYPE_CHECKING:
    from pathlib import Path


def batches(dataset: Any, **settings: Any) -> list[Any]:
    """Return all batches of an epoch, made in this process, as copies."""
    with ringfeed.Loader(dataset, workers=0, copy=True, **settings) as loader:
        return list(loader)


def way_of(dataset: Any, **terms: Any) -> str:
    """Return the method of the writer by which a dataset is read."""
    source, reader = open_source(dataset, Terms(2, **terms)), Mock()
    for name in ("open_stream", "by_method", "by_element"):
        setattr(reader, name, partial(getattr(Reader, name), reader))
    reader.source, reader.make = source, None
    source.learn()
    fill: Any = source.open(dataset, reader)
    write = reader.by.call_args.args[0] if reader.by.called else fill.func
    return next(
        way for way in ("samples", "rows", "bulk", "gather") if write is getattr(reader.writer, way)
    )


@pytest.mark.parametrize(
    ("dataset", "way"),
    [
        (Oracle(5), "samples"),
        (ReadInto(), "rows"),
        (Bulk(5), "bulk"),
        (np.zeros((5, 2)), "gather"),
        ((np.zeros(5), {"a": np.zeros(5)}), "gather"),
        (np.zeros((5, 2, 3)).transpose(0, 2, 1), "gather"),
        ([np.zeros(3)] * 5, "samples"),
        ([(np.zeros(3), 1)] * 5, "samples"),
        (lambda: iter(range(5)), "samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kinds(dataset: Any, way: str) -> None:
    """Each dataset is read in its fastest way."""
    assert way_of(dataset) == way


def test_reseed_reads_one_by_one() -> None:
    """The legacy states are set for each sample, which __getitems__ would not allow."""
    assert way_of(Bulk(5), reseed=True) == "samples"


@pytest.mark.parametrize("ways", [{}, {"transform": abs}, {"batch_size": None}], ids=str)
def test_a_first_sample_that_exits_is_an_error(ways: dict[str, Any]) -> None:
    """sys.exit() in it would end the training here as if it were done.

    With "skip" it is left out like any other.
    """

    class Exiting:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return sys.exit(0) if index == 0 else np.float32([index])

    with pytest.raises(ringfeed.WorkerError) as caught:
        ringfeed.Loader(Exiting(), workers=0, **{"batch_size": 1} | ways)
    assert str(caught.value) == "dataset[0], read for the spec, raised SystemExit: 0"
    loader = ringfeed.Loader(
        Exiting(), workers=0, copy=True, on_error="skip", **{"batch_size": 1} | ways
    )
    assert np.concatenate([*loader]).ravel().tolist() == [1, 2, 3]


KINDS = {"samples": Imported(), "batches": ImportedBatches(), "streams": imported_in_turn}
PARTS = {
    "samples": ["datasets.indexed"],
    "batches": ["datasets.indexed"],
    "streams": [
        "datasets.peekable",
        "datasets.states",
        "datasets.stream_reader",
        "datasets.streams",
        "orders.replay",
    ],
}


@pytest.mark.parametrize("backend", ["spawn", "process"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_imports_the_kind_that_it_reads(kind: str, backend: Any) -> None:
    """No worker spends its start on the other kinds, on samplers, or on what decides the kind."""
    settings = {
        "batch_size": None if kind == "batches" else 1,
        "spec": ringfeed.Array((SAID,), "uint8"),
    }
    most = 1 if kind == "batches" else None
    warm.end()  # the one that is there has imported what other tests' loaders read
    with ringfeed.Loader(
        KINDS[kind], workers=1, backend=backend, max_batch_size=most, **settings
    ) as loader:
        for batch in loader:
            always = [
                "datasets.base",
                "datasets.reader",
                "datasets.terms",
                "datasets.worker_info",
                "orders.rng",
            ]
            found = set(batch.tobytes().decode().split())
            if backend == "process":  # it has imported what most read, once for all workers
                found -= {"datasets.arrays", "datasets.indexed"} - {*PARTS[kind]}
            assert found == {*always, *PARTS[kind]}


@pytest.mark.parametrize("dataset", [Oracle(5), np.zeros((5, 10**6)), *KINDS.values()], ids=str)
def test_a_source_travels_without_its_dataset(dataset: Any) -> None:
    """What each worker is told of a dataset is small, and holds nothing for the consumer alone."""
    source = open_source(dataset, Terms(None if isinstance(dataset, ImportedBatches) else 2))
    source.learn()
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    found = pickle.loads(pickled)
    assert type(found) is type(source)
    assert (found.spec, found.rows, found.describe(3)) == (
        source.spec,
        source.rows,
        source.describe(3),
    )
    assert not {"given", "dataset", "terms", "elements"} & vars(found).keys()


class Known:
    """Knows its loader."""

    loader: Any = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 2), index)

    def __getstate__(self) -> dict[str, Any]:
        """Leave it out."""
        return {}


class KnownIterable:
    """Knows its loader, and has no index."""

    loader: Any = None

    def __iter__(self) -> Any:
        return iter([np.zeros(2)] * 8)

    __getstate__ = Known.__getstate__


@pytest.mark.parametrize("batch_size", [None, 4], ids=["batches", "samples"])
@pytest.mark.parametrize("dataset", [Known, KnownIterable])
def test_a_dataset_that_knows_its_loader_does_not_keep_it(
    dataset: Any, batch_size: int | None
) -> None:
    """The engine, which the loader's finalizer keeps, does not refer to the dataset.

    Both go once they are dropped.
    """
    known = dataset()
    known.loader = ringfeed.Loader(known, batch_size=batch_size, workers=1, copy=True)
    assert list(known.loader)
    gone = weakref.ref(known.loader)
    del known
    gc.collect()
    assert gone() is None


class Columns(NamedTuple):
    """Columns that are told of the end of an epoch."""

    x: Any
    y: Any

    def on_epoch_end(self) -> None:
        """Change nothing."""


def test_columns_with_a_hook_keep_their_length() -> None:
    """After a hook the length is asked anew.

    That of the columns, and not how many of them there are.
    """
    with ringfeed.Loader(Columns(np.arange(12), np.arange(12)), batch_size=4, workers=0) as loader:
        assert [(len(loader), sum(len(x) for x, _ in loader)) for _ in range(3)] == [(3, 12)] * 3


class Unsized:
    """Has no length."""

    def __getitem__(self, index: int) -> int:
        return index


class Kerasy(Batches):
    """Has the attributes of a Keras PyDataset."""

    workers, use_multiprocessing, max_queue_size = 1, False, 10


@pytest.mark.parametrize(
    ("dataset", "settings", "kind", "text"),
    [
        (
            7,
            {},
            TypeError,
            "an int is no dataset: it has neither __getitem__ nor __iter__; give an object with "
            "__len__ and __getitem__, a tuple or dict of arrays, or an iterable",
        ),
        (
            Unsized(),
            {},
            TypeError,
            (
                "the dataset (a Unsized) has no __len__, so the loader cannot know its indices; "
                "add one, or give sampler="
            ),
        ),
        (
            [],
            {},
            ringfeed.SpecError,
            "the dataset is empty, so there is no sample to infer the spec from; give spec=",
        ),
        (
            Kerasy(),
            {},
            ValueError,
            "batch_size=32 for a Kerasy, which is a Keras dataset: its items are whole batches "
            "already; give batch_size=None",
        ),
        (
            (np.zeros(5), np.zeros(6)),
            {},
            ringfeed.SpecError,
            (
                "the arrays of a dataset must be equally long, but their shapes are (5,), (6,); "
                "cut them to one length"
            ),
        ),
        (
            np.zeros(5),
            {"batch_size": None},
            ValueError,
            (
                "batch_size=None is for datasets of whole batches; arrays hold samples: give a "
                "batch_size"
            ),
        ),
        (
            Batches(),
            {"batch_size": None, "max_batch_size": 5},
            ValueError,
            "max_batch_size=5, but batch 0 has 6 rows; raise it",
        ),
        (
            Oracle(5),
            {"max_batch_size": 5},
            ValueError,
            "max_batch_size=5 is for datasets of whole batches, for batch_sampler= and for "
            "collate_fn=; with batch_size= alone leave it out",
        ),
        (
            Batches(),
            {
                "batch_size": None,
                "spec": (ringfeed.Array((), "int32"), ringfeed.Array((2,), "float32")),
            },
            ValueError,
            "batch_size=None with spec= needs max_batch_size=, the most rows that a batch has",
        ),
        (
            np.zeros(5, np.int8),
            {"spec": ringfeed.Array((), "int16")},
            ringfeed.SpecError,
            (
                "spec= says Array((), 'int16'), but the arrays are Spec(Array((), 'int8')); leave "
                "spec= out"
            ),
        ),
    ],
    ids=str,
)
def test_what_is_refused(
    dataset: Any, settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """Whatever cannot be read is refused when the loader is made, with the remedy."""
    with pytest.raises(kind) as caught:
        ringfeed.Loader(dataset, workers=0, **settings)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0 must be at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size=2.5 must be an int"),
        ({"batch_size": True}, TypeError, "batch_size=True must be an int"),
        ({"workers": -1}, ValueError, "workers=-1 must be at least 0"),
        ({"workers": 257}, ValueError, "workers=257 must be at most 256"),
        (
            {"backend": "vfork"},
            ValueError,
            "backend='vfork'; choose one of 'process', 'thread', 'spawn', 'fork'",
        ),
        ({"on_stall": "cry"}, ValueError, "on_stall='cry'; choose one of 'raise', 'restart'"),
        ({"on_error": "hide"}, ValueError, "on_error='hide'; choose one of 'raise', 'skip'"),
        *(
            (
                {"timeout_s": one},
                ValueError,
                f"timeout_s={one!r} must be positive, or None to wait for ever",
            )
            for one in (0, -1, math.nan, np.float32("nan"))
        ),
        *(
            (
                {"timeout_s": one},
                TypeError,
                f"timeout_s={one!r} must be a number of seconds, or None to wait for ever",
            )
            for one in ("5", True, np.True_, np.array([1, 2]))
        ),
        ({"seed": True}, TypeError, "seed=True must be an int"),
        (
            {"seed": np.array([1, 2])},
            TypeError,
            "seed=array([1, 2]) must be an int",
        ),
        (
            {"memory": -1},
            ValueError,
            "memory=-1 is no amount of memory; write it as in '512MB', '2GiB' or a number of bytes",
        ),
        ({"max_attempts": 0}, ValueError, "max_attempts=0 must be at least 1"),
        (
            {"reseed": True, "backend": "thread"},
            ValueError,
            (
                "reseed=True seeds states that all threads share; use backend='process', or "
                "ringfeed.rng()"
            ),
        ),
        (
            {"slots": 1},
            ringfeed.PlanError,
            "slots=1: at least 2 are needed, one to fill while one is in use",
        ),
        ({"seed": -1}, ValueError, "seed=-1 must be at least 0"),
        (
            {"shuffle": True, "sampler": [1]},
            ValueError,
            "shuffle=True and sampler= exclude each other: give the one or the other",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_are_refused(
    settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """A bad setting is named, with what is expected."""
    with pytest.raises(kind) as caught:
        ringfeed.Loader(Oracle(9), **settings)
    assert str(caught.value) == text


DTYPES = [
    "u1",
    "i1",
    "u2",
    "i4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "?",
    ">i4",
    ">f8",
    "M8[s]",
    "U5",
    "S3",
    "i4,f8",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4), (0,), (4, 0, 2)])
@pytest.mark.parametrize(
    "stride", ["plain", "fortran", "reversed", "every second", "broadcast", "read-only"]
)
def test_every_dtype_shape_and_stride(dtype: str, shape: tuple[int, ...], stride: str) -> None:
    """What a sample holds arrives bit for bit, however it lies in memory."""
    samples = []
    for index in range(5):
        raw = np.random.default_rng(index).integers(
            0, 120, (*shape, np.dtype(dtype).itemsize), np.uint8
        )
        if dtype == "?":
            raw %= 2
        if dtype == "U5":
            raw = np.array(list("abcde"), "U1").view(np.uint8)[
                np.zeros((*shape, 1), int) + np.arange(20)
            ]
        array = np.ascontiguousarray(raw).view(dtype).reshape(shape)
        if shape and stride == "fortran":
            array = np.asfortranarray(array)
        elif shape and stride == "reversed":
            array = array[::-1]
        elif shape and stride == "every second":
            array = np.repeat(array, 2, axis=0)[::2]
        elif shape and stride == "broadcast":
            array = np.broadcast_to(array[:1], shape)
        elif stride == "read-only":
            array.flags.writeable = False
        samples.append(array)
    found = batches(samples, batch_size=3)
    assert [batch.dtype for batch in found] == [np.dtype(dtype)] * 2
    rows = [batch[row : row + 1] for batch in found for row in range(len(batch))]
    assert [row.tobytes() for row in rows] == [sample.tobytes() for sample in samples]


@pytest.mark.parametrize(
    ("sample", "spec", "expected"),
    [
        (7, "uint8", 7),
        (7, "float32", 7.0),
        (2.5, "float64", 2.5),
        (0.1, "float32", np.float32(0.1)),
        (float("inf"), "float32", float("inf")),
        (-(2**63), "int64", -(2**63)),
        (True, "bool", True),
        (np.float32(3), "float32", 3.0),
        (np.int64(9), "int64", 9),
        (np.array(4, "int16"), "int16", 4),
    ],
)
def test_numbers_that_fit(sample: Any, spec: str, expected: Any) -> None:
    """Python numbers and NumPy scalars go into a dtype that holds them."""
    (batch,) = batches([sample] * 2, batch_size=2, spec=ringfeed.Array((), spec))
    assert batch.dtype == np.dtype(spec)
    assert batch.tolist() == [expected, expected]


@pytest.mark.parametrize(
    ("sample", "spec"),
    [
        (300, "uint8"),
        (-1, "uint16"),
        (2**63, "int64"),
        (1.5, "int64"),
        (True, "int64"),
        (1e300, "float32"),
        (1, "bool"),
    ],
)
def test_numbers_that_do_not_fit(sample: Any, spec: str) -> None:
    """Nothing is cast, wrapped or rounded in silence."""
    with pytest.raises(
        ringfeed.SpecError, match=r"dataset\[0\]: sample is the .*, expected a value for dtype"
    ):
        batches([sample] * 2, batch_size=2, spec=ringfeed.Array((), spec))


class Packed:
    """Samples of a structured dtype with padding, given in each of the ways there are."""

    DTYPE = np.dtype(
        [("a", "u1"), ("in", np.dtype([("x", "f8"), ("y", "u1")], align=True), 2)], align=True
    )

    def __init__(self, way: str) -> None:
        self.way = way
        self.rows = np.full((6, 4, self.DTYPE.itemsize), 255, np.uint8).view(self.DTYPE)[..., 0]
        if way == "read_into":
            self.read_into = self.write

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = self.rows[index]
        return rows[0] if self.way == "scalar" else rows[::2] if self.way == "strided" else rows

    def write(self, index: int, out: Any) -> None:
        """Fill the fields, as NumPy does it: one by one."""
        out[...] = self.rows[index]


@pytest.mark.parametrize("way", ["scalar", "strided", "whole", "read_into", "batches", "arrays"])
def test_padding_is_zeros_in_all_kinds_of_dataset(way: str) -> None:
    """Only fields are handed out, also from slots in which something else lay before."""
    dataset = Packed(way)
    given = dataset.rows if way == "arrays" else dataset
    with ringfeed.Loader(
        given, batch_size=None if way == "batches" else 2, workers=0, slots=2
    ) as loader:
        for _ in range(2):
            for batch in loader:
                padding = batch.view(np.uint8).reshape(*batch.shape, Packed.DTYPE.itemsize).copy()
                padding[..., [0, *range(8, 17), *range(24, 33)]] = 0
                assert not padding.any()
                assert (np.frombuffer(batch["in"]["y"].tobytes(), np.uint8) == 255).all()
                batch.view(np.uint8)[...] = 77  # for the next in this slot


def test_padding_is_zeros() -> None:
    """Bytes between the fields of a structured dtype are zeros in the slot."""
    dtype = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    samples = [
        np.full((4, dtype.itemsize), index, np.uint8).view(dtype)[:, 0] for index in range(2)
    ]
    with ringfeed.Loader(
        [samples[0][:2], samples[1][::2]], batch_size=1, slots=2, workers=0
    ) as loader:
        assert [set(batch["b"].tobytes() + batch["a"].tobytes()) for batch in loader] == [{0}, {1}]
        assert [batch.view((np.uint8, dtype.itemsize))[..., 1:8].any() for batch in loader] == [
            False,
            False,
        ]


class Views(Batches):
    """Gives whole batches in every odd way."""

    def __getitem__(self, index: int) -> Any:
        numbers, rest = super().__getitem__(index)
        return numbers[::-1][::-1], np.asfortranarray(rest)


def test_whole_batches_of_any_stride() -> None:
    """Whole batches are copied however they lie in memory."""
    found = batches(Views(), batch_size=None)
    assert np.concatenate([numbers for numbers, _ in found]).tolist() == list(range(52))


@pytest.mark.parametrize(
    ("third", "text"),
    [
        (
            (np.zeros(9, np.int32), np.zeros((9, 2), np.float32)),
            (
                "dataset[2]: batch[0] has 9 rows, expected at most 6; return smaller batches, or "
                "raise max_batch_size"
            ),
        ),
        (
            (np.zeros(6, np.int32), np.zeros((5, 2), np.float32)),
            "dataset[2]: batch[1] has 5 rows, expected 6 as in the leaves before it; give all "
            "leaves of a batch the same number of rows",
        ),
        (
            (np.zeros(6, np.int32), np.zeros((6, 3), np.float32)),
            "dataset[2]: batch[1] has rows of shape (3,), expected (2,); every sample must have "
            "the shape of the spec: crop, pad or resize it in __getitem__; or allow many shapes: "
            "spec= with variable= and max_batch_size=",
        ),
        (
            (np.zeros(6, np.int32), np.zeros((6, 2))),
            "dataset[2]: batch[1] has dtype float64, expected float32; convert it in __getitem__, "
            "give this dtype in spec=, or have it converted by cast=True of its Array",
        ),
    ],
)
def test_whole_batches_that_do_not_fit(third: Any, text: str) -> None:
    """A batch with other rows, shape or dtype is an error that names it, and the rest arrives."""

    class Third(Batches):
        def __getitem__(self, index: int) -> Any:
            return third if index == 2 else super().__getitem__(index)

    with ringfeed.Loader(Third(), batch_size=None, workers=0) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(ringfeed.SpecError) as caught:
            next(iterator)
        assert str(caught.value) == text
        assert len(list(map(len, iterator))) == 6


def test_a_larger_maximum_admits_larger_batches() -> None:
    """max_batch_size is what later batches may have."""

    class Growing(Batches):
        def __getitem__(self, index: int) -> Any:
            return np.full(index + 1, index, np.int64)

    found = batches(Growing(), batch_size=None, max_batch_size=9)
    assert [len(batch) for batch in found] == list(range(1, 10))


def test_getitems_that_lie() -> None:
    """Too few samples from __getitems__ are asked for one by one; missing ones are errors."""

    class Lying(Bulk):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [sample for sample in super().__getitems__(indices) if sample[1] != 2]

    dataset = Lying(4)
    with pytest.raises(ringfeed.WorkerError) as caught:
        batches(dataset, batch_size=4)
    assert (
        str(caught.value)
        == "dataset[2] raised ValueError: __getitems__ returned 0 samples for 1 indices"
    )
    (batch,) = batches(dataset, batch_size=4, on_error="skip")
    assert check(batch) == [0, 1, 3]


GREEDY = {
    "mutates its indices": lambda self, indices: [
        Oracle.__getitem__(self, indices.pop(0)) for _ in indices[:]
    ],
    "fills one buffer": lambda self, indices: map(self.again, indices),
    "exits at one": lambda self, indices: [self.exit_at_2(index) for index in indices],
}


class Greedy(Bulk):
    """Does odd things in __getitems__."""

    __getitems__ = None
    buffer = np.zeros((5, 7), np.uint8)

    def again(self, index: int) -> Any:
        sample = super().__getitem__(index)
        self.buffer[:] = sample[0]
        return self.buffer, *sample[1:]

    def exit_at_2(self, index: int) -> Any:
        if index == 2:
            sys.exit(3)
        return super().__getitem__(index)


@pytest.mark.parametrize("deed", GREEDY)
def test_getitems_that_do_odd_things(deed: str) -> None:
    """Each row is its own sample, though the list of indices or a sample's buffer is reused."""
    dataset = type("Odd", (Greedy,), {"__getitems__": GREEDY[deed]})(7)
    found = [
        index for batch in batches(dataset, batch_size=4, on_error="skip") for index in check(batch)
    ]
    assert found == ([0, 1, 3, 4, 5, 6] if "exits" in deed else list(range(7)))


def test_endless_getitems_are_cut_off() -> None:
    """A generator that never ends is an error, not the end of all memory."""

    class Endless(Bulk):
        def __getitems__(self, indices: list[int]) -> Any:
            return itertools.repeat(super().__getitem__(indices[0]))

    with pytest.raises(ringfeed.WorkerError) as caught:
        batches(Endless(4), batch_size=4)
    assert str(caught.value) == (
        "dataset[0] raised ValueError: __getitems__ returned more than 1 samples for as many "
        "indices (3 more of this batch failed)"
    )


def test_rng_in_getitems_is_refused() -> None:
    """Numbers that would depend on how batches are cut are refused: promise 2."""

    class Drawing(Bulk):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            ringfeed.rng()
            return []

    with pytest.raises(ringfeed.WorkerError) as caught:
        batches(Drawing(4), batch_size=4)
    assert str(caught.value) == (
        "dataset[0] raised RuntimeError: ringfeed.rng() belongs to one sample, and __getitems__ "
        "makes many; draw in __getitem__, and leave __getitems__ out (3 more of this batch failed)"
    )


class Legacy:
    """Draws from the global states."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002, S311 - what users' code still does


def test_reseed_makes_the_global_states_repeat() -> None:
    """With reseed=True the legacy draws of a sample depend on seed, epoch and index alone."""
    found = []
    for settings in ({"workers": 0}, {"workers": 2}, {"workers": 1, "slots": 2}):
        with ringfeed.Loader(Legacy(), batch_size=5, reseed=True, copy=True, **settings) as loader:
            found.append([[leaf.tolist() for leaf in batch] for _ in range(2) for batch in loader])
    assert found[0] == found[1] == found[2]
    assert found[0][:4] != found[0][4:]


def test_workers_draw_different_global_numbers() -> None:
    """Without reseed, workers at least do not all draw the same."""
    with ringfeed.Loader(Legacy(), batch_size=2, workers=2, copy=True) as loader:
        drawn = np.concatenate([batch[1] for batch in loader])
    assert len(set(drawn.tolist())) == 20


def test_read_into_sees_its_own_structure() -> None:
    """`out` has the sample's structure, in writable views of one row."""

    class Looking(ReadInto):
        def read_into(self, index: int, out: dict[str, Any]) -> None:
            assert Spec.infer(out, 0).leaves[0].shape == (3, 4)
            assert out["label"].shape == ()
            super().read_into(index, out)

    assert [
        int(label) for batch in batches(Looking(), batch_size=4) for label in batch["label"]
    ] == list(range(30))


class Careless(ReadInto):
    """Forgets that only what lies in `out` arrives, in one of three ways, at index 5."""

    def __init__(self, how: str) -> None:
        self.how = how

    def read_into(self, index: int, out: dict[str, Any]) -> Any:
        if index != 5:
            super().read_into(index, out)
        elif self.how == "replaces":
            out["image"] = self[index]["image"]
        elif self.how == "removes":
            out.clear()
        else:
            return self[index]
        return out


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        (
            "replaces",
            ringfeed.SpecError,
            (
                "dataset[5]: out['image'] was replaced, expected to be written into; use "
                "out['image'][...] = in read_into"
            ),
        ),
        (
            "removes",
            ringfeed.SpecError,
            "dataset[5]: out lacks ['image', 'label'], expected the keys ['image', 'label']; "
            "return the same keys for every index",
        ),
        (
            "returns",
            ringfeed.WorkerError,
            (
                "dataset[5] raised TypeError: read_into returned a dict, expected None; write the "
                "sample into out"
            ),
        ),
    ],
)
def test_read_into_that_does_not_write(how: str, kind: type[Exception], text: str) -> None:
    """What is put beside the slot is an error: the row would hold what it held before."""
    with pytest.raises(kind) as caught:
        batches(Careless(how), batch_size=4)
    assert str(caught.value) == text
    found = batches(Careless(how), batch_size=4, on_error="skip")
    assert [int(label) for batch in found for label in batch["label"]] == [*range(5), *range(6, 30)]


@pytest.mark.parametrize("name", ["read_into", "__getitems__"])
def test_an_inherited_method_is_taken_back(name: str) -> None:
    """A class that sets a faster method to None has none."""
    dataset = type("Plain", (ReadInto,), {"read_into": None, name: None})()
    assert way_of(dataset) == "samples"


def test_a_tuple_or_dict_of_samples_is_as_long_as_it_is() -> None:
    """A tuple or dict that does not hold arrays is a dataset like any other, with an end."""
    samples = tuple((np.full(2, index), index) for index in range(5))
    for dataset in (samples, dict(enumerate(samples))):
        found = batches(dataset, batch_size=2)
        assert [batch[1].tolist() for batch in found] == [[0, 1], [2, 3], [4]]


def test_a_matrix_of_any_stride_is_read_by_rows() -> None:
    """Rows of a np.matrix, which keep two axes when indexed, arrive like those of any array."""
    matrix = np.arange(6).reshape(2, 3).view(np.matrix).T
    (batch,) = batches(matrix, batch_size=3)
    assert batch.tolist() == [[0, 3], [1, 4], [2, 5]]


ROWS = "a batch of {} rows, expected at most 4294967295; make it smaller"


@pytest.mark.parametrize(
    ("shape", "settings", "text"),
    [
        ((), {"batch_size": 2**32}, ROWS.format(2**32)),
        ((), {"batch_size": 2**70}, ROWS.format(2**70)),
        ((0,), {"batch_size": None, "max_batch_size": 2**62}, ROWS.format(2**62)),
        (
            (2**40, 0, 2**17),
            {"batch_size": 8},
            "sample has shape (1099511627776, 0, 131072), which holds nothing, but with 8 rows "
            "NumPy counts more than 63 bits of bytes along its other axes; make them smaller",
        ),
    ],
)
def test_counts_that_overflow(shape: tuple[int, ...], settings: dict[str, Any], text: str) -> None:
    """More rows or elements than can be counted are refused by name, even empty ones."""
    with pytest.raises(ValueError, match=r"rows") as caught:
        ringfeed.Loader(Oracle(4), workers=0, spec=ringfeed.Array(shape, "float64"), **settings)
    assert str(caught.value) == text


@pytest.mark.usefixtures("no_crash_report")
def test_a_file_that_is_cut_short_costs_its_rows_alone(tmp_path: Path) -> None:
    """Rows of a mapped array whose file has shrunk end their workers, and are errors.

    The rows beside them arrive.
    """
    np.repeat(np.arange(24, dtype=np.int64), 1024).tofile(tmp_path / "rows")  # two pages a row
    rows = np.memmap(tmp_path / "rows", np.int64, "r", shape=(24, 1024))
    with loader_with(
        (rows, np.arange(24)),
        batch_size=8,
        workers=1,
        backend="fork",  # a fresh process could not map the shorter file at all
        max_attempts=1,
        on_error="skip",
        ahead=False,  # what the second epoch reads is cut after the first
    ) as loader:
        for kept in (24, 23):
            os.truncate(tmp_path / "rows", kept * 8192)
            seen: list[int] = []
            for batch, numbers in loader:
                assert (batch == numbers[:, None]).all()
                seen += numbers.tolist()
            assert seen == list(range(kept))
        assert loader.stats().skipped == [23]


def test_numbers_of_numpy_are_numbers() -> None:
    """Settings take NumPy's integers and floats as Python's own."""
    given = {
        "batch_size": np.int64(8),
        "workers": np.uint8(0),
        "seed": np.int32(3),
        "timeout_s": np.float32(5),
    }
    with ringfeed.Loader(
        Oracle(16), slots=np.int16(2), max_attempts=np.int64(1), **given
    ) as loader:
        loader.set_epoch(np.int64(2**63 - 1))
        for batch in loader:
            assert len(batch[0] if isinstance(batch, tuple) else batch) == 8
    with ringfeed.Loader(Oracle(16), memory=np.int64(10**6), workers=0) as loader:
        assert loader.plan.total <= 10**6


@pytest.mark.parametrize(
    ("epoch", "kind", "text"),
    [
        (2**64, ValueError, f"epoch={2**64} must be at most {2**63 - 1}"),
        (-1, ValueError, "epoch=-1 must be at least 0"),
        (None, TypeError, "epoch=None must be an int"),
        (True, TypeError, "epoch=True must be an int"),
        ("5", TypeError, "epoch='5' must be an int"),
        (math.nan, TypeError, "epoch=nan must be an int"),
    ],
)
def test_epochs_that_are_refused(epoch: Any, kind: type[Exception], text: str) -> None:
    """The number of an epoch is refused where it is given, not where the epoch begins."""
    with ringfeed.Loader(Oracle(16), workers=0) as loader, pytest.raises(kind) as caught:
        loader.set_epoch(epoch)
    assert str(caught.value) == text

"""`ringfeed.tools.plan_table`: the memory of many settings, before there is a loader."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed import plan


class Pictures:
    """Samples of a picture and a label."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return np.full((8, 8, 3), index, np.uint8), index


class Batches:
    """Whole batches of 16 rows."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return np.full((16, 4), index, np.float64)


def test_the_table_as_a_user_reads_it() -> None:
    """Every combination has a line; what follows stands below."""
    assert str(
        plan(
            shape=(256, 256, 3),
            dtype=["uint8", "float32"],
            batch_size=[64, 128],
            slots=2,
            workers=2,
        )
    ) == (
        "sample                 batch size  slots  one slot    in all\n"
        "------------------------------------------------------------\n256 x 256 x 3 uint8        "
        "    64      2   12.7 MB   25.3 MB\n256 x 256 x 3 uint8           128      2   25.2 MB   "
        "50.5 MB\n256 x 256 x 3 float32          64      2   50.4 MB  100.8 MB\n256 x 256 x 3 "
        "float32         128      2  100.7 MB  201.5 MB\n\nPictures in uint8 take a quarter of "
        "the memory of float32: keep uint8 in the slots, and cast on the\ndevice: "
        "keras.layers.Rescaling(1 / 255) as the first layer, or images.float() / 255 in torch.\n"
        "Besides, 2 workers are processes with some 5 to 10 MB each of its own, or 25 MB with\n"
        "backend='spawn', and with what your dataset imports."
    )


def test_a_budget_picks_the_slots() -> None:
    """With memory= the slots that fit, the largest batch, and a mark where two slots do not fit."""
    assert str(
        plan(shape=[(256, 256), (8,)], dtype="int16", batch_size=128, memory="20MB", workers=0)
    ) == (
        "sample           batch size  slots  one slot             in all\n"
        "---------------------------------------------------------------\n"
        "256 x 256 int16         128      2   16.8 MB  33.7 MB: too much\n"
        "8 int16                 128    256   69.6 kB            18.4 MB\n"
        "\n"
        "With 4 slots, 20.0 MB hold batches of up to 37 samples of 256 x 256 int16.\n"
        "With 4 slots, 20.0 MB hold batches of up to 197,098 samples of 8 int16.\n"
        "No workers: batches are filled in the consumer."
    )


def test_no_batch_fits() -> None:
    """A budget under one sample says so."""
    found = plan(shape=(1000, 1000), dtype="float64", batch_size=1, memory="1MB", workers=1)
    assert found.notes == (
        "With 4 slots, 1.0 MB hold no batch of even one sample of 1000 x 1000 float64.",
        "Besides, 1 worker is a process with some 5 to 10 MB each of its own, or 25 MB with "
        "backend='spawn', and with what your dataset imports.",
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 128])
@pytest.mark.parametrize("slots", [2, 5])
def test_the_figures_are_the_loaders(workers: int, batch_size: int, slots: int) -> None:
    """To the byte what a loader of the dataset will reserve."""
    loader = ringfeed.Loader(Pictures(), batch_size=batch_size, slots=slots, workers=workers)
    (row,) = plan(Pictures(), batch_size=batch_size, slots=slots, workers=workers).rows
    assert row.plan == loader.plan
    assert row.what == "8 x 8 x 3 uint8 + one int64"


def test_the_largest_batch_is_the_largest() -> None:
    """One sample more does not fit."""
    found = plan(shape=(1000,), dtype="uint8", memory="1MB", workers=2).notes[0]
    most = int(found.partition(" up to ")[2].partition(" ")[0].replace(",", ""))
    totals = [
        plan(shape=(1000,), batch_size=size, slots=4, workers=2).rows[0].plan.total
        for size in (most, most + 1)
    ]
    assert totals[0] <= 10**6 < totals[1]


def test_whole_batches() -> None:
    """batch_size=None takes the rows from the dataset, as the loader does."""
    loader = ringfeed.Loader(Batches(), batch_size=None, slots=3, workers=2)
    found = plan(Batches(), batch_size=None, slots=3, workers=2)
    assert found.rows[0].plan == loader.plan
    assert found.rows[0].batch_size == 16
    assert len(plan(Batches(), batch_size=None, memory="1MB", workers=2).notes) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give a dataset, or the shape of a sample: one of them says what is planned for"),
        (
            {"dataset": Pictures(), "shape": (3,)},
            "give a dataset, or the shape of a sample: one of them says what is planned for",
        ),
        (
            {"shape": (3,), "slots": 2, "memory": "1MB"},
            "give slots= or memory=, not both: each decides the other",
        ),
        (
            {"shape": (3,), "batch_size": None},
            "batch_size=None is for a dataset of whole batches; give it, or a batch_size",
        ),
        (
            {"shape": (3,), "slots": 1},
            "slots=1: at least 2 are needed, one to fill while one is in use",
        ),
        (
            {"shape": (3,), "memory": "much"},
            (
                "memory='much' is no amount of memory; write it as in '512MB', '2GiB' or a number "
                "of bytes"
            ),
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], text: str) -> None:
    """Each says what to give."""
    with pytest.raises((ValueError, ringfeed.PlanError)) as caught:
        plan(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"batch_size": True}, TypeError, "batch_size=True must be an int"),
        ({"batch_size": [64, "5"]}, TypeError, "batch_size='5' must be an int"),
        ({"batch_size": 0}, ValueError, "batch_size=0 must be at least 1"),
        ({"batch_size": 2**64}, ValueError, f"batch_size={2**64} must be at most {2**63 - 1}"),
        ({"slots": "5"}, TypeError, "slots='5' must be an int"),
        ({"slots": [2, 2.5]}, TypeError, "slots=2.5 must be an int"),
        ({"workers": -1}, ValueError, "workers=-1 must be at least 0"),
        ({"workers": 2**64}, ValueError, f"workers={2**64} must be at most 256"),
        ({"workers": "5"}, TypeError, "workers='5' must be an int"),
        (
            {"memory": -1},
            ValueError,
            "memory=-1 is no amount of memory; write it as in '512MB', '2GiB' or a number of bytes",
        ),
        (
            {"shape": 5},
            ringfeed.SpecError,
            "Array has shape 5 and dtype 'uint8', expected a tuple of ints and what np.dtype "
            "takes; write it as ((224, 224, 3), 'uint8')",
        ),
    ],
    ids=str,
)
def test_numbers_that_are_refused(
    settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """A number that no loader would take is refused as the loader refuses it."""
    with pytest.raises(kind) as caught:
        plan(**{"shape": (3,), "workers": 1, **settings})
    assert str(caught.value) == text


class Encoded:
    """Samples of a label, and bytes of two sizes."""

    SPEC = (ringfeed.Array((), "int64"), ringfeed.Bytes(100_000), ringfeed.Text(100))

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return index, bytes(1000 if index < 500 else 3000), "name"


def test_reserved_beside_expected() -> None:
    """Of samples that differ in length, some are read: their need stands beside the reserve."""
    found = plan(Encoded(), spec=Encoded.SPEC, batch_size=[4, 64], slots=2, workers=2)
    assert [row.what for row in found.rows] == ["one int64 + 100000 bytes + 100 bytes of text"] * 2
    assert found.notes[:2] == (
        "sample[1] is bytes: a slot reserves 6.4 MB for 64 samples, and 32 that were read have "
        "2.0 kB on average, 3.0 kB at most, so a batch needs about 128.0 kB; total=176000 would "
        "reserve 276.0 kB.",
        "sample[2] is text: a slot reserves 6.4 kB for 64 samples, and 32 that were read have 4 "
        "bytes on average, 4 bytes at most, so a batch needs about 256 bytes; total=256 would "
        "reserve 356 bytes.",
    )
    reserved = plan(
        Encoded(), spec=(Encoded.SPEC[0], ringfeed.Bytes(100_000, total=176_000), Encoded.SPEC[2])
    )
    assert "total=" not in reserved.notes[0]
    assert "reserves 276.0 kB for 32 samples" in reserved.notes[0]


def test_samples_without_numbers_are_not_read() -> None:
    """A function of an iterable, and whole batches: their table has no such note."""
    samples = Encoded()
    spec = Encoded.SPEC
    assert len(plan(lambda: map(samples.__getitem__, range(9)), spec=spec, workers=0).notes) == 1


class Broken(Encoded):
    """Samples of which the first cannot be read, and one is too long."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise ValueError("corrupt")
        return np.zeros(9 if index == 999 else 2, np.float32)


def test_samples_that_fail_end_no_plan() -> None:
    """The others say what a batch needs; variable= counts as what it is short for."""
    found = plan(
        Broken(), spec=ringfeed.Array((8,), "float32", variable=True), batch_size=4, workers=0
    )
    assert found.notes[:2] == (
        "sample is pad: a slot reserves 128 bytes for 4 samples, and 30 that were read have 8 "
        "bytes on average, 8 bytes at most, so a batch needs about 32 bytes.",
        "2 of 32 samples failed: dataset[0] raised ValueError: corrupt.",
    )


class Held:
    """Gives what it holds, and holds it no longer."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Any:
        while self.held:
            yield np.float32(self.held.pop(0))


@pytest.mark.parametrize("workers", [0, 1, None])
@pytest.mark.parametrize("kind", ["object", "function"])
def test_an_iterable_that_keeps_its_place_keeps_its_first_element(
    kind: str, workers: int | None
) -> None:
    """A copy is read of it."""
    dataset = Held([1, 2, 3])
    found = plan(dataset if kind == "object" else lambda: iter(dataset), workers=workers)
    assert found.rows[0].plan.layout.rows == 32
    assert dataset.held == [1, 2, 3]


def test_an_iterable_that_cannot_be_copied_is_not_read() -> None:
    """It may keep its place in itself."""
    held: queue.SimpleQueue[float] = queue.SimpleQueue()
    held.put(1.0)
    with pytest.raises(ValueError, match=r"^plan\(\)") as raised:
        plan(lambda: iter(held.get, None), workers=0)
    assert str(raised.value) == (
        "plan() would read the first element of an iterable that cannot be copied, and its epoch "
        "might lack it; give spec="
    )
    assert held.qsize() == 1

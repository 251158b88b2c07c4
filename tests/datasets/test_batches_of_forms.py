"""`batch_transform` of batches whose samples differ in length.

What it is given, changes and returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed
from lengths import SPEC, Lengths, digests
from ringfeed import Array, Masked, Padded, Ragged, Text

pytestmark = pytest.mark.once

LENGTH, ROWS = 19, 8
SETTINGS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "fork"},
    {"workers": 3, "backend": "thread"},
]


def changed(batch: dict[str, Any]) -> None:
    """Change every leaf in place; the padding, too."""
    batch["image"] //= 2
    batch["boxes"].values[...] *= 2
    batch["tight"].values[...] += 1
    batch["ids"] += 5
    batch["steps"].values[...] += 1
    batch["picture"].values[...] //= 2
    batch["encoded"].values[...] ^= 255
    batch["text"].values[batch["text"].values == ord("1")] = ord("x")


def made(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the same in new objects of every kind that is taken."""
    ids = [
        row[:length] + 5 for row, length in zip(batch["ids"], batch["steps"].lengths, strict=True)
    ]
    return {
        **batch,
        "image": batch["image"] // 2,
        "boxes": Ragged(batch["boxes"].values * 2, batch["boxes"].row_splits),
        "tight": [sample + 1 for sample in batch["tight"]],
        "ids": ids,
        "steps": Padded(batch["steps"].values + 1, batch["steps"].lengths),
        "picture": Masked(batch["picture"].values // 2, batch["picture"].mask),
        "encoded": [bytes(255 ^ byte for byte in sample) for sample in batch["encoded"]],
        "text": [text.replace("1", "x") for text in batch["text"]],
    }


class Changed(Lengths):
    """The same samples, changed one by one."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {
            **sample,
            "image": sample["image"] // 2,
            "boxes": sample["boxes"] * 2,
            "tight": sample["tight"] + 1,
            "ids": sample["ids"] + 5,
            "steps": sample["steps"] + np.int16(1),
            "picture": sample["picture"] // 2,
            "encoded": bytes(255 ^ byte for byte in sample["encoded"]),
            "text": sample["text"].replace("1", "x"),
        }


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_in_place(settings: dict[str, Any]) -> None:
    """Each sample is changed, and the padding stays what the spec says."""
    with ringfeed.Loader(Changed(LENGTH), batch_size=ROWS, spec=SPEC, workers=0) as loader:
        expected = digests(loader)
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=ROWS, spec=SPEC, batch_transform=changed, **settings
    ) as loader:
        assert digests(loader) == expected


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_returned(settings: dict[str, Any]) -> None:
    """As lists, arrays and what a batch holds.

    A mask says nothing of the width of a picture without height.
    """
    spec = {name: array for name, array in SPEC.items() if name != "picture"}
    with ringfeed.Loader(
        Changed(LENGTH), batch_size=ROWS, spec=SPEC, workers=0, copy=True
    ) as loader:
        expected = list(loader)
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=ROWS, spec=SPEC, batch_transform=made, **settings
    ) as loader:
        for batch, whole in zip(loader, expected, strict=True):
            for name in spec:
                assert repr(batch[name]) == repr(whole[name])
            (values, mask), (all_values, all_mask) = batch["picture"], whole["picture"]
            assert np.array_equal(values[mask], all_values[all_mask])
            del batch, values, mask


def test_what_it_is_given() -> None:
    """What the batch would hold; what says how long samples are cannot be written into."""
    seen: list[dict[str, Any]] = []
    with ringfeed.Loader(Lengths(ROWS), batch_size=ROWS, spec=SPEC, workers=0, copy=True) as loader:
        (plain,) = loader
    settings: dict[str, Any] = {"spec": SPEC, "workers": 0, "copy": True}
    with ringfeed.Loader(
        Lengths(ROWS), batch_size=ROWS, batch_transform=seen.append, **settings
    ) as loader:
        (batch,) = loader
    for name in SPEC:
        assert repr(seen[0][name]) == repr(plain[name]) == repr(batch[name])
    assert not seen[0]["boxes"].row_splits.flags.writeable
    assert not seen[0]["steps"].lengths.flags.writeable
    assert not seen[0]["picture"].mask.flags.writeable


def test_it_may_make_samples_longer() -> None:
    """Up to the room that there is, also where the samples had used it up before."""
    spec = Array((None,), "float64", max_shape=(8,), form="ragged", total=12)

    def turned(batch: Ragged) -> list[np.ndarray]:
        return [*batch][::-1]

    samples = [np.arange(float(length)) for length in (1, 3, 8, 8, 3, 1)]
    with ringfeed.Loader(
        samples, batch_size=3, spec=spec, batch_transform=turned, workers=0, slots=2
    ) as loader:
        for _ in range(3):
            found = [sample.tolist() for batch in loader for sample in batch]
            assert found == [samples[row].tolist() for row in (2, 1, 0, 5, 4, 3)]


def test_without_samples_that_failed() -> None:
    """With on_error="skip" it is given the others, and the batch has no gap."""

    class Failing(Lengths):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index in {0, 3}:
                raise ValueError(index)
            return super().__getitem__(index)

    settings: dict[str, Any] = {"spec": SPEC, "workers": 0, "on_error": "skip", "batch_size": 6}
    with ringfeed.Loader(Failing(6), batch_transform=changed, **settings) as loader:
        batch = next(iter(loader))
        assert batch["label"].tolist() == [1, 2, 4, 5]
        for row, number in enumerate((1, 2, 4, 5)):
            sample = Changed(6)[number]
            assert np.array_equal(batch["tight"][row], sample["tight"])
            assert batch["text"][row] == sample["text"]


RAGGED = Array((None,), "float64", max_shape=(8,), form="ragged", total=12)
REFUSED: list[tuple[Any, Any, Any, str]] = [
    (
        RAGGED,
        np.zeros(2),
        lambda batch: [*batch][:1],
        "dataset[0]: batch has 1 samples, expected 2 as before batch_transform; give as many",
    ),
    (
        RAGGED,
        np.zeros(2),
        lambda batch: [np.zeros(7)] * len(batch),
        "dataset[0]: batch needs 14 elements, expected at most total=12 a batch; raise total= in "
        "spec=, or return fewer rows",
    ),
    (
        RAGGED,
        np.zeros(2),
        lambda batch: [np.zeros(9)] * len(batch),
        "dataset[0]: sample has shape (9,), expected at most (8,); crop it in __getitem__, or "
        "give a larger max_shape in spec=",
    ),
    (
        Text(8),
        "ab",
        lambda batch: batch.values.fill(255),
        "dataset[0]: batch has bytes that are no UTF-8 (invalid start byte at byte 0 of a text), "
        "expected text; decode it with errors='replace', or give ringfeed.Bytes in spec=",
    ),
]


@pytest.mark.parametrize(
    ("spec", "sample", "function", "text"), REFUSED, ids=[text[12:50] for *_, text in REFUSED]
)
def test_what_it_returns_and_does_not_fit(spec: Any, sample: Any, function: Any, text: str) -> None:
    """It is refused; with on_error="skip" the batch is left out."""
    settings: dict[str, Any] = {
        "batch_size": 2,
        "spec": spec,
        "batch_transform": function,
        "workers": 0,
    }
    with (
        ringfeed.Loader([sample] * 2, **settings) as loader,
        pytest.raises(ringfeed.SpecError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value).partition(" (1 more")[0] == text
    with ringfeed.Loader([sample] * 2, on_error="skip", **settings) as loader:
        assert [*loader] == []
        assert loader.stats().skipped == [0, 1]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_collate_fn_fills_the_same_slots_again(settings: dict[str, Any]) -> None:
    """Batches of other lengths come within a total that each of them nearly fills."""
    spec = {
        "tight": Array((None,), "int64", max_shape=(8,), form="ragged", total=18),
        "roomy": Array((None,), "int64", max_shape=(8,), form="ragged"),
        "number": Array((), "int64"),
    }

    def collated(numbers: list[int]) -> dict[str, Any]:
        samples = [np.full((7 * number) % 9, number) for number in numbers]
        return {"tight": samples, "roomy": samples, "number": np.array(numbers)}

    settings = {"batch_size": 3, "spec": spec, "collate_fn": collated, **settings}
    with ringfeed.Loader(range(60), **settings) as loader:
        seen = 0
        for batch in loader:
            for row, number in enumerate(batch["number"].tolist()):
                assert number == seen
                for name in ("tight", "roomy"):
                    assert batch[name][row].tolist() == [number] * ((7 * number) % 9)
                seen += 1
            del batch
        assert seen == 60


class Whole:
    """Batches of three samples, as what it is told."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.batch


PADDED = Array((None, 2), "int32", max_shape=(8, 2), form="pad", lengths=True)
VALUES = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
LENGTHS = np.array([4, 0, 2])


@pytest.mark.parametrize(
    ("batch", "lengths"),
    [
        (VALUES, [4, 4, 4]),
        (Padded(VALUES, LENGTHS), [4, 0, 2]),
        (Masked(VALUES, np.arange(4) < LENGTHS[:, None]), [4, 0, 2]),
        ([VALUES[0], VALUES[1, :0], VALUES[2, :2]], [4, 0, 2]),
    ],
    ids=["array", "Padded", "Masked", "list"],
)
def test_whole_batches_as_padding_makes_them(batch: Any, lengths: list[int]) -> None:
    """A dataset of whole batches may return what is padded already."""
    with ringfeed.Loader(
        Whole(batch), batch_size=None, spec=PADDED, max_batch_size=3, workers=0
    ) as loader:
        for found in loader:
            assert found.lengths.tolist() == lengths
            for row, length in enumerate(lengths):
                assert np.array_equal(found.values[row, :length], VALUES[row, :length])
                assert not found.values[row, length:].any()

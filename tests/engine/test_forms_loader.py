"""A loader whose samples differ in length.

Ragged, padded, bytes and text, by any workers and after any fault.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
import scribbling
from ahead import loader_with
from lengths import LONGEST, SPEC, Lengths, check, digests
from ringfeed import Array, Bytes, Text
from ringfeed.errors import SpecError
from ringfeed.spec.forms import Form
from ringfeed.testing import check_resume

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

LENGTH, ROWS = 53, 8
RAGGED = Array((None,), "float64", max_shape=(LONGEST,), form="ragged")
TIGHT = Array((None,), "float64", max_shape=(12,), form="ragged", total=16)
SETTINGS: list[dict[str, Any]] = [
    {"workers": 1},
    {"workers": 2},
    {"workers": 2, "backend": "process"},
    {"workers": 5, "backend": "fork"},
    {"workers": 5, "backend": "thread"},
    {"workers": 0, "copy": True},
]


class Sized:
    """Sample i is i numbers i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full(index, float(index))


class Together(Lengths):
    """The same samples, several at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class WithReadInto(Lengths):
    """A dataset that could write samples of one shape itself."""

    def read_into(self, index: int, out: Any) -> None:
        raise AssertionError((index, out))


def doubled(sample: dict[str, Any]) -> None:
    """Change a sample in place."""
    sample["boxes"] *= 2
    assert isinstance(sample["text"], str)
    assert len(bytes(sample["encoded"])) < 100


def shortened(sample: dict[str, Any]) -> dict[str, Any]:
    """Return another sample."""
    return {**sample, "boxes": sample["boxes"][:2], "text": sample["text"].upper()}


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Return the hashes of two epochs' batches, filled by the consumer."""
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=ROWS, spec=SPEC, workers=0, shuffle=True
    ) as loader:
        return digests(loader) + digests(loader)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batches_are_the_same(expected: list[str], settings: dict[str, Any]) -> None:
    """Whatever fills them, and in whatever order the rows of a batch are filled."""
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=ROWS, spec=SPEC, shuffle=True, **settings
    ) as loader:
        assert digests(loader) + digests(loader) == expected


@pytest.mark.parametrize("settings", [{"workers": 0}, {"workers": 3, "backend": "fork"}], ids=str)
@pytest.mark.parametrize(
    "dataset",
    [Lengths(LENGTH), Together(LENGTH), WithReadInto(LENGTH)],
    ids=lambda d: type(d).__name__,
)
def test_batches_hold_the_samples(dataset: Lengths, settings: dict[str, Any]) -> None:
    """Each in its own length, in order, the last batch shorter."""
    with ringfeed.Loader(dataset, batch_size=ROWS, spec=SPEC, **settings) as loader:
        for number, batch in enumerate(loader):
            check(batch, [*range(number * ROWS, min(LENGTH, (number + 1) * ROWS))])
        assert number == LENGTH // ROWS


def test_batches_that_are_kept() -> None:
    """Batches that hold all slots are private copies; those before them are not touched."""
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=ROWS, spec=SPEC, workers=2, backend="fork"
    ) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning):
            batches = [*loader]
        assert batches[-1]["boxes"].values.base is None
    for number, batch in enumerate(batches):
        check(batch, [*range(number * ROWS, min(LENGTH, (number + 1) * ROWS))])


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_dies_amid_a_sample(tmp_path: Path) -> None:
    """What it had placed of a leaf with a total is placed once: the budget holds."""
    dataset = Lengths(LENGTH, tmp_path, deaths=(2, 3, 11, 30))
    with ringfeed.Loader(dataset, batch_size=ROWS, spec=SPEC, workers=2, backend="fork") as loader:
        for number, batch in enumerate(loader):
            check(batch, [*range(number * ROWS, min(LENGTH, (number + 1) * ROWS))])
            del batch
        assert loader.stats().restarts >= 4
    assert not [*tmp_path.iterdir()]


def test_a_budget_that_is_used_up_again(tmp_path: Path) -> None:
    """Deaths in one batch whose samples need all of the total.

    Nothing of it is lost to rows that are run again.
    """
    total = sum(len(Lengths(0)[index]["ids"]) for index in range(ROWS))
    spec = {
        **SPEC,
        "tight": Array(
            (None, 2), "float64", max_shape=(LONGEST, 2), form="ragged", total=max(total, 30)
        ),
    }
    dataset = Lengths(ROWS, tmp_path, deaths=(1, 4, 6))
    with ringfeed.Loader(dataset, batch_size=ROWS, spec=spec, workers=1, backend="fork") as loader:
        check(next(iter(loader)), [*range(ROWS)])


# ---- errors ----


def outcome(dataset: Any, spec: Any, **settings: Any) -> tuple[list[Any], list[str]]:
    """Return the batches of an epoch and the texts of its errors."""
    batches, errors = [], []
    with ringfeed.Loader(
        dataset, spec=spec, **{"batch_size": 4, "workers": 0, **settings}
    ) as loader:
        epoch = iter(loader)
        while True:
            try:
                batches.append(next(epoch))
            except StopIteration:
                return batches, errors
            except SpecError as error:
                errors.append(str(error))


@pytest.mark.parametrize("workers", [0, 3])
def test_a_batch_over_its_total(workers: int) -> None:
    """The error names the batch, what it needs and has, whichever rows came too late.

    The next batch comes.
    """
    batches, errors = outcome(Sized(10), TIGHT, workers=workers, backend="fork")
    assert [len(batch) for batch in batches] == [4]
    assert errors == [
        "the batch of dataset[4], dataset[5], dataset[6], dataset[7]: sample needs 22 elements, "
        "expected at most total=16 a batch; raise total= in spec=, or make batch_size smaller",
        "the batch of dataset[8], dataset[9]: sample needs 17 elements, expected at most total=16 "
        "a batch; raise total= in spec=, or make batch_size smaller",
    ]


def test_many_samples_over_their_total() -> None:
    """Four of them are named."""
    _, errors = outcome(Sized(6), {"x": TIGHT}["x"], batch_size=6, workers=0)
    assert not errors
    _, errors = outcome(Sized(7), TIGHT, batch_size=7, workers=0)
    assert errors == [
        "the batch of dataset[0], dataset[1], dataset[2], dataset[3] and 3 more: sample needs 21 "
        "elements, expected at most total=16 a batch; raise total= in spec=, or make batch_size "
        "smaller"
    ]


@pytest.mark.parametrize("workers", [0, 3])
def test_a_batch_over_its_total_is_skipped(workers: int) -> None:
    """As a whole, since which rows fitted depends on the workers."""
    with ringfeed.Loader(
        Sized(11), batch_size=4, spec=TIGHT, workers=workers, backend="fork", on_error="skip"
    ) as loader:
        assert [[len(sample) for sample in batch] for batch in loader] == [[0, 1, 2, 3]]
        assert loader.stats().skipped == [4, 5, 6, 7, 8, 9, 10]


def test_skipped_samples_leave_no_gap() -> None:
    """In any form; a sample that is too long fails alone."""
    spec = {
        "ragged": Array((None,), "float64", max_shape=(5,), form="ragged"),
        "tight": Array((None,), "float64", max_shape=(9,), form="ragged", total=30),
        "pad": Array(
            (None,), "float64", max_shape=(9,), form="pad", padding_value=-1.0, lengths=True
        ),
        "text": Text(9),
    }

    class Failing(Sized):
        def __getitem__(self, index: int) -> Any:
            array = super().__getitem__(9 - index)
            return {"pad": array, "tight": array, "ragged": array, "text": str(index)}

    for settings in ({"workers": 0}, {"workers": 2, "backend": "fork"}):
        with ringfeed.Loader(
            Failing(8), batch_size=8, spec=spec, on_error="skip", **settings
        ) as loader:  # type: ignore[arg-type]
            (batch,) = loader
        assert [len(sample) for sample in batch["ragged"]] == [5, 4, 3, 2]
        assert batch["tight"].values.tolist() == [5.0] * 5 + [4.0] * 4 + [3.0] * 3 + [2.0] * 2
        assert batch["pad"].values[3].tolist() == [2, 2, -1, -1, -1]
        assert batch["pad"].lengths.tolist() == [5, 4, 3, 2]
        assert [*batch["text"]] == ["4", "5", "6", "7"]


REFUSED: list[tuple[Any, Any, str]] = [
    (
        np.zeros((7, 2)),
        Array((None, 2), "float64", max_shape=(6, 2), form="ragged"),
        "dataset[0]: sample has shape (7, 2), expected at most (6, 2); crop it in __getitem__, or "
        "give a larger max_shape in spec=",
    ),
    (
        np.zeros((3, 3)),
        Array((None, 2), "float64", max_shape=(6, 2), form="pad"),
        "dataset[0]: sample has shape (3, 3), expected (None, 2); only axes that are None in "
        "spec= may differ: crop or reshape it in __getitem__",
    ),
    (
        np.zeros(3),
        Array((None, 2), "float64", max_shape=(6, 2), form="pad"),
        "dataset[0]: sample has shape (3,), expected (None, 2); only axes that are None in spec= "
        "may differ: crop or reshape it in __getitem__",
    ),
    (
        np.zeros(3, np.float32),
        RAGGED,
        "dataset[0]: sample has dtype float32, expected float64; convert it in __getitem__, give "
        "this dtype in spec=, or have it converted by cast=True of its Array",
    ),
    (
        None,
        RAGGED,
        (
            "dataset[0]: sample is None, expected an array of shape (None,) and dtype float64; "
            "make it one in __getitem__; on_error='skip' leaves out samples that are None"
        ),
    ),
    (
        "x" * 11,
        Text(10),
        (
            "dataset[0]: sample has 11 bytes, expected at most max_size=10; raise max_size in "
            "spec=, as in Text(16)"
        ),
    ),
    (
        "ab\udc80",
        Text(10),
        "dataset[0]: sample has the surrogate '\\udc80' at character 2, expected text that UTF-8 "
        "can hold; decode the file with errors='replace', or give ringfeed.Bytes in spec=",
    ),
    (
        b"x",
        Text(10),
        "dataset[0]: sample is of type bytes, expected a str; give ringfeed.Bytes in spec=",
    ),
    (
        "x",
        Bytes(10),
        "dataset[0]: sample is of type str, expected bytes, bytearray, memoryview or an array of "
        "uint8 with one axis; give ringfeed.Text in spec=",
    ),
    (
        5,
        Bytes(10),
        "dataset[0]: sample is of type int, expected bytes, bytearray, memoryview or an array of "
        "uint8 with one axis; return one of these from __getitem__",
    ),
]


@pytest.mark.parametrize(
    ("value", "spec", "text"), REFUSED, ids=[text[12:50] for _, _, text in REFUSED]
)
def test_samples_that_do_not_fit(value: Any, spec: Array, text: str) -> None:
    """The error says what and where.

    The samples beside it are delivered with on_error="skip".
    """
    good = (
        "y" if spec == Text(10) else b"y" if spec == Bytes(10) else np.zeros((1, *spec.shape[1:]))
    )

    class Given(Sized):
        def __getitem__(self, index: int) -> Any:
            return value if index == 0 else good

    assert outcome(Given(1), spec)[1] == [text]
    batches, errors = outcome(Given(3), spec, on_error="skip")
    assert not errors
    assert [len(batch) for batch in batches] == [2]


def test_lists_and_other_dtypes() -> None:
    """A list of numbers is a sample, an empty one, too; cast=True converts arrays."""

    class Tokens(Sized):
        def __getitem__(self, index: int) -> Any:
            return [1, 2, 3][:index], np.ones(index)

    spec = (
        Array((None,), "int32", max_shape=(3,), form="ragged"),
        Array((None,), "float32", max_shape=(3,), form="pad", cast=True),
    )
    ((ragged, padded),), errors = outcome(Tokens(4), spec)
    assert not errors
    assert [sample.tolist() for sample in ragged] == [[], [1], [1, 2], [1, 2, 3]]
    assert padded.dtype == np.float32
    assert padded.sum(1).tolist() == [0, 1, 2, 3]


def test_strings_without_a_spec() -> None:
    """The error has the spec to write, which then does."""

    class Captions(Sized):
        def __getitem__(self, index: int) -> Any:
            return {"image": np.zeros((2, 2), np.uint8), "caption": "é" * 40, "jpeg": b"abc"}

    with pytest.raises(SpecError) as raised:
        ringfeed.Loader(Captions(3))
    assert str(raised.value) == (
        "dataset[0]: sample['caption'] is a str, expected an array or number, or spec= for it; "
        "give spec={'image': ringfeed.Array((2, 2), 'uint8'), 'caption': ringfeed.Text(256), "
        "'jpeg': ringfeed.Bytes(64)}, where Text has the most bytes of one sample"
    )
    spec = str(raised.value).partition("give spec=")[2].partition(", where")[0]
    batches, _ = outcome(Captions(3), eval(spec, {"ringfeed": ringfeed}))  # noqa: S307 - the text above
    assert batches[0]["caption"][2] == "é" * 40


# ---- beside what else a loader does ----


@pytest.mark.parametrize("settings", [{"workers": 0}, {"workers": 2, "backend": "fork"}], ids=str)
def test_transforms(settings: dict[str, Any]) -> None:
    """Of samples, in place and anew."""
    whole = Lengths(LENGTH)
    for transform, change in (
        (doubled, lambda boxes: boxes * 2),
        (shortened, lambda boxes: boxes[:2]),
    ):
        with ringfeed.Loader(
            whole, batch_size=ROWS, spec=SPEC, transform=transform, **settings
        ) as loader:
            batch = next(iter(loader))
        assert all(
            np.array_equal(batch["boxes"][row], change(whole[row]["boxes"])) for row in range(ROWS)
        )
    assert [*batch["text"]] == [whole[row]["text"].upper() for row in range(ROWS)]


def test_a_transform_that_returns_a_longer_sample_now_and_then() -> None:
    """One that changes samples in place, but for some: those lie where they have room."""

    def longer(sample: Any) -> Any:
        return np.full(9, 7.0) if sample.size == 3 else None

    for total in (None, 60):
        spec = Array((None,), "float64", max_shape=(12,), form="ragged", total=total)
        with ringfeed.Loader(
            Sized(6), batch_size=6, spec=spec, transform=longer, workers=0
        ) as loader:
            (batch,) = loader
        assert batch.lengths.tolist() == [0, 1, 2, 9, 4, 5]
        assert [set(sample) for sample in batch] == [set(), {1.0}, {2.0}, {7.0}, {4.0}, {5.0}]


def test_columns_are_refused() -> None:
    """The rows of an array have one length."""
    with pytest.raises(SpecError) as raised:
        ringfeed.Loader((np.zeros((9, 3)),), spec=(RAGGED,))
    assert str(raised.value) == (
        "sample[0] is ragged in spec=, but the dataset is made of arrays, whose rows have one "
        "length; give an object whose __getitem__(i) returns sample i in its own length"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches(workers: int) -> None:
    """A list of samples, or a Ragged, is a leaf of a batch, in any form."""
    spec = (RAGGED, Array((None,), "float64", max_shape=(LONGEST,), form="pad"), Text(9))

    class Batches(Sized):
        def __getitem__(self, index: int) -> Any:
            samples = [np.arange(float(row)) for row in range(index + 1)]
            splits = np.cumsum([0, *map(len, samples)])
            return (
                ringfeed.Ragged(np.concatenate(samples), splits),
                samples,
                [str(row) for row in range(index + 1)],
            )

    settings: dict[str, Any] = {
        "batch_size": None,
        "max_batch_size": 9,
        "workers": workers,
        "backend": "fork",
    }
    with ringfeed.Loader(Batches(5), spec=spec, **settings) as loader:
        for index, (ragged, padded, text) in enumerate(loader):
            assert ragged.lengths.tolist() == [*range(index + 1)]
            assert padded.shape == (index + 1, index)
            assert padded.sum() == ragged.values.sum()
            assert [*text] == [str(row) for row in range(index + 1)]


def test_ctrl_c_while_a_batch_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call goes on where it was: nothing is moved twice."""
    interrupted = []

    def beside_of(form: Any, *given: Any) -> Any:
        if len(interrupted) < 2 and form.beside == "mask":
            interrupted.append(form)
            raise KeyboardInterrupt
        return whole(form, *given)

    whole = Form.beside_of
    monkeypatch.setattr(Form, "beside_of", beside_of)
    with ringfeed.Loader(
        Lengths(ROWS), batch_size=ROWS, spec=SPEC, workers=2, backend="fork"
    ) as loader:
        epoch = iter(loader)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(epoch)
        check(next(epoch), [*range(ROWS)])


def test_whole_batches_that_do_not_fit() -> None:
    """In words."""

    class Batches(Sized):
        def __getitem__(self, index: int) -> Any:
            return [5, [np.zeros(9), np.zeros(9)], [np.zeros(1)] * 4, [np.zeros(13)]][index]

    _, errors = outcome(Batches(4), TIGHT, batch_size=None, max_batch_size=3)
    assert errors == [
        "dataset[0]: batch is of type int, expected a list of samples, one a row, an array whose "
        "rows are samples of one shape, or a ringfeed.Ragged; return one of these from __getitem__",
        "dataset[1]: batch needs 18 elements, expected at most total=16 a batch; raise total= in "
        "spec=, or return fewer rows",
        (
            "dataset[2]: batch has 4 rows, expected at most 3; return smaller batches, or raise "
            "max_batch_size"
        ),
        "dataset[3]: sample has shape (13,), expected at most (12,); crop it in __getitem__, or "
        "give a larger max_shape in spec=",
    ]


def test_streams() -> None:
    """An iterable of samples."""

    def samples() -> Any:
        return (np.full(number, 1.0) for number in range(10))

    with ringfeed.Loader(samples, batch_size=4, spec=RAGGED, workers=1, backend="fork") as loader:
        assert [batch.lengths.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_mix_and_weights() -> None:
    """Forms come from several datasets, one of which could write samples itself.

    They come under a PrioritizedSampler, too.
    """
    mix = ringfeed.datasets.Mix([Lengths(20), WithReadInto(20)])
    with ringfeed.Loader(mix, batch_size=8, spec=SPEC, workers=0) as loader:
        for batch in loader:
            check(batch, batch["label"].tolist())
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    with ringfeed.Loader(
        Lengths(LENGTH), batch_size=8, spec=SPEC, workers=2, backend="fork", sampler=sampler
    ) as loader:
        for batch, indices, _ in loader:
            check(batch, indices.tolist())


def test_ranks() -> None:
    """The last batch of a rank is filled up with a sample of its own."""
    for rank in range(2):
        with ringfeed.Loader(
            Lengths(21), batch_size=8, spec=SPEC, workers=0, shard=ringfeed.Shard(rank, 2)
        ) as loader:
            assert [len(batch["text"]) for batch in loader] == [8, 3]


def test_going_on() -> None:
    """Amid an epoch, with other batches."""
    check_resume(
        lambda: ringfeed.Loader(
            Lengths(LENGTH), batch_size=ROWS, spec=SPEC, shuffle=True, workers=0
        )
    )


def test_memory_as_planned() -> None:
    """A slot has room for the longest samples, or the total and one more, and for records."""
    rows, header = 16, 64
    spec = {
        "ragged": Array((None, 4), "float32", max_shape=(100, 4), form="ragged"),
        "total": Array((None, 4), "float32", max_shape=(100, 4), form="ragged", total=400),
        "pad": Array((None, None), "uint8", max_shape=(10, 20), form="pad", pad_to=(16, 24)),
        "text": Text(50, total=320),
    }
    with ringfeed.Loader(Sized(3), batch_size=rows, spec=spec, workers=0) as loader:
        layout = loader.plan.layout
    ragged = header + rows * 24
    total = ragged + rows * 1600 + header + rows * 24
    pad = total + 500 * 16 + header + rows * 32
    text = pad + rows * 24 * 24 + header + rows * 24
    assert layout.offsets == (ragged, total, pad, text)
    assert layout.failures_at == text + 320 + 64  # 50 more, rounded up


# ---- a worker that writes over records ----


class Overwriting(Lengths):
    """At sample 12 its worker fills what stands before fields of each slot with a pattern."""

    def __init__(self, pattern: int | str, place: Path) -> None:
        super().__init__(LENGTH)
        self.pattern, self.marker = pattern, place / "once"
        self.marker.touch()
        self.slot_size = 0
        self.stretches: list[tuple[int, int]] = []

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 12 and self.slot_size and self.marker.exists():
            self.marker.unlink()
            (begin, end), *_ = scribbling.shared_maps("ringfeed-slots")
            for base in range(begin, end, self.slot_size):
                for first, last in self.stretches:
                    scribbling.scribble(
                        scribbling.memory(base + first, last - first), self.pattern, index
                    )
        return super().__getitem__(index)


@pytest.mark.parametrize("pattern", [0, 127, 255, "random"])
def test_records_that_are_overwritten(pattern: int | str, tmp_path: Path) -> None:
    """What is delivered lies within the slot, whatever it is, and the next epoch is right."""
    dataset = Overwriting(pattern, tmp_path)
    settings: dict[str, Any] = {"spec": SPEC, "workers": 2, "backend": "fork", "ahead": False}
    with loader_with(dataset, batch_size=ROWS, **settings) as loader:
        layout = loader.plan.layout
    dataset.slot_size = layout.slot_size
    leaves = [
        (leaf, begin)
        for leaf, begin in zip(loader.spec.leaves, layout.offsets, strict=True)
        if leaf.form
    ]
    dataset.stretches = [
        (at - 64 - ROWS * leaf.form.record_size(), at) for leaf, at in leaves if leaf.form
    ]
    with loader_with(dataset, batch_size=ROWS, copy=True, **settings) as loader:
        epoch = iter(loader)
        while True:
            try:
                batch = next(epoch)
            except StopIteration:
                break
            except SpecError as error:  # a cursor that says that there is no room
                assert "total=" in str(error)  # noqa: PT017 - only some patterns raise
                continue
            for ragged in (batch["boxes"], batch["tight"], batch["encoded"], batch["text"]):
                assert (ragged.lengths >= 0).all()
                assert ragged.row_splits[-1] == len(ragged.values)
        assert not dataset.marker.exists()
        for number, batch in enumerate(loader):
            check(batch, [*range(number * ROWS, min(LENGTH, (number + 1) * ROWS))])


class Restless(Sized):
    """Samples that are longer when they are read again: a worker has died at the last."""

    def __init__(self, file: Path) -> None:
        super().__init__(3)
        self.file = file

    def __getitem__(self, index: int) -> Any:
        if index == 2 and not self.file.exists():
            self.file.touch()
            os._exit(3)
        return np.zeros(2 if index == 2 else 7 if self.file.exists() else 6)


def test_samples_that_come_in_other_lengths_after_a_death(tmp_path: Path) -> None:
    """What they had been placed in is lost, and the error says so.

    They would fit into the total.
    """
    spec = Array((None,), "float64", max_shape=(8,), form="ragged", total=16)
    loader = ringfeed.Loader(
        Restless(tmp_path / "died"), batch_size=3, spec=spec, workers=1, backend="fork"
    )
    with loader, pytest.raises(SpecError) as caught:
        next(iter(loader))
    assert str(caught.value) == (
        "the batch of dataset[0], dataset[1], dataset[2]: sample needs 16 elements of total=16, "
        "but samples came in other lengths when they were read again after a death, and room was "
        "lost; have dataset[i] return the same sample each time, as with ringfeed.rng(), or raise "
        "total= in spec="
    )


# ---- what was lost, doubled or refused without need ----

NOT_FITTING: list[tuple[Array, Any, str]] = [
    (
        Array((None,), "float32", max_shape=(8,), form="ragged"),
        np.float32(1),
        "dataset[0]: sample has shape (), expected (None,); only axes that are None in spec= may "
        "differ: crop or reshape it in __getitem__",
    ),
    (
        Bytes(8),
        np.uint8(1),
        "dataset[0]: sample is of type uint8, expected bytes, bytearray, memoryview or an array "
        "of uint8 with one axis; return one of these from __getitem__",
    ),
]


@pytest.mark.parametrize(("array", "sample", "text"), NOT_FITTING, ids=str)
def test_a_number_is_no_sample_of_a_length(array: Array, sample: Any, text: str) -> None:
    """It was taken for one that is there already.

    The row kept what an earlier batch had there.
    """
    with (
        ringfeed.Loader([sample], batch_size=1, spec=array, workers=0) as loader,
        pytest.raises(SpecError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == text


def test_an_empty_list_is_a_sample_without_elements() -> None:
    """As of a picture without boxes, whose annotation is []."""
    boxes = Array((None, 4), "float32", max_shape=(8, 4), form="ragged")
    samples = [[[1.0, 2.0, 3.0, 4.0]], [], ()]
    with ringfeed.Loader(samples, batch_size=3, spec=boxes, workers=0) as loader:
        found = next(iter(loader))
        assert (found.values.shape, found.lengths.tolist()) == ((1, 4), [1, 0, 0])


@pytest.mark.parametrize("step", [2, -1])
def test_a_memoryview_may_be_strided(step: int) -> None:
    """Its bytes are those that it shows."""
    with ringfeed.Loader(
        [memoryview(b"abcdef")[::step]], batch_size=1, spec=Bytes(8), workers=0
    ) as loader:
        assert bytes(next(iter(loader))[0]) == b"abcdef"[::step]

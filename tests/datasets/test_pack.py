"""`Pack`.

Rows of several samples, read back, on several ranks, from any place on, and what is refused.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import textwrap
import threading
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from refusing import raised
from ringfeed import Array, Loader, ShipError, SpecError, StateError, WorkerError
from ringfeed.datasets import Interleave, Mix, Pack
from ringfeed.orders.rng import SampleContext, installed
from ringfeed.testing import check_resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "two": {"workers": 2},
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 2, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}
COUNT, MOST = 203, 64
LENGTHS = np.clip(np.random.default_rng(3).lognormal(2.5, 1, COUNT).astype(np.int64), 0, MOST)
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Texts:
    """Sequences that say in each element of which sample it is, and where in it.

    And a number that was drawn.
    """

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        elements = 1000 * (index + 1) + np.arange(LENGTHS[index])
        drawn = np.full((LENGTHS[index], 2), ringfeed.rng().random(), np.float32)
        return {"tokens": elements, "drawn": drawn}


class Lists(Texts):
    """The same, as lists of numbers, without names."""

    def __getitem__(self, index: int) -> Any:
        found: Any = super().__getitem__(index)["tokens"].tolist()
        return found


def loader(
    dataset: Any = None, *, pack: dict[str, Any] | None = None, **settings: Any
) -> Loader[Any]:
    """Return a loader of packed texts that fills in this process, unless told otherwise."""
    packed = Pack(
        Texts() if dataset is None else dataset, LENGTHS, MOST, **{"window": 50, **(pack or {})}
    )
    return Loader(
        packed,
        **{"batch_size": 4, "seed": 3, "workers": 0, "copy": True, "timeout_s": 120, **settings},
    )


def segments(batches: Any) -> Iterator[tuple[int, list[int]]]:
    """Give each segment of some batches, found by cu_seqlens.

    Its sample, and which of its elements; check all else.
    """
    for batch in batches:
        for row in range(len(batch["tokens"])):
            tokens, ids, positions, ends = (
                batch[name][row] for name in ("tokens", "segment_ids", "positions", "cu_seqlens")
            )
            used = int(ends[-1])
            assert not any(leaf[used:].any() for leaf in (tokens, ids, positions))
            for number, (begin, end) in enumerate(
                pairwise([*dict.fromkeys(ends.tolist())]), start=1
            ):
                assert ids[begin:end].tolist() == [number] * (end - begin)
                assert positions[begin:end].tolist() == [*range(end - begin)]
                (sample,) = {*(tokens[begin:end] // 1000 - 1).tolist()}
                if "drawn" in batch:
                    assert len(np.unique(batch["drawn"][row][begin:end])) == 1
                yield sample, (tokens[begin:end] % 1000).tolist()


def once(found: Any) -> bool:
    """Whether each element of each sample came once."""
    elements = sorted((sample, element) for sample, part in found for element in part)
    return elements == [
        (sample, element) for sample in range(COUNT) for element in range(LENGTHS[sample])
    ]


def content(batches: Any) -> list[bytes]:
    """Return the bytes of each batch."""
    return [b"".join(leaf.tobytes() for leaf in batch.values()) for batch in batches]


# ---- what comes ----


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("strategy", ["ffd", "wrap"])
def test_boundaries_are_right(strategy: str, shuffle: bool) -> None:  # noqa: FBT001
    """Each sample comes once an epoch, whole or in parts, in segments of its own."""
    with loader(pack={"strategy": strategy}, shuffle=shuffle) as made:
        epochs = [[*made] for _ in range(2)]
        rows = len(made.dataset)
        assert len(made) == len(epochs[0]) == len(epochs[1]) == -(-rows // 4)
    for number, epoch in enumerate(epochs):
        found = [*segments(epoch)]
        assert once(found)
        if strategy == "ffd":
            assert all(part == [*range(LENGTHS[sample])] for sample, part in found)
            assert len(found) == np.count_nonzero(LENGTHS)
        if strategy == "wrap":
            pieces = (
                made.dataset.packing.pieces(row, 3 if shuffle else None, number)
                for row in range(rows)
            )
            assert [sample for sample, _ in found] == [
                *chain(*(row.samples.tolist() for row in pieces))
            ]
    tokens = [np.concatenate([batch["tokens"] for batch in epoch]) for epoch in epochs]
    assert np.array_equal(*tokens) != shuffle
    assert LENGTHS.sum() > (0.9 if strategy == "ffd" else 0.99) * tokens[0].size


@pytest.mark.parametrize("strategy", ["ffd", "wrap"])
def test_rows_are_the_same_whatever_makes_them(strategy: str) -> None:
    """Tokens and each sample's random numbers, which are those of a loader that does not pack."""
    pack = {"strategy": strategy}
    with loader(pack=pack, shuffle=True) as made:
        found = [batch for _ in range(2) for batch in made]
    for way, workers in WAYS.items():
        with loader(pack=pack, shuffle=True, **workers) as made:
            assert content(batch for _ in range(2) for batch in made) == content(found), way
    drawn = {}
    for batch in found[: len(found) // 2]:
        drawn.update(
            zip(
                (batch["tokens"] // 1000 - 1).ravel().tolist(),
                batch["drawn"][..., 0].ravel(),
                strict=True,
            )
        )
    with Loader(Alone(), batch_size=1, seed=3, workers=0) as plain:
        alone = {int(index[0]): number[0] for index, number in plain}
    assert all(drawn[sample] == alone[sample] for sample in np.flatnonzero(LENGTHS).tolist())


class Alone(Texts):
    """Each sample's number, and what it draws."""

    def __getitem__(self, index: int) -> Any:
        return index, np.float32(ringfeed.rng().random())


def test_what_a_sample_may_be() -> None:
    """A list of numbers or an array without a name, a row of an array, dicts.

    Floats of Python are float32.
    """
    with loader(Lists()) as made, loader() as other:
        assert {name: leaf.dtype.str for name, leaf in next(iter(made)).items()} == {
            "tokens": "<i8",
            "segment_ids": "<i4",
            "positions": "<i4",
            "cu_seqlens": "<i4",
        }
        for batch, named in zip(made, other, strict=True):
            assert all(np.array_equal(batch[name], named[name]) for name in batch)
    with loader(
        [[0.5] * length for length in LENGTHS.tolist()], pack={"segment_ids": False}
    ) as made:
        assert repr(made.spec) == "Spec({'tokens': Array((64,), 'float32')})"
        assert sum(batch["tokens"].sum() for batch in made) == LENGTHS.sum() / 2
    with loader([MappingProxyType({"tokens": np.ones(length)}) for length in LENGTHS]) as made:
        assert sum(batch["tokens"].sum() for batch in made) == LENGTHS.sum()
    columns = {"x": np.arange(60).reshape(12, 5), "y": np.ones((12, 5, 2), np.uint8)}
    with Loader(Pack(columns, [5] * 12, 11), batch_size=3, workers=0) as made:
        for number, batch in enumerate(made):
            assert np.array_equal(batch["x"][:, :10], np.arange(60).reshape(2, 3, 10)[number])
            assert (batch["y"].sum(), batch["y"].shape) == (60, (3, 11, 2))


def test_a_row_is_a_sample_of_the_loader() -> None:
    """transform, batch_transform, collate_fn and spec= are for rows.

    Rng in transform belongs to the row's samples.
    """

    def masked(row: dict[str, Any], rng: np.random.Generator) -> None:
        row["tokens"][rng.random(MOST) < 0.1] = 7

    def anew(row: dict[str, Any], rng: np.random.Generator) -> Any:
        return {
            "tokens": np.where(rng.random(MOST) < 0.1, 7, row["tokens"]),
            "more": row["segment_ids"].max(),
        }

    found = []
    for given in (
        {"transform": masked},
        {"transform": anew},
        {"transform": masked, "collate_fn": stacked},
    ):
        for way in ("here", "threads"):
            with loader(shuffle=True, **given, **WAYS[way]) as made:
                found.append(np.concatenate([batch["tokens"] for batch in made]))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    samples = tuple(
        Pack(Texts(), LENGTHS, MOST, window=50).packing.pieces(0, None, 0).samples.tolist()
    )
    with loader(transform=lambda _, rng: rng.random(2, np.float32)) as made:
        assert np.array_equal(next(iter(made))[0], drawn_by(samples))
    assert 0.05 < (found[0] == 7).mean() < 0.15
    with loader() as made, loader(spec=made.spec, batch_transform=doubled, **WAYS["two"]) as other:
        for batch, changed in zip(made, other, strict=True):
            assert np.array_equal(2 * batch["tokens"], changed["tokens"])


def drawn_by(samples: tuple[int, ...]) -> Any:
    """Return the first random numbers of a batch of these samples."""
    try:
        installed.context = SampleContext(3, index=samples)
        return ringfeed.rng().random(2, np.float32)
    finally:
        installed.context = None


def stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch of rows."""
    return {"tokens": np.stack([row["tokens"] for row in rows])}


def doubled(batch: dict[str, Any]) -> None:
    """Change a batch."""
    batch["tokens"] *= 2


def test_rows_are_converted_by_a_spec() -> None:
    """Frames of uint8 become float32 on their way."""
    frames = [np.full((length, 3), 51, np.uint8) for length in LENGTHS]
    with loader(
        frames, pack={"segment_ids": False}, spec={"tokens": Array((MOST, 3), "int32", cast=True)}
    ) as made:
        assert sum(batch["tokens"].sum() for batch in made) == 51 * 3 * LENGTHS.sum()
    spec = {"tokens": Array((MOST, 3), "float32", scale=1 / 255)}
    with loader(frames, pack={"segment_ids": False}, spec=spec) as made:
        assert np.isclose(sum(batch["tokens"].sum() for batch in made), 0.2 * 3 * LENGTHS.sum())


class Shrinking(Texts):
    """Gets another version after each epoch, then loses a sample."""

    version = 0

    def __len__(self) -> int:
        return COUNT - (self.version > 1)

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = ringfeed.worker_info()
        assert info is None or type(info.dataset) is Shrinking
        return {"version": np.full(LENGTHS[index], self.version)}

    def on_epoch_end(self) -> None:
        self.version += 1


@pytest.mark.parametrize("way", ["here", "two"])
def test_hooks_of_the_dataset_run(way: str) -> None:
    """Workers see what they change, and lengths must still fit."""
    with loader(Shrinking(), pack={"segment_ids": False}, **WAYS[way]) as made:
        assert {*np.unique([batch["version"].max() for batch in made])} == {0}
        text = raised(ValueError, lambda: content(made))
        assert text == "Pack has 203 lengths, but the dataset has 202 samples; give one for each"
        assert made.epoch == 2


# ---- resuming and ranks ----


@pytest.mark.parametrize("strategy", ["ffd", "wrap"])
def test_a_run_goes_on_anywhere(strategy: str) -> None:
    """With the rows that were left, bit for bit.

    The state is a place alone, and of this Pack alone.
    """
    check_resume(lambda: loader(pack={"strategy": strategy}, shuffle=True), cuts=4)
    with loader(pack={"strategy": strategy}, shuffle=True) as made:
        next(iter(made))
        state = json.loads(json.dumps(made.state_dict()))
        assert re.fullmatch(f"pack:{strategy}:[0-9a-f]{{8}}:shuffled", state["order"])
        assert (state["samples"], state["length"], "sampler" in state) == (4, COUNT, False)
    plain = {"strategy": strategy, "segment_ids": False}
    with (
        loader(pack=plain, shuffle=True) as made,
        loader(pack={**plain, "window": 51}, shuffle=True) as other,
    ):
        state = made.state_dict()
        text = raised(StateError, lambda: other.load_state_dict(state))
    assert text.startswith(
        f"the state was taken with order '{state['order']}', and this loader has order 'pack:"
    )


@pytest.mark.parametrize("strategy", ["ffd", "wrap"])
def test_four_ranks_go_on_as_two(strategy: str) -> None:
    """With another batch size: each sample of the epoch comes once."""
    settings: dict[str, Any] = {"pack": {"strategy": strategy}, "shuffle": True}
    found = []
    for rank in range(4):
        with loader(shard=ringfeed.Shard(rank, 4, "keep"), batch_size=2, **settings) as made:
            batches = iter(made)
            found += [next(batches) for _ in range(2)]
            state = made.state_dict()
    for rank in range(2):
        with loader(shard=ringfeed.Shard(rank, 2, "keep"), batch_size=3, **settings) as made:
            made.load_state_dict(state)
            found += [*made]
    assert once(segments(found))


# ---- what goes wrong ----


class Wrong(Texts):
    """One sample is what a function makes of it."""

    def __init__(self, make: Callable[[dict[str, Any]], Any]) -> None:
        self.make = make

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return self.make(sample) if index == 17 else sample


def eleven(_: object) -> Any:
    """Raise."""
    raise ValueError("eleven")


def row_of(sample: int, made: Loader[Any]) -> int:
    """Return the row of an unshuffled loader that a sample is in."""
    packing = made.dataset.packing
    return next(
        row for row in range(packing.rows) if sample in packing.pieces(row, None, 0).samples
    )


@pytest.mark.parametrize("way", ["here", "two"])
def test_a_sample_that_fails_is_named(way: str) -> None:
    """With its row, and the user's error as the cause; with "skip" the row is left out."""
    with loader(Wrong(eleven), **WAYS[way]) as made, pytest.raises(WorkerError) as caught:
        content(made)
    row = row_of(17, made)
    assert row > 0
    assert str(caught.value) == f"dataset[17] (row {row} of the Pack) raised ValueError: eleven"
    assert type(caught.value.__cause__) is ValueError
    with loader(Wrong(eleven), on_error="skip", **WAYS[way]) as made:
        found = {sample for sample, _ in segments(made)}
        assert made.stats().skipped == [row]
        lost = {*made.dataset.packing.pieces(row, None, 0).samples.tolist()}
        assert found == {*np.flatnonzero(LENGTHS).tolist()} - lost


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda sample: {name: leaf[1:] for name, leaf in sample.items()},
            "sample['tokens'] has 8 elements, expected 9, as lengths= says; give Pack() the "
            "lengths of the samples as __getitem__ returns them",
        ),
        (
            lambda sample: {**sample, "drawn": 3},
            "sample['drawn'] is of type int, "
            "expected a sequence of numbers, or of lists of one length; return an array of "
            "one row an element, a list of numbers, or a dict of these, from __getitem__",
        ),
        (
            lambda sample: {**sample, "drawn": np.float32(3)},
            "sample['drawn'] is of type float32, "
            "expected a sequence of numbers, or of lists of one length; return an array of "
            "one row an element, a list of numbers, or a dict of these, from __getitem__",
        ),
        (
            lambda sample: {**sample, "drawn": ["a"]},
            "sample['drawn'] is the list ['a'], "
            "expected a sequence of numbers, or of lists of one length; return an array of "
            "one row an element, a list of numbers, or a dict of these, from __getitem__",
        ),
        (
            lambda sample: {**sample, "drawn": [[1], [1, 2]]},
            "sample['drawn'] is the list [[1], [1, 2]], "
            "expected a sequence of numbers, or of lists of one length; return an array of "
            "one row an element, a list of numbers, or a dict of these, from __getitem__",
        ),
        (
            lambda sample: {**sample, "drawn": sample["drawn"].astype(np.float64)},
            "sample['drawn'] has float64 elements of shape (2,), expected float32 of shape (2,); "
            "return elements of one dtype and shape for every index",
        ),
        (
            lambda sample: {"tokens": sample["tokens"]},
            (
                "sample has the keys ['tokens'], expected ['tokens', 'drawn']; return the same "
                "keys for every index"
            ),
        ),
    ],
)
@pytest.mark.parametrize("way", ["here", "threads"])
def test_what_is_no_sequence_is_named(make: Any, text: str, way: str) -> None:
    """By its own number and its row."""
    with loader(Wrong(make), **WAYS[way]) as made:
        found = raised(SpecError, lambda: [*made])
        assert found == f"dataset[17] (row {row_of(17, made)} of the Pack): {text}"


def test_a_row_that_ends_workers_is_named_with_its_samples() -> None:
    """Since a worker that has died cannot say which it was."""

    def die(_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    with loader(Wrong(die), workers=1, max_attempts=1) as made:
        text = raised(WorkerError, lambda: [*made])
        row = row_of(17, made)
        samples = made.dataset.packing.pieces(row, None, 0).samples.tolist()
    names = ", ".join(f"dataset[{sample}]" for sample in samples[:4])
    more = f" and {len(samples) - 4} more" if len(samples) > 4 else ""
    assert text == (
        f"row {row} of the Pack ({names}{more}) ended its worker; the last one was killed by "
        "SIGKILL; try it with workers=0"
    )


def test_a_worker_that_dies_costs_nothing(tmp_path: Path) -> None:
    """Its row is made again by another."""
    died = str(tmp_path / "died")

    def die_once(sample: Any) -> Any:
        if not os.path.exists(died):  # noqa: PTH110 - what is sent is small
            open(died, "x").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    with loader(shuffle=True) as made, loader(Wrong(die_once), shuffle=True, workers=2) as other:
        assert content(made) == content(other)


class Never(Texts):
    """Samples that cannot be read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise ValueError("never")


def test_what_raises_at_once() -> None:
    """With the first row: as it is raised, or with "skip" with a way out."""
    assert raised(ValueError, lambda: Loader(Pack(Never(), [5] * 3, 8))) == "never"
    assert raised(SpecError, lambda: Loader(Pack(Never(), [5] * 3, 8), on_error="skip")) == (
        "row 0 of the Pack, read for the spec, raised ValueError: never, and the 2 read "
        "after it failed, too; on_error='skip' leaves none out before the spec is known: give "
        "spec="
    )


def test_what_cannot_travel_is_named_as_the_user_knows_it() -> None:
    """By its path in the dataset."""
    dataset = Texts()
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    for given in ({}, {"transform": doubled}):
        text = raised(ShipError, lambda given=given: loader(dataset, workers=1, **given))
        assert text.startswith("dataset.lock is a lock and cannot be sent to a worker process; "), (
            text
        )


FIVE = [np.arange(5)] * 3
EXPECTED = (
    "but a row of the Pack is a dict as "
    "{'tokens': Array((8,), 'int64'), 'segment_ids': Array((8,), 'int32'), 'positions': "
    "Array((8,), 'int32'), 'cu_seqlens': Array((2,), "
    "'int32')}; give the keys of your samples in the place of 'tokens', or leave spec= out"
)


@pytest.mark.parametrize(
    ("given", "settings", "kind", "text"),
    [
        (
            (FIVE, 3, 8),
            {},
            TypeError,
            "lengths is 3, expected an array or another iterable of integers",
        ),
        (
            (FIVE, [5.0, 5, 5], 8),
            {},
            TypeError,
            "lengths is an array of float64, expected integers",
        ),
        (
            (FIVE, [[5, 5, 5]], 8),
            {},
            ValueError,
            "lengths is an array of shape (1, 3), expected one axis",
        ),
        (
            (FIVE, [5, -1, 5], 8),
            {},
            ValueError,
            "lengths[1] is -1, expected an integer of 0 or more",
        ),
        (
            (FIVE, [0, 0, 0], 8),
            {},
            ValueError,
            "lengths has no sample of 1 or more, so there is no row",
        ),
        ((FIVE, [], 8), {}, ValueError, "lengths has no sample of 1 or more, so there is no row"),
        (
            (FIVE, [5, 9, 5], 8),
            {},
            ValueError,
            "lengths[1] is 9, more than max_length=8, and strategy='ffd' keeps samples whole; "
            "raise max_length=, cut the sample in the dataset, or give strategy='wrap'",
        ),
        ((FIVE, [5] * 3, 0), {}, ValueError, "max_length=0 must be at least 1"),
        (
            (FIVE, [5] * 3, 8.0),
            {},
            TypeError,
            "max_length=8.0 must be an int",
        ),
        (
            (FIVE, [5] * 3, 8),
            {"strategy": "best"},
            ValueError,
            "strategy='best'; choose one of 'ffd', 'wrap'",
        ),
        (
            (FIVE, [5] * 3, 8),
            {"window": 0},
            ValueError,
            "window=0 must be at least 1",
        ),
        (
            (iter(FIVE), [5] * 3, 8),
            {},
            TypeError,
            "the dataset of Pack() is an iterable (a list_iterator), whose samples have no "
            "numbers; give an object with __len__ and __getitem__",
        ),
        (
            (Interleave([iter(FIVE)]), [5] * 3, 8),
            {},
            TypeError,
            "the dataset of Pack() is an iterable (a Interleave), whose samples have no numbers; "
            "give an object with __len__ and __getitem__",
        ),
        (
            (Mix([FIVE]), [5] * 3, 8),
            {},
            TypeError,
            "the dataset of Pack() is a Mix, which has an order of its own; give a dataset",
        ),
        (
            (type("Endless", (), {"__getitem__": eleven})(), [5], 8),
            {},
            TypeError,
            "the dataset of Pack() (a Endless) has no __len__; add one",
        ),
    ],
)
def test_what_cannot_be_packed(given: Any, settings: Any, kind: type[Exception], text: str) -> None:
    """It is refused without a loader."""
    assert raised(kind, lambda: Pack(*given, **settings)) == text


@pytest.mark.parametrize(
    ("given", "settings", "kind", "text"),
    [
        (
            [5, 5],
            {},
            ValueError,
            "Pack has 2 lengths, but the dataset has 3 samples; give one for each",
        ),
        (
            [5] * 3,
            {"batch_size": None},
            ValueError,
            (
                "Pack makes rows, of which the loader makes batches; with batch_size=None leave "
                "Pack out"
            ),
        ),
        (
            [5] * 3,
            {"shuffle": 100},
            ValueError,
            "shuffle=100 is for samples, and a Pack has an order of rows of its own; give the "
            "loader shuffle=True or False",
        ),
        (
            [5] * 3,
            {"sampler": [0, 1]},
            ValueError,
            "sampler= is for samples, and a Pack has an order of rows of its own; give the loader "
            "shuffle=True or False",
        ),
        (
            [5] * 3,
            {"batch_sampler": [[0, 1]]},
            ValueError,
            "batch_sampler= is for samples, and a Pack has an order of rows of its own; give the "
            "loader shuffle=True or False",
        ),
        (
            [5] * 3,
            {"spec": {"tokens": Array((8,), "int64")}},
            SpecError,
            f"spec= says {{'tokens': Array((8,), 'int64')}}, {EXPECTED}",
        ),
        (
            [5] * 3,
            {"spec": Array((8,), "int64")},
            SpecError,
            f"spec= says Array((8,), 'int64'), {EXPECTED}",
        ),
    ],
)
def test_what_a_loader_of_rows_cannot_be(
    given: Any, settings: Any, kind: type[Exception], text: str
) -> None:
    """It is refused before a row is read."""
    assert raised(kind, lambda: Loader(Pack(FIVE, given, 8), **{"workers": 0, **settings})) == text


def test_names_of_its_own() -> None:
    """A sample may have them where Pack adds none."""
    clash = [{"positions": row} for row in FIVE]
    assert raised(SpecError, lambda: Loader(Pack(clash, [5] * 3, 8), workers=0)) == (
        "the samples of the Pack have 'positions' of their own, which Pack() adds; give "
        "segment_ids=False, or leave it out in __getitem__"
    )
    with Loader(Pack(clash, [5] * 3, 8, segment_ids=False), workers=0, batch_size=3) as made:
        assert next(iter(made))["positions"][:, :5].tolist() == [[0, 1, 2, 3, 4]] * 3


# ---- what is told of it ----


def test_it_says_what_it_is() -> None:
    """Samples and rows."""
    pack = Pack(Texts(), LENGTHS, MOST, strategy="wrap")
    assert repr(pack) == f"<Pack: 203 samples in {len(pack)} rows of 64, by 'wrap'>"
    assert len(pack) == -(-LENGTHS.sum() // 64)
    with Loader(pack, batch_size=4, workers=0) as made:
        assert made.dataset is pack
        assert made.spec.tree["cu_seqlens"].shape == (pack.packing.most + 1,)


def examples() -> list[str]:
    """Return the code of the docstring, and that of the page."""
    text = inspect.getdoc(Pack)
    assert text is not None
    own = textwrap.dedent(text[text.index("    documents =") : text.index("dataset: a sample")])
    learnt = text[text.index("    def tokens") : text.index("The workers read samples")]
    own += textwrap.dedent(learnt) + "assert sum(1 for _ in loader) > 1"
    page = Path(__file__).parents[2] / "docs" / "packing.md"
    return [own, "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))]


@pytest.mark.parametrize("code", examples(), ids=["docstring", "page"])
def test_the_examples_work_as_they_stand(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the docstring and of docs/packing.md, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"np": np, "ringfeed": ringfeed, "train_step": lambda *_: None}
    exec(code, found)  # noqa: S102 - our own
    found["loader"].close()
    if "Cache" in code:
        assert len(found["pack"]) > 1
        assert found["tokens"].stats()[2:5] == (0, 0, 500)


# ---- samples of a row, read at once ----


class Bulk:
    """Texts without random numbers, of which many are read at once; ``asked``.

    For which, each time.
    """

    def __init__(self, broken: int = -1) -> None:
        self.asked: list[list[int]] = []
        self.alone: list[int] = []
        self.broken = broken

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> np.ndarray:
        self.alone.append(index)
        if index == self.broken:
            raise ValueError("corrupt")
        return self.text(index)

    def text(self, index: int) -> np.ndarray:
        found: np.ndarray = 1000 * (index + 1) + np.arange(LENGTHS[index])
        return found

    def __getitems__(self, indices: list[int]) -> Iterator[np.ndarray]:
        self.asked.append([*indices])
        for index in indices:
            if index == self.broken:
                raise ValueError("corrupt")
            yield self.text(index)


@pytest.mark.parametrize("strategy", ["ffd", "wrap"])
def test_the_samples_of_a_row_are_read_at_once(strategy: Any) -> None:
    """By one call of __getitems__ a row, and the rows are those that __getitem__ makes."""
    dataset, alone = Bulk(), Bulk()
    alone.__class__ = type("Alone", (Bulk,), {"__getitems__": None})
    settings: dict[str, Any] = {"batch_size": 4, "workers": 0, "shuffle": True, "copy": True}
    rows: list[Any] = []
    for each in (dataset, alone):
        with Loader(Pack(each, LENGTHS, MOST, strategy=strategy), **settings) as found:
            rows.append([{name: leaf.tolist() for name, leaf in batch.items()} for batch in found])
    assert rows[0] == rows[1]
    assert not alone.asked
    assert len(dataset.asked) > 1
    assert all(len(indices) > 1 for indices in dataset.asked)
    assert len(dataset.alone) < len(alone.alone) / 4


def test_a_sample_that_fails_among_many() -> None:
    """It is found and named; with on_error="skip" its row alone is left out."""
    broken = int(np.flatnonzero(LENGTHS > 3)[17])
    settings: dict[str, Any] = {"batch_size": 4, "workers": 0, "timeout_s": 60}
    with (
        Loader(Pack(Bulk(broken), LENGTHS, MOST), **settings) as found,
        pytest.raises(WorkerError) as caught,
    ):
        for _ in found:
            pass
    assert re.fullmatch(
        rf"dataset\[{broken}\] \(row \d+ of the Pack\) raised ValueError: corrupt",
        str(caught.value),
    )
    pack = Pack(Bulk(broken), LENGTHS, MOST)
    with Loader(pack, on_error="skip", **settings) as found:
        assert sum(len(batch["tokens"]) for batch in found) == len(pack) - 1

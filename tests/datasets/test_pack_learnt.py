"""`Pack` without lengths.

Each token once, whatever reads, stops or fails; the same rows for any number of workers and ranks.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from refusing import raised
from ringfeed import Array, Loader, SpecError, StateError, WorkerError
from ringfeed.datasets import Mix, Pack
from ringfeed.orders import PrioritizedSampler
from ringfeed.testing import check_resume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "two": {"workers": 2},
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 2, "backend": "fork"},
}
COUNT, MOST, WINDOW, CHUNK = 331, 64, 60, 3
LENGTHS = np.clip(np.random.default_rng(3).lognormal(2.5, 1, COUNT).astype(np.int64), 0, MOST)
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Texts:
    """Samples that are their numbers, as a text ahead of its tokens."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def tokens(index: int) -> Any:
    """Say in each element of which sample it is, and where in it."""
    return 1000 * (index + 1) + np.arange(LENGTHS[index])


def loader(
    dataset: Any = None, *, pack: dict[str, Any] | None = None, **settings: Any
) -> Loader[Any]:
    """Return a loader of packed texts that reads in this process, unless told otherwise."""
    packed = Pack(
        Texts() if dataset is None else dataset,
        max_length=MOST,
        **{"window": WINDOW, **(pack or {})},
    )
    return Loader(
        packed,
        **{
            "batch_size": 4,
            "seed": 3,
            "workers": 0,
            "copy": True,
            "shuffle": True,
            "transform": tokens,
            "timeout_s": 120,
            **settings,
        },
    )


def elements(batches: Iterable[Any]) -> list[int]:
    """Return all elements of some batches but padding."""
    return [*chain(*(batch["tokens"][batch["segment_ids"] > 0].tolist() for batch in batches))]


def once(batches: Iterable[Any], samples: Iterable[int] = range(COUNT)) -> bool:
    """Whether each element of these samples came once."""
    return sorted(elements(batches)) == [*chain(*(tokens(index).tolist() for index in samples))]


def content(batches: Iterable[Any]) -> list[bytes]:
    """Return the bytes of each batch."""
    return [b"".join(leaf.tobytes() for leaf in batch.values()) for batch in batches]


# ---- what comes ----


@pytest.mark.parametrize("shuffle", [False, True, 40])
def test_each_element_comes_once(shuffle: Any) -> None:
    """In segments of whole samples, in other rows each epoch where the order is another."""
    with loader(shuffle=shuffle) as made:
        epochs = [[*made] for _ in range(2)]
    for epoch in epochs:
        assert once(epoch)
        for batch in epoch:
            for row in range(len(batch["tokens"])):
                ends = [*dict.fromkeys(batch["cu_seqlens"][row].tolist())]
                parts = np.split(batch["tokens"][row][: ends[-1]], ends[1:-1])
                assert [part.tolist() for part in parts] == [
                    tokens(part[0] // 1000 - 1).tolist() for part in parts
                ]
                assert batch["positions"][row][: ends[-1]].tolist() == [
                    *chain(*(range(len(part)) for part in parts))
                ]
                assert not batch["tokens"][row][ends[-1] :].any()
    assert (content(epochs[0]) == content(epochs[1])) == (shuffle is False)
    assert len(elements(epochs[0])) > 0.9 * sum(batch["tokens"].size for batch in epochs[0])


def test_rows_are_those_that_the_module_says() -> None:
    """Windows in the order of the samples, first fit decreasing, and mixed by seed and window."""
    with loader(shuffle=False) as made:
        found = np.concatenate([batch["tokens"] for batch in made])
    expected = []
    for number, first in enumerate(range(0, COUNT, WINDOW)):
        rows: list[list[int]] = []
        samples = range(first, min(first + WINDOW, COUNT))
        for sample in sorted(samples, key=lambda one: -LENGTHS[one]):
            fits = (row for row in rows if len(row) + LENGTHS[sample] <= MOST)
            if LENGTHS[sample]:
                row = next(fits, None)
                row = rows.append([]) or rows[-1] if row is None else row
                row += tokens(sample).tolist()
        seed = ringfeed.orders.rng.seed_of("pack", (3, number))
        places = ringfeed.orders.permutation.permute(np.arange(len(rows)), len(rows), seed, 0)
        expected += [rows[place] + [0] * (MOST - len(rows[place])) for place in places.tolist()]
    assert found.tolist() == expected


def test_rows_are_the_same_whatever_reads() -> None:
    """Any workers; each sample has its own random numbers."""

    def drawn(index: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"tokens": tokens(index), "drawn": np.full((LENGTHS[index], 2), rng.random())}

    with loader(transform=drawn) as made:
        found = content(batch for _ in range(2) for batch in made)
    for way, workers in WAYS.items():
        with loader(transform=drawn, **workers) as made:
            assert content(batch for _ in range(2) for batch in made) == found, way


def test_what_a_sample_may_be() -> None:
    """Lists of numbers, rows of arrays, dicts; an empty one gives no segment."""
    lists = [tokens(index).tolist() for index in range(COUNT)]
    with loader() as made, loader(lists, transform=None) as other:
        assert content(made) == content(other)
    columns = {"x": np.arange(60).reshape(12, 5), "y": np.ones((12, 5, 2), np.uint8)}
    with loader(columns, transform=None, batch_size=1, pack={"segment_ids": False}) as made:
        (batch,) = made
    assert sorted(batch["x"][batch["x"] > 0].tolist()) == [*range(1, 60)]
    assert (batch["y"].sum(), batch["y"].shape) == (120, (1, MOST, 2))


def test_length_of_says_which_elements_count() -> None:
    """The first ones of each leaf: what a tokeniser has padded is left out."""

    def padded(index: int) -> dict[str, Any]:
        ids = np.zeros(MOST + 9, np.int64)
        ids[: LENGTHS[index]] = tokens(index)
        return {"tokens": ids, "mask": ids > 0}

    pack = {"length_of": lambda sample: sample["mask"].sum()}
    with loader(transform=padded, pack=pack) as made, loader() as other:
        for batch, plain in zip(made, other, strict=True):
            assert np.array_equal(batch["tokens"], plain["tokens"])
            assert np.array_equal(batch["mask"], plain["segment_ids"] > 0)


def test_transform_is_for_samples_and_batch_transform_for_rows() -> None:
    """A transform may change the sample in place; the dataset stays as it was."""

    def change(sample: Any) -> None:
        sample += 1

    samples = [tokens(index) for index in range(COUNT)]
    with (
        loader(samples, transform=change, batch_transform=doubled) as made,
        loader(samples, transform=None) as other,
    ):
        for batch, plain in zip(made, other, strict=True):
            used = plain["segment_ids"] > 0
            assert np.array_equal(batch["tokens"], 2 * (plain["tokens"] + used))


def doubled(batch: dict[str, Any]) -> None:
    """Change a batch."""
    batch["tokens"] *= 2


def test_rows_are_converted_by_a_spec() -> None:
    """Of the keys that the samples have."""
    with loader(pack={"segment_ids": False}) as made, loader() as other:
        spec = {"tokens": Array((MOST,), "int32", cast=True)}
        with loader(pack={"segment_ids": False}, spec=spec) as cast:
            for batch, plain, full in zip(cast, made, other, strict=True):
                assert batch["tokens"].dtype == np.int32
                assert np.array_equal(batch["tokens"], plain["tokens"])
                assert np.array_equal(batch["tokens"], full["tokens"])
    text = raised(SpecError, lambda: loader(spec={"tokens": Array((8,), "int64")}))
    assert text.startswith("spec= says {'tokens': Array((8,), 'int64')}, but a row of the Pack is")


def test_a_mix_is_packed() -> None:
    """Its weights count samples, and all come once."""
    with loader(Mix([Part(0, 200), Part(200, 131)]), transform=None) as made:
        assert once(made)
    mix = Mix([Part(0, 200), Part(200, 131)], [2, 1], per_batch=True)
    with loader(mix, transform=None, shuffle=False, pack={"window": 48}) as made:
        taken = {element // 1000 - 1 for element in elements(made)}
    assert taken == {*range(200), *range(200, 300)} - {*np.flatnonzero(LENGTHS == 0).tolist()}
    check_resume(lambda: loader(mix, transform=None), cuts=4)

    def weights(epoch: int, batch: int) -> list[int]:
        return [1 + epoch, 1 + batch // 20]

    mix = Mix([Part(0, 200), Part(200, 131)], weights)
    check_resume(lambda: loader(mix, transform=None), cuts=4)


class Part(Texts):
    """Some samples, as tokens."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__(count)
        self.first = first

    def __getitem__(self, index: int) -> Any:
        return tokens(self.first + index)


# ---- resuming and ranks ----


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"shuffle": 40}, WAYS["threads"]])
def test_a_run_goes_on_anywhere(settings: dict[str, Any]) -> None:
    """With the rows that were left, bit for bit."""
    check_resume(lambda: loader(**settings), cuts=4)


def test_an_order_of_the_users_goes_on() -> None:
    """Its own state is in that of the loader."""

    class Backwards:
        def __init__(self) -> None:
            self.read = 0

        def __len__(self) -> int:
            return COUNT

        def __iter__(self) -> Iterator[int]:
            while self.read < COUNT:
                self.read += 1
                yield COUNT - self.read
            self.read = 0

        def state_dict(self) -> dict[str, int]:
            return {"read": self.read}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.read = state["read"]

    check_resume(lambda: loader(shuffle=False, sampler=Backwards()), cuts=4)
    with loader(shuffle=False, sampler=Backwards()) as made:
        batches = iter(made)
        for _ in range(9):
            next(batches)
        kept = made.state_dict()["sampler"]
    assert kept["samples"] - MOST < kept["order"]["position"] <= kept["samples"]


class Counted(Texts):
    """Counts what is read."""

    read = 0

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


def test_a_state_is_a_few_integers() -> None:
    """It goes on after no more samples than those of its window, in this Pack alone."""
    with loader() as made:
        batches = iter(made)
        for _ in range(9):
            next(batches)
        state = json.loads(json.dumps(made.state_dict()))
        rest = content(batches)
    begun = {"rows": state["sampler"]["rows"], "samples": 2 * WINDOW}
    assert state["sampler"] == {**begun, "order": None, "hooks": None}
    assert (state["samples"], state["length"]) == (36, COUNT)
    assert state["order"] == "pack:64:60:shuffled"
    assert len(pickle.dumps(state)) <= 500
    dataset = Counted()
    with loader(dataset) as made:
        made.load_state_dict(state)
        dataset.read, batches = 0, iter(made)
        first = next(batches)
        assert dataset.read <= 2 * WINDOW  # the next window is begun by then
        assert content([first, *batches]) == rest
    pack = {"segment_ids": False}
    with loader(pack=pack) as made, loader(pack={**pack, "window": 30}) as other:
        state = made.state_dict()
        text = raised(StateError, lambda: other.load_state_dict(state))
    assert text.startswith(
        "the state was taken with order 'pack:64:60:shuffled', and this loader has order 'pack:64:"
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rows": 999}, "whose rows is 999, expected at most the state's samples"),
        ({"samples": -60}, "whose samples is -60, expected an int of 0 or more"),
        ({"order": 5}, "the state's 'sampler' is 5, expected none with order 'shuffled'"),
        (None, "the state's 'sampler' is 5, expected a dict of rows, samples, order, hooks"),
    ],
)
def test_a_state_that_was_changed_is_refused(changed: Any, text: str) -> None:
    """It names what is wrong."""
    with loader() as made:
        batches = iter(made)
        next(batches)
        state = made.state_dict()
        state["sampler"] = 5 if changed is None else {**state["sampler"], **changed}
        assert text in raised(StateError, lambda: made.load_state_dict(state))


def test_a_part_of_an_epoch_can_be_left_out() -> None:
    """By skip(), also beyond the window that comes next."""
    with loader() as made:
        whole = content(made)
        made.set_epoch(0)
        for count in (1, 20):
            made.set_epoch(1)
            made.set_epoch(0)
            made.skip(batches=count)
            assert content(made) == whole[count:]


@pytest.mark.parametrize("uneven", ["keep", "pad"])
def test_ranks_may_change(uneven: Any) -> None:
    """4, 2, 3, 1 of them: the same global batches as one that was never stopped."""
    size = 12
    with loader(batch_size=size) as made:
        expected = [row_bytes([batch]) for batch in made]
    found: list[set[bytes]] = []
    state = None
    for ranks, steps in ((4, 2), (2, 1), (3, 2), (1, None)):
        parts, states = [], []
        for rank in range(ranks):
            shard = ringfeed.Shard(rank, ranks, uneven)
            with loader(batch_size=size // ranks, shard=shard) as made:
                if state is not None:
                    made.load_state_dict(state)
                batches = iter(made)
                parts.append([*batches] if steps is None else [next(batches) for _ in range(steps)])
                states.append(made.state_dict())
        assert all(one == states[0] for one in states)
        state = states[0]
        found += [row_bytes(step) for step in zip(*parts, strict=True)]
    assert found == expected


def row_bytes(batches: Iterable[Any]) -> set[bytes]:
    """Return the rows of some batches, in any order."""
    return {row.tobytes() for batch in batches for row in batch["tokens"]}


@pytest.mark.parametrize("uneven", ["keep", "pad", "drop"])
def test_the_last_rows_of_ranks(uneven: Any) -> None:
    """Are shared as those of other orders: kept, padded by rows of the same step, or left out."""
    with loader(batch_size=9) as made:
        whole = [*made]
    parts = []
    for rank in range(3):
        with loader(batch_size=3, shard=ringfeed.Shard(rank, 3, uneven)) as made:
            parts.append([*made])
    steps = len(whole) - (uneven == "drop")
    last = len(whole[-1]["tokens"])
    assert last % 9 > 0
    assert [len(part) for part in parts] == [steps] * 3
    for step in range(steps):
        assert row_bytes(part[step] for part in parts) == row_bytes([whole[step]])
    rows = sum(len(part[-1]["tokens"]) for part in parts)
    assert rows == {"keep": last, "drop": 9, "pad": -(-last // 3) * 3}[uneven]


def test_a_row_of_padding_may_be_of_an_earlier_window() -> None:
    """Where the last window has fewer rows than a step."""
    for count in range(301, 307):
        with loader(Texts(count), batch_size=9) as made:
            (*_, last) = made
        parts = []
        for rank in range(3):
            shard = ringfeed.Shard(rank, 3, "pad")
            with loader(Texts(count), batch_size=3, shard=shard) as made:
                parts.append([*made][-1])
        assert row_bytes(parts) == row_bytes([last])
        assert len({len(part["tokens"]) for part in parts}) == 1


# ---- what goes wrong ----


def eleven(index: int) -> Any:
    """Raise for one sample."""
    if index == 17:
        raise ValueError("eleven")
    return tokens(index)


@pytest.mark.parametrize("way", ["here", "two"])
def test_a_sample_that_fails_is_named(way: str) -> None:
    """In the place of its window, and the rest goes on; with "skip" it is left out alone."""
    with loader(transform=eleven, shuffle=False, **WAYS[way]) as made:
        batches = iter(made)
        text = raised(WorkerError, lambda: next(batches))
        assert text == "dataset[17]: transform raised ValueError: eleven"
        assert made.dataset.chunk == CHUNK
        assert once(batches, [one for one in range(COUNT) if one // CHUNK != 17 // CHUNK])
    with loader(transform=eleven, on_error="skip", **WAYS[way]) as made:
        assert once(made, [one for one in range(COUNT) if one != 17])


def test_samples_that_are_left_out_change_no_other_window() -> None:
    """Though none is left of those that were read together at the end of a window."""

    def fails(index: int) -> Any:
        return eleven(17) if WINDOW - CHUNK <= index < WINDOW else tokens(index)

    with loader(transform=fails, shuffle=False, on_error="skip") as made, loader() as other:
        rows = [row for batch in made for row in batch["tokens"]]
        assert made.stats().skipped == [*range(WINDOW - CHUNK, WINDOW)]
        assert other.stats().skipped == []
    windows = [{*(row[row > 0] // 1000 - 1) // WINDOW} for row in rows]
    assert all(len(found) == 1 for found in windows)
    assert windows == sorted(windows, key=min)


def test_a_later_sample_fails_in_its_place() -> None:
    """The rows of the windows before it come first, and a state taken there leads to it again."""

    def late(index: int) -> Any:
        return eleven(17) if index == 200 else tokens(index)

    before = range(200 // WINDOW * WINDOW)
    with loader(transform=late, shuffle=False) as made, loader(transform=late) as other:
        had, batches = [], iter(made)
        with pytest.raises(WorkerError, match="eleven"):
            had.extend(batches)
        found = elements(had)
        assert {*found} <= {*elements_of(before)}
        assert len(found) > len(elements_of(before)) - 4 * MOST
        state = made.state_dict()
        assert other is not made
    with loader(transform=late, shuffle=False) as made:
        made.load_state_dict(state)
        with pytest.raises(WorkerError, match="eleven"):
            elements(made)
    with loader(shuffle=False) as made:
        made.load_state_dict(state)
        assert once([*had, *made])


def elements_of(samples: Iterable[int]) -> list[int]:
    """Return all elements of some samples."""
    return [*chain(*(tokens(index).tolist() for index in samples))]


def changed(make: Callable[[Any], Any]) -> Any:
    """Return a transform that changes what becomes of one sample."""
    return lambda index: make(tokens(index)) if index == 17 else tokens(index)


@pytest.mark.parametrize(
    ("pack", "transform", "text"),
    [
        (
            {},
            changed(lambda _: np.arange(65)),
            "has 65 elements, expected at most max_length=64, as samples stay whole; raise "
            "max_length=, or cut the sample in transform= or in __getitem__",
        ),
        (
            {},
            changed(lambda _: 3),
            ": sample is of type int, expected a sequence of numbers, or of lists of one length; "
            "return an array of one row an element, a list of numbers, or a dict of these, from "
            "__getitem__",
        ),
        (
            {"length_of": lambda sample: 99 if sample.size and sample[0] == 18000 else sample.size},
            tokens,
            ": sample['tokens'] has 9 elements, expected 99; return leaves of one length, or have "
            "length_of= say how many count",
        ),
        (
            {"length_of": lambda sample: -1 if sample.size and sample[0] == 18000 else sample.size},
            tokens,
            "makes length_of= fail by ValueError: length_of(sample)=-1 must be at least 0, "
            "expected an int of 0 or more; correct the function",
        ),
        (
            {"length_of": lambda sample: {}[1] if sample.size and sample[0] == 18000 else 0},
            tokens,
            "makes length_of= fail by KeyError: 1, expected an int of 0 or more; correct the "
            "function",
        ),
        (
            {"length_of": lambda sample: 0.5 if sample.size and sample[0] == 18000 else 0},
            tokens,
            "makes length_of= fail by TypeError: length_of(sample)=0.5 must be an int, expected "
            "an int of 0 or more; correct the function",
        ),
    ],
)
@pytest.mark.parametrize("way", ["here", "threads"])
def test_what_does_not_fit_is_named(pack: Any, transform: Any, text: str, way: str) -> None:
    """By its own number, in the dataset of the Mix where it is of one."""
    with loader(pack=pack, transform=transform, **WAYS[way]) as made:
        found = raised(SpecError, lambda: [*made])
    assert found == f"dataset[17]{text if text[0] == ':' else f' {text}'}"
    with loader(Mix([Texts(7), Texts(90)]), pack=pack, transform=transform) as made:
        found = raised(SpecError, lambda: [*made])
    assert found == f"dataset 1[17]{text if text[0] == ':' else f' {text}'}"


def test_leaves_of_different_lengths_are_refused() -> None:
    """Unless length_of says how many of each count."""

    def two(index: int) -> dict[str, Any]:
        return {"a": tokens(index), "b": tokens(index)[index == 17 :]}

    with loader(transform=two, pack={"segment_ids": False}) as made:
        assert raised(SpecError, lambda: [*made]) == (
            "dataset[17]: sample['b'] has 8 elements, expected 9; return leaves of one length, or "
            "have length_of= say how many count"
        )


def test_a_worker_that_dies_costs_nothing(tmp_path: Path) -> None:
    """Its samples are read again by another; one that kills all is an error that names it."""
    died = str(tmp_path / "died")

    def die_once(index: int) -> Any:
        if index == 17 and not os.path.exists(died):  # noqa: PTH110 - what is sent is small
            open(died, "x").close()  # noqa: PTH123
            os.kill(os.getpid(), signal.SIGKILL)
        return tokens(index)

    with loader() as made, loader(transform=die_once, workers=2) as other:
        assert content(made) == content(other)
    assert Path(died).exists()

    def die(index: int) -> Any:
        if index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return tokens(index)

    with loader(transform=die, workers=1, max_attempts=1) as made:
        text = raised(WorkerError, lambda: [*made])
    assert text.startswith("dataset[17] ended its worker")


class Shrinking(Texts):
    """Loses a sample after each epoch."""

    gone = 0

    def __len__(self) -> int:
        return COUNT - self.gone

    def on_epoch_end(self) -> None:
        self.gone += 1


@pytest.mark.parametrize("way", ["here", "two"])
def test_hooks_of_the_dataset_run(way: str) -> None:
    """Between its epochs."""
    with loader(Shrinking(), **WAYS[way]) as made:
        for gone in range(3):
            assert once(made, range(COUNT - gone))


def test_hooks_have_run_where_a_run_goes_on() -> None:
    """As often as before."""
    check_resume(lambda: loader(Shrinking()), cuts=4)


def test_a_drawn_seed_is_that_of_the_state() -> None:
    """For the order of the samples, too."""
    with loader(seed=None) as made, loader(seed=None) as other:
        batches = iter(made)
        next(batches)
        other.load_state_dict(made.state_dict())
        assert content(other) == content(batches)


def test_workers_that_never_start_end_no_epoch() -> None:
    """Each further batch says so again, so that no training takes it for the end."""

    def fail(_: int) -> None:
        raise ValueError("never")

    with loader(workers=1, worker_init_fn=fail) as made:
        batches = iter(made)
        for _ in range(2):
            text = raised(WorkerError, lambda: next(batches))
            assert text == ("a worker could not start: worker_init_fn(0) raised ValueError: never")


def test_ctrl_c_loses_nothing() -> None:
    """Wherever it comes: what was read and what was packed is kept."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with loader() as made:
        expected = content(made)
    before, waits = signal.signal(signal.SIGALRM, interrupt), np.random.default_rng(5)
    found: list[Any] = []
    try:
        for _ in range(3):
            with loader() as made:
                batches, count = iter(made), -1
                found.clear()
                while len(found) > count:
                    count = len(found)
                    with suppress(KeyboardInterrupt):
                        signal.setitimer(signal.ITIMER_REAL, waits.uniform(2e-4, 2e-2))
                        found.extend(islice(batches, 1))
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        continue
                    count = -1
            assert content(found) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


KEPT: list[Loader[Any]] = []


def test_close_ends_the_workers_of_the_samples() -> None:
    """Though the loader is referenced: see `nothing_left`."""
    KEPT[:] = [loader(workers=2)]
    with KEPT[0] as made:
        next(iter(made))


def test_an_epoch_may_be_broken_off() -> None:
    """The next has all elements, and the workers end with the loader."""
    with loader(workers=2) as made:
        for _ in range(2):
            next(iter(made))
        assert once(made)
        assert made.epoch == 3


FIVE = [[0, 1, 2, 3, 4]] * 3
REFUSED = (
    "is not for a Pack without lengths=, whose rows are made of the samples when they were read; "
    "give shuffle=, another sampler=, transform= for samples or batch_transform= for rows"
)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({}, TypeError, "max_length=None must be an int"),
        (
            {"max_length": 8, "strategy": "wrap"},
            ValueError,
            "strategy='wrap' cuts the samples by their lengths; give lengths=, or leave strategy= "
            "out",
        ),
        (
            {"max_length": 8, "length_of": len, "lengths": [5, 5, 5]},
            ValueError,
            "length_of= is for samples whose lengths are not known, and lengths= says them; leave "
            "one of them out",
        ),
    ],
)
def test_what_cannot_be_packed(given: Any, kind: type[Exception], text: str) -> None:
    """It is refused without a loader."""
    assert raised(kind, lambda: Pack(FIVE, **given)) == text


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        (
            {"batch_size": None},
            ValueError,
            "Pack makes rows, of which the loader makes batches; with batch_size=None leave Pack "
            "out",
        ),
        (
            {"batch_sampler": [[0, 1]]},
            ValueError,
            f"batch_sampler= {REFUSED}",
        ),
        (
            {"collate_fn": np.stack},
            ValueError,
            f"collate_fn= {REFUSED}",
        ),
        (
            {"sampler": PrioritizedSampler(3)},
            ValueError,
            f"sampler= {REFUSED}",
        ),
        (
            {"transform": 5},
            TypeError,
            "transform is of type int, expected a function of a sample",
        ),
    ],
)
def test_what_a_loader_of_rows_cannot_be(
    settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """It is refused before a sample is read."""
    pack = Pack(FIVE, max_length=8)
    assert raised(kind, lambda: Loader(pack, **{"workers": 0, **settings})) == text


def test_names_of_its_own() -> None:
    """A sample may have them where Pack adds none."""
    clash = [{"positions": row} for row in FIVE]
    assert raised(SpecError, lambda: Loader(Pack(clash, max_length=8), workers=0)) == (
        "the samples of the Pack have 'positions' of their own, which Pack() adds; give "
        "segment_ids=False, or leave it out in __getitem__"
    )


def test_it_says_what_it_is() -> None:
    """And not how many rows it has."""
    pack = Pack(Texts(), max_length=MOST, window=WINDOW)
    assert repr(pack) == ("<Pack: rows of 64, by windows of 60 samples whose lengths are learnt>")
    text = "a Pack without lengths= has no length: its rows are not known yet"
    assert raised(TypeError, lambda: len(pack)) == text
    with loader() as made:
        assert re.fullmatch(r"<Loader of Pack: .*, samples: <Loader of Texts: .*>>", repr(made))
        assert raised(TypeError, lambda: len(made)) == (
            "the length of this loader is unknown: its rows are known once their samples were read"
        )
    assert raised(TypeError, lambda: Loader(Mix([pack]), workers=0)).endswith(
        "give it to a Loader, or give lengths="
    )

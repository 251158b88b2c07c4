"""A loader with a `PrioritizedSampler`.

Indices and weights in the batch, how old they are, and going on.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import Drawing, Misbehaving, Oracle
from ringfeed.datasets import Mix
from ringfeed.orders import PrioritizedSampler
from ringfeed.testing import check_resume
from watching import FORK_HINT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.once

LENGTH = 60
ROWS = 4
SEED = 3
SETTINGS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 1, "backend": "fork", "copy": True},
    {"workers": 5, "backend": "thread"},
]


class Samples:
    """Each says its index; random numbers are its own."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "square": np.full(3, float(index * index)),
            "noise": float(ringfeed.rng().random()),
        }


class Many(Samples):
    """The same, several at once, without random numbers."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [
            {"index": index, "square": np.full(3, float(index * index)), "noise": 0.0}
            for index in indices
        ]


class InPlace(Samples):
    """The same, written into the slot."""

    def read_into(self, index: int, out: dict[str, Any]) -> None:
        out["index"][...], out["square"][...] = index, index * index
        out["noise"][...] = ringfeed.rng().random()


COLUMNS = {
    "index": np.arange(LENGTH),
    "square": np.arange(LENGTH)[:, None] ** 2 * np.ones(3),
    "noise": np.zeros(LENGTH, np.float32),
}


def sampler_of(**settings: Any) -> PrioritizedSampler:
    """Return a sampler over all samples."""
    return PrioritizedSampler(LENGTH, beta=lambda step: min(1, step / 20), **settings)


def loader_of(sampler: PrioritizedSampler, dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader of some samples."""
    given = {
        "batch_size": ROWS,
        "seed": SEED,
        "slots": 3,
        "workers": 0,
        "timeout_s": 60,
        **settings,
    }
    return ringfeed.Loader(Samples() if dataset is None else dataset, sampler=sampler, **given)


def priorities(index: Any, step: int) -> Any:
    """Return what training would say of a batch."""
    return (index * 7 + step) % 11 / 3 + 0.01


def steps(
    loader: ringfeed.Loader, sampler: PrioritizedSampler
) -> Iterator[tuple[list[int], list[float]]]:
    """Train on an epoch; give the indices and weights of each batch, checked by its samples."""
    for sample, index, weight in loader:
        assert sample["index"].tolist() == index.tolist()
        assert (sample["square"] == (index**2)[:, None]).all()
        assert (index.dtype, weight.dtype) == (np.int64, np.float32)
        seen = index.tolist(), weight.tolist()
        sampler.update(index, priorities(index, sampler.updates))
        del sample, index, weight
        yield seen


def by_hand(slots: int, epochs: int, rows: int = ROWS) -> list[tuple[list[int], list[float]]]:
    """Return the steps of some epochs: each starts with `slots` batches.

    Another is drawn ahead of each later one.
    """
    sampler, found = sampler_of(), []
    for number in range(epochs):
        epoch = sampler.bind(LENGTH, SEED).epoch(number)
        ahead = [epoch.take(rows) for _ in range(slots)]
        while ahead[0].size:
            draws = ahead.pop(0)
            index, weight = draws & (2**32 - 1), (draws >> 32).astype(np.uint32).view(np.float32)
            found.append((index.tolist(), weight.tolist()))
            sampler.update(index, priorities(index, sampler.updates))
            ahead.append(epoch.take(rows))
    return found


# ---- what a batch has, and how old it is ----


@pytest.mark.parametrize(
    "dataset", [Samples(), Many(), InPlace(), COLUMNS], ids=lambda d: type(d).__name__
)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_a_batch_carries_indices_and_weights(dataset: Any, settings: dict[str, Any]) -> None:
    """Of each way to read, in each kind of worker.

    They are drawn `slots` batches ahead, never further.
    """
    sampler = sampler_of()
    with loader_of(sampler, dataset, **settings) as loader:
        found = [step for _ in range(2) for step in steps(loader, sampler)]
    assert found == by_hand(3, 2)


@pytest.mark.parametrize("slots", [2, 5, 9])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_batch_is_as_old_as_the_docstring_says(slots: int, rows: int) -> None:
    """It does not know the `slots - 1` batches ahead of it, and `pending` says so."""
    sampler = sampler_of()
    pending: list[int] = []
    with loader_of(sampler, batch_size=rows, slots=slots, workers=2, backend="thread") as loader:
        found = []
        for step in steps(loader, sampler):
            found.append(step)
            pending.append(sampler.pending)
    assert found == by_hand(slots, 1, rows)
    left = [LENGTH - len(found[0][0]) * (number + 1) for number in range(len(found))]
    assert pending == [max(min(rest, (slots - 1) * rows), 0) for rest in left]


def test_a_sample_has_its_own_random_numbers() -> None:
    """Those that it has in any other order."""
    with ringfeed.Loader(Drawing(), batch_size=61, seed=SEED, workers=0) as loader:
        plain = next(iter(loader))["noise"].copy()
    with ringfeed.Loader(
        Drawing(), batch_size=61, seed=SEED, sampler=PrioritizedSampler(61), workers=1
    ) as loader:
        sample, index, _ = next(iter(loader))
        assert np.array_equal(sample["noise"], plain[index])


def test_a_plain_sample_stays_a_leaf() -> None:
    """The structure of a sample is the first of the three."""
    with ringfeed.Loader(
        np.arange(9.0)[:, None], sampler=PrioritizedSampler(9), workers=0
    ) as loader:
        assert (
            repr(loader.spec)
            == "Spec((Array((1,), 'float64'), Array((), 'int64'), Array((), 'float32')))"
        )
        value, index, weight = next(iter(loader))
        assert np.array_equal(value[:, 0], index)
        assert weight.tolist() == [1.0] * 9
        assert len(loader) == 1


def test_breaking_off() -> None:
    """The next epoch is drawn anew, by what training has said until then."""
    sampler = sampler_of()
    with loader_of(sampler, workers=2, backend="thread") as loader:
        first = [*islice(steps(loader, sampler), 3)]
        assert first == by_hand(3, 1)[:3]
        second = [*steps(loader, sampler)]
        other = sampler_of()
        for index, _ in first:
            other.update(index, priorities(np.array(index), other.updates))
        draws = other.bind(LENGTH, SEED).epoch(1).take(3 * ROWS) & (2**32 - 1)
        assert [index for index, _ in second[:3]] == draws.reshape(3, ROWS).tolist()
        assert loader.epoch == 2


# ---- what goes wrong ----


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_left_out(workers: int) -> None:
    """Their index and weight go with them, and are named by the sample's own number."""
    sampler = PrioritizedSampler(40)
    sampler.update([17, 3], [40.0, 40.0])
    dataset = Misbehaving("raises")
    with loader_of(sampler, dataset, workers=workers, on_error="skip") as loader:
        came = []
        for (_, number, _), index, weight in loader:
            assert number.tolist() == index.tolist()
            assert weight.tolist() == [
                1.0 if one != 3 else pytest.approx(40**-0.24) for one in index
            ]
            came += index.tolist()
        skipped = loader.stats().skipped
    assert len(came) + len(skipped) == 40
    assert set(skipped) == {17}
    assert came.count(3) > 2


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_sample(workers: int) -> None:
    """By its own number, also where a worker dies of it."""
    sampler = PrioritizedSampler(40)
    sampler.update(range(40), np.eye(40)[17])
    with loader_of(sampler, Misbehaving("raises"), workers=workers) as loader:
        with pytest.raises(ringfeed.WorkerError) as raised:
            next(iter(loader))
        assert (
            str(raised.value)
            == "dataset[17] raised KeyError: 'bad seventeen' (3 more of this batch failed)"
        )
    with loader_of(sampler, Misbehaving("wrong_shape"), workers=workers) as loader:
        with pytest.raises(ringfeed.SpecError) as raised_spec:
            next(iter(loader))
        assert str(raised_spec.value).startswith(
            "dataset[17]: sample[0] has shape (5, 8), expected (5, 7)"
        )


def test_a_sample_that_kills() -> None:
    """It is named, and the others of its batch are left as they are."""
    sampler = PrioritizedSampler(40)
    sampler.update(range(40), np.eye(40)[17])
    settings = {"workers": 1, "backend": "fork", "max_attempts": 1, "batch_size": 1}
    with loader_of(sampler, Misbehaving("dies"), **settings) as loader:
        with pytest.raises(ringfeed.WorkerError) as raised:
            next(iter(loader))
        assert str(raised.value) == (
            "dataset[17] ended its worker; the last one was killed by SIGKILL; try it with "
            "workers=0"
        )


def test_a_draw_that_is_shown_is_its_sample() -> None:
    """Where a slot was overwritten, say, and its header names what should be there."""
    with loader_of(sampler_of()) as loader:
        assert loader._runner.source.describe(5 | 7 << 32) == "dataset[5]"


def test_a_stall_names_the_sample() -> None:
    """By its own number."""
    sampler = PrioritizedSampler(40)
    sampler.update(range(40), np.eye(40)[17])
    settings: dict[str, Any] = {
        "workers": 1,
        "backend": "fork",
        "timeout_s": 1,
        "spec": Oracle.SPEC,
    }
    with loader_of(sampler, Misbehaving("sleeps"), **settings) as loader:
        with pytest.raises(ringfeed.StallError) as raised:
            next(iter(loader))
        said = (
            "no batch for 1 s: 1 of 1 workers inside dataset[i] (i = 17); raise timeout_s or look "
            "there"
        )
        assert str(raised.value).splitlines()[0] == said + FORK_HINT


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_to_draw_is_an_error_of_the_loop(workers: int) -> None:
    """When a batch is planned; the loader goes on when there is something."""
    sampler = PrioritizedSampler(LENGTH, filled=0)
    with loader_of(sampler, workers=workers) as loader:
        with pytest.raises(ValueError, match="nothing to draw"):
            iter(loader)
        sampler.add([5])
        _, index, _ = next(iter(loader))
        assert index.tolist() == [5] * ROWS


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"shard": ringfeed.Shard(0, 2)},
        "PrioritizedSampler with world_size=2: no rank knows the updates of the others, so their "
        "orders would differ; give each process a dataset and a sampler of its own, and leave "
        "shard= out",
    ),
    (
        {"batch_size": None},
        "PrioritizedSampler draws single samples, and with batch_size=None dataset[i] is a whole "
        "batch; give a dataset of samples and a batch_size",
    ),
    (
        {"dataset": np.arange(7)},
        "PrioritizedSampler is of 60 samples, but the dataset has 7; give the dataset's length as "
        "n, for a replay buffer its capacity",
    ),
    (
        {"dataset": lambda: iter(range(9))},
        "sampler= needs a dataset whose samples have numbers, and an iterable comes in its own "
        "order; shuffle inside the iterable, or give a dataset with __len__ and __getitem__",
    ),
    (
        {"dataset": Mix([np.arange(7), np.arange(3)])},
        "sampler= is for one dataset, and a Mix has an order of its own; give Mix() weights=, and "
        "the loader shuffle=True or False",
    ),
    ({"shuffle": True}, "shuffle=True and sampler= exclude each other: give the one or the other"),
]


@pytest.mark.parametrize(
    ("settings", "text"), REFUSED, ids=[next(iter(settings)) for settings, _ in REFUSED]
)
def test_what_it_does_not_go_with(settings: dict[str, Any], text: str) -> None:
    """Said when the loader is made."""
    with pytest.raises(ValueError, match="ampler") as raised:
        loader_of(sampler_of(), **settings)
    assert str(raised.value) == text


def test_keras_has_no_place_for_its_batches() -> None:
    """Keras would take indices for targets; it is said before Keras is imported."""
    with loader_of(sampler_of()) as loader, pytest.raises(ValueError, match="to_keras") as raised:
        loader.to_keras()
    assert str(raised.value) == (
        "to_keras() with a PrioritizedSampler: fit reads a batch of three as (x, y, "
        "sample_weight), and these are (sample, index, weight); write the loop: for (x, y), "
        "index, weight in loader: model.train_on_batch(x, y, sample_weight=weight), and then "
        "sampler.update(index, errors)"
    )


# ---- going on ----


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_the_same_steps_wherever_it_is_cut(settings: dict[str, Any], tmp_path: Path) -> None:
    """Cut after some batches, again and again, with arrays in a file beside the JSON."""
    whole, found = by_hand(3, 3), []
    state: dict[str, Any] | None = None
    for batches in (2, 0, 1, 6, 6, 1, 14, 99):
        sampler = sampler_of()
        with loader_of(sampler, **settings) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
                with np.load(tmp_path / "powers.npz") as arrays:
                    sampler.load_state_dict(arrays)
                assert loader.state_dict() == state
            while loader.epoch < 3 and batches > 0:
                some = [*islice(steps(loader, sampler), batches)]
                batches -= len(some)  # noqa: PLW2901 - what is left of them
                found += some
            state = loader.state_dict()
            assert len(json.dumps(state)) < 400
            np.savez(tmp_path / "powers.npz", **sampler.state_dict())
    assert found == whole


def test_a_batch_of_another_size() -> None:
    """The draws ahead come first, whatever the size of a batch; later ones are new."""
    sampler = sampler_of()
    with loader_of(sampler) as loader:
        first = [*islice(steps(loader, sampler), 4)]
        state, powers = loader.state_dict(), sampler.state_dict()
    expected = [index for indices, _ in by_hand(3, 1) for index in indices][16:24]
    sampler = sampler_of()
    sampler.load_state_dict(powers)
    with loader_of(sampler, batch_size=6) as loader:
        loader.load_state_dict(state)
        rest = [*steps(loader, sampler)]
    assert len(first) == 4
    assert [index for indices, _ in rest for index in indices][:8] == expected
    assert [len(indices) for indices, _ in rest] == [6] * 7 + [2]


def test_a_state_without_that_of_its_sampler() -> None:
    """It is refused when the epoch begins; with both, the epoch goes on."""
    sampler = sampler_of()
    with loader_of(sampler) as loader:
        for _ in islice(steps(loader, sampler), 4):
            pass
        state, powers = loader.state_dict(), sampler.state_dict()
    with loader_of(sampler_of()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ringfeed.StateError) as raised:
            iter(loader)
        assert str(raised.value) == (
            "the loader's state was taken after 4 updates of its PrioritizedSampler, and this one "
            "has had 0; load the sampler's own state too, taken with the loader's between two "
            "batches"
        )
    sampler = sampler_of()
    sampler.load_state_dict(powers)
    with loader_of(sampler) as loader:
        loader.load_state_dict(state)
        assert next(steps(loader, sampler)) == by_hand(3, 1)[4]


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_state_between_epochs_without_that_of_its_sampler(epochs: int) -> None:
    """It is refused as well, and so is one from ahead of the first epoch."""
    sampler = sampler_of()
    with loader_of(sampler) as loader:
        sampler.update([1], [2.0])
        for _ in range(epochs):
            assert len([*steps(loader, sampler)]) == 15
        state, powers = loader.state_dict(), sampler.state_dict()
        assert (state["epoch"], state["samples"], state["sampler"]) == (epochs, 0, 1 + 15 * epochs)
        expected = [*steps(loader, sampler)]
    sampler = sampler_of()
    with loader_of(sampler) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            ringfeed.StateError,
            match=rf"^the loader's state was taken after {1 + 15 * epochs} updates",
        ):
            iter(loader)
        sampler.load_state_dict(powers)
        assert [*steps(loader, sampler)] == expected


def test_a_drawn_seed_comes_with_the_state() -> None:
    """A loader with seed=None goes on with the one of the state.

    In the draws, and in the samples' random numbers.
    """

    def run(batches: int, state: Any = None, powers: Any = None) -> tuple[list[Any], Any, Any]:
        sampler, noise = sampler_of(), []
        with loader_of(sampler, seed=None) as loader:
            if state is not None:
                loader.load_state_dict(state)
                sampler.load_state_dict(powers)
            for sample, index, weight in islice(loader, batches):
                noise.append((index.tolist(), weight.tolist(), sample["noise"].tolist()))
                sampler.update(index, priorities(index, sampler.updates))
                del sample, index, weight
            return noise, loader.state_dict(), sampler.state_dict()

    _, start, unchanged = run(0)
    whole, _, _ = run(9, start, unchanged)
    first, state, powers = run(4, start, unchanged)
    rest, _, _ = run(5, state, powers)
    assert first + rest == whole


class Growing(Samples):
    """One with a hook that runs between epochs."""

    grown = 0

    def on_epoch_end(self) -> None:
        self.grown += 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "grown": self.grown}


def test_a_dataset_with_hooks() -> None:
    """Workers see what hooks change, and the draws are the same."""
    sampler = sampler_of()
    with loader_of(sampler, Growing(), workers=1, backend="fork") as loader:
        found = []
        for epoch in range(2):
            for sample, index, weight in loader:
                assert set(sample["grown"].tolist()) == {epoch}
                found.append((index.tolist(), weight.tolist()))
                sampler.update(index, priorities(index, sampler.updates))
                del sample, index, weight
    assert found == by_hand(3, 2)


def test_an_epoch_goes_on_in_the_same_process() -> None:
    """After a look at something else: what was drawn ahead comes first."""
    sampler, found = sampler_of(), []
    with loader_of(sampler, workers=1, backend="thread") as loader:
        for batches in (4, 1, 99):
            found += islice(steps(loader, sampler), batches)
            loader.load_state_dict(loader.state_dict())
    assert found == by_hand(3, 1)


def test_a_state_of_another_alpha_is_refused() -> None:
    """It is another order."""
    with loader_of(sampler_of()) as loader:
        state = loader.state_dict()
    with (
        loader_of(sampler_of(alpha=0.5)) as loader,
        pytest.raises(ringfeed.StateError, match="order"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "settings", [{}, {"workers": 2, "backend": "thread"}], ids=["no workers", "threads"]
)
def test_check_resume_proves_it(settings: dict[str, Any]) -> None:
    """With updates of its own, and the sampler's state beside the loader's."""
    check_resume(lambda: loader_of(sampler_of(), **settings), cuts=6)
    shared = sampler_of()
    with pytest.raises(AssertionError) as raised:
        check_resume(lambda: loader_of(shared, **settings), cuts=2)
    assert (
        "in a second run that was not cut. A likely cause: the sampler gives another order"
        in str(raised.value)
    )


# ---- a buffer that fills, read by processes ----


class Buffer:
    """Transitions in a file that all processes map: whoever reads one sees whether it is whole."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        self._rows: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    @property
    def rows(self) -> Any:
        if self._rows is None:
            self._rows = np.memmap(self.path, np.int64, "r+", shape=(self.capacity, 1000))
        return self._rows

    def __len__(self) -> int:
        return self.capacity

    def __getitem__(self, index: int) -> Any:
        return np.array(self.rows[index])


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_buffer_that_fills_and_is_overwritten(method: Any, tmp_path: Path) -> None:
    """Processes read what this one writes meanwhile.

    Never what is not there, nor what is half written.
    """
    capacity, slots, moves = 64, 3, 2
    path = tmp_path / "buffer"
    np.zeros((capacity, 1000), np.int64).tofile(path)
    buffer, written = Buffer(path, capacity), 0
    sampler = PrioritizedSampler(capacity, filled=0, num_samples=400)

    def play() -> None:
        nonlocal written
        for _ in range(moves):
            place, doomed = written % capacity, (written + (slots + 1) * moves) % capacity
            buffer.rows[place] = written + 1
            sampler.add(place)
            sampler.remove(doomed)
            written += 1

    for _ in range(5):
        play()
    settings: dict[str, Any] = {"workers": 2, "backend": method, "slots": slots}
    seen = set()
    with loader_of(sampler, buffer, batch_size=4, seed=0, **settings) as loader:
        for transition, index, _ in loader:
            assert (transition == transition[:, :1]).all()
            age = written - transition[:, 0]
            assert transition.min() > 0
            assert ((transition[:, 0] - 1) % capacity == index).all()
            assert (
                buffer.rows[index, 0] == transition[:, 0]
            ).all()  # none was overwritten since it was drawn
            assert (age < capacity).all()
            seen |= set(transition[:, 0].tolist())
            sampler.update(index, np.abs(np.sin(transition[:, 0])) + 0.01)
            play()
    assert written > 3 * capacity
    assert len(seen) > capacity

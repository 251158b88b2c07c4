"""Iterables amid an epoch.

Gone on from a state of their own, or read again and left out, element by element.
"""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
ROWS = 10
LENGTH = 5000
NEAR = 75 * ROWS  # a state every 64 batches at least, and what is read ahead
WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "thread": {"backend": "thread", "workers": 1},
    "spawn": {"workers": 1, "backend": "spawn"},
    "fork": {"workers": 1, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}


def note(log: Path, number: int) -> None:
    """Add a line to a file. There are a hundred thousand, so that no object is made for each."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, b"%d\n" % number)
    os.close(file)


class Counted:
    """Numbers with a state; each one that is read is a line of the file ``log``.

    It begins where it was left.
    """

    def __init__(
        self, log: Path, length: int = LENGTH, base: int = 0, deed: Callable[[int], object] = int
    ) -> None:
        self.log, self.length, self.base, self.deed = log, length, base, deed
        self.at = 0

    def __iter__(self) -> Iterator[tuple[np.int64, float]]:
        while self.at < self.length:
            number, self.at = self.base + self.at, self.at + 1
            note(self.log, number)
            self.deed(number)
            yield np.int64(number), ringfeed.rng().random()

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class Sticky(Counted):
    """Begins each time where it was last loaded, as those of Hugging Face do."""

    start = 0

    def __iter__(self) -> Iterator[tuple[np.int64, float]]:
        self.at = self.start
        return super().__iter__()

    def load_state_dict(self, state: Any) -> None:
        self.start = state["at"]


class Walk:
    """An iterator with a state."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        self.numbers = iter(counted)

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        return next(self.numbers)

    def state_dict(self) -> Any:
        return self.counted.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.counted.load_state_dict(state)


class Walks:
    """Its iterators have states, and it has none."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __iter__(self) -> Walk:
        return Walk(Counted(self.log))


class Drawn(Walk):
    """An iterator that draws its order when it is begun; only its state says which."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0
        self.seed = int.from_bytes(os.urandom(4), "little")

    def __next__(self) -> Any:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return np.int64(self.at - 1), np.int64(self.seed)

    def state_dict(self) -> Any:
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.seed = state["at"], state["seed"]


class Draws:
    """Each of its iterators draws an order."""

    def __iter__(self) -> Drawn:
        return Drawn(LENGTH)


class Returned:
    """A function that returns the same iterable each time."""

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __call__(self) -> Any:
        return self.iterable


KINDS: dict[str, Callable[[Path], Any]] = {
    "iterable": Counted,
    "sticky": Sticky,
    "function": lambda log: partial(Counted, log),
    "function of one": lambda log: Returned(Sticky(log)),
    "its iterator": Walks,
}


def loader_of(dataset: Any, way: str = "here", **settings: Any) -> ringfeed.Loader:
    """Return a loader."""
    return ringfeed.Loader(dataset, **{"batch_size": ROWS, **WAYS[way], **settings})


def rows(batches: Any) -> list[Any]:
    """Return the rows that come."""
    return [
        row for batch in batches for row in zip(*(leaf.tolist() for leaf in batch), strict=True)
    ]


def saved(loader: ringfeed.Loader) -> dict[str, Any]:
    """Return a loader's state as another run has it."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def lines(log: Path) -> int:
    """Return how many elements were read."""
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file that says what was read."""
    return tmp_path / "log"


def whole_epoch(log: Path, kind: str = "iterable") -> list[Any]:
    """Return the rows of an epoch that is not cut."""
    with loader_of(KINDS[kind](log)) as loader:
        found = rows(loader)
    log.unlink()
    return found


# How a state is had is a matter of the kind; where it is had, of the way, and the same for all
# kinds.
@pytest.mark.parametrize(
    ("kind", "way"),
    [*product(KINDS, ["here", "spawn"]), *product(["iterable"], ["thread", "fork", "process"])],
)
def test_a_state_of_its_own_spares_what_was_read(way: str, kind: str, log: Path) -> None:
    """Twice in one epoch; what is read again does not depend on the place.

    Epochs after it are whole.
    """
    whole = whole_epoch(log)
    seen, state = [], None
    for stop in (300, 100):
        before = lines(log)
        with loader_of(KINDS[kind](log), way) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            batches = iter(loader)
            assert state is None or loader.state_dict() == state
            seen += rows(islice(batches, stop))
            assert state is None or lines(log) - before <= stop * ROWS + NEAR
            state = saved(loader)
            assert state["streams"][0]["read"] <= len(seen)
        assert {**loader.state_dict(), "streams": 0} == {**state, "streams": 0}
    before = lines(log)
    with loader_of(KINDS[kind](log), way) as loader:
        loader.load_state_dict(state)
        assert seen + rows(loader) == whole
        assert lines(log) - before <= LENGTH - len(seen) + NEAR
        assert [number for number, _ in rows(loader)] == [*range(LENGTH)]
    assert len(whole) == LENGTH


@pytest.mark.parametrize("way", WAYS)
def test_a_state_holds_in_a_loader_that_has_begun_the_same_epoch_otherwise(way: str) -> None:
    """What it has read ahead, and its own states, are of an order that it has drawn itself."""
    with loader_of(Draws(), way) as loader:
        for _ in loader:
            state = saved(loader)
            if "streams" in state:
                break
        seed = state["streams"][0]["of"]["seed"]
    for batches in (2, 10, 60):
        with loader_of(Draws(), way) as loader:
            first = iter(loader)
            assert seed not in {int(next(first)[1][0]) for _ in range(batches)}
            loader.load_state_dict(state)
            found = rows(islice(loader, 80))
            assert found == [
                (number, seed) for number in range(state["samples"], state["samples"] + 80 * ROWS)
            ]
            assert loader.state_dict()["streams"][0]["of"]["seed"] == seed


def test_an_iterator_goes_on_from_its_state(log: Path) -> None:
    """Another one, in another run."""
    with loader_of(Walk(Counted(log))) as loader:
        seen = rows(islice(loader, 300))
        state = saved(loader)
    before = lines(log)
    with loader_of(Walk(Counted(log))) as loader:
        loader.load_state_dict(state)
        seen += rows(loader)
    assert [number for number, _ in seen] == [*range(LENGTH)]
    assert lines(log) - before <= LENGTH - 300 * ROWS + NEAR


def three(log: Path, kind: type = Counted) -> ringfeed.datasets.Interleave:
    """Return three shards of different lengths."""
    lengths = (LENGTH, 25, 2003)
    return ringfeed.datasets.Interleave(
        [kind(log, length, number * 10_000) for number, length in enumerate(lengths)]
    )


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_each_of_several_goes_on_from_its_own(way: str, log: Path) -> None:
    """Those that have ended stay out."""
    with loader_of(three(log)) as loader:
        whole = rows(loader)
    seen, state = [], None
    for stop in (4, 300, 60):
        before = lines(log)
        with loader_of(three(log), way, workers=2 if way != "here" else 0) as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen += rows(islice(loader, stop))
            state = saved(loader)
        assert lines(log) - before <= (stop + 4) * ROWS + 3 * NEAR
    with loader_of(three(log), way) as loader:
        loader.load_state_dict(state)
        assert seen + rows(loader) == whole
        assert [number for number, _ in rows(loader)] == [number for number, _ in whole]


def die_once(log: Path, at: int, number: int) -> None:
    """End the first process that comes here."""
    mark = log.with_suffix(".dead")
    if number == at and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("way", ["spawn", "fork", "process"])
def test_a_replacement_reads_few_elements_again(way: str, log: Path) -> None:
    """It goes on from the newest state that the dead worker has left.

    That holds, too, in an epoch that went on from one.
    """
    whole = whole_epoch(log)
    deed = partial(die_once, log, 4000)
    with loader_of(Counted(log, deed=deed), way) as loader:
        assert rows(loader) == whole
        wait_until(lambda: loader.stats().restarts == 1)
        assert lines(log) <= LENGTH + NEAR
        log.with_suffix(".dead").unlink()
        batches = iter(loader)
        rows(islice(batches, 100))
        state = saved(loader)
    log.unlink()
    log.with_suffix(".dead").unlink(missing_ok=True)
    with loader_of(Counted(log, deed=deed), way) as loader:
        loader.load_state_dict(state)
        assert [number for number, _ in rows(loader)] == [*range(100 * ROWS, LENGTH)]
        wait_until(lambda: loader.stats().restarts == 1)
    assert lines(log) <= LENGTH - 100 * ROWS + 2 * NEAR


# ---- states that cannot be used ----


class Odd(Counted):
    """Its state is what a function says."""

    odd: Callable[[int], Any]

    def state_dict(self) -> Any:
        return self.odd(self.at)


def broken(at: int) -> Any:
    """Raise, as a defect of the user's does."""
    raise KeyError(at)


READS = "; a loader that goes on from this state reads the iterable from its start"
ODD: dict[str, tuple[Callable[[int], Any], str]] = {
    "constant": (
        lambda _: {"seed": 3},
        r"is the same after 1 and after \d+ elements, so it does not say where it is",
    ),
    "array": (
        lambda at: {"at": np.int64(at)},
        "is not JSON: Object of type int64 is not JSON serializable",
    ),
    "tuple": (
        lambda at: (3, at),
        "is changed by JSON, which has lists for tuples, and no keys but strings",
    ),
    "large": (lambda at: [at, "x" * 40_000], r"is 400\d\d bytes of JSON, expected at most 32736"),
    "raises": (broken, r"raised KeyError: \d+"),
}


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
@pytest.mark.parametrize("case", ODD)
def test_a_state_that_is_not_kept_is_told_once(case: str, way: str, log: Path) -> None:
    """The state has the place alone, and going on from it is exact."""
    odd, why = ODD[case]
    dataset = Odd(log)
    dataset.odd = odd
    with loader_of(dataset, way) as loader:
        batches = iter(loader)
        seen = rows(islice(batches, 150))
        with pytest.warns(UserWarning, match=r"^state_dict\(\) of the iterable ") as caught:
            state = saved(loader)
        assert loader.state_dict() == state
    assert [
        re.fullmatch(f"state_dict\\(\\) of the iterable {why}{READS}", str(one.message))
        for one in caught
    ]
    assert [one.filename for one in caught] == [__file__]
    assert "streams" not in state
    with loader_of(dataset, way) as loader:
        loader.load_state_dict(state)
        seen += rows(loader)
    assert [number for number, _ in seen] == [*range(LENGTH)]


class Stays:
    """Numbers, whose state stays where they were begun once one was loaded."""

    def __init__(self) -> None:
        self.at, self.loaded = 0, False

    def __iter__(self) -> Iterator[int]:
        while self.at < 200:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": 0 if self.loaded else self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.loaded = state["at"], True


def test_a_state_that_is_told_of_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped twice has each element once."""
    monkeypatch.setattr("ringfeed.datasets.states.SHARE", 0)
    seen, state = list[int](), dict[str, Any]()
    for stop in (9, 9, 99):
        with ringfeed.Loader(Stays(), batch_size=8, workers=0) as loader:
            if state:
                loader.load_state_dict(state)
            seen += [number for batch in islice(loader, stop) for number in batch.tolist()]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                state = json.loads(json.dumps(loader.state_dict()))
    assert seen == [*range(200)]


class Misled(Counted):
    """Loading brings it to its end."""

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"] + LENGTH


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_a_state_that_leads_to_the_end_is_an_error(way: str, log: Path) -> None:
    """The element that was there when it was taken is not there."""
    with loader_of(Misled(log), way) as loader:
        rows(islice(loader, 300))
        state = saved(loader)
    with loader_of(Misled(log), way) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ringfeed.WorkerError) as caught:
            rows(loader)
    read = state["streams"][0]["read"]
    assert str(caught.value) == (
        f"element 3000 of the iterable raised ringfeed.errors.StateError: element {read} of the "
        "iterable is not there after load_state_dict(), and it was there when the state was "
        "taken; state_dict() does not say where the iterable is, or the iterable was changed since"
    ).replace("ringfeed.errors.StateError", "StateError")
    assert isinstance(caught.value.__cause__, ringfeed.StateError)


class Deaf(Counted):
    """Loading does nothing: only its own elements could say so."""

    def load_state_dict(self, state: Any) -> None:
        """Begin at the start nevertheless."""


def test_a_proof_finds_what_no_loader_can(log: Path) -> None:
    """`check_resume` compares the batches."""
    with pytest.raises(AssertionError) as caught:
        ringfeed.testing.check_resume(lambda: loader_of(Deaf(log, 2000)), epochs=1, cuts=4)
    assert re.fullmatch(
        r"batch (\d+) of epoch 0 differs in sample\[0\] after a resume at sample \1\d of epoch 0. A likely cause: "
        r"the iterable gives other elements each time it is read, or its load_state_dict\(\) does not bring it to "
        r"where its state_dict\(\) was taken",
        str(caught.value),
    )
    ringfeed.testing.check_resume(lambda: loader_of(Counted(log, 2000)), epochs=2, cuts=4)


class Failing(Counted):
    """Loading fails."""

    def load_state_dict(self, state: Any) -> None:
        raise OSError(f"no such shard: {state['at'] // LENGTH}")


def test_an_error_of_loading_comes_in_its_place(log: Path) -> None:
    """As one of reading does."""
    with loader_of(Failing(log)) as loader:
        rows(islice(loader, 300))
        state = saved(loader)
    with loader_of(Failing(log)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            ringfeed.WorkerError,
            match=r"^element 3000 of the iterable raised OSError: no such shard: 0$",
        ):
            rows(loader)


def plain() -> Iterator[tuple[np.int64, float]]:
    """Give the same elements without a state."""
    for number in range(LENGTH):
        yield np.int64(number), ringfeed.rng().random()


def test_a_state_that_the_iterable_has_no_use_for(log: Path) -> None:
    """An iterable of the same elements that has none is read again."""
    with loader_of(Counted(log)) as loader:
        seen = rows(islice(loader, 300))
        state = saved(loader)
    with loader_of(plain) as loader:
        loader.load_state_dict(state)
        seen += rows(loader)
    assert [number for number, _ in seen] == [*range(LENGTH)]


def test_what_is_read_again_is_not_counted(log: Path) -> None:
    """A state that was loaded is the state until there is a batch.

    That holds, too, where it has no state of the iterable's own.
    """
    with loader_of(Counted(log), "thread") as loader:
        state = {**loader.state_dict(), "samples": 3000}
        loader.load_state_dict(state)
        batches = iter(loader)
        wait_until(lambda: lines(log) >= 3000 + 3 * ROWS)
        assert loader.state_dict() == state
        assert [number for number, _ in rows(islice(batches, 1))] == [*range(3000, 3010)]


CHANGED = (
    ", expected None, or a dict of 'read', an int from 0 to 20, and 'of'; it was changed since"
)
WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({"at": 3}, "is a dict, expected a list of 1; give the iterables it was taken with"),
    "of others": (
        [None, None],
        "is a list of 2, expected a list of 1; give the iterables it was taken with",
    ),
    "no dict": ([3], "[0] is 3" + CHANGED),
    "without a place": ([{"of": 3}], "[0] is {'of': 3}" + CHANGED),
    "without a state": ([{"read": 3}], "[0] is {'read': 3}" + CHANGED),
    "behind the place": ([{"read": 21, "of": 3}], "[0] is {'read': 21, 'of': 3}" + CHANGED),
    "negative": ([{"read": -1, "of": 3}], "[0] is {'read': -1, 'of': 3}" + CHANGED),
}


@pytest.mark.parametrize("case", WRONG)
def test_states_of_streams_that_are_none(case: str, log: Path) -> None:
    """What is wrong is shown."""
    streams, message = WRONG[case]
    with loader_of(Counted(log)) as loader:
        rows(islice(loader, 2))
        state = {**loader.state_dict(), "streams": streams}
        with pytest.raises(ringfeed.StateError) as caught:
            loader.load_state_dict(state)
    assert str(caught.value) == f"the state's streams{message}".replace("streamsis", "streams is")


def test_the_plan_counts_them(log: Path) -> None:
    """Their memory is reserved with the slots."""
    with loader_of(Counted(log), "spawn") as loader, loader_of(plain, "spawn") as other:
        assert loader.plan.states_size == 262_400
        assert "262.4 kB for the iterables" in str(loader.plan)
        assert loader.memory == loader.plan.total
        assert other.plan.states_size == 256
        rows(islice(loader, 1))
        assert loader.stats().memory


def test_a_state_takes_no_part_in_what_it_is_of(log: Path) -> None:
    """Batches of another size: each element of the epoch comes once."""
    with loader_of(Counted(log)) as loader:
        seen = rows(islice(loader, 123))
        state = saved(loader)
    with loader_of(Counted(log), batch_size=7) as loader:
        loader.load_state_dict(state)
        seen += rows(loader)
    assert [number for number, _ in seen] == [*range(LENGTH)]


# ---- shards of different lengths ----

SHORT = [
    partial(range, number * 100, number * 100 + length)
    for number, length in enumerate((25, 5, 12, 1))
]


def batches_of(loader: ringfeed.Loader) -> list[Any]:
    """Return the batches of an epoch."""
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    "settings", [{"workers": 0}, {"workers": 3, "backend": "thread", "slots": 3}]
)
@pytest.mark.parametrize("drop", [False, True])
def test_shards_of_different_lengths_wherever_they_are_cut(
    settings: dict[str, Any], *, drop: bool
) -> None:
    """Each stop, and again two batches later: the rest, in the same batches; then whole epochs."""
    dataset = ringfeed.datasets.Interleave(SHORT)
    settings = {"batch_size": 4, "drop_remainder": drop, **settings}
    with ringfeed.Loader(dataset, **settings) as loader:
        whole = batches_of(loader)
    for stop in range(len(whole) + 1):
        seen: list[Any] = []
        state = None
        for more in (stop, 2):
            with ringfeed.Loader(dataset, **settings) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                seen += [batch.tolist() for batch in islice(loader, more)]
                state = saved(loader)
                if loader.epoch > (len(seen) < len(whole)):
                    break
        with ringfeed.Loader(dataset, **settings) as loader:
            loader.load_state_dict(state)
            seen += batches_of(loader) if len(seen) < len(whole) else []
            assert seen[: len(whole)] == whole
            assert batches_of(loader) in (whole, [])


@pytest.mark.parametrize("slots", [3, 100])
@pytest.mark.parametrize("stop", [1, 5, 70])
def test_shards_that_are_read_far_ahead(slots: int, stop: int) -> None:
    """Where each is, is known for every batch that is planned.

    Also of the last of them, which is planned at once.
    """
    lengths = (999, 50, 8)
    shards = ringfeed.datasets.Interleave(
        [partial(range, at * 1000, at * 1000 + length) for at, length in enumerate(lengths)]
    )
    settings: dict[str, Any] = {"batch_size": 4, "workers": 1, "backend": "thread", "slots": slots}
    with ringfeed.Loader(shards, **settings) as loader:
        whole = batches_of(loader)
    seen: list[Any] = []
    state = None
    for more in (stop, 20, 3, 1):
        with ringfeed.Loader(shards, **settings) as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen += [batch.tolist() for batch in islice(loader, more)]
            state = saved(loader)
    with ringfeed.Loader(shards, **settings) as loader:
        loader.load_state_dict(state)
        assert seen + batches_of(loader) == whole


def test_a_place_far_behind_is_refused() -> None:
    """What only the loop knows may be further back than is kept."""
    shards = ringfeed.datasets.Interleave([partial(range, 999), partial(range, 999)])
    with ringfeed.Loader(shards, batch_size=2, workers=0) as loader:
        batches = iter(loader)
        for _ in range(100):
            next(batches)
        with pytest.raises(ringfeed.StateError) as caught:
            loader.state_dict(batches=5)
    assert str(caught.value) == (
        "the state of 2 iterables is kept for the newest 64 batches that are read ahead, and "
        "element 10 lies further back; take the state earlier"
    )


@pytest.mark.parametrize("stop", range(14))
def test_shards_with_batches_of_another_size(stop: int) -> None:
    """Each element that was not handed out comes once, in the order of its shard."""
    dataset = ringfeed.datasets.Interleave(SHORT)
    with ringfeed.Loader(dataset, batch_size=4, workers=0) as loader:
        seen = [row for batch in islice(loader, stop) for row in batch.tolist()]
        state = saved(loader)
    with ringfeed.Loader(dataset, batch_size=3, workers=0) as loader:
        loader.load_state_dict(state)
        if loader.epoch == 0:
            seen += [row for batch in loader for row in batch.tolist()]
    assert sorted(seen) == sorted(row for shard in SHORT for row in shard())
    for number, shard in enumerate(SHORT):
        assert [row for row in seen if row // 100 == number] == [*shard()]

"""One iterable that a process of its own reads, and whose elements all workers transform."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from numbered import (
    MADE,
    ByNumber,
    Numbers,
    die,
    drawn,
    fail,
    numbers,
    same,
    taken,
    until_it_fails,
)
from ringfeed import Loader, ShipError, StallError, WorkerError
from ringfeed.reading import store as stores
from watching import (
    FORK_HINT,
    PATIENCE_S,
    inside,
    lose_patience,
    pids,
    pool_of,
    wait_until,
    while_it_waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS: dict[str, dict[str, Any]] = {
    "spawn": {"backend": "spawn"},
    "fork": {"backend": "fork"},
    "process": {"backend": "process"},
}
WORKERS = 3
pytestmark = pytest.mark.usefixtures("closed")


class GoingOn:
    """Numbers, with a state of its own; ``log`` says which were read."""

    def __init__(self, stop: int, log: Path) -> None:
        self.stop, self.log, self.at = stop, log, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.stop:
            self.at += 1
            with self.log.open("a") as file:
                file.write(f"{self.at - 1}\n")
            yield np.int64(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def fed(dataset: Any, **parameters: Any) -> Loader:
    """Return a loader whose workers have something to do."""
    given = {
        "batch_size": 4,
        "workers": WORKERS,
        "backend": "fork",
        "transform": same,
        "timeout_s": PATIENCE_S,
        **parameters,
    }
    MADE.append(Loader(dataset, **given))
    return MADE[-1]


def alone(dataset: Any, **parameters: Any) -> Loader:
    """Return a loader that reads and transforms here."""
    return fed(dataset, **parameters, workers=0)


def cut(stop: int, rows: int = 4, start: int = 0) -> list[list[int]]:
    """Return the numbers that batches must have."""
    return [[*range(first, min(first + rows, stop))] for first in range(start, stop, rows)]


def reader_pid(loader: Loader) -> int:
    """Return the process that reads."""
    workers = pool_of(loader)._roster.workers.values()
    return next(worker.pid for worker in workers if worker.stream == 1)


# ---- what comes ----


@pytest.mark.parametrize("way", WAYS)
def test_the_batches_are_those_of_samples_with_numbers(way: str) -> None:
    """Also the random numbers of each element, which its transform goes on with; in each epoch."""
    loader = fed(Numbers(101), transform=drawn, seed=3, batch_size=7, **WAYS[way])
    by_number, here = (
        alone(kind(101), transform=drawn, seed=3, batch_size=7) for kind in (ByNumber, Numbers)
    )
    for _ in range(2):
        found = taken(loader)
        assert found == taken(by_number)
        assert found == taken(here)
    assert len(pids(loader)) == WORKERS + 1
    by = "forkserver" if way == "process" else way
    assert f"workers by {by}: {WORKERS} and a reader," in repr(loader)


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 63, 64])
@pytest.mark.parametrize("drops", [False, True])
def test_the_end_comes_at_any_place_of_a_batch(stop: int, drops: bool) -> None:  # noqa: FBT001 - a parameter
    """The last batch is shorter, or left out."""
    loader = fed(Numbers(stop), drop_remainder=drops)
    expected = [batch for batch in cut(stop) if len(batch) == 4 or not drops]
    assert [numbers(loader), numbers(loader)] == [expected, expected]


@pytest.mark.parametrize(
    "settings", [{"slots": 2}, {"slots": 2, "batch_size": 1}, {"workers": 8, "batch_size": 64}]
)
def test_a_slow_loop_loses_nothing(settings: dict[str, Any]) -> None:
    """Whatever slots and batches say of how far is read ahead."""
    loader = fed(Numbers(300), copy=True, **settings)
    found = list[int]()
    for batch in loader:
        found += batch[0].tolist()
        time.sleep(0.001 if len(found) % 50 == 0 else 0)
    assert found == [*range(300)]


class Point:
    """A sample of a class of the user's."""

    def __init__(self, place: int, name: str) -> None:
        self.place, self.name = place, name


class Kinds:
    """Elements of many kinds."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(30):
            yield {
                "raw": bytes([number]) * (1 + number * 1000),
                "large": np.full((200, 300), number, np.float32),
                "turned": np.arange(12).reshape(3, 4)[:, ::2] + number,
                "none": None,
                "point": Point(number, "é" * number),
                "many": [np.int64(number)] * 300,
            }


def measured(sample: Any) -> Any:
    """Return figures of it; change it, too, as it is the function's own."""
    assert sample["none"] is None
    assert isinstance(sample["point"], Point)
    sample["large"][0, 0] = -1
    point = sample["point"]
    parts = (
        len(sample["raw"]),
        sample["large"].sum(),
        sample["turned"].sum(),
        point.place,
        len(point.name),
    )
    return np.array([*parts, sum(sample["many"])], np.float64)


@pytest.mark.parametrize("way", WAYS)
def test_elements_of_any_kind_arrive(way: str) -> None:
    """With the classes of the user's, and as their own memory."""
    found = [batch.tolist() for batch in fed(Kinds(), transform=measured, **WAYS[way])]
    assert found == [batch.tolist() for batch in alone(Kinds(), transform=measured)]


def test_other_functions_are_run_by_all_workers() -> None:
    """Of samples, of batches, and of an iterable's own batches."""

    def collated(samples: list[Any]) -> Any:
        return np.array([sample[0] for sample in samples])

    def doubled(batch: Any) -> Any:
        return batch[0] * 2, batch[1]

    def halved(batch: Any) -> Any:
        return batch // 2

    loader = fed(Numbers(41), transform=None, collate_fn=collated)
    assert [batch.tolist() for batch in loader] == cut(41)
    assert len(pids(loader)) == WORKERS + 1
    loader = fed(Numbers(41), transform=None, batch_transform=doubled)
    assert numbers(loader) == [[2 * number for number in batch] for batch in cut(41)]
    whole = partial(map, np.array, [[2 * number for number in batch] for batch in cut(41)])
    loader = fed(whole, transform=None, batch_size=None, batch_transform=halved, max_batch_size=4)
    assert [batch.tolist() for batch in loader] == cut(41)


@pytest.mark.parametrize(
    "settings",
    [
        {"transform": None},
        {"workers": 1},
        {"workers": None},
        {"backend": "thread"},
        {"shard": ringfeed.Shard(0, 2, "drop")},
        {"reseed": True},
        {"transform": None, "worker_init_fn": same},
    ],
)
def test_other_streams_are_read_by_a_worker(settings: dict[str, Any]) -> None:
    """No process reads apart where nothing is shared, or elements depend on their reader."""
    loader = fed(Numbers(20), **settings)
    assert "reader" not in repr(loader)
    assert numbers(loader)[0] == [0, 1, 2, 3]


def test_what_the_reader_is_told_of_itself() -> None:
    """It is the only one that reads, so an iterable that is cut by workers gives all.

    Others see each other.
    """

    class Told:
        def __iter__(self) -> Iterator[Any]:
            info = ringfeed.worker_info()
            for number in range(info.id if info else 0, 24, info.workers if info else 1):
                yield np.int64(number), np.int64(-1), np.int64(-1)

    def told(sample: Any) -> Any:
        info = ringfeed.worker_info()
        return (sample[0], np.int64(info.id), np.int64(info.workers)) if info else sample

    batches = [[leaf.tolist() for leaf in batch] for batch in fed(Told(), transform=told)]
    assert [batch[0] for batch in batches] == cut(24)
    assert {number for batch in batches for number in batch[1]} <= {0, 1, 2}
    assert {number for batch in batches for number in batch[2]} == {WORKERS}


# ---- deaths ----


def once(flag: Path, deed: Callable[[], object]) -> None:
    """Do a deed once, over all processes."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return
    deed()


@pytest.mark.parametrize(
    ("way", "at"),
    [("fork", 0), ("fork", 1), ("fork", 17), ("fork", 42), ("spawn", 17), ("process", 17)],
)
def test_a_reader_that_dies_is_replaced(way: str, at: int, tmp_path: Path) -> None:
    """Wherever it was: nothing is lost, nothing comes twice."""
    (flag := tmp_path / "flag").touch()  # the first element is read here
    loader = fed(Numbers(43, at, partial(once, flag, die)), transform=drawn, seed=2, **WAYS[way])
    flag.unlink()
    found = taken(loader)
    assert found == taken(alone(Numbers(43), transform=drawn, seed=2))
    wait_until(lambda: loader.stats().restarts == 1)


def test_a_reader_is_killed_at_any_time() -> None:
    """Also where it waits for room, or reads nothing any more."""
    loader, found = fed(Numbers(400), slots=2, copy=True), list[int]()
    for count, batch in enumerate(loader):
        found += batch[0].tolist()
        if count in {0, 30, 60, 97}:
            reader, restarts = reader_pid(loader), loader.stats().restarts
            os.kill(reader, signal.SIGKILL)
            wait_until(lambda: loader.stats().restarts > restarts)  # noqa: B023 - it is waited for here
    assert found == [*range(400)]
    assert numbers(loader) == cut(400)


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_in_transform_is_replaced(way: str, tmp_path: Path) -> None:
    """Its rows find their elements in the store."""

    def deadly(sample: Any) -> Any:
        if sample[0] == 22:
            once(tmp_path / "flag", die)
        return sample

    loader = fed(Numbers(101), transform=deadly, **WAYS[way])
    assert numbers(loader) == cut(101)
    wait_until(lambda: loader.stats().restarts == 1)


def test_workers_are_killed_at_random() -> None:
    """Any of them, the reader too."""
    # Of what is read and not taken yet the reader may be ended any number of times; one death comes
    # after each batch.
    loader = fed(Numbers(3000), transform=slow, slots=3, batch_size=16, max_attempts=1000)
    over, came = threading.Event(), threading.Event()
    draws = np.random.default_rng(5)

    def kill() -> None:
        while not over.wait(0.15):
            came.wait(PATIENCE_S)
            came.clear()
            if found := pids(loader):
                with suppress(
                    ProcessLookupError
                ):  # the forkserver has buried it already, and the pool has not heard
                    os.kill(int(draws.choice(found)), signal.SIGKILL)

    batches = iter(loader)
    found = next(batches)[0].tolist()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for batch in batches:
            found += batch[0].tolist()
            came.set()
    finally:
        over.set()
        came.set()
        killer.join()
    assert found == [*range(3000)]
    wait_until(
        lambda: loader.stats().restarts > 0
    )  # the pool may hear of a death after the last batch


def slow(sample: Any) -> Any:
    """Take a little time."""
    time.sleep(0.0005)
    return sample


def test_a_transform_that_ends_every_worker_is_an_error_in_its_place() -> None:
    """The iterable goes on behind it."""

    def deadly(sample: Any) -> Any:
        if sample[0] == 22:
            die()
        return sample

    found, errors = until_it_fails(fed(Numbers(43), transform=deadly))
    assert errors == [
        "element 22 of the iterable ended 3 workers; the last one was killed by SIGKILL; try it "
        "with workers=0"
    ]
    assert found == [batch for batch in cut(43) if 22 not in batch]


@pytest.mark.parametrize("at", [1, 21])
def test_an_element_that_ends_every_reader_is_an_error_in_its_place(at: int) -> None:
    """What comes after it cannot be read."""
    loader = fed(Numbers(43, at, die), on_error="raise")
    found, errors = until_it_fails(loader)
    assert found == [batch for batch in cut(43) if batch[-1] < at]
    assert (
        errors[0] == f"element {at} of the iterable ended its reader 3 times; try it with workers=0"
    )
    loader = fed(Numbers(43, at, die), on_error="skip")
    found, errors = until_it_fails(loader)
    assert [number for batch in found for number in batch] == [*range(at)]
    assert errors == [
        "the iterable was ended by RuntimeError: what comes after an element that ended its "
        "workers cannot be read"
    ]


def test_one_attempt_is_one() -> None:
    """As `max_attempts` says."""
    found, errors = until_it_fails(fed(Numbers(43, 12, die), max_attempts=1))
    assert found == cut(12)
    assert (
        errors[0].partition(" (")[0]
        == "element 12 of the iterable ended its reader once; try it with workers=0"
    )


def test_a_reader_that_is_stuck_is_shown() -> None:
    """With the element and its stack; who waits for it is at nothing."""
    loader = fed(Numbers(43, 17, partial(time.sleep, PATIENCE_S)))
    batches = iter(loader)
    assert [next(batches)[0].tolist() for _ in range(4)] == cut(16)
    wait_until(lambda: inside(loader) == [17])
    lose_patience(loader, 1)
    with pytest.raises(StallError) as caught:
        next(batches)
    first, *lines = str(caught.value).splitlines()
    assert first == (
        "no batch for 1 s: 1 of 4 workers inside element 17 of the iterable; raise timeout_s or "
        "look there" + FORK_HINT
    )
    stuck = [line for line in lines if line.startswith("worker ") and " inside " in line]
    assert len(stuck) == 1
    assert ": inside element 17 of the iterable, has been at it for " in stuck[0]
    assert any("in __iter__" in line for line in lines)


def test_a_reader_that_is_stuck_is_restarted(tmp_path: Path) -> None:
    """No other worker is ended for it."""
    deed = partial(once, tmp_path / "flag", partial(time.sleep, PATIENCE_S))
    loader = fed(Numbers(43, 17, deed), on_stall="restart")
    batches = iter(loader)
    given = [next(batches)[0].tolist() for _ in range(4)]
    lose_patience(loader, 1.0)

    def have_patience() -> None:
        wait_until(lambda: loader.stats().restarts == 1)
        lose_patience(loader, PATIENCE_S)

    while_it_waits(have_patience)
    assert given + [batch[0].tolist() for batch in batches] == cut(43)
    assert loader.stats().restarts == 1


# ---- errors ----


@pytest.mark.parametrize("at", [1, 4, 18])
def test_what_an_element_raises_comes_in_its_place(at: int) -> None:
    """As where a worker reads for itself.

    With the user's traceback, or with those before it and then the reason.
    """
    found, errors = until_it_fails(fed(Numbers(43, at, fail)))
    assert (found, errors[:1]) == (
        [batch for batch in cut(43) if batch[-1] < at],
        [f"element {at} of the iterable raised KeyError: 'no more of this'"],
    )
    assert errors == until_it_fails(alone(Numbers(43, at, fail)))[1]
    found, errors = until_it_fails(fed(Numbers(43, at, fail), on_error="skip"))
    assert (found, errors) == until_it_fails(alone(Numbers(43, at, fail), on_error="skip"))
    assert [number for batch in found for number in batch] == [*range(at)]


def test_the_cause_has_the_frames_of_the_user() -> None:
    """And no others."""
    with pytest.raises(WorkerError) as caught:
        numbers(fed(Numbers(43, 6, fail)))
    cause, names = caught.value.__cause__, list[str]()
    assert isinstance(cause, KeyError)
    traceback = cause.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names == ["__iter__", "fail"]


class Locked:
    """Elements, one of which cannot be pickled."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        for number in range(12):
            yield np.int64(number), threading.Lock() if number == self.at else None


def first(sample: Any) -> Any:
    """Return its number alone."""
    return (sample[0],)


def test_an_element_that_cannot_be_pickled_is_refused() -> None:
    """The first before there are workers, others in their place; the iterable goes on behind it."""
    text = (
        "element {} of the iterable cannot be pickled, and one process reads for all workers: "
        "TypeError: cannot pickle '_thread.lock' object; yield what can be pickled, or give "
        "workers=1"
    )
    with pytest.raises(ShipError) as caught:
        fed(Locked(0), transform=first)
    assert str(caught.value) == text.format(0)
    found, errors = until_it_fails(fed(Locked(6), transform=first))
    assert (found, errors) == ([[0, 1, 2, 3], [8, 9, 10, 11]], [text.format(6)])
    assert numbers(fed(Locked(6), transform=first, workers=1)) == cut(12)


class Large:
    """Elements, one of which is large."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(12):
            yield np.full(300_000 if number == 6 else 1, number)


def test_elements_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their place, with what to do."""
    monkeypatch.setattr(stores, "REGION", 2**21)
    monkeypatch.setattr("ringfeed.reading.relay.REGION", 2**21)
    loader = fed(Large(), transform=lambda sample: (sample[:1],))
    batches, errors, found = iter(loader), list[str](), list[Any]()
    for _ in range(3):
        try:
            found.append(next(batches)[0][:, 0].tolist())
        except WorkerError as error:
            errors.append(str(error))
    assert errors == [
        "element 6 of the iterable is of 2.4 MB, and the 4 elements of a batch may be of 2.1 MB; "
        "make batch_size= smaller, or give workers=1"
    ]
    assert found == [[0, 1, 2, 3], [8, 9, 10, 11]]


# ---- epochs, places and states ----


def test_an_epoch_is_broken_off_anywhere() -> None:
    """The next one begins anew, with its own random numbers."""
    loader = fed(Numbers(60), transform=drawn, seed=1, slots=3)
    here = alone(Numbers(60), transform=drawn, seed=1)
    for count in (0, 1, 2, 5, 9, 14, 15):
        for batches in (iter(loader), iter(here)):
            for _ in range(count):
                next(batches)
        assert taken(loader) == taken(here)


def test_an_epoch_is_broken_off_while_the_iterable_waits(tmp_path: Path) -> None:
    """Workers that wait for an element give their claims back.

    The next epoch comes when the iterable goes on.
    """
    loader = fed(Numbers(43, 17, partial(once, tmp_path / "flag", partial(time.sleep, 2.0))))
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 1, 2, 3]
    wait_until((tmp_path / "flag").exists)
    assert numbers(loader) == cut(43)
    assert loader.stats().restarts == 0


def test_a_loader_is_closed_while_the_iterable_waits(tmp_path: Path) -> None:
    """Within the time that a worker has to leave; nothing is left."""
    loader = fed(Numbers(43, 17, partial(once, tmp_path / "flag", partial(time.sleep, PATIENCE_S))))
    next(iter(loader))
    wait_until((tmp_path / "flag").exists)
    loader.close()


@pytest.mark.parametrize("of_workers", [0, 1, WORKERS])
def test_states_are_those_of_any_number_of_workers(of_workers: int) -> None:
    """Taken at each batch, and gone on from by another number of workers."""
    settings = {"transform": drawn, "seed": 7, "batch_size": 4}
    loader, whole = fed(Numbers(43), **settings), list[Any]()
    states = [loader.state_dict()]
    for batch in loader:
        whole.append([leaf.tolist() for leaf in batch])
        states.append(loader.state_dict())
    for at in range(0, len(states) - 1, 3):
        other = fed(Numbers(43), **settings, workers=of_workers)
        other.load_state_dict(json.loads(json.dumps(states[at])))
        assert taken(other) == whole[at:]
    other = fed(Numbers(43), **settings, workers=of_workers)
    batches = iter(other)
    for state in states[1:]:
        next(batches)
        assert other.state_dict() == state


def test_an_iterable_with_states_is_not_read_from_its_start(tmp_path: Path) -> None:
    """Its state is taken by the reader, ahead of what the user has.

    What lies between is left out.
    """
    log = tmp_path / "log"
    loader = fed(GoingOn(4000, log), slots=2, copy=True)
    batches = iter(loader)
    for _ in range(700):
        last = next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    del batches
    assert last.tolist() == [2796, 2797, 2798, 2799]
    log = tmp_path / "another"
    other = fed(GoingOn(4000, log), slots=2, copy=True)
    other.load_state_dict(state)
    assert numbers(other) == cut(4000, start=2800)
    read = [int(line) for line in log.read_text().split()]
    assert read[0] == 0  # for the spec
    assert 1000 < read[1] <= 2800
    assert read[1:] == [*range(read[1], 4000)]


def test_a_reader_goes_on_at_a_state(tmp_path: Path) -> None:
    """A replaced one does not read all again."""
    log = tmp_path / "log"
    loader = fed(GoingOn(4000, log), slots=2, copy=True)
    batches, found = iter(loader), list[int]()
    for _ in range(700):
        found += next(batches).tolist()
    os.kill(reader_pid(loader), signal.SIGKILL)
    for batch in batches:
        found += batch.tolist()
    assert found == [*range(4000)]
    read = [int(line) for line in log.read_text().split()][1:]
    back = [at for at in range(1, len(read)) if read[at] != read[at - 1] + 1]
    assert len(back) == 1
    assert read[back[0]] > 1000


# ---- what it takes ----


def test_the_store_is_in_the_plan_and_in_what_is_reserved() -> None:
    """As large as the first element says; reserved is what the elements have taken."""

    class Pictures:
        def __iter__(self) -> Iterator[Any]:
            for number in range(64):
                yield np.full(100_000, number, np.uint8)

    def small(sample: Any) -> Any:
        return sample[:10]

    loader = fed(Pictures(), transform=small, slots=4, batch_size=8)
    assert "for 56 elements as large as the first" in str(loader.plan)
    assert 56 * 100_000 < loader.plan.elements_size < 57 * 100_000 + 2**15
    assert loader.memory == loader.plan.total
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    assert 40 * 100_000 < loader.stats().memory.reserved <= loader.plan.total + 2**16

"""Iterables as datasets.

Read in order, by one worker each, no further ahead than there are slots.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import ringfeed
from numbered import die, fail
from ringfeed import Array, Loader
from ringfeed.datasets import Interleave
from ringfeed.datasets.round_robin import RoundRobinEpoch
from ringfeed.frameworks.base import Epoch
from ringfeed.frameworks.batch import Framework, TensorBuilder
from watching import inside, lose_patience, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "thread": {"backend": "thread"},
    "spawn": {"backend": "spawn"},
    "fork": {"backend": "fork"},
    "process": {"backend": "process"},
}
PROCESSES = ("spawn", "fork", "process")
pytestmark = pytest.mark.usefixtures("nothing_left")


class Numbers:
    """The whole numbers up to ``stop``, from ``start``.

    ``deed`` is done ahead of the one called ``at``.
    """

    def __init__(
        self, stop: int, start: int = 0, at: int = -1, deed: Callable[[], object] | None = None
    ) -> None:
        self.start, self.stop, self.at, self.deed = start, stop, at, deed

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.start, self.stop):
            if number == self.at and self.deed is not None:
                found = self.deed()
                if found is not None:
                    yield found
                    continue
            yield np.int64(number), np.int64(os.getpid()), ringfeed.rng().random()


class Measured(Numbers):
    """Says how many it has."""

    def __len__(self) -> int:
        return self.stop


class Ages:
    """Whole batches."""

    def __iter__(self) -> Iterator[Any]:
        for rows in (4, 4, 0, 3):
            yield np.full(rows, rows, np.int32)


def die_once(mark: Path) -> None:
    """End the first process that comes here."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    die()


def pause_until(mark: Path) -> None:
    """Wait until a file is there."""
    wait_until(mark.exists)


def misfit() -> Any:
    """Return an element unlike the others."""
    return np.zeros(3), np.int64(0), 0.0


def loader_of(dataset: Any, way: str = "here", **settings: Any) -> Loader:
    """Return a loader of small batches."""
    return Loader(
        dataset, **{"batch_size": 4, "workers": 2, "timeout_s": PATIENCE_S, **WAYS[way], **settings}
    )


def rows(batches: Any) -> list[list[int]]:
    """Return the numbers in each batch."""
    return [batch[0].tolist() for batch in batches]


def some(*stops: int) -> list[list[int]]:
    """Return numbers cut into lists."""
    return [list(range(*bounds)) for bounds in itertools.pairwise((0, *stops))]


# ---- in order ----


@pytest.mark.parametrize("way", WAYS)
def test_each_epoch_reads_it_anew_and_in_order(way: str) -> None:
    """Two epochs give all elements in their order, the last batch shorter, whoever reads."""
    with loader_of(Numbers(10), way) as loader:
        assert rows(loader) == some(4, 8, 10)
        assert rows(loader) == some(4, 8, 10)
        assert loader.stats().samples == 20


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_one_worker_reads_it(way: str) -> None:
    """An iterable has one reader, however many workers are asked for."""
    with loader_of(Numbers(40), way, workers=WAYS[way].get("workers", 3)) as loader:
        assert len({pid for batch in loader for pid in batch[1].tolist()}) == 1


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_a_function_makes_one_for_each_epoch(way: str) -> None:
    """A function without arguments is called anew for each epoch."""
    with loader_of(lambda: (np.int64(n) for n in range(6)), way) as loader:
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == [some(4, 6)] * 2


@pytest.mark.parametrize("stop", [4, 8])
def test_a_full_last_batch_is_the_last(stop: int) -> None:
    """No empty batch comes after it."""
    with loader_of(Numbers(stop)) as loader:
        assert rows(loader) == some(*range(4, stop + 1, 4))


def test_a_remainder_can_be_dropped() -> None:
    """With drop_remainder a shorter last batch is left out."""
    with loader_of(Numbers(10), drop_remainder=True) as loader:
        assert rows(loader) == some(4, 8)


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_whole_batches_come_as_they_are(way: str) -> None:
    """With batch_size=None each element is a batch; an empty one is no end."""
    with loader_of(Ages, way, batch_size=None) as loader:
        assert [batch.tolist() for batch in loader] == [[4] * 4, [4] * 4, [], [3] * 3]


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_an_epoch_can_be_broken_off(way: str) -> None:
    """The next epoch begins with the first element.

    So does the same one, when it is asked for again.
    """
    with loader_of(Numbers(40), way) as loader:
        for _ in range(3):
            loader.set_epoch(5)
            assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]
        assert rows(loader) == some(*range(4, 41, 4))


# ---- iterators ----


def lines() -> Iterator[Any]:
    """Return what was read of a file."""
    with Path(__file__).open() as file:
        yield from map(len, file)


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "generator": lambda: (np.int64(n) for n in range(6)),
    "map": lambda: map(np.int64, range(6)),
    "zip": lambda: zip(range(6), range(6), strict=True),
    "itertools": lambda: itertools.islice(itertools.count(), 6),
    "list": lambda: iter(range(6)),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_iterators_are_read_here(kind: str) -> None:
    """What can be read but once is read by a thread.

    The element that told the spec is the first nevertheless.
    """
    with loader_of(ITERATORS[kind](), "spawn") as loader:
        batches = [batch[0] if isinstance(batch, tuple) else batch for batch in loader]
        assert [batch.tolist() for batch in batches] == some(4, 6)


def test_a_file_can_be_mapped() -> None:
    """The lines of an open file are elements as soon as something makes numbers of them."""
    with Path(__file__).open() as file, loader_of(map(len, file)) as loader:
        assert list(itertools.chain.from_iterable(batch.tolist() for batch in loader)) == list(
            lines()
        )


def test_an_iterator_serves_one_epoch() -> None:
    """The second epoch is refused, and says what to give instead."""
    text = (
        "the dataset is an iterator (generator) that epoch 0 has read, and cannot be read again for epoch 1; give a "
        "function that makes a new one, or an object whose __iter__ does"
    )
    with loader_of(ITERATORS["generator"]()) as loader:
        assert [batch.tolist() for batch in loader] == some(4, 6)
        with pytest.raises(ValueError, match="iterator") as caught:
            iter(loader)
    assert str(caught.value) == text


def test_ctrl_c_costs_an_iterator_its_place() -> None:
    """After an interrupt amid a batch it cannot be read again, and says so.

    What can begin anew, does.
    """

    class Interrupted:
        done = False

        def __iter__(self) -> Iterator[Any]:
            for number in range(6):
                if number == 2 and not Interrupted.done:
                    Interrupted.done = True
                    raise KeyboardInterrupt
                yield np.int64(number)

    with loader_of(Interrupted()) as loader:
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert [batch.tolist() for batch in batches] == some(4, 6)
    Interrupted.done = False
    text = "element 0 of the iterable raised ValueError: an iterator (generator) was interrupted, and cannot be read again"
    with loader_of(iter(Interrupted())) as loader:
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(batches)
        assert next(batches, None) is None
    assert str(caught.value) == text


def test_ctrl_c_while_it_is_read_anew() -> None:
    """A second interrupt, amid what is skipped after the first, ends nothing."""

    class Interrupted:
        at: ClassVar[list[int]] = [9, 3]

        def __iter__(self) -> Iterator[Any]:
            stop = self.at.pop(0) if self.at else -1
            for number in range(12):
                if number == stop:
                    raise KeyboardInterrupt
                yield np.int64(number)

    found: list[list[int]] = []
    with loader_of(Interrupted(), spec=Array((), "int64")) as loader:
        batches = iter(loader)
        interrupts = 0
        while len(found) < 3:
            try:
                found.append(next(batches).tolist())
            except KeyboardInterrupt:
                interrupts += 1
        assert next(batches, None) is None
    assert interrupts == 2
    assert found == some(4, 8, 12)


# ---- no further ahead than slots ----


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("slots", [2, 4, 10])
def test_it_reads_no_further_ahead_than_slots(slots: int) -> None:
    """While a batch is held, the other slots are filled, and not one element more is read."""
    read = itertools.count()
    with loader_of(
        (next(read) for _ in itertools.count()), slots=slots, spec=Array((), "int64"), workers=1
    ) as loader:
        batches = iter(loader)
        for number in range(3):
            batch = next(batches)
            assert batch.tolist() == [4 * number + row for row in range(4)]
            wait_for(lambda: loader.slot_states().count("ready") == slots - 1)
            assert int(repr(read)[6:-1]) == 4 * (number + slots)
            del batch


def test_nothing_is_read_ahead_here() -> None:
    """Without workers an element is read when its batch is asked for."""
    read = itertools.count()
    with loader_of((next(read) for _ in itertools.count()), spec=Array((), "int64")) as loader:
        batches = iter(loader)
        for number in range(1, 4):
            next(batches)
            assert int(repr(read)[6:-1]) == 4 * number


# ---- several ----


def three() -> Interleave:
    """Return iterables of different lengths."""
    return Interleave([Numbers(5), Numbers(120, 100), Numbers(210, 200)])


THREE = [
    [0, 1, 2, 3],
    [100, 101, 102, 103],
    [200, 201, 202, 203],
    [4],
    [104, 105, 106, 107],
    [204, 205, 206, 207],
    [108, 109, 110, 111],
    [208, 209],
    [112, 113, 114, 115],
    [116, 117, 118, 119],
]


@pytest.mark.parametrize(
    ("way", "workers"), [("here", 0), ("thread", 2), ("thread", 8), ("spawn", 1), ("spawn", 2)]
)
def test_several_take_turns(way: str, workers: int) -> None:
    """A batch of each in turn, and one that has ended leaves the rotation.

    The same for any number of workers.
    """
    with loader_of(three(), way, workers=workers) as loader:
        assert [rows(loader) for _ in range(2)] == [THREE, THREE]


@pytest.mark.parametrize("way", PROCESSES)
def test_each_of_several_has_its_worker(way: str) -> None:
    """With a worker for each, no two are read by the same process, and none by two."""
    with loader_of(three(), way, workers=3, slots=6) as loader:
        batches = [(batch[0][0] // 100, {*batch[1].tolist()}) for batch in loader]
    readers = [
        set().union(*(pids for place, pids in batches if place == number)) for number in range(3)
    ]
    assert [len(pids) for pids in readers] == [1, 1, 1]
    assert len(set().union(*readers)) == 3


def test_only_full_batches_of_several() -> None:
    """With drop_remainder the shorter last batch of each is left out."""
    with loader_of(three(), drop_remainder=True) as loader:
        assert rows(loader) == [batch for batch in THREE if len(batch) == 4]


def test_a_rotation_is_the_same_however_it_is_planned() -> None:
    """What was planned for one that had ended gives nothing.

    All else comes in the order it would have had.
    """
    ends = {0: 2, 1: 5, 2: 3}  # batches of each
    found = []
    for ahead in (1, 4, 7):
        epoch, planned, order = RoundRobinEpoch(3, 2), list[Any](), list[tuple[int, int]]()
        while not epoch.is_over:
            planned += epoch.take(2 * (ahead - len(planned))).reshape(-1, 2)[:, 0].tolist()
            number = planned.pop(0)
            reader, batch = number % 3, number // 3 // 2
            if batch < ends[reader]:
                order.append((reader, batch))
            else:
                epoch.end(number)
        found.append(order)
    assert found[0] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
        (1, 3),
        (1, 4),
    ]
    assert found[1:] == found[:1] * 2


def test_what_cannot_be_interleaved_is_refused() -> None:
    """Lists have an index; and none at all is a mistake."""
    with pytest.raises(ValueError, match=r"^Interleave\(\) got no iterables; give at least one$"):
        Interleave([])
    with pytest.raises(TypeError) as caught:
        Interleave([Numbers(2), [1, 2]])
    assert str(caught.value) == (
        "Interleave() got a list as number 1, expected an object with __iter__ and no __getitem__, an iterator, or a "
        "function that returns an iterable"
    )


# ---- what goes wrong ----


@pytest.mark.parametrize("way", ["here", "thread", "spawn"])
def test_an_exception_comes_in_its_place_and_ends_the_epoch(way: str) -> None:
    """The batches before it are delivered, it is raised, and then the epoch is over.

    The next one is another try.
    """
    with loader_of(Numbers(40, at=9, deed=fail), way) as loader:
        for _ in range(2):
            batches = iter(loader)
            assert rows(itertools.islice(batches, 2)) == some(4, 8)
            with pytest.raises(ringfeed.WorkerError) as caught:
                next(batches)
            assert (
                str(caught.value) == "element 9 of the iterable raised KeyError: 'no more of this'"
            )
            assert next(batches, None) is None


@pytest.mark.parametrize("way", ["here", "spawn"])
def test_an_exception_is_not_skipped(way: str) -> None:
    """on_error="skip" delivers what came before, and then raises.

    An epoch is not to be short in silence.
    """
    with loader_of(Numbers(40, at=9, deed=fail), way, on_error="skip") as loader:
        batches = iter(loader)
        assert rows(itertools.islice(batches, 3)) == some(4, 8, 9)
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(batches)
        assert next(batches, None) is None
        assert loader.stats().skipped == [9]
    assert str(caught.value) == "the iterable was ended by KeyError: 'no more of this'"


def test_an_element_that_does_not_fit_ends_nothing() -> None:
    """It is that element's failure alone, raised or skipped, and the iterable goes on."""
    text = (
        "element 5 of the iterable: sample[0] has shape (3,), expected (); make all samples alike"
    )
    with loader_of(Numbers(10, at=5, deed=misfit)) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ringfeed.SpecError) as caught:
            next(batches)
        assert rows(batches) == [[8, 9]]
    assert str(caught.value).startswith(text.partition(";")[0][:40])
    with loader_of(Numbers(10, at=5, deed=misfit), on_error="skip") as loader:
        assert rows(loader) == [[0, 1, 2, 3], [4, 6, 7], [8, 9]]


@pytest.mark.parametrize("way", ["thread", "spawn"])
def test_a_stuck_reader_is_shown_in_the_words_of_its_iterable(way: str, tmp_path: Path) -> None:
    """The first line of a StallError and that of the worker name the element alike."""
    go_on = tmp_path / "go on"
    dataset = Interleave(
        [Numbers(100), Numbers(200, 100, at=103, deed=functools.partial(pause_until, go_on))]
    )
    with loader_of(dataset, way) as loader:
        batches = iter(loader)
        assert rows(itertools.islice(batches, 1)) == [[0, 1, 2, 3]]
        wait_until(lambda: inside(loader) == [7])
        lose_patience(loader, 0.1)
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        go_on.touch()
    text = str(caught.value)
    assert text.startswith("no batch for 0.1 s: 1 of 2 workers inside element 3 of iterable 1;")
    assert re.search(
        r"^worker 1 \(.*\): inside element 3 of iterable 1, has been at it", text, re.MULTILINE
    )


@pytest.mark.parametrize("way", PROCESSES)
def test_who_takes_the_place_of_a_killed_reader_goes_on(way: str, tmp_path: Path) -> None:
    """It starts anew and skips.

    Nothing is lost or doubled, and random numbers are those of their elements.
    """
    with loader_of(Numbers(30), "here") as loader:
        expected = [(batch[0].tolist(), batch[2].tolist()) for batch in loader]
    dataset = Numbers(30, at=14, deed=functools.partial(die_once, tmp_path / "dead"))
    with loader_of(dataset, way) as loader:
        assert [(batch[0].tolist(), batch[2].tolist()) for batch in loader] == expected
        wait_until(lambda: loader.stats().restarts == 1)


def test_one_of_several_may_lose_its_reader(tmp_path: Path) -> None:
    """The others' order is as it was."""
    dead = functools.partial(die_once, tmp_path / "dead")
    dataset = Interleave([Numbers(5), Numbers(120, 100, at=105, deed=dead), Numbers(210, 200)])
    with loader_of(dataset, "spawn", workers=3) as loader:
        assert rows(loader) == THREE
        wait_until(lambda: loader.stats().restarts == 1)


def test_two_elements_that_end_every_reader_of_one_stream() -> None:
    """The worker that replaces their last reader does not read the first of them again."""
    dataset = Interleave([Numbers(100, at=3, deed=die), Numbers(200, 100, at=102, deed=die)])
    with loader_of(dataset, "fork", workers=1, max_attempts=2) as loader:
        batches = iter(loader)
        texts = []
        for _ in range(2):
            with pytest.raises(ringfeed.WorkerError) as caught:
                next(batches)
            texts.append(str(caught.value))
        assert next(batches, None) is None
        wait_until(lambda: loader.stats().restarts == 4)
    assert texts == [
        f"element {element} ended 2 workers; the last one was killed by SIGKILL; try it with workers=0"
        for element in ("3 of iterable 0", "2 of iterable 1")
    ]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_element_that_ends_every_reader_ends_the_epoch(on_error: str) -> None:
    """After max_attempts it is blamed, by number; nobody can read what comes after it."""
    with loader_of(
        Numbers(40, at=6, deed=die), "fork", max_attempts=2, on_error=on_error
    ) as loader:
        batches = iter(loader)
        assert next(batches)[0].tolist() == [0, 1, 2, 3]
        if on_error == "skip":
            assert next(batches)[0].tolist() == [4, 5]
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(batches)
        assert next(batches, None) is None
        wait_until(lambda: loader.stats().restarts == 2)
    assert (
        str(caught.value)
        == {
            "raise": "element 6 of the iterable ended 2 workers; the last one was killed by SIGKILL; "
            "try it with workers=0",
            "skip": "the iterable was ended by RuntimeError: what comes after an element that "
            "ended its workers cannot be read",
        }[on_error]
    )


def test_a_function_that_returns_no_iterable_is_refused() -> None:
    """The text says what came."""
    with pytest.raises(
        TypeError, match=r"^the dataset is a function that returned a int, expected an iterable$"
    ):
        loader_of(lambda: 5)


def test_one_that_cannot_travel_is_named() -> None:
    """What holds an open iterator cannot be sent to a process; the text names it."""

    class Holder:
        def __init__(self) -> None:
            self.source = (n for n in range(3))

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    with pytest.raises(ringfeed.ShipError, match=r"dataset\.source"):
        loader_of(Holder(), "spawn")


# ---- what is known of it ----


def test_an_order_is_refused() -> None:
    """Neither shuffle nor a sampler can choose among what comes in its own order."""
    text = (
        "{} needs a dataset whose samples have numbers, and an iterable comes in its own order; shuffle inside the "
        "iterable, or give a dataset with __len__ and __getitem__"
    )
    for settings, name in (({"shuffle": True}, "shuffle=True"), ({"sampler": [1]}, "sampler=")):
        with pytest.raises(ValueError, match="own order") as caught:
            loader_of(Numbers(4), **settings)
        assert str(caught.value) == text.format(name)


def test_the_length_is_the_iterables_own() -> None:
    """len() is unknown but where the iterable says it.

    What comes is what it gives, all the same.
    """
    with loader_of(Numbers(10)) as loader, pytest.raises(TypeError) as caught:
        len(loader)
    assert str(caught.value) == "the length of this loader is unknown: its dataset is an iterable"
    with loader_of(Measured(10)) as loader:
        assert len(loader) == 3
        assert loader._stream.runner.source.streams


def test_samples_of_many_shapes_are_padded() -> None:
    """As those of a dataset with an index."""
    samples = [np.ones(length, np.int64) for length in (1, 3, 0, 2, 5)]
    with loader_of(lambda: iter(samples), spec=Array((5,), "int64", variable=True)) as loader:
        assert [(batch.shape, int(batch.sum())) for batch in loader] == [((4, 3), 6), ((1, 5), 5)]


@pytest.mark.parametrize(("length", "stop"), [(12, 20), (8, 8)])
def test_private_copies_go_on_behind_its_length(length: int, stop: int) -> None:
    """What it says of its length is no promise.

    Neither the batches behind it are lost, nor those before an error.
    """

    class Saying(Numbers):
        def __len__(self) -> int:
            return length

    found = []
    with loader_of(Saying(20, at=stop, deed=fail)) as loader:
        epoch = Epoch(
            loader._stream, TensorBuilder(loader._stream.info, Framework(None, np.asarray)).leaves
        )
        try:
            for leaves in epoch:
                found.append(leaves[0].tolist())  # noqa: PERF401 - kept where the next one raises
        except ringfeed.WorkerError:
            assert stop == 8
    assert found == some(*range(4, stop + 1, 4))


def test_an_empty_one_needs_a_spec() -> None:
    """There is no element to learn it from; with a spec there are no batches, and no error."""
    with pytest.raises(ringfeed.SpecError) as caught:
        loader_of(Numbers(0))
    assert (
        str(caught.value)
        == "the iterable is empty, so there is no element to infer the spec from; give spec="
    )
    with loader_of(
        Numbers(0), spec=(Array((), "int64"), Array((), "int64"), Array((), "float32"))
    ) as loader:
        assert list(loader) == []


def test_states_shared_by_threads_cannot_be_reseeded_for_an_iterator() -> None:
    """reseed=True is refused as it is for threads, which read an iterator."""
    with pytest.raises(ValueError, match=r"^reseed=True seeds states that all threads share"):
        loader_of(iter(range(3)), reseed=True)


def test_each_element_is_reseeded() -> None:
    """With reseed=True the legacy numbers are those of the element, also after a broken epoch."""

    class Drawing:
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield np.random.randint(2**31)  # noqa: NPY002 - what is tested

    with loader_of(Drawing(), reseed=True) as loader:
        first = [batch.tolist() for batch in itertools.islice(loader, 2)]
        loader.set_epoch(0)
        assert [batch.tolist() for batch in itertools.islice(loader, 2)] == first
        assert len({*first[0], *first[1]}) == 8

"""Threads that use one loader at the same time, as in Python without the GIL (3.13t, 3.14t).

With the GIL these tests pass, too: most of what they look for cannot happen then.
"""

from __future__ import annotations

import inspect
import queue
import re
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.engine import options
from ringfeed.engine._repeated import Repeated
from ringfeed.loader import loaders_in_use, stream_of
from ringfeed.ring import _ring
from watching import PATIENCE_S, run_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

# Several threads hold a batch each.
pytestmark = pytest.mark.filterwarnings("ignore::ringfeed.SlotsHeldWarning")
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
HERE: dict[str, Any] = {"workers": 1, "backend": "thread"}

EVERY_MODULE = """
import sys
from importlib import import_module
from pathlib import Path

import numpy
import ringfeed

has_gil = getattr(sys, "_is_gil_enabled", lambda: True)
before, package = has_gil(), Path(ringfeed.__file__).parent
for file in sorted(package.rglob("_*.so")):
    name = file.name.partition(".")[0]
    if name != "_tf_op":  # which TensorFlow opens
        import_module(".".join(("ringfeed", *file.relative_to(package).parent.parts, name)))
        if has_gil() != before:
            print(name)
"""


def test_no_module_turns_the_gil_on() -> None:
    """One that does not declare that it is right without the GIL would, for the whole process."""
    assert run_script(EVERY_MODULE) == ("", "", 0)


@pytest.fixture
def without_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python say that it runs without the GIL."""
    monkeypatch.setattr(options, "default_backend", inspect.unwrap(options.default_backend))
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


@pytest.mark.usefixtures("without_gil")
def test_without_the_gil_the_workers_are_threads() -> None:
    """So they are unless the caller says otherwise: processes are possible, too."""
    rows = np.arange(8)
    with ringfeed.Loader(rows, batch_size=4, workers=2) as loader:
        assert "workers in threads: 2" in repr(loader)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.plan.dataset_shared == 0
    with ringfeed.Loader(rows, batch_size=4, workers=2, backend="process") as loader:
        assert "workers by forkserver: 2" in repr(loader)


@pytest.mark.usefixtures("without_gil")
def test_without_the_gil_what_needs_processes_says_so() -> None:
    """The default gives no other meaning to what was asked for."""
    expected = (
        "reseed=True seeds states that all threads share; use backend='process', or ringfeed.rng()"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        ringfeed.Loader(np.arange(8), workers=2, reseed=True)


def test_with_the_gil_the_workers_are_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is whether it is on when the loader is made, perhaps by an import just now."""
    monkeypatch.setattr(options, "default_backend", inspect.unwrap(options.default_backend))
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    with ringfeed.Loader(np.arange(8), batch_size=4, workers=2) as loader:
        assert "workers by forkserver: 2" in repr(loader)


def together(*calls: Callable[[], object]) -> None:
    """Make calls in a thread each; all but the first again and again, until that ends."""
    over, errors = threading.Event(), list[BaseException]()

    def run(call: Callable[[], object], *, repeats: bool) -> None:
        try:
            call()
            while repeats and not over.is_set():
                call()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(call,), kwargs={"repeats": number > 0}, daemon=True)
        for number, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(PATIENCE_S)
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for error in errors:
        raise error


def test_slots_that_another_thread_drops_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last reference to a batch may be dropped while this thread waits for a slot in C.

    No batch is copied.
    """
    # However slow the thread is, the drop ends the wait.
    monkeypatch.setattr("ringfeed.engine.settling.SOON_NS", int(PATIENCE_S * 1e9))
    given: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drop() -> None:
        while given.get() is not None:
            pass

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    rows = np.arange(4000).reshape(1000, 4)
    with (
        ringfeed.Loader(rows, batch_size=10, workers=1, backend="thread", slots=3) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", ringfeed.SlotsHeldWarning)
        for batch in loader:
            given.put(batch)
            del batch
    given.put(None)
    thread.join(PATIENCE_S)
    assert loader.stats().batches == 100


class Odd:
    """Fails at every second sample.

    So each batch is settled and kept before it is handed out.
    """

    def __len__(self) -> int:
        return 800

    def __getitem__(self, index: int) -> Any:
        if index % 2 == 0:
            raise ValueError
        return np.int64(index)


def test_threads_that_take_from_one_iterator_share_its_batches() -> None:
    """Each batch is handed out once, to one of them."""
    settings: dict[str, Any] = {
        "batch_size": 2,
        "workers": 1,
        "backend": "thread",
        "on_error": "skip",
    }
    with ringfeed.Loader(Odd(), spec=ringfeed.Array((), "int64"), slots=16, **settings) as loader:
        batches, found = iter(loader), []
        threads = [
            threading.Thread(target=lambda: found.extend(_rows(batches)), daemon=True)
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(found) == [*range(1, 800, 2)]


def test_a_batch_that_is_kept_is_handed_to_one_thread_at_a_time() -> None:
    """What Ctrl-C keeps from a thread is kept for the next that asks.

    Of several that ask at once, one has it.
    """
    inside, twice = list[None](), list[int]()

    def build(_lease: Any, _rows: int) -> Any:
        inside.append(None)  # and no lock, in which threads would wait for each other
        if len(inside) > 1:
            twice.append(len(inside))
        inside.pop()
        raise KeyboardInterrupt  # so that the one batch is kept once more

    with ringfeed.Loader(np.arange(8), batch_size=8, workers=1, backend="thread") as loader:
        batches = stream_of(loader).epoch(build)

        def take() -> None:
            ends = suppress(KeyboardInterrupt, StopIteration)
            for _ in range(1000 if HAS_GIL else 40_000):
                with ends:
                    next(batches)

        threads = [threading.Thread(target=take, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert twice == []


def test_a_batch_that_is_kept_is_not_replaced_by_the_next() -> None:
    """Ctrl-C may put one back while the engine, in another thread, is about to take the next."""

    def build(_lease: Any, _rows: int) -> Any:
        raise KeyboardInterrupt

    with ringfeed.Loader(np.arange(8), batch_size=4, **HERE) as loader:
        batches = stream_of(loader).epoch(build)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        engine: Any = loader._runner.engine
        wait_until(lambda: engine.ring.look() == _ring.TAKEABLE)
        assert not engine.intake.take(batches.epoch_id)
        assert engine.intake.kept.batch == 0


def _rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]


# ---- looking on while others take ----


def test_no_damage_is_found_while_another_thread_takes() -> None:
    """A thread that waits compares the shared memory with the ring's own copies, at any moment of a take."""
    with ringfeed.Loader(np.arange(20_000), batch_size=4, slots=4, **HERE) as loader:
        batches = iter(loader)
        assert loader._runner.engine is not None
        ring, found = loader._runner.engine.ring, set[Any]()
        together(lambda: [*map(len, batches)], lambda: found.add(ring.damage()))
        assert loader.stats().batches == 5000
    assert found == {None}


def test_statistics_are_asked_for_while_batches_are_settled() -> None:
    """They look at the batch that is kept, which another thread hands out and drops."""
    settings: dict[str, Any] = {"spec": ringfeed.Array((), "int64"), "on_error": "skip", **HERE}
    with ringfeed.Loader(Odd(), batch_size=2, slots=4, **settings) as loader:
        together(lambda: [*map(len, loader)], loader.stats, loader.slot_states, loader.state_dict)
        assert loader.stats().batches == 400


def test_loaders_in_use_are_listed_while_others_begin() -> None:
    """The list changes meanwhile, by new loaders and by dropped ones."""

    def begin() -> None:
        for _ in range(8):
            next(iter(ringfeed.Loader(np.arange(8), batch_size=4, workers=0)))

    together(begin, begin, loaders_in_use, loaders_in_use)


# ---- several threads, one iterator ----


def test_threads_that_share_epochs_have_all_batches_of_each() -> None:
    """Each of them may begin the next epoch."""
    with ringfeed.Loader(np.arange(12), batch_size=4, slots=4, **HERE) as loader:
        epochs, found = loader.repeat(100), list[int]()

        def take() -> None:
            for batch in epochs:
                found.extend(batch.tolist())

        together(*[take] * 6)
    assert sorted(found) == sorted([*range(12)] * 100)


class Held:
    """An epoch of one batch, which a thread is at until it is let go."""

    failure = None

    def __init__(self, let_go: threading.Event) -> None:
        self.let_go, self.is_taken = let_go, threading.Event()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.is_taken.is_set():
            raise StopIteration
        self.is_taken.set()
        assert self.let_go.wait(PATIENCE_S)
        return self


def test_an_epoch_whose_batch_another_thread_is_at_is_not_without_one() -> None:
    """Two epochs without a batch end what is without end; a batch that is still being made counts."""
    let_go, begun = threading.Event(), list[Held]()

    class Epochs:
        def __iter__(self) -> Any:
            begun.append(Held(let_go))
            return begun[-1]

    epochs, ended = Repeated(Epochs()), list[int]()

    def take(number: int) -> None:
        if next(epochs, None) is None:
            ended.append(number)

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: number in ended or len(begun) > number)
    let_go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (ended, len(begun)) == ([], 4)


class Ending:
    """Each sample raises that is the last of so many."""

    def __init__(self, every: int, length: int) -> None:
        self.every, self.length = every, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index % self.every == self.every - 1:
            raise ValueError(index)
        return np.int64(index)


@pytest.mark.parametrize(("every", "length"), [(5, 400), (1, 2000)])
def test_an_error_that_several_threads_come_to_takes_no_batch_along(
    every: int, length: int
) -> None:
    """It is raised in its place, in one of them; the batches after it come once."""
    settings: dict[str, Any] = {"spec": ringfeed.Array((), "int64"), "batch_size": 1, **HERE}
    with ringfeed.Loader(Ending(every, length), slots=6, **settings) as loader:
        batches, found, raised = iter(loader), list[int](), list[str]()

        def take() -> None:
            while True:
                try:
                    found.extend(next(batches).tolist())
                except StopIteration:
                    return
                except ringfeed.WorkerError as error:
                    raised.append(str(error))

        together(*[take] * 4)
    assert sorted(found) == [index for index in range(length) if (index + 1) % every]
    told = [
        f"dataset[{index}] raised ValueError: {index}" for index in range(every - 1, length, every)
    ]
    assert sorted(raised) == sorted(told)


def test_an_error_that_two_threads_find_together_is_raised_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one has the batch after it."""
    from ringfeed.engine import _iterator  # noqa: PLC0415 - no public name

    both = threading.Barrier(2)

    def found(_error: object, _traceback: object) -> None:
        with suppress(threading.BrokenBarrierError):  # the other thread may have the batch already
            both.wait(1)

    monkeypatch.setattr(_iterator, "users_frames", found)
    settings: dict[str, Any] = {"spec": ringfeed.Array((), "int64"), "batch_size": 1, **HERE}
    with ringfeed.Loader(Odd(), slots=6, **settings) as loader:
        batches, told = iter(loader), list[Any]()

        def take() -> None:
            try:
                told.append(next(batches).tolist())
            except ringfeed.WorkerError as error:
                told.append(error)

        threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    told.sort(key=lambda one: isinstance(one, list))
    assert [type(told[0]), told[1:]] == [ringfeed.WorkerError, [[1]]]


# ---- samples that another thread changes ----


class Shared:
    """Samples of a list in a dict, whose numbers another thread replaces."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample: dict[str, Any] = {"numbers": [[0.5] * 4, [0.25] * 4], "one": 0.5}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample

    def change(self) -> None:
        """Replace all that a sample has."""
        for row in self.sample["numbers"]:
            for place in range(4):
                row[place] = float(f"{place}.5")
        self.sample["numbers"] = [[float("1.5")] * 4, [float("2.5")] * 4]
        self.sample["one"] = float("7.25")


def test_a_sample_may_change_while_it_is_read() -> None:
    """A batch then has old and new numbers, as another thread's read would; nothing breaks."""
    spec = {"numbers": ringfeed.Array((2, 4), "float32"), "one": ringfeed.Array((), "float32")}
    dataset = Shared(2000 if HAS_GIL else 100_000)
    with ringfeed.Loader(dataset, batch_size=100, spec=spec, workers=2, backend="thread") as loader:
        found = set[float]()

        def take() -> None:
            for batch in loader:
                found.update(np.unique(batch["numbers"]).tolist(), np.unique(batch["one"]).tolist())

        together(take, dataset.change, dataset.change)
    assert found <= {0.25, 0.5, 1.5, 2.5, 3.5, 7.25}

"""While the op waits for a batch.

Ctrl-C, an iteration that is given up; and what errors cost, which is no batch.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf

import ringfeed
from datasets import Oracle
from ringfeed.frameworks.tensorflow import dataset as tensorflow_dataset
from watching import pids, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 40.0
BATCHES = [[float(index) for index in range(first, first + 4)] for first in range(0, 40, 4)]


class Stuck:
    """Samples of which the tenth does not come before it is let through."""

    def __init__(self, at: int = 10) -> None:
        self.at = at
        self.waits = False
        self.go_on = threading.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.float32:
        if index == self.at:
            self.waits = True
            self.go_on.wait(WAIT_S)
            self.waits = False
        return np.float32(index)


def make(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader with three slots and one worker thread, which gives ten batches."""
    return ringfeed.Loader(
        dataset,
        **{
            "batch_size": 4,
            "workers": 1,
            "backend": "thread",
            "slots": 3,
            "timeout_s": None,
            **settings,
        },
    )


def plain(dataset: Any) -> Any:
    """The dataset, of which nothing is asked ahead."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def values(batches: Any) -> list[list[float]]:
    """Return what is in each batch."""
    return [batch.numpy().tolist() for batch in batches]


def walk(iterator: Iterator[Any], found: list[list[float]]) -> None:
    """Add what is in each batch to those found.

    A batch is out of sight before the next is asked for.
    """
    found.extend(batch.numpy().tolist() for batch in iterator)


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "plain": plain,
    "as it is": lambda ds: ds,
    "prefetch": lambda ds: ds.prefetch(2),
    "map": lambda ds: ds.map(lambda batch: batch, num_parallel_calls=2),
}


# ---- Ctrl-C ----


@pytest.fixture
def by_default() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where a shell has had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c_when(holds: Callable[[], bool]) -> threading.Thread:
    """Press it once, in that state."""

    def press() -> None:
        wait_until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def sleep_until_ctrl_c() -> None:
    """Wait in a call that Python ends for a signal."""
    press_ctrl_c_when(lambda: True)
    threading.Event().wait(WAIT_S)


@pytest.mark.parametrize(
    ("pipeline", "form"),
    [(pipeline, "tenth") for pipeline in PIPELINES]
    + [("as it is", form) for form in ("first", "last", "unknown length")],
)
@pytest.mark.usefixtures("by_default")
def test_ctrl_c_while_the_op_waits(pipeline: str, form: str) -> None:
    """KeyboardInterrupt comes though the batch does not, and a loop that goes on gets every batch."""
    stuck = Stuck({"first": 0, "last": 39}.get(form, 10))
    settings: Any = {"on_error": "skip"} if form == "unknown length" else {}
    with make(stuck, **settings, spec=ringfeed.Array((), "float32")) as loader:
        iterator = iter(PIPELINES[pipeline](loader.to_tf_dataset()))
        found: list[list[float]] = []
        thread = press_ctrl_c_when(lambda: stuck.waits and len(found) == stuck.at // 4)
        with pytest.raises(KeyboardInterrupt):
            walk(iterator, found)
        assert stuck.waits
        stuck.go_on.set()
        walk(iterator, found)
        thread.join()
        assert found == BATCHES


def fit(dataset: Any) -> None:
    """Train a model of one weight."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset.map(lambda batch: (batch[:, None], batch)), verbose=0)


@tf.function
def total(dataset: Any) -> Any:
    """Add up in a loop of TensorFlow's."""
    found = 0.0
    for batch in dataset:
        found += batch[0]
    return found


GRAPHS: dict[str, Callable[[Any], Any]] = {"fit": fit, "tf.function": total}


@pytest.mark.parametrize("form", GRAPHS)
@pytest.mark.usefixtures("by_default")
def test_ctrl_c_while_a_graph_waits(form: str) -> None:
    """KeyboardInterrupt ends a loop in TensorFlow's graph, and Keras' own, and the iteration."""
    stuck = Stuck()
    with make(stuck) as loader:
        dataset = loader.to_tf_dataset()
        thread = press_ctrl_c_when(lambda: stuck.waits and loader.stats().batches >= 2)
        with pytest.raises(KeyboardInterrupt):
            GRAPHS[form](dataset)
        assert stuck.waits
        thread.join()
        stuck.go_on.set()
        assert values(loader.to_tf_dataset()) == BATCHES


def test_a_handler_of_ones_own_for_ctrl_c() -> None:
    """With a handler that does not raise every batch comes, and no error."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        stuck = Stuck()
        with make(stuck) as loader:
            thread = press_ctrl_c_when(lambda: stuck.waits and loader.stats().batches == 2)
            let_through = threading.Thread(target=lambda: (thread.join(), stuck.go_on.set()))
            let_through.start()
            assert values(plain(loader.to_tf_dataset())) == BATCHES
            let_through.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.usefixtures("by_default")
def test_ctrl_c_that_does_not_wait_for_the_op() -> None:
    """A KeyboardInterrupt that Python raises itself costs an op in another thread nothing."""
    stuck = Stuck()
    with make(stuck) as loader:
        iterator = iter(loader.to_tf_dataset().prefetch(5))
        found = values([next(iterator)])
        wait_until(lambda: stuck.waits and loader.stats().batches == 2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            sleep_until_ctrl_c()
        threading.Event().wait(0.4)  # for the op to look, more than once
        stuck.go_on.set()
        assert found + values(iterator) == BATCHES


# ---- an iteration that is given up ----


@pytest.mark.parametrize("pipeline", ["as it is", "prefetch", "map"])
def test_an_iterator_goes_while_the_op_waits(pipeline: str) -> None:
    """TensorFlow waits for its own threads, not for the batch, when an iterator is dropped."""
    stuck = Stuck()
    with make(stuck, workers=2, slots=6) as loader:
        dataset = PIPELINES[pipeline](loader.to_tf_dataset().prefetch(4))
        iterator = iter(dataset)
        assert values([next(iterator)]) == BATCHES[:1]
        wait_until(lambda: stuck.waits)
        del iterator
        gc.collect()
        assert stuck.waits
        assert values(dataset.take(2)) == BATCHES[:2]
        assert stuck.waits, "and the next epoch begins beside the worker that is still at it"
        stuck.go_on.set()
        assert values(dataset) == BATCHES


def test_take_again_and_again() -> None:
    """Iterations broken off at once, many times over, leave the loader as it was."""
    with make(np.arange(40, dtype=np.float32)) as loader:
        dataset = loader.to_tf_dataset()
        for number in range(20):
            assert values(dataset.take(1 + number % 2)) == BATCHES[: 1 + number % 2]
        assert values(dataset.repeat(2)) == BATCHES * 2
        assert loader.epoch == 22


def test_two_datasets_of_one_loader() -> None:
    """The newest iteration has the loader also where the older is over another dataset of it."""
    with make(np.arange(40, dtype=np.float32)) as loader:
        older, newer = iter(plain(loader.to_tf_dataset())), iter(plain(loader.to_tf_dataset()))
        assert values([next(older), next(newer)]) == [BATCHES[0]] * 2
        with pytest.raises(
            tf.errors.OpError,
            match="SupersededError: a newer iterator of this loader has taken over",
        ):
            next(older)
        assert values(newer) == BATCHES[1:]
        with pytest.raises(tf.errors.OpError, match="SupersededError"):
            next(older)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_fork_beside_it() -> None:
    """A child that is forked while the op waits, and closes the loader, takes nothing away."""
    stuck = Stuck()
    with make(stuck) as loader:
        found: list[list[float]] = []
        thread = threading.Thread(target=lambda: walk(iter(loader.to_tf_dataset()), found))
        thread.start()
        wait_until(lambda: stuck.waits and len(found) == 2)
        child = os.fork()
        if child == 0:
            loader.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        stuck.go_on.set()
        thread.join(WAIT_S)
        assert found == BATCHES


# ---- what errors cost ----


@pytest.mark.parametrize("way", ["op", "python"])
@pytest.mark.parametrize("at", [0, 10, 39])
def test_a_stall_costs_no_batch(at: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that asks again after a StallError gets every batch, the last one too."""
    stuck = Stuck(at)
    if way == "python":
        monkeypatch.setattr(tensorflow_dataset, "_ops_for", lambda _: None)
    with make(stuck, timeout_s=0.5, spec=ringfeed.Array((), "float32")) as loader:
        iterator = iter(plain(loader.to_tf_dataset()))
        found: list[list[float]] = []
        with pytest.raises(
            tf.errors.OpError, match=r"StallError: no batch for 0\.5 s: 1 of 1 workers inside"
        ):
            walk(iterator, found)
        with pytest.raises(tf.errors.OpError, match="StallError"):
            next(iterator)
        stuck.go_on.set()
        walk(iterator, found)
        assert found == BATCHES


class Hooked(Oracle):
    """Hooks that raise in the epochs of these numbers."""

    def __init__(self, length: int, begin: int = -1, end: int = -1) -> None:
        super().__init__(length)
        self.fails = {"begin": begin, "end": end}
        self.counts = {"begin": 0, "end": 0}

    def _run(self, name: str) -> None:
        self.counts[name] += 1
        if self.counts[name] - 1 == self.fails[name]:
            raise KeyError(name)

    def on_epoch_begin(self) -> None:
        self._run("begin")

    def on_epoch_end(self) -> None:
        self._run("end")


def rows(batches: Any) -> list[int]:
    """Return how many rows each batch has."""
    return [len(batch[1]) for batch in batches]


def test_an_epoch_that_cannot_begin_costs_no_batch() -> None:
    """A loop that asks again after a hook has raised gets the whole epoch."""
    with make(Hooked(40, begin=0)) as loader:
        iterator = iter(plain(loader.to_tf_dataset()))
        with pytest.raises(tf.errors.OpError, match="KeyError: 'begin'"):
            next(iterator)
        assert rows(iterator) == [4] * 10


@pytest.mark.parametrize(
    "settings", [{}, {"on_error": "skip"}], ids=["known length", "unknown length"]
)
def test_the_last_batch_comes_before_the_error_of_the_hook(settings: Any) -> None:
    """An on_epoch_end() that raises does so where the dataset ends, and costs no batch.

    The next epoch is whole.
    """
    dataset = Hooked(40, end=0)
    with make(dataset, **settings) as loader:
        batches = loader.to_tf_dataset()
        iterator = iter(batches)
        assert rows([next(iterator) for _ in range(10)]) == [4] * 10
        with pytest.raises(tf.errors.OpError, match="KeyError: 'end'"):
            next(iterator)
        assert rows(iterator) == []
        assert rows(batches) == [4] * 10
        assert dataset.counts == {"begin": 2, "end": 2}


def test_the_error_of_the_hook_comes_with_the_next_epoch() -> None:
    """A loop that counts batches, and stops at the last, hears of it in the next epoch."""
    with make(Hooked(40, end=0)) as loader:
        batches = plain(loader.to_tf_dataset())
        assert rows(batches.take(10)) == [4] * 10
        iterator = iter(batches)
        with pytest.raises(tf.errors.OpError, match="KeyError: 'end'"):
            next(iterator)
        assert rows(iterator) == [4] * 10


def test_an_error_of_the_hook_that_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is asked for any more, Python prints the error when the dataset goes."""
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: printed.append(found.exc_value))
    with make(Hooked(40, end=0)) as loader:
        assert rows(plain(loader.to_tf_dataset()).take(10)) == [4] * 10
    wait_until(lambda: gc.collect() >= 0 and bool(printed))
    assert [repr(error) for error in printed] == ["KeyError('end')"]


# ---- workers that cannot go on ----


@pytest.mark.usefixtures("irreplaceable")
@pytest.mark.parametrize(
    "settings", [{}, {"on_error": "skip"}], ids=["known length", "unknown length"]
)
def test_a_pool_that_has_failed_says_so_each_time(settings: Any) -> None:
    """Each further batch is the error that ended the workers; the next iteration begins anew."""
    with ringfeed.Loader(Oracle(4000), batch_size=4, workers=1, slots=2, **settings) as loader:
        dataset = plain(loader.to_tf_dataset())
        iterator = iter(dataset)
        next(iterator)
        os.kill(pids(loader)[0], signal.SIGKILL)
        expected = (
            r"WorkerError: 0 workers in a row ended before they filled anything; the last was "
            r"killed "
            r"by SIGKILL"
        )
        with pytest.raises(tf.errors.OpError, match=expected):
            rows(iterator)
        for _ in range(3):
            with pytest.raises(tf.errors.OpError, match=expected):
                next(iterator)
        assert rows(dataset.take(2)) == [4, 4]


def test_a_worker_that_cannot_start() -> None:
    """What keeps a worker from opening the dataset is told at each batch."""

    class Unopened(Oracle):  # by value: of this module the worker would have to import TensorFlow
        def __setstate__(self, state: object) -> None:
            raise OSError("no such file")

    how: Any = {"slots": 3, "backend": "spawn", "spec": Oracle.SPEC}
    with ringfeed.Loader(Unopened(40), batch_size=4, workers=1, **how) as loader:
        iterator = iter(plain(loader.to_tf_dataset()))
        expected = "WorkerError: a worker could not open the dataset: OSError: no such file"
        for _ in range(3):
            with pytest.raises(tf.errors.OpError, match=expected):
                next(iterator)

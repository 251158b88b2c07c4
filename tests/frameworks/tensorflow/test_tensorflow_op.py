"""The op behind to_tf_dataset().

Whose memory tensors are, how many slots are held, what is done without Python.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import ringfeed
import warm
from datasets import Oracle, check

tf = pytest.importorskip("tensorflow")
adapter = importlib.import_module("ringfeed.frameworks.tensorflow.dataset")
op = importlib.import_module("ringfeed.frameworks.tensorflow.dataset")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 20.0


class Aliased:
    """Samples of every kind of leaf, odd shapes too.

    It keeps the rows in the slots that it has written.
    """

    SPEC = (
        ringfeed.Array((3,), "uint8"),
        ringfeed.Array((), "int32"),
        ringfeed.Array((5, 1, 7), "int64"),
        ringfeed.Array((13,), "float16"),
        ringfeed.Array((3, 3), ml_dtypes.bfloat16),
        ringfeed.Array((), "float32"),
        ringfeed.Array((2,), "bool"),
        ringfeed.Array((0, 4), "float64"),
        ringfeed.Array((1,), "complex64"),
    )

    def __init__(self) -> None:
        self.rows: dict[int, tuple[np.ndarray[Any, Any], ...]] = {}

    def __len__(self) -> int:
        return 23

    def value(self, index: int) -> tuple[np.ndarray[Any, Any], ...]:
        return tuple(np.full(leaf.shape, index % 5, leaf.dtype) for leaf in self.SPEC)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], ...]:
        return self.value(index)

    def read_into(self, index: int, out: tuple[np.ndarray[Any, Any], ...]) -> None:
        self.rows[index] = out
        for row, value in zip(out, self.value(index), strict=True):
            row[...] = value


def address(tensor: Any) -> int:
    """Where a tensor lies; its public ``numpy()`` is a copy."""
    found: int = tensor._numpy().ctypes.data
    return found


def oracle(length: int = 96, **settings: Any) -> ringfeed.Loader:
    """Return a loader of an Oracle by one worker thread, eight samples a batch."""
    return ringfeed.Loader(
        Oracle(length),
        **{
            "batch_size": 8,
            "workers": 1,
            "backend": "thread",
            "slots": 3,
            "timeout_s": WAIT_S,
            **settings,
        },
    )


def indices(dataset: Any) -> list[int]:
    """Return the indices of an Oracle's elements, all checked."""
    return [index for batch in dataset for index in check(tuple(leaf.numpy() for leaf in batch))]


def unhurried(dataset: Any) -> Any:
    """The dataset, of which nothing is asked ahead."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def settle(loader: ringfeed.Loader) -> list[str]:
    """Return the states of the slots once none is held, or after some seconds."""
    deadline = time.monotonic() + 5
    while gc.collect() >= 0 and "held" in loader.slot_states() and time.monotonic() < deadline:
        time.sleep(0.01)
    return loader.slot_states()


# ---- whose memory ----


def test_every_leaf_is_the_memory_of_its_slot() -> None:
    """Every leaf starts where its first row was written, and what is written later shows."""
    dataset = Aliased()
    loader = ringfeed.Loader(
        dataset, batch_size=5, workers=1, backend="thread", slots=8, spec=Aliased.SPEC
    )
    with loader:
        kept = list(loader.to_tf_dataset())
        for number, batch in enumerate(kept):
            first, rows = 5 * number, min(5, 23 - 5 * number)
            assert len(batch) == len(Aliased.SPEC)
            for place, (tensor, leaf) in enumerate(zip(batch, Aliased.SPEC, strict=True)):
                assert tuple(tensor.shape) == (rows, *leaf.shape)
                assert tensor.dtype.as_numpy_dtype == leaf.dtype
                expected = [dataset.value(index)[place] for index in range(first, first + rows)]
                np.testing.assert_array_equal(tensor.numpy(), expected)
                if 0 not in leaf.shape:
                    assert address(tensor) == dataset.rows[first][place].ctypes.data
                    assert address(tensor) % 64 == 0
        for index, rows_of in dataset.rows.items():
            for tensor, row in zip(kept[index // 5], rows_of, strict=True):
                row[...] = 1
                np.testing.assert_array_equal(
                    tensor.numpy()[index % 5], np.ones(row.shape, row.dtype)
                )


def slots_mapped() -> set[str]:
    """Return the inodes of the slots that this process maps, those of earlier tests among them."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "ringfeed-slots" in line}


def test_tensors_outlive_all_else() -> None:
    """A tensor is valid and its own when the loader is closed and everything is collected.

    Then its memory goes.
    """
    before = slots_mapped()
    loader = oracle(8, workers=0)
    (batch,) = loader.to_tf_dataset()
    loader.close()
    del loader
    gc.collect()
    assert check(tuple(leaf.numpy() for leaf in batch)) == list(range(8))
    assert len(slots_mapped() - before) == 1
    del batch
    deadline = time.monotonic() + 5
    while gc.collect() >= 0 and slots_mapped() - before:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_all_slots_but_one_may_be_kept(slots: int) -> None:
    """Of kept elements all slots but one are aliased.

    The others are copies, and no memory is handed out twice.
    """
    with oracle(slots=slots) as loader:
        kept = list(loader.to_tf_dataset())
        assert indices(kept) == list(range(96))
        assert loader.slot_states().count("held") == slots - 1
        base, size = loader._runner.engine.ring.address, loader.plan.slots * loader.plan.slot_size
        places = sorted(address(batch[0]) for batch in kept)
        assert sum(base <= place < base + size for place in places) == slots - 1
        assert all(first + 8 * 35 <= second for first, second in pairwise(places))
        assert indices(loader.to_tf_dataset()) == list(range(96))
        del kept
        assert settle(loader).count("held") == 0


def test_nothing_is_copied_in_a_plain_loop() -> None:
    """With the default slots, and no tf.data stage behind it, elements are memory of slots."""
    with oracle(slots=4) as loader:
        base, size = 0, loader.plan.slots * loader.plan.slot_size
        for batch in unhurried(loader.to_tf_dataset()):
            base = base or loader._runner.engine.ring.address
            assert base <= address(batch[0]) < base + size


# ---- no pipeline waits for itself ----

PIPELINES: dict[str, Callable[[Any], Any]] = {
    "prefetch": lambda ds: ds.prefetch(10),
    "autotuned": lambda ds: ds.map(
        lambda *leaves: leaves, num_parallel_calls=tf.data.AUTOTUNE
    ).prefetch(tf.data.AUTOTUNE),
    "shuffle": lambda ds: ds.shuffle(100, seed=0),
    "batch": lambda ds: ds.batch(3).unbatch(),
    "rebatch": lambda ds: ds.unbatch().batch(5),
    "repeat": lambda ds: ds.repeat(2),
    "take": lambda ds: ds.repeat().take(12),
    "zip": lambda ds: tf.data.Dataset.zip(ds, tf.data.Dataset.range(12)).map(
        lambda batch, _: batch
    ),
    "cache": lambda ds: ds.cache(),
    "window": lambda ds: ds.window(7).flat_map(lambda *parts: tf.data.Dataset.zip(parts)),
    "interleave": lambda ds: tf.data.Dataset.range(1).interleave(
        lambda _: ds, 2, num_parallel_calls=2
    ),
}


@pytest.mark.parametrize(
    ("slots", "backend"), [(2, "thread"), (2, "process"), (3, "process"), (8, "thread")]
)
def test_no_pipeline_waits_for_itself(slots: int, backend: str) -> None:
    """Every kind of stage works with any number of slots, and gives all of them back."""
    with oracle(slots=slots, backend=backend, workers=2) as loader:
        for name, pipeline in PIPELINES.items():
            found = indices(pipeline(loader.to_tf_dataset()))
            times = 2 if name == "repeat" else 1
            assert (sorted(found) if name == "shuffle" else found) == list(range(96)) * times, name
        assert settle(loader).count("held") == 0
        assert loader.stats().batches >= 12 * 12


def test_many_threads_share_an_iterator() -> None:
    """Several threads that walk one iterator get each element once."""
    found: list[list[int]] = []

    def walk(iterator: Iterator[Any]) -> None:
        found.extend(check(tuple(leaf.numpy() for leaf in batch)) for batch in iterator)

    with oracle(480, workers=2) as loader:
        iterator = iter(loader.to_tf_dataset())
        threads = [threading.Thread(target=walk, args=(iterator,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert sorted(index for batch in found for index in batch) == list(range(480))


@pytest.mark.parametrize(
    ("slots", "steps_per_execution"), [(2, 1), (2, 8), (2, 32), (3, 8), (8, 32)]
)
def test_fit_with_few_slots(slots: int, steps_per_execution: int) -> None:
    """Keras learns what it learns from arrays, whatever the slots, and lets all slots go."""
    keras = pytest.importorskip("keras")
    x = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)

    def train(batches: Any) -> list[np.ndarray[Any, Any]]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
        model.fit(batches, epochs=2, verbose=0)
        weights: list[np.ndarray[Any, Any]] = model.get_weights()
        return weights

    with ringfeed.Loader((x, y), batch_size=8, workers=1, slots=slots, timeout_s=WAIT_S) as loader:
        found = train(loader.to_tf_dataset())
        expected = train(tf.data.Dataset.from_tensor_slices((x, y)).batch(8))
        assert all(
            np.array_equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True)
        )
        assert settle(loader).count("held") == 0


# ---- without Python ----


def test_batches_come_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of its plans Python is not asked for batches, though they are waited for.

    All are counted.
    """
    asked = []
    take = op.LoaderFeed.take
    monkeypatch.setattr(
        op.LoaderFeed, "take", lambda self, epoch_id: asked.append(epoch_id) or take(self, epoch_id)
    )
    with ringfeed.Loader(Oracle(1600, sleep_s=0.0005), batch_size=8, workers=1, slots=3) as loader:
        assert len(indices(loader.to_tf_dataset())) == 1600
        assert len(asked) == 2, (
            "where the next epoch is planned, and the last batch, at which the loader closes this "
            "one"
        )
        stats = loader.stats()
        assert (stats.batches, stats.samples) == (200, 1600)
        assert stats.stall_s > 0.1


@pytest.mark.parametrize("form", ["shuffled", "sampler"])
def test_long_epochs_are_planned_on_the_way(form: str) -> None:
    """An epoch longer than the plan is complete, in its order.

    A sampler without a plan is asked for each batch.
    """
    rows = 64_000
    settings: Any = {"shuffle": True} if form == "shuffled" else {"sampler": iter_of(range(rows))}
    with ringfeed.Loader(
        {"index": np.arange(rows)}, batch_size=32, workers=1, slots=4, **settings
    ) as loader:
        expected = np.concatenate([batch["index"].copy() for batch in loader])
        loader.set_epoch(0)
        found = np.concatenate([batch["index"].numpy() for batch in loader.to_tf_dataset()])
        np.testing.assert_array_equal(found, expected)
        assert (loader.stats().batches, loader.stats().samples) == (4000, 2 * rows)


def test_statistics_while_the_op_waits() -> None:
    """Statistics do not wait for a batch, and count what the op has taken since."""
    with oracle(1600, backend="process") as loader:
        iterator = iter(loader.to_tf_dataset())
        counts = []
        for _ in range(3):
            next(iterator)
            counts.append(loader.stats().batches)
        assert counts == sorted(counts)
        assert counts[-1] >= 3


@pytest.mark.parametrize("form", ["endless sampler", "skipping"])
def test_unknown_lengths_end(form: str) -> None:
    """Where the length is unknown the dataset ends with the epoch, and can be walked again."""
    settings: Any = (
        {"sampler": iter_of(range(40))} if form == "endless sampler" else {"on_error": "skip"}
    )
    with oracle(40, **settings) as loader:
        dataset = loader.to_tf_dataset()
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert [indices(dataset), indices(dataset)] == [list(range(40))] * 2


class iter_of:  # noqa: N801 - reads as a function
    """Something to iterate over, without a length."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)


# ---- errors ----


class Stuck:
    """Samples of which the tenth takes for ever."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> np.float32:
        if index == 10:
            self.go_on.wait(WAIT_S)
        return np.float32(index)


@pytest.mark.parametrize("first", ["raises", "superseded"])
def test_first_batch_fails(first: str) -> None:
    """An iteration whose first batch is an error has the second, unless a newer one has begun."""
    with oracle(24, workers=1) as loader:
        loader.dataset.__class__ = FailsFirst
        dataset = unhurried(loader.to_tf_dataset())
        iterator = iter(dataset)
        with pytest.raises(
            tf.errors.OpError, match=r"WorkerError: dataset\[0\] raised KeyError: 0"
        ):
            next(iterator)
        if first == "raises":
            assert indices(iterator) == list(range(8, 24))
            assert loader.epoch == 1
            return
        newer = iter(dataset)
        with pytest.raises(tf.errors.OpError, match="WorkerError"):
            next(newer)
        assert indices([next(newer)]) == list(range(8, 16))
        with pytest.raises(
            tf.errors.OpError,
            match="SupersededError: a newer iteration over this dataset has taken over",
        ):
            next(iterator)


class FailsFirst(Oracle):
    """An Oracle without a sample 0."""

    MISSING = 0

    def __getitem__(self, index: int) -> Any:
        if index == self.MISSING:
            raise KeyError(index)
        return super().__getitem__(index)


class FailsSecond(FailsFirst):
    """An Oracle without a sample 1."""

    MISSING = 1


@pytest.mark.parametrize("workers", [0, 1])
def test_skipped_batch_gives_its_slot_back(workers: int) -> None:
    """A batch whose every row is skipped does not keep the only slot left to be filled."""
    with oracle(6, batch_size=1, workers=workers, slots=2, on_error="skip") as loader:
        loader.dataset.__class__ = FailsSecond
        assert indices(list(loader.to_tf_dataset())) == [0, 2, 3, 4, 5]


def test_stall_names_the_worker_that_is_stuck() -> None:
    """A batch that does not come in time is a StallError with the loader's own text.

    What comes later still comes.
    """
    stuck = Stuck()
    with ringfeed.Loader(
        stuck, batch_size=4, workers=1, backend="thread", slots=3, timeout_s=2
    ) as loader:
        iterator = iter(loader.to_tf_dataset())
        assert [next(iterator).numpy().tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(tf.errors.OpError) as caught:
            next(iterator)
        assert (
            "StallError: no batch for 2 s: 1 of 1 workers inside dataset[i] (i = 10); raise "
            "timeout_s" in str(caught.value)
        )
        assert loader.stats().stall_s > 1.9, "the op's wait is part of the loader's"
        stuck.go_on.set()
        assert next(iterator).numpy().tolist() in ([8, 9, 10, 11], [12, 13, 14, 15])


def test_an_iterator_of_the_loader_takes_over_from_a_waiting_op() -> None:
    """An epoch that begins elsewhere does not wait for a batch that the op waits for."""
    stuck = Stuck()
    # Five slots: two are held by tensors until the walk ends, and the third drains for as long as
    # its worker is stuck.
    with ringfeed.Loader(
        stuck, batch_size=4, workers=2, backend="thread", slots=5, timeout_s=WAIT_S
    ) as loader:
        errors: list[str] = []

        def walk() -> None:
            try:
                list(loader.to_tf_dataset())
            except tf.errors.OpError as error:
                errors.append(str(error))

        thread = threading.Thread(target=walk)
        thread.start()
        deadline = time.monotonic() + WAIT_S
        while loader.stats().batches < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        assert not stuck.go_on.is_set()
        thread.join(WAIT_S)
        assert "SupersededError: a newer iterator of this loader has taken over" in errors[0]
        stuck.go_on.set()


def test_close_ends_a_waiting_op() -> None:
    """Closing the loader ends the wait of an op at once, with an error that says so."""
    stuck = Stuck()
    loader = ringfeed.Loader(
        stuck, batch_size=4, workers=1, backend="thread", slots=3, timeout_s=None
    )
    iterator = iter(loader.to_tf_dataset())
    assert [next(iterator).numpy().tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    closer = threading.Timer(0.5, loader.close)
    closer.start()
    with pytest.raises(
        tf.errors.OpError, match="ClosedError: the loader was closed while this iterator waited"
    ):
        next(iterator)
    stuck.go_on.set()
    closer.join()


WRONG = {
    "of the same size": (1, [tf.float64], "types[0] is DataType 2, expected 9"),
    "smaller": (1, [tf.int8], "types[0] is DataType 6, expected 9"),
    "larger": (1, [tf.complex128], "types[0] is DataType 18, expected 9"),
    "of no size": (1, [tf.string], "types[0] is DataType 7, expected 9"),
    "no flag": (1, [tf.int64, tf.int64], "types[0] is DataType 9, expected 10"),
    "after the flag": (1, [tf.bool, tf.string], "types[1] is DataType 7, expected 9"),
    "too many": (1, [tf.bool] * 5, "types has 5, expected 1 of the leaves, or one more"),
    "at the end": (-1, [tf.string, tf.string], "types[0] is DataType 7, expected 10"),
    "no input": ([], [tf.int64], "an input of ringfeed's op is no single int64"),
    "two inputs": ([1, 1], [tf.int64], "an input of ringfeed's op is no single int64"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_op_hands_memory_out_as_what_it_is(wrong: str) -> None:
    """Types that are not the leaves', and a number that is none, are errors of TensorFlow's."""
    epoch_id, types, text = WRONG[wrong]
    with ringfeed.Loader(np.arange(64), batch_size=8, workers=0) as loader:
        feed = op.LoaderFeed(loader._stream, None, [tf.int64.as_datatype_enum])
        begun = feed.begin()
        asked = np.array(begun if epoch_id == 1 else epoch_id, np.int64)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            op.load_ops().ringfeed_batch(epoch_id=asked, feed=feed.number, types=types)
        assert f"ValueError: {text}" in str(caught.value)


def test_the_op_says_the_end_by_its_flag_alone() -> None:
    """Where it has none, the end is an error, and no tensor has memory that nothing wrote."""
    with ringfeed.Loader(np.arange(64), batch_size=8, workers=0) as loader:
        feed = op.LoaderFeed(loader._stream, None, [tf.int64.as_datatype_enum])
        feed.begin()
        with pytest.raises(
            tf.errors.UnknownError, match="RingfeedError: the epoch is over, and types has no flag"
        ):
            op.load_ops().ringfeed_batch(epoch_id=np.int64(-1), feed=feed.number, types=[tf.int64])


@pytest.mark.usefixtures("irreplaceable")
def test_dead_pool_is_told() -> None:
    """When the workers cannot go on, the op says what the loader says."""
    loader = ringfeed.Loader(Oracle(4000), batch_size=4, workers=1, slots=2)
    with loader:
        iterator = iter(loader.to_tf_dataset())
        next(iterator)
        for worker in [*loader._runner.engine.pool._roster.workers.values()]:
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(
            tf.errors.OpError,
            match="WorkerError: 0 workers in a row ended before they filled anything",
        ):
            list(iterator)


def test_dataset_without_its_loader() -> None:
    """A graph that has lost its dataset says so, instead of reading memory that was freed."""
    ops = op.load_ops()
    stream = oracle()._stream
    batches = adapter.Batches(iter, 12, adapter.leaf_specs(stream.info), tuple)
    epochs = op.OpEpochs(ops, stream, batches)
    number = epochs._feed.number
    del epochs, stream
    gc.collect()
    expected = (
        "ClosedError: the loader of this dataset is gone; keep the dataset for as long as you "
        "iterate over it"
    )
    with pytest.raises(tf.errors.UnknownError, match=expected):
        ops.ringfeed_epoch(state=np.int64(-1), step=np.int64(0), feed=number)
    with pytest.raises(tf.errors.UnknownError, match=expected):
        ops.ringfeed_batch(epoch_id=np.int64(1), feed=number, types=[tf.int64])


def test_loader_goes_with_its_dataset(nothing_left: None) -> None:  # noqa: ARG001
    """A loader that only a dataset refers to ends with it, in the midst of an epoch too."""
    iterator = iter(oracle(4000, backend="process").to_tf_dataset())
    next(iterator)
    del iterator


# ---- where the op cannot be had ----


def test_fallback_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the op the dataset is made in Python, with a warning that says why."""

    def fail() -> None:
        raise ImportError("this TensorFlow has no TF_NewTensor")

    monkeypatch.setattr(op, "load_ops", fail)
    with oracle() as loader:
        with pytest.warns(RuntimeWarning) as caught:
            dataset = loader.to_tf_dataset()
        assert [str(warning.message) for warning in caught] == [
            "to_tf_dataset() copies each batch in Python, because this TensorFlow has no "
            "TF_NewTensor; ringfeed's op needs TensorFlow's C API"
        ]
        assert caught[0].filename == __file__
        assert indices(dataset) == list(range(96))
        assert dataset.cardinality() == 12


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (None, "this build of ringfeed has no library of ops"),
        ("json", "TensorFlow cannot open .*json/__init__.py: "),
    ],
)
def test_library_that_cannot_be_opened(
    library: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is missing or no library is an ImportError that says so."""
    monkeypatch.setattr(op, "LIBRARY", library or "ringfeed.frameworks.nothing")
    with pytest.raises(ImportError, match=expected):
        op.load_ops.__wrapped__()


def test_library_outside_tensorflow() -> None:
    """In a process without TensorFlow the library opens, registers nothing and says why."""
    script = (
        f"import ctypes; library = ctypes.CDLL({importlib.util.find_spec(op.LIBRARY).origin!r}); "
    )
    script += (
        "connect = library.ringfeed_connect; connect.restype = ctypes.c_char_p; "
        "print(connect(None).decode())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=240
    )
    assert ended.stdout == "this TensorFlow has no libtensorflow_framework.so.2\n"


# ---- the end of the process ----

SCRIPT = """
    import os, signal, sys, threading, time
    import numpy as np
    import ringfeed
    import tensorflow as tf

    class Slow:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if index >= 8:
                time.sleep(PAUSE_S)
            return np.float32(index)

    loader = ringfeed.Loader(Slow(), batch_size=4, WORKERS, slots=3)
    dataset = loader.to_tf_dataset()
    iterator = iter(dataset.prefetch(2))
    assert next(iterator).numpy().tolist() == [0, 1, 2, 3]
    time.sleep(0.2)
    print("alive", flush=True)
    END
"""

LEAVE = """
    import threading, time
    import ringfeed, ringfeed.frameworks.tensorflow.feed
    from ringfeed.frameworks.tensorflow import _feed

    class Numbers:
        def __iter__(self):
            return iter(range(64))

    class Stuck:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            time.sleep(1000 if index >= 8 else 0)
            return float(index)

    loader = ringfeed.Loader(Stuck(), batch_size=4, workers=1, slots=3, sampler=Numbers())
    import tensorflow as tf

    iterator = iter(loader.to_tf_dataset())
    next(iterator), next(iterator)
    threading.Thread(target=lambda: next(iterator), daemon=True).start()
    time.sleep(0.5)
    ringfeed.frameworks.tensorflow.feed._leave(0)
    print(_feed.leave(), flush=True)
"""


@pytest.mark.long
def test_no_thread_is_in_python_when_it_ends() -> None:
    """A thread that waits for a batch in Python, for the op, leaves before the interpreter ends."""
    command = [sys.executable, "-c", textwrap.dedent(LEAVE)]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=240, text=True)
    assert (ended.stdout, ended.returncode) == ("0\n", 0), ended.stderr


DAEMON = """
    import threading, numpy as np, ringfeed
    import tensorflow as tf

    class Numbers:
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            return np.float32(index)

    loader = ringfeed.Loader(Numbers(), batch_size=4, workers=1)
    dataset, reached = loader.to_tf_dataset(), threading.Event()
    def read():
        for batch in dataset:
            reached.set()
        raise ValueError("it came to the end")
    def fail():
        raise KeyError("of the user")
    threading.Thread(target=read, daemon=True).start()
    reached.wait(100)
    other = threading.Thread(target=fail, daemon=True)
    other.start()
    other.join()
"""


def test_a_daemon_thread_that_reads_at_the_exit_ends_silently() -> None:
    """It prints no traceback of the loader that the exit has closed.

    An error of the user's is printed.
    """
    ended = warm.run(["-c", textwrap.dedent(DAEMON)])
    assert ended.returncode == 0, ended.stderr
    lines = [
        line for line in ended.stderr.splitlines() if "Error: " in line and "rendezvous" not in line
    ]
    assert lines == ["KeyError: 'of the user'"], ended.stderr


ENDS = {
    "end of script": ("pass", 0),
    "uncaught error": ("raise RuntimeError('of the user')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", -2),
    "in a loop": ("threading.Timer(0.5, loader.close).start(); list(iterator)", 1),
}
AT_ONCE = {"uncaught error", "interrupt"}


@pytest.mark.parametrize(
    ("workers", "end"),
    [
        pytest.param("workers=1", end, marks=[] if end in AT_ONCE else [pytest.mark.long])
        for end in ENDS
    ]
    + [
        ("workers=1, backend='thread'", "uncaught error"),
        pytest.param("workers=0", "uncaught error", marks=pytest.mark.long),
    ],
)
def test_exit_with_a_live_iterator(workers: str, end: str) -> None:
    """The interpreter ends, with the right status, while a thread of TensorFlow waits in the op."""
    statement, status = ENDS[end]
    pause_s = "2" if workers == "workers=0" else "1000"
    script = textwrap.dedent(
        SCRIPT.replace("WORKERS", workers).replace("PAUSE_S", pause_s).replace("END", statement)
    )
    ended = warm.run(["-c", script])
    assert (ended.stdout, ended.returncode) == ("alive\n", status), ended.stderr

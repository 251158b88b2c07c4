"""A loader as a tf.data.Dataset.

What arrives, through which pipelines, with how few slots, and how it ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import re
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed
from forking import Child
from ringfeed.frameworks.batch import copy_aligned
from watching import wait_until

tf = pytest.importorskip("tensorflow")
op = importlib.import_module("ringfeed.frameworks.tensorflow.dataset")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 100
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
Y = np.arange(ROWS)
BATCHES = [Y[start : start + 32].tolist() for start in range(0, ROWS, 32)]


def make(dataset: Any = (X, Y), **settings: Any) -> ringfeed.Loader:
    """Return a loader of four batches, the last of them short, that fills in this process."""
    return ringfeed.Loader(dataset, **{"workers": 0, "slots": 3, **settings})


def labels(dataset: Any) -> list[list[int]]:
    """Return the labels of each (x, y) of a dataset, and check that each x belongs to its y."""
    found = []
    for x, y in dataset:
        np.testing.assert_array_equal(x, X[y.numpy()])
        found.append(y.numpy().tolist())
    return found


@pytest.fixture(params=["op", "python"])
def by_either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make datasets by the op in C, and then by Python, as where that cannot be had."""

    def fail() -> None:
        raise ImportError("a test wants the other way")

    if request.param == "python":
        monkeypatch.setattr(op, "load_ops", fail)
        warnings.filterwarnings(
            "ignore", "to_tf_dataset.. copies each batch in Python", RuntimeWarning
        )


class Endless:
    """Indices of the first 100 samples, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


class WholeBatches:
    """A dataset of three whole batches."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[index * 4 : index * 4 + 4], Y[index * 4 : index * 4 + 4]


class Poisoned:
    """Samples of which number 40 cannot be had."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == 40:
            raise OSError("no such picture")
        return X[index], index


class Point(NamedTuple):
    """A sample with named fields."""

    position: Any
    label: Any


class Points:
    """Samples that nest every kind of structure."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "z": [np.float32(index), (index, 0.5)],
            "a": Point(np.full(2, index, np.uint8), index > 2),
        }


class Hooked:
    """A dataset that keeps a record of its epochs, and shrinks after the first."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.record: list[str] = []

    def on_epoch_begin(self) -> None:
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.record.append("end")

    def __len__(self) -> int:
        return self.lengths[min(self.record.count("end"), len(self.lengths) - 1)]

    def __getitem__(self, index: int) -> np.float32:
        return np.float32(index)


# ---- what a dataset says of itself ----


@pytest.mark.parametrize(
    ("dataset", "settings", "rows", "cardinality"),
    [
        ((X, Y), {}, None, 4),
        ((X, Y), {"drop_remainder": True}, 32, 3),
        ((X, Y), {"batch_size": 1}, None, 100),
        ((X, Y), {"sampler": Endless()}, None, tf.data.UNKNOWN_CARDINALITY),
        ((X, Y), {"sampler": Endless(), "drop_remainder": True}, 32, tf.data.UNKNOWN_CARDINALITY),
        ((X, Y), {"on_error": "skip", "drop_remainder": True}, None, tf.data.UNKNOWN_CARDINALITY),
        (WholeBatches(), {"batch_size": None}, None, 3),
        (WholeBatches(), {"batch_size": None, "drop_remainder": True}, None, 3),
    ],
)
@pytest.mark.usefixtures("by_either_way")
def test_spec_and_cardinality(
    dataset: Any, settings: Any, rows: int | None, cardinality: int
) -> None:
    """The row axis is fixed only where every batch has as many rows.

    The cardinality is the loader's length.
    """
    found = make(dataset, **settings).to_tf_dataset()
    assert isinstance(found, tf.data.Dataset)
    assert found.element_spec == (
        tf.TensorSpec((rows, 3), tf.float32),
        tf.TensorSpec((rows,), tf.int64),
    )
    assert found.cardinality() == cardinality
    assert len(list(found)) == sum(1 for _ in make(dataset, **settings))


@pytest.mark.usefixtures("by_either_way")
def test_structure_is_mirrored() -> None:
    """Dicts, tuples and NamedTuples arrive as they are, lists as tuples; dtypes stay."""
    found = make(Points(), batch_size=4).to_tf_dataset()
    first, last = found
    assert first["a"]._fields == ("position", "label")
    assert type(first["z"]) is tuple
    assert [leaf.dtype for leaf in tf.nest.flatten(first)] == [
        tf.uint8,
        tf.bool,
        tf.float32,
        tf.int64,
        tf.float32,
    ]
    np.testing.assert_array_equal(first["a"].position, [[0, 0], [1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(first["a"].label, [False, False, False, True])
    np.testing.assert_array_equal(last["z"][0], [4.0, 5.0])
    np.testing.assert_array_equal(last["z"][1][0], [4, 5])
    np.testing.assert_array_equal(last["z"][1][1], [0.5, 0.5])


@pytest.mark.usefixtures("by_either_way")
def test_bare_arrays_are_bare_tensors() -> None:
    """A dataset of single arrays gives single tensors, not tuples of one."""
    batches = list(make({"only": X}, batch_size=64).to_tf_dataset())
    np.testing.assert_array_equal(batches[1]["only"], X[64:])


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.usefixtures("by_either_way")
def test_every_dtype_arrives(dtype: str, order: str) -> None:
    """Values arrive in TensorFlow's dtype, whatever the byte order in the dataset."""
    values = np.arange(10).astype(order + dtype)
    (batch,) = make({"v": values}, batch_size=10).to_tf_dataset()
    np.testing.assert_array_equal(batch["v"], values)


def test_bytes_arrive_as_strings() -> None:
    """Fixed-width bytes become TensorFlow's strings."""
    (batch,) = make({"v": np.array([b"one", b"two"])}).to_tf_dataset()
    assert batch["v"].numpy().tolist() == [b"one", b"two"]


def test_dtype_without_tensors_is_refused() -> None:
    """A dtype that TensorFlow does not have is named with its path, before anything runs."""
    loader = make({"x": X, "when": np.zeros(ROWS, "M8[s]")})
    with pytest.raises(ringfeed.SpecError) as caught:
        loader.to_tf_dataset()
    assert str(caught.value) == (
        "sample['when'] has dtype datetime64[s], of which TensorFlow has no tensors; convert it "
        "in __getitem__"
    )


# ---- memory ----


def test_copies_are_aligned() -> None:
    """The copy of a batch starts where TensorFlow takes it as it is."""
    for size in (1, 7, 64, 4097):
        copy = copy_aligned(np.arange(size, dtype=np.uint8)[::-1])
        assert copy.ctypes.data % 64 == 0
        np.testing.assert_array_equal(copy, np.arange(size, dtype=np.uint8)[::-1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("by_either_way")
def test_kept_elements_are_not_overwritten(workers: int) -> None:
    """All elements of three epochs are kept with two slots, and none is overwritten."""
    with make(workers=workers, slots=2) as loader:
        kept = list(loader.to_tf_dataset().repeat(3))
        assert labels(kept) == BATCHES * 3
        del kept
        gc.collect()
        assert "held" not in loader.slot_states()


def test_a_tensor_in_a_forked_child_is_private() -> None:
    """A child that the user forks has each tensor as it was, though the parent goes on."""
    with make((np.zeros((ROWS, 4096), np.float32), Y), workers=1, slots=3) as loader:
        x, y = next(iter(loader.to_tf_dataset()))
        slot = x.numpy()  # the tensor's own memory
        child = Child(
            lambda: (np.testing.assert_array_equal(x.numpy(), 0), y.numpy().tolist().index(31))
        )
        ctypes.memset(slot.ctypes.data, 255, slot.nbytes)
        assert child.go() == 0


# ---- pipelines ----


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (lambda ds: ds.prefetch(10), BATCHES),
        (
            lambda ds: ds.map(lambda x, y: (x, y), num_parallel_calls=4).prefetch(tf.data.AUTOTUNE),
            BATCHES,
        ),
        (lambda ds: ds.repeat(3), BATCHES * 3),
        (lambda ds: ds.repeat().take(6), BATCHES + BATCHES[:2]),
        (lambda ds: ds.take(2), BATCHES[:2]),
        (lambda ds: ds.skip(1), BATCHES[1:]),
        (lambda ds: ds.unbatch().batch(50), [Y[:50].tolist(), Y[50:].tolist()]),
        (lambda ds: ds.take(3).batch(3).unbatch(), BATCHES[:3]),
        (lambda ds: ds.shuffle(1), BATCHES),
        (lambda ds: ds.cache().repeat(2), BATCHES * 2),
        (lambda ds: ds.with_options(tf.data.Options()), BATCHES),
    ],
    ids=[
        "prefetch",
        "map",
        "repeat",
        "endless",
        "take",
        "skip",
        "unbatch",
        "batch",
        "shuffle",
        "cache",
        "options",
    ],
)
@pytest.mark.usefixtures("by_either_way")
def test_pipelines(pipeline: Callable[[Any], Any], expected: list[list[int]], slots: int) -> None:
    """What tf.data builds on the dataset works with two or three slots, and is walked again."""
    dataset = pipeline(make(slots=slots).to_tf_dataset())
    assert labels(dataset) == expected
    assert labels(dataset) == expected


@pytest.mark.parametrize(
    "settings", [{}, {"sampler": Endless()}], ids=["known length", "unknown length"]
)
@pytest.mark.usefixtures("by_either_way")
def test_each_iteration_is_the_next_epoch(settings: Any) -> None:
    """Iterations give the loader's epochs one after the other, and two of them by `repeat`."""
    settings = settings or {"shuffle": True, "seed": 3}
    by_hand = make(**settings)
    expected = [[y.tolist() for _, y in by_hand] for _ in range(4)]
    dataset = make(**settings).to_tf_dataset()
    assert [labels(dataset), labels(dataset)] == expected[:2]
    assert labels(dataset.repeat(2)) == expected[2] + expected[3]


@pytest.mark.parametrize("backend", ["process", "thread"])
@pytest.mark.usefixtures("by_either_way")
def test_broken_off_and_begun_again(backend: Any) -> None:
    """An iteration given up amid its elements leaves the loader to the next one."""
    with make(workers=2, backend=backend, slots=2) as loader:
        dataset = loader.to_tf_dataset().prefetch(2)
        for _ in range(5):
            for _, y in dataset:
                assert y.numpy().tolist() == BATCHES[0]
                break
        assert labels(dataset) == BATCHES


@pytest.mark.usefixtures("by_either_way")
def test_dataset_keeps_its_loader() -> None:
    """A dataset works when only it holds the loader, an iterator when only it holds the dataset."""
    dataset = make().to_tf_dataset()
    gc.collect()
    assert labels(dataset) == BATCHES
    iterator = iter(make().to_tf_dataset().prefetch(1))
    gc.collect()
    assert labels(iterator) == BATCHES


@pytest.mark.usefixtures("by_either_way")
def test_hooks_run_once_an_epoch() -> None:
    """A dataset's hooks run at both ends of an epoch, though tf.data stops at a known end."""
    hooked = Hooked([40])
    dataset = make(hooked).to_tf_dataset()
    for _ in range(3):
        assert len(list(dataset)) == 2
    assert hooked.record == ["begin", "end"] * 3


@pytest.mark.parametrize(("batch_size", "expected"), [(32, [32, 31, 32, 4]), (1, [1] * 99)])
@pytest.mark.usefixtures("by_either_way")
def test_skipped_samples(batch_size: int, expected: list[int]) -> None:
    """Where failed samples are skipped, batches are shorter, and none comes without a row."""
    dataset = make(Poisoned(), on_error="skip", batch_size=batch_size).to_tf_dataset()
    assert [len(y) for _, y in dataset] == expected


# ---- errors ----


def error_of(walk: Callable[[], Any]) -> str:
    """Return the first line of the error that tf.data raises."""
    with pytest.raises(tf.errors.OpError) as caught:
        walk()
    return re.sub(
        r".*(transformation with iterator: \S*|CPU:0}}) ", "", str(caught.value).splitlines()[0]
    )


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("by_either_way")
def test_loader_error_arrives_with_its_text(workers: int) -> None:
    """What a sample did wrong arrives in its place, named, and the batches after it still come."""
    with make(Poisoned(), workers=workers, backend="thread") as loader:
        iterator = iter(loader.to_tf_dataset())
        assert labels([next(iterator)]) == BATCHES[:1]
        text = error_of(lambda: next(iterator))
        assert text == "WorkerError: dataset[40] raised OSError: no such picture"
        assert labels(iterator) == BATCHES[2:]


@pytest.mark.usefixtures("by_either_way")
def test_two_iterations_at_once() -> None:
    """The newest iteration has the loader; the older one fails and says why."""
    dataset = make().to_tf_dataset()
    older, newer = iter(dataset), iter(dataset)
    assert labels([next(older), next(newer)]) == [BATCHES[0], BATCHES[0]]
    expected = (
        "SupersededError: a newer iteration over this dataset has taken over the loader, which "
        "serves one at a time; end the first before you begin the second, or give each a loader "
        "of its own"
    )
    with pytest.raises(tf.errors.OpError) as caught:
        list(older)  # tf.data may have prefetched some batches before the newer one began
    assert expected in str(caught.value)
    assert labels(newer) == BATCHES[1:]


@pytest.mark.usefixtures("by_either_way")
def test_an_iterator_of_the_loader_takes_over() -> None:
    """A loop over the loader itself takes it from the dataset, and the other way round."""
    loader = make(batch_size=4, slots=8)  # tf.data may hold some that it has fetched ahead
    dataset = loader.to_tf_dataset()
    older = iter(dataset)
    next(older)
    assert sum(1 for _ in loader) == 25
    expected = "a newer iterator of this loader has taken over; finish one before you make the next"
    assert expected in error_of(lambda: list(older))
    by_hand = iter(loader)
    assert len(list(dataset)) == 25
    with pytest.raises(ringfeed.SupersededError) as caught:
        next(by_hand)
    assert str(caught.value) == expected


@pytest.mark.usefixtures("by_either_way")
def test_an_epoch_shorter_than_promised() -> None:
    """A dataset that has shrunk is told from one that ends well; a new one is right."""
    hooked = Hooked([96, 40])
    loader = make(hooked)
    dataset = loader.to_tf_dataset()
    assert len(list(dataset)) == 3
    assert error_of(lambda: list(dataset)) == (
        "RingfeedError: the epoch ended before its 3 batches, which was len(loader) when the "
        "dataset was made; call to_tf_dataset() again: the length has changed, or some batches "
        "are None"
    )
    assert len(list(loader.to_tf_dataset())) == 2


@pytest.mark.usefixtures("by_either_way")
def test_closed_loader() -> None:
    """A closed loader says so."""
    loader = make()
    dataset = loader.to_tf_dataset()
    loader.close()
    assert error_of(lambda: list(dataset)) == "ClosedError: this loader is closed; make a new one"


# ---- at exit ----

LIVE = """
    import sys, time
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

    loader = ringfeed.Loader(Slow(), batch_size=4, workers=WORKERS, slots=3)
    iterator = iter(loader.to_tf_dataset().prefetch(2))
    assert next(iterator).numpy().tolist() == [0, 1, 2, 3]
    time.sleep(0.2)
    print("alive", flush=True)
    END
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "pause_s", "end", "status"),
    [(1, 1000, "raise RuntimeError('of the user')", 1), (0, 1, "pass", 0)],
    ids=["process, uncaught error", "in this process"],
)
def test_exit_with_a_live_iterator(workers: int, pause_s: int, end: str, status: int) -> None:
    """The interpreter ends while TensorFlow waits for the loader, also by an uncaught error.

    Here `ringfeed` is imported before TensorFlow; in the tests of the op, after it.
    """
    script = textwrap.dedent(LIVE).replace("PAUSE_S", str(pause_s)).replace("WORKERS", str(workers))
    ended = subprocess.run(
        [sys.executable, "-c", script.replace("END", end)],
        check=False,
        capture_output=True,
        timeout=240,
        text=True,
    )
    assert (ended.stdout, ended.returncode) == ("alive\n", status), ended.stderr


# ---- in training ----


@pytest.mark.parametrize("steps_per_execution", [1, 8])
@pytest.mark.usefixtures("by_either_way")
def test_fit(steps_per_execution: int) -> None:
    """Keras trains on the dataset, with more steps an execution than there are slots."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    dataset = make({"x": X / 300, "y": Y / np.float32(100)}, batch_size=4).to_tf_dataset()
    losses = model.fit(
        dataset.map(lambda batch: (batch["x"], batch["y"])), epochs=3, verbose=0
    ).history["loss"]
    assert len(losses) == 3
    assert losses[2] < losses[0]


@pytest.mark.usefixtures("by_either_way")
def test_an_iteration_ends_where_its_epoch_does() -> None:
    """Batches of the next epoch that a worker has read ahead come in the next iteration."""
    settings: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 2, "slots": 3}
    with make(**settings) as plain:
        expected = [[y.tolist() for _, y in plain] for _ in range(4)]
    with make(**settings, workers=1) as loader:
        dataset = loader.to_tf_dataset()
        for batches in expected[:2]:
            assert labels(dataset) == batches
            wait_until(lambda: loader.slot_states() == ["ready"] * 3)
        assert labels(dataset.repeat(2)) == expected[2] + expected[3]

"""`ringfeed.keras.install`.

Every PyDataset over the ring with no other change, or left to Keras with a reason.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import subprocess
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import cloudpickle
import keras
import numpy as np
import pytest
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import py_dataset_adapter

import ringfeed
import ringfeed.keras
from ringfeed.keras import fallback as keras_fallback
from ringfeed.keras import feeding as keras_install
from training import CLASS_WEIGHT, X, Y, small_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or each worker would import Keras
pytestmark = pytest.mark.usefixtures("nothing_left")
OWN = keras_fallback.OWN


class Digits(keras.utils.PyDataset):
    """Batches of 16 rows, dimmed by the random numbers that Keras' users draw.

    It reshuffles itself, and grows.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.order = np.arange(len(X))
        self.record: list[str] = []

    def __len__(self) -> int:
        return (len(self.order) + 15) // 16

    def __getitem__(self, index: int) -> Any:
        rows = self.order[16 * index : 16 * index + 16]
        return X[rows], Y[rows]

    def on_epoch_begin(self) -> None:
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.record.append("end")
        self.order = np.random.permutation(self.order)  # noqa: NPY002 - what a user writes


class Drawing(Digits):
    """Dims each batch by chance."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * np.float32(np.random.random()), y  # noqa: NPY002


class Raising(Digits):
    """Has no fourth batch."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            message = "no such file"
            raise ValueError(message)
        return super().__getitem__(index)


class Ragged(Digits):
    """One batch has other rows than were foreseen."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (np.concatenate([x, x]), np.concatenate([y, y])) if index == 4 else (x, y)


class Worded(Digits):
    """Batches with strings beside them."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "name": np.array(["a"] * len(x), object), "y": y}


class Locked(Digits):
    """Cannot be sent to a process."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.lock = threading.Lock()


class Quitting(Digits):
    """Ends whichever process but the first asks for batch 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        import os  # noqa: PLC0415 - a worker has it by this name

        self.home = os.getpid()

    def __getitem__(self, index: int) -> Any:
        import os  # noqa: PLC0415

        if index == 2 and os.getpid() != self.home:
            os._exit(1)
        return super().__getitem__(index)


@pytest.fixture(scope="module", autouse=True)
def _kept_by_keras() -> None:
    """Have Keras make what its own enqueuer keeps as long as the process."""
    py_dataset_adapter.get_worker_id_queue()
    py_dataset_adapter.OrderedEnqueuer(Digits())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what the logger has said so far; nothing stays installed."""
    lines: list[str] = []
    monkeypatch.setattr(
        keras_fallback.LOG, "handle", lambda record: lines.append(record.getMessage())
    )
    yield lines
    ringfeed.keras.uninstall()


def trained(data: Any, *, epochs: int = 2, **settings: Any) -> Any:
    """Return the history and the weights of a model that is always trained from the same seeds."""
    model = small_model()
    random.seed(8)
    np.random.seed(8)  # noqa: NPY002 - the seed of Keras' users
    history = model.fit(data, epochs=epochs, verbose=0, **settings).history
    return history, [weights.tolist() for weights in model.get_weights()]


class Numbered(keras.utils.PyDataset):
    """Each batch is its number."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return (np.full((1, 1), index, np.float32),)


class WithoutEnd(Numbered):
    """Never ends."""

    num_batches = None


def numbers_of(adapter: Any) -> list[list[int]]:
    """Return what two passes of an adapter give, as Keras runs them."""
    seen = []
    for _ in range(2):
        adapter.on_epoch_begin()
        batches = itertools.islice(adapter.get_numpy_iterator(), adapter.num_batches or 4)
        seen.append([int(batch[0][0, 0]) for batch in batches])
        adapter.on_epoch_end()
    return seen


def test_order_and_length_are_asked_of_keras(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass has the batches that Keras' own generator would ask for, and as many as Keras says."""

    def every_second_from_behind(adapter: Any) -> Iterator[Any]:
        for number in range(adapter.py_dataset.num_batches - 1, -1, -2):
            yield adapter._standardize_batch(adapter.py_dataset[number])

    monkeypatch.setattr(OWN, "_finite_generator", every_second_from_behind)
    monkeypatch.setattr(OWN, "num_batches", property(lambda _adapter: 5))
    with ringfeed.keras.install():
        adapter = data_adapters.PyDatasetAdapter(Numbered())
        assert numbers_of(adapter) == [[8, 6, 4, 2, 0]] * 2
        assert adapter.call.stream.length == 5
    assert len(said) == 1
    assert "runs over ringfeed" in said[0]


@pytest.mark.skipif(
    not hasattr(OWN(Numbered()), "_epoch"), reason="Keras shards PyDatasets from 3.16 on"
)
@pytest.mark.parametrize(
    "settings", [{}, {"workers": 2}, {"workers": 1, "use_multiprocessing": True}]
)
@pytest.mark.parametrize("kind", [Numbered, WithoutEnd])
def test_parts_of_a_distribution_are_those_of_keras(
    kind: Any, settings: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each epoch a process of a distribution has the batches of Keras' own adapter."""
    for shard in range(2):
        parts = types.SimpleNamespace(
            auto_shard_dataset=True, num_data_shards=2, data_shard_id=shard
        )
        monkeypatch.setattr(
            py_dataset_adapter.distribution_lib, "distribution", lambda parts=parts: parts
        )
        expected = OWN(kind(), shuffle=True)
        with ringfeed.keras.install():
            adapter = data_adapters.PyDatasetAdapter(kind(**settings), shuffle=True)
            assert numbers_of(adapter) == numbers_of(expected)
            assert adapter.num_batches == expected.num_batches
    assert "is left to Keras" not in "".join(said)


@pytest.mark.parametrize("kind", [Digits, Drawing])
def test_training_is_the_same(kind: Any, said: list[str]) -> None:
    """Losses, weights, the order of Keras, hooks and random numbers are as without it."""
    before = kind()
    expected = trained(before, validation_data=Digits(), class_weight=CLASS_WEIGHT)
    with ringfeed.keras.install():
        after = kind()
        assert trained(after, validation_data=Digits(), class_weight=CLASS_WEIGHT) == expected
    assert after.record == before.record
    assert len(said) == 2
    assert re.fullmatch(
        rf"{kind.__name__} runs over ringfeed: 1 worker thread, 3 slots, "
        r"\d+\.\d kB of shared memory",
        said[0],
    )


class Bare(Digits):
    """Gives arrays alone."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


def test_a_bare_array_is_a_tuple_of_one(said: list[str]) -> None:
    """A train_step of one's own gets what Keras gives it."""
    seen: list[Any] = []

    class Own(keras.Model):  # type: ignore[misc]
        def train_step(self, *given: Any) -> dict[str, float]:
            seen.append([leaf.shape for leaf in given[-1]])
            return {"loss": 0.0}

    for context in (contextlib.nullcontext(), ringfeed.keras.install()):
        with context:
            model = Own()
            model.compile(run_eagerly=True)
            model.fit(Bare(), epochs=1, verbose=0, shuffle=False)
    half = len(seen) // 2
    assert seen[:half] == seen[half:]
    assert all(len(batch) == 1 for batch in seen)
    assert said == [line for line in said if " runs over ringfeed: " in line] != []


def test_a_generator_of_the_datasets_own_is_as_it_was() -> None:
    """Looking at batch 0 ahead takes no numbers from what the dataset draws from."""

    class Drawn(Digits):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = np.random.default_rng(7), np.random.RandomState(7)
            self.three = random.Random(7)  # noqa: S311 - see above

        def __getitem__(self, index: int) -> Any:
            self.drawn = self.one.random(), self.two.rand(), self.three.random()
            return super().__getitem__(index)

    drawn = Drawn()
    keras_fallback.look_unseen(drawn)
    first = drawn.drawn
    drawn[0]
    assert drawn.drawn == first


def test_workers_are_those_of_the_dataset(said: list[str]) -> None:
    """Processes where it asks for them.

    Training is the same, and each dataset is spoken of once.
    """
    expected = trained(Digits())
    with ringfeed.keras.install():
        dataset = Digits(workers=2, use_multiprocessing=True)
        assert trained(dataset) == expected
        small_model().evaluate(dataset, verbose=0)
        assert len(small_model().predict(dataset, verbose=0)) == len(X)
    assert [line.partition(" slots")[0] for line in said] == [
        "Digits runs over ringfeed: 2 worker processes, 4"
    ]


def test_slots_or_memory_of_each_dataset(said: list[str]) -> None:
    """The innermost statement decides; a budget below two slots leaves the dataset to Keras."""
    expected = trained(Digits())

    def fed(**settings: Any) -> str:
        with ringfeed.keras.install(**settings):
            assert trained(Digits(workers=2)) == expected
        return said.pop()

    with ringfeed.keras.install(slots=5):
        assert fed(slots=3).startswith("Digits runs over ringfeed: 2 worker threads, 3 slots, ")
        assert fed(memory="60kB").startswith(
            "Digits runs over ringfeed: 2 worker threads, 6 slots, "
        )
        assert trained(Digits(workers=2)) == expected
        assert said.pop().startswith("Digits runs over ringfeed: 2 worker threads, 5 slots, ")
    assert fed().startswith("Digits runs over ringfeed: 2 worker threads, 4 slots, ")
    assert fed(memory=1000).startswith(
        "Digits is left to Keras: memory=1000 is 1.0 kB, but 2 slots "
    )


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"slots": 1}, ValueError, "slots=1 must be at least 2"),
        ({"slots": "4"}, TypeError, "slots='4' must be an int"),
        (
            {"memory": "1 gig"},
            ValueError,
            "memory='1 gig' is no amount of memory; write it as in '512MB', '2GiB' or a number of "
            "bytes",
        ),
        (
            {"slots": 4, "memory": "1MB"},
            ValueError,
            "give slots= or memory=, not both: each decides the other",
        ),
    ],
)
def test_memory_that_cannot_be_asked_for(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    """An error at once, and nothing is installed."""
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        ringfeed.keras.install(**settings)
    assert data_adapters.PyDatasetAdapter is OWN


class Opening(Digits):
    """Opens its file on first use."""

    def __init__(self, path: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or self.path.open("rb")
        row = X.itemsize * X.shape[1]
        self.file.seek(16 * index * row)
        return np.frombuffer(self.file.read(16 * row), X.dtype).reshape(-1, X.shape[1]), Y[
            16 * index : 16 * index + 16
        ]


def test_processes_open_their_own_files(said: list[str], tmp_path: Path) -> None:
    """Each worker opens for itself a file that is opened on first use, here for batch 0.

    The dataset is not left to Keras.
    """
    (tmp_path / "rows").write_bytes(X.tobytes())
    make = functools.partial(Opening, tmp_path / "rows", workers=2, use_multiprocessing=True)
    expected = trained(_as_digits(own := make()))
    own.file.close()
    with ringfeed.keras.install():
        assert trained(make()) == expected
    assert [line.partition(" slots")[0] for line in said] == [
        "Opening runs over ringfeed: 2 worker processes, 4"
    ]
    with ringfeed.keras.feed(make(), shuffle=False) as data:
        small_model().fit(data, epochs=2, verbose=0)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            Ragged,
            (
                "dataset[4]: batch[0] has 32 rows, expected at most 16; return smaller batches, "
                "or raise max_batch_size"
            ),
        ),
        (
            lambda: Locked(workers=1, use_multiprocessing=True),
            "dataset.lock",
        ),
        (
            lambda: Quitting(workers=1, use_multiprocessing=True),
            "dataset[2] ended 3 workers; the last one exited with status 1; try it with workers=0",
        ),
    ],
)
def test_what_the_ring_cannot_serve_is_left_to_keras(make: Any, line: str, said: list[str]) -> None:
    """The batch that fails and all that follow are made by Keras.

    Training is the same, and one line says why.
    """
    expected = trained(_as_digits(make()), epochs=1)
    with ringfeed.keras.install():
        assert trained(make(), epochs=1) == expected
    (left,) = [
        line.partition(" is left to Keras: ")[2] for line in said if " is left to Keras: " in line
    ]
    assert line in left


def _as_digits(dataset: Any) -> Any:
    """Return a dataset that Keras may read in a thread."""
    dataset.workers, dataset.use_multiprocessing = 1, False
    return dataset


def test_batches_that_are_no_arrays(said: list[str]) -> None:
    """Objects never see a slot: Keras gets the dataset from the start."""
    with ringfeed.keras.install():
        adapter = data_adapters.PyDatasetAdapter(Worded())
        (batch, *_) = list(adapter.get_numpy_iterator())
    assert batch["name"].dtype == object
    assert said == [
        "Worded is left to Keras: dataset[0]: batch['name'] has dtype object, expected one "
        "without Python objects; convert it by its .astype('U64') or, returned by __getitem__, "
        "give ringfeed.Text(64) in its place in spec="
    ]


def test_what_a_dataset_raises_is_raised_as_before(said: list[str]) -> None:
    """The error of a batch has the type and text that it has in Keras."""
    found = []
    for installed in (False, True):
        if installed:
            ringfeed.keras.install()
        with pytest.raises(Exception, match="no such file") as caught:
            trained(Raising(), epochs=1, shuffle=False)
        found.append(type(caught.value))
    assert found[0] is found[1]
    assert said[-1].endswith("is left to Keras: dataset[3] raised ValueError: no such file")
    iterator = data_adapters.PyDatasetAdapter(Raising()).get_numpy_iterator()
    assert len([next(iterator) for _ in range(3)]) == 3
    with pytest.raises(ValueError, match=r"^no such file$"):
        next(iterator)


def test_nothing_is_left_installed(said: list[str]) -> None:
    """Installing is idempotent, nests, and is taken back whole.

    A `with` inside another does not end the other.
    """
    names = [(data_adapters, "PyDatasetAdapter"), (py_dataset_adapter, "PyDatasetAdapter")]

    def installed() -> bool:
        (found,) = {getattr(*name) for name in names}
        assert found in (OWN, keras_fallback.RingAdapter)
        return found is keras_fallback.RingAdapter

    with ringfeed.keras.install():
        with ringfeed.keras.install():
            assert installed()
        assert installed()
        with pytest.raises(KeyError), ringfeed.keras.install():
            raise KeyError
        assert installed()
    assert not installed()
    ringfeed.keras.install()
    with ringfeed.keras.install():
        assert installed()
    assert installed()
    ringfeed.keras.uninstall()
    assert not installed()
    ringfeed.keras.uninstall()
    with ringfeed.keras.install():
        ringfeed.keras.uninstall()
        assert not installed()
    assert not installed()
    assert said == []


def test_threads_may_install_at_once() -> None:
    """Many threads that enter and leave at once see it installed inside, and leave nothing."""
    wrong: list[Any] = []
    start = threading.Barrier(8, timeout=240)

    def use() -> None:
        start.wait()
        for _ in range(50):
            with ringfeed.keras.install():
                if data_adapters.PyDatasetAdapter is not keras_fallback.RingAdapter:
                    wrong.append(data_adapters.PyDatasetAdapter)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert wrong == []
    assert data_adapters.PyDatasetAdapter is OWN


def test_a_keras_without_the_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Keras looks for its adapter elsewhere nothing is changed; an error says what to do."""
    monkeypatch.setattr(py_dataset_adapter, keras_install.NAME, object)
    text = (
        "install() finds no PyDatasetAdapter of Keras' own in "
        f"keras.src.trainers.data_adapters.py_dataset_adapter of Keras {keras.__version__}; give "
        "each dataset to ringfeed.keras.feed() instead"
    )
    with pytest.raises(ImportError, match=f"^{re.escape(text)}$"):
        ringfeed.keras.install()
    assert data_adapters.PyDatasetAdapter is OWN


def test_import_of_ringfeed_brings_no_keras() -> None:
    """Only ``ringfeed.keras`` imports Keras."""
    code = (
        "import ringfeed, sys; ringfeed.Loader; assert not {'keras', 'tensorflow'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)

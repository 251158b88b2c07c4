"""Whole batches into frameworks.

None among them, shapes of their own, and no end, as with plain iteration.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.spec.array import Array

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3.7")


WORDS = 9
LENGTHS = [5, 9, 0, 3, 9, 1]
"""Words of the longest text of each batch."""
SPEC = Array((WORDS,), "int32", variable=True), Array((), "float32")
HOW = [{"workers": 0}, {"workers": 1, "backend": "thread"}]


def texts_of(index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a batch of padded texts and what is to be learnt of each."""
    random = np.random.default_rng(index)
    words = LENGTHS[index % len(LENGTHS)]
    return random.integers(0, 20, (2 + index % 3, words), np.int32), random.random(
        2 + index % 3, np.float32
    )


class Texts(keras.utils.PyDataset):
    """Batches padded to their longest text; None at some places."""

    def __init__(self, length: int | None = 8, gaps: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.length, self.gaps = length, gaps

    @property
    def num_batches(self) -> int | None:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return None if index in self.gaps else texts_of(index)


GAPS = 0, 3, 7


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader of the batches as they are."""
    settings = {"workers": 0, "slots": 3, "timeout_s": 50, **settings}
    return ringfeed.Loader(dataset, batch_size=None, max_batch_size=4, spec=SPEC, **settings)


class Reader(keras.Model):
    """Learns from texts of any length, and counts how often its training step is traced."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(3)
        self.embed = keras.layers.Embedding(20, 4)
        self.score = keras.layers.Dense(1)
        self.traces = 0

    def call(self, words: Any) -> Any:
        return self.score(keras.ops.sum(self.embed(words), axis=1))

    def train_step(self, batch: Any) -> Any:
        self.traces += 1
        return super().train_step(batch)


def reader(**settings: Any) -> Reader:
    """Return a compiled model, the same every time."""
    model = Reader()
    model.compile("sgd", "mse", jit_compile=False, **settings)
    return model


def same(found: Any, indices: Any) -> None:
    """Check that batches are those of these indices, in content and shape."""
    for (words, scores), index in zip(found, indices, strict=True):
        expected = texts_of(index)
        assert tuple(words.shape) == expected[0].shape
        np.testing.assert_array_equal(np.asarray(words), expected[0])
        np.testing.assert_array_equal(np.asarray(scores), expected[1])


WITHOUT_GAPS = [index for index in range(8) if index not in GAPS]


@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data"
)  # Keras, of an epoch that is shorter than its length
@pytest.mark.parametrize("gaps", [(), GAPS], ids=["all", "some None"])
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_fit_trains_on_batches_of_any_shape(
    how: dict[str, Any], steps_per_execution: int, gaps: tuple[int, ...]
) -> None:
    """The weights are those of training by hand on the batches that are there, traced once."""
    by_hand = reader()
    for index in [index for index in range(8) if index not in gaps] * 2:
        by_hand.train_on_batch(*texts_of(index))
    with loader_of(Texts(gaps=gaps), **how) as loader:
        model = reader(steps_per_execution=steps_per_execution)
        model.fit(loader.to_keras(), epochs=2, verbose=0)
        assert model.traces <= 2  # as over arrays: the first makes the variables
        for found, expected in zip(model.get_weights(), by_hand.get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        assert loader.stats().skipped == []


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_evaluate_and_predict_leave_none_out() -> None:
    """`predict` has the rows of the batches that are there, and `evaluate` weighs just these."""
    model = reader()
    with loader_of(Texts(gaps=GAPS)) as loader:
        predicted = model.predict(loader.to_keras(), verbose=0)
        expected = [model.predict_on_batch(texts_of(index)[0]) for index in WITHOUT_GAPS]
        np.testing.assert_allclose(predicted, np.concatenate(expected), rtol=1e-5)
        targets = np.concatenate([texts_of(index)[1] for index in WITHOUT_GAPS])
        loss = np.mean((np.concatenate(expected)[:, 0] - targets) ** 2)
        assert model.evaluate(loader.to_keras(), verbose=0) == pytest.approx(loss, rel=1e-4)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_known_length_stays_known() -> None:
    """Keras is told the length of a dataset, which is the most that an epoch has."""
    for gaps in ((), GAPS):
        with loader_of(Texts(gaps=gaps)) as loader:
            assert loader.to_keras().num_batches == 8


class Numbers(Texts):
    """Batches of one shape that hold their index."""

    def __getitem__(self, index: int) -> Any:
        return (
            None
            if index in self.gaps
            else (np.full((2, 3), index, np.int32), np.zeros(2, np.float32))
        )


@pytest.mark.parametrize("path", ["op", "python"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_tf_data_without_none(how: dict[str, Any], path: str) -> None:
    """An epoch of tf.data has no batch of None, where no length was promised.

    The first batch was None, or on_error.
    """
    settings = {"batch_size": None, "slots": 3, "copy": path == "python", **how}
    for gaps, on_error in ((GAPS, "raise"), (GAPS[1:], "skip")):
        with ringfeed.Loader(Numbers(gaps=gaps), on_error=on_error, **settings) as loader:
            dataset = loader.to_tf_dataset()
            assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
            for _ in range(2):
                expected = [index for index in range(8) if index not in gaps]
                assert [int(numbers[0, 0]) for numbers, _ in dataset] == expected
            assert loader.stats().skipped == []


@pytest.mark.parametrize("path", ["op", "python"])
@pytest.mark.parametrize("gap", [3, 7], ids=["within", "last"])
def test_tf_data_keeps_its_promise(path: str, gap: int) -> None:
    """A dataset that has had no None has its length.

    The first one is an error at the end, and ends the promise.
    """
    settings: Any = {
        "batch_size": None,
        "slots": 3,
        "copy": path == "python",
        "workers": 1,
        "backend": "thread",
    }
    with ringfeed.Loader(Numbers(gaps=(gap,)), **settings) as loader:
        dataset = loader.to_tf_dataset()
        assert int(dataset.cardinality()) == 8
        batches = iter(dataset)
        assert [int(next(batches)[0][0, 0]) for _ in range(7)] == [
            index for index in range(8) if index != gap
        ]
        with pytest.raises(tf.errors.OpError) as caught:
            next(batches)
        assert (
            "RingfeedError: the epoch ended before its 8 batches, which was len(loader) when the "
            "dataset was made; call to_tf_dataset() again: the length has changed, or some "
            "batches are None"
        ) in str(caught.value)
        again = loader.to_tf_dataset()
        assert again.cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert [int(numbers[0, 0]) for numbers, _ in again] == [
            index for index in range(8) if index != gap
        ]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_tf_data_has_each_shape(how: dict[str, Any]) -> None:
    """Axes that vary are None in `element_spec`, and each batch comes in its own shape."""
    with loader_of(Texts(), **how) as loader:
        dataset = loader.to_tf_dataset()
        assert dataset.element_spec == (
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None,), tf.float32),
        )
        assert int(dataset.cardinality()) == 8
        same(dataset, range(8))


@pytest.mark.parametrize("method", ["to_torch", "to_jax"])
def test_tensors_over_the_slot(method: str) -> None:
    """Torch and JAX get each batch in its shape, over the slot, without those of None."""
    pytest.importorskip(method.removeprefix("to_"))
    with loader_of(Texts(gaps=GAPS)) as loader:
        same(getattr(loader, method)(), WITHOUT_GAPS)
        ring: Any = loader._runner.engine.ring  # type: ignore[union-attr]
        words, _ = next(iter(getattr(loader, method)()))
        address = words.data_ptr() if method == "to_torch" else words.unsafe_buffer_pointer()
        assert 0 <= address - ring.address < 3 * loader.plan.slot_size


def test_keras_reads_the_slot() -> None:
    """TensorFlow's tensors for Keras are the slot, in the batch's shape."""
    with loader_of(Texts()) as loader:
        fed = loader.to_keras()
        batches = iter(fed.get_tf_dataset())
        same(itertools.islice(batches, 8), range(8))
        assert fed.copied == 0


@pytest.mark.parametrize("how", HOW, ids=str)
def test_an_endless_dataset_trains_by_steps(how: dict[str, Any]) -> None:
    """`steps_per_epoch` takes the next batches of one endless epoch, as with a generator.

    None is no step.
    """
    gaps = 1, 4, 6
    taken = [index for index in range(20) if index not in gaps][:6]
    by_hand = reader()
    for index in taken:
        by_hand.train_on_batch(*texts_of(index))
    with loader_of(Texts(None, gaps), **how) as loader:
        fed = loader.to_keras()
        assert fed.num_batches is None
        model = reader()
        model.fit(fed, steps_per_epoch=3, epochs=2, verbose=0)
        for found, expected in zip(model.get_weights(), by_hand.get_weights(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        same(itertools.islice(loader.to_tf_dataset(), 6), taken)


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.counts.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.counts[-1] += 1


class Changing(Texts):
    """A dataset whose hook changes its length."""

    def __init__(self, by: int) -> None:
        super().__init__(5)
        self.by = by

    def on_epoch_begin(self) -> None:
        assert self.length is not None
        self.length += self.by


def steps_of(data: Any, **settings: Any) -> list[int]:
    """Return how many steps the epochs of a fit have."""
    steps = Steps()
    reader(run_eagerly=True).fit(
        data, epochs=4, verbose=0, shuffle=False, callbacks=[steps], **settings
    )
    return steps.counts


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_an_epoch_has_the_length_that_its_hook_gives_the_dataset(
    how: dict[str, Any], by: int
) -> None:
    """A dataset that grows or shrinks in ``on_epoch_begin`` has as many steps as under `feed`."""
    with loader_of(Changing(by), **how) as loader:
        assert steps_of(loader.to_keras()) == [5 + by, 5 + 2 * by, 5 + 3 * by, 5 + 4 * by]


def test_an_epoch_of_steps_goes_on_over_hooks() -> None:
    """Where Keras' epochs are parts of the loader's, the hook runs where the loader begins one."""
    dataset = Changing(1)
    with loader_of(dataset) as loader:
        assert steps_of(loader.to_keras(), steps_per_epoch=3) == [3, 3, 3, 3]
        assert dataset.length == 7

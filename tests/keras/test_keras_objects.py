"""Enqueuers and `install` over batches that hold sparse and ragged tensors.

The same batches as without ringfeed.
"""

from __future__ import annotations

import os
import random
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter as keras_3

import ringfeed.keras
from enqueued import MadeHere, Tensors
from ringfeed.keras import fallback as keras_fallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

clean = pytest.mark.usefixtures("nothing_left")
both = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])


def plain(batch: Any) -> Any:
    """Return a batch whose tensors are lists, each with its type and dtype."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(plain, batch))
    if isinstance(batch, tf.SparseTensor):
        return (
            "sparse",
            batch.dtype.name,
            *(plain(part) for part in (batch.indices, batch.values, batch.dense_shape)),
        )
    if isinstance(batch, tf.RaggedTensor):
        return "ragged", batch.dtype.name, plain(batch.values), batch.row_splits.numpy().tolist()
    if hasattr(batch, "tocoo"):
        return type(batch).__name__, str(batch.dtype), batch.toarray().tolist()
    return str(batch.dtype), np.asarray(batch).tolist()


def epochs(enqueuer: Any, count: int) -> list[Any]:
    """Return epochs as code for Keras 3 reads them: one a start."""
    seen = []
    for number in range(count):
        enqueuer.start(
            **(
                {"epoch": number}
                if "epoch" in signature(keras_3.OrderedEnqueuer.start).parameters
                else {}
            )
        )
        seen += [plain(batch) for batch in islice(enqueuer.get(), len(enqueuer.py_dataset))]
        enqueuer.stop()
        enqueuer.py_dataset.on_epoch_end()
    return seen


def test_batches_are_those_of_keras() -> None:
    """Two epochs in Keras' own order, the second as the first one's end has left the dataset."""
    random.seed(7)
    theirs = keras_3.OrderedEnqueuer(Tensors(), 2, False, 4, shuffle=True)  # noqa: FBT003
    expected = epochs(theirs, 2)
    random.seed(7)
    ours = ringfeed.keras.OrderedEnqueuer(Tensors(), 2, False, 4, shuffle=True)  # noqa: FBT003
    assert epochs(ours, 2) == expected
    assert len({str(batch) for batch in expected}) == len(expected) == 8


@clean
def test_processes_send_them() -> None:
    """As Keras 2 reads: each epoch runs the hook, and what it changed reaches the worker."""
    expected = [plain(Tensors(epoch)[index]) for epoch in range(2) for index in range(4)]
    enqueuer = ringfeed.keras.OrderedEnqueuer(Tensors(), use_multiprocessing=True)
    enqueuer.start(workers=1, max_queue_size=2)
    assert [plain(batch) for batch in islice(enqueuer.get(), 8)] == expected
    enqueuer.stop()


@clean
@pytest.mark.parametrize("holes", [{}, {0}])
def test_a_batch_that_does_not_fit_is_made_here(holes: set[int]) -> None:
    """All batches arrive in their order.

    Only the one that is larger than its place was made by this process.
    """
    pytest.importorskip("scipy")
    dataset = MadeHere(large={3}, holes=holes)
    enqueuer = ringfeed.keras.OrderedEnqueuer(dataset, workers=1, use_multiprocessing=True)
    enqueuer.start()
    batches = [*islice(enqueuer.get(), 5 - len(holes))]
    enqueuer.stop()
    expected = [MadeHere(large={3})[index] for index in range(5) if index not in holes]
    assert [plain(batch[0]) for batch in batches] == [plain(batch[0]) for batch in expected]
    makers = [int(batch[1][0]) for batch in batches]
    assert [bool(batch[1][1]) for batch in batches] == [maker == os.getpid() for maker in makers]
    assert [maker == os.getpid() for maker in makers] == [
        index == 3 for index in range(5) if index not in holes
    ]


@clean
def test_a_generator_hands_over_the_very_objects() -> None:
    """Its thread is in this process: nothing is copied, and the loop ends with the last batch."""
    given = [Tensors()[index] for index in range(3)]
    enqueuer = ringfeed.keras.GeneratorEnqueuer(iter([*given, None]))
    enqueuer.start(workers=1, max_queue_size=2)
    found = [*enqueuer.get()]
    enqueuer.stop()
    assert [id(batch) for batch in found] == [id(batch) for batch in given]


@clean
@both
def test_errors_keep_their_place(*, processes: bool) -> None:
    """The batches before it arrive, and the dataset's own exception comes out."""
    pytest.importorskip("scipy")
    enqueuer = ringfeed.keras.OrderedEnqueuer(MadeHere(failing=2), 1, processes)
    enqueuer.start()
    batches = enqueuer.get()
    assert [plain(next(batches)[0]) for _ in range(2)] == [
        plain(MadeHere()[index][0]) for index in range(2)
    ]
    with pytest.raises(LookupError, match=r"^two\b"):
        next(batches)
    enqueuer.stop()


@clean
def test_other_objects_are_refused_as_before() -> None:
    """What Keras could not train on either is no batch: the loader's own words."""
    batches = [({1, 2},)] * 3
    with pytest.raises(ringfeed.SpecError) as expected:
        ringfeed.Loader(batches, batch_size=None)
    enqueuer = ringfeed.keras.OrderedEnqueuer(batches)
    enqueuer.start()
    with pytest.raises(ringfeed.SpecError) as raised:
        next(enqueuer.get())
    assert str(raised.value) == str(expected.value)


# ---- under `install` ----


def dataset_of(batches: Callable[[int], Any], **settings: Any) -> Any:
    """Return Keras' dataset of four batches."""

    class Made(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return batches(index)

    return Made(**settings)


def sparse(index: int) -> Any:
    """Return a batch of sparse inputs."""
    x, y = Tensors()[index]
    return x["sparse"], y


def ragged(index: int) -> Any:
    """Return a batch of ragged inputs."""
    x, y = Tensors()[index]
    return x["ragged"], y


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what is logged."""
    lines: list[str] = []
    monkeypatch.setattr(
        keras_fallback.LOG, "handle", lambda record: lines.append(record.getMessage())
    )
    return lines


def losses(data: Any, layers: list[Any]) -> list[float]:
    """Return the losses of a model trained from the same seeds each time."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    random.seed(5)
    return model.fit(data, epochs=2, verbose=0).history["loss"]


def layers_for(kind: object) -> list[Any]:
    """Return what makes rows of numbers of the inputs."""
    if kind is not ragged:
        return []
    return [keras.layers.Embedding(50, 2), keras.layers.Lambda(lambda x: tf.reduce_mean(x, axis=1))]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Keras has ragged tensors on TensorFlow alone"
)
@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (sparse, "tensorflow.python.framework.sparse_tensor.SparseTensor"),
        (ragged, "tensorflow.python.ops.ragged.ragged_tensor.RaggedTensor"),
    ],
)
def test_install_leaves_them_to_keras(
    kind: Callable[[int], Any], held: str, said: list[str]
) -> None:
    """One line says so, and `fit` has the losses that it has without ringfeed."""
    expected = losses(dataset_of(kind, workers=2), layers_for(kind))
    with ringfeed.keras.install():
        assert losses(dataset_of(kind, workers=2), layers_for(kind)) == expected
    assert said == [f"Made is left to Keras: batches hold a {held}, and not arrays alone"]

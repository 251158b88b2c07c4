"""A loader as Keras' data.

Errors, Ctrl-C, several at a time, and what an adapter says of itself.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import ringfeed

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3.7")

from training import (  # noqa: E402
    ROWS,
    Poisoned,
    Unsized,
    X,
    Y,
    history,
    make,
    over_arrays,
    small_model,
)

# ---- faults ----


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_error_of_a_sample_ends_fit_as_it_is(steps_per_execution: int) -> None:
    """`fit` raises the loader's WorkerError, with the sample's own traceback in a note."""
    loader = ringfeed.Loader(Poisoned(), workers=1, backend="thread", slots=3)
    with loader, pytest.raises(ringfeed.WorkerError) as caught:
        history(loader.to_keras(), small_model(steps_per_execution=steps_per_execution))
    assert str(caught.value) == "dataset[40] raised OSError: no such picture"
    (note,) = caught.value.__notes__  # Keras drops __cause__
    assert "in __getitem__\n" in note
    assert note.endswith("\nOSError: no such picture")


def test_skipped_samples() -> None:
    """Where failed samples are skipped, `fit` trains on the others.

    Keras warns of batches that do not come.
    """
    rest = np.arange(ROWS) != 40
    for batch_size in (50, 1):
        loader = ringfeed.Loader(Poisoned(), workers=0, on_error="skip", batch_size=batch_size)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = small_model().evaluate(loader.to_keras(), verbose=0)
        np.testing.assert_allclose(
            found, small_model().evaluate(X[rest], Y[rest], verbose=0), rtol=1e-5
        )
        assert [str(warning.message)[:28] for warning in seen] == [
            "Your input ran out of data; "
        ] * (batch_size == 1)


class Breaks(keras.callbacks.Callback):
    """Raises after the second batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch == 1:
            raise KeyError("of a callback")


def test_fit_after_a_fit_that_failed() -> None:
    """An error inside `fit` leaves the loader to the next one, with all its slots."""
    with make(workers=1) as loader:
        fed = loader.to_keras()
        with pytest.raises(KeyError, match="of a callback"):
            history(fed, callbacks=[Breaks()])
        assert history(fed) == over_arrays()
        gc.collect()
        assert "held" not in loader.slot_states()


class Intrudes(keras.callbacks.Callback):
    """Iterates over the loader in the middle of an epoch."""

    def __init__(self, loader: ringfeed.Loader) -> None:
        super().__init__()
        self.loader = loader

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch == 1:
            self.iterator = iter(self.loader)


def test_intruders_are_named() -> None:
    """Somebody else's iteration over a loader in training is an error, not a mixture of epochs."""
    loader = make()
    with pytest.raises(ringfeed.SupersededError) as caught:
        history(loader.to_keras(), callbacks=[Intrudes(loader)])
    assert str(caught.value) == (
        "another call of Keras, or a loop, has begun the next epoch of this feed or loader, so "
        "that the call amid this epoch cannot go on; give validation_data= a feed() or a loader "
        "of its own"
    )


class Gated:
    """Samples from number 64 on wait for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if index >= 64:
            self.gate.wait(120)
        return X[index], Y[index]


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C a moment after the second batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_while_fit_waits() -> None:
    """Ctrl-C ends a `fit` that waits for a worker, and the loader can be used again."""
    dataset = Gated()
    with ringfeed.Loader(dataset, workers=1, backend="thread", slots=3) as loader:
        with pytest.raises(KeyboardInterrupt):
            history(loader.to_keras(), small_model(), callbacks=[Interrupts()])
        dataset.gate.set()
        assert history(loader.to_keras()) == over_arrays()


# ---- side by side ----


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_training_and_validation(backend: Any) -> None:
    """Two loaders serve one `fit`, call after call, with two slots each."""
    both = {"workers": 1, "backend": backend, "slots": 2}
    with make(**both) as training, make(X[:50], Y[:50], **both) as validation:
        for _ in range(2):
            found = history(training.to_keras(), validation_data=validation.to_keras())
            assert found == over_arrays(validation_data=(X[:50], Y[:50]), validation_batch_size=32)


def test_what_the_adapter_says_of_itself() -> None:
    """Number and size of the batches are the loader's, and the adapter keeps it alive."""
    fed = make().to_keras()
    gc.collect()
    assert (fed.num_batches, fed.batch_size) == (4, 32)
    assert (fed.has_partial_batch, fed.partial_batch_size) == (None, None)
    assert make(sampler=Unsized()).to_keras().num_batches is None
    assert [y.tolist() for _, y in fed.get_numpy_iterator()] == [
        Y[start : start + 32].tolist() for start in (0, 32, 64, 96)
    ]

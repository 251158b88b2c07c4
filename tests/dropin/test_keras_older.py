"""A loader for a Keras that takes no adapters: a PyDataset of private copies. The installed Keras walks it as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter  # noqa: E402

from ringfeed.frameworks.keras.door import TAKES_ADAPTERS  # noqa: E402
from ringfeed.keras.older import LoaderDataset, _keras_weighs  # noqa: E402
from training import (  # noqa: E402
    CLASS_WEIGHT,
    WEIGHTS,
    Named,
    Pairs,
    Poisoned,
    Unsized,
    X,
    Y,
    history,
    make,
    over_arrays,
    small_model,
)


@pytest.fixture(autouse=True)
def _older_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    if tuple(map(int, keras.__version__.split(".")[:2])) >= TAKES_ADAPTERS:
        monkeypatch.setattr(keras, "__version__", "3.6.0")


def fed_history(loader: ringfeed.Loader, *arguments: Any, **settings: Any) -> dict[str, list[float]]:
    """Return what `fit` reports over a loader as a PyDataset."""
    fed = loader.to_keras()
    assert type(fed) is LoaderDataset
    return history(fed, *arguments, **{"shuffle": False, **settings})


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras 3.6, of an epoch shorter than an execution
@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_same_training_as_arrays(steps_per_execution: int) -> None:
    """Losses are those of arrays, with validation by a loader too, and no slot is held."""
    settings = {"steps_per_execution": steps_per_execution}
    with make(workers=1, backend="thread") as loader, make(X[:50], Y[:50]) as validation:
        found = fed_history(loader, small_model(**settings), validation_data=validation.to_keras())
        assert "held" not in loader.slot_states()
    expected = over_arrays(model=small_model(**settings), validation_data=(X[:50], Y[:50]), validation_batch_size=32)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


def test_each_pass_is_the_next_epoch_of_the_loader() -> None:
    """What Keras reads to see shapes is given back: training begins with the loader's first epoch, and goes on."""
    loader = make(shuffle=True, seed=7)
    order = [y.tolist() for _ in range(3) for _, y in loader]
    loader.set_epoch(0)
    seen: list[list[int]] = []

    class Sees(keras.Sequential):
        def test_step(self, batch: Any) -> Any:
            seen.append(batch[1].numpy().tolist())
            return super().test_step(batch)

    model = Sees([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    for fed in (loader.to_keras(), loader.to_keras(), loader.to_keras()):
        model.evaluate(fed, verbose=0)
    assert seen == order
    assert loader.epoch == 3


def test_shuffled_by_keras() -> None:
    """The order in which Keras asks makes no difference to what is trained on."""
    fed = make(shuffle=True).to_keras()
    walk = PyDatasetAdapter(fed, shuffle=True).get_numpy_iterator()
    seen = [y.tolist() for _, y in walk]
    assert seen == [y.tolist() for _, y in make(shuffle=True)]


def test_two_passes_at_a_time() -> None:
    """An older pass is told that a newer one has the loader, as often as it asks; the newer goes on."""
    fed = make().to_keras()
    older, newer = (PyDatasetAdapter(fed).get_numpy_iterator() for _ in range(2))
    next(older)
    assert next(newer)[1].tolist() == Y[:32].tolist()
    with pytest.raises(ringfeed.SupersededError) as caught:
        next(older)
    assert str(caught.value) == (
        "a newer pass over this dataset has taken over the loader, which serves one at a time; give each call of Keras "
        "a loader of its own"
    )
    assert next(newer)[1].tolist() == Y[32:64].tolist()


def test_fewer_steps_than_the_epoch() -> None:
    """`steps_per_epoch` and a callback that ends the training leave the loader to the next call."""
    with make(workers=1, backend="thread") as loader:
        fed_history(loader, steps_per_epoch=2, epochs=1)
        fed_history(loader, epochs=9, callbacks=[keras.callbacks.EarlyStopping("loss", min_delta=100)])
        found = fed_history(loader)
        np.testing.assert_allclose(found["loss"], over_arrays()["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:The structure of `inputs`", "ignore:Exception encountered")  # Keras 3.6, of tuples
def test_structures() -> None:
    """A bare array and a NamedTuple, a list of inputs and targets by name: all are unpacked as Keras does."""
    model = small_model()
    expected = model.predict(X, verbose=0)
    for loader in (make(X), make(X, Y), ringfeed.Loader(Named(), workers=0)):
        np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), expected)
    left, right = keras.Input((2,)), keras.Input((4,))
    model = keras.Model([left, right], keras.layers.Concatenate()([left, right]))
    loader = ringfeed.Loader(Pairs(), batch_size=None, workers=0)
    np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), X)


def test_class_weight() -> None:
    """Class weights count as over arrays, given to `to_keras` or, where Keras applies them, to `fit`."""
    expected = over_arrays(class_weight=CLASS_WEIGHT)["loss"]
    fed = make().to_keras(class_weight=CLASS_WEIGHT)
    np.testing.assert_allclose(history(fed, shuffle=False)["loss"], expected, rtol=1e-6)
    if _keras_weighs():
        np.testing.assert_allclose(fed_history(make(), class_weight=CLASS_WEIGHT)["loss"], expected, rtol=1e-6)


def test_class_weight_that_keras_would_ignore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras 3.6 applies class weights only where it looks for shapes; they are refused."""

    def generator(self: Any) -> Any:
        for index in range(self.py_dataset.num_batches):
            yield self.py_dataset[index]

    for name in ("_get_iterator", "_finite_generator"):
        monkeypatch.setattr(PyDatasetAdapter, name, generator, raising=False)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        fed_history(make(), class_weight=CLASS_WEIGHT)
    assert str(caught.value) == (
        f"Keras {keras.__version__} ignores class_weight= of fit for such a dataset; give it to to_keras()"
    )
    with pytest.raises(ValueError, match="class_weight was given to to_keras"):
        history(make().to_keras(class_weight=CLASS_WEIGHT), class_weight=CLASS_WEIGHT)
    with pytest.raises(ValueError, match="class_weight does not go with sample weights"):
        make(X, Y, WEIGHTS).to_keras(class_weight=CLASS_WEIGHT)


@pytest.mark.parametrize("settings", [{"sampler": Unsized()}, {"on_error": "skip"}], ids=["unsized", "skip"])
def test_unknown_length_is_refused(settings: dict[str, Any]) -> None:
    """A PyDataset has to know its length."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        ringfeed.Loader(Named(), workers=0, **settings).to_keras()
    assert str(caught.value) == (
        f"Keras {keras.__version__} takes only datasets whose length is known, and this loader's is not; update Keras "
        "to 3.7 or later, give the sampler a __len__, or leave on_error at 'raise'"
    )


def test_what_fit_would_ignore_is_refused() -> None:
    """Another batch size, targets and weights beside the dataset are refused, by us or by Keras itself."""
    with pytest.raises(ValueError, match=r"^batch_size=8 cannot be honoured beside to_keras\(\)"):
        fed_history(make(), batch_size=8)
    with pytest.raises(ValueError, match=r"^shuffle=False cannot be honoured beside to_keras\(\)"):
        fed_history(make(shuffle=True))
    for name in ("y", "sample_weight"):
        with pytest.raises(ValueError, match="should not be passed"):
            fed_history(make(), **{name: Y})


@pytest.mark.filterwarnings("ignore")  # TensorFlow says that its generator has ended
def test_errors_arrive() -> None:
    """What a sample raises ends `fit` with its text, and no slot stays held."""
    with ringfeed.Loader(Poisoned(), workers=1, backend="thread", slots=3) as loader:
        with pytest.raises(Exception, match=r"dataset\[40\] raised OSError: no such picture"):
            fed_history(loader)
        assert "held" not in loader.slot_states()

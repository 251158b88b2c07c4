"""A loader as Keras' data: the same training as over arrays and tf.data, and nothing ignored in silence."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3.7")
adapter = importlib.import_module("ringfeed.adapters.keras")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 100  # three batches of 32 and one of 4
RANDOM = np.random.default_rng(0)
X = RANDOM.random((ROWS, 6), np.float32)
Y = RANDOM.integers(0, 3, ROWS)
WEIGHTS = RANDOM.random(ROWS, np.float32)
CLASS_WEIGHT = {0: 1.0, 1: 5.0}
ROOT = Path(__file__).parent.parent


def make(*arrays: np.ndarray, **settings: Any) -> ringfeed.Loader:
    """Return a loader over arrays (X and Y if none are named) that fills in this process."""
    return ringfeed.Loader(arrays or (X, Y), **{"workers": 0, "slots": 3, **settings})


SPARSE = keras.losses.SparseCategoricalCrossentropy
LOSSES = {"one-hot": keras.losses.CategoricalCrossentropy}


def fresh_model(targets: str = "classes", **settings: Any) -> Any:
    """Return a compiled classifier for one form of targets, the same every time."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    settings = {"metrics": ["accuracy"], "weighted_metrics": [], "jit_compile": False, **settings}
    model.compile("sgd", LOSSES.get(targets, SPARSE)(from_logits=True), **settings)
    return model


@functools.cache
def _traced_model(**settings: Any) -> tuple[Any, list[np.ndarray]]:
    model = fresh_model(**settings)
    return model, model.get_weights()


def small_model(**settings: Any) -> Any:
    """Return the same as `fresh_model`, but traced by TensorFlow only once, which is most of a short test's time."""
    model, weights = _traced_model(**settings)
    model.set_weights(weights)
    return model


def history(x: Any, model: Any = None, **settings: Any) -> dict[str, list[float]]:
    """Return what `fit` reports of three epochs, or as many as it is told."""
    found: dict[str, list[float]] = (model or small_model()).fit(x, **{"epochs": 3, "verbose": 0, **settings}).history
    return found


def over_arrays(**settings: Any) -> dict[str, list[float]]:
    """Return what `fit` reports of the same three epochs over arrays."""
    return history(X, y=Y, batch_size=32, shuffle=False, **settings)


class Unsized:
    """The indices in order, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


class Poisoned:
    """Samples of which number 40 cannot be had."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if index == 40:
            raise OSError("no such picture")
        return X[index], Y[index]


class Example(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


class Named:
    """Samples with names."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Example:
        return Example(X[index], Y[index])


class Pairs(keras.utils.PyDataset):
    """Two inputs in a list and two targets, in whole batches, as a Keras user writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.record: list[str] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(32 * index, 32 * index + 32)
        return [X[rows, :2], X[rows, 2:]], {"left": Y[rows], "right": X[rows, :1]}

    def on_epoch_begin(self) -> None:
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.record.append("end")


# ---- the same training as over arrays ----


@pytest.mark.parametrize(("steps_per_execution", "workers"), [(1, 0), (8, 1), (32, 0)])
def test_same_losses_as_arrays(steps_per_execution: int, workers: int) -> None:
    """Every loss and metric is bit for bit that of arrays, with three slots and any steps an execution."""
    settings = {"steps_per_execution": steps_per_execution}
    with make(workers=workers) as loader:
        assert history(loader.to_keras(), fresh_model(**settings)) == over_arrays(model=fresh_model(**settings))
        gc.collect()
        assert loader.slot_states() == ["free"] * 3


class Counting(keras.Sequential):
    """A model that counts how often its training step is traced."""

    traces = 0

    def train_step(self, batch: Any) -> Any:
        self.traces += 1
        return super().train_step(batch)


def test_one_trace() -> None:
    """A short last batch does not have the training step traced again."""
    model = Counting([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    history(make(X, WEIGHTS).to_keras(), model)
    assert model.traces == 1


def test_each_epoch_is_the_next_of_the_loader() -> None:
    """A shuffling loader trains on the orders of its epochs 0, 1 and 2, also by two calls of `fit`."""
    model = small_model()
    batches = make(shuffle=True, seed=7)
    for _ in range(3):
        for x, y in batches:
            model.train_on_batch(x, y)
    by_hand = model.get_weights()
    model = small_model()
    loader = make(shuffle=True, seed=7)
    history(loader.to_keras(), model, epochs=2)
    history(loader.to_keras(), model, epochs=1, shuffle=True)
    for weights, expected in zip(model.get_weights(), by_hand, strict=True):
        np.testing.assert_array_equal(weights, expected)


def test_compiled_by_xla() -> None:
    """`jit_compile=True` trains as over arrays; XLA rounds differently for shapes that it knows."""
    found = history(make().to_keras(), small_model(jit_compile=True))
    np.testing.assert_allclose(found["loss"], over_arrays(model=small_model(jit_compile=True))["loss"], rtol=1e-6)


def test_mixed_precision() -> None:
    """Under mixed precision the losses are those of arrays."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        assert history(make().to_keras(), fresh_model()) == over_arrays(model=fresh_model())
    finally:
        keras.config.set_dtype_policy("float32")


def test_run_eagerly() -> None:
    """An eager model trains as well."""
    assert len(history(make().to_keras(), small_model(run_eagerly=True), epochs=1)["loss"]) == 1


def test_sample_weights() -> None:
    """A third element of the sample weights its rows."""
    assert history(make(X, Y, WEIGHTS).to_keras()) == over_arrays(sample_weight=WEIGHTS)


def test_named_tuples_and_inputs_alone() -> None:
    """A NamedTuple of two is (x, y); `predict` takes inputs alone, bare or not, and leaves targets aside."""
    named = ringfeed.Loader(Named(), workers=0)
    model = small_model()
    assert history(named.to_keras(), model) == over_arrays()
    expected = model.predict(X, verbose=0)
    for loader in (make(X), make(X, Y), make(X, Y, WEIGHTS), named, make(X, sampler=Unsized())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns where an unknown length ends
            np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), expected)


def test_dict_inputs() -> None:
    """A bare dict is the inputs by name, and a bare array is the input."""
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    model = keras.Model({"left": left, "right": right}, keras.layers.Subtract()([left, right]))
    loader = ringfeed.Loader({"right": X, "left": 3 * X}, workers=0)
    np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), 3 * X - X)
    model = keras.Model(left, keras.layers.Rescaling(2)(left))
    loader = ringfeed.Loader(Named(), workers=0)
    np.testing.assert_array_equal(model.predict(loader.to_keras(), verbose=0), 2 * X)


def test_several_inputs_and_outputs() -> None:
    """A PyDataset with a list of inputs and targets by name trains as over arrays, and its hooks run."""
    keras.utils.set_random_seed(2)
    inputs = [keras.Input((2,)), keras.Input((4,))]
    joined = keras.layers.Concatenate()(inputs)
    outputs = {"left": keras.layers.Dense(3)(joined), "right": keras.layers.Dense(1)(joined)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"left": SPARSE(from_logits=True), "right": "mse"}, jit_compile=False)
    start = model.get_weights()
    dataset = Pairs()
    found = history(ringfeed.Loader(dataset, batch_size=None, workers=0).to_keras(), model)
    assert dataset.record == ["begin", "end"] * 3
    model.set_weights(start)
    targets = {"left": Y, "right": X[:, :1]}
    assert found == history([X[:, :2], X[:, 2:]], model, y=targets, batch_size=32, shuffle=False)


# ---- the same as a tf.data.Dataset ----


def as_dataset(*, known: bool = True) -> Any:
    """Return the same batches as a tf.data.Dataset of TensorFlow's own."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    return dataset if known else dataset.filter(lambda _x, _y: True)


class Stops(keras.callbacks.Callback):
    """Ends the training after three batches of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.seen: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self.seen.append((self.epoch, batch))
        if (self.epoch, batch) == (1, 2):
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("known", "fit", "compiled"),
    [
        (True, {"steps_per_epoch": 2, "epochs": 5}, {}),
        (True, {"steps_per_epoch": 3, "epochs": 3}, {}),
        (True, {"steps_per_epoch": 6}, {}),
        (True, {"steps_per_epoch": 3}, {"steps_per_execution": 2}),
        (True, {"initial_epoch": 1}, {}),
        (True, {"epochs": 0}, {}),
        (True, {"validation_data": "same", "validation_steps": 2, "validation_freq": 2}, {}),
        (True, {"validation_data": "same", "class_weight": {0: 1.0, 1: 5.0, 2: 0.5}}, {}),
        (True, {"callbacks": "stops"}, {}),
        (True, {"callbacks": "early"}, {}),
        (False, {"validation_data": "same"}, {}),
        (False, {"steps_per_epoch": 3}, {}),
        (False, {"steps_per_epoch": 6}, {}),
        (False, {}, {"steps_per_execution": 8}),
    ],
    ids=lambda value: ("known" if value else "unknown") if isinstance(value, bool) else " ".join(value),
)
def test_like_a_tf_dataset(known: bool, fit: dict[str, Any], compiled: dict[str, Any]) -> None:  # noqa: FBT001
    """Each argument of `fit` does what it does with a tf.data.Dataset of the same batches, warnings included."""
    found = []
    for source in (
        lambda: make(sampler=None if known else Unsized()).to_keras(),
        lambda: as_dataset(known=known),
    ):
        stops = Stops()
        named = {"same": source, "stops": lambda stops=stops: [stops], "early": early_stopping}
        settings = {key: named[value]() if isinstance(value, str) else value for key, value in fit.items()}
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            report = history(source(), small_model(**compiled), **{"shuffle": False, **settings})
        found.append((report, stops.seen, [str(warning.message) for warning in seen]))
    assert found[0] == found[1]


def early_stopping() -> list[Any]:
    """Return a callback that ends the training after its second epoch."""
    return [keras.callbacks.EarlyStopping("loss", min_delta=100)]


def test_evaluate() -> None:
    """`evaluate` gives what it gives over arrays, again and again, and with fewer steps."""
    model = small_model()
    data = make().to_keras()
    expected = model.evaluate(X, Y, verbose=0)
    assert [model.evaluate(data, verbose=0) for _ in range(3)] == [expected] * 3
    assert model.evaluate(data, steps=2, verbose=0) == model.evaluate(X[:64], Y[:64], verbose=0)


# ---- class weights ----


@pytest.mark.parametrize("where", ["fit", "to_keras"])
@pytest.mark.parametrize("form", ["classes", "column", "one-hot", "floats"])
def test_class_weight(where: str, form: str) -> None:
    """Class weights count as over arrays, wherever they are given and in whatever form the targets are."""
    forms = {
        "classes": Y,
        "column": Y[:, None],
        "one-hot": np.eye(3, dtype=np.float32)[Y],
        "floats": Y.astype(np.float32),
    }
    settings = {"targets": form, "metrics": None}
    there = {"class_weight": CLASS_WEIGHT} if where == "to_keras" else {}
    here = {} if there else {"class_weight": CLASS_WEIGHT}
    found = history(make(X, forms[form]).to_keras(**there), small_model(**settings), **here)
    arrays = {"y": forms[form], "batch_size": 32, "shuffle": False}
    assert found == history(X, small_model(**settings), class_weight=CLASS_WEIGHT, **arrays)
    assert found != history(X, small_model(**settings), **arrays)


def test_class_weight_is_for_the_training_alone() -> None:
    """Weights given to `fit` end with it, and do not reach its validation, even over the same adapter."""
    model = small_model()
    data = make().to_keras()
    found = history(data, model, validation_data=data, class_weight=CLASS_WEIGHT)
    assert found == over_arrays(validation_data=(X, Y), validation_batch_size=32, class_weight=CLASS_WEIGHT)
    assert history(data) == over_arrays()


# ---- refusals ----


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"y": Y},
            "y= cannot be honoured beside to_keras(): the loader's batches carry the targets: return (x, y) from "
            "__getitem__",
        ),
        (
            {"sample_weight": WEIGHTS},
            "sample_weight= cannot be honoured beside to_keras(): the loader's batches carry the weights: return "
            "(x, y, sample_weight) from __getitem__",
        ),
        (
            {"batch_size": 8},
            "batch_size=8 cannot be honoured beside to_keras(): the loader makes batches of 32 rows; set batch_size "
            "of ringfeed.Loader",
        ),
        (
            {"shuffle": False},
            "shuffle=False cannot be honoured beside to_keras(): the loader shuffles; set shuffle of ringfeed.Loader",
        ),
        (
            {"class_weight": [1, 2]},
            "class_weight is a list, expected a mapping from class to weight; write it as in {0: 1.0, 1: 2.5}",
        ),
        (
            {"class_weight": {"cat": 2.0}},
            "class_weight has the key 'cat', expected the number of a class, as an int",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_fit_refuses_what_it_would_ignore(settings: dict[str, Any], text: str) -> None:
    """What Keras does not pass on to an adapter is refused with a reason."""
    with pytest.raises((ValueError, TypeError)) as caught:
        history(make(shuffle=True).to_keras(), **settings)
    assert str(caught.value) == text


def test_evaluate_and_predict_refuse_as_well() -> None:
    """Targets and batch sizes are refused by `evaluate` and `predict` too."""
    model, data = small_model(), make().to_keras()
    with pytest.raises(ValueError, match=r"^y= cannot be honoured"):
        model.evaluate(data, Y, verbose=0)
    with pytest.raises(ValueError, match=r"^batch_size=5 cannot be honoured"):
        model.predict(data, batch_size=5, verbose=0)


def test_validation_is_refused_by_its_own_batch_size() -> None:
    """The batch size of a fit over arrays is no affair of its validation; `validation_batch_size` is."""
    validation = make().to_keras()
    history(X, y=Y, batch_size=8, epochs=1, validation_data=validation)
    history(make().to_keras(), batch_size=32, epochs=1, validation_data=validation, validation_batch_size=32)
    with pytest.raises(ValueError, match=r"^validation_batch_size=7 cannot be honoured"):
        history(X, y=Y, epochs=1, validation_data=validation, validation_batch_size=7)
    with pytest.raises(ValueError, match=r"^y= cannot be honoured"):
        history(X, y=Y, epochs=1, validation_data=(validation, Y))


def test_validation_split_is_refused() -> None:
    """Keras itself refuses to split an adapter."""
    with pytest.raises(ValueError, match="`validation_split` is only supported for tensors or NumPy arrays"):
        history(make().to_keras(), validation_split=0.2)


@pytest.mark.parametrize(
    ("make_loader", "text"),
    [
        (
            lambda: make(X, Y, WEIGHTS),
            "class_weight does not go with sample weights, in Keras either; multiply both in __getitem__",
        ),
        (
            lambda: make(X),
            "class_weight needs targets, and this loader's batches are inputs alone; return (x, y) from __getitem__",
        ),
        (
            lambda: ringfeed.Loader(Pairs(), batch_size=None, workers=0),
            "class_weight is for one array of targets, and this loader has several; return weights from __getitem__ "
            "instead, as in (x, y, sample_weight)",
        ),
    ],
    ids=["weights", "no targets", "several targets"],
)
def test_batches_that_cannot_be_weighted(make_loader: Callable[[], ringfeed.Loader], text: str) -> None:
    """Class weights are refused where the batches have no place for them, by `to_keras` and by `fit`."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make_loader().to_keras(class_weight=CLASS_WEIGHT)
    assert str(caught.value) == text
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        history(make_loader().to_keras(), class_weight=CLASS_WEIGHT)
    assert str(caught.value) == text


def test_class_weight_given_twice() -> None:
    """Two class weights are one too many."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        history(make().to_keras(class_weight=CLASS_WEIGHT), class_weight=CLASS_WEIGHT)
    assert str(caught.value) == "class_weight was given to to_keras() and to fit(); give it to one of them"


def test_samples_that_keras_cannot_unpack() -> None:
    """A sample of four is refused at once."""
    with pytest.raises(ringfeed.SpecError) as caught:
        make(X, Y, WEIGHTS, X).to_keras()
    assert str(caught.value) == (
        "sample is a tuple of 4, expected x, (x, y) or (x, y, sample_weight), which is what Keras takes; group the "
        "inputs in __getitem__, as in ((a, b, c), y)"
    )


def test_old_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Keras that does not take adapters is named, with the way out."""
    monkeypatch.setattr(keras, "__version__", "3.6.0")
    spec = importlib.util.find_spec("ringfeed.adapters.keras")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert str(caught.value) == (
        "to_keras() needs Keras 3.7 or later, got 3.6.0; update it, or give fit() the dataset that "
        "loader.to_tf_dataset() makes"
    )


# ---- faults ----


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_error_of_a_sample_ends_fit_as_it_is(steps_per_execution: int) -> None:
    """`fit` raises the loader's WorkerError itself, with the traceback of the sample's error in a note."""
    loader = ringfeed.Loader(Poisoned(), workers=1, backend="thread", slots=3)
    with loader, pytest.raises(ringfeed.WorkerError) as caught:
        history(loader.to_keras(), small_model(steps_per_execution=steps_per_execution))
    assert str(caught.value) == "dataset[40] raised OSError: no such picture"
    if sys.version_info >= (3, 11):  # Keras drops __cause__
        (note,) = caught.value.__notes__
        assert "in __getitem__\n" in note
        assert note.endswith("\nOSError: no such picture")


class Breaks(keras.callbacks.Callback):
    """Raises after the second batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch == 1:
            raise KeyError("of a callback")


def test_fit_after_a_fit_that_failed() -> None:
    """An error inside `fit` leaves the loader to the next one, with all its slots."""
    with make(workers=1) as loader:
        data = loader.to_keras()
        with pytest.raises(KeyError, match="of a callback"):
            history(data, callbacks=[Breaks()])
        assert history(data) == over_arrays()
        gc.collect()
        assert loader.slot_states() == ["free"] * 3


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
    assert str(caught.value) == "a newer iterator of this loader has taken over; finish one before you make the next"


class Gated:
    """Samples from number 64 on wait for the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if index >= 64:
            self.gate.wait(30)
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
    data = make().to_keras()
    gc.collect()
    assert (data.num_batches, data.batch_size) == (4, 32)
    assert (data.has_partial_batch, data.partial_batch_size) == (None, None)
    assert make(sampler=Unsized()).to_keras().num_batches is None
    assert [y.tolist() for _, y in data.get_numpy_iterator()] == [
        Y[start : start + 32].tolist() for start in (0, 32, 64, 96)
    ]


# ---- in processes of their own ----


def run(script: str, **environment: str) -> str:
    """Return what a script prints, which finds X, Y, CLASS_WEIGHT and `small_model()`."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(script)],
        check=False,
        capture_output=True,
        env=os.environ | environment,
        text=True,
        timeout=50,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


PREAMBLE = """
    import keras, numpy as np, ringfeed

    rng = np.random.default_rng(0)
    X, Y, CLASS_WEIGHT = rng.random((100, 6), np.float32), rng.integers(0, 3, 100), {0: 1.0, 1: 5.0}

    def small_model():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        return model
"""

OTHER_BACKEND = """
    model, by_hand = small_model(), small_model()
    shuffled = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
    shuffled.set_epoch(5)
    plain = ringfeed.Loader((X, Y), workers=0)
    settings = {"class_weight": CLASS_WEIGHT, "validation_data": plain.to_keras(), "verbose": 0}
    model.fit(shuffled.to_keras(), epochs=2, **settings)
    model.fit(shuffled.to_keras(), epochs=1, **settings)
    shuffled.set_epoch(5)
    for _ in range(3):
        for x, y in shuffled:
            by_hand.train_on_batch(x, y, class_weight=CLASS_WEIGHT)
    for weights, expected in zip(model.get_weights(), by_hand.get_weights()):
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    losses = [model.evaluate(plain.to_keras(), verbose=0), model.evaluate(X, Y, verbose=0)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert model.predict(plain.to_keras(), verbose=0).shape == (100, 3)
    print(keras.backend.backend(), "trained")
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend: str) -> None:
    """On JAX and torch `fit` trains on the epochs from `set_epoch` on, with class weights, as by hand."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    assert run(OTHER_BACKEND, KERAS_BACKEND=backend) == f"{backend} trained\n"


REPLICAS = """
    import tensorflow as tf

    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    by_hand = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
    expected = small_model()
    for _ in range(3):
        for x, y in by_hand:
            expected.train_on_batch(x, y, class_weight=CLASS_WEIGHT)
    for strategy in tf.distribute.OneDeviceStrategy("CPU:0"), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]):
        with strategy.scope():
            model = small_model()
        loader = ringfeed.Loader((X, Y), shuffle=True, seed=7, workers=0)
        model.fit(loader.to_keras(), epochs=3, class_weight=CLASS_WEIGHT, verbose=0)
        for weights, wanted in zip(model.get_weights(), expected.get_weights()):
            np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-7)
        plain = ringfeed.Loader((X, Y), workers=0).to_keras()
        np.testing.assert_allclose(model.predict(plain, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
        print(strategy.num_replicas_in_sync)
"""


def test_distribution_strategies() -> None:
    """Under a strategy Keras distributes a real tf.data.Dataset, from the loader's first epoch on."""
    assert run(REPLICAS) == "1\n2\n"


def test_example() -> None:
    """The example trains, in a script without a main guard."""
    pytest.importorskip("sklearn")
    script = ROOT / "examples" / "keras_fit.py"
    ended = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    *_, accuracy, memory = ended.stdout.splitlines()
    assert accuracy.startswith("accuracy on 397 digits never seen: ")
    assert float(accuracy.split()[-1].rstrip("%")) > 80
    assert memory.startswith("shared memory: ")

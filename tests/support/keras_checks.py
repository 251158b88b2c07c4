"""What `to_keras` must do on each backend of Keras; run in a process of its own, since a process has one backend.

``python keras_checks.py NAME ...`` prints, as JSON, what became of each check: "" or the traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import keras_form_checks
import ringfeed
from training import (
    CLASS_WEIGHT,
    ROWS,
    SPARSE,
    WEIGHTS,
    Poisoned,
    Unsized,
    X,
    Y,
    history,
    make,
    small_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKEND = keras.backend.backend()
PATIENCE_S = 240.0
EXECUTIONS = (1,) if BACKEND == "torch" else (1, 8, 32)  # Keras itself has no others there
JIT = BACKEND == "jax"  # without it JAX compiles each operation alone, which takes minutes

# ---- looking at memory ----


def batches_of(fed: Any) -> Iterator[Any]:
    """Return one epoch as the backend's `fit` takes it."""
    if BACKEND == "tensorflow":
        return iter(fed.get_tf_dataset())
    return iter(fed.get_jax_iterator() if BACKEND == "jax" else fed.get_torch_dataloader())


def pointer(tensor: Any) -> int:
    """Return where a tensor's memory starts."""
    if BACKEND == "tensorflow":
        return np.asarray(tensor).__array_interface__["data"][0]
    return tensor.unsafe_buffer_pointer() if BACKEND == "jax" else tensor.data_ptr()


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor's values as they are now."""
    return keras.ops.convert_to_numpy(tensor)


def slots_at() -> list[range]:
    """Return the addresses at which shared memory is mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            first, last = line.split()[0].split("-")
            found.append(range(int(first, 16), int(last, 16)))
    return found


def in_a_slot(tensor: Any) -> bool:
    """Return whether a tensor's memory is shared memory."""
    return any(pointer(tensor) in place for place in slots_at())


def free_slots(loader: ringfeed.Loader) -> bool:
    """Return whether no slot is held: JAX has a moment to let go, and torch's last batch is the garbage collector's."""
    deadline_s = time.monotonic() + 120
    while "held" in loader.slot_states() and time.monotonic() < deadline_s:
        gc.collect()
    return "held" not in loader.slot_states()


def rows_of(dtype: Any, *shape: int) -> np.ndarray:
    """Return samples of zeros and ones in turn."""
    return np.resize(np.array([0, 1, 1], dtype), (ROWS, *shape))


def compiled(**settings: Any) -> Any:
    """Return the classifier as it begins, compiled as the backend likes it."""
    return small_model(**{"jit_compile": JIT, **settings})


# ---- the checks ----

ALIASED = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "bool")


def check_tensors_are_over_the_slots() -> None:
    """Each dtype's tensor starts in a slot, and shows what is written there afterwards.

    JAX narrows int64.
    """
    for name in ALIASED:
        dtype = keras.src.backend.standardize_dtype(name)
        samples = rows_of(np.dtype("bool") if name == "bool" else _numpy_dtype(dtype), 3, 5)
        with make(samples, batch_size=7) as loader:
            tensor = next(batches_of(loader.to_keras()))
            tensor = tensor[0] if isinstance(tensor, (tuple, list)) else tensor
            np.testing.assert_array_equal(to_numpy(tensor), samples[:7])
            narrowed = BACKEND == "jax" and name == "int64"
            assert in_a_slot(tensor) is not narrowed, name
            if not narrowed:
                ctypes.memset(pointer(tensor), 0, samples[:7].nbytes)
                ctypes.memset(pointer(tensor), 1, 1)
                assert np.count_nonzero(to_numpy(tensor)) == 1, name


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: PLC0415 - registers bfloat16

    return np.dtype(getattr(ml_dtypes, name, name))


def check_other_dtypes_have_the_values_of_arrays() -> None:
    """What a framework does not take over a slot reaches it in the values and dtype of a plain array."""
    for name in ("int8", "int16", "uint16", "uint32", "float64", "complex64", ">f4", ">i2"):
        if BACKEND != "torch" or name != "complex64":
            samples = rows_of(name, 2)
            with make(samples, Y, batch_size=7) as loader:
                tensor, _ = next(batches_of(loader.to_keras()))
                plain = keras.ops.convert_to_tensor(
                    samples[:7].astype(np.dtype(name).newbyteorder("="))
                )
                assert tensor.dtype == plain.dtype, name
                np.testing.assert_array_equal(to_numpy(tensor), to_numpy(plain))


def check_odd_shapes() -> None:
    """No shape aborts: no axis, axes of 0 and 1, odd lengths, one row in the last batch, and gaps that were closed."""
    shapes = [(), (0,), (1,), (3,), (7, 1), (2, 0, 3), (1, 1, 5)]
    arrays = {
        f"{dtype} {shape}": rows_of(dtype, *shape)
        for dtype in ("uint8", "float16", "bool")
        for shape in shapes
    }
    with ringfeed.Loader((arrays, Y), batch_size=33, workers=0) as loader:
        for first, (batch, _) in zip((0, 33, 66, 99), batches_of(loader.to_keras()), strict=True):
            for name, tensor in batch.items():
                np.testing.assert_array_equal(
                    to_numpy(tensor), arrays[name][first : first + 33], name
                )
    with ringfeed.Loader(Poisoned(), workers=0, batch_size=41, on_error="skip") as loader:
        x, y = next(batches_of(loader.to_keras()))
        assert in_a_slot(x)
        np.testing.assert_array_equal(to_numpy(x), X[:40])
        np.testing.assert_array_equal(to_numpy(y), Y[:40])


def check_same_training_as_arrays() -> None:
    """Losses, metrics and weights of `fit` are bit for bit those of arrays, weighted by class or sample too."""
    held_out = X[:50], Y[:50]
    weighted = {"class_weight": CLASS_WEIGHT}
    for arrays, here, there in (
        ((X, Y), {"validation_data": make(*held_out).to_keras()}, {"validation_data": held_out}),
        ((X, Y), weighted, weighted),
        ((X, Y, WEIGHTS), {}, {"sample_weight": WEIGHTS}),
    ):
        model = compiled()
        with make(*arrays) as loader:
            found = history(loader.to_keras(), model, **here), model.get_weights()
        model = compiled()
        assert found[0] == history(X, model, y=Y, batch_size=32, shuffle=False, **there)
        for weights, expected in zip(found[1], model.get_weights(), strict=True):
            np.testing.assert_array_equal(weights, expected)


def check_slots_and_steps() -> None:
    """Any slots and steps: the same bits as from arrays; `fit` copies nothing from three slots on.

    Slots come back.
    """
    for steps in EXECUTIONS:
        model = compiled(steps_per_execution=steps)
        weights = model.get_weights()
        expected = (
            model.predict(X, batch_size=8, verbose=0),
            model.evaluate(X, Y, batch_size=8, verbose=0),
        )
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        trained = model.get_weights()
        for slots in range(2, 9):
            case = f"{slots} slots, {steps} steps an execution"
            with make(batch_size=8, slots=slots, workers=1, backend="thread") as loader:
                model.set_weights(weights)
                fed = loader.to_keras()
                assert model.evaluate(fed, verbose=0) == expected[1], case
                history(fed, model, epochs=1)
                for learnt, wanted in zip(model.get_weights(), trained, strict=True):
                    np.testing.assert_array_equal(learnt, wanted, case)
                assert free_slots(loader), case
                assert fed.copied == 0 or slots == 2, f"{case}: {fed.copied} copied"
                model.set_weights(weights)
                np.testing.assert_array_equal(model.predict(fed, verbose=0), expected[0], case)
                assert free_slots(loader), case
                assert loader.stats().batches == 3 * 13, case


def check_batches_that_are_kept() -> None:
    """A model that keeps every batch for ever gets copies before the ring runs dry, and none is overwritten."""

    class Keeps(keras.Sequential):
        kept: list[Any] = []  # noqa: RUF012 - the layers' own tracking would copy one of the instance

        def train_step(self, *arguments: Any) -> Any:
            Keeps.kept.append(arguments[-1])
            return super().train_step(*arguments)

    model = Keeps([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with make(X, WEIGHTS, batch_size=10, slots=4, workers=1, backend="thread") as loader:
        fed = loader.to_keras()
        history(fed, model, epochs=1)
        assert loader.slot_states().count("held") == 3
        assert fed.copied == 7
    for number, (x, y) in enumerate(Keeps.kept):
        assert in_a_slot(x) is (number < 3)
        np.testing.assert_array_equal(to_numpy(x), X[10 * number : 10 * number + 10])
        np.testing.assert_array_equal(to_numpy(y), WEIGHTS[10 * number : 10 * number + 10])


def check_structures() -> None:
    """Inputs by name, two outputs, sample weights, mixed precision, fewer steps than the epoch: all as from arrays."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        found = [_trained_structure(fed=True), _trained_structure(fed=False)]
    finally:
        keras.config.set_dtype_policy("float32")
    assert found[0] == found[1]


def _trained_structure(*, fed: bool) -> Any:
    keras.utils.set_random_seed(3)
    left, right = keras.Input((2,), name="left"), keras.Input((4,), name="right", dtype="uint8")
    joined = keras.layers.Concatenate()([left, keras.layers.Rescaling(0.5)(right)])
    outputs = {
        "a": keras.layers.Dense(1, name="a")(joined),
        "b": keras.layers.Dense(2, name="b")(joined),
    }
    model = keras.Model({"left": left, "right": right}, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, jit_compile=JIT)
    arrays = (
        {"left": X[:, :2], "right": (9 * X[:, 2:]).astype(np.uint8)},
        {"a": X[:, :1], "b": X[:, 1:3]},
        {"a": WEIGHTS, "b": WEIGHTS[::-1].copy()},
    )
    loader = ringfeed.Loader(arrays, batch_size=32, workers=0, slots=3)
    settings = {"steps_per_epoch": 2, "epochs": 2}
    if fed:
        return history(loader.to_keras(), model, **settings)
    return history(_AsArrays(loader), model, **settings, shuffle=False)


class _AsArrays(keras.utils.PyDataset):
    """The batches of a loader as plain arrays, as a Keras user writes them."""

    def __init__(self, loader: ringfeed.Loader) -> None:
        super().__init__(workers=0)
        self.batches = [keras.tree.map_structure(np.array, batch) for batch in loader]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def check_arguments_of_fit() -> None:
    """Each argument of `fit` and each callback does what it does with the same batches in a PyDataset of arrays."""

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            self.model.stop_training = batch == 2

    cases: list[dict[str, Any]] = [
        {"steps_per_epoch": 2, "epochs": 5},  # an epoch of the loader over two of Keras'
        {"steps_per_epoch": 3, "epochs": 3},
        {"steps_per_epoch": 6, "epochs": 2},  # more than there are
        {"initial_epoch": 1},
        {"validation_data": "same", "validation_steps": 2, "validation_freq": 2},
        {"validation_data": "same", "callbacks": [Stops()]},
        {
            "callbacks": [
                keras.callbacks.EarlyStopping(
                    "loss", min_delta=100, patience=1, restore_best_weights=True
                )
            ]
        },
    ]
    for case in cases:
        found = []
        for fed in (make().to_keras(), _AsArrays(make())):
            settings = case | ({"validation_data": fed} if "validation_data" in case else {})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns where the batches do not suffice
                model = compiled()
                found.append(history(fed, model, shuffle=False, **settings))
        assert list(found[0]) == list(found[1]), case
        for name, values in found[1].items():
            np.testing.assert_allclose(found[0][name], values, rtol=1e-6, err_msg=f"{case}: {name}")


def check_unknown_length_and_callbacks() -> None:
    """An unknown length ends where it ends; a callback that stops the training ends it there."""
    with make(sampler=Unsized()) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns where an unknown length ends
        model = compiled()
        np.testing.assert_array_equal(
            model.predict(loader.to_keras(), verbose=0), model.predict(X, verbose=0)
        )
        losses = model.evaluate(loader.to_keras(), verbose=0), model.evaluate(X, Y, verbose=0)
        np.testing.assert_allclose(*losses, rtol=1e-6)
        assert len(history(loader.to_keras(), model)["loss"]) == 3
        assert free_slots(loader)
    with make() as loader:
        early = keras.callbacks.EarlyStopping("loss", min_delta=100)
        assert len(history(loader.to_keras(), compiled(), epochs=9, callbacks=[early])["loss"]) == 2
        assert free_slots(loader)


def check_resumed_epochs() -> None:
    """`initial_epoch` and `BackupAndRestore` go on with the loader's epoch of that number, also by steps."""

    def seen(loader: ringfeed.Loader, *callbacks: Any, **settings: Any) -> list[float]:
        """Return the first loss of each epoch: nothing is learnt, so that it tells the epoch's order."""
        found: list[float] = []
        first = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: (
                found.append(logs["loss"]) if batch == 0 else None
            )
        )
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.0), SPARSE(from_logits=True), jit_compile=JIT)
        model.fit(loader.to_keras(), epochs=4, verbose=0, callbacks=[first, *callbacks], **settings)
        return found

    class StopError(Exception):
        pass

    def stop(epoch: int, _: Any) -> None:
        if epoch == 1:
            raise StopError

    def shuffled() -> ringfeed.Loader:  # of seven batches
        return ringfeed.Loader((X, Y), batch_size=16, shuffle=True, workers=0, slots=3)

    with shuffled() as loader:
        epochs = seen(loader)
    assert len(set(epochs)) == 4
    with shuffled() as loader:
        assert seen(loader, initial_epoch=2) == epochs[2:]
        assert loader.epoch == 4
    with shuffled() as loader:
        assert seen(loader, initial_epoch=2, steps_per_epoch=len(loader)) == epochs[2:]
    with (
        shuffled() as loader
    ):  # three of Keras' epochs for one of the loader's: the third has a batch alone
        assert seen(loader, initial_epoch=3, steps_per_epoch=3) == epochs[1:2]
    with shuffled() as loader:  # each of Keras' ends with the loader's
        assert seen(loader, initial_epoch=2, steps_per_epoch=9) == epochs[2:]
    with tempfile.TemporaryDirectory() as place:
        backup = keras.callbacks.BackupAndRestore(place)
        with shuffled() as loader, contextlib.suppress(StopError):
            seen(loader, backup, keras.callbacks.LambdaCallback(on_epoch_begin=stop))
        with shuffled() as loader:
            assert seen(loader, backup) == epochs[1:]


def check_waits_in_which_the_backend_computes() -> None:
    """On JAX, which runs behind the program, a wait with work left is no stall.

    Other backends are through by then.
    """

    class Slow:
        def __len__(self) -> int:
            return 10 * ROWS  # more batches than there are slots, in which compiling may end

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.001)
            return X[index % len(X)], Y[index % len(Y)]

    with (
        pytest.MonkeyPatch.context() as patch,
        ringfeed.Loader(Slow(), batch_size=ROWS, workers=1, backend="thread") as loader,
    ):
        if BACKEND == "jax":
            patch.setattr("ringfeed.frameworks.jax.is_computing", lambda: True)
        compiled().evaluate(loader.to_keras(), verbose=0)
        stats = loader.stats()
        assert (stats.stall_s - stats.startup_s < 1e-6) == (BACKEND == "jax")


def check_after_a_failure() -> None:
    """An error in a sample or in a callback ends `fit` as it is, and leaves all slots to the next."""

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            if batch == 1:
                raise KeyError("of a callback")

    with ringfeed.Loader(Poisoned(), workers=1, backend="thread", slots=3) as loader:
        with pytest.raises(
            ringfeed.WorkerError, match=r"^dataset\[40\] raised OSError: no such picture"
        ):
            history(loader.to_keras(), compiled())
        gc.collect()
        assert free_slots(loader)
    with make(workers=1, backend="thread") as loader:
        with pytest.raises(KeyError, match="of a callback"):
            history(loader.to_keras(), compiled(), callbacks=[Breaks()])
        gc.collect()
        assert free_slots(loader)
        assert len(history(loader.to_keras(), compiled())["loss"]) == 3


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): check
    for name, check in [*globals().items(), *vars(keras_form_checks).items()]
    if name.startswith("check_")
}


def main(names: list[str]) -> None:
    """Run the named checks, and print what became of each."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    if BACKEND == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415 - of this backend alone

        tf.config.experimental.enable_op_determinism()
    if BACKEND == "torch":
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
    found = {}
    for name in names:
        try:
            CHECKS[name]()
            found[name] = ""
        except Exception:  # noqa: BLE001 - it is reported
            found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])

"""``to_tf_dataset(cast=...)``: what arrives, how few slots it takes, and where it is cast."""

from __future__ import annotations

import gc
import importlib
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import ringfeed
import warm
from frameworks import DTYPES, WIDE, make, of_dtype
from ringfeed import Cast
from ringfeed.frameworks.cast import in_numpy
from watching import wait_until

tf = pytest.importorskip("tensorflow")
op = importlib.import_module("ringfeed.frameworks.tensorflow.dataset")
tensorflow_cast = importlib.import_module("ringfeed.frameworks.tensorflow.forms")

ROWS = 20  # two batches of 8 and one of 4
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(ROWS)
FULL = Cast("float32", 1 / 255, 0.25, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "CHW")
NUMBERS = [name for name in (*DTYPES, *WIDE) if not name.startswith("complex")]


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


def images(*arrays: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader of three batches over three slots, filled in this process."""
    return make(arrays or (IMAGES, LABELS), **{"batch_size": 8, **settings})


def none_held(loader: ringfeed.Loader) -> bool:
    """Return whether TensorFlow has let go of every slot, having been given the time."""
    wait_until(lambda: gc.collect() >= 0 and "held" not in loader.slot_states())
    return True


@pytest.mark.parametrize("given", NUMBERS)
def test_a_plain_cast_has_the_values_of_numpy(given: str) -> None:
    """From every dtype of numbers, bit for bit."""
    array = of_dtype(given, rows=8)
    with images(array) as loader:
        for dtype in ("bfloat16", "float32"):
            ((found,),) = loader.to_tf_dataset(cast=(dtype,))
            assert found.dtype == dtype
            assert found.numpy().tobytes() == in_numpy({0: Cast(dtype)})[0](array).tobytes()


@pytest.mark.usefixtures("by_either_way")
@pytest.mark.parametrize("length", ["known", "unknown"])
def test_steps_have_the_values_of_numpy(length: str) -> None:
    """As far as XLA does not fuse them.

    Of a short last batch and in the next epoch too, in the sample's structure.
    """
    expected = in_numpy({0: FULL})[0](IMAGES)
    sampler = None if length == "known" else (lambda _epoch: iter(range(ROWS)))
    with make({"x": IMAGES, "y": LABELS, "z": IMAGES}, batch_size=8, sampler=sampler) as loader:
        dataset = loader.to_tf_dataset(cast={"x": FULL, "z": "float16"})
        assert dataset.element_spec == {
            "x": tf.TensorSpec((None, 3, 6, 5), tf.float32),
            "y": tf.TensorSpec((None,), tf.int64),
            "z": tf.TensorSpec((None, 6, 5, 3), tf.float16),
        }
        assert dataset.cardinality().numpy() == (
            3 if length == "known" else tf.data.UNKNOWN_CARDINALITY
        )
        for _ in range(2):
            found = [{name: tensor.numpy() for name, tensor in batch.items()} for batch in dataset]
            x, y, z = (np.concatenate([batch[name] for batch in found]) for name in "xyz")
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(y, LABELS)
            np.testing.assert_array_equal(z, IMAGES)


@pytest.mark.parametrize(
    "cast", [Cast("float16", scale=1 / 255, mean=0.5), Cast("bfloat16", std=(2, 3, 4))]
)
def test_steps_of_narrow_floats(cast: Cast) -> None:
    """As far as XLA does not keep more bits between them."""
    expected = in_numpy({0: cast})[0](IMAGES).astype(np.float32)
    with images(IMAGES) as loader:
        found = np.concatenate(
            [x.numpy().astype(np.float32) for (x,) in loader.to_tf_dataset(cast=cast)]
        )
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


class Growing:
    """Whole batches, each larger than the one before it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return IMAGES[: index + 1, : index + 3]


def test_shapes_that_vary_are_not_compiled() -> None:
    """Each batch has the shape of its own, and XLA, which would compile for each, is left out."""
    spec = ringfeed.Array((6, 5, 3), "uint8", variable=(0,))
    with ringfeed.Loader(
        Growing(), batch_size=None, max_batch_size=3, spec=spec, workers=0
    ) as loader:
        dataset = loader.to_tf_dataset(cast=FULL)
        assert dataset.element_spec == tf.TensorSpec((None, 3, None, 5), tf.float32)
        for number, x in enumerate(dataset):
            expected = in_numpy({0: FULL})[0](Growing()[number])
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    forms = [tf.TensorSpec((None, *shape), tf.uint8) for shape in ((None, 5, 3), (6, 5, 3))]
    assert [bool(tensorflow_cast._compiled(FULL, form)._jit_compile) for form in forms] == [
        False,
        True,
    ]


def test_two_slots_are_enough_and_none_stays_held() -> None:
    """tf.data may keep as many as it likes of what is cast.

    No slot is copied out of or held for it.
    """
    with images(IMAGES, slots=2, workers=1, backend="thread") as loader:
        dataset = loader.to_tf_dataset(cast=Cast(scale=2.0)).prefetch(8)
        for _ in range(2):
            kept = list(dataset)
            assert none_held(loader)
            np.testing.assert_array_equal(
                np.concatenate([x for (x,) in kept]), IMAGES * np.float32(2)
            )


def test_compiled_once() -> None:
    """Equal casts of equal forms have the same function.

    TensorFlow keeps what XLA compiles for ever.
    """
    spec = tf.TensorSpec((None, 6, 5, 3), tf.uint8)
    first, second = (
        tensorflow_cast.TensorFlowCasts({0: Cast(scale=3.0)}, [spec]) for _ in range(2)
    )
    batch = tf.constant(IMAGES)
    first([batch])
    second([batch[:3]])
    found = tensorflow_cast._compiled(Cast(scale=3.0), spec)
    assert found.experimental_get_tracing_count() == 1


def test_a_loader_that_is_dropped_is_gone() -> None:
    """No graph and no compiled function keeps a loader."""
    loaders = []
    for _ in range(2):
        loader = images(IMAGES, workers=1)
        loaders.append(weakref.ref(loader))
        assert len(list(loader.to_tf_dataset(cast=FULL))) == 3
        del loader
    gc.collect()
    assert [found() for found in loaders] == [None] * 2


def test_refused_at_the_call() -> None:
    """Nothing is begun for a cast that cannot be."""
    with images() as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            loader.to_tf_dataset(cast=("float32",))
        assert str(caught.value) == (
            "to_tf_dataset(cast=...): sample is cast by a tuple of 1, expected a tuple of 2; "
            "write it in the structure of the sample, with None for what stays as it is"
        )
        assert loader.epoch == 0


ELSEWHERE = """
import numpy as np, tensorflow as tf, ringfeed
from ringfeed import Cast
from ringfeed.frameworks.tensorflow.forms import TensorFlowCasts

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
X = np.arange(400, dtype=np.uint8).reshape(20, 20)
for cast in "float32", Cast(scale=2.0):
    with ringfeed.Loader((X,), batch_size=8, workers=0, slots=3) as loader, tf.device("CPU:1"):
        for (x,) in loader.to_keras(cast=cast).get_tf_dataset():
            print(x.device[-5:], x.dtype.name, float(x[0, 1]), loader.slot_states().count("held"))
"""


@pytest.mark.long
def test_on_the_device_where_eager_ops_run() -> None:
    """`to_keras` casts where TensorFlow places its ops; the uint8 goes there, the slot is free."""
    ended = warm.run(["-c", ELSEWHERE])
    lines = [f"CPU:1 float32 {factor * first}.0 0" for factor in (1, 2) for first in (1, 161, 65)]
    assert (ended.stdout.splitlines(), ended.returncode) == (lines, 0), ended.stderr

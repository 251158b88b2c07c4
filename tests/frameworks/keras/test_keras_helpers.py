"""Keras' helpers for samples give in workers what Keras gives, without Keras."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import travel
from ringfeed.transport import keras_helpers as _helpers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

keras = pytest.importorskip("keras")
Image = pytest.importorskip("PIL.Image")

SEEDS = range(60)


def same(name: str, *args: Any, **kwargs: Any) -> bool:
    """Compare what a helper gives with Keras, bit for bit.

    False where the helper leaves it to Keras.
    """
    ours = getattr(_helpers, name)(*args, **kwargs)
    if ours is NotImplemented:
        return False
    theirs = getattr(keras.utils, name)(*args, **kwargs)
    if isinstance(ours, Image.Image):
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_to_categorical_is_that_of_keras(seed: int) -> None:
    """Class numbers of any shape and kind, with and without the number of classes."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, rng.integers(0, 4)))
    dtype = rng.choice(["int64", "int32", "uint8", "bool"])
    labels = rng.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)
    for given in (labels, labels.tolist() if dtype != "bool" else labels):
        assert same("to_categorical", given)
        assert same("to_categorical", given, num_classes=9)
        assert same("to_categorical", given, np.int64(11))


@pytest.mark.parametrize("seed", SEEDS)
def test_pad_sequences_is_that_of_keras(seed: int) -> None:
    """Lists and arrays of any length, padded and cut at either side, of several dtypes."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    rows: list[Any] = [
        [chance.randrange(-9, 99) for _ in range(chance.randrange(7))] for _ in range(5)
    ] + [[1]]
    if seed % 2:
        rows = [np.array(row, "int64") for row in rows]
    sides = {side: chance.choice(["pre", "post"]) for side in ("padding", "truncating")}
    for dtype in ("int32", "float32", "int64"):
        assert same(
            "pad_sequences",
            rows,
            maxlen=chance.choice([None, 1, 3, 9]),
            dtype=dtype,
            value=7,
            **sides,
        )
    assert same("pad_sequences", rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_pictures_are_those_of_keras(seed: int, tmp_path: Path) -> None:
    """Files of several modes, by each colour mode, size, resampling and layout."""
    rng = np.random.default_rng(seed)
    mode = str(rng.choice(["RGB", "L", "RGBA", "1", "P", "I;16"]))
    size = tuple(int(side) for side in rng.integers(3, 40, 2))
    pixels = rng.integers(0, 256, (*size, 3), np.uint8)
    picture = (
        Image.fromarray(rng.integers(0, 60000, size, np.uint16))
        if mode == "I;16"
        else Image.fromarray(pixels)
    )
    path = tmp_path / "picture.png"
    (picture if mode == "I;16" else picture.convert(mode)).save(path)
    resampling = str(rng.choice(["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]))
    for color_mode in ("rgb", "rgba", "grayscale"):
        for target in (None, (17, 23), size):
            for source in (path, str(path)):
                assert same("load_img", source, color_mode, target, resampling)
        loaded = keras.utils.load_img(path, color_mode)
        for layout in (None, "channels_first", "channels_last"):
            assert same("img_to_array", loaded, data_format=layout)
            assert same(
                "img_to_array", loaded, layout, "uint8" if color_mode != "grayscale" else "float64"
            )
    assert same("load_img", io.BytesIO(path.read_bytes()), target_size=(5, 9))


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("to_categorical", ([1, 5], 3), {}),
        ("to_categorical", ([-1, 1],), {}),
        ("to_categorical", ([1.5, 0.2],), {}),
        ("to_categorical", ([],), {}),
        ("to_categorical", (keras.ops.convert_to_tensor([1]),), {}),
        ("pad_sequences", ([],), {}),
        ("pad_sequences", ([[[1], [2]]],), {}),
        ("pad_sequences", ([["a"]],), {"dtype": object, "value": ""}),
        ("pad_sequences", ([[1]],), {"padding": "middle"}),
        ("pad_sequences", ([[1]],), {"maxlen": 0}),
        ("load_img", ("nothing.png", "cmyk"), {}),
        ("load_img", ("nothing.png",), {"keep_aspect_ratio": True}),
        ("load_img", (3,), {}),
        ("img_to_array", (np.zeros((2, 2, 2, 2)),), {}),
        ("img_to_array", (np.zeros((2, 2)), "channels_middle"), {}),
    ],
)
def test_what_is_not_plain_is_left_to_keras(name: str, args: Any, kwargs: Any) -> None:
    """Keras' own answer or error is given for all else."""
    assert getattr(_helpers, name)(*args, **kwargs) is NotImplemented


def test_keras_settings_and_keras_2_are_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings file decides on layout and dtype, and tf.keras as Keras 2 is left to Keras."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    settings = {"floatx": "float64", "image_data_format": "channels_first"}
    (tmp_path / "keras.json").write_text(json.dumps(settings))
    _helpers._settings.cache_clear()
    try:
        array = _helpers.img_to_array(np.zeros((2, 3, 4), "uint8"))
        assert (array.dtype, array.shape) == (np.float64, (4, 2, 3))
        (tmp_path / "keras.json").write_text("{")
        _helpers._settings.cache_clear()
        assert _helpers.img_to_array(np.zeros((2, 3, 4), "uint8")) is NotImplemented
    finally:
        _helpers._settings.cache_clear()
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    _helpers.is_keras_3.cache_clear()
    try:
        assert not _helpers.is_keras_3()
    finally:
        monkeypatch.delenv("TF_USE_LEGACY_KERAS")
        _helpers.is_keras_3.cache_clear()
    assert _helpers.is_keras_3()


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import numpy as np
import keras
import tensorflow as tf
import jax.numpy as jnp
from keras.preprocessing.sequence import pad_sequences
from keras.utils import to_categorical
from travel import ask_loaded

class Helped(keras.utils.PyDataset):
    dtype = jnp.uint8
    def __len__(self): return 3
    def __getitem__(self, i):
        image = keras.utils.img_to_array(keras.utils.load_img({file!r}, target_size=(4, 4)))
        again = tf.keras.preprocessing.image.load_img({file!r})
        zeros = np.zeros(2, jnp.float32), image.astype(self.dtype), np.asarray([1], dtype=jnp.int16)
        return (
            image.shape, again.size, to_categorical(i, 4).tolist(), tf.keras.utils.to_categorical([i], 4).tolist(),
            pad_sequences([[1], [2, 3]]).tolist(), [str(each.dtype) for each in zeros],
        )

print(ask_loaded(Helped(), lambda dataset: dataset[1]))
"""


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_a_dataset_that_calls_the_helpers_needs_no_framework(tmp_path: Path) -> None:
    """By each of their names, helpers and JAX's dtypes work where no framework is imported."""
    file = tmp_path / "picture.png"
    Image.new("RGB", (6, 5)).save(file)
    run = subprocess.run(
        [sys.executable, "-"],
        input=SCRIPT.format(path=sys.path, file=str(file)),
        capture_output=True,
        text=True,
        timeout=travel.TIMEOUT_S,
        check=False,
    )
    dtypes = ["float32", "uint8", "int16"]
    one = [0.0, 1.0, 0.0, 0.0]
    answer: Callable[..., Any] | Any = ((4, 4, 3), (6, 5), one, [one], [[0, 1], [2, 3]], dtypes)
    assert run.stdout == f"{(answer, [], [])}\n", run.stderr

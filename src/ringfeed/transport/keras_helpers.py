"""Keras' helpers for samples, made of NumPy and PIL, so that no framework is imported for them.

What they give is what Keras gives.

Each answers the plain cases, in which Keras 3 of any version gives these values, bit for bit; for
all others it returns NotImplemented, and Keras itself is asked.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

_PLAIN = (int, float, np.integer, np.floating)
# PIL's filters, by their numbers.
_RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_MODES = {"grayscale": "L", "rgb": "RGB", "rgba": "RGBA"}


def to_categorical(x: Any, num_classes: Any = None) -> Any:
    """Return one-hot rows of class numbers, float64; out of range, and of tensors: not here."""
    if type(x) not in (int, list, tuple, np.ndarray) and not isinstance(x, np.integer):
        return NotImplemented
    labels = np.array(x)
    if labels.dtype.kind not in "iub" or not labels.size:
        return NotImplemented
    labels = labels.astype("int64")
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    classes = num_classes or int(labels.max()) + 1
    if not isinstance(classes, int | np.integer) or labels.min() < 0 or labels.max() >= classes:
        return NotImplemented
    return np.equal(labels[..., np.newaxis], np.arange(classes)).astype("float64")


def pad_sequences(  # noqa: PLR0913, PLR0917 - as Keras has it
    sequences: Any,
    maxlen: Any = None,
    dtype: Any = "int32",
    padding: Any = "pre",
    truncating: Any = "pre",
    value: Any = 0.0,
) -> Any:
    """Return rows of one length, of lists of numbers.

    Of deeper lists, strings and nothing: not here.
    """
    plain = (
        type(sequences) in (list, tuple)
        and isinstance(value, _PLAIN)
        and np.dtype(dtype).kind in "iuf"
    )
    if not plain or padding not in ("pre", "post") or truncating not in ("pre", "post"):
        return NotImplemented
    if not all(type(row) in (list, tuple, np.ndarray) for row in sequences):
        return NotImplemented
    longest = max(map(len, sequences), default=0) if maxlen is None else maxlen
    if type(longest) is not int or longest < 1:
        return NotImplemented
    padded = np.full((len(sequences), longest), value, dtype)
    for place, row in zip(padded, sequences, strict=True):
        cut = row[-longest:] if truncating == "pre" else row[:longest]
        numbers = np.asarray(cut, dtype)
        if numbers.ndim != 1:
            return NotImplemented
        start = 0 if padding == "post" else longest - len(numbers)
        place[start : start + len(numbers)] = numbers
    return padded


def img_to_array(img: Any, data_format: Any = None, dtype: Any = None) -> Any:
    """Return the pixels of a picture with the axis of its channels, as Keras' settings say."""
    layout, floats = data_format or _settings()[0], dtype or _settings()[1]
    if (
        layout not in ("channels_first", "channels_last")
        or floats is None
        or type(img).__module__.startswith("torch")
    ):
        return NotImplemented
    pixels = np.asarray(img, dtype=floats)
    if pixels.ndim == 2:  # noqa: PLR2004 - a picture without channels
        return pixels[np.newaxis] if layout == "channels_first" else pixels[..., np.newaxis]
    if pixels.ndim != 3:  # noqa: PLR2004 - height, width, channels
        return NotImplemented
    return pixels.transpose(2, 0, 1) if layout == "channels_first" else pixels


def load_img(
    path: Any,
    color_mode: Any = "rgb",
    target_size: Any = None,
    interpolation: Any = "nearest",
    keep_aspect_ratio: Any = False,  # noqa: FBT002 - as Keras has it
) -> Any:
    """Return a picture of a file, by PIL; cropped to keep its shape: not here."""
    if keep_aspect_ratio or color_mode not in _MODES or interpolation not in _RESAMPLING:
        return NotImplemented
    if not isinstance(path, str | bytes | Path | io.BytesIO):
        return NotImplemented
    try:
        from PIL import Image  # noqa: PLC0415 - only where pictures are loaded
    except ImportError:
        return NotImplemented
    source = (
        path if isinstance(path, io.BytesIO) else io.BytesIO(Path(os.fsdecode(path)).read_bytes())
    )
    picture: Any = Image.open(source)
    kept = ("L", "I;16", "I") if color_mode == "grayscale" else (_MODES[color_mode],)
    if picture.mode not in kept:
        picture = picture.convert(_MODES[color_mode])
    if target_size is not None and picture.size != (target_size[1], target_size[0]):
        picture = picture.resize((target_size[1], target_size[0]), _RESAMPLING.index(interpolation))
    return picture


_ANSWERS = {each.__name__: each for each in (to_categorical, pad_sequences, img_to_array, load_img)}


def answer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what Keras' function of this name gives, or NotImplemented."""
    try:
        return _ANSWERS[name](*args, **kwargs) if is_keras_3() else NotImplemented
    except (TypeError, ValueError):  # Keras says it in its own words
        return NotImplemented


@functools.cache
def is_keras_3() -> bool:
    """Whether ``keras`` is Keras 3 and tf.keras is the same.

    Files and the environment say so; nothing is imported.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        return False
    spec = importlib.util.find_spec("keras")
    return any(
        Path(place, "src/utils/numerical_utils.py").exists()
        for place in (spec and spec.submodule_search_locations) or ()
    )


@functools.cache
def _settings() -> tuple[str | None, str | None]:
    """Return the layout and the float type of Keras' pictures.

    They are read from its settings file, as Keras would do in this process.
    """
    home = Path(os.environ.get("KERAS_HOME") or Path("~", ".keras").expanduser())
    found: dict[str, Any] = {}
    if (home / "keras.json").exists():
        try:
            found = json.loads((home / "keras.json").read_text())
        except (OSError, ValueError):
            return None, None
    return found.get("image_data_format", "channels_last"), found.get("floatx", "float32")

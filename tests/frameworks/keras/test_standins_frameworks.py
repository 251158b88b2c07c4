"""Workers of a script that imports TensorFlow or torch at its top run without either.

The script is a process of its own: its dataset is defined in its main module, as users have it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

import travel

_TORCH = """
import torch, torch.utils.data
from torch import from_numpy
from torch.utils.data import Dataset
from torch.nn.functional import pad

class Numbers(Dataset[int]):
    kind = torch.nn.Linear
    def __init__(self, x): self.x = x
    def __len__(self): return len(self.x)
    def tensor(self, i: int) -> torch.Tensor: return torch.tensor(self.x[i]), from_numpy(self.x), pad
    def __getitem__(self, i):
        assert isinstance(self, Dataset) and isinstance(self, torch.utils.data.Dataset)
        assert not isinstance(i, self.kind)
        return self.x[i]

class Tensors(Numbers):
    def __getitem__(self, i): return self.tensor(i)[0] + from_numpy(self.x)[i] + pad(torch.ones(1), (1, 0))[0]

x = np.arange(5000.0)
answers["base"] = ask_loaded(Numbers(x), lambda dataset: float(dataset[3]))
answers["use"] = ask_loaded(Tensors(x), lambda dataset: float(dataset[3]))
"""
_KERAS = """
import tensorflow as tf
import keras
from tensorflow import keras as tf_keras_module
from keras.utils import PyDataset, load_img, to_categorical

Rescaling = keras.layers.Rescaling

class Pictures(keras.utils.PyDataset):
    layer = keras.layers.Rescaling
    def __init__(self, x, **settings):
        super().__init__(**settings)
        self.x, self.load = x, load_img
    def __len__(self): return len(self.x)
    def decode(self, text: tf.Tensor) -> keras.Model:
        return tf.io.decode_jpeg(text), Rescaling(2.0), self.load
    def __getitem__(self, i):
        assert isinstance(self, PyDataset) and isinstance(self, keras.utils.PyDataset)
        assert isinstance(self, tf.keras.utils.Sequence) and isinstance(self, tf_keras_module.utils.Sequence)
        assert not isinstance(i, Rescaling)
        return self.x[i], self.workers, self.num_batches

class Named(tf.keras.utils.Sequence):
    def __getitem__(self, i): return Rescaling(3.0)(np.ones(1)).numpy()

x = np.arange(5000.0)
first, second = Pictures(x, workers=3), Pictures(x, workers=2)
answers["base"] = ask_loaded(
    (first, second), lambda pair: [tuple(map(float, each[3])) for each in pair]
)
answers["use"] = ask_loaded(Named(), lambda dataset: dataset[1].tolist())
"""
_SCRIPT = """
import json, sys
sys.path[:0] = {path!r}
import numpy as np
from travel import ask_loaded
answers = {{}}
{body}
print("answers", json.dumps(answers))
"""


@functools.cache
def answers(body: str) -> dict[str, Any]:
    """What a script prints; run once for several tests."""
    run = subprocess.run(
        [sys.executable, "-"],
        input=_SCRIPT.format(path=sys.path, body=body),
        capture_output=True,
        text=True,
        timeout=travel.TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.rpartition("answers")[2])
    return found


# Each imports a framework in an interpreter of its own, and in its workers.
pytestmark = pytest.mark.long
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_keras = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)


@needs_torch
def test_a_torch_dataset_of_a_script_works_without_torch() -> None:
    """Neither the base of a torch dataset nor what its methods might use imports torch."""
    assert answers(_TORCH)["base"] == [3.0, [], []]


@needs_torch
def test_a_torch_dataset_that_uses_torch_has_it() -> None:
    """What a method uses of torch is there, with one warning that names the cost."""
    warning = travel.warning_of("<stdin> line N", "torch")  # which has no text of its lines
    assert answers(_TORCH)["use"] == [6.0, ["torch"], [warning]]


@needs_keras
def test_a_keras_dataset_of_a_script_works_without_keras() -> None:
    """A script that imports TensorFlow at its top has workers that do not."""
    assert answers(_KERAS)["base"] == [[[3.0, 3.0, 5000.0], [3.0, 2.0, 5000.0]], [], []]


@needs_keras
def test_a_keras_dataset_that_uses_keras_has_it() -> None:
    """What a method uses of Keras is there, with one warning that names the cost."""
    answer, loaded, warned = answers(_KERAS)["use"]
    assert answer == [3.0]
    assert [name for name in loaded if name not in ("jax", "jaxlib")] == [
        "tensorflow",
        "keras",
    ]  # which bring JAX in
    assert warned == [travel.warning_of("<stdin> line N", ", ".join(loaded))]

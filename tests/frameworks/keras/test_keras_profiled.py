"""`ringfeed profile` on a Keras PyDataset as it is, by a call and in a training script."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.tools.loaders import profile_loader
from ringfeed.tools.reading import Limits
from ringfeed.tools.script import Catcher

keras = pytest.importorskip("keras")

pytestmark = pytest.mark.usefixtures("nothing_left")

SOON = {"samples": 8, "seconds": 30.0}


class Noise(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """Batches of noise, and how often they were asked for."""

    def __init__(self, length: int = 8, **settings: Any) -> None:
        super().__init__(**settings)
        self.length = length
        self.asked = 0
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        drawn = np.float32(random.random())  # noqa: S311
        return self.rng.random((4, 3), np.float32) + drawn, np.zeros((4, 1), np.float32)


class Uneven(Noise):
    """Batches that have no one form."""

    def __getitem__(self, index: int) -> Any:
        return np.zeros((4, 3 + index), np.float32), np.zeros((4, 1), np.float32)


def test_a_dataset_as_it_is() -> None:
    """Keras' way, install() and feed() are read; random numbers and the dataset are as before."""
    dataset = Noise()
    states = random.getstate(), dataset.rng.bit_generator.state
    found = profile_loader(dataset, **SOON)
    count = len(os.sched_getaffinity(0))
    assert [reading.label for reading in found.readings] == [
        "keras",
        "install()",
        f"feed(workers={count})",
    ]
    assert [(reading.batches, reading.samples, reading.size) for reading in found.readings] == [
        (8, 32, 64)
    ] * 3
    assert found.readings[2].workers >= 1
    assert found.name == "Noise of Keras (workers=1, use_multiprocessing=False)"
    assert found.readings[1].notes[0].startswith("runs over ringfeed: 1 worker thread, ")
    assert found.stages is not None
    assert (random.getstate(), dataset.rng.bit_generator.state) == states
    assert dataset.asked == 0


def test_a_dataset_that_is_left_to_keras() -> None:
    """The reason is told."""
    found = profile_loader(Uneven(), **SOON)
    assert found.readings[1].notes[0].startswith("is left to Keras: batch 1 is ")


SCRIPT = """
import keras, numpy as np

class Noise(keras.utils.PyDataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
print("before", flush=True)
model.fit(Noise(), epochs=1, verbose=0)
print("after")
"""


@pytest.mark.long
def test_a_fit_of_a_script(tmp_path: Path) -> None:
    """The dataset is profiled in fit, and the script ends there."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    words = ["-m", "ringfeed", "profile", "--seconds", "30", "--samples", "4", "--script", path]
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(Path(ringfeed.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "before"
    assert "after" not in lines
    assert lines[2] == "train.py, line 13: Noise of Keras (workers=1, use_multiprocessing=False)"
    assert lines[3].startswith("32 samples in 8 batches, 64 bytes each, ")


@pytest.mark.parametrize("installed", [False, True])
def test_a_fit_that_ends(
    installed: bool,  # noqa: FBT001 - a case
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SystemExit leaves fit, also where ringfeed is installed already, and Keras is as it was."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    catcher = Catcher(Limits(4, 30.0))
    with ringfeed.keras.install() if installed else nullcontext():
        with catcher, pytest.raises(SystemExit):
            model.fit(Noise(), epochs=1, verbose=0)
        assert (catcher.has_profiled, catcher.error) == (True, None)
        model.fit(Noise(), epochs=1, verbose=0)
    assert "Noise of Keras" in capsys.readouterr().out

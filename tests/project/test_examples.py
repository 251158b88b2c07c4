"""Every example runs from its first line to its last, as a program of its own, and learns what it is there to learn."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "torch_train": ("torch", "sklearn"),
    "mixup_train": ("torch", "sklearn"),
    "jax_train": ("jax", "sklearn"),
    "tensorflow_loop": ("tensorflow", "sklearn"),
    "replay_buffer": ("torch",),
    "torch_folder": ("torch", "sklearn", "PIL"),
    "padded_text": ("torch",),
    "hdf5_train": ("tensorflow", "sklearn", "h5py"),
    "tar_shards": ("torch", "sklearn"),
    "torch_ddp": ("torch", "sklearn"),
    "pydataset_before": ("tensorflow", "sklearn"),
}
LEARNT = {
    "torch_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "mixup_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "jax_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "tensorflow_loop": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "torch_folder": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "padded_text": r"accuracy on 400 sentences never seen: (\d+\.\d)%",
    "hdf5_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "tar_shards": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "torch_ddp": r"same weights: True\naccuracy on 397 digits never seen: (\d+\.\d)%",
    "replay_buffer": (
        r"trained on 480 batches of 1,024 moves, and predicted \d{1,2},\d{3} moves one by one\n"
        r"caught after training: (\d+)%"
    ),
}
MEMORY = re.compile(r"shared memory: (\d+\.\d) MB( for a memory of 4,096 moves)?\n\Z")


def needed(name: str) -> list[pytest.MarkDecorator]:
    """Return a skip for each package that an example needs and is not installed."""
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    return [pytest.mark.skip(reason=f"{package} is not installed") for package in missing]


def printed_by(name: str) -> str:
    """Run an example, which must end without an error or a warning; returns what it prints."""
    script = EXAMPLES / f"{name}.py"
    if "tensorflow" in NEEDS.get(name, NEEDS["pydataset_before"]):
        ended = warm.run([script])
    else:
        ended = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=240, check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert "RuntimeWarning" not in ended.stderr
    return ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(name, marks=needed(name)) for name in LEARNT])
def test_an_example_learns(name: str) -> None:
    """It ends far above chance, with few megabytes."""
    printed = printed_by(name)
    learnt = re.search(LEARNT[name], printed)
    assert learnt is not None, printed
    assert float(learnt[1]) > 70
    memory = MEMORY.search(printed)
    assert memory is not None, printed
    assert float(memory[1]) < 5


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param("pydataset_before", marks=needed("pydataset_before"))]
)
def test_a_pydataset_before_and_after(name: str) -> None:
    """Two lines are new, and no digit of the losses is another."""
    before, after = (
        json.loads(printed_by(each).splitlines()[-1]) for each in (name, "pydataset_after")
    )
    assert len(before) == 4
    assert before == after
    assert before[-1] < before[0]
    texts = [
        (EXAMPLES / f"{each}.py").read_text().split('"""', 2)[2].splitlines()
        for each in (name, "pydataset_after")
    ]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-" and line[2:].strip()]
    assert changes == [
        "+ import ringfeed.keras",
        (
            "+ ringfeed.keras.install()  # from here on, `fit` reads every PyDataset over shared "
            "memory"
        ),
    ]

"""Every example runs from its first line to its last, as a program of its own, and learns what it is there to learn."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "torch_train": ("torch", "sklearn"),
    "mixup_train": ("torch", "sklearn"),
    "jax_train": ("jax", "sklearn"),
    "tensorflow_loop": ("tensorflow", "sklearn"),
    "replay_buffer": ("torch",),
}
LEARNT = {
    "torch_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "mixup_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "jax_train": r"accuracy on 397 digits never seen: (\d+\.\d)%",
    "tensorflow_loop": r"accuracy on 397 digits never seen: (\d+\.\d)%",
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


@pytest.mark.parametrize("name", [pytest.param(name, marks=needed(name)) for name in NEEDS])
def test_an_example_learns(name: str) -> None:
    """It ends without an error or a warning, far above chance, with few megabytes."""
    script = EXAMPLES / f"{name}.py"
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "RuntimeWarning" not in ended.stderr
    learnt = re.search(LEARNT[name], ended.stdout)
    assert learnt is not None, ended.stdout
    assert float(learnt[1]) > 70
    memory = MEMORY.search(ended.stdout)
    assert memory is not None, ended.stdout
    assert float(memory[1]) < 5

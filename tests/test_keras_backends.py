"""A loader as Keras' data on each backend, in processes of their own: over the slots, and the same as arrays."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")  # it stands for Keras' default backend, and for an environment with frameworks
pytest.importorskip("keras", minversion="3.7")

from keras_checks import CHECKS, PATIENCE_S

CHECKS_SCRIPT = Path(__file__).parent / "keras_checks.py"
ALONE = "slots_and_steps", "same_training_as_arrays"
PARTS = {name: (name,) if name in ALONE else tuple(other for other in CHECKS if other not in ALONE) for name in CHECKS}
"""The checks that share a process with one: starting a framework costs more than most of them."""
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is most of JAX's time


@functools.cache
def outcome(backend: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return what became of each check: nothing, or a traceback."""
    ended = subprocess.run(
        [sys.executable, CHECKS_SCRIPT, *names],
        check=False,
        capture_output=True,
        env=os.environ | QUICK | {"KERAS_BACKEND": backend},
        text=True,
        timeout=PATIENCE_S + 3,
    )
    if ended.returncode:
        return dict.fromkeys(names, f"exit status {ended.returncode}\n{ended.stderr}")
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_backend(backend: str, check: str) -> None:
    """Each check of `keras_checks` holds on each backend that is installed; its docstring says what it is."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    failed = outcome(backend, PARTS[check])[check]
    assert not failed, failed

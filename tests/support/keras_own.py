"""A pytest plugin for Keras' own tests: all of them with `ringfeed.keras.install` in force.

``python -m pytest -p keras_own FILE ...``. Keras' file for PyDatasets imports every backend at its
top. One that is not installed is stood in for by an empty module, and the cases that make its
tensors are left out.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING

import keras  # noqa: F401 - before the stand-ins: it looks for JAX

import ringfeed.keras
from ringfeed.keras import fallback as keras_fallback

if TYPE_CHECKING:
    import pytest

MISSING = [
    name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name) is None
]
SAID: Counter[str] = Counter()
"""How often a dataset ran over the ring, and how often it was left to Keras."""

for missing in MISSING:
    sys.modules[missing] = ModuleType(missing)
ringfeed.keras.install()
_say = keras_fallback._say


def counted(dataset: object, what: str, more: str = "") -> None:
    """Count what is said of a dataset."""
    SAID["over ringfeed" if what.startswith("runs over ringfeed") else "left to Keras"] += 1
    _say(dataset, what, more)


keras_fallback._say = counted


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases whose tensors cannot be made."""
    short = {"tensorflow": "tf"}
    names = tuple(f"single_{short.get(name, name)}_" for name in MISSING)
    left_out = [case for case in items if any(name in case.name for name in names)]
    items[:] = [case for case in items if case not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish() -> None:
    """Say how many datasets ran how."""
    how = f"datasets over ringfeed: {SAID['over ringfeed']}, left to Keras: {SAID['left to Keras']}"
    print(f"\n{how}", flush=True)  # noqa: T201 - for the test that runs this

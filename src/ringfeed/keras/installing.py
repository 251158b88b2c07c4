"""Every PyDataset over a ring: `install` puts `RingAdapter` in the place of Keras' adapter."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import Any

import keras
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import py_dataset_adapter

from ringfeed._checks import check_count
from ringfeed._units import parse_memory
from ringfeed.frameworks.keras import check_takes_adapters

NAME = "PyDatasetAdapter"
PLACES = (data_adapters, py_dataset_adapter)
"""The modules in which Keras has its adapter by name."""

_lock = threading.Lock()
_wanted: dict[ExitStack, dict[str, Any]] = {}
"""What `install` has returned, and nothing has taken back, with the memory that each asked for."""


def install(*, slots: int | None = None, memory: int | str | None = None) -> ExitStack:
    """Run every ``PyDataset`` in ``fit``, ``evaluate`` and ``predict`` over ringfeed.

    It applies at once, until `uninstall`, or to the end of a ``with`` statement: ``with install():
    ...``. These may be nested; the last one to end ends it. Running calls of Keras are not changed.

    slots, memory: for each dataset, the number of batches that exist at once; or the bytes that its
        shared memory may take ("512MB"), from which the number of slots follows. Two slots are the
        least. None: workers + 2 slots. Of nested statements the innermost decides.

    A dataset gets the workers that it requests: threads, or processes with
    ``use_multiprocessing=True``, each of which gets its own copy. Batches come in Keras' order,
    with the same seed of ``random``; the hooks run when Keras runs them. For each dataset one line
    of the logger ``ringfeed.keras`` says how it runs, or why Keras reads it: batches that are no
    plain arrays, or that differ in shape, a dataset that cannot be sent to processes, or two slots
    that exceed ``memory``. During an epoch, Keras continues from the batch that does not fit or
    whose workers fail.

    Sequences of `tf_keras` (Keras 2) as well, if it has been imported before this call.

    ImportError if this version of Keras does not fit; ValueError or TypeError for an invalid number
    of slots, an invalid amount of memory, or both.
    """
    check_count("slots", slots, 2)
    if memory is not None:
        parse_memory(memory)
    if slots is not None and memory is not None:
        raise ValueError("give slots= or memory=, not both: each decides the other")
    check_takes_adapters("install()")
    from ringfeed.keras.fallback import OWN, RingAdapter  # noqa: PLC0415 - older ones cannot

    with _lock:
        for place in PLACES:
            if getattr(place, NAME, None) not in (OWN, RingAdapter):
                raise ImportError(
                    f"install() finds no {NAME} of Keras' own in {place.__name__} of Keras "
                    f"{keras.__version__}; give each dataset to ringfeed.keras.feed() instead"
                )
        installed = ExitStack()
        installed.callback(_take_back, installed)
        _wanted[installed] = {"slots": slots, "memory": memory}
        _settle()
        return installed


def _take_back(installed: ExitStack) -> None:
    """Take one installation back; others stay in force."""
    with _lock:
        _wanted.pop(installed, None)
        _settle()


def uninstall() -> None:
    """Undo every `install`, also those of ``with`` statements that have not ended."""
    with _lock:
        _wanted.clear()
        _settle()


def _settle() -> None:
    """Have Keras' names for its own ways of reading mean what is wanted."""
    from ringfeed.keras import fallback  # noqa: PLC0415 - see install

    fallback.installed_memory = next(reversed(_wanted.values()), {})
    swaps: list[tuple[Any, str, object, object]] = [
        (place, NAME, fallback.OWN, fallback.RingAdapter) for place in PLACES
    ]
    if "tf_keras" in sys.modules:
        from ringfeed.keras import legacy  # noqa: PLC0415 - imports tf_keras

        swaps.append((legacy.PLACE, legacy.NAME, legacy.OWN, legacy.over_ring))
    for place, name, own, ours in swaps:
        before, after = (own, ours) if _wanted else (ours, own)
        if getattr(place, name, None) is before:
            setattr(place, name, after)

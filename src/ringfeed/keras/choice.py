"""What `install` makes of a dataset, of Keras 3 or of Keras 2; no framework is imported here."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.errors import SpecError
from ringfeed.keras.pydataset import DatasetLoader, form_of
from ringfeed.ring._ring import MAX_WORKERS
from ringfeed.transport.opened import as_before

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = logging.getLogger("ringfeed.keras")
DRAWS = (np.random.Generator, np.random.RandomState, random.Random)
"""What a dataset may have of its own to draw from."""
PLAIN = (np.ndarray, np.generic, int, float)


def look_unseen(dataset: Any) -> list[Any]:
    """Batch 0, without the random numbers that it takes, or what it opens: the dataset would not do so in Keras."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what datasets draw from
    own = [(draws, _state_of(draws)) for draws in getattr(dataset, "__dict__", {}).values() if isinstance(draws, DRAWS)]
    try:
        with as_before(dataset):
            return [dataset[0]]
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        for draws, state in own:
            _set_state(draws, state)


def _state_of(draws: Any) -> Any:
    if isinstance(draws, np.random.Generator):
        return draws.bit_generator.state
    return draws.getstate() if isinstance(draws, random.Random) else draws.get_state()


def _set_state(draws: Any, state: Any) -> None:
    if isinstance(draws, np.random.Generator):
        draws.bit_generator.state = state
    elif isinstance(draws, random.Random):
        draws.setstate(state)
    else:
        draws.set_state(state)


def check_leaves(leaves: Iterable[Any]) -> None:
    """Refuse tensors, which may live anywhere, and other objects that NumPy would make arrays of."""
    for leaf in leaves:
        if not isinstance(leaf, PLAIN):
            raise SpecError(f"batches hold a {type(leaf).__module__}.{type(leaf).__qualname__}, and not arrays alone")


def ring_of(  # noqa: PLR0913 - what Keras was told
    dataset: Any, seen: list[Any], *, shuffle: bool, workers: int, processes: bool, copy: bool = False
) -> DatasetLoader:
    """A loader for batches such as were ``seen``, as patient as Keras, in the order that Keras draws."""
    spec, rows = form_of(seen, dataset)
    return DatasetLoader(
        dataset,
        draw=_shuffled if shuffle else None,
        compares=True,
        workers=min(workers, MAX_WORKERS),
        backend="process" if processes else "thread",
        spec=spec,
        max_batch_size=rows,
        timeout_s=None,
        copy=copy,
    )


def _shuffled(count: int) -> list[int]:
    numbers = list(range(count))
    random.shuffle(numbers)
    return numbers


# ---- what is said ----

_said: dict[tuple[int, str], weakref.ref[Any]] = {}
_saying = threading.Lock()


def say_fed(loader: DatasetLoader) -> None:
    """Say which workers feed the loader's dataset, and in how much memory."""
    plan, kind = loader.plan, loader.backend
    plural = "" if plan.workers == 1 else "es" if kind == "process" else "s"
    workers = f"{plan.workers} worker {kind}{plural}" if plan.workers else "no workers"
    memory = f", {show_bytes(plan.total)} of shared memory"  # to the byte it differs from pass to pass
    _say(loader.dataset, f"runs over ringfeed: {workers}, {plan.slots} slots", memory)


def say_left(dataset: Any, why: Exception) -> None:
    """Say why a dataset is left to Keras, in one line."""
    _say(dataset, f"is left to Keras: {str(why).partition(chr(10))[0] or type(why).__name__}")


def _say(dataset: Any, what: str, more: str = "") -> None:
    """Log a line, once for each dataset and what is said of it; ``more`` is its end, which may differ."""
    key = id(dataset), what
    with _saying:
        known = _said.get(key)
        if known is not None and known() is dataset:
            return
        _said[key] = weakref.ref(dataset, lambda _: _said.pop(key, None))
    LOG.warning("%s %s%s", type(dataset).__name__, what, more)

"""A dataset with a leaf of every form, and what its batches hold, in words that do not depend on the framework."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed import Array, Bytes, Text

if TYPE_CHECKING:
    from collections.abc import Iterable

LENGTHS = [3, 0, 5, 1, 7, 2, 4, 6, 1, 2, 0]
MOST = 8
ROWS = 4

SPEC: dict[str, Array] = {
    "boxes": Array((None, 2), "float32", max_shape=(MOST, 2), form="ragged"),
    "wide": Array((None,), "int64", max_shape=(MOST,), form="ragged", total=MOST * ROWS),
    "tokens": Array((None,), "int32", max_shape=(MOST,), form="pad", padding_value=-1),
    "measured": Array((None,), "int32", max_shape=(MOST,), form="pad", lengths=True),
    "masked": Array((None, None), "uint8", max_shape=(MOST, 3), form="pad", mask=True),
    "number": Array((), "float32"),
    "picture": Bytes(2 * MOST),
    "title": Text(8 * MOST),
}
STRINGS = ("picture", "title")


class Formed:
    """Samples that differ in length, each leaf another way; of these names."""

    def __init__(self, names: Iterable[str] = SPEC) -> None:
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = LENGTHS[index]
        made = {
            "boxes": np.arange(2 * length, dtype=np.float32).reshape(length, 2) + index,
            "wide": np.arange(length) * 2**20 + index,
            "tokens": np.arange(length, dtype=np.int32) + 10 * index,
            "measured": np.arange(length, dtype=np.int32) - index,
            "masked": np.full((length, 1 + index % 3), 7, np.uint8),
            "number": np.float32(index),
            "picture": bytes([0, index]) * length,
            "title": "é\0" * length,
        }
        return {name: made[name] for name in self.names}


def make(names: Iterable[str] = SPEC, **settings: Any) -> ringfeed.Loader:
    """Return a loader of leaves of these names, filled by two threads unless told otherwise."""
    spec = {name: SPEC[name] for name in names}
    given = {
        "batch_size": ROWS,
        "workers": 2,
        "backend": "thread",
        "slots": 3,
        "timeout_s": 120,
        **settings,
    }
    return ringfeed.Loader(Formed(names), spec=spec, **given)


def without(*names: str) -> list[str]:
    """Return all other names."""
    return [name for name in SPEC if name not in names]


def told(values: Any, row_splits: Any) -> Any:
    """Say what the samples of ragged values are."""
    values, row_splits = np.asarray(values), np.asarray(row_splits)
    return str(values.dtype), [part.tolist() for part in np.split(values, row_splits[1:-1])]


def plain(array: Any) -> Any:
    """Say what an array holds."""
    array = np.asarray(array)
    return str(array.dtype), array.tolist()


def in_numpy(batch: dict[str, Any]) -> dict[str, Any]:
    """Say what a batch of the loader itself holds."""
    found: dict[str, Any] = {}
    for name, leaf in batch.items():
        if isinstance(leaf, ringfeed.Ragged):
            is_plain = leaf.form == "ragged"
            samples = (
                [sample if isinstance(sample, str) else bytes(sample) for sample in leaf]
                if not is_plain
                else []
            )
            found[name] = told(leaf.values, leaf.row_splits) if is_plain else samples
        else:
            found[name] = [plain(part) for part in leaf] if isinstance(leaf, tuple) else plain(leaf)
    return found


def digest(batches: Iterable[dict[str, Any]]) -> str:
    """Return one hash of all that batches hold."""
    return hashlib.sha256(repr(list(batches)).encode()).hexdigest()


def expected(names: Iterable[str] = SPEC, **settings: Any) -> list[dict[str, Any]]:
    """Say what an epoch of the loader itself holds, without workers."""
    with make(names, workers=0, **settings) as loader:
        return [in_numpy(batch) for batch in loader]

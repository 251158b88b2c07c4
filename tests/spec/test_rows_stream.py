"""Rows that go past the caches, and from how many bytes of slots on they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.datasets import reader
from ringfeed.datasets.reader import beyond_caches

if TYPE_CHECKING:
    from pathlib import Path

WAYS: list[dict[str, Any]] = [
    {"workers": 2, "backend": "thread"},
    {"workers": 2, "backend": "fork"},
]
# One leaf is large enough to be copied without the GIL, the other is less than a cache line.
LARGE = np.random.default_rng(0).integers(0, 256, (23, 101, 331), np.uint8)
SMALL = np.arange(23 * 3, dtype=np.int16).reshape(23, 3)


class Samples:
    """Rows of both, one at a time; every other one is strided, so that NumPy copies it."""

    def __len__(self) -> int:
        return len(LARGE)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return (np.asfortranarray(LARGE[index]) if index % 2 else LARGE[index]), SMALL[index]


class Bulk(Samples):
    """The same, many at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, Any]]:
        return [self[index] for index in indices]


class Whole:
    """The same, as whole batches."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return LARGE[4 * index : 4 * index + 4], SMALL[4 * index : 4 * index + 4]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "dataset", [Samples(), Bulk(), Whole(), (LARGE, SMALL)], ids=lambda it: type(it).__name__
)
def test_what_is_streamed_arrives_whole(
    dataset: Any, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of dataset and worker gives the same bytes where slots go past the caches."""
    monkeypatch.setattr(reader, "beyond_caches", lambda: 0)
    size = None if isinstance(dataset, Whole) else 4
    with ringfeed.Loader(dataset, batch_size=size, **way) as loader:
        for _ in range(3):  # each slot more than once
            batches = [(large.copy(), small.copy()) for large, small in loader]
            assert np.array_equal(np.concatenate([large for large, _ in batches]), LARGE)
            assert np.array_equal(np.concatenate([small for _, small in batches]), SMALL)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32768K\n", 32 << 20),
        ("512K\n", 512 << 10),
        ("", 32 << 20),
        ("32M\n", 32 << 20),
        ("many\n", 32 << 20),
    ],
)
def test_how_large_the_last_cache_is(text: str, size: int, tmp_path: Path) -> None:
    """Three times the last-level cache; of a usual one where the kernel's words make no sense."""
    place = tmp_path / "size"
    place.write_text(text)
    assert beyond_caches(str(place)) == 3 * size


def test_no_word_of_a_cache(tmp_path: Path) -> None:
    """A machine that shows no caches, as some containers, is taken for one with a usual one."""
    assert beyond_caches(str(tmp_path / "none")) == 3 * (32 << 20)


def test_this_machine_has_a_limit() -> None:
    """Whatever this machine says, the limit is some bytes."""
    assert beyond_caches() > 0

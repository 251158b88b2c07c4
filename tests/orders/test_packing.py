"""Which samples make which row, as the docstring of `orders.packing` says it."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.orders.packing import FirstFit, Packing, Wrapped, first_fit
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import derive, words_at

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

LENGTHS = st.lists(st.integers(0, 5) | st.integers(0, 40), min_size=1, max_size=70).filter(any)
SEEDS = st.none() | st.integers(0, 2**70)
WINDOWS = st.none() | st.integers(1, 80)

Part = tuple[int, int, int]


def rows_of(packing: Packing, seed: int | None = None, epoch: int = 0) -> list[list[Part]]:
    """Return what all rows are made of: samples, with begin and end."""
    found = (packing.pieces(row, seed, epoch) for row in range(packing.rows))
    return [[*zip(*(part.tolist() for part in pieces), strict=True)] for pieces in found]


# ---- in plain Python ----


def fitted(lengths: list[int], room: int) -> list[int]:
    """Return the first bin with room for each, one after another."""
    left: list[int] = []
    found = []
    for length in lengths:
        bin_ = next((number for number, free in enumerate(left) if free >= length), len(left))
        left[bin_:] = (
            [room - length] if bin_ == len(left) else [left[bin_] - length, *left[bin_ + 1 :]]
        )
        found.append(bin_)
    return found


def packed(
    lengths: list[int], room: int, window: int, seed: int | None, epoch: int
) -> Iterator[list[Part]]:
    """Give the rows of "ffd"."""
    samples = sorted(
        (sample for sample, length in enumerate(lengths) if length), key=lambda s: (-lengths[s], s)
    )
    windows = -(-len(samples) // window)
    classes = [samples[first : first + windows] for first in range(0, len(samples), windows)]
    fit = fitted([lengths[members[0]] for members in classes], room)
    shifts = [0] * len(classes)
    if seed is not None:
        key = np.frombuffer(derive("pack", (seed, epoch), 16), "<u8").astype(np.uint64)
        shifts = words_at(key, 0, len(classes)).tolist()
    alone = []
    for number in range(windows):
        for row in range(max(fit) + 1):
            those = [one for one, place in enumerate(fit) if place == row]
            rest = [one for one in those if number < len(classes[one])]
            found = [
                sorted(classes[one])[(number + shifts[one]) % len(classes[one])] for one in rest
            ]
            parts = [(sample, 0, lengths[sample]) for sample in found]
            if those == [len(classes) - 1] and len(classes[-1]) < windows:
                alone += [parts] * bool(parts)
            else:
                yield parts
    yield from alone


def wrapped(
    lengths: list[int], room: int, window: int, seed: int | None, epoch: int
) -> Iterator[list[Part]]:
    """Give the rows of "wrap"."""
    samples = [sample for sample, length in enumerate(lengths) if length]
    if seed is not None:
        windows = -(-len(samples) // window)
        parts = [samples[number::windows] for number in range(windows)]
        seeds = [
            int.from_bytes(derive("pack", (seed, number), 16), "little")
            for number in range(windows)
        ]
        turns = permute(np.arange(windows), windows, seed, epoch).tolist()
        mixed = [
            permute(np.arange(len(parts[turn])), len(parts[turn]), seeds[turn], epoch).tolist()
            for turn in turns
        ]
        samples = [
            parts[turn][place]
            for turn, places in zip(turns, mixed, strict=True)
            for place in places
        ]
    elements = [(sample, element) for sample in samples for element in range(lengths[sample])]
    for first in range(0, len(elements), room):
        row = elements[first : first + room]
        counts = Counter(sample for sample, _ in row)
        begins = dict(reversed(row))
        yield [(sample, begins[sample], begins[sample] + count) for sample, count in counts.items()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 30))
def test_first_fit_of_many_at_once(lengths: list[int], more: int) -> None:
    """Equal lengths together go where they go one by one."""
    lengths = sorted(lengths, reverse=True)
    room = lengths[0] + more
    assert first_fit(np.array(lengths), room).tolist() == fitted(lengths, room)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(0, 40), WINDOWS, SEEDS, st.integers(0, 2**62))
def test_rows_of_whole_samples(
    lengths: list[int], more: int, window: int | None, seed: int | None, epoch: int
) -> None:
    """Those that the docstring says; each sample once, in a row that has room for it."""
    room = max(lengths) + more
    packing = FirstFit(np.array(lengths), room, window)
    found = rows_of(packing, seed, epoch)
    assert found == [*packed(lengths, room, window or max(2048, len(lengths)), seed, epoch)]
    assert (
        sorted(sample for row in found for sample, _, _ in row) == np.flatnonzero(lengths).tolist()
    )
    assert all(0 < sum(end for _, _, end in row) <= room for row in found)
    assert max(map(len, found)) <= packing.most


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 50), WINDOWS, SEEDS, st.integers(0, 2**62))
def test_rows_of_samples_side_by_side(
    lengths: list[int], room: int, window: int | None, seed: int | None, epoch: int
) -> None:
    """Those that the docstring says; each element once, and no row but the last has room left."""
    packing = Wrapped(np.array(lengths), room, window)
    found = rows_of(packing, seed, epoch)
    assert found == [*wrapped(lengths, room, window or len(lengths), seed, epoch)]
    elements = [
        (sample, element)
        for row in found
        for sample, begin, end in row
        for element in range(begin, end)
    ]
    assert sorted(elements) == [
        (sample, element) for sample, length in enumerate(lengths) for element in range(length)
    ]
    sizes = [sum(end - begin for _, begin, end in row) for row in found]
    assert sizes[:-1] == [room] * (len(sizes) - 1)
    assert max(map(len, found)) <= packing.most


# ---- what comes of it ----


def texts(mean: float, sigma: float, count: int, most: int) -> Any:
    """Return lengths as texts have them, log-normal."""
    return np.clip(np.random.default_rng(0).lognormal(mean, sigma, count).astype(np.int64), 1, most)


@pytest.mark.parametrize(
    ("mean", "sigma", "most"), [(5.5, 1.0, 2048), (4.5, 0.8, 2048), (6.5, 1.5, 2048), (6, 1, 32768)]
)
@pytest.mark.parametrize("count", [3000, 50_000])
def test_padding_is_small(mean: float, sigma: float, most: int, count: int) -> None:
    """Below 5 % with the default window for lengths of texts, and mostly below 1 %."""
    lengths = texts(mean, sigma, count, most)
    elements = FirstFit(lengths, most, None).rows * most
    assert lengths.sum() > (0.99 if count > 3000 else 0.95) * elements
    assert Wrapped(lengths, most, None).rows == -(-lengths.sum() // most)


@pytest.mark.parametrize("strategy", [FirstFit, Wrapped])
def test_each_epoch_has_other_rows(strategy: Any) -> None:
    """Of three samples or more, hardly any comes again; with another seed as little."""
    packing = strategy(texts(3, 1, 600, 128), 128, 60)
    runs = [rows_of(packing, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    found = [{tuple(row) for row in rows if len(row) > 2} for rows in runs]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len(found[one] & found[other]) < 0.1 * packing.rows


def test_samples_meet_all_others() -> None:
    """Over some epochs a sample shares rows with many different ones."""
    packing = FirstFit(texts(3, 1, 600, 128), 128, 60)
    met: set[int] = set()
    for epoch in range(20):
        row = next(
            row for row in rows_of(packing, 0, epoch) if any(sample == 5 for sample, _, _ in row)
        )
        met |= {sample for sample, _, _ in row}
    assert len(met) > 25


def test_what_is_kept_stays_small_and_is_not_sent() -> None:
    """Some windows at a time, whatever is asked for; a copy makes the same rows without them."""
    lengths = texts(3, 1, 100_000, 128)
    for packing in (FirstFit(lengths, 128, 500), Wrapped(lengths, 128, 500)):
        tracemalloc.start()
        try:
            for row in range(0, packing.rows, 97):
                packing.pieces(row, 3, row % 7)
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept < 200_000  # all windows would be 1.6 MB
        copy = pickle.loads(pickle.dumps(packing))
        assert len(pickle.dumps(packing)) < 16.2 * lengths.size + 50_000
        for row in (0, packing.rows - 1):
            assert [*chain(*copy.pieces(row, 3, 1))] == [*chain(*packing.pieces(row, 3, 1))]

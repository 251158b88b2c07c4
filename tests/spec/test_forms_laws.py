"""Laws of leaves with a form, by samples of hypothesis: what goes in comes out, nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from datasets import Given
from ringfeed import Array, Bytes, Padded, Text
from ringfeed.errors import SpecError

pytestmark = pytest.mark.once

MOST = 5
DTYPES = [
    "uint8",
    ">i2",
    "float16",
    "float64",
    "complex64",
    "S3",
    "U2",
    "datetime64[s]",
    [("a", "u1"), ("b", "<f8")],
]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays have the same bytes, shape and dtype; NaN is as good as any."""
    return (one.shape, one.dtype) == (other.shape, other.dtype) and one.tobytes() == other.tobytes()


def read(samples: list[Any], spec: Any, batch_size: int, **more: Any) -> list[Any]:
    """Return the batches of samples, as copies."""
    with ringfeed.Loader(
        Given(samples), batch_size=batch_size, spec=spec, workers=0, slots=2, copy=True, **more
    ) as loader:
        return list(loader)


def turned(array: np.ndarray, way: int) -> np.ndarray:
    """Return an equal array that lies otherwise in memory."""
    if way == 1:
        return np.asfortranarray(array)
    if way == 2:
        return np.repeat(array, 2, axis=0)[::2]
    if way == 3:
        return array[::-1].copy()[::-1]
    array = array.copy()
    array.flags.writeable = way != 4
    return array


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[list[np.ndarray], np.dtype[Any], tuple[int | None, ...], tuple[int, ...]]:
    """Draw samples of a dtype, and their shape with None where they differ: along axis 0."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rest = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=2))
    shape = (None, *(None if varies and length else length for length, varies in rest))
    most = (MOST, *(length for length, _ in rest))
    samples = []
    for _ in range(draw(st.integers(1, 9))):
        own = tuple(
            draw(st.integers(0, longest)) if axis is None else axis
            for axis, longest in zip(shape, most, strict=True)
        )
        values = np.frombuffer(np.random.default_rng(len(samples)).bytes(64), np.uint8) % 90 + 1
        size = int(np.prod(own)) * dtype.itemsize
        raw = np.resize(values, size).astype(np.uint8).tobytes()
        array = (
            np.zeros(own, dtype) if dtype.kind == "U" else np.frombuffer(raw, dtype).reshape(own)
        )
        samples.append(turned(array, draw(st.integers(0, 4))))
    return samples, dtype, shape, most


@given(cases(), st.integers(1, 4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_ragged_gives_each_sample_back(
    case: Any,
    batch_size: int,
    has_total: bool,  # noqa: FBT001
) -> None:
    """Of any dtype and layout; with a total that the longest batch just needs, not with less."""
    samples, dtype, shape, most = case
    shape = (None, *most[1:])
    samples = [sample for sample in samples if sample.shape[1:] == most[1:]]
    if not samples:
        return
    needs = [
        sum(map(len, samples[first : first + batch_size]))
        for first in range(0, len(samples), batch_size)
    ]
    total = max(MOST, *needs) if has_total else None
    spec = Array(shape, dtype, max_shape=most, form="ragged", total=total)
    found = [sample for batch in read(samples, spec, batch_size) for sample in batch]
    assert all(map(same, found, samples))
    assert len(found) == len(samples)
    if has_total and max(needs) > MOST:
        with pytest.raises(SpecError, match=f"needs {max(needs)} elements"):
            read(
                samples,
                Array(shape, dtype, max_shape=most, form="ragged", total=max(needs) - 1),
                batch_size,
            )


@given(
    cases(),
    st.integers(1, 4),
    st.sampled_from([None, "lengths", "mask"]),
    st.sampled_from([None, 5, (2, 4, 7)]),
)
@settings(deadline=None, max_examples=60)
def test_padding_adds_nothing_but_padding(
    case: Any, batch_size: int, beside: str | None, pad_to: Any
) -> None:
    """A batch is as long as its longest sample or the next pad_to; padding is zeros."""
    samples, dtype, shape, most = case
    more: dict[str, Any] = {beside: True} if beside else {}
    spec = Array(shape, dtype, max_shape=most, form="pad", pad_to=pad_to, **more)
    given_rows = iter(samples)
    for batch in read(samples, spec, batch_size):
        values = batch if beside is None else batch.values
        rows = list(itertools.islice(given_rows, len(values)))
        longest = np.max([row.shape for row in rows], 0)
        for axis, length in enumerate(longest.tolist()):
            own = most[axis] if shape[axis] is not None else length
            if shape[axis] is None and pad_to is not None:
                own = next(one for one in np.atleast_1d(pad_to) if one >= length)
            assert values.shape[axis + 1] == own
        expected = np.zeros_like(values)
        mask = np.zeros(values.shape, bool)
        for number, row in enumerate(rows):
            part = (number, *map(slice, row.shape))
            expected[part], mask[part] = row, True
        assert same(values, expected)
        axes = [axis for axis, length in enumerate(shape) if length is None]
        if beside == "lengths":
            assert np.array_equal(
                batch.lengths.reshape(len(rows), -1), [[row.shape[a] for a in axes] for row in rows]
            )
        if beside == "mask" and 0 not in values.shape:
            others = tuple(axis + 1 for axis in range(len(shape)) if axis not in axes)
            assert np.array_equal(batch.mask, mask.any(axis=others) if others else mask)
    assert next(given_rows, None) is None


@given(
    st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 3)
)
@settings(deadline=None, max_examples=40)
def test_bytes_come_back(samples: list[bytes], batch_size: int, way: int) -> None:
    """As bytes, bytearrays, memoryviews or arrays."""
    doubled = lambda one: memoryview(one + one)[: len(one)]  # noqa: E731
    ways: list[Any] = [bytes, bytearray, doubled, lambda one: np.frombuffer(one, "u1")]
    batches = read([ways[way](sample) for sample in samples], Bytes(9), batch_size)
    assert [bytes(sample) for batch in batches for sample in batch] == samples


@given(st.lists(st.text(max_size=9), min_size=1, max_size=9), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_text_comes_back_or_is_refused(samples: list[str], batch_size: int) -> None:
    """Text without UTF-8, or too long by a byte, is left out and nothing else; NULs are text."""
    most = 12
    good = [text for text in samples if len(text.encode(errors="surrogatepass")) <= most]
    good = [
        text for text in good if not any(0xD800 <= ord(character) < 0xE000 for character in text)
    ]
    batches = read(samples, Text(most), batch_size, on_error="skip")
    assert [text for batch in batches for text in batch] == good


@given(cases(), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_batches_go_round(case: Any, batch_size: int) -> None:
    """A batch that batch_transform or a whole-batch dataset returns again is the same batch."""
    samples, dtype, shape, most = case
    spec = Array(shape, dtype, max_shape=most, form="pad", lengths=True)
    first = read(samples, spec, batch_size)

    def returned(batch: Padded) -> Padded:
        return Padded(batch.values.copy(), batch.lengths.copy())

    again = read(samples, spec, batch_size, batch_transform=returned)
    with ringfeed.Loader(
        Given(first), batch_size=None, max_batch_size=batch_size, spec=spec, workers=0
    ) as loader:
        whole = [Padded(batch.values.copy(), batch.lengths.copy()) for batch in loader]
    for others in (again, whole):
        assert len(others) == len(first)
        for one, other in zip(first, others, strict=True):
            assert same(one.values, other.values)
            assert same(one.lengths, other.lengths)

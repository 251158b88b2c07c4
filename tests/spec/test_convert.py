"""uint8 that becomes float32 on its way into the slot: NumPy's bits, by every way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from converting import IMAGENET, KINDS, Whole, array_of, converted, loader_of
from ringfeed import Array

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once

WAYS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    {"workers": 2, "backend": "fork"},
]
SPAWNED: dict[str, Any] = {"workers": 2, "backend": "spawn"}
IMAGES = np.random.default_rng(0).integers(
    0, 256, (21, 67, 61, 3), np.uint8
)  # large enough to be freed of the GIL


def epoch(loader: ringfeed.Loader) -> tuple[bytes, list[int]]:
    """Return the bytes and the numbers of all samples of an epoch."""
    with loader:
        batches = [(x.tobytes(), numbers.tolist()) for x, numbers in loader]
    return b"".join(x for x, _ in batches), list(
        itertools.chain.from_iterable(numbers for _, numbers in batches)
    )


# ---- bit for bit ----


@pytest.mark.parametrize(
    ("kind", "way"),
    [*itertools.product(KINDS, WAYS), *itertools.product(["samples", "arrays"], [SPAWNED])],
    ids=str,
)
def test_every_way_into_a_slot(kind: str, way: dict[str, Any]) -> None:
    """Samples, bulk, batches, iterables, arrays; processes, threads, neither: the same bytes."""
    way = {**way, "workers": min(way["workers"], 1)} if kind == "iterable" else way
    for steps in (IMAGENET, {**IMAGENET, "layout": "CHW"}):
        expected = np.ascontiguousarray(converted(IMAGES, steps)).tobytes()
        assert epoch(loader_of(kind, IMAGES, steps, **way)) == (expected, list(range(len(IMAGES))))


@pytest.mark.parametrize("taken", list(itertools.product([False, True], repeat=4)), ids=str)
def test_all_bytes_and_all_combinations_of_steps(taken: tuple[bool, ...]) -> None:
    """Each of 256 bytes, in 1 to 5 channels, flat and in planes, with each step or without."""
    samples, spec, expected = [], [], []
    for channels, layout in itertools.product(range(1, 6), [None, "CHW"]):
        each = np.linspace(0.1, 0.7, channels).tolist()
        given: dict[str, Any] = {"scale": 1 / 255, "offset": -0.3, "mean": each, "std": each[::-1]}
        steps = {
            name: value if take else None
            for take, (name, value) in zip(taken, given.items(), strict=True)
        }
        x = np.repeat(np.arange(256, dtype=np.uint8), channels).reshape(1, 16, 16, channels)
        samples.append(x)
        spec.append(array_of(x.shape[1:], {**steps, "layout": layout}))
        expected.append(converted(x, {**steps, "layout": layout}))
    strict = [not any(taken) and leaf.cast is None for leaf in spec]
    samples = [
        x.astype(np.float32) if plain else x for x, plain in zip(samples, strict, strict=True)
    ]
    with ringfeed.Loader(tuple(samples), batch_size=1, workers=0, spec=tuple(spec)) as loader:
        (batch,) = loader
        assert [x.tobytes() for x in batch] == [np.ascontiguousarray(x).tobytes() for x in expected]


NUMBERS = st.floats(-1e6, 1e6, width=32) | st.floats(
    width=32, allow_nan=False, allow_infinity=False
)


@st.composite
def conversions(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Draw a few samples and the steps for them."""
    layout = draw(st.sampled_from([None, "CHW"]))
    axes = 2 if layout else draw(st.integers(0, 3))
    shape = (*draw(st.tuples(*[st.integers(0, 9)] * axes)), draw(st.integers(1, 5)))
    shape = () if layout is None and draw(st.integers(0, 9)) == 0 else shape
    channels = shape[-1] if shape else 1
    divisors = NUMBERS.filter(bool)

    def for_each(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
        return st.none() | numbers | st.lists(numbers, min_size=channels, max_size=channels)

    steps = {
        "scale": draw(st.none() | NUMBERS),
        "offset": draw(st.none() | NUMBERS),
        "mean": draw(for_each(NUMBERS)),
        "std": draw(for_each(divisors)),
        "layout": layout,
    }
    if all(step is None for step in steps.values()):
        steps["scale"] = 1.0
    x = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, (3, *shape), np.uint8)
    return x, steps


@given(conversions(), st.sampled_from([kind for kind in KINDS if kind != "strided arrays"]))
@settings(max_examples=100)
def test_any_shape_and_any_numbers(conversion: tuple[Any, dict[str, Any]], kind: str) -> None:
    """Whatever the shape, the channels and the numbers, also infinite ones: NumPy's bits."""
    x, steps = conversion
    with np.errstate(all="ignore"):
        expected = np.ascontiguousarray(converted(x, steps)).tobytes()
    assert epoch(loader_of(kind, x, steps, workers=0, slots=2)) == (expected, [0, 1, 2])


class Tagged(np.ndarray[Any, Any]):
    """An array by another name."""


class Holder:
    """Has ``__array__``, as torch's tensors have."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self.array


def _read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


FORMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "fortran": np.asfortranarray,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "turned": lambda x: x.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": _read_only,
    "subclass": lambda x: x.view(Tagged),
    "holder": Holder,
}


@pytest.mark.parametrize("layout", [None, "CHW"])
@pytest.mark.parametrize("form", FORMS)
def test_samples_of_any_stride(form: str, layout: str | None) -> None:
    """However a sample or a whole batch lies in memory, it is converted as it reads."""
    steps = {**IMAGENET, "layout": layout}
    x = np.stack([np.asarray(FORMS[form](image)) for image in IMAGES[:3]])
    dataset = [(FORMS[form](image), number) for number, image in enumerate(x)]
    spec = array_of(x.shape[1:], steps), Array((), "int64")
    expected = np.ascontiguousarray(converted(x, steps)).tobytes(), [0, 1, 2]
    assert epoch(ringfeed.Loader(dataset, batch_size=2, workers=0, spec=spec)) == expected


def test_whole_batches_of_any_stride() -> None:
    """A batch that is strided, or no plain array, is converted; one without rows is a batch."""

    class Odd(Whole):
        def __getitem__(self, index: int) -> Any:
            x, numbers = super().__getitem__(index)
            return (np.asfortranarray(x), Holder(x), x[:0])[index], numbers[
                : None if index < 2 else 0
            ]

    for layout in (None, "CHW"):
        steps = {**IMAGENET, "layout": layout}
        spec = array_of(IMAGES.shape[1:], steps), Array((), "int64")
        found = epoch(
            ringfeed.Loader(Odd(IMAGES), batch_size=None, max_batch_size=8, workers=0, spec=spec)
        )
        assert found == (
            np.ascontiguousarray(converted(IMAGES[:16], steps)).tobytes(),
            list(range(16)),
        )


def test_batches_whose_shape_varies() -> None:
    """Along an axis that is no channel a batch may be smaller, and keeps its own shape."""

    class Growing:
        def __getitem__(self, index: int) -> Any:
            return IMAGES[: index + 1, : 5 * index + 1, :7]

        def __len__(self) -> int:
            return 6

    spec = Array((30, 7, 3), "float32", variable=(0, 1), **IMAGENET)
    with ringfeed.Loader(
        Growing(), batch_size=None, max_batch_size=6, workers=0, spec=spec
    ) as loader:
        for index, batch in enumerate(loader):
            expected = converted(Growing()[index], IMAGENET)
            assert (batch.shape, batch.tobytes()) == (expected.shape, expected.tobytes())


def test_leaves_that_are_converted_beside_others() -> None:
    """In a nested sample each leaf goes its own way, numbers and other dtypes as they are."""
    dataset = [{"a": [IMAGES[i], i], "b": IMAGES[i, 0, :, 0], "c": 0.5} for i in range(5)]
    spec = {
        "a": [Array((3, 67, 61), "float32", layout="CHW"), Array((), "int64")],
        "b": Array((61,), "uint8"),
    }
    spec["c"] = Array((), "float32")
    with ringfeed.Loader(dataset, batch_size=5, workers=0, spec=spec) as loader:
        (batch,) = loader
    assert (
        batch["a"][0].tobytes()
        == np.ascontiguousarray(IMAGES[:5].transpose(0, 3, 1, 2)).astype("f4").tobytes()
    )
    assert batch["a"][1].tolist() == list(range(5))
    assert np.array_equal(batch["b"], IMAGES[:5, 0, :, 0])
    assert batch["c"].tolist() == [0.5] * 5


def test_bytes_without_axes() -> None:
    """A NumPy scalar is converted like an array; the loader's spec is that of the slot."""
    with ringfeed.Loader(
        [np.uint8(i) for i in range(4)],
        batch_size=4,
        workers=0,
        spec=Array((), "float32", offset=1),
    ) as loader:
        (batch,) = loader
        assert batch.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert (loader.spec.leaves[0].shape, loader.spec.leaves[0].dtype) == ((), np.float32)


def test_nothing_behind_the_last_row() -> None:
    """A converted row ends where the next field begins."""
    dataset = [(np.full((3, 5), 7, np.uint8), np.full(2, 9, np.int64))] * 3
    spec = Array((3, 5), "float32", scale=2.0), Array((2,), "int64")
    with ringfeed.Loader(dataset, batch_size=3, workers=0, spec=spec) as loader:
        for x, y in loader:
            assert set(x.ravel().tolist()) == {14.0}
            assert set(y.ravel().tolist()) == {9}

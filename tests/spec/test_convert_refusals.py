"""Conversions that are refused, in words, and what a spec says of those that are not."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import ringfeed
from converting import IMAGENET, Samples, array_of, converted
from refusing import refusal
from ringfeed import Array, Cast, Spec

BACKENDS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "fork"},
]
SMALL = np.arange(360, dtype=np.uint8).reshape(6, 4, 5, 3)


# ---- what is asked for ----

OUT = "leave scale=, offset=, mean=, std= and layout= out"
NUMBER = "expected a number that float32 holds"
EACH = f"{NUMBER}, or one for each channel; write it as in"
RGB = "(0.485, 0.456, 0.406)"
NO_ZERO = "expected no 0; give 1 for a channel that is always the same"
COUNT = "give one for each, or one number for all"


@pytest.mark.parametrize(
    ("shape", "steps", "text"),
    [
        ((4, 5, 3), {"scale": float("nan")}, f"scale=nan, {NUMBER}; write it as in scale=1/255"),
        ((4, 5, 3), {"scale": 1e39}, f"scale=1e+39, {NUMBER}; write it as in scale=1/255"),
        ((4, 5, 3), {"scale": (1, 2, 3)}, f"scale=(1, 2, 3), {NUMBER}; write it as in scale=1/255"),
        ((4, 5, 3), {"scale": True}, f"scale=True, {NUMBER}; write it as in scale=1/255"),
        ((4, 5, 3), {"offset": "1"}, f"offset='1', {NUMBER}; write it as in offset=-1.0"),
        (
            (4, 5, 3),
            {"offset": 10**5000},
            f"offset is out of range, {NUMBER}; write it as in offset=-1.0",
        ),
        ((4, 5, 3), {"mean": (1, float("inf"), 2)}, f"mean=inf, {EACH} mean={RGB}"),
        ((4, 5, 3), {"mean": ()}, f"mean=(), {EACH} mean={RGB}"),
        ((4, 5, 3), {"mean": [[1]]}, f"mean=[1], {EACH} mean={RGB}"),
        ((4, 5, 3), {"std": "abc"}, f"std='abc', {EACH} std={RGB}"),
        ((4, 5, 3), {"std": 0}, f"std=0.0, {NO_ZERO}"),
        ((4, 5, 3), {"std": 1e-46}, f"std=1e-46, {NO_ZERO}"),
        ((4, 5, 3), {"std": (1, 0, 1)}, f"std=(1.0, 0.0, 1.0), {NO_ZERO}"),
        (
            (4, 5, 3),
            {"mean": (1, 2, 3), "std": (1, 2)},
            (
                "mean has 3 numbers and std 2, expected as many; give one for each channel, or "
                "one number for all"
            ),
        ),
        (
            (4, 5, 4),
            {"mean": (1, 2, 3)},
            "Array has 3 numbers in mean= or std=, expected 4, one a channel of (4, 5, 4); "
            f"{COUNT}",
        ),
        (
            (4, 5, 3),
            {"std": (1, 2, 3), "layout": "CHW"},
            "Array has 3 numbers in mean= or std=, expected 4, one a channel of (4, 5, 3); "
            f"{COUNT}",
        ),
        (
            (),
            {"std": (1, 2)},
            f"Array has 2 numbers in mean= or std=, expected 1, one a channel of (); {COUNT}",
        ),
        (
            (4, 5, 3),
            {"layout": "HWC"},
            (
                "Array has layout='HWC', expected 'CHW' or None; leave layout= out for what stays "
                "as it is"
            ),
        ),
        (
            (4, 5),
            {"layout": "CHW"},
            "Array has layout='CHW' and shape (4, 5), expected the axes (channels, height, "
            "width); leave layout= out, or reshape it",
        ),
        (
            (3, 4, 5),
            {"layout": "CHW", "variable": (1, 2)},
            "Array has layout='CHW' and variable=(1, 2), expected the same shape for all batches; "
            "give the one or the other, and turn the batch round in __getitem__",
        ),
        (
            (4, 5, 3),
            {"mean": (1, 2, 3), "variable": True},
            "Array has variable=(0, 1, 2), expected the same channels in all batches, as mean= "
            "and std= have a number for each; leave that axis out of variable=",
        ),
    ],
    ids=range(21),
)
def test_steps_that_are_refused(shape: tuple[int, ...], steps: dict[str, Any], text: str) -> None:
    """Wrong or too many numbers, and axes that do not fit, are named when the Array is made."""
    assert refusal(lambda: Array(shape, "float32", **steps)) == text


@pytest.mark.parametrize("dtype", ["float64", "uint8", ">f4", "float16"])
def test_only_native_float32_is_converted_to(dtype: str) -> None:
    """Any other dtype with a step is refused."""
    text = (
        f"Array has dtype {dtype}, expected float32, the one that uint8 is converted to; make it "
        f"'float32', or {OUT}"
    )
    assert refusal(lambda: Array((2,), dtype, scale=1.0)) == text


# ---- what the dataset gives ----

WANTED = "expected uint8 of shape (4, 5, 3), which is converted to float32"
RETURN = f"return uint8 from __getitem__, or {OUT} of spec="
CROP = "every sample must have the shape of the spec: crop, pad or resize it in __getitem__"
PICTURE = (
    "it is a picture of 4 channels where others have 3 channels: convert it in __getitem__, as by "
    "PIL's .convert('RGB'), to the same shape"
)
TURN = (
    "return (height, width, channels), which layout='CHW' turns round, or leave layout= out of "
    "spec="
)
AN_ARRAY = "expected an array of shape (4, 5, 3) and dtype uint8; make it one in __getitem__"
FEWER = "return smaller batches, or raise max_batch_size"


class Spoiled(Samples):
    """Gives ``value`` in the place of the image of sample 3."""

    value: Any = None

    def __getitem__(self, index: int) -> Any:
        return (self.value if index == 3 else self.x[index]), index


class SpoiledBulk(Spoiled):
    """The same, many at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


@pytest.mark.parametrize("way", BACKENDS, ids=str)
@pytest.mark.parametrize("kind", [Spoiled, SpoiledBulk])
@pytest.mark.parametrize(
    ("layout", "value", "text"),
    [
        (None, np.zeros((4, 5, 3), "f4"), f"sample[0] has dtype float32, {WANTED}; {RETURN}"),
        ("CHW", np.zeros((4, 5, 3), "i1"), f"sample[0] has dtype int8, {WANTED}; {RETURN}"),
        (None, np.zeros((5, 4, 3), "u1"), f"sample[0] has shape (5, 4, 3), {WANTED}; {CROP}"),
        ("CHW", np.zeros((4, 5, 4), "u1"), f"sample[0] has shape (4, 5, 4), {WANTED}; {PICTURE}"),
        ("CHW", np.zeros((3, 4, 5), "u1"), f"sample[0] has shape (3, 4, 5), {WANTED}; {TURN}"),
        (None, None, f"sample[0] is None, {AN_ARRAY}, or return None there for every index"),
    ],
    ids=range(6),
)
def test_samples_that_are_refused(
    layout: str | None, value: Any, text: str, kind: type[Spoiled], way: dict[str, Any]
) -> None:
    """The error names index, leaf, what was expected and what came; the other batches arrive."""
    dataset = kind(SMALL)
    dataset.value = value
    steps = {**IMAGENET, "layout": layout}
    spec = array_of((4, 5, 3), steps), Array((), "int64")
    with ringfeed.Loader(dataset, batch_size=2, spec=spec, **way) as loader:
        iterator = iter(loader)
        first = next(iterator)[0].tobytes()
        assert refusal(lambda: next(iterator)) == f"dataset[3]: {text}"
        assert next(iterator)[1].tolist() == [4, 5]
    assert first == np.ascontiguousarray(converted(SMALL[:2], steps)).tobytes()


@pytest.mark.parametrize(
    ("layout", "value", "text"),
    [
        (None, np.zeros((6, 4, 5, 3), "f8"), f"has dtype float64, {WANTED}; {RETURN}"),
        (None, np.zeros((6, 4, 5, 1), "u1"), f"has rows of shape (4, 5, 1), {WANTED}; {CROP}"),
        ("CHW", np.zeros((6, 3, 4, 5), "u1"), f"has rows of shape (3, 4, 5), {WANTED}; {TURN}"),
        (None, np.zeros((9, 4, 5, 3), "u1"), f"has 9 rows, expected at most 8; {FEWER}"),
    ],
    ids=range(4),
)
def test_whole_batches_that_are_refused(layout: str | None, value: Any, text: str) -> None:
    """A batch that cannot be converted is an error in its place."""
    spec = array_of((4, 5, 3), {**IMAGENET, "layout": layout})
    dataset = [SMALL[:2], value, SMALL[:2]]
    with ringfeed.Loader(
        dataset, batch_size=None, max_batch_size=8, workers=0, spec=spec
    ) as loader:
        iterator = iter(loader)
        assert len(next(iterator)) == 2
        assert refusal(lambda: next(iterator)) == f"dataset[1]: batch {text}"
        assert len(next(iterator)) == 2


@pytest.mark.parametrize("number", [7, 0.5])
def test_python_numbers_are_refused(number: float) -> None:
    """A number of Python's own has no dtype, and is not taken for a byte."""
    with ringfeed.Loader(
        [number], batch_size=1, workers=0, spec=Array((), "float32", scale=1.0)
    ) as loader:
        assert refusal(lambda: next(iter(loader))) == (
            f"dataset[0]: sample is of type {type(number).__name__}, expected an array of shape () "
            "and dtype uint8; make it one in __getitem__"
        )


class InPlace(Samples):
    """Writes its samples into the slot."""

    def read_into(self, index: int, out: Any) -> None:
        out[0][...] = self.x[index]
        out[1][...] = index


def test_read_into_is_refused() -> None:
    """Nobody converts what the dataset writes itself; without steps it writes float32."""
    spec = array_of((4, 5, 3), IMAGENET), Array((), "int64")
    assert refusal(lambda: ringfeed.Loader(InPlace(SMALL), batch_size=2, workers=0, spec=spec)) == (
        "sample[0] is converted by its Array, but read_into writes into the slot itself; write "
        f"float32 there and {OUT}, or take read_into out of the dataset"
    )
    spec = Array((4, 5, 3), "float32"), Array((), "int64")
    with ringfeed.Loader(InPlace(SMALL), batch_size=6, workers=0, spec=spec) as loader:
        (batch,) = loader
        assert np.array_equal(batch[0], SMALL)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((5, 4, 3), "f4"), "Array((4, 3), 'float32')"),
        (np.zeros((5, 3, 4), "u1"), "Array((3, 4), 'uint8')"),
    ],
)
def test_arrays_that_are_refused(array: Any, found: str) -> None:
    """Arrays of another dtype or shape are refused when the loader is made."""
    spec = Array((4, 3), "float32", scale=1.0)
    assert refusal(lambda: ringfeed.Loader(array, batch_size=2, workers=0, spec=spec)) == (
        f"spec= says Array((4, 3), 'float32', scale=1.0), but the arrays are Spec({found}); it "
        "converts uint8 arrays of the samples' shape"
    )


def test_without_steps_nothing_is_converted() -> None:
    """A plain float32 Array refuses uint8 as ever; one with any step takes nothing else."""
    strict, converting = Array((2,), "float32"), Array((2,), "float32", scale=1.0)
    assert Array((2,), "float32", scale=None, layout=None) == strict != converting
    text = (
        "convert it in __getitem__, give this dtype in spec=, or have it converted by cast=True "
        "of its Array"
    )
    assert refusal(lambda: Spec(strict).array(0, np.zeros(2, "u1"), 7)) == (
        f"dataset[7]: sample has dtype uint8, expected float32; {text}"
    )
    assert Spec(converting).array(0, np.zeros(2, "u1"), 7).dtype == "u1"


# ---- the spec ----

CHW = Array((3, 4, 5), "float32", **IMAGENET, layout="CHW")


def test_a_spec_keeps_its_steps() -> None:
    """They are shown as written, and are part of equality, hash, leaves and pickles."""
    assert repr(Spec((CHW, Array((2, 3), "float32", offset=-1, variable=(0,))))) == (
        "Spec((Array((3, 4, 5), 'float32', scale=0.00392156862745098, mean=(0.485, 0.456, 0.406), "
        "std=(0.229, 0.224, 0.225), layout='CHW'), Array((2, 3), 'float32', variable=(0,), "
        "offset=-1.0)))"
    )
    assert eval(repr(CHW), {"Array": Array}) == CHW  # noqa: S307 - its own repr
    spec = Spec({"x": CHW, "y": [Array((), "int64")]})
    again = pickle.loads(pickle.dumps(spec))
    assert (again, hash(again)) == (spec, hash(spec))
    assert again.leaves[0].cast == Cast("float32", **IMAGENET, layout="CHW")
    assert again != Spec(
        {"x": Array((3, 4, 5), "float32", layout="CHW"), "y": [Array((), "int64")]}
    )
    assert Array((3,), "float32", mean=[1, 2, 3]) == Array(
        (3,), "float32", mean=np.array([1, 2, 3])
    )  # type: ignore[arg-type]


def test_a_spec_knows_what_is_given() -> None:
    """Each leaf says what the dataset gives for it."""
    spec = Spec({"x": CHW, "y": [Array((), "int64"), Array((2,), "float32", std=2, variable=True)]})
    assert [(leaf.given_shape, leaf.given_dtype.name) for leaf in spec.leaves] == [
        ((4, 5, 3), "uint8"),
        ((), "int64"),
        ((2,), "uint8"),
    ]


def test_a_cast_is_a_plain_value() -> None:
    """Numbers become floats and sequences tuples, so that equal ones are equal everywhere."""
    mean: Any = np.float32([0.5, 0.25])
    cast = Cast("float32", scale=1, mean=mean, std=[2, 4])  # type: ignore[arg-type]
    assert cast == Cast("float32", scale=1.0, mean=(0.5, 0.25), std=(2.0, 4.0))
    assert hash(cast) == hash(pickle.loads(pickle.dumps(cast)))
    assert (cast.channels, Cast(std=3).channels, Cast(std=(3, 4, 5)).channels) == (2, None, 3)
    assert Cast(mean=np.array(0.5)).mean == 0.5  # type: ignore[arg-type]

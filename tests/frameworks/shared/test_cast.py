"""What ``cast=`` means for a sample's leaves, what is refused, and how NumPy carries it out."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import ringfeed
from ringfeed import Array, Cast, Spec
from ringfeed.frameworks.cast import NOTHING, Chosen, apart, casts_of, in_numpy, shape_after

IMAGE = Array((4, 5, 3), "uint8")
MASK = Array((4, 5), "uint8")
LABEL = Array((), "int64")
NAME = Array((), "S4")
F32 = Cast("float32")
SCALED = Cast("float32", scale=1 / 255)


class Named(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


# ---- which leaves ----


@pytest.mark.parametrize(
    ("tree", "asked", "expected"),
    [
        (IMAGE, None, {}),
        (IMAGE, "float32", {0: F32}),
        (LABEL, "float32", {0: F32}),
        ((IMAGE, LABEL), "float32", {0: F32}),
        ((IMAGE, LABEL, MASK), SCALED, {0: SCALED, 2: SCALED}),
        ((IMAGE, LABEL), ("float16", None), {0: Cast("float16")}),
        ((IMAGE, LABEL), [None, "float32"], {1: F32}),
        ([IMAGE, LABEL], (SCALED, "float64"), {0: SCALED, 1: Cast("float64")}),
        ({"a": LABEL, "b": IMAGE}, {"b": SCALED}, {1: SCALED}),
        ({"a": LABEL, "b": IMAGE}, {"b": SCALED, "a": None}, {1: SCALED}),
        (
            ({"a": LABEL, "b": (IMAGE, MASK)}, LABEL),
            ({"b": "float32"}, "float32"),
            {1: F32, 2: F32, 3: F32},
        ),
        (({"a": LABEL, "b": (IMAGE, MASK)}, MASK), (None, "float32"), {3: F32}),
        (Named(IMAGE, LABEL), Named("float32", None), {0: F32}),
        (Named(IMAGE, LABEL), (None, "float32"), {1: F32}),
        (
            (Array((2,), "bool"), Array((2,), ml_dtypes.bfloat16)),
            ("float32", "float32"),
            {0: F32, 1: F32},
        ),
        ((Array((2,), "float32"), IMAGE), ("float32", "float32"), {1: F32}),
        ((Array((2,), "float32"), IMAGE), (SCALED, None), {0: SCALED}),
    ],
)
def test_which_leaves_are_cast(tree: Any, asked: Any, expected: Any) -> None:
    """A dtype or a Cast is for all uint8 below it, or for the leaf that it stands for.

    None and no key for nothing.
    """
    assert casts_of(Spec(tree), asked, "to_x") == expected


ROOT = "to_x(cast=...): sample"
STRUCTURE = "write it in the structure of the sample, with None for what stays as it is"


@pytest.mark.parametrize(
    ("tree", "asked", "text"),
    [
        (
            (IMAGE, LABEL),
            "float31",
            (
                "[0] is cast to 'float31', expected one of float16, bfloat16, float32, float64; "
                "name one of these"
            ),
        ),
        (
            (IMAGE, LABEL),
            (None, "int32"),
            (
                "[1] is cast to 'int32', expected one of float16, bfloat16, float32, float64; "
                "name one of these"
            ),
        ),
        (
            (IMAGE, LABEL),
            ("float32",),
            f" is cast by a tuple of 1, expected a tuple of 2; {STRUCTURE}",
        ),
        (
            (IMAGE, LABEL),
            {"x": "float32"},
            f" is cast by a dict, expected a tuple of 2; {STRUCTURE}",
        ),
        ((IMAGE, LABEL), 32, f" is cast by 32, expected a tuple of 2; {STRUCTURE}"),
        ({"a": IMAGE}, ("float32",), f" is cast by a tuple of 1, expected a dict; {STRUCTURE}"),
        (
            ({"a": IMAGE}, LABEL),
            ({"b": "float32"}, None),
            f"[0] is cast by the keys ['b'], expected some of ['a']; {STRUCTURE}",
        ),
        (
            {"a": (IMAGE, LABEL)},
            {"a": ("float32", None, None)},
            f"['a'] is cast by a tuple of 3, expected a tuple of 2; {STRUCTURE}",
        ),
        (
            (IMAGE, LABEL),
            (np.float32, None),
            "[0] is cast by <class 'numpy.float32'>, expected the name of a dtype, a "
            "ringfeed.Cast or None; write it as in 'float32'",
        ),
        (
            (IMAGE, LABEL),
            (("float32",), None),
            "[0] is cast by a tuple of 1, expected the name of a dtype, a ringfeed.Cast or None; "
            "write it as in 'float32'",
        ),
        (
            (IMAGE, NAME),
            (None, "float32"),
            "[1] has dtype |S4, expected whole numbers, bools or floating point; put None in its "
            "place, or convert it in __getitem__",
        ),
        (
            Named(IMAGE, Array((), "complex64")),
            (None, "float32"),
            ".label has dtype complex64, expected whole numbers, bools or floating point; put "
            "None in its place, or convert it in __getitem__",
        ),
        (
            (IMAGE, MASK),
            (None, Cast(layout="CHW")),
            "[1] has shape (4, 5), expected (height, width, channels) for layout='CHW'; leave "
            "layout out, or give the sample these axes",
        ),
        (
            (IMAGE, MASK),
            Cast(layout="CHW"),
            "[1] has shape (4, 5), expected (height, width, channels) for layout='CHW'; leave "
            "layout out, or give the sample these axes",
        ),
        (
            IMAGE,
            Cast(layout="WHC"),
            " is cast with layout='WHC', expected 'CHW' or None; write layout='CHW'",
        ),
        (
            (IMAGE, LABEL),
            Cast(mean=(0.5, 0.5)),
            "[0] is cast with 2 numbers of mean or std, expected one number or 3, as it has "
            "channels (its last axis); give as many",
        ),
        (
            (IMAGE, LABEL),
            (None, Cast(std=(0.5, 0.5))),
            (
                "[1] is cast with 2 numbers of mean or std, expected one number, as it has no "
                "channels; give one"
            ),
        ),
        (
            (LABEL, LABEL),
            "float32",
            " has no leaf of dtype uint8, expected one or more to cast; name other leaves one by "
            "one, in the structure of the sample, as in ('float32', None)",
        ),
        (
            ({"a": LABEL}, IMAGE),
            ("float32", None),
            "[0] has no leaf of dtype uint8, expected one or more to cast; name other leaves one "
            "by one, in the structure of the sample, as in ('float32', None)",
        ),
        (
            (IMAGE, LABEL),
            (None, None),
            " is cast nowhere, expected a cast of one leaf or more; name one, or leave cast out",
        ),
        (
            (Array((4, 5, 3), "uint8", variable=True),),
            (Cast(mean=(1, 2, 3)),),
            "[0] has variable=(0, 1, 2), expected the same channels in all batches, as mean or "
            "std has a number for each; leave that axis out of variable, or give one",
        ),
        (
            {"a": IMAGE},
            {},
            " is cast nowhere, expected a cast of one leaf or more; name one, or leave cast out",
        ),
    ],
)
def test_what_cannot_be_cast(tree: Any, asked: Any, text: str) -> None:
    """Unknown dtypes, other structures, leaves without numbers and unfit casts are refused."""
    with pytest.raises(ringfeed.SpecError) as caught:
        casts_of(Spec(tree), asked, "to_x")
    assert str(caught.value) == ROOT + text


def test_casts_of_some_leaves_apart() -> None:
    """The casts of the leaves named, and the others, both in the order of the leaves."""
    casts = {0: F32, 2: SCALED, 3: F32}
    assert apart(casts, [3, 1, 0]) == ({0: F32, 3: F32}, {2: SCALED})


def test_leaves_are_replaced_in_their_list() -> None:
    """The list is the same, without what was read; without a leaf to cast nothing is done."""
    leaves = ["a", "b", "c"]
    assert Chosen({2: str.upper, 0: str.title})(leaves) is leaves
    assert leaves == ["A", "b", "C"]
    assert NOTHING(leaves) is leaves


# ---- by NumPy ----

BYTES = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3) * 7 % 251


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_plain_cast_has_the_values_of_numpy(dtype: str) -> None:
    """Each number as the dtype has it, in an array of its own."""
    numpys = np.dtype(getattr(ml_dtypes, dtype, dtype))
    found = in_numpy({0: Cast(dtype)})[0](BYTES)
    assert found.dtype == numpys
    assert found.tobytes() == BYTES.astype(numpys).tobytes()
    assert found.base is None


@pytest.mark.parametrize("layout", [None, "CHW"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_each_step_is_in_the_dtype(dtype: str, layout: str | None) -> None:
    """Scale, offset, mean and std, one after the other, rounded each time.

    Then the axes as they are asked for.
    """
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    cast = Cast(dtype, 1 / 255, 0.25, mean, std, layout)
    number = np.dtype(dtype).type
    expected = BYTES.astype(dtype) * number(1 / 255) + number(0.25)
    expected = (expected - np.array(mean, dtype)) / np.array(std, dtype)
    if layout:
        expected = np.ascontiguousarray(expected.transpose(0, 3, 1, 2))
    found = in_numpy({4: cast})[4](BYTES)
    assert found.dtype == dtype
    assert found.flags.c_contiguous
    assert found.shape == shape_after(BYTES.shape, cast) == expected.shape
    assert found.tobytes() == expected.tobytes()


def test_what_is_read_stays_as_it_is() -> None:
    """Steps on a leaf that has the dtype already work on a copy."""
    given = np.ones((3, 2), np.float32)
    assert in_numpy({0: Cast(scale=2.0)})[0](given).tolist() == [[2, 2]] * 3
    assert given.tolist() == [[1, 1]] * 3


def test_out_of_range_is_infinite() -> None:
    """What float16 does not hold becomes infinite, as in NumPy, and without a warning."""
    assert in_numpy({0: Cast("float16", scale=1e6)})[0](np.array([1], np.uint8)).tolist() == [
        np.inf
    ]

"""The spec: what a sample looks like, which values fit, and the whole text of every refusal."""

from __future__ import annotations

import itertools
import pickle
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusing import refusal
from ringfeed._failure import decode, encode
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Array, Leaf, Spec

BYTE, LABEL = Array((2, 3), "uint8"), Array((), "int64")
IMAGE = np.arange(6, dtype="uint8").reshape(2, 3)


class Pair(NamedTuple):
    """A structure with named fields."""

    image: Any
    label: Any


class Couple(NamedTuple):
    """The same fields under another name."""

    image: Any
    label: Any


class Holder:
    """An object with __array__, as torch's tensors are; it raises what it is given to raise."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        """Give the value or raise it."""
        if isinstance(self.value, Exception):
            raise self.value
        return np.asarray(self.value)


class Boastful(list[Any]):
    """Says that it has two, and gives another number, or never stops."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return itertools.cycle([1]) if self[0] else iter([1])


class Pretender(tuple[Any, ...]):
    """Looks like a NamedTuple of three, and is a tuple of two."""

    __slots__ = ()
    _fields = ("a", "b", "c")
    _make = None


class Row(list[int]):
    """A container that has ``__array__`` too."""

    __array__ = Holder.__array__


class Colour(IntEnum):
    """An int by another name."""

    RED = 3


@dataclass
class Sample:
    """A structure with named fields that is no tuple."""

    image: Any
    rest: Any


def nested(depth: int) -> list[Any]:
    """Return an int inside ``depth`` lists."""
    inner: Any = 1
    for _ in range(depth):
        inner = [inner]
    return inner  # type: ignore[no-any-return]


def cycle() -> list[Any]:
    """Return a list whose second element is itself."""
    inner: list[Any] = [1]
    inner.append(inner)
    return inner


def rows(names: str, table: list[Any]) -> pytest.MarkDecorator:
    """Return parametrize with the rows' numbers as ids: some values are too long to print."""
    return pytest.mark.parametrize(names.split(), table, ids=map(str, range(len(table))))


def as_array(kind: str, dtype: str) -> str:
    """Return what is said where a list of numbers has another length than that of sample 0."""
    return (
        f"each item of a {kind} is a leaf: return numpy.asarray() of it, and give Array((None,), "
        f"{dtype!r}, max_shape=(512,), form='pad') in its place in spec=, with the longest in the "
        "place of 512"
    )


STRUCTURE = "return the same structure for every index"
SHAPE = "every sample must have the shape of the spec: crop, pad or resize it in __getitem__"
MANY_SHAPES = "; or allow many shapes: spec= with variable=, form='pad' or form='ragged'"
CONVERT = "convert it in __getitem__, or give another dtype in spec="
DTYPE = "convert it in __getitem__, or give this dtype in spec="
CAST = (
    "convert it in __getitem__, give this dtype in spec=, or have it converted by cast=True of "
    "its Array"
)
ROWS = (
    "expected an array with a leading row axis; return whole batches of arrays, or set "
    "batch_size= or batch_sampler= for a dataset of single samples"
)
FIXED = (
    "expected one of fixed width, without Python objects and without a shape of its own; "
    "choose one such as 'uint8' or 'S16'"
)
OBJECTS = (
    "expected one without Python objects; convert it by its .astype(), as to 'float32' or 'U16'"
)
WORD = "expected one without Python objects; return it as .numpy() or .item() gives it, and give"
SKIP = "on_error='skip' leaves out samples that are None"
PARTS = "expected an array or number, or a tuple, list or dict of them"
STRING, MOST = "expected an array or number, or spec= for it;", "the most bytes of one sample"
LEAF = f"{PARTS}; return one of these from __getitem__"
SET = f"{PARTS}; a set has no order: make it a sorted list, or an array"
LISTED = (
    "make it a list, each of whose items is a leaf, or numpy.asarray() of that list, which is one "
    "leaf"
)
WRITE = "expected a tuple of ints and what np.dtype takes; write it as ((224, 224, 3), 'uint8')"
GIVEN = (
    "expected a ringfeed.Array or a tuple, list or dict of them; write it as in Array((224, 224, "
    "3), 'uint8')"
)
INTO = {
    "bool": "a Python bool goes into bool only",
    "int": "a Python int goes into an integer or float dtype that holds it exactly",
    "float": "a Python float goes into float32 or float64, if it is in range",
}
MANY = "expected at most 1000; make one array of a list of numbers with np.asarray"
MASKED = "expected a plain array; return value.filled(...) in its place"
RAISED = (
    "conversion raised ValueError: bad, expected an array; return a NumPy array from __getitem__"
)
MAKE = "make it one in __getitem__"
NONE = ", or return None there for every index"
KEYS_SAME = "return the same keys for every index"
EVEN = "give all leaves of a batch the same number of rows"
FIELDS = "(image, label)"
AT = "dataset[7]: "

ARRAYS: list[tuple[Any, Any, str]] = [
    ((3,), "flaot32", f"Array has shape (3,) and dtype 'flaot32', {WRITE}"),
    (3, "uint8", f"Array has shape 3 and dtype 'uint8', {WRITE}"),
    ((3,), ",", f"Array has shape (3,) and dtype ',', {WRITE}"),
    ((1.5,), "uint8", f"Array has shape (1.5,) and dtype 'uint8', {WRITE}"),
    ((3,), None, f"Array has dtype object, {FIXED}"),
    ((3,), "O", f"Array has dtype object, {FIXED}"),
    ((3,), [("a", "O")], f"Array has dtype [('a', 'O')], {FIXED}"),
    ((3,), "S", f"Array has dtype |S0, {FIXED}"),
    ((3,), ("f4", (2,)), f"Array has dtype ('<f4', (2,)), {FIXED}"),
    ((3, -1), "u1", "Array has shape (3, -1), expected axes of 0 or more; write every axis out"),
    ((1,) * 33, "u1", "Array has 33 axes, expected at most 32; merge some with reshape"),
]
HUGE = "Array has more than 2**62 bytes, expected a shape that fits in memory; make it smaller"
ARRAYS += [
    (shape, "u2", HUGE) for shape in [(2**61 + 1,), (0, 2**62), (2**31, 2**31), (-(10**5000),)]
]

VARIABLE = "which count from 0; write it as in variable=(0, 1)"
AXES: list[tuple[Any, str]] = [
    ((2,), f"Array has variable=(2,), expected True, or numbers of axes of (2, 3), {VARIABLE}"),
    (
        (0, -1),
        f"Array has variable=(0, -1), expected True, or numbers of axes of (2, 3), {VARIABLE}",
    ),
    (1, f"Array has variable=1, expected True, or numbers of axes of (2, 3), {VARIABLE}"),
    ("a", f"Array has variable='a', expected True, or numbers of axes of (2, 3), {VARIABLE}"),
]

TREES: list[tuple[Any, str]] = [
    (((2, 3), "uint8"), f"spec[0][0] is of type int, {GIVEN}"),
    (None, f"spec is None, {GIVEN}"),
    (
        {"image": None},
        "spec has no leaves, expected at least one array or number; put something into it",
    ),
    (Pair(LABEL, IMAGE), f"spec.label is of type ndarray, {GIVEN}"),
    (
        {"a": [()]},
        "spec has no leaves, expected at least one array or number; put something into it",
    ),
]

SAMPLES: list[tuple[Any, str]] = [
    ("text", f"sample is a str, {STRING} give spec=ringfeed.Text(64), where Text has {MOST}"),
    (
        (b"jpeg",),
        f"sample[0] is bytes, {STRING} give spec=(ringfeed.Bytes(64),), where Bytes has {MOST}",
    ),
    (None, f"sample is None, {LEAF}; {SKIP}"),
    (
        {"image": None},
        "sample has no leaves, expected at least one array or number; put something into it",
    ),
    (Pair({1}, 2), f"sample.image is of type set, {SET}"),
    ((n for n in "ab"), f"sample is of type generator, {PARTS}; {LISTED}"),
    (object(), f"sample is of type object, {LEAF}"),
    (np.ndarray, f"sample is of type type, {LEAF}"),
    (
        [[1, 2], ["a"]],
        f"sample[1][0] is a str, {STRING} give spec=[[ringfeed.Array((), 'int64'), "
        f"ringfeed.Array((), 'int64')], [ringfeed.Text(64)]], where Text has {MOST}",
    ),
    (np.array([None]), f"sample has dtype object, {OBJECTS}"),
    (Holder(np.array([{}])), f"sample has dtype object, {OBJECTS}"),
    (
        np.array("a", object),
        f"sample has dtype object, {WORD} ringfeed.Text(64) in its place in spec=",
    ),
    (
        (Holder(np.array(b"a", object)),),
        f"sample[0] has dtype object, {WORD} ringfeed.Bytes(64) in its place in spec=",
    ),
    (np.zeros(2, []), f"sample has dtype [], {FIXED}"),
    (np.ma.masked_less([1, 2], 2), f"sample is a masked array, {MASKED}"),
    (Holder(ValueError("bad")), f"sample is of type Holder, whose {RAISED}"),
    (
        np.broadcast_to(np.int64(0), (2**59 + 1,)),
        "sample has more than 2**62 bytes, expected a shape that fits in memory; make it smaller",
    ),
    ([], "sample has no leaves, expected at least one array or number; put something into it"),
    (cycle(), "sample[1] contains itself, expected a finite structure; take the cycle out"),
    (nested(65), f"sample{'[0]' * 65} is nested too deep, expected at most 64 levels; flatten it"),
    ({"ids": [0] * 5000}, f"sample['ids'] brings the leaves to 5000, {MANY}"),
    ([[0] * 600] + [0] * 500, f"sample[401] brings the leaves to 1001, {MANY}"),
    ([[0] * 600, [0] * 600], f"sample[1] brings the leaves to 1200, {MANY}"),
    (
        2**63,
        f"sample is the int {2**63}, expected a value for dtype int64; {INTO['int']}: {CONVERT}",
    ),
    (
        1e39,
        "sample is the float 1e+39, expected a value for dtype float32; "
        f"{INTO['float']}: {CONVERT}",
    ),
]

BATCHES: list[tuple[Any, str]] = [
    (5, f"batch is of type int, {ROWS}"),
    ((IMAGE, [1, 2]), f"batch[1][0] is of type int, {ROWS}"),
    ((IMAGE, np.float32(1)), f"batch[1] has shape (), {ROWS}"),
    (
        {"image": None},
        "batch has no leaves, expected at least one array or number; put something into it",
    ),
    (None, f"batch is None, {ROWS}"),
    (np.array([None]), f"batch has dtype object, {OBJECTS}"),
    (
        {"image": IMAGE, "label": np.zeros(3)},
        f"batch['label'] has 3 rows, expected 2 as in the leaves before it; {EVEN}",
    ),
]

STRUCTURES: list[tuple[Any, Any, str]] = [
    ((BYTE, LABEL), [IMAGE, 1], f"sample is a list of 2, expected a tuple of 2; {STRUCTURE}"),
    ((BYTE, LABEL), (IMAGE,), f"sample is a tuple of 1, expected a tuple of 2; {STRUCTURE}"),
    ((BYTE, LABEL), IMAGE, f"sample is of type ndarray, expected a tuple of 2; {STRUCTURE}"),
    ((BYTE, [LABEL]), (IMAGE, None), f"sample[1] is None, expected a list of 1; {STRUCTURE}"),
    ([LABEL], [1, 2], f"sample is a list of 2, expected a list of 1; {as_array('list', 'int64')}"),
    (
        (BYTE, (Array((), "f4"),) * 2),
        (IMAGE, (1.5,)),
        f"sample[1] is a tuple of 1, expected a tuple of 2; {as_array('tuple', 'float32')}",
    ),
    ([LABEL], [1, "a"], f"sample is a list of 2, expected a list of 1; {STRUCTURE}"),
    ([LABEL, BYTE], [1], f"sample is a list of 1, expected a list of 2; {STRUCTURE}"),
    (
        (BYTE, {"a": LABEL}),
        (IMAGE, (1,)),
        f"sample[1] is a tuple of 1, expected a dict; {STRUCTURE}",
    ),
    (
        Pair(BYTE, LABEL),
        Couple(IMAGE, 1),
        (
            f"sample is the NamedTuple Couple{FIELDS}, expected the NamedTuple Pair{FIELDS}; "
            f"{STRUCTURE}"
        ),
    ),
    (
        Pair(BYTE, LABEL),
        (IMAGE, 1),
        f"sample is a tuple of 2, expected the NamedTuple Pair{FIELDS}; {STRUCTURE}",
    ),
    (
        [Pair(BYTE, {"a": LABEL, "b": LABEL})],
        [Pair(IMAGE, {"b": 1, "c": 2})],
        "sample[0].label lacks ['a'] and has also ['c'], expected the keys ['a', 'b']; "
        f"{KEYS_SAME}",
    ),
    (
        [LABEL, LABEL],
        Boastful([0]),
        (
            "sample is a list of 2, but its __iter__ gives others, expected as many; return a "
            "plain list or tuple"
        ),
    ),
    (
        [[LABEL, LABEL]],
        [Boastful([1])],
        (
            "sample[0] is a list of 2, but its __iter__ gives others, expected as many; return a "
            "plain list or tuple"
        ),
    ),
    ([LABEL], Pretender((1, 2)), f"sample is a tuple of 2, expected a list of 1; {STRUCTURE}"),
    ({"a": LABEL}, {}, f"sample lacks ['a'], expected the keys ['a']; {KEYS_SAME}"),
    (
        {"a": LABEL},
        {"a": 1, "b": 2},
        f"sample has also ['b'], expected the keys ['a']; {KEYS_SAME}",
    ),
]


def test_a_sample_that_is_none_may_be_left_out() -> None:
    """The error of a sample that is None says how; None within one is another structure."""
    spec, text = Spec((BYTE, LABEL)), f"is None, expected a tuple of 2; {STRUCTURE}"
    assert refusal(lambda: spec.flatten(None, 7)) == f"{AT}sample {text}; {SKIP}"
    assert refusal(lambda: spec.flatten(None, 7, "batch")) == f"{AT}batch {text}"


VALUES: list[tuple[Any, Any, str]] = [
    (BYTE, IMAGE.astype("f8"), f"sample has dtype float64, expected uint8; {DTYPE}"),
    (LABEL, np.array(1, ">i8"), f"sample has dtype >i8, expected int64; {CAST}"),
    (LABEL, np.int32(1), f"sample has dtype int32, expected int64; {CAST}"),
    (LABEL, np.array(None), f"sample has dtype object, expected int64; {DTYPE}"),
    (BYTE, IMAGE[:, :2], f"sample has shape (2, 2), expected (2, 3); {SHAPE}{MANY_SHAPES}"),
    (LABEL, np.array([1]), f"sample has shape (1,), expected (); {SHAPE}"),
    (BYTE, 1, f"sample is of type int, expected an array of shape (2, 3) and dtype uint8; {MAKE}"),
    (BYTE, [[1]], f"sample has shape (1, 1), expected (2, 3); {SHAPE}{MANY_SHAPES}"),
    (LABEL, "1", f"sample is of type str, expected an array of shape () and dtype int64; {MAKE}"),
    (LABEL, Row(), f"sample is a list of 0, expected an array of shape () and dtype int64; {MAKE}"),
    (LABEL, None, f"sample is None, expected an array of shape () and dtype int64; {MAKE}; {SKIP}"),
    (LABEL, Holder(ValueError("bad")), f"sample is of type Holder, whose {RAISED}"),
    (LABEL, np.ma.masked, f"sample is a masked array, {MASKED}"),
]
NUMBERS: list[tuple[Any, str, str, str]] = [
    (True, "int64", "bool", "the bool True"),
    (1, "bool", "int", "the int 1"),
    (256, "uint8", "int", "the int 256"),
    (-1, "uint64", "int", "the int -1"),
    (2**63, "int64", "int", f"the int {2**63}"),
    (2**24 + 1, "float32", "int", f"the int {2**24 + 1}"),
    (70000, "float16", "int", "the int 70000"),
    (10**5000, "float64", "int", "an int of 16610 bits"),
    (10**5000, "int64", "int", "an int of 16610 bits"),
    (1, "complex64", "int", "the int 1"),
    (1, "datetime64[ns]", "int", "the int 1"),
    (0.5, "int64", "float", "the float 0.5"),
    (0.5, "float16", "float", "the float 0.5"),
    (-1e300, ">f4", "float", "the float -1e+300"),
]
VALUES += [
    (
        Array((), dtype),
        value,
        f"sample is {got}, expected a value for dtype {dtype}; {INTO[kind]}: {CONVERT}",
    )
    for value, dtype, kind, got in NUMBERS
]
BATCH_VALUES: list[tuple[Any, Any, str]] = [
    (BYTE, IMAGE.astype("f8"), f"batch[1] has dtype float64, expected uint8; {DTYPE}"),
    (BYTE, IMAGE, f"batch[1] has rows of shape (3,), expected (2, 3); {SHAPE}"),
    (LABEL, 1, f"batch[1] is of type int, {ROWS}"),
    (LABEL, np.int64(1), f"batch[1] has shape (), {ROWS}"),
    (LABEL, [1, None], f"batch[1] has dtype object, expected int64; {DTYPE}"),
    (
        LABEL,
        [1, 2.5],
        (
            f"batch[1][1] is the float 2.5, expected a value for dtype int64; {INTO['float']}: "
            f"{CONVERT}"
        ),
    ),
    (
        LABEL,
        np.zeros(5, "i8"),
        "batch[1] has 5 rows, expected at most 4; return smaller batches, or raise max_batch_size",
    ),
]


@rows("shape dtype text", ARRAYS)
def test_an_array_that_cannot_be_is_refused(shape: Any, dtype: Any, text: str) -> None:
    """An Array is refused for a shape or dtype that no slot can hold."""
    assert refusal(lambda: Array(shape, dtype)) == text


@rows("variable text", AXES)
def test_axes_that_an_array_has_not_are_refused(variable: Any, text: str) -> None:
    """Only an axis that there is may vary."""
    assert refusal(lambda: Array((2, 3), "u1", variable=variable)) == text


@rows("tree text", TREES)
def test_a_tree_of_anything_but_arrays_is_refused(tree: Any, text: str) -> None:
    """Spec takes containers of Arrays only."""
    assert refusal(lambda: Spec(tree)) == text


@rows("sample text", SAMPLES)
def test_a_sample_without_a_spec_is_refused(sample: Any, text: str) -> None:
    """A sample that cannot be laid out in a slot says where and why."""
    assert refusal(lambda: Spec.infer(sample, 7)) == AT + text


@rows("batch text", BATCHES)
def test_a_batch_without_a_spec_is_refused(batch: Any, text: str) -> None:
    """Every leaf of a whole batch is an array with as many rows as the first."""
    assert refusal(lambda: Spec.infer_batch(batch, 7)) == AT + text


@rows("tree sample text", STRUCTURES)
def test_another_structure_is_refused(tree: Any, sample: Any, text: str) -> None:
    """Flatten refuses other containers, lengths, keys and NamedTuples, also in a whole batch."""
    spec = Spec(tree)
    assert refusal(lambda: spec.flatten(sample, 7)) == AT + text
    assert refusal(lambda: spec.flatten(sample, 7, "batch")) == AT + text.replace(
        "sample", "batch", 1
    )


@rows("leaf value text", VALUES)
def test_a_value_that_does_not_fit_its_leaf_is_refused(leaf: Array, value: Any, text: str) -> None:
    """A leaf takes its very dtype and shape, or a Python number that fits."""
    assert refusal(lambda: Spec(leaf).array(0, value, 7)) == AT + text


@rows("leaf value text", BATCH_VALUES)
def test_rows_that_do_not_fit_their_leaf_are_refused(leaf: Array, value: Any, text: str) -> None:
    """A leaf of a batch takes rows of its dtype and shape, up to what a slot holds."""
    assert refusal(lambda: Spec((LABEL, leaf)).batch_array(1, value, 7, max_rows=4)) == AT + text


def test_a_leaf_with_other_rows_is_refused() -> None:
    """The writer of a batch has leaves refused whose rows differ from those before."""
    text = f"{AT}batch[1] has 3 rows, expected 2 as in the leaves before it; {EVEN}"
    assert refusal(lambda: Spec((BYTE, LABEL)).batch_rows(1, 3, 2, 7)) == text


def test_long_names_are_shortened_in_the_middle() -> None:
    """A text stays readable, and fits a failure record, whatever a dataset calls its parts."""
    names = [f"feature {number:04}" for number in range(900)]
    spec = Spec(dict.fromkeys(names, LABEL))
    text = refusal(lambda: spec.flatten(dict.fromkeys([*names[1:], "x" * 10**6], 1), 7))
    got, expected = f"lacks ['feature 0000'] and has also ['{'x' * 10**6}']", f"the keys {names}"
    assert (
        text == f"{AT}sample {got[:90]} ... {got[-90:]}, expected {expected[:90]} ... "
        f"{expected[-90:]}; {KEYS_SAME}"
    )
    failure = decode(encode(SpecError(text)))
    assert isinstance(failure.error, SpecError)
    assert str(failure.error) == text


def test_a_tuple_that_pretends_is_a_tuple() -> None:
    """Fields that do not fit make no NamedTuple."""
    assert Spec.infer(Pretender((1, 2)), 0) == Spec((LABEL, LABEL))


def test_what_conversion_raised_is_the_cause() -> None:
    """The exception of an ``__array__`` stays with the SpecError."""
    error = TypeError("on the GPU")
    with pytest.raises(SpecError) as caught:
        Spec.infer(Holder(error), 0)
    assert caught.value.__cause__ is error


TAKEN: list[tuple[Any, Any]] = [
    ("int64", -(2**63)),
    ("uint64", 2**64 - 1),
    (">i2", 258),
    ("uint8", Colour.RED),
    ("float32", 2**24),
    ("float16", 2048),
    ("float64", 2**1000),
    ("bool", True),
    ("float32", float("inf")),
    ("float32", float("-inf")),
    (">f4", 0.5),
    ("float64", 0.1),
    ("float64", -0.0),
    ("float32", 1e-300),
]


@rows("dtype value", TAKEN)
def test_a_python_number_fits_dtypes_that_hold_it(dtype: str, value: float) -> None:
    """A number becomes an array of exactly the dtype; only floats are rounded."""
    found = Spec(Array((), dtype)).array(0, value, 0)
    assert (found.dtype, found.shape) == (np.dtype(dtype), ())
    assert found.item() == (np.float32(value) if found.dtype == "f4" else value)


def test_nan_is_a_float_like_any_other() -> None:
    """NaN goes into a float32 leaf and stays NaN."""
    assert np.isnan(Spec.infer(1.0, 0).array(0, float("nan"), 0))


INFERRED: list[tuple[Any, Any]] = [
    (True, Array((), "bool")),
    (3, Array((), "int64")),
    (0.1, Array((), "float32")),
    (np.float64(1), Array((), "float64")),
    (np.int8(1), Array((), "int8")),
    (np.str_("abc"), Array((), "U3")),
    (np.array(b"abcd"), Array((), "S4")),
    (np.datetime64("2026-01-01"), Array((), "M8[D]")),
    (
        np.zeros(2, [("a", ">i4"), ("b", "f8", (2,))]),
        Array((2,), [("a", ">i4"), ("b", "f8", (2,))]),
    ),
    (np.zeros((0, 3), ">f4"), Array((0, 3), ">f4")),
    (np.zeros((1,) * 32, "u1"), Array((1,) * 32, "u1")),
    (np.zeros((2, 2)).view(np.matrix), Array((2, 2), "f8")),
    (Holder(np.zeros(3, "c8")), Array((3,), "c8")),
    ([1, (2.0, np.zeros(2))], [Array((), "i8"), (Array((), "f4"), Array((2,), "f8"))]),
    (OrderedDict(b=1, a=True), {"b": Array((), "i8"), "a": Array((), "?")}),
    (Pair(1, {0: 2}), Pair(LABEL, {0: LABEL})),
    ((1, ()), (LABEL, ())),
    (nested(64), None),
    ([(0,)] * 1000, [(LABEL,)] * 1000),
    (2j, Array((), "c8")),
    ((1, None, [None]), (LABEL, None, [None])),
    (UserDict(b=1, a=True), {"b": Array((), "i8"), "a": Array((), "?")}),
    ([MappingProxyType({"a": 1})], [{"a": LABEL}]),
    (Sample(1, (True, None)), {"image": LABEL, "rest": (Array((), "?"), None)}),
    ([*range(8)], [LABEL] * 8),
    (dict.fromkeys("abcdefghi", 1), dict.fromkeys("abcdefghi", LABEL)),
]


@rows("sample tree", INFERRED)
def test_infer_gives_every_leaf_its_dtype_and_shape(sample: Any, tree: Any) -> None:
    """The inferred spec equals the one written by hand, and takes the sample it came from."""
    spec = Spec.infer(sample, 0)
    assert tree is None or spec == Spec(tree)
    for number, value in enumerate(spec.flatten(sample, 0)):
        found = spec.array(number, value, 0)
        assert type(found) is np.ndarray
        assert (found.shape, found.dtype) == spec.leaves[number][1:3]


def test_infer_batch_strips_the_row_axis() -> None:
    """A whole batch gives the spec of one sample and the number of rows, zero included."""
    batch = {"image": np.zeros((5, 2, 3), "u1"), "label": Holder(np.zeros(5, "i8"))}
    assert Spec.infer_batch(batch, 0) == (Spec({"image": BYTE, "label": LABEL}), 5)
    assert Spec.infer_batch(np.zeros((0, 4)), 0) == (Spec(Array((4,), "f8")), 0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_batch_array_takes_up_to_the_most_rows(count: int) -> None:
    """A batch of 0 to max_rows rows is taken as it is."""
    batch = np.zeros((count, 2, 3), "u1")
    assert Spec(BYTE).batch_array(0, batch, 0, max_rows=4) is batch


SOME, ALL = Array((2, 3), "u1", variable=(1,)), Array((2, 3), "u1", variable=True)


@rows(
    "leaf shape fits",
    [(SOME, (2, 0), True), (SOME, (1, 3), False), (ALL, (1, 0), True), (ALL, (2, 4), False)],
)
def test_batch_array_takes_smaller_rows_where_they_may_vary(
    leaf: Array,
    shape: Any,
    fits: bool,  # noqa: FBT001
) -> None:
    """Along a variable axis a batch may be smaller, never larger; a sample never differs."""
    spec, batch = Spec(leaf), np.zeros((4, *shape), "u1")
    if fits:
        assert spec.batch_array(0, batch, 7, max_rows=4) is batch
    else:
        assert "expected (2, 3) or less" in refusal(
            lambda: spec.batch_array(0, batch, 7, max_rows=4)
        )
    text = f"{AT}sample has shape {shape}, expected (2, 3); {SHAPE}{MANY_SHAPES}"
    assert refusal(lambda: spec.array(0, batch[0], 7)) == text


def test_a_batch_of_one_may_be_smaller() -> None:
    """Where samples of any shape come one by one, each is a batch of one row."""
    spec, sample = Spec(ALL), np.ones((1, 2), "u1")
    found = spec.batch_of_one(0, sample, 7)
    assert found.shape == (1, 1, 2)
    assert np.shares_memory(found, sample)
    assert spec.batch_of_one(0, [[1, 2]], 7).tolist() == [[[1, 2]]]
    assert refusal(lambda: spec.batch_of_one(0, np.ones((3, 3), "u1"), 7)) == (
        f"{AT}sample has shape (3, 3), expected (2, 3) or less; crop it in __getitem__, or give a "
        "larger shape in spec="
    )


def test_variable_axes_belong_to_the_spec() -> None:
    """They are numbers in order, shown as written, and survive equality and pickling."""
    trees = [BYTE, SOME, ALL, Array((2, 3), "u1", variable=(0,))]
    assert [[Spec(one) == Spec(two) for one in trees] for two in trees] == np.eye(4).tolist()
    assert [repr(tree) for tree in trees[:3]] == [
        "Array((2, 3), 'uint8')",
        "Array((2, 3), 'uint8', variable=(1,))",
        "Array((2, 3), 'uint8', variable=True)",
    ]
    assert Array((2, 3), "u1", variable=[np.int64(1), 0, 1]) == ALL
    assert Array((), "u1", variable=True).variable == ()
    again = pickle.loads(pickle.dumps(Spec({"a": SOME, "b": ALL})))
    assert [leaf.variable for leaf in again.leaves] == [(1,), (0, 1)]
    assert again == Spec({"a": SOME, "b": ALL})


def test_bfloat16_is_a_dtype_like_any_other() -> None:
    """Dtypes that packages register are inferred, compared, pickled; ints must fit exactly."""
    ml_dtypes = pytest.importorskip(
        "ml_dtypes", reason="bfloat16 comes from ml_dtypes, as in Keras and JAX"
    )
    value = np.zeros(3, ml_dtypes.bfloat16)
    spec = Spec.infer((value, value[0]), 0)
    assert repr(spec) == "Spec((Array((3,), 'bfloat16'), Array((), 'bfloat16')))"
    assert spec.array(0, value, 0) is value
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.array(1, 256, 0) == 256
    into = f"expected a value for dtype bfloat16; {INTO['int']}: {CONVERT}"
    assert refusal(lambda: spec.array(1, 257, 7)) == f"dataset[7]: sample[1] is the int 257, {into}"
    assert refusal(lambda: spec.array(1, 10**40, 7)).endswith(into)
    small = Spec(Array((), ml_dtypes.float8_e4m3fn))  # beyond its range is NaN
    assert refusal(lambda: small.array(0, 1000, 7)).startswith(
        f"{AT}sample is the int 1000, expected"
    )
    assert refusal(lambda: spec.array(0, np.zeros(3, "f2"), 7)) == (
        f"dataset[7]: sample[0] has dtype float16, expected bfloat16; {CAST}"
    )


def test_arrays_are_not_copied() -> None:
    """An array of any strides comes back itself; a subclass or array-like as a view of it."""
    strided = np.zeros((3, 2), "u1").T
    assert Spec(BYTE).array(0, strided, 0) is strided
    for value in (strided.view(np.recarray), Holder(strided)):
        assert np.shares_memory(Spec(BYTE).array(0, value, 0), strided)


def test_an_array_interface_is_asked_once() -> None:
    """What has only ``__array_interface__``, as a PIL image has, is taken, and converted once."""
    asked = []

    class Picture:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            asked.append(1)
            return dict(IMAGE.__array_interface__)

    assert np.array_equal(Spec(BYTE).array(0, Picture(), 0), IMAGE)
    assert asked == [1]


def test_leaves_are_numbered_depth_first_with_their_paths() -> None:
    """Leaves stand in the order of the structure, dicts by their keys, with a sample's bytes."""
    spec = Spec([{"b": BYTE, "a": Pair((LABEL,), Array((0, 9), "f8"))}, Array((), "S3")])
    assert spec.leaves == (
        Leaf("sample[0]['b']", (2, 3), np.dtype("uint8"), 6),
        Leaf("sample[0]['a'].image[0]", (), np.dtype("int64"), 8),
        Leaf("sample[0]['a'].label", (0, 9), np.dtype("float64"), 0),
        Leaf("sample[1]", (), np.dtype("S3"), 3),
    )
    pair = ("tuple", Pair, [("tuple", None, [("leaf", 1)]), ("leaf", 2)])
    assert spec.structure == ("list", [("dict", ["b", "a"], [("leaf", 0), pair]), ("leaf", 3)])
    assert Spec(BYTE).leaves == (Leaf("sample", (2, 3), np.dtype("uint8"), 6),)


BUILT: list[tuple[Any, Any]] = [
    (LABEL, 0),
    ((LABEL,), (0,)),
    ((LABEL, LABEL), (0, 1)),
    ([LABEL, LABEL], [0, 1]),
    ({"b": LABEL, "a": LABEL}, {"b": 0, "a": 1}),
    (Pair(LABEL, LABEL), Pair(0, 1)),
    (({"x": LABEL}, [LABEL], (), Pair(LABEL, (LABEL,))), ({"x": 0}, [1], (), Pair(2, (3,)))),
]


@rows("tree built", BUILT)
def test_unflatten_builds_the_structure_around_new_leaves(tree: Any, built: Any) -> None:
    """Bare, flat and nested samples come back in their own containers, with the leaves in order."""
    spec = Spec(tree)
    again = spec.unflatten(range(len(spec.leaves)))
    assert again == built
    assert type(again) is type(built)
    assert spec.flatten(again, 0) == list(range(len(spec.leaves)))


def test_dicts_are_looked_up_by_key() -> None:
    """The order of a sample's keys does not matter, and a defaultdict gets no keys added."""
    spec = Spec({"a": LABEL, "b": LABEL})
    assert spec.flatten({"b": 2, "a": 1}, 0) == [1, 2]
    sample: defaultdict[str, int] = defaultdict(int, a=1)
    refusal(lambda: spec.flatten(sample, 0))
    assert sample == {"a": 1}


def test_specs_are_equal_by_structure() -> None:
    """Equal are specs with the same containers, keys in the same order, shapes and dtypes."""
    other = namedtuple("Pair", ["image", "label"])  # type: ignore[name-match]  # noqa: PYI024
    assert Spec(Pair(BYTE, LABEL)) == Spec(other(BYTE, LABEL))
    assert hash(Spec(Pair(BYTE, LABEL))) == hash(Spec(other(BYTE, LABEL)))
    trees: list[Any] = [
        (BYTE, LABEL),
        [BYTE, LABEL],
        Pair(BYTE, LABEL),
        Couple(BYTE, LABEL),
        {"a": BYTE, "b": LABEL},
        {"b": BYTE, "a": LABEL},
        (BYTE, Array((), ">i8")),
        (BYTE, Array((1,), "i8")),
        ((BYTE, LABEL),),
    ]
    assert [[Spec(one) == Spec(two) for one in trees] for two in trees] == np.eye(
        len(trees)
    ).tolist()
    assert Spec(BYTE) != BYTE


def test_a_spec_pickles_without_its_named_tuples() -> None:
    """A spec whose NamedTuple cannot be imported comes back with a class like it."""
    fields = ["x", "def"]
    local = namedtuple("local", fields, rename=True)  # noqa: PYI024 - as one of the main module
    spec = Spec([local({"a": BYTE}, (LABEL,))])
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.leaves == spec.leaves
    assert again.flatten([local({"a": 1}, (2,))], 0) == [1, 2]
    assert again.unflatten([1, 2])[0]._fields == ("x", "_1")


def test_repr_is_the_call() -> None:
    """Specs and arrays are shown as one would write them."""
    spec = Spec((Array((32, 32, 3), "uint8"), {"a": Array((), [("x", ">i4")])}, Pair(LABEL, LABEL)))
    assert repr(spec) == (
        "Spec((Array((32, 32, 3), 'uint8'), {'a': Array((), [('x', '>i4')])}, "
        "Pair(image=Array((), 'int64'), label=Array((), 'int64'))))"
    )


def test_an_array_takes_what_numpy_takes() -> None:
    """Shapes of any ints and dtypes in any spelling make equal, hashable, pickled Arrays."""
    array = Array([np.int64(2), 3], np.uint8)
    assert array == BYTE
    assert hash(array) == hash(BYTE)
    assert array.shape == (2, 3)
    assert pickle.loads(pickle.dumps(array)) == array


# --- Random structures ---

DTYPES = st.sampled_from(
    ["bool", "u1", ">i2", "i8", "f2", "f4", ">f8", "c8", "S3", "U2", "M8[s]", "i4,f8"]
)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
ARRAY_VALUES = st.builds(np.zeros, SHAPES, DTYPES)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False)
)
KEYS = st.one_of(st.text(max_size=3), st.integers(0, 9))
SAMPLE_VALUES = st.recursive(
    ARRAY_VALUES | SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def same(one: Any, two: Any) -> bool:
    """Compare nested values: types of containers, and bytes of leaves."""
    if isinstance(one, dict):
        return (
            type(two) is dict
            and list(one) == list(two)
            and all(same(one[key], two[key]) for key in one)
        )
    if isinstance(one, (tuple, list)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return bool(np.array_equal(one, two))


def arrays(spec: Spec, sample: object) -> list[Any]:
    """Return the leaves of a sample as the writer of a slot asks for them."""
    return [spec.array(number, value, 7) for number, value in enumerate(spec.flatten(sample, 7))]


@given(SAMPLE_VALUES)
def test_a_sample_comes_back_from_its_leaves(sample: Any) -> None:
    """Infer, flatten, array and unflatten give back an equal sample; its spec survives pickling."""
    spec = Spec.infer(sample, 7)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert same(sample, spec.unflatten(arrays(again, sample)))


def spoiled(value: Any, how: str) -> Any:
    """Return a leaf with one fault."""
    shape = np.shape(value)
    faults = {
        "dtype": np.zeros(shape, "V7"),
        "shape": np.stack([value, value]),
        "None": None,
        "list": [value],
    }
    return faults[how]


@given(
    SAMPLE_VALUES,
    st.randoms(use_true_random=False),
    st.sampled_from(["dtype", "shape", "None", "list"]),
)
def test_one_spoiled_leaf_is_named(sample: Any, random: Any, how: str) -> None:
    """A leaf of another dtype, shape or type is refused with its index and path at the front."""
    spec = Spec.infer(sample, 7)
    leaves = spec.flatten(sample, 7)
    number = random.randrange(len(leaves))
    leaves[number] = spoiled(leaves[number], how)
    text = refusal(lambda: arrays(spec, spec.unflatten(leaves)))
    assert text.startswith(f"dataset[7]: {spec.leaves[number].path} ")


@given(
    st.lists(SAMPLE_VALUES, min_size=1, max_size=3),
    st.sampled_from(["list", "tuple", "dict"]),
    st.booleans(),
)
def test_one_child_too_many_or_too_few_is_named(
    children: list[Any],
    kind: str,
    more: bool,  # noqa: FBT001
) -> None:
    """A container that lost or gained a child is refused with its path."""

    def wrapped(inner: list[Any]) -> Any:
        return {"list": inner, "tuple": tuple(inner), "dict": dict(enumerate(inner))}[kind]

    spec = Spec.infer({"outer": [wrapped(children)]}, 7)
    other = wrapped([*children, 1] if more else children[1:])
    text = refusal(lambda: spec.flatten({"outer": [other]}, 7))
    assert text.startswith("dataset[7]: sample['outer'][0] ")

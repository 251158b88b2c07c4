"""Lists, strings and other dtypes on their way into a slot; the text of each refusal."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import fractions
import gc
import itertools
import math
import pathlib
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import ringfeed
from judge import raw
from refusing import refusal
from ringfeed import Array
from ringfeed.spec._rows import RowWriter
from ringfeed.spec.refusals import way_out
from ringfeed.spec.spec import Spec

pytestmark = pytest.mark.once

BOTH = ["quickly", "slowly"]
CONVERT = "convert it in __getitem__, or give another dtype in spec="
INTS = f"a Python int goes into an integer or float dtype that holds it exactly: {CONVERT}"


class Only:
    """A dataset whose samples are all the same."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, index: int) -> Any:
        return self.value


def stored(leaf: Array, value: Any, way: str = "quickly") -> Any:
    """Return what a leaf holds of a value: from the slot of a loader, or as `Spec` has it."""
    if way == "slowly":
        return Spec(leaf).array(0, value, 7)
    with ringfeed.Loader(
        Only(value), spec=leaf, batch_size=1, workers=0, sampler=[7], copy=True
    ) as loader:
        return next(iter(loader))[0, ...]


# ---- strings ----

TEXTS: list[tuple[str, Any, Any]] = [
    ("S4", b"ab", b"ab"),
    ("S4", b"abcd", b"abcd"),
    ("S4", "ab", b"ab"),
    ("S4", "äö", "äö".encode()),
    ("S4", b"", b""),
    ("S4", b"\0a", b"\0a"),
    ("S4", np.bytes_(b"ab"), b"ab"),
    ("S4", np.str_("ab"), b"ab"),
    ("U3", "ab", "ab"),
    ("U3", "", ""),
    ("U3", "日本\U0001f600", "日本\U0001f600"),
    ("U3", np.str_("ab"), "ab"),
    (">U3", "日本", "日本"),
    ("U3", np.array("ab", ">U2"), "ab"),
    ("S4", np.array(b"a", "S9"), b"a"),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("dtype", "value", "expected"), TEXTS)
def test_strings_are_stored_where_the_spec_has_room(
    dtype: str, value: Any, expected: Any, way: str
) -> None:
    """As str or bytes, as NumPy's, narrower or wider; what was in the slot before is gone."""
    found = stored(Array((), dtype), value, way)
    assert (found.dtype, found[()]) == (np.dtype(dtype), expected)
    assert raw(found) == raw(np.array(expected, dtype))


def test_strings_and_lists_are_written_past_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own strings and lists that certainly fit are never judged one by one."""
    texts = [
        (Array((), dtype), value, expected)
        for dtype, value, expected in TEXTS
        if type(value) in (str, bytes) and np.dtype(dtype).isnative and len(value) == len(expected)
    ]
    lists = [
        (Array((3,), "int16"), [1, -2, 3], [1, -2, 3]),
        (Array((2, 2), "float32"), [[0.5, 1], [2, -0.25]], [[0.5, 1], [2, -0.25]]),
        (Array((2,), "uint8"), [np.uint8(7), 255], [7, 255]),
    ]
    with monkeypatch.context() as patched:
        patched.setattr(Spec, "array", lambda *_: pytest.fail("it was judged by the spec"))
        for array, value, expected in [*texts, *lists]:
            assert stored(array, value).tolist() == expected


def test_a_shorter_string_leaves_nothing_of_the_one_before() -> None:
    """A slot that held a longer string holds the shorter one, padded."""
    names = ["abcdef", "ab", "äöüabc", "", "abcdef", "x"]
    spec = (Array((), "U6"), Array((), "S12"))
    with ringfeed.Loader(
        [*zip(names, names, strict=True)], spec=spec, batch_size=1, slots=2, workers=0
    ) as loader:
        found = [(one.tolist(), other.tolist()) for one, other in loader]
    assert found == [([name], [name.encode()]) for name in names]


CUT = "or cut it in __getitem__"
NUL = "return numpy.frombuffer(value, 'uint8') in place of bytes that are no text"
BAD_TEXTS: list[tuple[str, Any, str]] = [
    (
        "S4",
        b"abcde",
        (
            "has 5 bytes, expected at most 4, as dtype |S4 holds; give a wider one in spec=, as "
            f"in 'S5', {CUT}"
        ),
    ),
    (
        "S4",
        "äöü",
        (
            "has 6 bytes, expected at most 4, as dtype |S4 holds; give a wider one in spec=, as "
            f"in 'S6', {CUT}"
        ),
    ),
    (
        "U3",
        np.array("abcde"),
        (
            "has 5 characters, expected at most 3, as dtype <U3 holds; give a wider one in spec=, "
            f"as in 'U5', {CUT}"
        ),
    ),
    ("U3", "a\0", f"ends with a NUL, expected text, as dtype <U3 pads it with NULs; {NUL}"),
    ("S4", b"a\0", f"ends with a NUL, expected text, as dtype |S4 pads it with NULs; {NUL}"),
    (
        "U3",
        b"a",
        (
            "is of type bytes, expected a str for dtype <U3; return its .decode(), or give an S "
            "dtype in spec=, as in 'S3'"
        ),
    ),
    (
        "S4",
        "\ud800",
        "is a str that has no UTF-8 ('utf-8' codec can't encode character '\\ud800' in position "
        "0: surrogates not allowed), expected text; repair it in __getitem__",
    ),
    ("S4", 3, "is the int 3, expected a value for dtype |S4; " + INTS),
    (
        "i8",
        "3",
        "is of type str, expected an array of shape () and dtype int64; make it one in __getitem__",
    ),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("dtype", "value", "text"), BAD_TEXTS)
def test_strings_that_do_not_fit_are_refused(dtype: str, value: Any, text: str, way: str) -> None:
    """Nothing is cut off, and nothing is stored that comes back as another string."""
    assert refusal(lambda: stored(Array((), dtype), value, way)) == f"dataset[7]: sample {text}"


# ---- lists ----

LISTS: list[tuple[Any, str, Any]] = [
    ((3,), "i8", [1, 2, 3]),
    ((3,), "u1", (0, 2, 255)),
    ((3,), "f4", [0.1, 2, float("inf")]),
    ((2, 2), "f8", [[0.1, 2], (3, 4.5)]),
    ((2,), "?", [True, False]),
    ((2,), ">i2", [1, -2]),
    ((2,), "c16", [1j, 2 + 3j]),
    ((2,), "S3", ["ab", b"c"]),
    ((2, 1), "U3", [["ab"], ["abc"]]),
    ((2, 2), "f4", [np.ones(2, "f4"), np.zeros(2, "f4")]),
    ((0,), "f4", []),
    ((2, 0), "f4", [[], []]),
    ((2,), "f4", [np.float32(1), np.float32(2)]),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("shape", "dtype", "value"), LISTS)
def test_a_list_fills_an_array_of_the_spec(shape: Any, dtype: str, value: Any, way: str) -> None:
    """Numbers, strings and arrays, in lists of lists or tuples."""
    found = stored(Array(shape, dtype), value, way)
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
    assert raw(found) == raw(np.asarray(value).astype(dtype))


BAD_LISTS: list[tuple[Any, str, Any, str]] = [
    (
        (3,),
        "i8",
        [1, 2],
        (
            "sample has shape (2,), expected (3,); every sample must have the shape of the spec: "
            "crop, pad"
        ),
    ),
    (
        (2, 2),
        "i8",
        [[1, 2], [3]],
        "sample is a list of 2, of which numpy.asarray() raised ValueError: setting an array",
    ),
    ((2,), "u1", [1, 300], f"sample[1] is the int 300, expected a value for dtype uint8; {INTS}"),
    (
        (2, 2),
        "i8",
        [[1, 2], [3, 2**70]],
        f"sample[1][1] is the int {2**70}, expected a value for dtype int64; {INTS}",
    ),
    (
        (2,),
        "f4",
        [1, None],
        "sample has dtype object, expected float32; convert it in __getitem__, or give this dtype",
    ),
    (
        (2,),
        "f4",
        [np.float64(1), 2],
        "sample has dtype float64, expected float32; convert it in __getitem__, give this",
    ),
    (
        (2,),
        "S2",
        ["a", "abc"],
        "sample[1] has 3 bytes, expected at most 2, as dtype |S2 holds; give a wider one in spec=",
    ),
    (
        (1,),
        "f4",
        5,
        (
            "sample is of type int, expected an array of shape (1,) and dtype float32; make it "
            "one in __getitem"
        ),
    ),
    (
        (0,),
        "f4",
        5,
        (
            "sample is of type int, expected an array of shape (0,) and dtype float32; make it "
            "one in __getitem"
        ),
    ),
    (
        (0,),
        "f4",
        [5],
        (
            "sample has shape (1,), expected (0,); every sample must have the shape of the spec: "
            "crop, pad or"
        ),
    ),
]


MIXED_LISTS: list[tuple[str, Any, str]] = [
    ("U3", ["a", 1], f"sample[1] is the int 1, expected a value for dtype <U3; {INTS}"),
    (
        "U3",
        ["a", np.int64(1)],
        "sample[1] has dtype int64, expected <U3; convert it in __getitem__, or give this",
    ),
    (
        "i8",
        [np.int64(1), True],
        "sample[1] is the bool True, expected a value for dtype int64; a Python bool goes",
    ),
    (
        "f8",
        [np.int64(2**53 + 1), 0.5],
        "sample[0] has dtype int64, expected float64; convert it in __getitem__, give",
    ),
    (
        "m8[s]",
        [np.timedelta64(1, "s"), 2],
        f"sample[1] is the int 2, expected a value for dtype timedelta64[s]; {INTS}",
    ),
    (
        "U3",
        ["a", np.array("bcde")],
        "sample[1] has 4 characters, expected at most 3, as dtype <U3 holds; give a wider",
    ),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("dtype", "value", "text"), MIXED_LISTS)
def test_no_item_of_a_list_becomes_another_beside_others(
    dtype: str, value: Any, text: str, way: str
) -> None:
    """NumPy alone would make strings of numbers, numbers of bools, and round large ints."""
    assert refusal(lambda: stored(Array((2,), dtype), value, way)).startswith(f"dataset[7]: {text}")


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("casts", [False, True])
def test_a_mask_in_a_list_is_not_dropped(way: str, casts: bool) -> None:  # noqa: FBT001
    """A masked array is refused in a list as it is alone."""
    rows = [np.zeros(2), np.ma.masked_array([1.0, 2.0], [False, True])]
    text = (
        "dataset[7]: sample[1] is a masked array, expected a plain array; return "
        "value.filled(...) in its place"
    )
    assert refusal(lambda: stored(Array((2, 2), "f8", cast=casts), rows, way)) == text


class Endless(list[Any]):
    """A list whose iteration has no end."""

    def __iter__(self) -> Any:
        return itertools.cycle(list.__iter__(self))


class Itself(list[Any]):
    """A list that says which array it is."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return np.ones(3)


@pytest.mark.parametrize("way", BOTH)
def test_lists_by_other_names_are_taken_for_what_they_hold(way: str) -> None:
    """Their own __iter__ is not asked, and their __array__ is."""
    assert stored(Array((2,), "f8"), Endless([1, 2]), way).tolist() == [1, 2]
    assert stored(Array((2, 1), "f8"), [Endless([1]), (2,)], way).tolist() == [[1], [2]]
    assert stored(Array((3,), "f8"), Itself([1, 2]), way).tolist() == [1, 1, 1]
    assert (
        stored(Array((2, 3), "f8"), [Itself([1, 2]), Itself([3])], way).tolist() == [[1, 1, 1]] * 2
    )


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("value", [complex(math.inf, 1e39), complex(1e39, math.nan)])
def test_no_part_of_a_complex_number_becomes_infinite(value: complex, way: str) -> None:
    """Whatever the other part is."""
    text = f"dataset[7]: sample is the complex {value!r}, expected a value for dtype complex64; "
    assert refusal(lambda: stored(Array((), "c8"), value, way)).startswith(text)
    assert stored(Array((), "c8"), complex(math.inf, 1), way)[()] == complex(math.inf, 1)


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("number", [0x110000, 0x61000000, 0xFFFFFFFF])
def test_arrays_of_what_is_no_text_are_refused(number: int, way: str) -> None:
    """As one whose bytes were read in the wrong order is."""
    array = np.full((2, 1), number, "<u4").view("<U1")
    assert refusal(lambda: stored(Array((2, 1), "U3"), array, way)) == (
        "dataset[7]: sample has dtype <U1, but holds numbers that are no characters, expected "
        "text; repair it in __getitem__"
    )


@pytest.mark.parametrize("way", BOTH)
def test_a_string_of_an_array_that_does_not_fit_is_named(way: str) -> None:
    """By its place, as an item of a list is."""
    array = np.array([["ab", "a"], ["a", "abcd"]])
    assert refusal(lambda: stored(Array((2, 2), "U3"), array, way)).startswith(
        "dataset[7]: sample[1][1] has 4 characters, expected at most 3, as dtype <U3 holds; "
    )


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("shape", "dtype", "value", "text"), BAD_LISTS)
def test_lists_that_do_not_fit_are_refused(
    shape: Any, dtype: str, value: Any, text: str, way: str
) -> None:
    """The error says which item it is, where it is one."""
    assert refusal(lambda: stored(Array(shape, dtype), value, way)).startswith(
        f"dataset[7]: {text}"
    )


def test_a_list_of_a_whole_batch_is_taken() -> None:
    """Where the spec says what a row is, labels may be a list."""
    spec = {"x": Array((2,), "f4"), "y": Array((), "i8"), "name": Array((), "S4")}
    batch = {"x": [[1.0, 2.0], [3.0, 4.0]], "y": [5, 6], "name": ["a", "b"]}
    with ringfeed.Loader(
        [batch], spec=spec, batch_size=None, max_batch_size=4, workers=0, copy=True
    ) as loader:
        found = next(iter(loader))
    assert {name: leaf.tolist() for name, leaf in found.items()} == {**batch, "name": [b"a", b"b"]}


def test_a_list_of_many_numbers_is_warned_of_once() -> None:
    """Each is a leaf, which is rarely meant; up to 8 are, and those in a dict."""
    text = (
        "dataset[0]: sample['ids'] is a list of 9 numbers, each of which is a leaf and an array "
        "of its own in a batch; return numpy.asarray() of it for one leaf, or give spec= with "
        "Array((9,), 'int64') in its place"
    )
    with pytest.warns(UserWarning, match="is a list of 9 numbers") as caught:
        loader = ringfeed.Loader([{"ids": [*range(9)], "mask": (0.5,) * 20}], workers=0)
    loader.close()
    assert [str(warning.message) for warning in caught] == [text]
    assert caught[0].filename == __file__


# ---- other dtypes ----

CASTS: list[tuple[str, str, Any]] = [
    ("f8", "f4", [0.1, -2.5, np.inf, -np.inf, np.nan, 1e-300]),
    ("f4", "f8", [0.1, np.inf, np.nan]),
    ("f8", "f2", [0.1, 60000]),
    ("i8", "i4", [1, -(2**31), 2**31 - 1]),
    ("i4", "i8", [1, -(2**31)]),
    ("i8", "u1", [0, 255]),
    ("u8", "i8", [0, 2**63 - 1]),
    ("i8", "f4", [2**24 + 1, -3]),
    ("i4", "f4", [7]),
    ("i2", "f4", [-7, 9]),
    ("u1", "f4", [0, 255]),
    ("u1", "i4", [0, 255]),
    ("u1", "i8", [0, 255]),
    ("?", "f4", [True, False]),
    ("?", "i8", [True, False]),
    (">f8", "f4", [0.1, 2]),
    ("f8", ">f4", [0.1, 2]),
    ("f8", "c8", [0.1, 2]),
    ("c16", "c8", [0.1j, 2]),
    ("g", "f8", [0.5]),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("given", "wanted", "numbers"), CASTS)
def test_other_dtypes_are_converted_where_asked_for(
    given: str, wanted: str, numbers: Any, way: str
) -> None:
    """cast=True gives what NumPy's astype gives, of arrays of any strides and of scalars."""
    array = np.array(numbers, given)
    for value in (array, np.repeat(array, 2)[::2], np.stack([array, array]).T, array[0]):
        found = stored(Array(value.shape, wanted, cast=True), value, way)
        assert (found.dtype, found.shape) == (np.dtype(wanted), value.shape)
        with np.errstate(all="ignore"):
            assert raw(found) == raw(np.asarray(value).astype(wanted))


def test_large_arrays_are_converted_too() -> None:
    """Of more bytes than are converted with the GIL held."""
    values = np.linspace(-1, 1, 100_000)
    assert raw(stored(Array((100_000,), "f4", cast=True), values)) == raw(values.astype("f4"))
    values[-1] = 1e39
    assert refusal(lambda: stored(Array((100_000,), "f4", cast=True), values)).startswith(
        "dataset[7]: sample holds 1e+39"
    )


@pytest.mark.parametrize(
    ("value", "wanted"), [(1, "f4"), (2**24 + 1, "f4"), (0.1, "f8"), (True, "i8"), ([0.1, 2], "f4")]
)
def test_pythons_numbers_are_converted_too(value: Any, wanted: str) -> None:
    """Where a number alone would be refused, too, as a large int for a float32."""
    shape = np.shape(value)
    found = stored(Array(shape, wanted, cast=True), value)
    assert raw(found) == raw(np.asarray(value).astype(wanted))


WIDER = "give a wider dtype in spec=, or clip it in __getitem__"
BAD_CASTS: list[tuple[Any, str, str]] = [
    (
        np.array([0, 1e39]),
        "f4",
        (
            "holds 1e+39, expected what dtype float32 holds, into which cast=True converts "
            f"float64; {WIDER}"
        ),
    ),
    (
        np.array([0, 2**31]),
        "i4",
        (
            "holds 2147483648, expected what dtype int32 holds, into which cast=True converts "
            f"int64; {WIDER}"
        ),
    ),
    (
        np.array([-1]),
        "u8",
        f"holds -1, expected what dtype uint64 holds, into which cast=True converts int64; {WIDER}",
    ),
    (
        np.array([2**63], "u8"),
        "i8",
        (
            "holds 9223372036854775808, expected what dtype int64 holds, into which cast=True "
            f"converts uint64; {WIDER}"
        ),
    ),
    (
        np.array([70000]),
        "f2",
        (
            "holds 70000, expected what dtype float16 holds, into which cast=True converts int64; "
            f"{WIDER}"
        ),
    ),
    (
        np.array([0.5]),
        "i8",
        (
            "has dtype float64, expected int64; cast=True makes no int64 of float64: convert it "
            "in __getitem__"
        ),
    ),
    (
        np.array([1]),
        "?",
        (
            "has dtype int64, expected bool; cast=True makes no bool of int64: convert it in "
            "__getitem__"
        ),
    ),
    (
        np.array([1j]),
        "f8",
        (
            "has dtype complex128, expected float64; cast=True makes no float64 of complex128: "
            "convert it in __getitem__"
        ),
    ),
]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize(("value", "wanted", "text"), BAD_CASTS)
def test_numbers_that_would_become_others_are_refused(
    value: Any, wanted: str, text: str, way: str
) -> None:
    """Whole numbers arrive as themselves, finite ones as finite, and fractions are not cut off."""
    leaf = Array(value.shape, wanted, cast=True)
    assert refusal(lambda: stored(leaf, value, way)) == f"dataset[7]: sample {text}"


def test_without_being_asked_nothing_is_converted() -> None:
    """The error says how to ask for it."""
    text = (
        "convert it in __getitem__, give this dtype in spec=, or have it converted by cast=True "
        "of its Array"
    )
    found = refusal(lambda: stored(Array((2,), "f4"), np.zeros(2)))
    assert found == f"dataset[7]: sample has dtype float64, expected float32; {text}"


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("f4", {"cast": 1}, "Array has cast=1, expected True or False; write it as in cast=True"),
    (
        "f4",
        {"cast": True, "scale": 2},
        "Array has cast=True beside scale=, offset=, mean=, std= or layout=, expected one of "
        "them; leave cast= out: uint8 is converted already",
    ),
    (
        "S4",
        {"cast": True},
        "Array has cast=True and dtype |S4, expected a dtype of numbers; leave cast= out: shorter "
        "strings are taken anyway",
    ),
    (
        "M8[s]",
        {"cast": True},
        "Array has cast=True and dtype datetime64[s], expected a dtype of numbers; leave cast= out",
    ),
]


@pytest.mark.parametrize(("dtype", "given", "text"), REFUSED)
def test_an_array_that_cannot_convert_is_refused(dtype: str, given: Any, text: str) -> None:
    """Only numbers are converted, and only once."""
    assert refusal(lambda: Array((2,), dtype, **given)) == text


def test_cast_belongs_to_the_spec() -> None:
    """It is shown as one would write it, and survives equality and pickling."""
    array = Array((2,), "f4", cast=True)
    assert repr(array) == "Array((2,), 'float32', cast=True)"
    assert (array == Array((2,), "f4"), array == Array((2,), "f4", cast=True)) == (False, True)
    assert pickle.loads(pickle.dumps(Spec({"a": array}))) == Spec({"a": array})
    assert pickle.loads(pickle.dumps(Spec({"a": array}))).leaves[0].casts


def test_columns_are_converted() -> None:
    """Arrays given as the dataset are converted row by row."""
    x, y = np.linspace(0, 1, 12).reshape(4, 3), np.arange(4)
    spec = (Array((3,), "f4", cast=True), Array((), "i4", cast=True))
    with ringfeed.Loader((x, y), spec=spec, batch_size=4, workers=0, copy=True) as loader:
        found = next(iter(loader))
    assert [raw(leaf) for leaf in found] == [raw(x.astype("f4")), raw(y.astype("i4"))]
    text = (
        "spec= says (Array((3,), 'int32', cast=True), Array((), 'int32', cast=True)), but the "
        "arrays are Spec((Array((3,), 'float64'), Array((), 'int64'))); cast=True converts arrays "
        "of the samples' shape, and none of fractions into whole numbers"
    )
    wrong = (Array((3,), "i4", cast=True), Array((), "i4", cast=True))
    assert refusal(lambda: ringfeed.Loader((x, y), spec=wrong)) == text


def test_whole_batches_are_converted() -> None:
    """Batches smaller than the spec's shape, too."""
    batch = np.linspace(0, 1, 12).reshape(2, 6)
    spec = Array((8,), "f4", cast=True, variable=True)
    with ringfeed.Loader(
        [batch], spec=spec, batch_size=None, max_batch_size=4, workers=0, copy=True
    ) as loader:
        assert raw(next(iter(loader))) == raw(batch.astype("f4"))


def test_what_a_dataset_writes_itself_is_not_converted() -> None:
    """read_into writes into the slot, which has the spec's dtype."""

    class Own:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.zeros(2)

        def read_into(self, index: int, out: Any) -> None:
            out[...] = index

    assert refusal(lambda: ringfeed.Loader(Own(), spec=Array((2,), "f4", cast=True))) == (
        "sample is converted by its Array, but read_into writes into the slot itself; write "
        "float32 there and leave cast= out, or take read_into out of the dataset"
    )


# ---- None ----


def test_none_stays_none() -> None:
    """In every kind of container, without a spec and with one."""
    sample = (np.ones(2), None, {"a": None, "b": [None, 3]})
    for spec in (None, Spec.infer(sample, 0).tree):
        with ringfeed.Loader([sample] * 2, spec=spec, batch_size=2, workers=0, copy=True) as loader:
            x, nothing, rest = next(iter(loader))
        assert (x.shape, nothing, rest["a"], rest["b"][0], rest["b"][1].tolist()) == (
            (2, 2),
            None,
            None,
            None,
            [3, 3],
        )


MIXED: list[tuple[Any, Any, str]] = [
    (
        (1, None),
        (1, 2),
        (
            "sample[1] is of type int, expected None as the spec has it there; return None for "
            "every index, or for none"
        ),
    ),
    (
        (1, 2),
        (1, None),
        "sample[1] is None, expected an array of shape () and dtype int64; make it one in "
        "__getitem__, or return None there for every index",
    ),
    (
        (1, [2]),
        (1, None),
        "sample[1] is None, expected a list of 1; return the same structure for every index",
    ),
]


@pytest.mark.parametrize(("first", "second", "text"), MIXED)
def test_none_in_some_samples_is_refused(first: Any, second: Any, text: str) -> None:
    """A place holds None in all samples or in none, and one that is left out is told of."""
    with ringfeed.Loader([first, second], batch_size=1, workers=0, copy=True) as loader:
        batches = iter(loader)
        next(batches)
        assert refusal(lambda: next(batches)) == f"dataset[1]: {text}"
    with ringfeed.Loader(
        [first, second, first], batch_size=3, workers=0, copy=True, on_error="skip"
    ) as loader:
        assert len(next(iter(loader))[0]) == 2


def test_samples_that_are_none_are_left_out() -> None:
    """With on_error="skip", as a collate function of torch's would filter them."""
    with ringfeed.Loader(
        [1, None, 2, None], batch_size=4, workers=0, copy=True, on_error="skip"
    ) as loader:
        assert next(iter(loader)).tolist() == [1, 2]


# ---- ways out ----


class Colour(enum.Enum):
    """No number."""

    RED = "red"


WAYS_OUT: list[tuple[Any, str]] = [
    (
        collections.deque([1]),
        (
            "make it a list, each of whose items is a leaf, or numpy.asarray() of that list, "
            "which is one leaf"
        ),
    ),
    (range(3), "return numpy.arange() in its place"),
    (frozenset([1]), "a set has no order: make it a sorted list, or an array"),
    (decimal.Decimal(1), "return float() of it"),
    (fractions.Fraction(1), "return float() of it"),
    (
        dt.datetime(2026, 1, 1),  # noqa: DTZ001
        "return numpy.datetime64() of it or, for a framework, its .timestamp()",
    ),
    (dt.date(2026, 1, 1), "return numpy.datetime64() of it or, for a framework, its .toordinal()"),
    (dt.timedelta(1), "return numpy.timedelta64() of it or, for a framework, its .total_seconds()"),
    (dt.time(), "return a number in its place, such as the seconds since midnight"),
    (pathlib.PurePath("a"), "return str() of it"),
    (Colour.RED, "return its .value"),
]


@pytest.mark.parametrize(("value", "text"), WAYS_OUT)
def test_a_refusal_names_the_way_out(value: Any, text: str) -> None:
    """Without a spec, with one, and in a whole batch."""
    got = f"is of type {type(value).__name__}, expected"
    parts = "an array or number, or a tuple, list or dict of them"
    assert refusal(lambda: Spec.infer([value], 7)) == f"dataset[7]: sample[0] {got} {parts}; {text}"
    expected = "an array of shape () and dtype int64"
    assert (
        refusal(lambda: Spec(Array((), "i8")).array(0, value, 7))
        == f"dataset[7]: sample {got} {expected}; {text}"
    )
    rows = "an array with a leading row axis"
    assert (
        refusal(lambda: Spec.infer_batch([value], 7))
        == f"dataset[7]: batch[0] {got} {rows}; {text}"
    )


def named(name: str, package: str, **given: Any) -> Any:
    """Return an object of a class of that name and package."""
    return type(name, (), {"__module__": f"{package}.inner", **given})()


FOREIGN: list[tuple[Any, str]] = [
    (
        named("RaggedTensor", "tensorflow"),
        "return its .to_tensor(), which pads it, or its .flat_values and row lengths as leaves",
    ),
    (
        named("SparseTensor", "tensorflow"),
        "return tf.sparse.to_dense() of it, or its .indices and .values as leaves",
    ),
    (
        named("csr_matrix", "scipy", toarray=None),
        (
            "return its .toarray() or, as leaves of their own, its .data and what says where they "
            "stand"
        ),
    ),
    (
        named("Tensor", "torch", dtype="torch.bfloat16"),
        "NumPy has no bfloat16: return its .float(), or its bits as .view(torch.int16)",
    ),
    (
        named("Tensor", "torch", layout="torch.sparse_coo"),
        "return its .to_dense(), or its indices and values as leaves",
    ),
]


@pytest.mark.parametrize(("value", "text"), FOREIGN)
def test_classes_of_packages_are_known_by_name(value: Any, text: str) -> None:
    """No package is imported for it."""
    assert way_out(value) == text
    assert refusal(lambda: Spec.infer(value, 7)).endswith(f"; {text}")


@pytest.mark.parametrize(
    "value", [3, None, "text", object(), named("Tensor", "torch"), named("Thing", "scipy")]
)
def test_of_others_nothing_is_known(value: Any) -> None:
    """A general remedy is given for them."""
    assert way_out(value) is None


# ---- specs of frameworks ----


def tensor_spec(name: str, package: str, shape: Any, dtype: Any) -> Any:
    """Return what looks like a framework's spec of a tensor."""
    return named(name, package, shape=shape, dtype=dtype)


class Dtype:
    """As TensorFlow's: NumPy's is an attribute of it."""

    def __init__(self, dtype: Any) -> None:
        self.as_numpy_dtype = dtype

    def __repr__(self) -> str:
        return "tf.string"


BYTES = tensor_spec("TensorSpec", "tensorflow", (4, 3), Dtype(np.uint8))
LABELS = tensor_spec("ShapeDtypeStruct", "jax", (4,), np.dtype("int32"))


def test_specs_of_frameworks_are_arrays() -> None:
    """Of one sample, and of a whole batch less the first axis."""
    spec = {"x": BYTES, "y": [LABELS, named("NoneTensorSpec", "tensorflow"), Array((2,), "f4")]}
    assert Spec(spec) == Spec(
        {"x": Array((4, 3), "u1"), "y": [Array((4,), "i4"), None, Array((2,), "f4")]}
    )
    whole = Spec({"x": Array((3,), "u1"), "y": [Array((), "i4"), None, Array((2,), "f4")]})
    assert Spec(spec, has_rows=True) == whole
    batch = {"x": np.zeros((4, 3), "u1"), "y": [np.zeros(4, "i4"), None, np.zeros((4, 2), "f4")]}
    with ringfeed.Loader(
        [batch], batch_size=None, max_batch_size=4, spec=spec, workers=0, copy=True
    ) as loader:
        assert next(iter(loader))["x"].shape == (4, 3)


class Unknown:
    """A shape of unknown rank."""

    def __iter__(self) -> Any:
        raise ValueError("Cannot iterate over a shape with unknown rank.")


def formed(shape: str, largest: str, form: str) -> str:
    """Return what is said of a spec whose samples differ in shape."""
    array = f"ringfeed.Array({shape}, 'uint8', max_shape={largest}, form={form!r})"
    return f"give {array}, with the largest sample in the place of 300"


ANY_SHAPE = "give a ringfeed.Array of the shape of a sample, with form= where samples differ"
PARTIAL: list[tuple[Any, str]] = [
    (
        tensor_spec("TensorSpec", "tensorflow", (None, 3), Dtype(np.uint8)),
        "spec['x'] is a TensorSpec of shape (None, 3), expected a shape that is known; "
        + formed("(None, 3)", "(300, 3)", "ragged"),
    ),
    (
        tensor_spec("TensorSpec", "tensorflow", (None, None, 3), Dtype(np.uint8)),
        "spec['x'] is a TensorSpec of shape (None, None, 3), expected a shape that is known; "
        + formed("(None, None, 3)", "(300, 300, 3)", "pad"),
    ),
    (
        tensor_spec("TensorSpec", "tensorflow", Unknown(), Dtype(np.uint8)),
        f"spec['x'] is a TensorSpec of shape unknown, expected a shape that is known; {ANY_SHAPE}",
    ),
    (
        tensor_spec("TensorSpec", "tensorflow", (), Dtype(object)),
        "spec['x'] is a TensorSpec of dtype tf.string, expected a dtype of fixed width; give "
        "ringfeed.Text(64) for str, or ringfeed.Bytes(64) for bytes, with the most bytes of one "
        "sample",
    ),
    (
        named("TypeSpec", "tensorflow"),
        "spec['x'] is of type TypeSpec, expected a spec of dense tensors; give a ringfeed.Array "
        "for each array that dataset[i] returns",
    ),
]


@pytest.mark.parametrize(("given", "text"), PARTIAL)
def test_specs_that_leave_something_open_are_refused(given: Any, text: str) -> None:
    """A slot has a size: shapes and widths must be known."""
    assert refusal(lambda: Spec({"x": given})) == text


def test_the_spec_of_a_whole_batch_has_rows() -> None:
    """Its first axis, which may be of unknown length."""
    scalar = tensor_spec("TensorSpec", "tensorflow", (), Dtype(np.uint8))
    assert refusal(lambda: Spec({"x": scalar}, has_rows=True)) == (
        "spec['x'] is a TensorSpec of shape (), expected a leading row axis; give the spec of a "
        "whole batch, whose first axis counts its rows"
    )
    rows = tensor_spec("TensorSpec", "tensorflow", (None, 3), Dtype(np.uint8))
    assert Spec(rows, has_rows=True) == Spec(Array((3,), "u1"))


# ---- what writes them ----


class Owner(list[Any]):
    """A list that one can see go."""


def test_a_writer_in_a_cycle_may_be_collected() -> None:
    """The collector takes its parts away in any order, and all memory is freed."""
    longer = Array((None,), "i4", max_shape=(4,), form="pad")
    spec = Spec((Array((2,), "f4"), Array((3,), "f4", scale=2, mean=(1, 2, 3)), longer))
    seen = []
    for _ in range(2000):
        owner: Any = Owner()
        owner.append(RowWriter(spec, (0, 64, 128), owner, 0))
        seen.append(weakref.ref(owner))
    del owner
    gc.collect()
    assert all(ref() is None for ref in seen)

"""What an Array with a form says and refuses, and what holds samples that differ in length."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ringfeed import Array, Bytes, Masked, Padded, Ragged, Spec, Text
from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once

EXAMPLE = "write it as in Array((None, 4), 'float32', max_shape=(300, 4), form='ragged')"

WRITTEN = [
    "Array((None, 4), 'float32', max_shape=(300, 4), form='ragged')",
    "Array((None,), 'int64', max_shape=(300,), form='ragged', total=9000)",
    "Array((None,), 'int64', max_shape=(300,), form='pad')",
    (
        "Array((None,), 'int64', max_shape=(300,), form='pad', padding_value=-100, pad_to=512, "
        "lengths=True)"
    ),
    (
        "Array((3, None, None), 'float32', max_shape=(3, 8, 9), form='pad', padding_value=0.5, "
        "pad_to=(16, 32), mask=True)"
    ),
    "Array((None,), 'float32', max_shape=(300,), form='ragged', cast=True)",
    "Bytes(300)",
    "Bytes(300, total=4000)",
    "Text(300, total=300)",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_it_is_shown_as_it_is_written(text: str) -> None:
    """And is equal to what is written so, hashed alike, and pickled with its spec."""
    names = {"Array": Array, "Bytes": Bytes, "Text": Text}
    first, second = eval(text, names), eval(text, names)  # noqa: S307 - the texts above
    assert repr(first) == text
    assert first == second
    assert hash(first) == hash(second)
    spec = Spec({"x": first, "y": Array((2,), "uint8")})
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_forms_differ() -> None:
    """Leaves of the same room in other forms are others."""
    shape: Any = {"shape": (None,), "dtype": "uint8", "max_shape": (9,)}
    arrays = {
        Array(**shape, form="ragged"),
        Array(**shape, form="pad"),
        Bytes(9),
        Text(9),
        Array((9,), "uint8"),
    }
    assert len(arrays) == 5


@pytest.mark.parametrize(
    "value", [-1, True, np.float32("nan"), np.datetime64("2020-01-01", "D"), np.int8(3)], ids=repr
)
def test_padding_of_each_kind(value: Any) -> None:
    """A Python number, or a scalar of the very dtype, becomes one element; equal to itself."""
    dtype = np.asarray(value).dtype
    array = Array((None,), dtype, max_shape=(9,), form="pad", padding_value=value)
    assert array.form is not None
    assert array.form.padding == np.asarray(value).tobytes()
    assert pickle.loads(pickle.dumps(array)) == array


def ragged(**more: Any) -> Array:
    """Return an Array with another argument."""
    return Array((None, 2), "float64", **{"max_shape": (12, 2), "form": "ragged", **more})


def pad(shape: Any = (2, None), dtype: Any = "float64", **more: Any) -> Array:
    """Return an Array with another argument."""
    return Array(shape, dtype, **{"max_shape": (2, 4), "form": "pad", **more})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: Array((None, 2), "float64"),
        f"Array has shape (None, 2) and form=None, expected form='ragged' or form='pad'; {EXAMPLE}",
    ),
    (
        lambda: ragged(form="round"),
        (
            "Array has shape (None, 2) and form='round', expected form='ragged' or form='pad'; "
            f"{EXAMPLE}"
        ),
    ),
    (
        lambda: Array((3,), "float64", total=9),
        f"Array has shape (3,) and form=None, expected form='ragged' or form='pad'; {EXAMPLE}",
    ),
    (
        lambda: ragged(max_shape=None),
        "Array has shape (None, 2) and no max_shape, expected the shape of the largest sample; "
        "give max_shape=, as in max_shape=(300, 2)",
    ),
    *(
        (
            lambda most=most: ragged(max_shape=most),  # type: ignore[misc]
            f"Array has max_shape={most!r}, expected the shape of the largest sample: (None, 2) "
            "with a number of 1 or more for each None; as in max_shape=(300, 2)",
        )
        for most in [(3, 4, 5), (3, 4), (0, 2), ("x", 2), 5]
    ),
    (
        lambda: pad((2, 4)),
        "Array has form='pad' and shape (2, 4), expected None for an axis that varies; put None "
        "where samples differ in length, or leave form= out",
    ),
    (
        lambda: pad(form="ragged"),
        "Array has form='ragged' and shape (2, None), expected None for axis 0 alone; turn it "
        "round in __getitem__ so that the axis that varies comes first, or give form='pad'",
    ),
    *(
        (
            lambda total=total: ragged(total=total),  # type: ignore[misc]
            f"Array has total={total!r}, expected at least the 12 of one sample (max_shape=(12, "
            "2)), and below 2**40; give what a whole batch needs, or leave total= out",
        )
        for total in [11, -1, 2**40, "9", 1.5]
    ),
    (
        lambda: pad(total=90),
        "Array has form='pad' and total=, expected total= beside form='ragged' alone; leave it out",
    ),
    *(
        (
            lambda name=name, value=value: ragged(**{name: value}),  # type: ignore[misc]
            (
                f"Array has form='ragged' and {name}=, expected {name}= beside form='pad' alone; "
                "leave it out"
            ),
        )
        for name, value in [("padding_value", 1), ("pad_to", 12), ("lengths", True), ("mask", True)]
    ),
    *(
        (
            lambda pad_to=pad_to: pad(pad_to=pad_to),  # type: ignore[misc]
            f"Array has pad_to={pad_to!r}, expected lengths of which the largest holds the longest "
            "sample, 4 by max_shape=(2, 4); add 4 to them, or make max_shape= smaller",
        )
        for pad_to in [3, (2, 3), "x", [], [0, 4], 4.5]
    ),
    (
        lambda: pad(lengths=True, mask=True),
        "Array has lengths=True and mask=True, expected one of them; a mask says what lengths say",
    ),
    (
        lambda: pad(dtype="uint8", padding_value=-1),
        "Array: padding_value is the int -1, expected a value for dtype uint8; a Python int goes "
        "into an integer or float dtype that holds it exactly: convert it in __getitem__, or give "
        "another dtype in spec=",
    ),
    (
        lambda: pad(padding_value="x"),
        "Array: padding_value is of type str, expected a number for dtype float64; give a number, "
        "as in padding_value=0",
    ),
    (
        lambda: pad(dtype="float32", scale=2),
        "Array has form='pad' and scale=, offset=, mean=, std= or layout=, expected one of them; "
        "leave the one or the other out",
    ),
    (
        lambda: pad(variable=True),
        "Array has form='pad' and variable=, expected one of them; leave the one or the other out",
    ),
    *(
        (
            lambda size=size: Bytes(size),  # type: ignore[misc]
            (
                f"Bytes has max_size={size!r}, expected the most bytes of one sample; as in "
                "Bytes(65536)"
            ),
        )
        for size in [0, -1, "9", None]
    ),
    (
        lambda: Text(10, total=9),
        "Text has total=9, expected at least the 10 of one sample (max_size=10), and below 2**40; "
        "give what a whole batch needs, or leave total= out",
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSED, ids=[text[:60] for _, text in REFUSED])
def test_what_is_refused(make: Callable[[], object], text: str) -> None:
    """In words, with what to write."""
    with pytest.raises(SpecError) as raised:
        make()
    assert str(raised.value) == text


def test_ragged() -> None:
    """Its samples are views; it has the ways of a sequence, and its own shape in a line."""
    found = Ragged(np.arange(12.0).reshape(6, 2), np.array([0, 2, 2, 6]))
    assert len(found) == 3
    assert found.lengths.tolist() == [2, 0, 4]
    assert np.shares_memory(found[-1], found.values)
    assert found[-1].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert [sample.shape for sample in found] == [(2, 2), (0, 2), (4, 2)]
    assert [sample.shape for sample in found[1:]] == [(0, 2), (4, 2)]
    with pytest.raises(IndexError):
        found[3]
    assert repr(found) == "<Ragged: 3 samples of shape (None, 2), float64, 6 in all>"
    assert not np.shares_memory(found.copy().values, found.values)


def test_bytes_and_text() -> None:
    """Each sample is made when it is asked for."""
    values = np.frombuffer("aébc".encode(), np.uint8).copy()
    text = Ragged(values, np.array([0, 3, 3, 5]), "text")
    assert [*text] == ["aé", "", "bc"]
    assert repr(text) == "<Ragged: 3 samples of text, 5 bytes>"
    found = Ragged(values, text.row_splits, "bytes")
    assert [bytes(one) for one in found] == ["aé".encode(), b"", b"bc"]
    found[2][0] = ord("B")
    assert [*text] == ["aé", "", "Bc"]


def test_what_comes_beside() -> None:
    """Lengths of one axis are a number a row, of several as many; masks have those axes."""
    one = pad((None, 3), max_shape=(4, 3), lengths=True).form
    two = pad((None, 3, None), max_shape=(4, 3, 5), lengths=True).form
    masked = pad((None, 3, None), max_shape=(4, 3, 5), mask=True).form
    assert one is not None
    assert two is not None
    assert masked is not None
    lengths = np.array([[2, 3, 1], [0, 3, 4]])
    assert isinstance(one.join(0, one.beside_of(lengths[:, :1], (2, 2, 3))), Padded)
    assert one.beside_of(lengths[:, :1], (2, 2, 3)).tolist() == [2, 0]  # type: ignore[union-attr]
    found = two.beside_of(lengths, (2, 2, 3, 4))
    assert found is not None
    assert found.tolist() == [[2, 1], [0, 4]]
    found = masked.join(0, masked.beside_of(lengths, (2, 2, 3, 4)))
    assert isinstance(found, Masked)
    assert found.mask.astype(int).tolist() == [[[1, 0, 0, 0]] * 2, [[0] * 4] * 2]

"""The fast way of samples into rows: what C takes at once equals what `Spec` makes of it."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringfeed
from inputs import (
    DICT_BENDS,
    NUMBERS,
    SEQUENCE_BENDS,
    WAYS,
    WHOLE_BENDS,
    Tagged,
    bent,
    content,
    sample,
)
from judge import Pair, raw
from ringfeed.spec import _rows
from ringfeed.spec.spec import Array, Spec, plain

if TYPE_CHECKING:
    from collections.abc import Callable

SCALARS = [
    "?",
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "q",
    "Q",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "G",
]
DTYPES = [*SCALARS, ">i2", ">f8", ">u8", "S5", "U2", "M8[ns]", "m8[D]", "V7"]
INSIDE = {"i1": 7, "?": True, "f4": 0.5, "f8": 0.1, "u8": 3, "i8": -3}


class Colour(enum.IntEnum):
    """The usual subclass of int."""

    RED = 3


class Odd(int):
    """An int that NumPy sees as another."""

    def __int__(self) -> int:
        return 40

    def __index__(self) -> int:
        return 41

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Half(float):
    """A float by another name."""


class Unslotted(Pair):
    """A NamedTuple whose objects have a dict."""


class Reversed(NamedTuple("Pair", [("left", Any), ("right", Any)])):
    """A Pair by name that is iterated from its end."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return iter((self[1], self[0]))


Unslotted.__name__ = Reversed.__name__ = "Pair"  # as far as the words of an error go


def value(leaf: Array, draw: random.Random) -> Any:
    """Return a value for a leaf: an array of any kind, a scalar, a number."""
    kind = draw.randrange(6)
    if kind == 4:
        return draw.choice(
            [
                "",
                "a",
                "ab",
                "äö",
                "abcdefg",
                "a\0",
                "\ud800",
                b"",
                b"ab",
                b"ab\0",
                b"abcdefgh",
                np.str_("b"),
            ]
        )
    if kind == 5:
        made = content(Array(leaf.shape, draw.choice(SCALARS)), draw)
        return made if draw.randrange(2) else made.tolist()
    if kind == 0 and not leaf.shape:
        return draw.choice(
            [*NUMBERS.values(), Colour.RED, Odd(2), Half(0.5), np.longlong(5), np.float64(0.5)]
        )
    if kind == 1 and not leaf.shape:
        return content(leaf, draw)[()]
    return WAYS[draw.choice(list(WAYS))](content(leaf, draw))


def slowly(spec: Spec, given: Any) -> list[bytes] | str:
    """Return the bytes of a sample's leaves as `Spec` makes them, or the text of its refusal."""
    try:
        return [
            raw(spec.array(number, leaf, 0)) for number, leaf in enumerate(spec.flatten(given, 0))
        ]
    except ringfeed.SpecError as error:
        return str(error)
    except RuntimeError as error:  # NumPy 2.2 makes no longdouble of an IntEnum
        return f"RuntimeError: {error}"


def quickly(spec: Spec, given: Any) -> list[bytes] | str:
    """Return the same of the row that a loader has filled."""
    try:
        with ringfeed.Loader([given], spec=spec.tree, batch_size=1, workers=0) as loader:
            return [raw(leaf[0, ...]) for leaf in spec.flatten(next(iter(loader)), 0)]
    except ringfeed.SpecError as error:
        return str(error)
    except ringfeed.WorkerError as error:
        return str(error).partition("\n")[0].removeprefix("dataset[0] raised ")


SHAPES = st.just(()) | st.sampled_from([(2,), (2, 3), (1, 1), (0,)])
LEAVES = st.builds(Array, SHAPES, st.sampled_from(DTYPES))
LEAVES |= st.builds(Array, SHAPES, st.sampled_from([*SCALARS, ">f8"]), cast=st.booleans())
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", 3, None]), inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=5,
)


@given(TREES, st.integers(0, 2**32), st.booleans())
def test_the_fast_way_equals_the_slow_one(
    tree: Any,
    seed: int,
    straight: bool,  # noqa: FBT001
) -> None:
    """Any sample arrives bit for bit as `Spec` has it, or is refused in its very words."""
    draw = random.Random(seed)  # noqa: S311 - hypothesis repeats it
    made = (sample if straight else bent)(tree, draw, value)
    spec = Spec(tree)
    assert quickly(spec, made) == slowly(spec, made)


WHOLE = Array((), "i8")


@pytest.mark.parametrize(
    "tree", [{"a": WHOLE, "b": WHOLE}, [WHOLE, WHOLE], (WHOLE, WHOLE), Pair(WHOLE, WHOLE)]
)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", [*DICT_BENDS, *SEQUENCE_BENDS, *WHOLE_BENDS])
def test_every_bent_container_is_read_as_the_spec_reads_it(
    name: str,
    tree: Any,
    inside: bool,  # noqa: FBT001
) -> None:
    """Keys more and less, other lengths and classes, at the root and further down."""
    bends = WHOLE_BENDS | (DICT_BENDS if isinstance(tree, dict) else SEQUENCE_BENDS)
    made: Any = bends.get(name, lambda value: value)(Spec(tree).unflatten([1, 2]))
    spec = Spec([tree] if inside else tree)
    made = [made] if inside else made
    assert quickly(spec, made) == slowly(spec, made)


@pytest.mark.once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*NUMBERS, "colour", "odd int", "half"])
def test_every_number_goes_into_every_dtype_as_the_spec_says(dtype: str, name: str) -> None:
    """Limits of each type, infinities, signs of zero and NaN, and subclasses of numbers."""
    own = {"colour": Colour.RED, "odd int": Odd(2), "half": Half(0.5)}
    given, spec = (own | NUMBERS)[name], Spec(Array((), dtype))
    assert quickly(spec, given) == slowly(spec, given)


@pytest.mark.parametrize("pair", [Unslotted(1, 2), Reversed(1, 2), Pair(1, 2)])
@pytest.mark.parametrize(
    "tree", [Pair(Array((), "i8"), Array((), "i8")), Unslotted(Array((), "i8"), Array((), "i8"))]
)
def test_named_tuples_that_override_go_the_slow_way(pair: Any, tree: Any) -> None:
    """A class that iterates otherwise, or may hide its fields, is read as `Spec` reads it."""
    spec = Spec(tree)
    assert quickly(spec, pair) == slowly(spec, pair)


def usual() -> dict[str, tuple[Any, Any]]:
    """Return by name the usual samples, each with its spec's tree."""
    whole, row, byte = Array((), "i8"), Array((4,), "f4"), np.zeros((4,), "f4")
    full = {"S5": b"abcde", "U2": "ab", "V7": b"abcdefg"}  # of the width of the dtype
    found: dict[str, tuple[Any, Any]] = {
        f"np {dtype}": (Array((), dtype), np.array(full.get(dtype, 1), dtype)[()])
        for dtype in DTYPES
    }
    found |= {
        f"{dtype} of {number}": (Array((), dtype), number) for dtype, number in INSIDE.items()
    }
    found |= {f"zero into {dtype}": (Array((), dtype), 0) for dtype in [*SCALARS[1:11], "f4", "f8"]}
    return found | {
        "0-d": (whole, np.array(3)),
        "enum": (whole, Colour.RED),
        "memory map": (row, byte.view(Tagged)),
        "dict": ({"x": row, "y": whole}, {"y": np.int64(1), "x": byte}),
        "list": ([row, whole], [byte, 3]),
        "pair": (Pair(row, whole), Pair(byte, 3)),
        "pair with attributes": (Loose(row, whole), Loose(byte, 3)),
        "nested": ((row, [{"a": whole}, Pair(whole, (whole,))]), (byte, [{"a": 1}, Pair(2, (3,))])),
        "many": ([whole] * 100, [7] * 100),
    }


class Loose(Pair):
    """A NamedTuple whose objects have attributes, as of a class that cloudpickle made again."""


@dataclass
class Fields:
    """A sample whose fields stand in another order than the keys of the spec."""

    y: Any
    x: Any


def test_the_fields_of_a_dataclass_are_learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever module it is of, the fields of later samples are taken without a dict of them."""
    looks: list[object] = []
    monkeypatch.setattr(_rows, "plain", lambda value: looks.append(value) or plain(value))
    tree = {"x": Array((2,), "i8"), "y": {"a": WHOLE}}
    samples = [Fields({"a": number}, np.arange(2) + number) for number in range(5)]
    with ringfeed.Loader(samples, spec=tree, batch_size=5, workers=0) as loader:
        batch = next(iter(loader))
    assert (batch["x"].tolist(), batch["y"]["a"].tolist()) == (
        [[n, n + 1] for n in range(5)],
        [*range(5)],
    )
    assert looks == samples[:1]


@pytest.mark.parametrize("name", [name for name in usual() if ">" not in name])
def test_no_usual_sample_goes_the_slow_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the structure nor a leaf of it is asked of `Spec`, which is Python."""
    tree, given = usual()[name]
    spec = Spec(tree)
    expected = slowly(spec, given)

    def refuse(*_: object) -> Any:
        raise AssertionError("the slow way")

    with (
        monkeypatch.context() as patched,
        ringfeed.Loader([given], spec=tree, batch_size=1, workers=0) as loader,
    ):
        patched.setattr(Spec, "array", refuse)
        patched.setattr(Spec, "flatten", refuse)
        batch = next(iter(loader))
    assert [raw(leaf[0, ...]) for leaf in spec.flatten(batch, 0)] == expected


def test_a_key_that_changes_the_sample_does_no_harm() -> None:
    """A key whose __eq__ shortens a list makes no crash: the list is read as it was."""

    class Key:
        def __init__(self, deed: Callable[[], object]) -> None:
            self.deed = deed

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            self.deed()
            return True

    inner: list[Any] = [{Key(lambda: None): 1}, 2, 3]
    tree = [{Key(lambda: None): Array((), "i8")}, Array((), "i8"), Array((), "i8")]
    inner[0] = {Key(lambda: inner.__delitem__(slice(1, None))): 1}
    assert quickly(Spec(tree), inner) == [raw(np.array(number)) for number in (1, 2, 3)]
    assert len(inner) == 1


class Hostile:
    """A key that, when it is compared, empties the sample that it is in."""

    emptied: ClassVar[dict[str, Any]] = {}
    kept: ClassVar[list[Any]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        if Hostile.emptied:
            Hostile.emptied.clear()
            Hostile.kept.append(
                [[0] * 51 for _ in range(30)]
            )  # takes the memory that was given back
        return isinstance(other, Hostile) and self.name == other.name


class Emptied:
    """Samples that lose their only reference to a tuple while it is read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        Hostile.emptied = {}
        inner = {Hostile("a"): index, Hostile("b"): index}
        Hostile.emptied = {"x": (inner, *[np.array(index) for _ in range(50)])}
        return Hostile.emptied


def test_a_sample_that_is_emptied_while_it_is_read() -> None:
    """Each container is held while its leaves are taken: threads may share and change it."""
    leaf = Array((), "i8")
    spec = {"x": ({Hostile("a"): leaf, Hostile("b"): leaf}, *[leaf] * 50)}
    with ringfeed.Loader(Emptied(), batch_size=8, workers=0, spec=spec) as loader:
        assert [batch["x"][1].tolist() for batch in loader] == np.arange(64).reshape(-1, 8).tolist()

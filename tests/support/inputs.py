"""Samples of every kind, good and bad; `judge` says what must come of each.

A sample is a function of a spec's tree and a seed, so that every process makes the same one.
"""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import fractions
import itertools
import math
import random
import types
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from judge import Couple, Pair, raw
from ringfeed import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES: dict[str, Any] = {
    **{
        name: name
        for name in ("?", "i1", "u1", ">i2", "u4", ">u8", "i8", "f2", ">f4", "f4", "f8", ">f8", "g")
    },
    **{name: name for name in ("c8", ">c16", "G", "M8[ns]", ">m8[D]", "S5", "U2", ">U3", "V7")},
    "bfloat16": ml_dtypes.bfloat16,
    "float8": ml_dtypes.float8_e4m3fn,
    "struct": [("a", ">i4"), ("b", "f8", (2,))],
    "nested struct": [("a", [("x", "u1"), ("y", "S3")]), ("b", "?")],
    "padded struct": np.dtype([("a", "u1"), ("b", "f8"), ("c", "u2")], align=True),
    "union": np.dtype(
        {"names": ["a", "b"], "formats": ["i4", "u1"], "offsets": [0, 2], "itemsize": 6}
    ),
}


# ---- values that fit ----


class Tagged(np.ndarray[Any, Any]):
    """An array by another name."""


class Holder:
    """Has ``__array__``, and does there what it is given to do."""

    def __init__(self, deed: Callable[[], Any]) -> None:
        self.deed = deed

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self.deed()


class Interface:
    """Has ``__array_interface__`` alone."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__

    __array_interface__: Any = None


def content(array: Array, draw: random.Random, rows: tuple[int, ...] = ()) -> Any:
    """Return an array of arbitrary bytes: NaNs of all payloads, denormals, negative zeros, padding."""
    shape = (*rows, *array.shape)
    raw = np.frombuffer(draw.randbytes(math.prod(shape) * array.dtype.itemsize), np.uint8).copy()
    if array.dtype.kind == "b":
        raw %= 2
    if array.dtype.kind == "U":
        raw[:] = np.arange(raw.size) % 4 == (3 if array.dtype.str[0] == ">" else 0)
    return np.ndarray(shape, array.dtype, raw)


def _unaligned(array: Any) -> Any:
    return np.ndarray(array.shape, array.dtype, bytearray(b"\0" + array.tobytes()), 1)


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda array: array,
    "fortran": np.asfortranarray,
    "reversed": lambda array: np.flip(np.flip(array).copy()) if array.ndim else array,
    "gaps": lambda array: np.repeat(array, 2, axis=0)[::2] if array.ndim else array,
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape) if array.ndim else array,
    "unaligned": _unaligned,
    "read-only": _frozen,
    "matrix": lambda array: array.view(np.matrix) if array.ndim == 2 else array,
    "recarray": lambda array: array.view(np.recarray),
    "subclass": lambda array: array.view(Tagged),
    "array-like": lambda array: Holder(lambda: array),
    "interface": Interface,
    "scalar": lambda array: array[()],
}

# ---- values that do not, or only where a number may stand ----


class Colour(enum.IntEnum):
    """An int by another name."""

    RED = 3


class Odd(float):
    """A float by another name, which looks like an array when it is asked."""

    __slots__ = ()
    __array__ = np.zeros((3,)).__array__


class Sequence:
    """Looks like a list, and says that it is longer than it is."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: int) -> int:
        return 1


def _raise(error: BaseException) -> Any:
    raise error


def _nested(depth: int) -> Any:
    inner: Any = 1
    for _ in range(depth):
        inner = [inner]
    return inner


def _cycle() -> Any:
    inner: list[Any] = [1]
    inner.append(inner)
    return inner


def _tuples(nested: Any) -> Any:
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested


def _last_changed(nested: Any, last: Any) -> Any:
    """Return lists of which the very last item is another."""
    if not isinstance(nested, list) or not nested:
        return last if not isinstance(nested, list) else nested
    return [*nested[:-1], _last_changed(nested[-1], last)]


def _text_array(leaf: Array, dtype: str) -> Any:
    return np.array(["a", "b\0c", ""] * 99, dtype)[: math.prod(leaf.shape)].reshape(leaf.shape)


NUMBERS: dict[str, Any] = {
    repr(number)[:40]: number
    for number in [
        *(
            True,
            False,
            0,
            1,
            -1,
            127,
            128,
            255,
            256,
            -128,
            -129,
            2**24,
            2**24 + 1,
            2**53 + 1,
            65504,
            65520,
            449,
        ),
        *(
            2**31 - 1,
            2**31,
            -(2**31) - 1,
            2**63 - 1,
            2**63,
            -(2**63),
            2**64 - 1,
            2**64,
            -(2**64),
            2**70,
            2**127,
        ),
        *(
            0.0,
            -0.0,
            1.5,
            0.1,
            math.nan,
            -math.nan,
            math.inf,
            -math.inf,
            5e-324,
            1e-45,
            1e39,
            1.7e308,
        ),
        *(
            3.4028235677973362e38,
            3.4028235677973366e38,
            Colour.RED,
            np.float64(0.5),
            np.int64(3),
            np.bool_(1),
        ),
    ]
} | {"10**400": 10**400, "odd float": Odd(2.5)}

FOREIGN: dict[str, Callable[[Array, Any], Any]] = {
    "byte-swapped": lambda _, array: array.view(array.dtype.newbyteorder("S")),
    "other dtype": lambda leaf, _: np.zeros(leaf.shape, "V9"),
    "as float64": lambda leaf, _: np.zeros(leaf.shape, "f8"),
    "as objects": lambda leaf, _: np.full(leaf.shape, None),
    "as bytes": lambda leaf, _: np.zeros((*leaf.shape, leaf.dtype.itemsize), "u1"),
    "one axis more": lambda _, array: array[..., None],
    "one axis less": lambda _, array: (
        array.reshape(-1)[:1].reshape(()) if array.size else array[0:0]
    ),
    "one row more": lambda _, array: np.concatenate([array, array]) if array.ndim else array[None],
    "one column more": lambda _, array: (
        np.concatenate([array, array], axis=-1) if array.ndim else array[None]
    ),
    "transposed": lambda _, array: array.T,
    "flat": lambda _, array: array.reshape(-1),
    "huge": lambda leaf, _: np.broadcast_to(np.zeros((), leaf.dtype), (2**40,)),
    "masked": lambda _, array: np.ma.masked_array(array),
    "the masked constant": lambda _, __: np.ma.masked,
    "ragged": lambda _, __: [[1, 2], [3]],
    "a list of it": lambda _, array: array.tolist(),
    "tuples of it": lambda _, array: _tuples(array.tolist()),
    "a list of its rows": lambda _, array: list(array) if array.ndim else array,
    "a list with a row of lists": lambda _, array: (
        [array[0].tolist(), *array[1:]] if array.ndim > 1 and len(array) else array
    ),
    "a list of ints": lambda leaf, _: np.ones(leaf.shape, "i8").tolist(),
    "a list of floats": lambda leaf, _: np.full(leaf.shape, 0.1).tolist(),
    "a list of complex": lambda leaf, _: np.full(leaf.shape, 0.1j).tolist(),
    "a list of bools": lambda leaf, _: np.ones(leaf.shape, "?").tolist(),
    "a list of strings": lambda leaf, _: np.full(leaf.shape, "ab").tolist(),
    "a list of bytes": lambda leaf, _: np.full(leaf.shape, b"ab").tolist(),
    "a list of words": lambda leaf, _: np.full(leaf.shape, "äöü").tolist(),
    **{
        f"a list that ends with {str(last)[:20]!r}": lambda _, array, last=last: _last_changed(
            array.tolist(), last
        )
        for last in (
            True,
            1,
            2**70,
            1e300,
            "a",
            b"\0",
            "\ud800",
            None,
            np.float64(1),
            np.int8(1),
            [],
        )
    },
    "a list of masked rows": lambda _, array: (
        [np.ma.masked_array(row) for row in array] if array.ndim else array
    ),
    **{
        f"strings as {dtype}": lambda leaf, _, dtype=dtype: _text_array(leaf, dtype)
        for dtype in ("S3", "S9", "U3", ">U1", "U9")
    },
    "in a tuple": lambda _, array: (array,),
    "in a dict": lambda _, array: {"x": array},
    "buffer": lambda _, __: memoryview(b"abcd"),
    "raises": lambda _, __: Holder(lambda: _raise(ValueError("on the GPU"))),
    "recurses": lambda _, __: Holder(lambda: _raise(RecursionError("too deep"))),
    "gives a list": lambda _, __: Holder(lambda: [1, 2]),
    "gives None": lambda _, __: Holder(lambda: None),
    "gives another": lambda _, __: Holder(lambda: np.zeros((9, 9), "V3")),
    "deep": lambda _, __: _nested(10_000),
    "cycle": lambda _, __: _cycle(),
    "long-winded": lambda _, __: Sequence(),
    "generator": lambda _, __: (number for number in range(3)),
    **{
        str(value)[:20]: lambda _, __, value=value: value
        for value in (
            None,
            ...,
            "text",
            "",
            b"bytes",
            {1, 2},
            set(),
            [],
            (),
            {},
            range(3),
            int,
            object(),
            1j,
        )
    },
    "fraction": lambda _, __: fractions.Fraction(1, 2),
    "decimal": lambda _, __: decimal.Decimal(1),
}


def well(leaf: Array, draw: random.Random) -> Any:
    """Return a value that fits a leaf, but for strings that lose their zeros as scalars."""
    return WAYS[draw.choice(list(WAYS))](content(leaf, draw))


def named(name: str, leaf: Array, array: Any) -> Any:
    """Return the value of this name, made of an array that fits the leaf."""
    if name in WAYS:
        return WAYS[name](array)
    return NUMBERS[name] if name in NUMBERS else FOREIGN[name](leaf, array)


def value(leaf: Array, draw: random.Random, rows: tuple[int, ...] = ()) -> Any:
    """Return a value for a leaf: three of four fit."""
    names: Any = draw.choices([WAYS, NUMBERS, FOREIGN], [15, 2, 3])[0]
    return named(draw.choice(list(names)), leaf, content(leaf, draw, rows))


# ---- containers, straight and bent ----


class Long(list[Any]):
    """A list that says that it has one more than it has."""

    def __len__(self) -> int:
        return list.__len__(self) + 1


class Endless(list[Any]):
    """A list whose iteration has no end."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(list.__iter__(self) if list.__len__(self) else [0])


class Thing(tuple[Any, ...]):
    """Looks like a NamedTuple, with fields that it does not have."""

    __slots__ = ()
    _fields = tuple("abcdefghi")
    _make = None


SEQUENCE_BENDS: dict[str, Callable[[Any], Any]] = {
    "short": lambda value: value[:-1],
    "long": lambda value: [*value, 1],
    "list": list,
    "tuple": tuple,
    "couple": lambda value: Couple(*value) if len(value) == 2 else value,
    "pair": lambda value: Pair(*value) if len(value) == 2 else value,
    "says more": Long,
    "endless": Endless,
    "thing": Thing,
    "array": lambda value: np.zeros(len(value)),
}
DICT_BENDS: dict[str, Callable[[Any], Any]] = {
    "other order": lambda value: dict(reversed(value.items())),
    "ordered": collections.OrderedDict,
    "default": lambda value: collections.defaultdict(int, value),
    "lacks": lambda value: dict(list(value.items())[1:]),
    "has more": lambda value: value | {"k" * 300: 0},
    "values": lambda value: tuple(value.values()),
    "mapping": types.MappingProxyType,
    "chained": lambda value: collections.ChainMap({}, value),
    "dataclass": lambda value: (
        dataclasses.make_dataclass("Fields", value)(**value)
        if all(isinstance(key, str) for key in value)
        else value
    ),
}
WHOLE_BENDS: dict[str, Callable[[Any], Any]] = {
    "None": lambda _: None,
    "wrapped": lambda value: (value,),
}


def sample(
    tree: Any, draw: random.Random, leaf: Callable[[Array, random.Random], Any] = well
) -> Any:
    """Return a sample in the structure of a tree of Arrays."""
    return _built(tree, draw, leaf, 1.0)


def bent(
    tree: Any, draw: random.Random, leaf: Callable[[Array, random.Random], Any] = value
) -> Any:
    """Return a sample of which some containers and leaves are others."""
    return _built(tree, draw, leaf, 0.8)


def _built(
    tree: Any, draw: random.Random, leaf: Callable[[Array, random.Random], Any], straight: float
) -> Any:
    if isinstance(tree, Array):
        return leaf(tree, draw)
    if tree is None:
        return None if draw.random() < max(straight, 0.95) else 1
    made: Any
    if isinstance(tree, dict):
        made = {key: _built(child, draw, leaf, straight) for key, child in tree.items()}
        bends = DICT_BENDS
    else:
        children = [_built(child, draw, leaf, straight) for child in tree]
        made = Pair(*children) if isinstance(tree, Pair) else type(tree)(children)
        bends = SEQUENCE_BENDS
    if draw.random() < straight:
        return made
    return draw.choice([*bends.values(), *WHOLE_BENDS.values()])(made)


# ---- datasets ----


class Samples:
    """A dataset of one sample a seed."""

    def __init__(self, tree: Any, seeds: list[int]) -> None:
        self.tree = tree
        self.seeds = seeds

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> Any:
        return bent(self.tree, self.draw(index))

    def draw(self, index: int) -> random.Random:
        """Return what the sample is drawn from."""
        return random.Random(self.seeds[index])  # noqa: S311 - the same everywhere is what it is for


class BulkSamples(Samples):
    """The same, many at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class WholeBatches(Samples):
    """A dataset of one whole batch a seed."""

    MOST = 3

    def __getitem__(self, index: int) -> Any:
        draw = self.draw(index)
        rows = draw.randrange(self.MOST + 1)
        return bent(
            self.tree, draw, lambda leaf, _: value(leaf, draw, (rows + (draw.random() < 0.1),))
        )


class Written(Samples):
    """Writes samples that fit into their place."""

    def __getitem__(self, index: int) -> Any:
        ways = sorted(
            set(WAYS) - {"interface", "scalar"}
        )  # which NumPy gives another dtype, now and then
        return sample(
            self.tree,
            self.draw(index),
            lambda leaf, draw: WAYS[draw.choice(ways)](content(leaf, draw)),
        )

    def read_into(self, index: int, out: Any) -> None:
        self.write(self[index], out)

    def write(self, sample: Any, out: Any) -> None:
        """Write each leaf where its place is."""
        if out is None:
            return
        if isinstance(out, np.ndarray):
            found = np.asarray(sample)
            out[...] = np.ndarray(
                found.shape, found.dtype, raw(found)
            )  # aligned, as NumPy wants it of bfloat16
            return
        keys = out if isinstance(out, dict) else range(len(out))
        for key in keys:
            self.write(sample[key], out[key])


class Catalogue:
    """Each value that `inputs` knows, good or bad, in the place of each leaf, among others that fit."""

    TREE = (
        Array((2, 3), "u1"),
        {"whole": Array((), "i8"), "half": Array((), "f4")},
        [Array((), "?"), Array((2,), "S5")],
        Pair(Array((2, 2), ">f8"), Array((), ml_dtypes.bfloat16)),
        Array((3,), DTYPES["padded struct"]),
    )
    CASES = tuple(itertools.product(range(8), [*WAYS, *NUMBERS, *FOREIGN]))

    def __len__(self) -> int:
        return len(self.CASES)

    def __getitem__(self, index: int) -> Any:
        place, name = self.CASES[index]
        leaves = itertools.count()

        def leaf(array: Array, draw: random.Random) -> Any:
            plain = content(array, draw)
            return named(name, array, plain) if next(leaves) == place else plain

        return sample(self.TREE, random.Random(index), leaf)  # noqa: S311 - as above

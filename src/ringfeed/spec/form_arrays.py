"""Arrays whose samples differ in length: `Bytes`, `Text`, and what an Array with form= may say.

Every refusal says what to write.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.errors import SpecError
from ringfeed.spec.array import UINT8, AnyDtype, Array, Leaf, shown
from ringfeed.spec.forms import Form
from ringfeed.spec.spec import Spec
from ringfeed.spec.values import from_number, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST_TOTAL = 2**40 - 1  # the cursor of a field counts in 40 bits
EXAMPLE = "write it as in Array((None, 4), 'float32', max_shape=(300, 4), form='ragged')"
LEAST = 64  # bytes that are proposed
MOST_SHOWN = 600  # characters of a spec that is proposed as a whole


class Bytes(Array):
    """A leaf of ``bytes`` of different lengths, such as encoded pictures: ``Bytes(200_000)``.

    max_size: the most bytes of one sample. total: the bytes that a slot has room for in a whole
    batch, by default max_size for each row; since few pictures are as large as the largest, far
    less is enough.

    A dataset gives bytes, bytearray, memoryview, or an array of uint8 with one axis. A batch holds
    a `Ragged`: ``batch[i]`` is a memoryview of the slot, and ``batch.values`` and
    ``batch.row_splits`` are all bytes and where each sample begins. SpecError for a sample that is
    longer, and for a batch that needs more than ``total``.
    """

    __slots__ = ()

    def __init__(self, max_size: int, *, total: int | None = None) -> None:
        kind = type(self).__name__
        size = _index(max_size)
        if size is None or size < 1:
            raise error_of(
                kind,
                f"has max_size={max_size!r}",
                "the most bytes of one sample",
                f"as in {kind}(65536)",
            )
        form = Form(kind.lower(), (size,), total=_total(total, size, "max_size", size, kind))
        super().__init__((size,), UINT8)
        object.__setattr__(self, "form", form)

    def __repr__(self) -> str:
        form = self.form
        assert form is not None
        total = "" if form.total is None else f", total={form.total}"
        return f"{type(self).__name__}({form.most[0]}{total})"


class Text(Bytes):
    """A leaf whose samples are ``str`` of different lengths, in UTF-8: ``Text(4096)``.

    max_size and total count bytes: one to four a character. A batch holds a `Ragged`: ``batch[i]``
    is a str, made when it is asked for, and ``batch.values`` and ``batch.row_splits`` are the bytes
    and where each text begins. SpecError for text that UTF-8 cannot hold (surrogates), and as for
    `Bytes`.
    """

    __slots__ = ()


# ---- where a dataset gives them, and no spec ----


def proposed(value: str | bytes | bytearray | memoryview) -> Bytes:
    """Return what a spec may say of such samples: twice as long as this one, and a power of two."""
    size = (
        len(value.encode(errors="replace")) if isinstance(value, str) else memoryview(value).nbytes
    )
    return (Text if isinstance(value, str) else Bytes)(max(LEAST, 1 << (2 * size - 1).bit_length()))


def refuse_proposed(tree: object, root: str, leaves: Iterable[tuple[str, Array]]) -> None:
    """Refuse text and bytes, whose largest size is unknown; the error has the spec to write."""
    found = [(path, array) for path, array in leaves if isinstance(array, Bytes)]
    if not found:
        return
    path, array = found[0]
    spec = re.sub(r"\b(Array|Bytes|Text)\(", r"ringfeed.\1(", repr(tree))
    if len(spec) > MOST_SHOWN:
        spec = f"a tree of ringfeed.Array and the like, with ringfeed.{array!r} in this place"
    kind = "a str" if isinstance(array, Text) else "bytes"
    raise error_of(
        f"{root}{path}",
        f"is {kind}",
        "an array or number, or spec= for it",
        f"give spec={spec}, where {type(array).__name__} has the most bytes of one sample",
    )


# ---- what an Array says of a form ----


def form_of(
    shape: tuple[int | None, ...],
    dtype: AnyDtype,
    name: str | None,
    others: dict[str, Any],
    says: dict[str, Any],
) -> Form:
    """Return the form, or refuse one that makes no batches.

    ``says``: its parameters, None where they are not given; ``others``: those of an Array that do
    not go with any form.
    """
    axes = tuple(axis for axis, length in enumerate(shape) if length is None)
    got, remedy = f"has form={name!r} and shape {shape}", EXAMPLE
    if name not in ("ragged", "pad"):
        raise error_of(
            "Array", f"has shape {shape} and form={name!r}", "form='ragged' or form='pad'", remedy
        )
    if not axes:
        raise error_of(
            "Array",
            got,
            "None for an axis that varies",
            "put None where samples differ in length, or leave form= out",
        )
    if given := [key for key, value in others.items() if value]:
        got, remedy = f"has form={name!r} and {given[0]}", "leave the one or the other out"
        raise error_of("Array", got, "one of them", remedy)
    most = _most(shape, says.pop("max_shape"))
    for key, value in says.items():
        form = "ragged" if key == "total" else "pad"
        if value is not None and form != name:
            got, expected = f"has form={name!r} and {key}=", f"{key}= beside form={form!r} alone"
            raise error_of("Array", got, expected, "leave it out")
    if name == "ragged":
        if axes != (0,):
            remedy = (
                "turn it round in __getitem__ so that the axis that varies comes first, or give "
                "form='pad'"
            )
            raise error_of("Array", got, "None for axis 0 alone", remedy)
        return Form(name, most, axes, _total(says["total"], most[0], "max_shape", most))
    beside = [key for key in ("lengths", "mask") if says[key]]
    if len(beside) > 1:
        raise error_of(
            "Array", "has lengths=True and mask=True", "one of them", "a mask says what lengths say"
        )
    padding, pad_to = _padding(says["padding_value"], dtype), _pad_to(says["pad_to"], most, axes)
    return Form(name, most, axes, None, padding, pad_to, beside[0] if beside else None)


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


def _most(shape: tuple[int | None, ...], max_shape: Any) -> tuple[int, ...]:
    """Return the shape of the largest sample."""
    remedy = f"as in max_shape={tuple(300 if n is None else n for n in shape)}"
    if max_shape is None:
        got, remedy = f"has shape {shape} and no max_shape", f"give max_shape=, {remedy}"
        raise error_of("Array", got, "the shape of the largest sample", remedy)
    try:
        most = tuple(operator.index(length) for length in max_shape)
    except TypeError:
        most = ()
    pairs = zip(shape, most, strict=False)
    if len(most) != len(shape) or any(own < 1 if n is None else own != n for n, own in pairs):
        raise error_of(
            "Array",
            f"has max_shape={max_shape!r}",
            f"the shape of the largest sample: {shape} with a number of 1 or more for each None",
            remedy,
        )
    return most


def _total(total: Any, longest: int, name: str, most: Any, kind: str = "Array") -> int | None:
    """Return the elements that a batch has room for; None: as many as all its rows may have."""
    if total is None:
        return None
    number = _index(total)
    if number is None or not longest <= number <= MOST_TOTAL:
        raise error_of(
            kind,
            f"has total={total!r}",
            f"at least the {longest} of one sample ({name}={most}), and below 2**40",
            "give what a whole batch needs, or leave total= out",
        )
    return number


def _pad_to(pad_to: Any, most: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    if pad_to is None:
        return ()
    found = [_index(one) for one in (pad_to if isinstance(pad_to, (list, tuple)) else [pad_to])]
    chosen = sorted({one for one in found if one is not None})
    longest = max(most[axis] for axis in axes)
    if None in found or not chosen or chosen[0] < 1 or chosen[-1] < longest:
        raise error_of(
            "Array",
            f"has pad_to={pad_to!r}",
            f"lengths of which the largest holds the longest sample, {longest} by max_shape={most}",
            f"add {longest} to them, or make max_shape= smaller",
        )
    return tuple(chosen)


def _padding(value: Any, dtype: AnyDtype) -> bytes:
    """Return one element of padding."""
    where, found = "Array: padding_value", None
    if value is None or (is_number(value) and value == 0):
        found = np.zeros((), dtype)
    elif is_number(value):
        found = from_number(value, dtype, where)
    elif isinstance(value, (np.generic, np.ndarray)) and value.dtype == dtype and not value.shape:
        found = np.asarray(value)
    if found is None:
        expected, remedy = f"a number for dtype {dtype}", "give a number, as in padding_value=0"
        raise error_of(where, f"is {shown(value)}", expected, remedy)
    return found.tobytes()


# ---- specs with forms ----


def padded(spec: Spec) -> Spec:
    """Return a spec with form="pad" in the place of variable=: of batches of several samples."""
    if not any(leaf.variable for leaf in spec.leaves):
        return spec
    arrays: list[Any] = spec.flatten(spec.tree, 0)
    return Spec(spec.unflatten([_padded(*pair) for pair in zip(spec.leaves, arrays, strict=True)]))


def _padded(leaf: Leaf, array: Array) -> Array:
    """Return an Array with variable= as one whose samples are padded; any other as it is."""
    if not leaf.variable:
        return array
    if leaf.cast is not None:
        got = f"has variable={leaf.variable} and converts its samples"
        expected = (
            "samples that are not converted, as they are padded with zeros to make a batch of "
            "several"
        )
        remedy = (
            "give batch_size=1, convert them in __getitem__, or leave scale=, offset=, mean= and "
            "std= out"
        )
        raise error_of(leaf.path, got, expected, remedy)
    axes = [axis for axis in leaf.variable if leaf.shape[axis]]
    shape = [None if axis in axes else length for axis, length in enumerate(leaf.shape)]
    if not axes:
        return Array(shape, leaf.dtype, cast=leaf.casts)
    return Array(shape, leaf.dtype, form="pad", max_shape=leaf.shape, cast=leaf.casts)


def refuse_columns(spec: Spec) -> None:
    """Refuse samples that differ in length: the rows of an array do not."""
    for leaf in spec.leaves:
        if leaf.form is not None:
            raise SpecError(
                f"{leaf.path} is {leaf.form.name} in spec=, but the dataset is made of arrays, "
                "whose rows have one length; give an object whose __getitem__(i) returns sample i "
                "in its own length"
            )

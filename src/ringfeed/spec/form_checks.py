"""Whether the form that an Array gives its samples is one that a slot can hold; every refusal says what to write.

`spec.array` imports this where an Array has a form, and this imports `spec.array`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.errors import SpecError
from ringfeed.spec.array import Array, shown
from ringfeed.spec.form_kinds import Form
from ringfeed.spec.spec import Spec
from ringfeed.spec.values import from_number, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from ringfeed.spec.array import AnyDtype, Leaf

FORMS = ("ragged", "pad")
MOST_TOTAL = 2**40 - 1  # the cursor of a field counts in 40 bits
EXAMPLE = "write it as in Array((None, 4), 'float32', max_shape=(300, 4), form='ragged')"


def form_of(  # noqa: PLR0913 - what an Array says of it
    shape: Sequence[Any],
    dtype: AnyDtype,
    max_shape: Any,
    name: str | None,
    besides: dict[str, Any],
    *,
    total: Any,
    padding_value: Any,
    pad_to: Any,
    lengths: Any,
    mask: Any,
) -> Form:
    """Return the form, or refuse one that makes no batches; ``besides``: what else the Array says, by parameter."""
    axes = tuple(axis for axis, length in enumerate(shape) if length is None)
    shown_shape = tuple(shape)
    if name not in FORMS:
        raise error_of(
            "Array",
            f"has shape {shown_shape} and form={name!r}",
            "form='ragged' or form='pad'",
            EXAMPLE,
        )
    if not axes:
        remedy = "put None where samples differ in length, or leave form= out"
        raise error_of(
            "Array",
            f"has form={name!r} and shape {shown_shape}",
            "None for an axis that varies",
            remedy,
        )
    if found := [what for what, value in besides.items() if value]:
        remedy = "leave the one or the other out"
        raise error_of("Array", f"has form={name!r} and {found[0]}", "one of them", remedy)
    most = _most(shown_shape, max_shape)
    if name == "ragged":
        _refuse_beside(
            "ragged",
            "pad",
            padding_value=padding_value or None,
            pad_to=pad_to,
            lengths=lengths,
            mask=mask,
        )
        if axes != (0,):
            remedy = (
                "turn it round in __getitem__ so that the axis that varies comes first, or give "
                "form='pad'"
            )
            raise error_of(
                "Array",
                f"has form='ragged' and shape {shown_shape}",
                "None for axis 0 alone",
                remedy,
            )
        return Form(name, most, axes, _total(total, most[0], "max_shape", most))
    _refuse_beside("pad", "ragged", total=total)
    if lengths and mask:
        raise error_of(
            "Array", "has lengths=True and mask=True", "one of them", "a mask says what lengths say"
        )
    beside = "lengths" if lengths else "mask" if mask else None
    return Form(
        name, most, axes, None, _padding(padding_value, dtype), _pad_to(pad_to, most, axes), beside
    )


def padded(spec: Spec) -> Spec:
    """Return a spec with form="pad" in the place of variable=: of batches of several samples."""
    if not any(leaf.variable for leaf in spec.leaves):
        return spec
    arrays: list[Any] = spec.flatten(spec.tree, 0)
    return Spec(spec.unflatten([_padded(*pair) for pair in zip(spec.leaves, arrays, strict=True)]))


def _padded(leaf: Leaf, array: Array) -> Array:
    """Return an Array whose samples are padded in the place of one with variable=; of others, as it is."""
    if not leaf.variable:
        return array
    if leaf.cast is not None:
        expected = (
            "samples that are not converted, as they are padded with zeros to make a batch of "
            "several"
        )
        remedy = (
            "give batch_size=1, convert them in __getitem__, or leave scale=, offset=, mean= and "
            "std= out"
        )
        raise error_of(
            leaf.path, f"has variable={leaf.variable} and converts its samples", expected, remedy
        )
    axes = [axis for axis in leaf.variable if leaf.shape[axis]]
    shape = [None if axis in axes else length for axis, length in enumerate(leaf.shape)]
    if not axes:
        return Array(shape, leaf.dtype, cast=leaf.casts)
    return Array(shape, leaf.dtype, form="pad", max_shape=leaf.shape, cast=leaf.casts)


def refuse_columns(spec: Spec) -> None:
    """Refuse samples that differ in length: the rows of an array do not."""
    for leaf in spec.leaves:
        if leaf.form is not None:
            message = (
                f"{leaf.path} is {leaf.form.name} in spec=, but the dataset is made of arrays, "
                "whose rows have one length; give an object whose __getitem__(i) returns sample i "
                "in its own length"
            )
            raise SpecError(message)


def variable_axes(
    variable: bool | Sequence[SupportsIndex],  # noqa: FBT001
    shape: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the numbers of the axes that ``variable`` names."""
    every = range(len(shape))
    if isinstance(variable, bool):
        return tuple(every) if variable else ()
    try:
        axes = {operator.index(axis) for axis in variable}
    except TypeError:
        axes = {-1}
    if not axes <= set(every):
        expected = f"True, or numbers of axes of {shape}, which count from 0"
        raise error_of(
            "Array", f"has variable={variable!r}", expected, "write it as in variable=(0, 1)"
        )
    return tuple(sorted(axes))


def bytes_form(name: str, max_size: Any, total: Any) -> Form:
    """Return the form of `Bytes` or `Text`."""
    kind = name.capitalize()
    size = _index(max_size)
    if size is None or size < 1:
        raise error_of(
            kind,
            f"has max_size={max_size!r}",
            "the most bytes of one sample",
            f"as in {kind}(65536)",
        )
    return Form(name, (size,), total=_total(total, size, "max_size", size, kind))


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


def _most(shape: tuple[Any, ...], max_shape: Any) -> tuple[int, ...]:
    """Return the shape of the largest sample."""
    if max_shape is None:
        remedy = f"give max_shape=, as in max_shape={tuple(300 if n is None else n for n in shape)}"
        raise error_of(
            "Array",
            f"has shape {shape} and no max_shape",
            "the shape of the largest sample",
            remedy,
        )
    try:
        most = tuple(operator.index(length) for length in max_shape)
    except TypeError:
        most = ()
    fits = len(most) == len(shape) and all(
        n in {None, own} for n, own in zip(shape, most, strict=True)
    )
    if not fits or any(own < 1 for n, own in zip(shape, most, strict=True) if n is None):
        expected = (
            f"the shape of the largest sample: {shape} with a number of 1 or more for each None"
        )
        remedy = f"as in max_shape={tuple(300 if n is None else n for n in shape)}"
        raise error_of("Array", f"has max_shape={max_shape!r}", expected, remedy)
    return most


def _refuse_beside(name: str, other: str, **given: Any) -> None:
    if found := [key for key, value in given.items() if value not in (None, False)]:
        got = f"has form={name!r} and {found[0]}="
        raise error_of("Array", got, f"{found[0]}= beside form={other!r} alone", "leave it out")


def _total(total: Any, longest: int, name: str, most: Any, what: str = "Array") -> int | None:
    """Return the elements that a batch has room for; None: as many as all its rows may have."""
    if total is None:
        return None
    number = _index(total)
    if number is None or not longest <= number <= MOST_TOTAL:
        expected = f"at least the {longest} of one sample ({name}={most}), and below 2**40"
        raise error_of(
            what,
            f"has total={total!r}",
            expected,
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
        expected = (
            f"lengths of which the largest holds the longest sample, {longest} by max_shape={most}"
        )
        remedy = f"add {longest} to them, or make max_shape= smaller"
        raise error_of("Array", f"has pad_to={pad_to!r}", expected, remedy)
    return tuple(chosen)


def _padding(value: Any, dtype: AnyDtype) -> bytes:
    """Return one element of padding."""
    if is_number(value) and value == 0:
        return np.zeros((), dtype).tobytes()
    where, found = "Array: padding_value", None
    if is_number(value):
        found = from_number(value, dtype, where)
    elif isinstance(value, (np.generic, np.ndarray)) and value.dtype == dtype and not value.shape:
        found = np.asarray(value)
    if found is None:
        raise error_of(
            where,
            f"is {shown(value)}",
            f"a number for dtype {dtype}",
            "give a number, as in padding_value=0",
        )
    return found.tobytes()

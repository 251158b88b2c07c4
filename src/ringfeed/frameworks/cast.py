"""What ``cast=`` makes of the leaves of a batch: checked before anything runs, done by NumPy.

    slot       uint8 ──────────── a quarter of what float32 would take
    hand-over  a tensor over the slot, or a copy of it on the device
    cast       ((x * scale + offset) - mean) / std, where that tensor is; the slot comes back
    model      floating point

No framework is imported here.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed._checks import error_of
from ringfeed.frameworks.forms import is_string
from ringfeed.spec.array import CONTAINERS, AnyArray, Array, Leaf, shown
from ringfeed.spec.conversion import Cast
from ringfeed.spec.spec import Spec, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from ringfeed.spec.forms import Form

    Check: TypeAlias = Callable[["Casts", Sequence[Leaf], str], None]
    Step: TypeAlias = "tuple[Callable[[Any, Any], Any], AnyArray]"

CastTree: TypeAlias = "str | Cast | Mapping[Any, Any] | Sequence[Any] | None"
"""A dtype's name or a Cast, for every uint8 leaf; or a sample's structure of these and None."""
Casts: TypeAlias = dict[int, Cast]
"""The casts by the number of their leaf, in order; other leaves stay as they are."""

FLOATS = "float16", "bfloat16", "float32", "float64"
NUMBERS = "biuf"
TO_CHW = (0, 3, 1, 2)
"""The axes of a batch of (height, width, channels) in the order of layout="CHW"."""
_STEPS = {
    "scale": operator.imul,
    "offset": operator.iadd,
    "mean": operator.isub,
    "std": operator.itruediv,
}
_CHANNELS = "the same channels in all batches, as mean or std has a number for each"
_REMEDY = "write it in the structure of the sample, with None for what stays as it is"


# ---- which leaf is cast ----


def casts_of(spec: Spec, asked: CastTree, method: str, check: Check | None = None) -> Casts:
    """The casts that ``asked`` means for the leaves of a spec; every refusal names ``method``.

    ``check`` refuses what the framework cannot do, also where the leaf is already what it is cast
    to.
    """
    if asked is None:
        return {}
    where = f"{method}(cast=...): "
    paired = zip(spec.leaves, _paired(spec.tree, asked, f"{where}sample"), strict=True)
    found = {
        number: _checked(cast, leaf, where)
        for number, (leaf, cast) in enumerate(paired)
        if cast is not None
    }
    if not found:
        raise error_of(
            f"{where}sample",
            "is cast nowhere",
            "a cast of one leaf or more",
            "name one, or leave cast out",
        )
    if check is not None:
        check(found, spec.leaves, method)
    return {
        number: cast for number, cast in found.items() if not _is_idle(cast, spec.leaves[number])
    }


def _paired(model: Any, asked: Any, where: str) -> Iterator[Cast | None]:
    """What was asked for each leaf of a sample's tree of Arrays, or of a branch of it."""
    if asked is None:
        yield from (None for _ in Spec(model).leaves)
    elif isinstance(model, Array):
        yield _cast_of(asked, where)
    elif isinstance(asked, (str, Cast)):
        yield from _every_uint8(model, _cast_of(asked, where), where)
    else:
        branches = zip(parts_of(model, where), _parts(model, asked, where), strict=True)
        for (below, branch), part in branches:
            yield from _paired(branch, part, below)


def _every_uint8(model: Any, cast: Cast, where: str) -> list[Cast | None]:
    found = [
        cast if leaf.dtype == np.uint8 and not is_string(leaf) else None
        for leaf in Spec(model).leaves
    ]
    if not any(found):
        raise error_of(
            where,
            "has no leaf of dtype uint8",
            "one or more to cast",
            "name other leaves one by one, in the structure of the sample, as in ('float32', None)",
        )
    return found


def _parts(model: Any, asked: Any, where: str) -> list[Any]:
    """What was asked for each child of a container."""
    if isinstance(model, dict) and isinstance(asked, dict):
        if unknown := [key for key in asked if key not in model]:
            raise error_of(
                where, f"is cast by the keys {unknown}", f"some of {list(model)}", _REMEDY
            )
        return [asked.get(key) for key in model]
    if isinstance(model, dict) or not isinstance(asked, (tuple, list)) or len(asked) != len(model):
        raise error_of(where, f"is cast by {_said(asked)}", shown(model), _REMEDY)
    return [*asked]


def _said(asked: object) -> str:
    return shown(asked) if isinstance(asked, CONTAINERS) else repr(asked)


def _cast_of(asked: object, where: str) -> Cast:
    if isinstance(asked, str):
        return Cast(asked)
    if not isinstance(asked, Cast):
        raise error_of(
            where,
            f"is cast by {_said(asked)}",
            "the name of a dtype, a ringfeed.Cast or None",
            "write it as in 'float32'",
        )
    return asked


def _is_idle(cast: Cast, leaf: Leaf) -> bool:
    """Whether it would change nothing."""
    return cast.dtype == leaf.dtype.name and cast.layout is None and not steps_of(cast)


def apart(casts: Casts, numbers: Container[int]) -> tuple[Casts, Casts]:
    """The casts of these leaves, and the others."""
    mine = {number: cast for number, cast in casts.items() if number in numbers}
    return mine, {number: cast for number, cast in casts.items() if number not in mine}


# ---- whether it can be ----


def _checked(cast: Cast, leaf: Leaf, where: str) -> Cast:
    """The cast, if it can be carried out on the leaf."""
    where += leaf.path
    if cast.dtype not in FLOATS:
        raise error_of(
            where, f"is cast to {cast.dtype!r}", f"one of {', '.join(FLOATS)}", "name one of these"
        )
    if leaf.dtype.kind not in NUMBERS and leaf.dtype.name != "bfloat16":
        raise error_of(
            where,
            f"has dtype {leaf.dtype}",
            "whole numbers, bools or floating point",
            "put None in its place, or convert it in __getitem__",
        )
    if leaf.form is not None:
        _check_form(cast, leaf, leaf.form, where)
    if cast.layout not in (None, "CHW"):
        raise error_of(
            where, f"is cast with layout={cast.layout!r}", "'CHW' or None", "write layout='CHW'"
        )
    if cast.layout is not None and len(leaf.shape) != len(TO_CHW) - 1:
        raise error_of(
            where,
            f"has shape {leaf.shape}",
            "(height, width, channels) for layout='CHW'",
            "leave layout out, or give the sample these axes",
        )
    channels = leaf.shape[-1] if leaf.shape else None
    if cast.channels not in (None, channels):
        got = f"is cast with {cast.channels} numbers of mean or std"
        expected, remedy = "one number, as it has no channels", "give one"
        if channels is not None:
            expected = f"one number or {channels}, as it has channels (its last axis)"
            remedy = "give as many"
        raise error_of(where, got, expected, remedy)
    if cast.channels is not None and len(leaf.shape) - 1 in leaf.variable:
        raise error_of(
            where,
            f"has variable={leaf.variable}",
            _CHANNELS,
            "leave that axis out of variable, or give one",
        )
    return cast


def _check_form(cast: Cast, leaf: Leaf, form: Form, where: str) -> None:
    """Refuse what cannot be done to samples that differ in length."""
    if is_string(leaf):
        raise error_of(where, f"is {form.name}", "numbers to cast", "put None in its place")
    if cast.layout is not None and not form.is_padded:
        raise error_of(
            where,
            f"is {form.name}",
            "samples of one shape for layout='CHW'",
            "leave layout out, or give form='pad' in spec=",
        )
    if cast.channels is not None and len(leaf.shape) - 1 in form.axes:
        raise error_of(where, f"has shape {form.shape}", _CHANNELS, "give one number for all")


# ---- carrying it out ----


def steps_of(cast: Cast) -> list[Step]:
    """The steps of a cast on a new tensor of its dtype and layout; numbers are float64."""
    given = [(operate, getattr(cast, name)) for name, operate in _STEPS.items()]
    return [(operate, _number(cast, value)) for operate, value in given if value is not None]


def _number(cast: Cast, value: Any) -> AnyArray:
    number: AnyArray = np.asarray(value, np.float64)
    return number.reshape(-1, 1, 1) if number.ndim and cast.layout else number


def caster_of(
    cast: Cast,
    transpose: Callable[[Any, Sequence[int]], Any],
    convert: Callable[[Any], Any],
    number: Callable[[AnyArray], Any],
) -> Callable[[Any], Any]:
    """What casts a tensor of some framework.

    ``convert`` makes a new tensor of the cast's dtype, which reads the old one once, and on which
    the steps work in place; ``number`` makes an operand in this dtype.
    """
    with np.errstate(over="ignore"):
        steps = [(operate, number(value)) for operate, value in steps_of(cast)]

    def ringfeed_cast(tensor: Any) -> Any:
        found = convert(transpose(tensor, TO_CHW) if cast.layout else tensor)
        for operate, value in steps:
            found = operate(found, value)
        return found

    return ringfeed_cast


def shape_after(shape: Sequence[Any], cast: Cast) -> tuple[Any, ...]:
    """The shape of a batch after the cast."""
    return tuple(shape[axis] for axis in TO_CHW) if cast.layout else tuple(shape)


def in_numpy(casts: Casts) -> dict[int, Callable[[AnyArray], AnyArray]]:
    """For each leaf what makes a cast array of a view of it, read once."""
    return {number: _numpy_caster(cast) for number, cast in casts.items()}


def _numpy_caster(cast: Cast) -> Callable[[AnyArray], AnyArray]:
    dtype = _numpy_dtype(cast.dtype)
    caster = caster_of(
        cast,
        np.transpose,
        lambda view: view.astype(dtype, order="C"),
        lambda value: value.astype(dtype),
    )

    def quietly(view: AnyArray) -> AnyArray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            found: AnyArray = caster(view)
        return found

    return quietly


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: PLC0415 - every framework that has bfloat16 in NumPy brings it

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


class Chosen(dict[int, "Callable[[Any], Any]"]):
    """What casts some leaves of each batch, by their numbers."""

    def __call__(self, leaves: list[Any]) -> list[Any]:
        """Cast these leaves in their place: no view of a slot outlives its cast."""
        for number, caster in self.items():
            leaves[number] = caster(leaves[number])
        return leaves


NOTHING = Chosen()

"""What ``cast=`` makes of the leaves of a batch: looked at before anything runs, and carried out by NumPy.

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

from ringfeed.spec.array import CONTAINERS, Array, error_of, fields_of, shown
from ringfeed.spec.conversion import Cast
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ringfeed.spec.array import AnyArray, Leaf

    CastTree: TypeAlias = "str | Cast | Mapping[Any, Any] | Sequence[Any] | None"
    """A dtype's name or a Cast, for every uint8 leaf; or the sample's structure of these and of None."""
    Casts: TypeAlias = "dict[int, Cast]"
    """The casts by the number of their leaf, in order; of leaves that stay as they are there is none."""
    Check: TypeAlias = Callable[[Casts, Sequence[Leaf], str], None]
    Step: TypeAlias = "tuple[Callable[[Any, Any], Any], AnyArray]"

FLOATS = "float16", "bfloat16", "float32", "float64"
NUMBERS = "biuf"
TO_CHW = (0, 3, 1, 2)
"""The axes of a batch of (height, width, channels) in the order of layout="CHW"."""
_STEPS = {"scale": operator.imul, "offset": operator.iadd, "mean": operator.isub, "std": operator.itruediv}
_REMEDY = "write it in the structure of the sample, with None for what stays as it is"


# ---- which leaf is cast ----


def casts_of(spec: Spec, asked: CastTree, method: str, check: Check | None = None) -> Casts:
    """The casts that ``asked`` means for the leaves of a spec, for ``method``, which is named in every refusal.

    ``check`` refuses what the framework cannot do, also where the leaf is already what it is cast to.
    """
    if asked is None:
        return {}
    pairing = _Pairing(spec, method)
    pairing.pair(spec.tree, asked, "sample")
    if not pairing.found:
        raise error_of(
            f"{method}(cast=...): sample",
            "is cast nowhere",
            "a cast of one leaf or more",
            "name one, or leave cast out",
        )
    if check is not None:
        check(pairing.found, spec.leaves, method)
    return {number: cast for number, cast in pairing.found.items() if not _is_idle(cast, spec.leaves[number])}


class _Pairing:
    """One walk over the sample's structure and what was asked for it."""

    def __init__(self, spec: Spec, method: str) -> None:
        self._leaves = spec.leaves
        self._method = method
        self._next = 0  # the number of the leaf that the walk comes to next
        self.found: Casts = {}

    def pair(self, model: Any, asked: Any, path: str) -> None:
        """Walk one branch of the sample's tree of Arrays."""
        if isinstance(model, Array):
            number, self._next = self._next, self._next + 1
            if asked is not None:
                self.found[number] = _checked(_cast_of(asked, self._where(path)), self._leaves[number], self._method)
        elif asked is None:
            self._next += len(Spec(model).leaves)
        elif isinstance(asked, (str, Cast)):
            self._every_uint8(model, asked, path)
        else:
            for branch, part, below in _branches(model, asked, self._where(path), path):
                self.pair(branch, part, below)

    def _every_uint8(self, model: Any, asked: str | Cast, path: str) -> None:
        first, self._next = self._next, self._next + len(Spec(model).leaves)
        numbers = [number for number in range(first, self._next) if self._leaves[number].dtype == np.uint8]
        if not numbers:
            remedy = "name other leaves one by one, in the structure of the sample, as in ('float32', None)"
            raise error_of(self._where(path), "has no leaf of dtype uint8", "one or more to cast", remedy)
        for number in numbers:
            self.found[number] = _checked(_cast_of(asked, self._where(path)), self._leaves[number], self._method)

    def _where(self, path: str) -> str:
        return f"{self._method}(cast=...): {path}"


def _branches(model: Any, asked: Any, where: str, path: str) -> list[tuple[Any, Any, str]]:
    """The children of a container: each with what was asked for it, and where it stands."""
    if isinstance(model, dict):
        if not isinstance(asked, dict):
            raise error_of(where, f"is cast by {_said(asked)}", shown(model), _REMEDY)
        if unknown := [key for key in asked if key not in model]:
            raise error_of(where, f"is cast by the keys {unknown}", f"some of {list(model)}", _REMEDY)
        return [(branch, asked.get(key), f"{path}[{key!r}]") for key, branch in model.items()]
    if not isinstance(asked, (tuple, list)) or len(asked) != len(model):
        raise error_of(where, f"is cast by {_said(asked)}", shown(model), _REMEDY)
    names = fields_of(model)
    paths = [f"{path}[{number}]" for number in range(len(model))] if names is None else [f"{path}.{n}" for n in names]
    return list(zip(model, asked, paths, strict=True))


def _said(asked: object) -> str:
    return shown(asked) if isinstance(asked, CONTAINERS) else repr(asked)


def _cast_of(asked: object, where: str) -> Cast:
    if isinstance(asked, str):
        return Cast(asked)
    if not isinstance(asked, Cast):
        expected = "the name of a dtype, a ringfeed.Cast or None"
        raise error_of(where, f"is cast by {_said(asked)}", expected, "write it as in 'float32'")
    return asked


def _is_idle(cast: Cast, leaf: Leaf) -> bool:
    """Whether it would change nothing."""
    return cast.dtype == leaf.dtype.name and cast.layout is None and not steps_of(cast)


def apart(casts: Casts, numbers: Iterable[int]) -> tuple[Casts, Casts]:
    """The casts of these leaves, and the others."""
    mine = frozenset(numbers)
    return (
        {number: cast for number, cast in casts.items() if number in mine},
        {number: cast for number, cast in casts.items() if number not in mine},
    )


# ---- whether it can be ----


def _checked(cast: Cast, leaf: Leaf, method: str) -> Cast:
    """The cast, if it can be carried out on the leaf."""
    where = f"{method}(cast=...): {leaf.path}"
    if cast.dtype not in FLOATS:
        raise error_of(where, f"is cast to {cast.dtype!r}", f"one of {', '.join(FLOATS)}", "name one of these")
    if leaf.dtype.kind not in NUMBERS and leaf.dtype.name != "bfloat16":
        remedy = "put None in its place, or convert it in __getitem__"
        raise error_of(where, f"has dtype {leaf.dtype}", "whole numbers, bools or floating point", remedy)
    if cast.layout not in (None, "CHW"):
        raise error_of(where, f"is cast with layout={cast.layout!r}", "'CHW' or None", "write layout='CHW'")
    if cast.layout is not None and len(leaf.shape) != len(TO_CHW) - 1:
        expected = "(height, width, channels) for layout='CHW'"
        raise error_of(where, f"has shape {leaf.shape}", expected, "leave layout out, or give the sample these axes")
    channels = leaf.shape[-1] if leaf.shape else None
    if cast.channels not in (None, channels):
        got = f"is cast with {cast.channels} numbers of mean or std"
        if channels is None:
            raise error_of(where, got, "one number, as it has no channels", "give one")
        raise error_of(where, got, f"one number or {channels}, as it has channels (its last axis)", "give as many")
    if cast.channels is not None and len(leaf.shape) - 1 in leaf.variable:
        expected = "the same channels in all batches, as mean or std has a number for each"
        raise error_of(where, f"has variable={leaf.variable}", expected, "leave that axis out of variable, or give one")
    return cast


# ---- carrying it out ----


def steps_of(cast: Cast) -> list[Step]:
    """What is done to a new tensor of the cast's dtype and layout, one after the other, with numbers as float64."""
    given = [(operate, getattr(cast, name)) for name, operate in _STEPS.items()]
    return [(operate, _number(cast, value)) for operate, value in given if value is not None]


def _number(cast: Cast, value: Any) -> AnyArray:
    number: AnyArray = np.asarray(value, np.float64)
    return number.reshape(-1, 1, 1) if number.ndim and cast.layout else number


def shape_after(shape: Sequence[Any], cast: Cast) -> tuple[Any, ...]:
    """The shape of a batch after the cast."""
    return tuple(shape[axis] for axis in TO_CHW) if cast.layout else tuple(shape)


def in_numpy(casts: Casts) -> dict[int, Callable[[AnyArray], AnyArray]]:
    """For each leaf what makes a cast array of a view of it, read once."""
    return {number: _NumpyCast(cast) for number, cast in casts.items()}


class _NumpyCast:
    def __init__(self, cast: Cast) -> None:
        dtype = _numpy_dtype(cast.dtype)
        self._dtype = dtype
        self._layout = cast.layout
        with np.errstate(over="ignore"):
            self._steps = [(operate, number.astype(dtype)) for operate, number in steps_of(cast)]

    def __call__(self, view: AnyArray) -> AnyArray:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            found: AnyArray = (view.transpose(TO_CHW) if self._layout else view).astype(self._dtype, order="C")
            for operate, number in self._steps:
                found = operate(found, number)
        return found


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: PLC0415 - every framework that has bfloat16 in NumPy brings it

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(name)


class Chosen:
    """Casts some of the leaves of each batch, in their place in the list: no view of a slot outlives its cast."""

    def __init__(self, numbers: Sequence[int], together: Callable[[list[Any]], Sequence[Any]]) -> None:
        """``together`` casts those leaves, in this order."""
        self.numbers = frozenset(numbers)
        self._order = list(numbers)
        self._together = together

    def __call__(self, leaves: list[Any]) -> list[Any]:
        """Return the same list."""
        if not self._order:
            return leaves
        found = self._together([leaves[number] for number in self._order])
        for number, leaf in zip(self._order, found, strict=True):
            leaves[number] = leaf
        return leaves

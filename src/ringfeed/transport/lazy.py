"""What user code refers to in a framework, made lazy: a worker imports it when it is first used.

Functions and classes become a LazyObject where a global, a closure variable, a default, an
attribute or a functools.partial refers to them; so does a class on a framework's base, if its
module is the user's and travels by value. Annotations that name a framework are dropped.
"""

from __future__ import annotations

import contextlib
import typing
from abc import ABCMeta
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle.cloudpickle as _cloudpickle

from ringfeed.transport.arrays import PROTOCOL
from ringfeed.transport.framework_stubs import (
    LazyObject,
    named_lazily,
    of_framework,
    standin_for,
)
from ringfeed.transport.modules import by_value, found_at

if TYPE_CHECKING:
    import dataclasses
    import functools


def lazily(value: Any) -> Any:
    """Return a LazyObject for a framework's function or class; any other value as it is.

    A class on a framework's base, a model say, is one, too, if a worker can import its module.
    Exceptions stay themselves, since ``except`` takes nothing but classes.
    """
    kind = type(value)
    is_class = issubclass(kind, type)
    if stays(kind) or (is_class and (issubclass(value, BaseException) or standin_for(value))):
        return value
    module: Any = getattr(value, "__module__", None)
    if of_framework(module):
        for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
            if isinstance(name, str) and found_at(module, name) is value:
                return LazyObject(f"{module}:{name}")
    elif is_class and by_value(module):
        bases = [base for base in value.__mro__ if of_framework(base.__module__)]
        if any(standin_for(base) is None for base in bases):
            return named_lazily(value)
    return value


def stays(kind: type) -> bool:
    """Whether values of a type are never made lazy.

    They are no classes, no functions and of no framework.
    """
    return not issubclass(kind, type | FunctionType | BuiltinFunctionType) and not of_framework(
        kind.__module__
    )


def lazy_values(members: dict[str, Any]) -> dict[str, Any]:
    """Return these globals or attributes, each made lazy."""
    lazy = {name: lazily(value) for name, value in members.items()}
    if isinstance(lazy.get("__annotations__"), dict):
        lazy["__annotations__"] = without_frameworks(lazy["__annotations__"])
    return lazy


def lazy_members(cls: type, members: dict[str, Any]) -> dict[str, Any]:
    """Return a class's attributes, each made lazy where that is possible.

    A function is bound when it is looked up, and a lazy object is not.
    """
    lazy = lazy_values(members)
    if "__annotate_func__" in vars(cls):
        # Python 3.14: annotations are made when they are asked for, and kept there.
        lazy.pop("__annotations_cache__", None)
        with contextlib.suppress(Exception):
            lazy["__annotations__"] = without_frameworks(cls.__annotations__)
    for name, member in members.items():
        if isinstance(member, FunctionType):
            lazy[name] = member
        elif isinstance(member, staticmethod) and lazily(member.__func__) is not member.__func__:
            lazy[name] = lazily(member.__func__)
    return lazy


def without_frameworks(annotations: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations whose unpickling imports no framework."""
    return {
        name: annotation for name, annotation in annotations.items() if not _mentions(annotation)
    }


def _mentions(annotation: Any) -> bool:
    """Whether unpickling an annotation would import a framework."""
    if isinstance(annotation, list):  # the parameters of a Callable
        return any(map(_mentions, annotation))
    parts = typing.get_args(annotation)
    if parts:
        return _mentions(typing.get_origin(annotation)) or any(map(_mentions, parts))
    owner = annotation if isinstance(annotation, type) else type(annotation)
    return of_framework(owner.__module__)


def reduce_cell(cell: CellType) -> Any:
    """Take the cell of a closure variable apart, its content made lazy."""
    make, content = _cloudpickle._cell_reduce(cell)  # noqa: SLF001
    return make, tuple(map(lazily, content))


def reduce_code(code: CodeType) -> Any:
    """Return code with the name of its file, which tracebacks show.

    cloudpickle 3.1.3 writes another word in its place.
    """
    make, parts = _cloudpickle._code_reduce(code)  # noqa: SLF001
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def reduce_partial(partial: functools.partial[Any]) -> Any:
    """Take a functools.partial apart, its function made lazy."""
    reduced: Any = partial.__reduce__()
    make, _, (_, *state) = reduced
    function = lazily(partial.func)
    return make, (function,), (function, *state)


def reduce_field(field: dataclasses.Field[Any]) -> Any:
    """Take the field of a dataclass apart; a type that names a framework becomes its name."""
    reduced: Any = field.__reduce_ex__(PROTOCOL)
    make, args, (attributes, slots), *rest = reduced
    kind = str(field.type) if _mentions(field.type) else field.type
    return (make, args, (attributes, {**slots, "type": kind}), *rest)


def clashes(cls: type) -> bool:
    """Whether the metaclass of ``cls`` cannot be combined with that of the stand-ins."""
    plain = type(cls) is type or issubclass(type(cls), ABCMeta)
    return not plain and any(standin_for(base) for base in cls.__bases__)

"""What user code refers to in a framework, made lazy: a worker imports it when it is first used.

functions and classes, by a global, a closure variable, a default, an attribute or a
functools.partial: LazyObject annotations: dropped

And code, which keeps the name of its file.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import typing
from abc import ABCMeta
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle

from ringfeed.transport.arrays import PROTOCOL
from ringfeed.transport.framework_stubs import LazyObject, of_framework, standin_for

if TYPE_CHECKING:
    import dataclasses


def lazily(value: Any) -> Any:
    """Return a LazyObject for a framework's function or class; any other value as it is.

    Exceptions stay themselves, since ``except`` takes nothing but classes.
    """
    kind = type(value)
    if stays(kind) or (
        issubclass(kind, type) and (issubclass(value, BaseException) or standin_for(value))
    ):
        return value
    module: Any = getattr(value, "__module__", None)
    if of_framework(module):
        for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
            if isinstance(name, str) and found_at(module, name) is value:
                return LazyObject(f"{module}:{name}")
    return value


def stays(kind: type) -> bool:
    """Whether values of a type are never made lazy.

    They are no classes, no functions and of no framework.
    """
    return not issubclass(kind, type | FunctionType | BuiltinFunctionType) and not of_framework(
        kind.__module__
    )


def found_at(module: str, name: str) -> object:
    """Return the object of this qualified name in a module that is imported, or None."""
    try:
        return operator.attrgetter(name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None


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


def reduce_code(code: CodeType) -> Any:
    """Return code with the name of its file, which tracebacks show.

    cloudpickle 3.1.3 writes another word in its place.
    """
    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def reduce_partial(partial: functools.partial[Any]) -> Any:
    """Take a functools.partial apart, its function made lazy."""
    lazy = lazily(partial.func)
    if lazy is partial.func:
        return NotImplemented
    return functools.partial(lazy, *partial.args, **partial.keywords).__reduce__()


def reduce_field(field: dataclasses.Field[Any]) -> Any:
    """Take the field of a dataclass apart; a type that names a framework becomes its name."""
    if not _mentions(field.type):
        return NotImplemented
    reduced: Any = field.__reduce_ex__(PROTOCOL)
    make, args, (attributes, slots), *rest = reduced
    return (make, args, (attributes, {**slots, "type": str(field.type)}), *rest)


def on_demand(value: Any) -> Any:
    """Return a user's class on a framework's base, a model say, as one that is imported later."""
    if issubclass(type(value), type) and not issubclass(value, BaseException):
        bases = [base for base in value.__mro__ if of_framework(base.__module__)]
        if any(standin_for(base) is None for base in bases):
            return named_lazily(value)
    return value


def named_lazily(cls: type) -> LazyObject:
    """Return what imports a class by its name.

    As a base, it does so when the derived class is made.
    """
    return LazyObject(f"{cls.__module__}:{cls.__qualname__}")


def clashes(cls: type) -> bool:
    """Whether the metaclass of ``cls`` cannot be combined with that of the stand-ins."""
    plain = type(cls) is type or issubclass(type(cls), ABCMeta)
    return not plain and any(standin_for(base) for base in cls.__bases__)

"""Walks along the references of an object: what it reaches, and on which way.

`held` finds attributes, containers, closures, and the globals and class attributes of the user's
own modules. What C code or a container of very many elements hides is not seen. No code of the
objects' classes runs.
"""

from __future__ import annotations

import copyreg
import functools
import gc
import inspect
import logging
import sys
from collections import deque
from contextlib import suppress
from itertools import islice
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

import numpy as np
from cloudpickle.cloudpickle import _extract_code_globals

from ringfeed._classes import root_of
from ringfeed.transport.modules import is_users
from ringfeed.transport.pickler import CACHED, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Parts = Iterable[tuple["Step", Any]]

Step = tuple[str, Any]  # how a reference is written, and its name or key
MAX_OBJECTS = 100_000  # looked at
MAX_ENTRIES = 10_000  # of one container, looked at
SHOWN_KEY = 40  # characters of a dict's key

_MADE_TO_BE_SHARED = {"multiprocessing", "threading", "logging", "concurrent", "asyncio"}
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_PLAIN = frozenset(  # types of objects that refer to nothing
    (int, float, complex, str, bytes, bytearray, bool, type(None))
)
_MADE_WITH_CLASS = (GetSetDescriptorType, MemberDescriptorType)


def walk(
    root: object, children: Callable[[Any], Parts] | None = None, most: int = MAX_OBJECTS
) -> Iterator[tuple[tuple[Step, ...], Any, Any]]:
    """Yield what can be reached from ``root``, the nearest first: the way, the object, its holder.

    ``children`` finds the parts of an object; else `held` does.
    """
    seen = {id(root): root}  # keeps the objects, or their ids would be used again
    to_do: deque[tuple[tuple[Step, ...], Any]] = deque([((), root)])
    yield (), root, root
    while to_do and len(seen) < most:
        steps, obj = to_do.popleft()
        for step, child in islice((children or held)(obj), most):
            if type(child) not in _PLAIN and id(child) not in seen:
                seen[id(child)] = child
                to_do.append(((*steps, step), child))
                yield (*steps, step), child, obj


def written(steps: Iterable[Step]) -> str:
    """Return the way to an object as code has it.

    The name of a variable is quoted together with what follows it.
    """
    path, end = "", ""
    for how, name in steps:
        if how.startswith(": "):
            path, end = path + end, "'"
        key = repr(name)
        key = key if len(key) <= SHOWN_KEY else key[: SHOWN_KEY - 1] + "…"
        path += how.format(name=name, key=key)
    return path + end


def held(obj: Any) -> Parts:
    """Return what an object holds."""
    kind = type(obj)
    if issubclass(kind, type):
        return parts_of_class(obj) if is_users(obj.__module__) else ()
    if kind is FunctionType:
        return _parts_with_modules(obj)
    if kind is CACHED:
        return [(("", ""), obj.__wrapped__), *(((" (cached)", ""), r) for r in _results(obj))]
    if kind in PARTS:
        return PARTS[kind](obj)
    if (
        kind in (np.ndarray, ModuleType)
        or root_of(kind) in _MADE_TO_BE_SHARED
        or issubclass(kind, logging.Logger | logging.Handler)
    ):
        return ()
    entries: list[tuple[Step, Any]] = []
    if issubclass(kind, dict):  # at once, as another thread may change it
        entries = [(("[{key}]", key), child) for key, child in islice(obj.items(), MAX_ENTRIES)]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        fields = zip(kind._fields, obj, strict=False)
        entries = [((".{name}", name), value) for name, value in fields]
    elif issubclass(kind, _CONTAINERS):
        entries = [*elements(islice(obj, MAX_ENTRIES))]
    named = (((".{name}", name), child) for name, child in _attributes(obj).items())
    return [*entries, *named, (("", ""), kind)]


def _attributes(obj: Any) -> dict[str, Any]:
    """Return what lies in an instance; no code of its class runs."""
    found: dict[str, Any] = {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]  # noqa: SLF001
        slot = inspect.getattr_static(type(obj), name)
        if type(slot) is MemberDescriptorType:  # and no property over it, as pathlib has one
            with suppress(AttributeError):
                found[name] = slot.__get__(obj)
    with suppress(AttributeError):
        found |= object.__getattribute__(obj, "__dict__")
    return found


def _parts_with_modules(function: FunctionType) -> Parts:
    """Return the parts of a function, and what it names in the user's own modules.

    There `utils.read(i)` counts as `read(i)`.
    """
    parts = [*parts_of_function(function)]
    if not is_users(function.__module__):
        return [part for part in parts if not part[0][0].startswith(": global")]
    names = names_in(function.__code__)
    imported = sorted(names & sys.modules.keys())
    parts += (((": import '{name}", name), sys.modules[name]) for name in imported)
    seen = set()
    for (how, name), module in parts:  # which grows by the modules inside
        if type(module) is ModuleType and module not in seen and is_users(module.__name__):
            seen.add(module)
            way = how.format(name=name)
            members = sorted(names & vars(module).keys())
            parts += (((f"{way}.{{name}}", name), vars(module)[name]) for name in members)
    return parts


def _results(cached: Any) -> Iterator[Any]:
    """Yield what a function under lru_cache remembers.

    With a maxsize its table has entries that know their neighbours, and an old one crashes: it is
    left out. The cache refers to the results, too.
    """
    for part in gc.get_referents(cached):
        if type(part) is not dict:
            yield part
        elif not any(type(entry).__name__ == "_lru_list_elem" for entry in part.values()):
            yield from part.values()


def elements(found: Iterable[Any]) -> Iterator[tuple[Step, Any]]:
    """Yield elements by their numbers."""
    return ((("[{key}]", number), element) for number, element in enumerate(found))


def parts_of_function(function: FunctionType) -> Iterator[tuple[Step, Any]]:
    """Yield the variables, globals, defaults and attributes of a function."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            yield (": variable '{name}", name), cell.cell_contents
    table = function.__globals__
    named = sorted(_extract_code_globals(code).keys() & table.keys())  # which are pickled with it
    yield from (((": global '{name}", name), table[name]) for name in named)
    positional = reversed(code.co_varnames[: code.co_argcount])
    last_first = zip(positional, reversed(function.__defaults__ or ()), strict=False)
    for name, value in (*last_first, *(function.__kwdefaults__ or {}).items()):
        yield (": default '{name}", name), value
    yield from (((".{name}", name), value) for name, value in vars(function).items())


def parts_of_class(cls: type) -> Iterator[tuple[Step, Any]]:
    """Yield the members and bases of a class."""
    for name, member in vars(cls).items():
        # Made anew with the class, and never pickled.
        if name != "_abc_impl" and not isinstance(member, _MADE_WITH_CLASS):
            yield (".{name}", name), member
    yield from ((("", ""), base) for base in cls.__bases__)


def _attributes_by(*ways: tuple[str, str]) -> Callable[[Any], Parts]:
    """Return what finds these attributes, each with the way that is written for it."""
    return lambda obj: [((how, ""), getattr(obj, name)) for name, how in ways]


PARTS: dict[type, Callable[[Any], Parts]] = {
    FunctionType: parts_of_function,
    MethodType: _attributes_by(("__self__", ".__self__"), ("__func__", "")),
    staticmethod: _attributes_by(("__func__", "")),
    classmethod: _attributes_by(("__func__", "")),
    property: _attributes_by(("fget", ""), ("fset", ""), ("fdel", "")),
    functools.partial: _attributes_by(
        ("func", ".func"), ("args", ".args"), ("keywords", ".keywords")
    ),
}

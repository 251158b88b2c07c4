"""Walks along the references of a dataset: what can be reached from it, and on what way.

These are attributes, containers, closures, and the globals and class attributes of the user's own modules. What C code
or a container of very many elements hides is not seen. No code of the objects' classes runs.
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
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import root_of
from ringfeed.transport import unpicklable
from ringfeed.transport.pickler import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OBJECTS = 100_000  # looked at
MAX_ENTRIES = 10_000  # of one container, looked at

Step = tuple[str, object]  # how a reference is written, and its name
CACHED = type(functools.lru_cache(lambda: None))
_MADE_TO_BE_SHARED = {"multiprocessing", "threading", "logging", "concurrent", "asyncio"}
_PLAIN = frozenset((int, float, complex, str, bytes, bytearray, bool, type(None), np.ndarray, np.dtype, ModuleType))


def walk(root: object) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield what can be reached from ``root``, the nearest first, and the way there."""
    seen: dict[int, object] = {}  # keeps the objects, or their ids would be used again
    to_do: deque[tuple[tuple[Step, ...], Any]] = deque([((), root)])
    while to_do and len(seen) < MAX_OBJECTS:
        steps, obj = to_do.popleft()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        yield steps, obj
        for step, child in islice(_held(obj), MAX_ENTRIES):
            if type(child) not in _PLAIN and id(child) not in seen:
                to_do.append(((*steps, step), child))


def _held(obj: Any) -> Iterator[tuple[Step, Any]]:
    kind = type(obj)
    if issubclass(kind, type):
        if is_users(obj.__module__):
            yield from ((("{}", label), part) for label, part in unpicklable.parts_of_class(obj))
        return
    if kind is FunctionType:
        yield from ((("{}", label), part) for label, part in _named(obj))
        return
    if (parts := unpicklable.PARTS.get(kind)) is not None and not issubclass(kind, (dict, list, tuple, set, frozenset)):
        yield from ((("{}", label), part) for label, part in parts(obj))  # methods, partial() and the like
        return
    if kind is CACHED:
        yield ("{}", ""), obj.__wrapped__
        yield from ((("{}", " (cached)"), result) for result in results_of(obj))
        return
    if root_of(kind) in _MADE_TO_BE_SHARED or issubclass(kind, logging.Logger | logging.Handler):
        return
    if issubclass(kind, dict):
        entries = [*islice(obj.items(), MAX_ENTRIES)]  # at once, as another thread may change it
        yield from ((("[{!r}]", key), child) for key, child in entries)
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        yield from ((("[{!r}]", number), child) for number, child in enumerate([*islice(obj, MAX_ENTRIES)]))
    yield from (((".{}", name), child) for name, child in attributes(obj).items())
    yield ("{}", ""), kind


def written(steps: tuple[Step, ...]) -> str:
    """Return the way to an object as code has it."""
    return unpicklable.joined(labels(steps))


def labels(steps: tuple[Step, ...]) -> Iterator[str]:
    """Yield the steps to an object as code has them."""
    return (_shown(*step) for step in steps)


def _shown(how: str, name: object) -> str:
    label = how.format(name)
    return label if len(label) <= unpicklable.SHOWN_KEY else label[: unpicklable.SHOWN_KEY - 1] + "…"


def attributes(obj: Any) -> dict[str, Any]:
    """Return what lies in an instance; no code of its class runs."""
    found = {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]  # noqa: SLF001 - as pickle asks it
        slot = inspect.getattr_static(type(obj), name)
        if type(slot) is MemberDescriptorType:  # and no property over it, as pathlib has one
            with suppress(AttributeError):
                found[name] = slot.__get__(obj)
    return {**found, **dict_of(obj)}


def dict_of(obj: object) -> dict[str, Any]:
    """Return the dict of an instance's attributes, or an empty one where it has none."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the code of a function names, in the user's own modules, too: `utils.read(i)` reads as `read(i)`."""
    if not is_users(function.__module__):
        yield from (part for part in unpicklable.parts_of_function(function) if not part[0].startswith(": global"))
        return
    parts = [*unpicklable.parts_of_function(function)]
    yield from parts
    names = names_in(function.__code__)
    imports = [(f": import '{name}", sys.modules[name]) for name in sorted(names & sys.modules.keys())]
    yield from _in_modules([*parts, *imports], names)


def _in_modules(parts: list[tuple[str, Any]], names: set[str]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for label, module in parts:  # which grows by the modules inside
        if type(module) is ModuleType and module not in seen and is_users(module.__name__):
            seen.add(module)
            members = [(f"{label}.{name}", vars(module)[name]) for name in sorted(names & vars(module).keys())]
            parts += members
            yield from members


def results_of(cached: Any) -> Iterator[Any]:
    """Return what a function under lru_cache remembers, and not the table of its entries, which only it may change."""
    held = [part for part in gc.get_referents(cached) if part is not cached.__wrapped__]
    found = [part for part in held if type(part) is not dict or not all(map(_is_link, part.values()))]
    tables = (part.values() for part in found if type(part) is dict)
    return chain(found, chain.from_iterable(tables))


def _is_link(value: object) -> bool:
    """Whether it is an entry of a cache with a maxsize: entries know their neighbours, and an old one crashes."""
    return type(value).__name__ == "_lru_list_elem"


def is_users(module: object) -> bool:
    """Whether a module is the user's own: neither Python's nor installed."""
    if module in ("__main__", "__mp_main__"):
        return True
    root = str(module).partition(".")[0]
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    if not isinstance(file, str) or root in sys.stdlib_module_names or root == "ringfeed":
        return False
    return "site-packages" not in file and "dist-packages" not in file

"""Walks along the references of a dataset: what it reaches, on which way, and what is open.

These are attributes, containers, closures, and the globals and class attributes of the user's own
modules. What C code or a container of very many elements hides is not seen. No code of the objects'
classes runs.
"""

from __future__ import annotations

import copyreg
import functools
import gc
import inspect
import io
import logging
import sys
from collections import deque
from contextlib import suppress
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import root_of
from ringfeed.errors import ShipError
from ringfeed.transport import unpicklable
from ringfeed.transport.modules import is_users
from ringfeed.transport.pickler import failure, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OBJECTS = 100_000  # looked at
MAX_ENTRIES = 10_000  # of one container, looked at

Step = tuple[str, object]  # how a reference is written, and its name
CACHED = type(functools.lru_cache(lambda: None))
_CONNECTIONS = {
    "h5py",
    "netCDF4",
    "tables",
    "lmdb",
    "rasterio",
    "sqlite3",
    "duckdb",
    "_duckdb",
    "psycopg",
    "psycopg2",
    "pymysql",
    "MySQLdb",
    "mysql",
    "mariadb",
    "pyodbc",
    "oracledb",
    "cx_Oracle",
    "pymssql",
    "pg8000",
    "asyncpg",
}
"""Packages whose objects, where they cannot be pickled, are open files or connections."""

_MADE_TO_BE_SHARED = {"multiprocessing", "threading", "logging", "concurrent", "asyncio"}
_PLAIN = unpicklable.PLAIN | {np.ndarray, np.dtype, ModuleType}


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
    if (parts := unpicklable.PARTS.get(kind)) is not None and not issubclass(
        kind, (dict, list, tuple, set, frozenset)
    ):
        # Methods, partial() and the like.
        yield from ((("{}", label), part) for label, part in parts(obj))
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
        yield from (
            (("[{!r}]", number), child) for number, child in enumerate([*islice(obj, MAX_ENTRIES)])
        )
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
    return (
        label if len(label) <= unpicklable.SHOWN_KEY else label[: unpicklable.SHOWN_KEY - 1] + "…"
    )


def attributes(obj: Any) -> dict[str, Any]:
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


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the code of a function names, in the user's own modules, too.

    There `utils.read(i)` counts as `read(i)`.
    """
    if not is_users(function.__module__):
        yield from (
            part
            for part in unpicklable.parts_of_function(function)
            if not part[0].startswith(": global")
        )
        return
    parts = [*unpicklable.parts_of_function(function)]
    yield from parts
    names = names_in(function.__code__)
    imports = [
        (f": import '{name}", sys.modules[name]) for name in sorted(names & sys.modules.keys())
    ]
    yield from _in_modules([*parts, *imports], names)


def _in_modules(parts: list[tuple[str, Any]], names: set[str]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for label, module in parts:  # which grows by the modules inside
        if type(module) is ModuleType and module not in seen and is_users(module.__name__):
            seen.add(module)
            members = [
                (f"{label}.{name}", vars(module)[name])
                for name in sorted(names & vars(module).keys())
            ]
            parts += members
            yield from members


def results_of(cached: Any) -> Iterator[Any]:
    """Return what a function under lru_cache remembers.

    The table of its entries is left out, since only the cache may change it.
    """
    held = [part for part in gc.get_referents(cached) if part is not cached.__wrapped__]
    found = [
        part for part in held if type(part) is not dict or not all(map(_is_link, part.values()))
    ]
    tables = (part.values() for part in found if type(part) is dict)
    return chain(found, chain.from_iterable(tables))


def _is_link(value: object) -> bool:
    """Whether an object is an entry of a cache with a maxsize.

    Entries know their neighbours, and an old one crashes.
    """
    return type(value).__name__ == "_lru_list_elem"


# ---- what is open ----


def refuse_to_share(dataset: object) -> None:
    """Refuse open files, sockets and connections: after a fork all workers would move one position.

    Standard streams, files that are only written, memory maps and what multiprocessing makes may be
    shared.
    """
    for steps, held in walk(dataset):
        if _is_shared(held):
            where = unpicklable.users_path(dataset, "dataset", labels(steps))
            message = (
                f"{where} is {unpicklable.words(held)}, and forked workers would share it with "
                "this process, its position too; open it on first use in __getitem__, in the "
                "worker, and close it here, or use backend='process' with a __getstate__ that "
                "leaves it out"
            )
            raise ShipError(message)


def _is_shared(held: Any) -> bool:
    if issubclass(type(held), io.IOBase):
        return _is_read(held)
    found = set(map(root_of, type(held).__mro__))
    if "socket" in found or "_socket" in found:
        return issubclass(type(held), sys.modules["socket"].socket) and held.fileno() >= 0
    return not found.isdisjoint(_CONNECTIONS) and failure(held) is not None and not _is_closed(held)


def _is_read(file: Any) -> bool:
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if any(file is stream or file is getattr(stream, "buffer", None) for stream in standard):
        return False
    try:
        return not file.closed and file.fileno() > 2 and file.readable()  # noqa: PLR2004
    except (OSError, ValueError, AttributeError):  # of no file, such as BytesIO
        return False


def _is_closed(held: Any) -> bool:
    return root_of(type(held)) == "h5py" and not held

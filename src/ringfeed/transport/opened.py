"""What a dataset has open: files, sockets and connections, of which each process needs its own.

    as_before(dataset)         undoes what reads in this process leave in a dataset, if it cannot be sent to another
    shared_by_fork(dataset)    names what no other way than a fork takes to another process
    refuse_to_share(dataset)   ShipError for what forked workers would share with this process, positions and all

Both walk along the references of a dataset: attributes, containers, closures, and the globals and class attributes of
the user's own modules. What C code or a container of very many elements hides is not seen.
"""

from __future__ import annotations

import copyreg
import functools
import gc
import inspect
import io
import logging
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from contextlib import contextmanager, suppress
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import root_of
from ringfeed.errors import ShipError
from ringfeed.transport import unpicklable
from ringfeed.transport.pickler import failure, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OBJECTS = 100_000  # looked at
MAX_ENTRIES = 10_000  # of one container: one with more is not given back what it had

Step = tuple[str, object]  # how a reference is written, and its name
_CONNECTIONS = {
    *("h5py", "netCDF4", "tables", "lmdb", "rasterio", "sqlite3", "duckdb", "_duckdb", "psycopg", "psycopg2"),
    *("pymysql", "MySQLdb", "mysql", "mariadb", "pyodbc", "oracledb", "cx_Oracle", "pymssql", "pg8000", "asyncpg"),
}
"""Packages whose objects, where they cannot be pickled, are open files or connections."""
_MADE_TO_BE_SHARED = {"multiprocessing", "threading", "logging", "concurrent", "asyncio"}
_PLAIN = frozenset((int, float, complex, str, bytes, bytearray, bool, type(None), np.ndarray, np.dtype, ModuleType))
_CACHED = type(functools.lru_cache(lambda: None))
_LISTS, _DICTS, _SETS = (list,), (dict, OrderedDict, defaultdict), (set,)
_NOTHING = object()


def refuse_to_share(dataset: object, name: str = "dataset") -> None:
    """Refuse open files, sockets and connections: after a fork all workers would move one position.

    Standard streams, files that are only written, memory maps and what multiprocessing makes may be shared.
    """
    for steps, held in _walk(dataset):
        if _is_shared(held):
            where = name + unpicklable.joined(_shown(*step) for step in steps)
            message = (
                f"{where} is {unpicklable.words(held)}, and forked workers would share it with this process, its "
                f"position too; open it on first use in __getitem__, in the worker, and close it here, or use "
                f"start_method='forkserver' with a __getstate__ that leaves it out"
            )
            raise ShipError(message)


def shared_by_fork(dataset: object, name: str = "dataset") -> str | None:
    """Return where a dataset holds what processes share by a fork alone, such as a lock of multiprocessing's."""
    for steps, held in _walk(dataset):
        if type(held).__module__ in ("multiprocessing.synchronize", "multiprocessing.sharedctypes"):
            return name + unpicklable.joined(_shown(*step) for step in steps)
    return None


@contextmanager
def as_before(dataset: object, *, always: bool = False) -> Iterator[None]:
    """Give a dataset back what it held, if something it holds after the body, and not before, cannot be sent.

    ``always``: whatever it is.

    So each worker opens for itself the file that ``__getitem__`` opens on first use, though sample 0 was read here.
    All of it comes back, or a flag such as ``self.opened`` would contradict what was undone.
    """
    before = [(holder, _state(holder)) for _, holder in _walk(dataset)]
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of a file that nothing refers to any more
            _give_back(before, always=always)


def _give_back(before: list[tuple[Any, dict[Any, Any] | None]], *, always: bool = False) -> None:
    changed = [(holder, state, _changes(state, _state(holder))) for holder, state in before if state is not None]
    if always or failure([changes for _, _, changes in changed if changes]) is not None:
        for holder, state, changes in changed:
            if changes:
                _restore(holder, state)


def _changes(before: dict[Any, Any], now: dict[Any, Any] | None) -> list[Any]:
    return [value for key, value in (now or {}).items() if value is not before.get(key, _NOTHING)]


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
        return not file.closed and file.fileno() > 2 and file.readable()  # noqa: PLR2004 - the standard streams
    except (OSError, ValueError, AttributeError):  # of no file, such as BytesIO
        return False


def _is_closed(held: Any) -> bool:
    return root_of(type(held)) == "h5py" and not held


# ---- the walk ----


def _walk(root: object) -> Iterator[tuple[tuple[Step, ...], Any]]:
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
        if _is_users(obj.__module__):
            yield from ((("{}", label), part) for label, part in unpicklable.parts_of_class(obj))
        return
    if kind is FunctionType:
        yield from ((("{}", label), part) for label, part in _named(obj))
        return
    if (parts := unpicklable.PARTS.get(kind)) is not None and not issubclass(kind, (dict, list, tuple, set, frozenset)):
        yield from ((("{}", label), part) for label, part in parts(obj))  # methods, partial() and the like
        return
    if kind is _CACHED:
        yield ("{}", ""), obj.__wrapped__
        yield from ((("{}", " (cached)"), result) for result in _results(obj))
        return
    if root_of(kind) in _MADE_TO_BE_SHARED or issubclass(kind, logging.Logger | logging.Handler):
        return
    if issubclass(kind, dict):
        entries = [*islice(obj.items(), MAX_ENTRIES)]  # at once, as another thread may change it
        yield from ((("[{!r}]", key), child) for key, child in entries)
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        yield from ((("[{!r}]", number), child) for number, child in enumerate([*islice(obj, MAX_ENTRIES)]))
    yield from (((".{}", name), child) for name, child in _attributes(obj).items())
    yield ("{}", ""), kind


def _shown(how: str, name: object) -> str:
    label = how.format(name)
    return label if len(label) <= unpicklable.SHOWN_KEY else label[: unpicklable.SHOWN_KEY - 1] + "…"


def _attributes(obj: Any) -> dict[str, Any]:
    """Return what lies in an instance; no code of its class runs."""
    found = {}
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]  # noqa: SLF001 - as pickle asks it
        slot = inspect.getattr_static(type(obj), name)
        if type(slot) is MemberDescriptorType:  # and no property over it, as pathlib has one
            with suppress(AttributeError):
                found[name] = slot.__get__(obj)
    return {**found, **_dict_of(obj)}


def _dict_of(obj: object) -> dict[str, Any]:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the code of a function names, in the user's own modules, too: `utils.read(i)` reads as `read(i)`."""
    if not _is_users(function.__module__):
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
        if type(module) is ModuleType and module not in seen and _is_users(module.__name__):
            seen.add(module)
            members = [(f"{label}.{name}", vars(module)[name]) for name in sorted(names & vars(module).keys())]
            parts += members
            yield from members


def _results(cached: Any) -> Iterator[Any]:
    """Return what a function under lru_cache remembers, and not the table of its entries, which only it may change."""
    held = [part for part in gc.get_referents(cached) if part is not cached.__wrapped__]
    results = [part for part in held if type(part) is not dict or not all(map(_is_link, part.values()))]
    tables = (part.values() for part in results if type(part) is dict)
    return chain(results, chain.from_iterable(tables))


def _is_link(value: object) -> bool:
    """Whether it is an entry of a cache with a maxsize: entries know their neighbours, and an old one crashes."""
    return type(value).__name__ == "_lru_list_elem"


def _is_users(module: object) -> bool:
    """Whether a module is the user's own: neither Python's nor installed."""
    if module in ("__main__", "__mp_main__"):
        return True
    root = str(module).partition(".")[0]
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    if not isinstance(file, str) or root in sys.stdlib_module_names or root == "ringfeed":
        return False
    return "site-packages" not in file and "dist-packages" not in file


# ---- what a holder holds, and giving it back ----


def _state(obj: Any) -> dict[Any, Any] | None:
    """Return what an object holds that a read may change; None where that is not remembered."""
    kind = type(obj)
    if kind in _DICTS or kind in _LISTS or kind in _SETS:
        if len(obj) > MAX_ENTRIES:
            return None
        return (
            dict(obj) if kind in _DICTS else dict(enumerate(obj)) if kind in _LISTS else {id(one): one for one in obj}
        )
    if kind is FunctionType:
        return _variables(obj)
    if kind is _CACHED:
        return {id(result): result for result in _results(obj)}
    if issubclass(kind, type):
        return dict(vars(obj)) if _is_users(obj.__module__) else None
    return _attributes(obj)


def _variables(function: FunctionType) -> dict[Any, Any]:
    """Return the globals and closure variables that a function may set."""
    found: dict[Any, Any] = {}
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            found[number] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if _is_users(function.__module__):
        found.update(unpicklable.globals_of(function))
    return found


def _restore(obj: Any, before: dict[Any, Any]) -> None:
    kind = type(obj)
    if kind in _LISTS:
        obj[:] = before.values()
    elif kind in _DICTS or kind in _SETS:
        obj.clear()
        obj.update(before if kind in _DICTS else before.values())
    elif kind is _CACHED:
        obj.cache_clear()
    else:
        now = _state(obj) or {}
        for name, value in before.items():
            if now.get(name, _NOTHING) is not value:
                _assign(obj, name, value)
        for name in now.keys() - before.keys():
            _assign(obj, name, _NOTHING)


def _assign(obj: Any, name: Any, value: object) -> None:
    """Set a variable of a function, or an attribute, or take it away; no code of the object's class runs."""
    if isinstance(name, int):  # of a closure
        cell = obj.__closure__[name]
        if value is _NOTHING:
            del cell.cell_contents
        else:
            cell.cell_contents = value
    elif type(obj) is FunctionType or name in _dict_of(obj):
        table = obj.__globals__ if type(obj) is FunctionType else _dict_of(obj)
        table.pop(name) if value is _NOTHING else table.update({name: value})
    elif value is _NOTHING:
        (type if issubclass(type(obj), type) else object).__delattr__(obj, name)
    else:
        (type if issubclass(type(obj), type) else object).__setattr__(obj, name, value)

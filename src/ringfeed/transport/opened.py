"""What a dataset has open: files, sockets and connections, of which each process needs its own.

    as_before(dataset)         undoes what reads in this process leave in a dataset, if it cannot be sent to another
    shared_by_fork(dataset)    names what no other way than a fork takes to another process
    refuse_to_share(dataset)   ShipError for what forked workers would share with this process, positions and all

All walk along the references of a dataset.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections import OrderedDict, defaultdict
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ringfeed._classes import root_of
from ringfeed.errors import ShipError
from ringfeed.transport import unpicklable
from ringfeed.transport.pickler import failure
from ringfeed.transport.references import CACHED, MAX_ENTRIES, attributes, dict_of, is_users, results_of, walk, written

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONNECTIONS = {
    *("h5py", "netCDF4", "tables", "lmdb", "rasterio", "sqlite3", "duckdb", "_duckdb", "psycopg", "psycopg2"),
    *("pymysql", "MySQLdb", "mysql", "mariadb", "pyodbc", "oracledb", "cx_Oracle", "pymssql", "pg8000", "asyncpg"),
}
"""Packages whose objects, where they cannot be pickled, are open files or connections."""
_LISTS, _DICTS, _SETS = (list,), (dict, OrderedDict, defaultdict), (set,)
_NOTHING = object()


def refuse_to_share(dataset: object, name: str = "dataset") -> None:
    """Refuse open files, sockets and connections: after a fork all workers would move one position.

    Standard streams, files that are only written, memory maps and what multiprocessing makes may be shared.
    """
    for steps, held in walk(dataset):
        if _is_shared(held):
            where = name + written(steps)
            message = (
                f"{where} is {unpicklable.words(held)}, and forked workers would share it with this process, its "
                f"position too; open it on first use in __getitem__, in the worker, and close it here, or use "
                f"start_method='forkserver' with a __getstate__ that leaves it out"
            )
            raise ShipError(message)


def shared_by_fork(dataset: object, name: str = "dataset") -> str | None:
    """Return where a dataset holds what processes share by a fork alone, such as a lock of multiprocessing's."""
    for steps, held in walk(dataset):
        if type(held).__module__ in ("multiprocessing.synchronize", "multiprocessing.sharedctypes"):
            return name + written(steps)
    return None


@contextmanager
def as_before(dataset: object, *, always: bool = False) -> Iterator[None]:
    """Give a dataset back what it held, if something it holds after the body, and not before, cannot be sent.

    ``always``: whatever it is.

    So each worker opens for itself the file that ``__getitem__`` opens on first use, though sample 0 was read here.
    All of it comes back, or a flag such as ``self.opened`` would contradict what was undone.
    """
    before = [(holder, _state(holder)) for _, holder in walk(dataset)]
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
    if kind is CACHED:
        return {id(result): result for result in results_of(obj)}
    if issubclass(kind, type):
        return dict(vars(obj)) if is_users(obj.__module__) else None
    return attributes(obj)


def _variables(function: FunctionType) -> dict[Any, Any]:
    """Return the globals and closure variables that a function may set."""
    found: dict[Any, Any] = {}
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            found[number] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if is_users(function.__module__):
        found.update(unpicklable.globals_of(function))
    return found


def _restore(obj: Any, before: dict[Any, Any]) -> None:
    kind = type(obj)
    if kind in _LISTS:
        obj[:] = before.values()
    elif kind in _DICTS or kind in _SETS:
        obj.clear()
        obj.update(before if kind in _DICTS else before.values())
    elif kind is CACHED:
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
    elif type(obj) is FunctionType or name in dict_of(obj):
        table = obj.__globals__ if type(obj) is FunctionType else dict_of(obj)
        table.pop(name) if value is _NOTHING else table.update({name: value})
    elif value is _NOTHING:
        (type if issubclass(type(obj), type) else object).__delattr__(obj, name)
    else:
        (type if issubclass(type(obj), type) else object).__setattr__(obj, name, value)

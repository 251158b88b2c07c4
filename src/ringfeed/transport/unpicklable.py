"""Which part of a dataset cannot travel, and the way to it.

`explain` speaks after pickling has failed: the culprit is what pickle came to see last, when the
dataset is pickled again. `refuse_to_share` looks for what a fork would share. The way is looked for
along the references of the dataset, the nearest objects first.
"""

from __future__ import annotations

import copyreg
import io
import sys
from typing import TYPE_CHECKING, Any

from ringfeed._classes import module_of, root_of
from ringfeed.errors import ShipError
from ringfeed.transport.arrays import PROTOCOL
from ringfeed.transport.pickler import Pickler, failure
from ringfeed.transport.references import PARTS, Step, elements, held, walk, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_OBJECTS = 1_000_000  # looked at

_WAYS_OUT = (
    "create it on first use in __getitem__, in each worker, and leave it out in __getstate__ "
    "if this process reads the dataset too"
)
_SAMPLER = "ringfeed.orders.prioritized.PrioritizedSampler"  # a worker's would hear of no update
_WORDS = {
    _SAMPLER: "a PrioritizedSampler",
    "builtins.generator": "a generator",
    "builtins.coroutine": "a coroutine",
    "builtins.async_generator": "an asynchronous generator",
    "_thread.lock": "a lock",
    "_thread.RLock": "a lock",
    "_thread._local": "a thread local",
    "_thread._localdummy": "a thread local",
    "socket.socket": "a socket",
    "sqlite3.Connection": "a database connection",
    "sqlite3.Cursor": "a database cursor",
}

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


def explain(obj: object, name: str, error: Exception) -> str:
    """Say which part of ``obj`` cannot travel, and the ways out.

    The path to it starts at ``name``.
    """
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return (
            f"{name} is nested too deeply to be pickled for a worker process; "
            'keep its parts in a list or a dict, or use backend="thread" or "fork"'
        )
    watching = Pickler(watch=True)
    reason = failure(obj, watching)
    culprit = watching.visited[-1] if reason else obj
    where, holder = f"something in {name}", obj
    for steps, found, holds in walk(obj, _pickled_with, MAX_OBJECTS):
        if found is culprit:
            where, holder = users_path(obj, name, steps), holds
            break
    way_out = _WAYS_OUT
    if _full_name(culprit) == _SAMPLER:
        way_out = "leave it out in __getstate__, and use it in this process"
    elif words(culprit) == "a lock" and _is_of_keras(type(holder)):
        way_out = 'it is of Keras\' own, so give backend="thread", whose workers share it'
    what = f"{where} is {words(culprit, reason or error)}"
    return f"{what} and cannot be sent to a worker process; {way_out}"


def _is_of_keras(kind: type) -> bool:
    """Whether Keras has made what an object of this class holds.

    Keras' base class of datasets holds nothing.
    """
    bases = (base for base in kind.__mro__ if base.__name__ not in {"PyDataset", "Sequence"})
    return not {"keras", "tf_keras", "keras_preprocessing"}.isdisjoint(map(root_of, bases))


def _full_name(culprit: object) -> str:
    return f"{module_of(type(culprit))}.{type(culprit).__qualname__}".lstrip(".")


def users_path(root: Any, name: str, steps: Iterable[Step]) -> str:
    """Write the way to a part of the user's own dataset.

    What ringfeed puts around it is left out.
    """
    steps = [*steps]
    while steps and getattr(type(root), "holds_dataset", False):
        if written(steps[:1]) == ".functions":
            return written(steps[1:]).removeprefix(".") or name
        if written(steps[:1]) != ".dataset":
            break
        root = root.dataset
        del steps[0]
    return name + written(steps)


def words(culprit: object, reason: Exception | None = None) -> str:
    """Say what an object is that a worker process cannot have."""
    kind, full_name = type(culprit), _full_name(culprit)
    if isinstance(culprit, io.IOBase):
        return f"an open file ({getattr(culprit, 'name', None)!r})"
    if full_name in _WORDS:
        return _WORDS[full_name]
    if root_of(kind) == "h5py":
        return f"an h5py object ({kind.__name__})"
    return f"a {full_name} object" + (
        f" ({type(reason).__name__}: {reason})" if reason is not None else ""
    )


def _pickled_with(obj: Any) -> Iterator[tuple[Step, Any]]:
    """Yield what pickling ``obj`` may pickle besides."""
    if type(obj) in PARTS:
        yield from PARTS[type(obj)](obj)
        return
    yield from held(obj)
    try:
        reduce = copyreg.dispatch_table.get(type(obj))
        reduced: Any = reduce(obj) if reduce else obj.__reduce_ex__(PROTOCOL)
    except Exception:  # noqa: BLE001 - then it is at fault itself, whatever it raised
        return
    if isinstance(reduced, str):
        return
    arguments, state, listed, paired = [*reduced, None, None, None][1:5]
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from (((".{name}", name), value) for name, value in part.items())
        else:
            yield (".__getstate__()", ""), part
    yield from elements(listed or ())
    for key, value in paired or ():
        yield (".keys() {key}", key), key
        yield ("[{key}]", key), value
    for number, argument in enumerate(arguments):
        yield (".__reduce__()[1][{key}]", number), argument


# ---- what is open ----


def refuse_to_share(dataset: object) -> None:
    """Refuse open files, sockets and connections: after a fork all workers would move one position.

    Standard streams, files that are only written, memory maps and what multiprocessing makes may be
    shared.
    """
    for steps, part, _ in walk(dataset):
        if _is_shared(part):
            where = users_path(dataset, "dataset", steps)
            raise ShipError(
                f"{where} is {words(part)}, and forked workers would share it with "
                "this process, its position too; open it on first use in __getitem__, in the "
                "worker, and close it here, or use backend='process' with a __getstate__ that "
                "leaves it out"
            )


def _is_shared(held: Any) -> bool:
    if issubclass(type(held), io.IOBase):
        return _is_read(held)
    found = set(map(root_of, type(held).__mro__))
    if "socket" in found or "_socket" in found:
        return issubclass(type(held), sys.modules["socket"].socket) and held.fileno() >= 0
    return (
        not found.isdisjoint(_CONNECTIONS)
        and failure(held) is not None
        and not ("h5py" in found and not held)  # it is closed
    )


def _is_read(file: Any) -> bool:
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if any(file is stream or file is getattr(stream, "buffer", None) for stream in standard):
        return False
    try:
        return not file.closed and file.fileno() > 2 and file.readable()  # noqa: PLR2004
    except (OSError, ValueError, AttributeError):  # of no file, such as BytesIO
        return False

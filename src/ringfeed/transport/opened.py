"""What a dataset has open: files, sockets and connections, of which each process needs its own.

    refuse_to_share(dataset)   ShipError for what forked workers would share with this process, positions and all

Both walk along the references of a dataset.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from ringfeed._classes import root_of
from ringfeed.errors import ShipError
from ringfeed.transport import unpicklable
from ringfeed.transport.pickler import failure
from ringfeed.transport.references import labels, walk

_CONNECTIONS = {
    *("h5py", "netCDF4", "tables", "lmdb", "rasterio", "sqlite3", "duckdb", "_duckdb", "psycopg", "psycopg2"),
    *("pymysql", "MySQLdb", "mysql", "mariadb", "pyodbc", "oracledb", "cx_Oracle", "pymssql", "pg8000", "asyncpg"),
}
"""Packages whose objects, where they cannot be pickled, are open files or connections."""

_SHARED = {f"multiprocessing.{name}" for name in ("synchronize", "sharedctypes", "queues", "connection")}


def refuse_to_share(dataset: object, name: str = "dataset") -> None:
    """Refuse open files, sockets and connections: after a fork all workers would move one position.

    Standard streams, files that are only written, memory maps and what multiprocessing makes may be shared.
    """
    for steps, held in walk(dataset):
        if _is_shared(held):
            where = unpicklable.users_path(dataset, name, labels(steps))
            message = (
                f"{where} is {unpicklable.words(held)}, and forked workers would share it with this process, its "
                f"position too; open it on first use in __getitem__, in the worker, and close it here, or use "
                f"backend='process' with a __getstate__ that leaves it out"
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
        return not file.closed and file.fileno() > 2 and file.readable()  # noqa: PLR2004 - the standard streams
    except (OSError, ValueError, AttributeError):  # of no file, such as BytesIO
        return False


def _is_closed(held: Any) -> bool:
    return root_of(type(held)) == "h5py" and not held

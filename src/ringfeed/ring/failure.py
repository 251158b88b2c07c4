"""Why a row is not there, on its way from the worker to the consumer, in the few kilobytes of a failure record.

A record is a byte that says the kind, and for an error what is known of it:

ERROR     the row's exception
NOTHING   a whole batch of None: the epoch goes on without it, and it counts as no failure
END       the epoch ends before this row; those before it are delivered
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from enum import IntEnum
from typing import Any, NamedTuple

LIMIT = 4080  # of a record; what is longer loses the middle of its traceback first
CUT = "\n  ... (shortened)\n"


class Kind(IntEnum):
    """Why a row is not there: the first byte of its record."""

    ERROR = 0
    NOTHING = 1
    END = 2


class Nothing(Exception):  # noqa: N818 - no error, but it takes an error's way
    """A dataset has None in the place of a batch."""


class End(Exception):  # noqa: N818 - see above
    """A dataset has no more rows."""


class RemoteTraceback(Exception):  # noqa: N818 - it is a traceback, and the cause of an error
    """The traceback of an exception in a worker, as text."""

    def __str__(self) -> str:
        """Return the traceback as Python prints it."""
        return f'\n"""\n{self.args[0]}"""'


class Failure(NamedTuple):
    """What is known of a row that is not there; all but the kind is of an exception in a worker."""

    error: BaseException | None  # of kind ERROR always one
    type_name: str
    text: str
    kind: Kind = Kind.ERROR

    @property
    def summary(self) -> str:
        """The last line of the traceback."""
        return f"{self.type_name}: {self.text}" if self.text else self.type_name


def encode(error: BaseException) -> bytes:
    """Return at most ``LIMIT`` bytes that say as much of the exception as fits; whatever it is, nothing is raised."""
    kind = Kind.NOTHING if type(error) is Nothing else Kind.END if type(error) is End else Kind.ERROR
    return bytes([kind]) + (_encode(error) if kind is Kind.ERROR else b"")


def _encode(error: BaseException) -> bytes:
    try:
        return _shortened(error, LIMIT - 1)
    except BaseException:  # noqa: BLE001 - an error's own methods may do anything, and its row must be told
        return pickle.dumps((None, type(error).__name__[:200], _safe_text(error)[:500], ""))


def _shortened(error: BaseException, limit: int) -> bytes:
    type_name, text = type(error).__qualname__, _safe_text(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    pickled = _pickle(error)
    record = pickle.dumps((pickled, type_name, text, trace))
    if len(record) > limit and pickled is not None and len(pickled) > limit // 2:
        pickled = None
    text, least = text[:500], 200
    while len(record) > limit:
        half = (len(trace) - (len(record) - limit)) // 2 - len(CUT)
        if half < 0:
            pickled, half, least = None, least, least // 2
            text = text[: 3 * half]
        trace = trace[:half] + CUT + trace[len(trace) - half :]
        record = pickle.dumps((pickled, type_name[:200], text, trace))
    return record


def kind_of(record: bytes) -> Kind:
    """Return why the row is not there."""
    return Kind(record[0])


def decode(record: bytes) -> Failure:
    """Return what ``encode`` kept; the exception has the worker's traceback as its ``__cause__``."""
    kind = kind_of(record)
    if kind is not Kind.ERROR:
        return Failure(None, "", "", kind)
    pickled, type_name, text, trace = pickle.loads(record[1:])  # noqa: S301 - from our own worker
    error: BaseException | None = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled)  # noqa: S301 - from our own worker
        except Exception:  # noqa: BLE001 - a class whose __init__ does not take its own args, say
            error = None
    if not isinstance(error, BaseException):
        return Failure(None, type_name, text)._replace(error=RemoteTraceback(trace))
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(trace))  # its class may be a frozen dataclass
    return Failure(error, type_name, text)


def _safe_text(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # a plain str, which the consumer can unpickle
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the error
        return "(its text could not be made)"


def _pickle(error: BaseException) -> bytes | None:
    """Pickle the exception where its class can be found again, by value where it lives in the user's script."""
    parts = sys.modules.get("ringfeed.transport.parts")
    if parts is not None and parts.were_sent():  # pickle would import a module of which parts were sent
        return _by_name(error, parts)
    for dumps in (pickle.dumps, _cloudpickle):
        try:
            pickled = dumps(error)
            pickle.loads(pickled)  # noqa: S301 - whether the other side will be able to
        except BaseException:  # noqa: BLE001, S112 - then by its name and text
            continue
        return pickled
    return None


def _by_name(error: BaseException, parts: Any) -> bytes | None:
    """Name the classes of modules of which parts were sent: the consumer has them."""
    import cloudpickle  # noqa: PLC0415 - the parts have brought it in

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if issubclass(type(obj), type) and parts.was_sent(obj):
                return parts.named, (obj.__module__, obj.__qualname__)
            return super().reducer_override(obj)

    stream = io.BytesIO()
    try:
        Pickler(stream).dump(error)
    except BaseException:  # noqa: BLE001 - then by its name and text
        return None
    return stream.getvalue()


def _cloudpickle(error: BaseException) -> bytes:
    import cloudpickle  # noqa: PLC0415 - only for the rare class that lives in a script

    pickled: bytes = cloudpickle.dumps(error)
    return pickled

"""Why a row is missing: the failure record of a few kilobytes from the worker to the consumer.

A record is a byte that says the kind, and what is known of the row's error or of what has ended its
iterable:

ERROR     the row's exception, those that led to it, and where in the user's code each was raised
NOTHING   a whole batch of None: the epoch goes on without it, and it counts as no failure
END       the epoch ends before this row; those before it are delivered

The consumer makes the same exceptions again, each with a traceback of the user's frames alone, so
that Python prints them as if they had been raised there: the user's own error comes first, and none
of our frames is in its traceback.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from contextlib import suppress
from enum import IntEnum
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import RingfeedError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 4080  # bytes of a record
Frame = tuple[str, str, int]  # name, file, line
# What the user's code may raise by itself. KeyboardInterrupt is not: in the consumer it is Ctrl-C.
NOT_CTRL_C = (Exception, SystemExit, GeneratorExit)


class _Room(NamedTuple):
    """How much of an exception is told."""

    links: int  # of its chain, itself one of them
    frames: int  # of each
    text: int  # characters
    pickled: int  # bytes


_ROOMS = (  # tried in turn, until the record is short enough
    _Room(links=8, frames=1000, text=LIMIT, pickled=LIMIT),
    _Room(links=8, frames=200, text=500, pickled=LIMIT // 2),
    _Room(links=3, frames=20, text=500, pickled=LIMIT // 2),
    _Room(links=1, frames=8, text=500, pickled=LIMIT // 2),
    _Room(links=1, frames=0, text=200, pickled=0),
)


class Kind(IntEnum):
    """Why a row is not there: the first byte of its record."""

    ERROR = 0
    NOTHING = 1
    END = 2


class Nothing(Exception):  # noqa: N818 - no error, but it takes an error's way
    """A dataset has None in the place of a batch."""


class End(Exception):  # noqa: N818 - see above
    """A dataset has no more rows."""


class RemoteError(Exception):
    """Stands for an exception that cannot be pickled, by a class of its name and by its text."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the class, which is made on demand."""
        return _stand_in, (type(self).__module__, type(self).__qualname__, str(self))


class _Raised(NamedTuple):
    """One exception of a chain, as it travels."""

    pickled: bytes | None
    module: str
    type_name: str
    text: str
    frames: list[Frame] = []  # noqa: RUF012 - never changed
    origin: _Raised | None = None
    """Its cause, or the exception that was being handled."""
    from_origin: bool = False
    members: list[_Raised] = []  # noqa: RUF012 - see above
    """The members of an exception group."""
    note: str = ""
    """What is told of it besides, as by ``add_note``."""


class Failure(NamedTuple):
    """What is known of a row that is not there; all but the kind is of an exception in a worker."""

    error: (
        BaseException | None
    )  # of kind ERROR always one; of END what has ended the iterable before its time
    type_name: str
    text: str
    kind: Kind = Kind.ERROR

    @property
    def summary(self) -> str:
        """The last line of the traceback."""
        return f"{self.type_name}: {self.text}" if self.text else self.type_name


class Death(NamedTuple):
    """How the last worker ended that tried a row.

    ``stage`` names the function of the user's that it was in, if that has all rows of a batch.
    """

    reason: str = "ended"
    stage: str = ""


def encode(error: BaseException, *, interruptible: bool = False) -> bytes:
    """Return at most ``LIMIT`` bytes that say as much of the exception as fits.

    Whatever it is, nothing is raised; but Ctrl-C comes out where it may come: ``interruptible``.
    """
    kind = (
        Kind.NOTHING if type(error) is Nothing else Kind.END if type(error) is End else Kind.ERROR
    )
    silenced = NOT_CTRL_C if interruptible else (BaseException,)
    told = error if kind is Kind.ERROR else error.__cause__
    return bytes([kind]) + (b"" if told is None else _encode(told, silenced))


def _encode(error: BaseException, silenced: tuple[type[BaseException], ...]) -> bytes:
    try:
        records = (pickle.dumps(_raised(error, room)) for room in _ROOMS)
        return next(record for record in records if len(record) < LIMIT)
    except silenced:  # an error's own methods may do anything, and its row must be told
        text = _safe_text(error, silenced)[:500]
        return pickle.dumps(_Raised(None, "builtins", type(error).__name__[:200], text))


def _raised(error: BaseException, room: _Room) -> _Raised:
    """Describe an exception, and those behind it in its chain."""
    pickled, cause = _pickle(error), error.__cause__
    origin = cause if cause is not None or error.__suppress_context__ else error.__context__
    behind = room._replace(links=room.links - 1)
    return _Raised(
        pickled if pickled is not None and len(pickled) <= room.pickled else None,
        type(error).__module__[:200],
        type(error).__qualname__[:200],
        _safe_text(error)[: room.text],
        _users_frames(error, room.frames),
        _raised(origin, behind) if origin is not None and behind.links else None,
        cause is not None,
        [_raised(member, behind) for member in _members(error) if behind.links],
    )


def _users_frames(error: BaseException, most: int) -> list[Frame]:
    frames = [
        ((code := place.tb_frame.f_code).co_name, code.co_filename, place.tb_lineno)
        for place in _places(error.__traceback__)
        if _root_of(place) != "ringfeed"
    ]
    left_out, half = len(frames) - most, most // 2
    if left_out <= 0 or not most:
        return frames[:most]
    return [*frames[:half], ("...", f"<{left_out} calls left out>", 1), *frames[-half:]]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def kind_of(record: bytes) -> Kind:
    """Return why the row is not there."""
    return Kind(record[0])


def decode(record: bytes) -> Failure:
    """Return what ``encode`` kept; the exception has its chain and its traceback again."""
    kind = kind_of(record)
    if len(record) == 1:
        return Failure(None, "", "", kind)
    raised: _Raised = pickle.loads(record[1:])  # noqa: S301 - from our own worker
    return Failure(_remade(raised), raised.type_name, raised.text, kind)


def with_note(record: bytes, note: str, *, read_only: str = "") -> bytes:
    """Return the record of an error with a note, or as it was where the note does not fit.

    Python prints the note below the error.

    ``read_only``: is added to the text of what says that something is read-only.
    """
    if kind_of(record) is not Kind.ERROR:
        return record
    raised: _Raised = pickle.loads(record[1:])  # noqa: S301 - from our own worker
    text = raised.text + read_only if "read-only" in raised.text else raised.text
    noted = record[:1] + pickle.dumps(raised._replace(note=note, text=text))
    return noted if len(noted) <= LIMIT else record


def _remade(raised: _Raised) -> BaseException:
    error = None
    if raised.pickled is not None:
        with suppress(Exception):  # a class whose __init__ does not take its own args, say
            error = pickle.loads(raised.pickled)  # noqa: S301 - from our own worker
    if not isinstance(error, BaseException):
        error = _stand_in(raised.module, raised.type_name, raised.text)
    _dress(error, raised)
    return error


def _dress(error: BaseException, raised: _Raised) -> None:
    """Give an exception the traceback and the chain that it had."""
    own = BaseException.__setattr__  # its class may be a frozen dataclass
    own(error, "__traceback__", _traceback_of(raised.frames))
    if raised.origin is not None:
        own(error, "__cause__" if raised.from_origin else "__context__", _remade(raised.origin))
    if raised.note:
        own(error, "__notes__", [*getattr(error, "__notes__", ()), raised.note])
    for member, its in zip(_members(error), raised.members, strict=False):
        _dress(member, its)


def _stand_in(module: str, name: str, text: str) -> RemoteError:
    kind: type[RemoteError] = type(name, (RemoteError,), {"__module__": module})
    return kind(text)


def _safe_text(error: BaseException, silenced: tuple[type[BaseException], ...] = NOT_CTRL_C) -> str:
    try:
        return str.__str__(str(error))  # a plain str, which the consumer can unpickle
    except silenced:  # a broken __str__ must not hide the error
        return "(its text could not be made)"


def _pickle(error: BaseException) -> bytes | None:
    """Pickle an exception where its class can be found again."""
    with suppress(*NOT_CTRL_C):  # then by its name and text
        content = pickled(error)
        pickle.loads(content)  # noqa: S301 - whether the other side will be able to
        return content
    return None


def pickled(obj: object) -> bytes:
    """Pickle an object for another process of this loader.

    A class that no import finds goes by value, unless the dataset has brought it.
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream, 5).dump(obj)
    except Exception:  # noqa: BLE001 - what plain pickle refuses
        import cloudpickle.cloudpickle as by_value  # noqa: PLC0415 - for such classes

        before = {*by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS}  # noqa: SLF001
        content: bytes = by_value.dumps(obj, 5)
        _made_here.update({*by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS} - before)  # noqa: SLF001
        return content
    return stream.getvalue()


def class_of(number: str) -> type:
    """Return the class that cloudpickle knows by a number."""
    import cloudpickle.cloudpickle as by_value  # noqa: PLC0415 - for such classes

    found: type = by_value._DYNAMIC_CLASS_TRACKER_BY_ID[number]  # noqa: SLF001
    return found


# Classes that this process was the first to send by value: no other process has them.
_made_here: weakref.WeakSet[type] = weakref.WeakSet()


class _Pickler(pickle.Pickler):
    """Names a class that came by value by cloudpickle's number: its own process knows it, too."""

    def reducer_override(self, obj: Any) -> Any:
        by_value: Any = sys.modules.get("cloudpickle.cloudpickle")
        if by_value is None or not issubclass(type(obj), type) or obj in _made_here:
            return NotImplemented
        number = by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)  # noqa: SLF001
        return NotImplemented if number is None else (class_of, (number,))


# ---- tracebacks ----


def users_frames(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """Take our frames out of a traceback of the user's code, or of an error that needs none.

    Our own defects keep theirs.
    """
    places = [*_places(traceback)]
    if not places or (_root_of(places[-1]) == "ringfeed" and not isinstance(error, RingfeedError)):
        return traceback
    return without_ours(traceback)


def is_raised_here(error: BaseException) -> bool:
    """Whether ringfeed has raised it, and no code of the user's."""
    places = [*_places(error.__traceback__)]
    return bool(places) and _root_of(places[-1]) == "ringfeed"


def without_ours(traceback: TracebackType | None, module: str = "ringfeed") -> TracebackType | None:
    """Return the frames of a traceback that are neither ours nor ``module``'s."""
    found = None
    for place in reversed([*_places(traceback)]):
        if _root_of(place) not in ("ringfeed", module):
            place.tb_next, found = found, place
    return found


class UsersErrors:
    """Shows what the user's code raises within it under one frame of ours."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the frame of the ``with`` and the user's own."""
        if error is not None and traceback is not None:
            traceback.tb_next = users_frames(error, traceback.tb_next)


def _places(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _root_of(place: TracebackType) -> str:
    """Return the package that has this code."""
    return str(place.tb_frame.f_globals.get("__name__")).partition(".")[0]


def _traceback_of(frames: list[Frame]) -> TracebackType | None:
    """Make a traceback that prints as the worker's does, and refers to nothing of this process."""
    found = None
    for name, file, line in reversed(frames):
        code = _without_caller.__code__.replace(
            co_name=name, co_filename=file, co_firstlineno=max(line or 0, 1)
        )
        found = TracebackType(found, FunctionType(code, {})().gi_frame, 0, code.co_firstlineno)
    return found


def _without_caller() -> Iterator[None]:
    """Lend its code: the frame of a generator refers to no other, which would live as long."""
    yield

"""The states that iterables have of their own, kept in shared memory: a worker's death does not lose them.

    a stream's part    how far it is skipped; why it has no states; the run; its newest states, `ENTRIES` of them
    an entry           number, epoch, elements read before, size, checksum; then the state as JSON

The worker that reads a stream writes its part; the consumer writes the state that an epoch goes on from, before that
worker reads. No reader takes a lock: what is half written does not have its checksum. So the consumer looks a state up
in microseconds, from any thread and from a signal handler.

A run is what is read from one start on, as far as the reading ahead goes. An epoch may be begun more than once, and an
iterable may draw its order at each start, so the states of another run are none: the checksum is over the run, too.
"""

from __future__ import annotations

import json
import mmap
import zlib
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringfeed.system._system import Descriptor

ENTRIES = 8  # of a stream: while the newest is written, others lie behind all that is read ahead
MOST_SIZE = 2**20  # bytes of all streams
LARGEST = 2**15  # bytes of an entry
SMALLEST = 128
HEAD = 256  # bytes of a part ahead of its entries
_PROGRESS, _TOLD, _RUN, _ENTRY = Struct("<QQQQ"), Struct("<H"), Struct("<Q"), Struct("<QQQII")
_TOLD_AT = _PROGRESS.size
_RUN_AT = HEAD - _RUN.size  # of the first part

Memory: TypeAlias = "mmap.mmap | bytearray"


class State(NamedTuple):
    """A state of an iterable's own, as JSON, and how many elements were read before it."""

    read: int
    text: bytes


class Skipped(NamedTuple):
    """A stream leaves out elements that were read before: up to which index, since when, how many of how many."""

    before: int
    since_ns: int
    done: int
    total: int


class UnfitError(Exception):
    """A state cannot be kept; says why."""


def encoded(state: Any) -> bytes:
    """Return a state as JSON; UnfitError where JSON does not give the same back."""
    try:
        text = json.dumps(state, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitError(f"is not JSON: {error}") from None
    if json.loads(text) != state:
        raise UnfitError("is changed by JSON, which has lists for tuples, and no keys but strings")
    return text.encode()


def states_size(streams: int, *, keeps: bool) -> int:
    """Return the bytes of the parts of so many streams, with entries if it ``keeps`` states; 0: there are too many."""
    most = MOST_SIZE // streams // 8 * 8
    part = min(most, HEAD + ENTRIES * LARGEST) if keeps and most >= HEAD + ENTRIES * SMALLEST else HEAD
    return streams * part if part <= most else 0


class StreamStates:
    """The states of some streams, in memory of `states_size` bytes."""

    memfd: Descriptor | None = None
    """What it lies in, if that is shared; it is `end` bytes of it."""

    def __init__(self, memory: Memory, streams: int) -> None:
        """Keep them in this memory, which was zeroed ahead of its first use."""
        self._memory = memory
        self._part = len(memory) // streams
        self.size = len(memory)
        self._entry = (self._part - HEAD) // ENTRIES // 8 * 8
        self._streams = streams

    @classmethod
    def of(cls, size: int, streams: int, *, shared: bool, behind: tuple[int, int] = (0, 0)) -> StreamStates | None:
        """Reserve the memory, ``shared`` with worker processes; None where none are kept.

        ``behind``: bytes of the same file for another use, of which so many are reserved.
        """
        if not size:
            return None
        if not shared:
            return cls(bytearray(size), streams)
        total, at_first = (_end(size) + more for more in behind) if any(behind) else (size, None)
        memfd = reserve("ringfeed-states", total, at_first)
        try:
            return cls.opened(memfd, size, streams)
        except OSError as error:
            memfd.close()
            message = (
                f"cannot map {show_bytes(size)} for the iterables: {error.strerror}; raise RLIMIT_NOFILE (ulimit -n) "
                f"or RLIMIT_AS (ulimit -v)"
            )
            raise PlanError(message) from error

    @classmethod
    def opened(cls, memfd: Descriptor, size: int, streams: int) -> StreamStates:
        """Map what was reserved, here or by another process, and keep its descriptor."""
        made = cls(mmap.mmap(memfd.fileno(), size), streams)
        made.memfd = memfd
        return made

    @property
    def end(self) -> int:
        """Where in the file something else may begin."""
        return _end(self.size)

    def close(self) -> None:
        """Give shared memory back; what was kept can be read nevertheless."""
        shared = self._memory
        if isinstance(shared, mmap.mmap):
            self._memory = bytearray(shared[:])  # first: another thread may look
            shared.close()
        if self.memfd is not None:
            self.memfd.close()

    # ---- states ----

    @property
    def most(self) -> int:
        """The bytes of the largest state that is kept."""
        return self._entry - _ENTRY.size

    @property
    def run(self) -> int:
        """The number of the run. It changes only while no worker has anything to read."""
        (number,) = _RUN.unpack_from(self._memory, _RUN_AT)
        return int(number)

    def begin_run(self) -> None:
        """Have no state that was kept before be found."""
        _RUN.pack_into(self._memory, _RUN_AT, self.run + 1)

    def save(self, stream: int, epoch: int, state: State, run: int | None = None) -> None:
        """Keep a state of a run, by default this one, in the place of the oldest; UnfitError where it is too large."""
        if not self._entry:
            raise UnfitError("has no room beside those of so many iterables")
        if len(state.text) > self.most:
            raise UnfitError(f"is {len(state.text)} bytes of JSON, expected at most {self.most}")
        numbers = [(_ENTRY.unpack_from(self._memory, at)[0], at) for at in self._entries(stream)]
        number, (_, at), memory = max(numbers)[0] + 1, min(numbers), self._memory
        begin = at + _ENTRY.size
        memory[at:begin] = bytes(_ENTRY.size)
        memory[begin : begin + len(state.text)] = state.text
        checksum = _checksum(self.run if run is None else run, number, epoch, state)
        _ENTRY.pack_into(memory, at, number, epoch, state.read, len(state.text), checksum)

    def find(self, stream: int, epoch: int, count: int) -> State | None:
        """Return the state of the most elements, ``count`` or fewer."""
        try:
            heads = [(at, *_ENTRY.unpack_from(self._memory, at)) for at in self._entries(stream)]
            fitting = [head for head in heads if head[1] and head[2] == epoch and head[3] <= count]
            found = map(self._checked, sorted(fitting, key=itemgetter(3), reverse=True))
            return next((state for state in found if state is not None), None)
        except ValueError:  # closed by another thread, after it had put a copy in its place
            return self.find(stream, epoch, count)

    def _checked(self, entry: tuple[int, ...]) -> State | None:
        at, number, epoch, read, size, checksum = entry
        begin = at + _ENTRY.size
        state = State(read, bytes(self._memory[begin : begin + min(size, self.most)]))
        return state if checksum == _checksum(self.run, number, epoch, state) else None

    def _entries(self, stream: int) -> Iterator[int]:
        first = stream * self._part + HEAD
        return (first + number * self._entry for number in range(ENTRIES if self._entry else 0))

    # ---- as a loader's state has them ----

    def newest(self, epoch: int, counts: Sequence[int], others: Any = None) -> list[Any] | None:
        """Return for each stream the newest state at or before its count, else that of ``others``; None: no stream.

        Where states of a stream cannot be kept, ``others`` are not to be trusted either.
        """
        made = [_shown(self.find(stream, epoch, count)) for stream, count in enumerate(counts)]
        if others is not None:
            known = [None if self._told(stream) else one for stream, one in enumerate(others[: len(made)])]
            made = [one or other for one, other in zip(made, known, strict=False)]
        return made if any(made) else None

    def seed(self, epoch: int, saved: Any) -> None:
        """Keep the states that an epoch goes on from; one that is too large is left out, and its stream is skipped."""
        for stream, one in enumerate((saved or ())[: self._streams]):
            if one is not None:
                try:
                    self.save(stream, epoch, State(one["read"], encoded(one["of"])))
                except UnfitError as error:
                    self.refuse(stream, str(error))

    # ---- what the worker tells of a stream ----

    def refuse(self, stream: int, why: str) -> None:
        """Note why a stream's states cannot be kept, and forget those that were."""
        for begin in self._entries(stream):
            self._memory[begin : begin + _ENTRY.size] = bytes(_ENTRY.size)
        text = why.encode()[: _RUN_AT - _TOLD_AT - _TOLD.size]
        at = stream * self._part + _TOLD_AT
        self._memory[at + _TOLD.size : at + _TOLD.size + len(text)] = text
        _TOLD.pack_into(self._memory, at, len(text))

    def refusal(self) -> tuple[int, str] | None:
        """Return the first stream whose states cannot be kept, and why."""
        told = ((stream, self._told(stream)) for stream in range(self._streams))
        return next(((stream, why) for stream, why in told if why), None)

    def _told(self, stream: int) -> str:
        at = stream * self._part + _TOLD_AT
        begin, (size,) = at + _TOLD.size, _TOLD.unpack_from(self._memory, at)
        return bytes(self._memory[begin : begin + size]).decode(errors="replace")

    def note_skipped(self, stream: int, since_ns: int, done: int, total: int) -> None:
        """Note how far a stream has left out elements that were read before; ``since_ns=0``: it has come to the end."""
        index = total * self._streams + stream
        _PROGRESS.pack_into(self._memory, stream * self._part, index, since_ns, done, total)

    def skipped(self) -> Skipped | None:
        """Return what has been skipped for longest."""
        found = (Skipped(*_PROGRESS.unpack_from(self._memory, stream * self._part)) for stream in range(self._streams))
        return min((one for one in found if one.since_ns), key=lambda one: one.since_ns, default=None)

    def forget_skipped(self) -> None:
        """Have nothing be skipped."""
        for stream in range(self._streams):
            self.note_skipped(stream, 0, 0, 0)


def _end(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _checksum(run: int, number: int, epoch: int, state: State) -> int:
    head = _RUN.pack(run) + _ENTRY.pack(number, epoch, state.read, len(state.text), 0)
    return zlib.crc32(state.text, zlib.crc32(head))


def _shown(state: State | None) -> dict[str, Any] | None:
    return None if state is None else {"read": state.read, "of": json.loads(state.text.decode())}

"""States that iterables have of their own, kept in shared memory so that no death loses them.

    StreamStates    the memory
    StateRecorder   says when a worker takes a stream's state: often enough, at little cost
    KeptStreams     the states of one engine, which warns where reading again takes long

    a stream's part    how far it is skipped; why it has no states; the run; `ENTRIES` states
    an entry           number, epoch, elements read before, size, checksum; then the state as JSON

The worker that reads a stream writes its part; the consumer writes the state that an epoch goes on
from, before that worker reads. No reader takes a lock: what is half written does not have its
checksum. So the consumer looks a state up in microseconds, from any thread and from a signal
handler.

A run is what is read from one start on, as far as the reading ahead goes. An epoch may be begun
more than once, and an iterable may draw its order at each start, so the states of another run are
none: the checksum is over the run, too.
"""

from __future__ import annotations

import json
import mmap
import zlib
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._units import show_bytes
from ringfeed.datasets.terms import Kept
from ringfeed.errors import PlanError
from ringfeed.ring._ring import now_ns
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringfeed.datasets.streams import StreamSource
    from ringfeed.system._system import Descriptor

ENTRIES = 8  # of a stream: while the newest is written, others lie behind all that is read ahead
MOST_SIZE = 2**20  # bytes of all streams
LARGEST = 2**15  # bytes of an entry
SMALLEST = 128
HEAD = 256  # bytes of a part ahead of its entries
LOOK_NS = 10**8  # while streams leave out what was read before
REMEDY = "give the iterable state_dict() and load_state_dict(), whose states are JSON"
MOST_BATCHES = 64  # from one state to the next
SHARE = 100  # a state takes at most one part of so many of the time since the last
NOTED_EACH = 16  # elements
BEHIND = 8  # batches that frameworks may have taken, and the user's loop not
_PROGRESS, _TOLD, _RUN, _ENTRY = Struct("<QQQQ"), Struct("<H"), Struct("<Q"), Struct("<QQQII")
_TOLD_AT = _PROGRESS.size
_RUN_AT = HEAD - _RUN.size  # of the first part

Memory: TypeAlias = "mmap.mmap | bytearray"


class State(NamedTuple):
    """A state of an iterable's own, as JSON, and how many elements were read before it."""

    read: int
    text: bytes


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
    """Return the bytes for so many streams, with entries if it ``keeps`` states; 0: too many."""
    most = MOST_SIZE // streams // 8 * 8
    part = (
        min(most, HEAD + ENTRIES * LARGEST) if keeps and most >= HEAD + ENTRIES * SMALLEST else HEAD
    )
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
    def of(
        cls, size: int, streams: int, *, shared: bool, behind: tuple[int, int] = (0, 0)
    ) -> StreamStates | None:
        """Reserve the memory, ``shared`` with worker processes; None where none are kept.

        ``behind``: bytes of the same file for another use, and how many of them are reserved.
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
            raise PlanError(
                f"cannot map {show_bytes(size)} for the iterables: {error.strerror}; raise "
                "RLIMIT_NOFILE (ulimit -n) or RLIMIT_AS (ulimit -v)"
            ) from error

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
        """Begin another run: the states of those before are found no more."""
        _RUN.pack_into(self._memory, _RUN_AT, self.run + 1)

    def save(self, stream: int, epoch: int, state: State, run: int | None = None) -> None:
        """Keep a state of a run in the place of the oldest; UnfitError where it is too large."""
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
        """Return each stream's newest state at or before its count, else that of ``others``.

        Where states of a stream cannot be kept, ``others`` are not to be trusted either.
        """
        made = [_shown(self.find(stream, epoch, count)) for stream, count in enumerate(counts)]
        if others is not None:
            known = [
                None if self._told(stream) else one
                for stream, one in enumerate(others[: len(made)])
            ]
            made = [one or other for one, other in zip(made, known, strict=False)]
        return made if any(made) else None

    def seed(self, epoch: int, saved: Any) -> None:
        """Keep the states that an epoch resumes at; a stream with a too large one is skipped."""
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
        """Note how far a stream has skipped what was read before; ``since_ns=0``: all of it."""
        index = total * self._streams + stream
        _PROGRESS.pack_into(self._memory, stream * self._part, index, since_ns, done, total)

    def skipped(self) -> tuple[int, ...] | None:
        """Return the longest skip: before which index, since when, how many of how many."""
        found = (
            _PROGRESS.unpack_from(self._memory, stream * self._part)
            for stream in range(self._streams)
        )
        return min((one for one in found if one[1]), key=itemgetter(1), default=None)

    def forget_skipped(self) -> None:
        """Note that no stream skips anything."""
        for stream in range(self._streams):
            self.note_skipped(stream, 0, 0, 0)


def _end(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _checksum(run: int, number: int, epoch: int, state: State) -> int:
    head = _RUN.pack(run) + _ENTRY.pack(number, epoch, state.read, len(state.text), 0)
    return zlib.crc32(state.text, zlib.crc32(head))


def _shown(state: State | None) -> dict[str, Any] | None:
    return None if state is None else {"read": state.read, "of": json.loads(state.text.decode())}


# ---- in the worker that reads a stream ----


class StateRecorder:
    """Takes the states of one stream while it is read, as often as that costs little."""

    def __init__(
        self, states: StreamStates | None, stream: int, epoch: int, rows: int, slots: int
    ) -> None:
        """Take none yet; ``rows``: elements of a batch."""
        self._states = states
        self._run = 0 if states is None else states.run
        self._stream, self._epoch, self._rows = stream, epoch, rows
        self._least = (
            -(-(slots + BEHIND) // (ENTRIES - 1)) * rows
        )  # so that the oldest lies behind all that is ahead
        self._cost_ns = 0
        self.begin(None, None)

    def begin(self, owner: Any, state: State | None) -> None:
        """Take the states of ``owner``, which was just begun or brought to a state; None: none."""
        self._owner = owner
        self._last: bytes | None = None
        self.go_on(0 if state is None else state.read)

    def pause(self) -> None:
        """Take none."""
        self.due: float = float("inf")
        """The next state is taken ahead of the element of this number."""

    def go_on(self, count: int) -> None:
        """Take states from an element on."""
        self.pause()
        if self._states is not None and self._owner is not None:
            self._at, self._since_ns = count, now_ns()
            self.due = count + (1 if self._last is None else self._least)

    def find(self, count: int) -> State | None:
        """Return the newest state at or before a count."""
        return None if self._states is None else self._states.find(self._stream, self._epoch, count)

    def take(self, count: int) -> bytes | None:
        """Return the state ahead of the element of this number, unless it is not worth its time.

        The first is only compared with the next: what does not change between two batches does not
        say where it is. So it is, too, after a state was loaded: some iterables say for ever where
        they were begun.
        """
        began_ns = now_ns()
        if (
            count - self._at < MOST_BATCHES * self._rows
            and began_ns - self._since_ns < SHARE * self._cost_ns
        ):
            self.due = count + self._rows
            return None
        try:
            text = self._look(count)
        except UnfitError as error:
            self._refuse(error)
            return None
        is_first, self._last, self._at = self._last is None, text, count
        self._since_ns = now_ns()
        self._cost_ns = self._since_ns - began_ns
        self.due = count + self._least
        return None if is_first else text

    def _look(self, count: int) -> bytes:
        try:
            state = self._owner.state_dict()
        except Exception as error:  # noqa: BLE001 - of the user's; the stream itself goes on
            raise UnfitError(f"raised {type(error).__name__}: {error}") from None
        text = encoded(state)
        if text == self._last:
            raise UnfitError(
                f"is the same after {self._at} and after {count} elements, so it does not say "
                "where it is"
            )
        return text

    def keep(self, count: int, text: bytes) -> None:
        """Keep a state once the next element has come: not every source can go on at its end."""
        assert self._states is not None
        try:
            self._states.save(self._stream, self._epoch, State(count, text), self._run)
        except UnfitError as error:
            self._refuse(error)

    def _refuse(self, error: UnfitError) -> None:
        assert self._states is not None
        self._states.refuse(self._stream, str(error))
        self.begin(None, None)

    def note_skipped(self, since_ns: int, done: int, total: int) -> None:
        """Note how far elements are left out."""
        if self._states is not None and not done % NOTED_EACH:
            self._states.note_skipped(self._stream, since_ns, done, total)


# ---- in the consumer ----


class KeptStreams(Kept):
    """The states of one engine's streams; it warns where a resumed epoch reads again for long."""

    def __init__(self, source: StreamSource, sizes: Any = None, *, shared: bool) -> None:
        """Reserve their memory, ``shared`` with worker processes.

        ``sizes``: the `StoreSizes` of the elements that a process reads for the workers, if one
            does.
        """
        self._source = source
        behind = (0, 0) if sizes is None else (sizes.total, sizes.words)
        self.states = StreamStates.of(
            source.states_size, source.streams, shared=shared, behind=behind
        )
        self._store = None if sizes is None else self._opened(sizes)
        self._watches = False

    def _opened(self, sizes: Any) -> Any:
        states = self.states
        assert states is not None
        assert states.memfd is not None
        try:
            return sizes.open(states.memfd, states.end)
        except OSError as error:
            states.close()
            raise PlanError(
                f"cannot map {show_bytes(sizes.words)} for an iterable: {error.strerror}; raise "
                "RLIMIT_AS (ulimit -v)"
            ) from error

    def go_on_from(self, epoch: int, samples: int, streams: Any, *, is_ahead: bool) -> None:
        """Begin the streams at the states of a place; ``is_ahead``: workers read there already."""
        if self.states is not None:
            self.states.forget_skipped()
            if not is_ahead:
                self.states.begin_run()
            self.states.seed(epoch, streams)
            self._watches = samples > 0
            if self._store is not None:
                self._store.tell(self.states.run, epoch, samples)  # last: its reader begins at once

    def look_in_ns(self, left_ns: int) -> int:
        """Return how long to wait for a batch until `look`."""
        return min(left_ns, LOOK_NS) if self._watches else left_ns

    def look(self) -> None:
        """Warn once, if a stream has left out elements for a second."""
        found = self.states.skipped() if self._watches and self.states is not None else None
        if found is not None:
            before, since_ns, done, total = found
            what = f"the elements before {self._source.describe(before)} are read"
            from ringfeed.orders.replay import Replay  # noqa: PLC0415 - not for workers

            replay = Replay(what, REMEDY, since_ns / 1e9)
            self._watches = False  # ahead of a warning that is made an error
            replay.note(done, total)
            self._watches = not replay.is_told

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor of the memory; -1 where it has none."""
        memfd = None if self.states is None else self.states.memfd
        return -1 if memfd is None else memfd.fileno()

    def close(self) -> None:
        """Give the memory back."""
        if self._store is not None:
            self._store.close()
        if self.states is not None:
            self.states.close()

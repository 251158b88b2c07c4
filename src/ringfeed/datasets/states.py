"""States that iterables have of their own, kept in shared memory so that no death loses them.

    StreamStates    the memory: a record for each stream
    StateRecorder   says when a worker takes a stream's state: often enough, at little cost
    KeptStreams     the states of one engine, which warns where reading again takes long

The worker that reads a stream writes its record; the consumer writes the state that an epoch goes
on from, before that worker reads. No reader takes a lock: what is half written does not have its
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.datasets.terms import Kept
from ringfeed.errors import PlanError
from ringfeed.ring._ring import now_ns
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.datasets.streams import StreamSource
    from ringfeed.system._system import Descriptor

ENTRIES = 8  # of a stream: while the newest is written, others lie behind all that is read ahead
MOST_SIZE = 2**20  # bytes of all streams
LARGEST = 2**15  # bytes of an entry
SMALLEST = 128
HEAD = 256  # bytes of a record ahead of its entries
LOOK_NS = 10**8  # while streams leave out what was read before
REMEDY = "give the iterable state_dict() and load_state_dict(), whose states are JSON"
MOST_BATCHES = 64  # from one state to the next
SHARE = 100  # a state takes at most one part of so many of the time since the last
NOTED_EACH = 16  # elements
BEHIND = 8  # batches that frameworks may have taken, and the user's loop not
_NUMBERS = [(name, "u8") for name in ("number", "epoch", "read", "checksum")]  # of an entry
_SKIPPED = 32  # bytes: before which index, since when, how many elements of how many


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
    keeps = keeps and most >= HEAD + ENTRIES * SMALLEST
    size = min(most, HEAD + ENTRIES * LARGEST) if keeps else HEAD
    return streams * size if size <= most else 0


def _record(size: int) -> np.dtype[np.void]:
    """Return how a stream's record of so many bytes is laid out."""
    text = (size - HEAD) // ENTRIES // 8 * 8 - 8 * len(_NUMBERS)
    refusal = HEAD - _SKIPPED - 8
    entries = ([*_NUMBERS, ("text", f"S{text}")], ENTRIES) if size > HEAD else ("u8", 0)
    return np.dtype(
        {
            "names": ["skipped", "refusal", "run", "entries"],
            "formats": [("u8", 4), f"S{refusal}", "u8", entries],
            "offsets": [0, _SKIPPED, HEAD - 8, HEAD],
            "itemsize": size,
        }
    )


class StreamStates:
    """The states of some streams, in memory of `states_size` bytes, which was zeroed before.

    A record has how far its stream is skipped, why it has no states, the run (that of the first
    counts), and `ENTRIES` states, the newest with the largest number.
    """

    def __init__(self, size: int, streams: int, memfd: Descriptor | None = None) -> None:
        """Map the memory from a file, which another process may have made; or take some here."""
        memory = bytearray(size) if memfd is None else mmap.mmap(memfd.fileno(), size)
        self._records = np.frombuffer(memory, _record(size // streams), streams)
        self.memfd, self.size = memfd, size

    def close(self) -> None:
        """Give shared memory back; what was kept can be read nevertheless."""
        self._records = self._records.copy()  # first: another thread may look
        if self.memfd is not None:
            self.memfd.close()

    # ---- states ----

    @property
    def run(self) -> int:
        """The number of the run. It changes only while no worker has anything to read."""
        return int(self._records["run"][0])

    def begin_run(self) -> None:
        """Begin another run: the states of those before are found no more."""
        self._records["run"][0] += 1

    def save(self, stream: int, epoch: int, state: State, run: int | None = None) -> None:
        """Keep a state of a run in the place of the oldest; UnfitError where it is too large."""
        entries = self._records["entries"][stream]
        if not len(entries):
            raise UnfitError("has no room beside those of so many iterables")
        if len(state.text) > (most := entries.dtype["text"].itemsize):
            raise UnfitError(f"is {len(state.text)} bytes of JSON, expected at most {most}")
        number, entry = entries["number"].max() + 1, entries[entries["number"].argmin()]
        entry["number"] = 0
        entry["epoch"], entry["read"], entry["text"] = epoch, *state
        entry["checksum"] = _checksum(self.run if run is None else run, number, epoch, *state)
        entry["number"] = number

    def find(self, stream: int, epoch: int, count: int) -> State | None:
        """Return the state of the most elements, ``count`` or fewer."""
        entries = self._records["entries"][stream]
        if not len(entries):
            return None
        fits = (entries["number"] > 0) & (entries["epoch"] == epoch) & (entries["read"] <= count)
        fitting = entries[fits]  # a copy: the worker may write
        for entry in fitting[fitting["read"].argsort()[::-1]]:
            number, _, read, checksum, text = entry.item()
            if checksum == _checksum(self.run, number, epoch, read, text):
                return State(read, text)
        return None

    # ---- as a loader's state has them ----

    def newest(self, epoch: int, counts: Sequence[int], others: Any = None) -> list[Any] | None:
        """Return each stream's newest state at or before its count, else that of ``others``.

        Where states of a stream cannot be kept, ``others`` are not to be trusted either.
        """
        made: list[Any] = []
        for stream, count in enumerate(counts):
            state = self.find(stream, epoch, count)
            if state is not None:
                made.append({"read": state.read, "of": json.loads(state.text)})
            else:
                made.append(others[stream] if others and not self._refusal(stream) else None)
        return made if any(made) else None

    def seed(self, epoch: int, saved: Any) -> None:
        """Keep the states that an epoch resumes at; a stream with a too large one is skipped."""
        for stream, one in enumerate((saved or ())[: len(self._records)]):
            if one is not None:
                try:
                    self.save(stream, epoch, State(one["read"], encoded(one["of"])))
                except UnfitError as error:
                    self.refuse(stream, str(error))

    # ---- what the worker tells of a stream ----

    def refuse(self, stream: int, why: str) -> None:
        """Note why a stream's states cannot be kept, and forget those that were."""
        record = self._records[stream]
        record["entries"] = 0
        record["refusal"] = why.encode()  # as much of it as there is room for

    def refusal(self) -> tuple[int, str] | None:
        """Return the first stream whose states cannot be kept, and why."""
        told = ((stream, self._refusal(stream)) for stream in range(len(self._records)))
        return next(((stream, why) for stream, why in told if why), None)

    def _refusal(self, stream: int) -> str:
        return str(self._records["refusal"][stream].decode(errors="replace"))

    def note_skipped(self, stream: int, since_ns: int, done: int, total: int) -> None:
        """Note how far a stream has skipped what was read before; ``since_ns=0``: all of it."""
        index = total * len(self._records) + stream
        self._records["skipped"][stream] = index, since_ns, done, total

    def skipped(self) -> tuple[int, ...] | None:
        """Return the longest skip: before which index, since when, how many of how many."""
        found = (one for one in self._records["skipped"].tolist() if one[1])
        return min(found, key=itemgetter(1), default=None)

    def forget_skipped(self) -> None:
        """Note that no stream skips anything."""
        self._records["skipped"] = 0


def end_of(size: int) -> int:
    """Return where in a file something else may begin, behind so many bytes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _checksum(*parts: Any) -> int:
    return zlib.crc32(b"%d %d %d %d %b" % parts)


# ---- in the worker that reads a stream ----


class StateRecorder:
    """Takes the states of one stream while it is read, as often as that costs little."""

    def __init__(
        self, states: StreamStates, stream: int, epoch: int, rows: int, slots: int
    ) -> None:
        """Take none yet; ``rows``: elements of a batch."""
        self._states, self._run = states, states.run
        self._stream, self._epoch, self._rows = stream, epoch, rows
        # So that the oldest lies behind all that is ahead.
        self._least = -(-(slots + BEHIND) // (ENTRIES - 1)) * rows
        self._cost_ns = 0
        self.begin(None)

    def begin(self, owner: Any, count: int = 0) -> None:
        """Take the states of ``owner``, which was brought to an element just now; None: none."""
        self._owner = owner
        self._last: bytes | None = None
        self.go_on(count)

    def pause(self) -> None:
        """Take none."""
        self.due: float = float("inf")
        """The next state is taken ahead of the element of this number."""

    def go_on(self, count: int) -> None:
        """Take states from an element on."""
        self.pause()
        if self._owner is not None:
            self._at, self._since_ns = count, now_ns()
            self.due = count + (1 if self._last is None else self._least)

    def find(self, count: int) -> State | None:
        """Return the newest state at or before a count."""
        return self._states.find(self._stream, self._epoch, count)

    def take(self, count: int) -> bytes | None:
        """Return the state ahead of the element of this number, unless it is not worth its time.

        The first is only compared with the next: what does not change between two batches does not
        say where it is. So it is, too, after a state was loaded: some iterables say for ever where
        they were begun.
        """
        began_ns = now_ns()
        is_soon = count - self._at < MOST_BATCHES * self._rows
        if is_soon and began_ns - self._since_ns < SHARE * self._cost_ns:
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
        try:
            self._states.save(self._stream, self._epoch, State(count, text), self._run)
        except UnfitError as error:
            self._refuse(error)

    def _refuse(self, error: UnfitError) -> None:
        self._states.refuse(self._stream, str(error))
        self.begin(None)

    def note_skipped(self, since_ns: int, done: int, total: int) -> None:
        """Note how far elements are left out."""
        if not done % NOTED_EACH:
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
        self._store = None
        self._watches = False
        if not (size := source.states_size):
            return
        memfd, behind = None, end_of(size)
        if shared and sizes is None:
            memfd = reserve("ringfeed-states", size)
        elif shared:
            memfd = reserve("ringfeed-states", behind + sizes.total, behind + sizes.words)
        try:
            self.states = StreamStates(size, source.streams, memfd)
            if sizes is not None:
                self._store = sizes.open(memfd, behind)
        except OSError as error:
            self.close()
            raise PlanError(
                f"cannot map {show_bytes(size)} for the iterables: {error.strerror}; raise "
                "RLIMIT_NOFILE (ulimit -n) or RLIMIT_AS (ulimit -v)"
            ) from error
        self.fd = -1 if memfd is None else memfd.fileno()

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
        found = self.states.skipped() if self._watches else None
        if found is None:
            return
        from ringfeed.orders.replay import Replay  # noqa: PLC0415 - not for workers

        before, since_ns, done, total = found
        what = f"the elements before {self._source.describe(before)} are read"
        replay = Replay(what, REMEDY, since_ns / 1e9)
        self._watches = False  # ahead of a warning that is made an error
        replay.note(done, total)
        self._watches = not replay.is_told

    def close(self) -> None:
        """Give the memory back."""
        self.fd, self._store = -1, None
        if self.states is not None:
            self.states.close()

"""The elements of a stream that are read ahead of its workers, in shared memory, by their numbers.

    words     by the consumer: run, epoch, start
              by the reader: what it reads, where the iterable ended
              by each worker: the newest number that it waits for
    entries   one a number, modulo their count: stamp; where its bytes lie, how many; whether a
              worker sleeps until it is there, and how often its sleepers were woken
    regions   the bytes: of each ``rows`` numbers one behind the other; a pickle, or the failure
              record of an error or of the end

A run is what is read from one start on: see `datasets.states`. A stamp says run and number, so an
entry or a word of another run is nothing. The reader writes the bytes, then the entry, its stamp
last; a worker looks at the stamp before and after it has copied the bytes.

The slots bound the store: when a worker claims rows of a batch, all before it were delivered but as
many as there are slots. So the newest number that was claimed says which is the oldest that a
worker may still ask for. There are regions for those between, and `AHEAD` more. The memory is
sparse: a region takes what its largest content took.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
from typing import TYPE_CHECKING, NamedTuple

from ringfeed._failure import Kind
from ringfeed._units import show_bytes
from ringfeed.datasets.states import end_of
from ringfeed.reading._claims import Words
from ringfeed.ring._ring import FAILURE_SIZE

if TYPE_CHECKING:
    from ringfeed.system._system import Descriptor

# Regions beside those of the slots: two that a batch's borders cut, and one to read ahead.
AHEAD = 3
REGION = 2**30  # bytes
WANTED = 16  # words ahead of those of the workers
ENTRY = 5  # words of an entry
ELEMENT = pickle.PROTO[0]  # begins the bytes of an element; what has none begins with its `Kind`
_RUN, _EPOCH, _START = 0, 1, 2  # told by the consumer
_ASKED = 3  # is added to where a worker or the consumer has told something; the reader sleeps on it
_READ_RUN, _NEXT, _END = 4, 5, 6  # told by the reader; 1 + the number where it ended, 0: nowhere
_READING, _ATTEMPTS = (
    7,
    8,
)  # 1 + the number that the reader is at, and how many readers have died there
_READER = 9  # the newest one's pid: one that SIGKILL could not end may wake up beside it
_AT, _SIZE, _SLEEPS, _WAKES = 1, 2, 3, 4  # of an entry, behind its stamp
_NUMBER_BITS = 40


class Run(NamedTuple):
    """What the consumer asks the reader for: a run of an epoch, from an element on."""

    number: int
    epoch: int
    start: int


class StoreSizes(NamedTuple):
    """Of a store for batches of ``rows`` elements, in so many slots, which so many workers fill."""

    slots: int
    rows: int
    workers: int

    @property
    def regions(self) -> int:
        """How many regions there are."""
        return self.slots + AHEAD

    @property
    def entries(self) -> int:
        """How many elements there may be."""
        return self.regions * self.rows

    @property
    def words(self) -> int:
        """Bytes ahead of the regions."""
        return end_of(8 * (WANTED + self.workers + ENTRY * self.entries))

    @property
    def total(self) -> int:
        """Bytes of the file; most of them take no memory."""
        return self.words + self.regions * REGION

    def open(self, memfd: Descriptor, at: int) -> Store:
        """Map the store, in the consumer."""
        return Store(memfd, at, self)


class TooLargeError(Exception):
    """An element has no room in its region; says how large it is."""


class GoneError(Exception):
    """An element is gone with its epoch, or another reader has taken this one's place."""


class Store:
    """The elements of one stream, shared by its reader, its workers and the consumer."""

    def __init__(self, memfd: Descriptor, begin: int, sizes: StoreSizes) -> None:
        """Map what lies behind ``begin`` bytes of the file, for as long as this lives."""
        self.sizes = sizes
        self._memfd = memfd
        self.words = Words(mmap.mmap(memfd.fileno(), sizes.words, offset=begin))
        """What is told, and the entries."""
        self._regions_at = begin + sizes.words

    # ---- the consumer ----

    def tell(self, run: int, epoch: int, start: int) -> None:
        """Tell the reader to read from here on; no worker holds a claim that counts."""
        words = self.words
        words[_RUN] = 0  # so that the reader never sees parts of two
        words[_EPOCH], words[_START] = epoch, start
        words[_RUN] = run
        words.add(_ASKED)

    # ---- workers ----

    @property
    def run(self) -> int:
        """The number of the run; 0 while the consumer tells of another."""
        return self.words[_RUN]

    def want(self, worker: int, run: int, number: int) -> None:
        """Tell the reader that a worker has claimed elements up to this number."""
        if self.words[WANTED + worker] != (wanted := _stamp(run, number)):
            self.words[WANTED + worker] = wanted
            self.words.add(_ASKED)

    def has(self, run: int, number: int) -> bool:
        """Whether an element is there, or the iterable has ended before it."""
        return (
            self.words[self._entry(number)] == _stamp(run, number)
            or self._ended(run, number) is not None
        )

    def _ended(self, run: int, number: int) -> int | None:
        """Return the number where the iterable has ended, if that is this one or one before it."""
        end = self.words[_END]
        return end - 1 if end and number >= end - 1 and self.words[_READ_RUN] == run else None

    def wait(self, run: int, number: int, timeout_ns: int) -> None:
        """Sleep until an element may be there, or the end."""
        words, at = self.words, self._entry(number)
        # Neither changes one word alone, so sleepers have one of their own. What comes after the
        # look below finds that a worker sleeps, and changes this word, which was read before.
        seen = words[at + _WAKES]
        words[at + _SLEEPS] = 1
        if not self.has(run, number):
            words.wait(at + _WAKES, seen, timeout_ns)

    def get(self, run: int, number: int) -> bytearray:
        """Return the bytes of an element; GoneError where the run is over."""
        words = self.words
        if (ended := self._ended(run, number)) is not None:
            number = ended
        at, stamp = self._entry(number), _stamp(run, number)
        where, size = words[at + _AT], words[at + _SIZE]
        if words[at] != stamp:
            raise GoneError
        content = bytearray(size)
        os.preadv(self._memfd.fileno(), [content], self._regions_at + where)
        if words[at] != stamp or words[_READ_RUN] != run:
            raise GoneError
        return content

    # ---- the reader ----

    @property
    def asked(self) -> int:
        """What `rest` is given, as it was before the reader looked at what it was told."""
        return self.words[_ASKED]

    def rest(self, asked: int, timeout_ns: int) -> None:
        """Sleep until the consumer or a worker tells something."""
        self.words.wait(_ASKED, asked, timeout_ns)

    def told(self) -> Run | None:
        """Return what the consumer asks for now."""
        words = self.words
        run = Run(words[_RUN], words[_EPOCH], words[_START])
        return run if run.number and words[_RUN] == run.number else None

    def begin(self, run: Run) -> int:
        """Begin a run, or go on after a death; returns the number of the first missing element."""
        words = self.words
        if words[_READ_RUN] != run.number:
            words[_END] = words[_READING] = words[_ATTEMPTS] = 0
            words[_NEXT] = run.start
            words[_READ_RUN] = run.number
        words[_READER] = os.getpid()
        number = words[_NEXT]
        while words[self._entry(number)] == _stamp(run.number, number):
            number += 1
        words[_NEXT] = number
        return number

    @property
    def is_over(self) -> bool:
        """Whether the iterable has ended."""
        return self.words[_END] > 0

    def limit(self, run: Run) -> int:
        """Return the first number that would take the place of an element still needed."""
        begun, first = _stamp(run.number, run.start), WANTED
        wanted = [self.words[word] for word in range(first, first + self.sizes.workers)]
        of_run = [one for one in wanted if one >> _NUMBER_BITS == begun >> _NUMBER_BITS]
        newest = max([begun, *of_run]) - _stamp(run.number, 0)
        oldest = max(run.start, newest - self.sizes.slots * self.sizes.rows + 1)
        return (oldest // self.sizes.rows + self.sizes.regions) * self.sizes.rows

    def note_reading(self, number: int) -> int:
        """Note which element is read; returns how many readers have died there."""
        words = self.words
        if (newest := words[_READING]) <= number:
            words[_ATTEMPTS] = 0
            words[_READING] = number + 1
            return 0
        if newest > number + 1:  # those before it are read again
            return 0
        words[_ATTEMPTS] = deaths = words[_ATTEMPTS] + 1
        return deaths

    def put(self, run: Run, number: int, content: bytes) -> None:
        """Keep the bytes of the next element, and wake the workers that wait for it.

        TooLargeError where its region has no room, OSError where the machine has none.
        """
        where, size = self._place(run, number), len(content)
        # Why an element is not there always fits.
        left = self.sizes.rows * FAILURE_SIZE if content[0] == ELEMENT else 0
        if where % REGION + size > REGION - left:
            raise TooLargeError(show_bytes(size))
        words, at = self.words, self._entry(number)
        if words[_READER] != os.getpid():
            raise GoneError
        if os.pwrite(self._memfd.fileno(), content, self._regions_at + where) != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        words[at] = 0
        words[at + _AT], words[at + _SIZE] = where, size
        words[at] = _stamp(run.number, number)
        words[_NEXT] = number + 1
        count = 1
        if content[0] == Kind.END:
            words[_END], count = number + 1, self.sizes.entries
        for one in range(number, number + count):
            at = self._entry(one)
            if words[at + _SLEEPS]:
                words[at + _SLEEPS] = 0
                words.add(at + _WAKES)

    def _place(self, run: Run, number: int) -> int:
        """Return where an element's bytes begin: behind the one before it, or in a new region."""
        block, row = divmod(number, self.sizes.rows)
        if not row or number == run.start:
            return block % self.sizes.regions * REGION
        before = self._entry(number - 1)
        return self.words[before + _AT] + self.words[before + _SIZE]

    def _entry(self, number: int) -> int:
        return WANTED + self.sizes.workers + number % self.sizes.entries * ENTRY


def _stamp(run: int, number: int) -> int:
    return (run << _NUMBER_BITS) & (1 << 64) - 1 | number + 1

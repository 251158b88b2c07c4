"""The file of a cache, in memory or on disk: what is written when, so that no half of it is read.

    head      whose samples they are: a line of JSON, in a page of its own
    table     an entry of 32 bytes a sample: mark, checksum, place and size of its record
    records   one after another

A sample is kept in these steps, and a death at any moment leaves it absent:

    1. its number is locked in the file, so that no other process writes it, too; the kernel unlocks
       it when the process dies
    2. its record is appended by one write; the kernel finds a place for each of two at once
    3. checksum, place and size are written into its entry
    4. then the mark: now it is there for all

All is written by write(2), which says that a disk is full, where a mapping would be a SIGBUS. The
mappings are only read. What a death or a full disk has left of a record is never looked at.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.cache import _records
from ringfeed.cache.samples import Unpickler, column_of, head_of, record_of
from ringfeed.errors import SpecError, StateError
from ringfeed.system._system import HAS_PROCESSES, Descriptor
from ringfeed.system.memory import allocate, reserve

if TYPE_CHECKING:
    from ringfeed.spec.array import Leaf
    from ringfeed.spec.spec import Spec

HEAD, ENTRY, GAP = 4096, 32, 64  # bytes: the gap lies ahead of the first record
FIRST = b'{"ringfeed cache": 1, '
HITS, MISSES, LEFT_OUT, DAMAGED = range(4)  # of the counts
MISSING = object()
MOST = 2**31 - HEAD  # bytes of a record, which one write(2) takes
_FLOCK = "hhqqi"  # struct flock


class Facts(NamedTuple):
    """What all processes know of a cache."""

    samples: int
    most: float  # bytes that the file may have
    run: int  # the number of this run
    identity: int  # of the samples: no other dataset's records have the checksums of this one


class Place(NamedTuple):
    """A file that a process has open: its descriptor there, and which file that is."""

    pid: int
    fd: int
    file: tuple[int, int]

    @classmethod
    def of(cls, file: Descriptor) -> Place:
        """Return the place of a file of this process."""
        status = os.fstat(file.fileno())
        return cls(os.getpid(), file.fileno(), (status.st_dev, status.st_ino))

    def open(self) -> Descriptor | None:
        """Open the same file; None where no process has it any more, or on another machine."""
        for pid in (self.pid, os.getpid()):  # a child may go on without the process that opened it
            path = Path(f"/proc/{pid}/fd/{self.fd}")
            with suppress(OSError):
                status = path.stat()  # not opened before: it may be anything
                if (status.st_dev, status.st_ino) == self.file:
                    return Descriptor(os.open, path, os.O_RDWR)
        return None


# ---- opening ----


def begins_of(count: int) -> int:
    """Return where the table of so many samples has ended."""
    return -(-(HEAD + ENTRY * count) // HEAD) * HEAD


def in_memory(begins: int) -> Descriptor:
    """Make a file that has no name."""
    if hasattr(os, "memfd_create"):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        file = Descriptor(os.memfd_create, "ringfeed-cache", flags)
        os.fchmod(file.fileno(), 0o600)  # or another user could open it by way of /proc
        # No process can cut it off, which would be a SIGBUS in the others.
        fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    else:  # where there is no Linux
        from tempfile import TemporaryFile  # noqa: PLC0415

        with TemporaryFile() as temporary:
            file = Descriptor(os.dup, temporary.fileno())
    os.pwrite(file.fileno(), bytes(GAP), begins)
    return file


def on_disk(path: str, begins: int, identity: dict[str, Any]) -> tuple[Descriptor, int]:
    """Open a file, or make it; and return the number of whose samples it has.

    StateError where it is of other samples, or no whole cache, PlanError on a full disk.
    """
    file = Descriptor(os.open, path, os.O_RDWR | os.O_CREAT, 0o666)
    fd, expected = file.fileno(), _head_of(identity)
    head, size = os.pread(fd, HEAD, 0), os.fstat(fd).st_size
    if size <= begins + GAP and not head.strip(b"\0"):  # new, or its maker has died
        # Two that make it at once write the same, unless they have different datasets: see `Facts`.
        # A hole in the table would be a SIGBUS where a tmpfs is full.
        allocate(fd, 0, begins + GAP, "give another path=, or free some of that disk")
        os.pwrite(fd, bytes(GAP), begins)
        os.pwrite(fd, expected, 0)
    elif head != expected or size < begins + GAP:
        raise StateError(f"{path} {_difference(head, identity)}")
    return file, int.from_bytes(hashlib.blake2b(expected, digest_size=8).digest(), "little")


def _head_of(identity: dict[str, Any]) -> bytes:
    """Return the head, which ends with a checksum of its beginning."""
    text = FIRST + json.dumps(identity).encode()[1:-1]
    return (text + b', "checksum": %d}\n' % zlib.crc32(text)).ljust(HEAD, b"\0")


def _difference(head: bytes, identity: dict[str, Any]) -> str:
    """Say what is wrong with a file."""
    if not head.startswith(FIRST):
        return "is no cache of ringfeed, and stays as it is; give another path="
    try:
        said = json.loads(head.rstrip(b"\0"))
    except ValueError:
        said = {}
    for name, expected in identity.items():
        if name in said and said[name] != expected:
            return (
                f"has samples of another dataset: its {name} is {said[name]!r}, expected "
                f"{expected!r}; give another path=, or remove the file if no run needs it"
            )
    return "is damaged at its beginning; remove it, and the cache begins anew"


class CacheFile:
    """The file of a cache in one process; its threads share it.

    A copy has the file open by itself: a forked process would share the locks of its parent.
    """

    def __init__(self, file: Descriptor, counts: Descriptor, facts: Facts) -> None:
        """Map what is there."""
        self.facts, self.places = facts, (Place.of(file), Place.of(counts))
        self.pid = os.getpid()
        self.is_read = self.is_full = False  # as far as this process has seen
        page = mmap.mmap(counts.fileno() if HAS_PROCESSES else -1, mmap.PAGESIZE)
        self.counts = memoryview(page).cast("Q")
        self._open, self._end, self._fd = (file, counts), _appending(file), file.fileno()
        self._appending = Lock()  # a write, and the look at where it has ended
        self._seen: Any = np.zeros(facts.samples, np.uint64)
        self.map()

    def __reduce__(self) -> Any:
        """Travel as the places of the files."""
        return opened, (self.places, self.facts)

    def map(self) -> _records.Records:
        """Map all that the file has by now."""
        memory = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        run, identity = self.facts.run, self.facts.identity
        self.records = _records.Records(memory, self._seen, HEAD, run, identity)
        return self.records

    def add(self, number: int, count: int = 1) -> None:
        """Count what has come about."""
        _records.add(self.counts, number, count)

    # ---- what is there ----

    def _find(self, index: int) -> tuple[Any, int]:
        """Return the memory that has a record, and where; ABSENT or BROKEN in the place of that."""
        records = self.records
        if (at := records.find(index)) == _records.BEYOND:
            records = self.map()
            at = records.find(index)
        return records.memory, _records.BROKEN if at == _records.BEYOND else at

    def sample(self, index: int, leaf: Any) -> Any:
        """Return a sample, whose leaves ``leaf`` makes; MISSING where it is not there."""
        self.is_read = True
        memory, at = self._find(index) if index >= 0 else (None, 0)
        if at == _records.BROKEN:
            self.add(DAMAGED)
        self.add(HITS if at > 0 else MISSES)
        return Unpickler(head_of(memory, at), memory, at, leaf).load() if at > 0 else MISSING

    def held(self) -> tuple[int, int]:
        """Return how many samples there are, and the bytes of their records."""
        table: Any = np.zeros((self.facts.samples, 4), np.uint64)
        os.preadv(self._fd, [table], HEAD)  # a mapping is a SIGBUS where the file was cut off
        is_there = table[:, 0] != 0
        return int(is_there.sum()), int(table[is_there, 3].sum())

    @property
    def used(self) -> int:
        """The bytes that the kernel has given to the file."""
        return os.fstat(self._fd).st_blocks * 512

    @property
    def free(self) -> int:
        """The bytes that are free on its disk."""
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize

    # ---- what is written ----

    def keep(self, index: int, sample: Any) -> Any:
        """Write a sample, and return it.

        Not where another process writes it, or has, or where there is no room for it.
        """
        if self.is_full or not 0 <= index < self.facts.samples:
            self.add(LEFT_OUT)
        elif self._lock(index, fcntl.F_WRLCK):
            try:
                if self._find(index)[1] < 0 and not self._write(index, sample):
                    self.add(LEFT_OUT)
            finally:
                self._lock(index, fcntl.F_UNLCK)
        return sample

    def _lock(self, index: int, kind: int) -> bool:
        """Lock the number of a sample, or unlock it; False where another process has it.

        Without locks, on some systems and disks, two may write a sample: one of them is found.
        """
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):
                flock = struct.pack(_FLOCK, kind, os.SEEK_SET, index, 1, 0)
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, flock)
        except OSError as error:
            return error.errno not in {errno.EAGAIN, errno.EACCES}
        return True

    def _write(self, index: int, sample: Any) -> bool:
        """Append the record of a sample and say where it lies; False where that cannot be."""
        try:
            record = record_of(sample)
        except Exception:  # noqa: BLE001 - of the user's classes, which pickle refuses
            return False
        if len(record) > MOST:
            return False
        try:
            at, size = self._append(record), len(record)
            mark, checksum = self.records.entry_of(index, at, record)
            entry = HEAD + ENTRY * index
            _records.fence()
            os.pwrite(self._fd, struct.pack("3Q", checksum, at, size), entry + 8)
            _records.fence()
            os.pwrite(self._fd, struct.pack("Q", mark), entry)
        except OSError:  # no room, a quota, a limit
            self.is_full = True
            return False
        return True

    def _append(self, record: bytes) -> int:
        """Write behind all that is there, and return where; OSError where there is no room."""
        size, end = len(record), self._end.fileno()
        with self._appending:
            is_room = os.fstat(end).st_size + size <= self.facts.most
            if not is_room or os.write(end, record) != size:
                raise OSError
            return os.lseek(end, 0, os.SEEK_CUR) - size


def opened(places: tuple[Place, Place], facts: Facts) -> CacheFile:
    """Open the file of another process, or one that has no room where that cannot be reached."""
    file, counts = (place.open() for place in places)
    if file is None or counts is None:
        file, counts = in_memory(HEAD), reserve("ringfeed-cache-counts", mmap.PAGESIZE)
        facts = facts._replace(samples=0, most=0)
    return CacheFile(file, counts, facts)


def columns_of(memory: Any, head: bytes, spec: Spec) -> Any:
    """Return arrays that have a record with this head at each byte where one may begin.

    None where a leaf of such a record is not byte for byte what a dataset gives for the spec.
    """
    try:
        columns = Unpickler(head, memory, 0, column_of).load()
        leaves: list[Any] = spec.flatten(columns, 0)
    except (SpecError, TypeError):  # or a number is a key
        return None
    return columns if all(map(_is_plain, leaves, spec.leaves)) else None


def _is_plain(column: Any, leaf: Leaf) -> bool:
    """Whether the rows of a column are byte for byte what a dataset gives for a leaf."""
    if not isinstance(column, np.ndarray) or leaf.form is not None or leaf.variable:
        return False
    return bool(column.dtype == leaf.given_dtype and column.shape[1:] == leaf.given_shape)


def _appending(file: Descriptor) -> Descriptor:
    """Return another way into a file, whose writes all go behind its end."""
    fd = file.fileno()
    if sys.platform == "linux":
        return Descriptor(os.open, f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND)
    # There pwrite() goes where it says all the same.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return file

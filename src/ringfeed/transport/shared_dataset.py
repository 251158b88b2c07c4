"""A dataset's way from the consumer to its workers: pickled once, its large buffers in shared memory.

    pack(dataset)           a DatasetPickle: cloudpickle, protocol 5; large buffers by reference, nothing reserved
    to_shared_memory(...)   a SharedDataset: sealed memfds; what did not change stays in those of the last version
    unpack(manifest, fds)   the dataset, in the worker: maps the memfds privately (`pieces_of`), unpickles (`opened`)

A shared dataset is a list of pieces, each at an offset of one of its memfds: piece 0 is the pickle stream, the
others are its buffers in order. The table of pieces lies in the newest memfd, since a datagram to a worker
may be too small for it; the manifest says where. Only what a worker needs too is imported at the top.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import pickle
from array import array
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import PlanError, ShipError
from ringfeed.system import _system
from ringfeed.system._system import Descriptor
from ringfeed.transport.imports import watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringfeed.transport.parts_pickler import Parts
    from ringfeed.transport.pickler import Pickled

ALIGNMENT = 64  # bytes; a buffer is then as usable in a worker as a fresh allocation
MAX_TWINS = 4  # pieces of the same length that a buffer is compared with, at each place it may have come from
PIECE_SIZE = 24  # bytes of a piece in the table
MAX_FILES = 16  # memfds of one shared dataset: a message carries 253 descriptors, a process 1024 by default

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ADVICE = (
    "keep less in the dataset, read files on demand (a np.memmap travels as a file name), "
    "or give the machine or its cgroup more memory"
)


class DatasetPickle:
    """A pickled dataset that is not yet in shared memory; keeps the buffers it refers to alive."""

    def __init__(self, name: str, pickled: Pickled, parts: Parts, unpickled: int = 0) -> None:
        self.name = name
        self.stream = pickled.stream
        self.parts = parts  # of the user's modules: they come before the buffers
        self.buffers = (*parts.streams, *pickled.buffers)
        self.modules = pickled.modules | parts.modules  # which unpickling imports, as far as that is known
        self.in_band = self.stream.nbytes  # bytes that every worker unpickles for itself
        self.out_of_band = sum(buffer.nbytes for buffer in self.buffers)  # bytes that all workers share
        self.unpickled = unpickled  # bytes that each worker makes of what is in band, if they were asked for

    @property
    def shared(self) -> int:
        """Bytes of shared memory that it will take: both, their table, and what rounding adds."""
        sizes = [self.in_band, *(buffer.nbytes for buffer in self.buffers)]
        pieces = sum(_round_up(size, ALIGNMENT) for size in sizes)
        return _round_up(pieces + len(sizes) * PIECE_SIZE, mmap.PAGESIZE)


def pack(
    obj: object, name: str = "dataset", *, weigh: bool = False, previous: SharedDataset | None = None
) -> DatasetPickle:
    """Pickle ``obj`` without copying its contiguous buffers; ``weigh``: also say what it takes in each worker.

    What ``previous`` has sent of the user's modules stays as it was, as modules do that were imported.
    ShipError gives the path, from ``name``, to what cannot travel, and the ways out.
    """
    from ringfeed._failure import without_ours  # noqa: PLC0415 - no worker needs them
    from ringfeed.transport import object_size, parts_pickler, unpicklable  # noqa: PLC0415 - likewise

    try:
        pickled, parts = parts_pickler.take_apart(obj, None if previous is None else previous.parts, watch=weigh)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises
        shown = without_ours(error.__traceback__, "cloudpickle")
        raise ShipError(unpicklable.explain(obj, name, error)) from error.with_traceback(shown)
    return DatasetPickle(name, pickled, parts, object_size.weigh(pickled.visited) if weigh else 0)


class Piece(NamedTuple):
    """Where a stream or a buffer lies."""

    file: int  # index of its memfd in the shared dataset
    offset: int  # bytes
    length: int  # bytes


class SharedDataset:
    """A pickled dataset in sealed memfds, whose descriptors it owns until ``close()``."""

    def __init__(
        self, files: Iterable[Descriptor], pieces: Iterable[Piece], table: Piece, size: int, packed: DatasetPickle
    ) -> None:
        self._files = tuple(files)
        self.parts = packed.parts
        self.pieces = tuple(pieces)
        self.table = table
        self.size = size  # bytes newly reserved for this version

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors, none once it is closed."""
        return tuple(file.fileno() for file in self._files)

    def manifest(self) -> bytes:
        """Return what ``unpack`` needs besides ``fds``, in their order: a few bytes."""
        return array("Q", (*self.table, len(self.parts.streams))).tobytes()

    def close(self) -> None:
        """Close the descriptors; the memory itself stays until no worker maps it any more."""
        files, self._files = self._files, ()
        for file in files:
            file.close()


def to_shared_memory(packed: DatasetPickle, previous: SharedDataset | None = None) -> SharedDataset | None:
    """Put a pickled dataset into sealed memfds; None where workers that have ``previous`` have all of it already.

    What ``previous`` holds with the same content is not copied again: the new one refers to it by
    descriptors of its own, so that ``previous`` may be closed. PlanError when there is no room.
    """
    sources = [packed.stream, *packed.buffers]
    if previous is None:
        return _load(packed, {}, [list(range(len(sources)))], ())
    old = _mapped(previous.fds, previous.pieces)
    if len(sources) == len(old) and all(map(_system.is_same, sources, old)):
        return None
    twins = _twins(sources, old)
    same = {n: previous.pieces[twin] for n, twin in enumerate(twins) if twin is not None}
    files = _files_to_keep(previous.fds, same.values())
    renumbered = {file: number for number, file in enumerate(files)}
    stay = {n: p._replace(file=renumbered[p.file]) for n, p in same.items() if p.file in renumbered}
    # Two new files, so that what changes in every epoch does not hold on to the memory of what never does.
    moved = [n for n in same if n not in stay]
    changed = [n for n in range(len(sources)) if n not in same]
    groups = [moved, changed] if moved else [changed]
    return _load(packed, stay, groups, [previous.fds[file] for file in files])


def unpack(manifest: bytes, fds: Sequence[int]) -> Any:
    """Return the dataset, in a worker; the descriptors may be closed afterwards.

    Its buffers are shared with all other workers until this one writes to them: then a page is copied, 4 KiB also where
    the kernel has huge ones.
    """
    part_count, _, views = pieces_of(manifest, fds)
    return opened(part_count, views)


def pieces_of(manifest: bytes, fds: Sequence[int]) -> tuple[int, list[Piece], list[memoryview]]:
    """Return how many of its buffers are parts of modules; where its pieces lie; and the pieces, the stream first."""
    *table_fields, part_count = array("Q", manifest)
    table = Piece(*table_fields)
    numbers = array("Q", bytes(_mapped(fds, [table])[0]))
    pieces = [Piece(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]
    stream = _mapped(fds, pieces[:1])  # apart, so that a forkserver, which reads no more, keeps no page mapped
    return part_count, pieces, [*stream, *_mapped(fds, pieces[1:])]


def opened(part_count: int, views: Sequence[memoryview]) -> Any:
    """Return the dataset of these pieces, wherever they lie; the first ``part_count`` buffers are parts of modules."""
    stream, *buffers = views
    with watched():
        if part_count:
            from ringfeed.transport import parts as _parts  # noqa: PLC0415 - for some datasets only

            _parts.load(buffers[0], buffers[1:part_count])
        return pickle.loads(stream, buffers=buffers[part_count:])  # noqa: S301 - the consumer pickled it


def _mapped(fds: Sequence[int], pieces: Sequence[Piece]) -> list[memoryview]:
    """Return the pieces as views of private mappings, which last as long as they do.

    Private also where they are only read: before Linux 6.7 a write-sealed memfd cannot be mapped shared.
    """
    ends = [1] * len(fds)
    for piece in pieces:
        ends[piece.file] = max(ends[piece.file], piece.offset + piece.length)
    maps = [memoryview(_system.PrivateMapping(fd, end)) for fd, end in zip(fds, ends, strict=True)]
    return [maps[piece.file][piece.offset : piece.offset + piece.length] for piece in pieces]


def _twins(sources: Iterable[memoryview], old: Sequence[memoryview]) -> list[int | None]:
    """For each source the number of an old piece with its content, or None; no piece is given twice.

    Two equal buffers are two pieces: a worker that writes to one must not change the other.
    """
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, piece in enumerate(old):
        by_length[piece.nbytes].append(number)
    twins: list[int | None] = []
    after, shift = 0, 0  # behind the last twin; how far sources stand from their twins
    for place, source in enumerate(sources):
        numbers = by_length[source.nbytes]
        starts = (bisect_left(numbers, after), bisect_left(numbers, place + shift), 0)
        candidates = [number for start in starts for number in numbers[start : start + MAX_TWINS]]
        twin = next((number for number in candidates if _system.is_same(source, old[number])), None)
        if twin is not None:
            numbers.remove(twin)
            after, shift = twin + 1, twin - place
        twins.append(twin)
    return twins


def _files_to_keep(fds: Sequence[int], used: Iterable[Piece]) -> list[int]:
    """Return the memfds worth referring to further: at least half in use, and not too many."""
    live: defaultdict[int, int] = defaultdict(int)
    for piece in used:
        live[piece.file] += piece.length
    fuller = [file for file in live if 2 * live[file] >= os.fstat(fds[file]).st_size]
    return sorted(sorted(fuller, key=live.__getitem__)[-(MAX_FILES - 2) :])


def _load(packed: DatasetPickle, stay: dict[int, Piece], groups: list[list[int]], kept: Sequence[int]) -> SharedDataset:
    """Return a new memfd for each group of pieces, the table at the end of the last; the kept ones come before."""
    sources = [packed.stream, *packed.buffers]
    pieces = dict(stay)
    sizes: list[int] = []
    for group in groups:
        offset = 0
        for number in group:
            pieces[number] = Piece(len(kept) + len(sizes), offset, sources[number].nbytes)
            offset = _round_up(offset + sources[number].nbytes, ALIGNMENT)
        sizes.append(offset)
    in_order = [pieces[number] for number in range(len(sources))]
    table = memoryview(array("Q", (field for piece in in_order for field in piece))).cast("B")
    where = Piece(len(kept) + len(sizes) - 1, sizes[-1], table.nbytes)
    contents = [[(pieces[number].offset, sources[number]) for number in group] for group in groups]
    contents[-1].append((where.offset, table))
    files: list[Descriptor] = []
    try:
        # extend() keeps what it was given before an exception, which the clean-up then sees.
        files.extend(Descriptor(os.dup, fd) for fd in kept)
        files.extend(_sealed_memfd(packed, content) for content in contents)
    except BaseException:
        for file in files:
            file.close()
        raise
    return SharedDataset(
        files, in_order, where, sum(os.fstat(file.fileno()).st_size for file in files[len(kept) :]), packed
    )


def _sealed_memfd(packed: DatasetPickle, content: Sequence[tuple[int, memoryview]]) -> Descriptor:
    """Return a memfd with each source at its offset, sealed against writes and resizing."""
    end = max(offset + source.nbytes for offset, source in content)
    size = _round_up(end, mmap.PAGESIZE)
    memfd = Descriptor(os.memfd_create, "ringfeed-dataset", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fd = memfd.fileno()
    try:
        os.fchmod(fd, 0o600)  # as the segment's
        os.ftruncate(fd, size)
        _system.reserve_huge(fd, size)
        os.posix_fallocate(fd, 0, size)
        for offset, source in content:
            _write(fd, source, offset)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException as error:
        memfd.close()  # now: the error's traceback keeps what this frame refers to
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise PlanError(_no_room(packed, size, error)) from error
        raise
    return memfd


def _write(fd: int, source: memoryview, offset: int) -> None:
    """Write all of ``source``: the kernel takes at most 2 GB at a time."""
    while source.nbytes:
        written = os.pwrite(fd, source, offset)
        source, offset = source[written:], offset + written


def _no_room(packed: DatasetPickle, size: int, error: OSError) -> str:
    from ringfeed._units import show_bytes  # noqa: PLC0415 - no worker needs it

    return (
        f"{packed.name}: {show_bytes(size)} of shared memory cannot be reserved ({error.strerror}) for its "
        f"{show_bytes(packed.in_band)} in band and {show_bytes(packed.out_of_band)} of buffers; {_ADVICE}"
    )


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit

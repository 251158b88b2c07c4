"""A dataset's way to its workers: pickled once, its large buffers in shared memory.

    pack(dataset)           a DatasetPickle: by cloudpickle; it refers to large buffers
    to_shared_memory(...)   a SharedDataset: sealed memfds; what did not change stays where it is

A shared dataset is a list of pieces, each at an offset of one of its memfds: piece 0 is the pickle
stream, the others are its buffers in order. The manifest is that list. Workers read it by
`unpacking`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import weakref
from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import ShipError
from ringfeed.system._system import Descriptor, is_same
from ringfeed.system.memory import reserve
from ringfeed.transport.unpacking import Piece, mapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ALIGNMENT = 64  # bytes; a buffer is then as usable in a worker as a fresh allocation
SAMPLED = 4096  # bytes of a buffer by which it is looked for among the old ones
WHOLE = 1 << 24  # bytes up to which a buffer is compared whole, also where it is of the same array
STRETCH, STRIDE = 1 << 12, 1 << 22  # bytes: of a longer one, the first of each so many
MAX_TWINS = 4  # old buffers with the same sample that a new one is compared with
# Memfds of one shared dataset: a message carries 253 descriptors, a process 1024 by default.
MAX_FILES = 16

_ADVICE = (
    "keep less in the dataset, read files on demand (a np.memmap travels as a file name), "
    "or give the machine or its cgroup more memory"
)


class DatasetPickle(NamedTuple):
    """A pickled dataset that is not yet in shared memory; keeps the buffers it refers to alive."""

    name: str
    stream: memoryview
    buffers: Sequence[memoryview]
    modules: set[str]  # which unpickling imports, as far as that is known
    unpickled: int  # bytes that each worker makes of what is in band, if they were asked for

    @property
    def in_band(self) -> int:
        """Bytes that every worker unpickles for itself."""
        return self.stream.nbytes

    @property
    def out_of_band(self) -> int:
        """Bytes that all workers share."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that it will take, as `to_shared_memory` lays it out."""
        sizes = (self.in_band, *(buffer.nbytes for buffer in self.buffers))
        return _round_up(sum(_round_up(size, ALIGNMENT) for size in sizes), mmap.PAGESIZE)


def pack(obj: object, name: str = "dataset", *, weigh: bool = False) -> DatasetPickle:
    """Pickle ``obj`` without copying its contiguous buffers.

    ``weigh``: also say what it takes in each worker.

    ShipError gives the path, from ``name``, to what cannot travel, and the ways out.
    """
    from ringfeed._failure import without_ours  # noqa: PLC0415 - no worker needs them
    from ringfeed.transport import object_size, pickler  # noqa: PLC0415 - likewise

    try:
        pickled = pickler.dump(obj, watch=weigh)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises
        from ringfeed.transport import unpicklable  # noqa: PLC0415 - for errors only

        shown = without_ours(error.__traceback__, "cloudpickle")
        raise ShipError(unpicklable.explain(obj, name, error)) from error.with_traceback(shown)
    # Not getbuffer(): a BytesIO with a view on it complains when the garbage collector closes it.
    stream = memoryview(pickled.stream.getvalue())
    unpickled = object_size.weigh(pickled.visited)
    return DatasetPickle(name, stream, pickled.buffers, pickled.modules, unpickled)


class SharedDataset:
    """A pickled dataset in sealed memfds, whose descriptors it owns until ``close()``."""

    def __init__(
        self,
        files: Sequence[Descriptor],
        pieces: Sequence[Piece],
        size: int,
        arrays: Sequence[Any],
    ) -> None:
        self._files = files
        self.pieces = pieces
        # For each piece a weak reference to the array it was copied of; None: it has none.
        self.arrays = arrays
        self.size = size  # bytes newly reserved for this version

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors, none once it is closed."""
        return tuple(file.fileno() for file in self._files)

    def manifest(self) -> bytes:
        """Return what ``unpack`` needs besides ``fds``, in their order."""
        return pickle.dumps(self.pieces)

    def close(self) -> None:
        """Close the descriptors; the memory itself stays until no worker maps it any more."""
        files, self._files = self._files, ()
        _close(files)


def to_shared_memory(
    packed: DatasetPickle, previous: SharedDataset | None = None
) -> SharedDataset | None:
    """Put a pickled dataset into sealed memfds.

    None where workers that have ``previous`` have all of it already.

    What ``previous`` holds with the same content is not copied again: the new one refers to it by
    descriptors of its own, so that ``previous`` may be closed. PlanError when there is no room.
    """
    sources = [packed.stream, *packed.buffers]
    arrays = [_reference(source) for source in sources]
    previous = previous or SharedDataset((), (), 0, ())
    fds, old = previous.fds, mapped(previous.fds, previous.pieces)
    if len(sources) == len(old) and all(
        map(partial(_is_unchanged, fds), previous.pieces, old, sources, previous.arrays)
    ):
        previous.arrays = arrays
        return None
    same = {place: previous.pieces[twin] for place, twin in _twins(sources, old)}
    kept = _files_to_keep(fds, same.values())
    pieces: list[Piece] = []
    size = 0
    for place, source in enumerate(sources):
        if place in same and same[place].file in kept:
            pieces.append(same[place]._replace(file=kept.index(same[place].file)))
        else:
            pieces.append(Piece(len(kept), size, source.nbytes))
            size = _round_up(size + source.nbytes, ALIGNMENT)
    size = _round_up(size, mmap.PAGESIZE)
    files: list[Descriptor] = []
    try:
        # extend() keeps what it was given before an exception, which the clean-up then sees.
        files.extend(Descriptor(os.dup, fds[file]) for file in kept)
        if size:
            files.append(reserve("ringfeed-dataset", size, remedy=_remedy(packed)))
        for piece, source in zip(pieces, sources, strict=True):
            if piece.file == len(kept):
                _write(files[-1].fileno(), source, piece.offset)
        if size:
            fcntl.fcntl(
                files[-1].fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            )
    except BaseException:
        _close(files)  # now: the error's traceback keeps what this frame refers to
        raise
    return SharedDataset(files, pieces, size, arrays)


def _owner(source: memoryview) -> Any:
    """Return the object whose memory a buffer is: an array, or what its views are of."""
    owner: Any = source.obj
    while (base := getattr(owner, "base", None)) is not None:
        owner = base
    return owner


def _reference(source: memoryview) -> Any:
    """Return a weak reference to the owner of a buffer; None where it can have none."""
    try:
        return weakref.ref(_owner(source))
    except TypeError:
        return None


def _is_unchanged(
    fds: Sequence[int], piece: Piece, old: memoryview, source: memoryview, array: Any
) -> bool:
    """Whether a buffer holds what an old piece does, which lies in one of these memfds.

    To compare all of a large array ahead of each epoch would take longer than to read an epoch of
    it. Where it is the very array that was sent, a part of it tells.
    """
    is_another = array is None or array() is not _owner(source)
    size = source.nbytes
    if size != old.nbytes or size <= WHOLE or is_another:
        return is_same(source, old)
    # Read, since each place of a mapping costs a page fault, which takes longer.
    return all(
        os.pread(fds[piece.file], min(STRETCH, size - at), piece.offset + at)
        == source[at : at + STRETCH].tobytes()
        for at in range(0, size, STRIDE)
    )


def _twins(sources: Iterable[memoryview], old: Sequence[memoryview]) -> Iterator[tuple[int, int]]:
    """Yield each source that has the content of an old piece, and that piece, by their numbers.

    No piece is given twice. Two equal buffers are two pieces: a worker that writes to one must not
    change the other.
    """
    numbers: defaultdict[Any, list[int]] = defaultdict(list)
    for number, piece in enumerate(old):
        numbers[_sample(piece)].append(number)
    for place, source in enumerate(sources):
        alike = numbers[_sample(source)]
        twin = next(
            (number for number in islice(alike, MAX_TWINS) if is_same(source, old[number])),
            None,
        )
        if twin is not None:
            alike.remove(twin)
            yield place, twin


def _sample(piece: memoryview) -> tuple[int, int]:
    return piece.nbytes, hash(bytes(piece[:: 1 + piece.nbytes // SAMPLED]))


def _files_to_keep(fds: Sequence[int], used: Iterable[Piece]) -> list[int]:
    """Return the memfds worth referring to further: at least half in use, and not too many.

    What else is unchanged is copied, and so each memfd takes at most twice what is used of it.
    """
    live: defaultdict[int, int] = defaultdict(int)
    for piece in used:
        live[piece.file] += piece.length
    fuller = [file for file in live if 2 * live[file] >= os.fstat(fds[file]).st_size]
    return sorted(fuller, key=live.__getitem__)[1 - MAX_FILES :]


def _close(files: Iterable[Descriptor]) -> None:
    for file in files:
        file.close()


def _write(fd: int, source: memoryview, offset: int) -> None:
    """Write all of ``source``: the kernel takes at most 2 GB at a time."""
    while source.nbytes:
        written = os.pwrite(fd, source, offset)
        source, offset = source[written:], offset + written


def _remedy(packed: DatasetPickle) -> str:
    from ringfeed._units import show_bytes  # noqa: PLC0415 - no worker needs it

    sizes = f"{show_bytes(packed.in_band)} in band and {show_bytes(packed.out_of_band)} of buffers"
    return f"the {packed.name} has {sizes}: {_ADVICE}"


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit

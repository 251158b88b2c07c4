"""`Cache`: a dataset that reads each sample of another one once; and its source.

A worker of a loader fills a claim from the records without any Python code where all of its rows
are there and are the loader's rows byte for byte. Else each row comes by way of the dataset: from
its record, or read and kept.
"""

from __future__ import annotations

import inspect
import math
import mmap
import os
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._classes import fingerprint_of, is_iterable
from ringfeed._units import parse_memory, shorten, show_bytes
from ringfeed.cache import _records
from ringfeed.cache.file import (
    HITS,
    MISSES,
    MISSING,
    CacheFile,
    Place,
    begins_of,
    columns_of,
    in_memory,
    on_disk,
)
from ringfeed.cache.fingerprint import fingerprint
from ringfeed.cache.samples import Record, copy_of, view_of
from ringfeed.datasets.indexed import IndexedSource, batches_in
from ringfeed.datasets.reader import Reader
from ringfeed.errors import PlanError, StateError
from ringfeed.monitor.free_memory import free_memory
from ringfeed.orders.rng import SampleContext, installed, making
from ringfeed.system.machine import HAS_PROCESSES
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Fill
    from ringfeed.datasets.terms import Terms
    from ringfeed.engine.plan import Plan

_END = object()


class CacheStats(NamedTuple):
    """What a cache has done, in all processes that have it, since it was made in this run.

    hits, misses: samples that were found, and that were read from the dataset. left_out: samples
    that were read and not kept, for lack of room or since they cannot be pickled. damaged: records
    with a wrong checksum; their samples were read from the dataset. samples: how many there are
    now.
    size: their bytes.
    """

    hits: int
    misses: int
    left_out: int
    damaged: int
    samples: int
    size: int


class Room(NamedTuple):
    """What a cache will take if all samples are as those that it has."""

    samples: int
    of: int  # samples of the dataset
    size: int  # bytes
    is_file: bool

    def __str__(self) -> str:
        """Return the size, and how much fits."""
        holds = "all" if self.samples == self.of else f"{self.samples:,} of"
        where = " on disk" * self.is_file
        return f"{show_bytes(self.size)}{where} for a cache of {holds} {self.of:,} samples"


class Cache:
    """A dataset whose samples are read once: ``Loader(Cache(dataset, memory="8GB"), ...)``.

    The first worker that reads a sample writes it into one file, in memory or on disk, which all
    workers, loaders and ranks map. From then on the sample is read from there, as from an array in
    memory. The loader's ``transform=`` runs after the cache, so augment there. What
    ``__getitem__`` itself draws from `rng` is kept as in epoch 0.

    dataset: what `Loader` takes that has a length and a ``__getitem__``; an async one, too.
        ``__getitems__`` is used if the dataset has it, ``read_into`` is not. With the loader's
        ``batch_size=None`` whole batches are kept. Samples may differ in shape and hold strings, or
        any objects that can be pickled.
    memory: the bytes that the cache may take ("8GB"); None: only with ``path``, no limit.
    path: a file on a local disk, for other runs, too, also at once. Without it the cache lies in
        memory and ends with this object and its loaders. A path in ``/dev/shm`` is one copy in
        memory for ranks that are started one by one, until you remove it.
    key: what the fingerprint does not cover, such as the version of the files that are read.

    A sample that does not fit is read from the dataset in each epoch. Batches, orders, random
    numbers and states are those of a loader without a cache. A process that is killed, or a full
    disk, never leaves a wrong sample. A sample whose record fails its checksum is read again.

    A file belongs to a fingerprint: the dataset's attribute ``fingerprint``, else a hash of its
    pickled state and of the code of yours that it calls. StateError if the file has samples of
    another one: it is never overwritten, as another run may need it; and if the dataset has changed
    when an epoch begins. TypeError for datasets without a length or samples by number, ValueError
    for neither ``memory`` nor ``path``, PlanError if ``memory`` does not hold the table alone.
    """

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(
        self,
        dataset: Any,
        *,
        memory: int | str | None = None,
        path: str | os.PathLike[str] | None = None,
        key: str | None = None,
    ) -> None:
        """Make the file, or open it; read no sample."""
        if memory is None and path is None:
            raise ValueError("give memory=, as in '8GB', or path=, or both")
        self.dataset = dataset
        self.path = None if path is None else str(Path(path).absolute())
        self._count = _count_of(dataset)
        self._most = math.inf if memory is None else parse_memory(memory)
        self._begins = begins_of(self._count)
        if self._most <= self._begins:
            raise PlanError(
                f"memory={memory!r} holds no sample: the table of {self._count:,} samples takes "
                f"{show_bytes(self._begins)}; allow more"
            )
        self._is_async = inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None))
        if callable(getattr(dataset, "__getitems__", None)):
            self.__getitems__ = self._bulk
        self._then = fingerprint(dataset)
        self._is_read = False  # in this process, which may change what the dataset keeps
        self._run = int.from_bytes(os.urandom(8), "little")
        self._memfd = reserve("ringfeed-cache-counts", mmap.PAGESIZE)
        made = self._made(self._opened(key), self._memfd)
        self._places = made.place, Place.of(self._memfd)
        self._files = {os.getpid(): made}

    def _opened(self, key: str | None) -> Any:
        if self.path is None:
            return in_memory(self._begins)
        name = type(self.dataset).__qualname__
        if self._then is None:
            raise StateError(
                f"a {name} has no fingerprint, which a file needs: pickle does not take it, or it "
                "contains itself; give it one, as in dataset.fingerprint = 'photographs 1'"
            )
        identity = {"samples": self._count, "dataset": name, "key": key and shorten(key, 200)}
        return on_disk(self.path, self._begins, {**identity, "fingerprint": self._then})

    def _made(self, file: Any, counts: Any) -> CacheFile:
        page = mmap.mmap(counts.fileno() if HAS_PROCESSES else -1, mmap.PAGESIZE)
        words = memoryview(page).cast("Q")
        return CacheFile(file, self._count, self._run, self._most, words)

    # ---- in other processes ----

    def __getstate__(self) -> dict[str, Any]:
        """Travel with the places of the files, which another process opens there."""
        return {**vars(self), "_files": {}, "_memfd": None}

    @property
    def file(self) -> CacheFile | None:
        """The file in this process; None where it cannot be reached, as on another machine."""
        pid = os.getpid()
        if pid not in self._files:
            # Each process opens its own: a forked one would share the locks of its parent.
            try:
                made = self._made(*[place.open() for place in self._places])
            except FileNotFoundError:
                return None
            self._files.setdefault(pid, made)
        return self._files[pid]

    # ---- a dataset ----

    def __ringfeed_source__(
        self, terms: Terms, open_source: Callable[[Any, Terms], Source]
    ) -> Source:
        """Return the source of the dataset, by way of the cache."""
        return CacheSource(self, terms, open_source)

    @property
    def _fingerprint(self) -> str | None:
        """That of the dataset, for a loader's state: see `Loader.state_dict`."""
        return fingerprint_of(self.dataset)

    def __len__(self) -> int:
        return batches_in(self.dataset) or 0

    def __getitem__(self, index: int) -> Any:
        """Return a sample, which the caller may change; of an async dataset, what to await."""
        return self.read(copy_of, index)

    def read(self, leaf: Any, index: int) -> Any:
        """Return a sample; ``leaf`` makes its leaves, where it is found."""
        found = self._found(index, leaf)
        if self._is_async:
            return self._awaited(index, found)
        if found is MISSING:
            with _first_epoch():
                found = self._kept(index, self.dataset[index])
        return found

    async def _awaited(self, index: int, found: Any) -> Any:
        if found is MISSING:
            with _first_epoch():
                found = self._kept(index, await self.dataset[index])
        return found

    def _bulk(self, indices: Sequence[int]) -> list[Any]:
        return [*self.many(copy_of, indices)]

    def many(self, leaf: Any, indices: Sequence[int]) -> Iterator[Any]:
        """Give the samples of indices; those that are missing are read together."""
        found = [self._found(index, leaf) for index in indices]
        missing = [index for index, one in zip(indices, found, strict=True) if one is MISSING]
        read = iter(self.dataset.__getitems__(missing) if missing else ())
        for index, one in zip(indices, found, strict=True):
            if one is not MISSING:
                yield one
            elif (sample := next(read, _END)) is not _END:
                yield self._kept(index, sample)
        yield from read  # too many, which the caller counts

    def _found(self, index: int, leaf: Any) -> Any:
        """Return a sample that is there, or MISSING."""
        self._is_read = True
        file = self.file
        if file is None or not 0 <= index < self._count:
            return MISSING
        record = file.record(index)
        file.add(MISSES if record is None else HITS)
        return MISSING if record is None else record.sample(leaf)

    def _kept(self, index: int, sample: Any) -> Any:
        """Return a sample that was read, once it is kept."""
        if (file := self.file) is not None and 0 <= index < self._count:
            file.keep(index, sample)
        return sample

    # ---- what it is ----

    def check(self) -> None:
        """Raise StateError where the dataset has changed, unless this process has read it."""
        if not self._is_read and fingerprint(self.dataset) not in {self._then, None}:
            raise StateError(
                "the dataset has changed since its Cache was made, whose samples are those of "
                "before; make a new Cache, or do what changes in transform=, which comes after it"
            )

    def stats(self) -> CacheStats:
        """Return what was found and read until now, and what there is."""
        file = self.file
        if file is None:
            return CacheStats(0, 0, 0, 0, 0, 0)
        file.map()
        hits, misses, left_out, damaged = file.counts[:4]
        return CacheStats(hits, misses, left_out, damaged, file.held()[0], file.used)

    def room(self, record_size: int) -> Room:
        """Return what the cache will take; ``record_size``: bytes a sample, if it has none."""
        file = self.file
        assert file is not None
        file.map()
        held, size = file.held()
        most = self._most
        if self.path is not None:
            disk = os.statvfs(self.path)
            most = min(most, file.used + disk.f_bavail * disk.f_frsize)
        each = size / held if held else record_size
        samples = min(self._count, int((most - self._begins) // each))
        total = int(self._begins + samples * each)
        return Room(samples, self._count, total, self.path is not None)

    def __repr__(self) -> str:
        """Return what it is, in a line."""
        where = "in memory" if self.path is None else f"in {self.path}"
        return f"<Cache of {type(self.dataset).__name__}, {self._count:,} samples, {where}>"


def _count_of(dataset: Any) -> int:
    """Return how many samples a dataset has; TypeError for what has none by number."""
    kind, remedy = type(dataset).__name__, ""
    if hasattr(type(dataset), "__ringfeed_source__"):
        remedy = f"which has an order of its own; make a {kind} of caches"
    elif isinstance(dataset, tuple | dict | np.ndarray):
        remedy = "whose arrays are gathered in C as they are; give it to the loader"
    elif is_iterable(dataset) or not callable(getattr(type(dataset), "__getitem__", None)):
        remedy = "whose elements have no numbers; give an object with __len__ and __getitem__"
    elif (count := batches_in(dataset)) is not None:
        return count
    else:
        remedy = "which has no length; give it a __len__"
    raise TypeError(f"Cache() of a {kind}, {remedy}")


@contextmanager
def _first_epoch() -> Iterator[None]:
    """Have a sample draw as in epoch 0, in whichever it is read; what follows draws anew."""
    context = installed.context or making.get() or SampleContext(0)
    before = context.epoch, context.index
    context.epoch = 0
    try:
        yield
    finally:
        context.epoch, context.index = before


# ---- its source ----


class CacheSource(IndexedSource):
    """A dataset whose samples are found in a cache."""

    may_wait = True

    def __init__(
        self, cache: Cache, terms: Terms, open_source: Callable[[Any, Terms], Source]
    ) -> None:
        """Open the dataset, which may be refused."""
        inner = open_source(cache.dataset, terms)
        super().__init__(cache, cache, terms._replace(waits=terms.waits or inner.is_async))
        self._inner = inner
        self.is_async, self.hooks, self.has_hooks = inner.is_async, inner.hooks, inner.has_hooks

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs."""
        return {name: value for name, value in super().__getstate__().items() if name != "_inner"}

    def run_hook(self, name: str) -> bool:
        """Call a hook of the dataset."""
        return self._inner.run_hook(name) and self.is_sized

    def check(self) -> None:
        """Raise StateError where the dataset has changed."""
        self.given.check()

    def planned(self, plan: Plan) -> Plan:
        """Have a plan say what the cache takes; PlanError where that is not there."""
        leaves = self.spec.leaves
        size = 64 + sum(math.prod(one.shape) * one.given_dtype.itemsize for one in leaves)
        room = self.given.room(size)
        if self.given.path is None:
            needed, free = room.size - self.given.file.used, min(free_memory())[0]
            if needed > free:
                raise PlanError(
                    f"the cache needs {show_bytes(needed)}, and {show_bytes(free)} are free; give "
                    "it less memory=, or path="
                )
        return replace(plan, caches=(*plan.caches, room))

    def open(self, dataset: Cache, reader: Reader) -> Fill:
        """Gather rows that are there; read others in the quickest way of the dataset."""
        plain = super().open(dataset.dataset, reader)
        file = dataset.file
        if file is None:
            return plain
        is_only_written = reader.make is None and not self.collates
        leaf = view_of if is_only_written else copy_of
        is_bulk = self.method == "__getitems__"
        read = partial(dataset.many if is_bulk else dataset.read, leaf)
        by_row = reader.by_method(self.method, read)
        # A transform that changes a row has the random numbers of its index.
        gathers = is_only_written and type(reader) is Reader and reader.writer.change is None
        return partial(
            _fill, file, reader, plain, by_row, {} if gathers and not self.whole else None
        )


def _fill(
    file: CacheFile, reader: Reader, plain: Fill, by_row: Fill, columns: dict[Any, Any] | None
) -> bool:
    """Fill a claim from a cache, and by ``plain`` what has killed a worker.

    ``columns``: arrays over one mapping, by the head of their records; None: none may be gathered.
    """
    address = reader.end.claim_address
    first = _records.first_of(address)
    if first is None:
        return plain()
    if columns is None:
        return by_row()
    index, rows = first
    records = file.records  # which another thread may replace
    if columns.get("of") is not records:
        columns.clear()
        columns["of"] = records
    rest = reader.context, reader.failed
    # Most claims have records of the same head as the claim before.
    last: tuple[bytes, Any] | None = columns.get("last")
    is_filled = last and records.gather(address, reader.writer, *last, *rest)
    if is_filled is None and (at := records.find(index)) > 0:
        head = Record(records.memory, at).head
        if head not in columns:
            columns[head] = columns_of(records.memory, head, reader.source.spec)
        if columns[head] is not None and (last is None or head != last[0]):
            columns["last"] = last = head, columns[head]
            is_filled = records.gather(address, reader.writer, *last, *rest)
    if is_filled is None:
        return by_row()
    file.add(HITS, rows)
    return is_filled

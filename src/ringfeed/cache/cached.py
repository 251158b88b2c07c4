"""`Cache`: a dataset that reads each sample of another one once; and its source.

A worker of a loader fills a claim from the records without any Python code where all of its rows
are there and are the loader's rows byte for byte. Else each row comes by way of the dataset: from
its record, or read and kept.
"""

from __future__ import annotations

import copy
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
    GAP,
    HITS,
    MISSING,
    CacheFile,
    Facts,
    begins_of,
    columns_of,
    in_memory,
    on_disk,
)
from ringfeed.cache.fingerprint import fingerprint
from ringfeed.cache.samples import copy_of, head_of, view_of
from ringfeed.datasets.base import HOOKS
from ringfeed.datasets.indexed import IndexedSource, batches_in
from ringfeed.datasets.reader import Reader
from ringfeed.errors import PlanError, StateError
from ringfeed.monitor.free_memory import free_memory
from ringfeed.orders.rng import SampleContext, installed, making
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.reader import Fill
    from ringfeed.datasets.terms import Terms
    from ringfeed.engine.plan import Plan


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
    memory: the bytes that the cache may take ("8GB"), to within a sample for each worker; None:
        only with ``path``, no limit.
    path: a file on a local disk, for other runs, too, also at once. Without it the cache lies in
        memory and ends with this object and its loaders. A path in ``/dev/shm`` is one copy in
        memory for ranks that are started one by one, until you remove it.
    key: what the fingerprint does not cover, such as the version of the files that are read.

    A sample that does not fit is read from the dataset in each epoch. Batches, orders, random
    numbers and states are those of a loader without a cache. A process that is killed, or a full
    disk, never leaves a wrong sample. A sample is read again if its record fails its checksum.

    A file belongs to a fingerprint: the dataset's attribute ``fingerprint``, else a hash of its
    pickled state and of the code of yours that it calls. StateError if the file has samples of
    another one: it is never overwritten, as another run may need it; and if the dataset has changed
    when an epoch begins, as far as docs/cache.md says. TypeError for datasets without a length or
    samples by number, and for a ``key`` that is no text; ValueError for neither ``memory`` nor
    ``path``; PlanError if ``memory`` or the disk does not hold the table alone.
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
        if not isinstance(key, str | None):
            raise TypeError(f"key={key!r} is no text, as in key='jpegs of May'")
        count = _count_of(dataset)
        begins = begins_of(count)
        most = math.inf if memory is None else parse_memory(memory)
        if most <= begins:
            raise PlanError(
                f"memory={memory!r} holds no sample: the table of {count:,} samples takes "
                f"{show_bytes(begins)}; allow more"
            )
        self.dataset = dataset
        self.path = None if path is None else str(Path(path).absolute())
        self._is_async = inspect.iscoroutinefunction(type(dataset).__getitem__)
        self._then, identity = fingerprint(dataset), 0
        if self.path is None:
            file = in_memory(begins)
        else:
            name = type(dataset).__qualname__
            if self._then is None:
                raise StateError(
                    f"a {name} has no fingerprint, which a file needs: pickle does not take it, or "
                    "it contains itself; give it one, as in dataset.fingerprint = 'photographs 1'"
                )
            known = {"dataset": name, "key": key, "fingerprint": self._then}
            told = {one: text and shorten(text, 200) for one, text in known.items()}
            file, identity = on_disk(self.path, begins, {"samples": count, **told})
        facts = Facts(count, most, int.from_bytes(os.urandom(8), "little"), identity)
        self._file = CacheFile(file, reserve("ringfeed-cache-counts", mmap.PAGESIZE), facts)

    @property
    def file(self) -> CacheFile:
        """The file in this process."""
        if self._file.pid != os.getpid():
            self._file = copy.copy(self._file)
        return self._file

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

    def __getattr__(self, name: str) -> Any:
        """Return ``__getitems__`` or a hook, if the dataset has it."""
        if name not in {"__getitems__", *HOOKS}:
            message = f"'Cache' object has no attribute {name!r}"
            raise AttributeError(message)
        own = getattr(self.dataset, name)
        return own and (
            partial(self.run_hook, own) if name in HOOKS else partial(self.many, copy_of)
        )

    def __getitem__(self, index: int) -> Any:
        """Return a sample, which the caller may change; of an async dataset, what to await."""
        return self.read(copy_of, index)

    def read(self, leaf: Any, index: int) -> Any:
        """Return a sample; ``leaf`` makes its leaves, where it is found."""
        found = self.file.sample(index, leaf)
        if self._is_async:
            return self._awaited(index, found)
        if found is MISSING:
            with _first_epoch():
                found = self.file.keep(index, self.dataset[index])
        return found

    async def _awaited(self, index: int, found: Any) -> Any:
        if found is MISSING:
            with _first_epoch():
                found = self.file.keep(index, await self.dataset[index])
        return found

    def many(self, leaf: Any, indices: Sequence[int]) -> list[Any]:
        """Return the samples of indices; those that are missing are read together."""
        file = self.file
        found = [file.sample(index, leaf) for index in indices]
        missing = [place for place, one in enumerate(found) if one is MISSING]
        if missing:
            read = [*self.dataset.__getitems__([indices[place] for place in missing])]
            for place, sample in zip(missing, read, strict=False):
                found[place] = file.keep(indices[place], sample)
            # Too few or too many, which the caller counts.
            found = [one for one in found if one is not MISSING] + read[len(missing) :]
        return found

    # ---- what it is ----

    def check(self, then: str | None = None) -> None:
        """Raise StateError where the dataset has changed since it had this fingerprint.

        By default the first one, unless this process has read it: that may change a dataset.
        """
        is_known = then is not None or not self.file.is_read
        if is_known and fingerprint(self.dataset) not in {then or self._then, None}:
            raise StateError(
                "the dataset has changed since its Cache was made, whose samples are those of "
                "before; make a new Cache, or do what changes in transform=, which comes after it"
            )

    def run_hook(self, hook: Callable[[], Any]) -> Any:
        """Call a hook of the dataset; StateError where that changes it."""
        before = fingerprint(self.dataset)
        result = hook()
        self.check(before)
        return result

    def stats(self) -> CacheStats:
        """Return what was found and read until now, and what there is."""
        file = self.file
        return CacheStats._make([*file.counts[:4], file.held()[0], file.used])

    def room(self, record_size: int) -> Room:
        """Return what the cache will take; ``record_size``: bytes a sample, if it has none."""
        file = self.file
        (held, size), (count, most, *_) = file.held(), file.facts
        if self.path is not None:
            most = min(most, file.used + file.free)
        each, begins = size / held if held else record_size, begins_of(count) + GAP
        samples = min(count, int((most - begins) // each))
        return Room(samples, count, int(begins + samples * each), self.path is not None)

    def __repr__(self) -> str:
        """Return what it is, in a line."""
        where = "in memory" if self.path is None else f"in {self.path}"
        kind = type(self.dataset).__name__
        return f"<Cache of {kind}, {self._file.facts.samples:,} samples, {where}>"


def _count_of(dataset: Any) -> int:
    """Return how many samples a dataset has; TypeError for what has none by number."""
    kind, remedy = type(dataset).__name__, ""
    if isinstance(dataset, Cache):
        remedy = "which keeps its samples already; give that to the loader"
    elif hasattr(type(dataset), "__ringfeed_source__"):
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
        self.consist_of([inner])

    def run_hook(self, name: str) -> bool:
        """Call a hook of the dataset; StateError where that changes it."""
        has_run: bool = self.given.run_hook(partial(super().run_hook, name))
        return has_run

    def check(self) -> None:
        """Raise StateError where the dataset has changed."""
        self.given.check()

    def planned(self, plan: Plan) -> Plan:
        """Have a plan say what the cache takes; PlanError where that is not there."""
        # Of a Pack only rows have a spec: a sample is kept by now, unless that was given.
        leaves = self.spec.leaves if hasattr(self, "spec") else ()
        size = 64 + sum(math.prod(one.shape) * one.given_dtype.itemsize for one in leaves)
        room = self.given.room(size)
        if not room.is_file:
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
        is_only_written = reader.make is None and not self.collates
        leaf = view_of if is_only_written else copy_of
        read = dataset.many if self.method == "__getitems__" else dataset.read
        by_row = reader.by_method(self.method, partial(read, leaf))
        # A transform that changes a row has the random numbers of its index.
        gathers = is_only_written and type(reader) is Reader and reader.writer.change is None
        gather = Gathering(dataset.file, reader).gather if gathers and not self.whole else None
        return partial(_fill, reader, plain, by_row, gather)


def _fill(reader: Reader, plain: Fill, by_row: Fill, gather: Any) -> bool:
    """Fill a claim from a cache, and by ``plain`` what has killed a worker."""
    first = _records.first_of(reader.end.claim_address)
    if first is None:
        return plain()
    done: bool | None = gather(*first) if gather else None
    return by_row() if done is None else done


class Gathering:
    """Fills claims whose records have one head, most often that of the claim before."""

    def __init__(self, file: CacheFile, reader: Reader) -> None:
        """Fill the claims of a reader."""
        self._file, self._reader = file, reader
        self._of: Any = None  # what the columns are of
        self._columns: Any = None

    def gather(self, index: int, rows: int) -> bool | None:
        """Fill a claim that begins with this index; None where not all can be gathered."""
        reader, records = self._reader, self._file.records  # which another thread may replace
        if (at := records.find(index)) < 0:
            return None
        head = head_of(records.memory, at)
        if (head, records) != self._of:
            self._of = head, records
            self._columns = columns_of(records.memory, head, reader.source.spec)
        if self._columns is None:
            return None
        given = head, self._columns, reader.context, reader.failed
        done = records.gather(reader.end.claim_address, reader.writer, *given)
        if done is not None:
            self._file.add(HITS, rows)
        return done

"""`Pack` without lengths: they are learnt while the samples are read, a window at a time.

    Loader of the samples ──▶ chunks ──▶ PackedEpoch ──▶ Window ──▶ Loader of the rows
    its workers transform                in the consumer            fills its own slots

Measured       what the workers make of a sample: arrays of one length
Window         the rows of a window's samples
PackedEpoch    an epoch of rows, in their order
Packing        the dataset of the loader of rows, and its order
PackingSource  its source

Which rows come is part of the interface, and no later version may change it. The samples come in
the loader's order. Window k has those from k * W to below (k + 1) * W, in windows of W. Those that
are not empty are sorted by length, the longest first, those of one length as they came, and first
fit decreasing finds them rows (`orders.packing.first_fit`). Its R rows come in the order of
``permute(places, R, seed_k, 0)``, where seed_k is the number in the 16 bytes of ``derive("pack",
(seed, k), 16)``, little-endian. A row has its samples as they were sorted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._checks import check_integer, error_of
from ringfeed._classes import copied
from ringfeed._failure import NOT_CTRL_C
from ringfeed.datasets.functions import Functions, of_one
from ringfeed.datasets.indexed import IndexedSource
from ringfeed.datasets.pack import (
    CHUNKS,
    PackSource,
    check_batches,
    check_names,
    leaves_of,
    write_extras,
)
from ringfeed.orders.checks import check_at_most, check_fields
from ringfeed.orders.packing import first_fit
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import installed, seed_of
from ringfeed.orders.sampler import Epoch, Sampler
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.pack import Pack
    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.permutation import Indices

MOST_MARKS = 4096  # windows whose beginnings are kept: more than frameworks take ahead of the step
_OF_SAMPLES = (
    *("shuffle", "sampler", "transform", "worker_init_fn", "workers", "concurrency", "backend"),
    *("reseed", "timeout_s", "on_stall", "on_error", "max_attempts"),
)


# ---- the loader of samples ----


class Measured:
    """Makes arrays of one length of a sample, by way of the user's ``transform``."""

    def __init__(self, transform: Any, pack: Pack) -> None:
        self.transform, self.max_length = transform, pack.max_length
        self.length_of: Any = pack.length_of

    def ragged(self, spec: Spec) -> Spec:
        """Return the spec of all samples, from that of the first one."""
        if any(leaf.form for leaf in spec.leaves):
            return spec
        tree = {}
        for name, array in spec.tree.items():
            beside = array.shape[1:]
            most = (self.max_length, *beside)
            tree[name] = Array((None, *beside), array.dtype, max_shape=most, form="ragged")
        return Spec(tree)

    @cached_property
    def _change(self) -> Callable[[Any], Any]:
        return of_one(self.transform)

    def __call__(self, sample: Any) -> dict[str, Any]:
        """Return the sample's elements; SpecError where they are none, or do not fit a row."""
        assert installed.context is not None
        where = f"dataset[{installed.context.index}]"
        if self.transform is not None:
            given = copied(sample)  # the dataset's own may not be changed in place
            made = self._change(given)
            sample = given if made is None else made
        leaves = leaves_of(sample, where)
        count = self._count(sample, leaves, where)
        for name, leaf in leaves.items():
            if len(leaf) < count or (self.length_of is None and len(leaf) > count):
                path, got = f"{where}: sample[{name!r}]", f"has {len(leaf)} elements"
                remedy = "return leaves of one length, or have length_of= say how many count"
                raise error_of(path, got, count, remedy)
        if count > self.max_length:
            expected = f"at most max_length={self.max_length}, as samples stay whole"
            remedy = "raise max_length=, or cut the sample in transform= or in __getitem__"
            raise error_of(where, f"has {count} elements", expected, remedy)
        return {name: leaf[:count] for name, leaf in leaves.items()}

    def _count(self, sample: Any, leaves: dict[str, Any], where: str) -> int:
        """Return how many elements of each leaf the user wants."""
        if self.length_of is None:
            return len(next(iter(leaves.values()), ()))
        try:
            return check_integer("length_of(sample)", self.length_of(sample), 0)
        except NOT_CTRL_C as error:
            got = f"makes length_of= fail by {type(error).__qualname__}: {error}"
            raise error_of(where, got, "an int of 0 or more", "correct the function") from error


def reading(pack: Pack, order: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the loader of samples, from those of the loader of rows.

    ValueError for what does not go with rows that are made in the consumer.
    """
    refused = {"batch_sampler=", "collate_fn="}
    found = [name for name in refused if given[name[:-1]] is not None]
    if found or order.sampler.carries_weights:
        raise ValueError(
            f"{(*found, order.sampler.given_as)[0]} is not for a Pack without lengths=, whose "
            "rows are made of the samples when they were read; give shuffle=, another sampler=, "
            "transform= for samples or batch_transform= for rows"
        )
    Functions(given["transform"]).check(1)
    return {
        **{name: given[name] for name in _OF_SAMPLES},
        "dataset": pack.dataset,
        "batch_size": pack.chunk,
        "seed": order.seed,
        "transform": Measured(given["transform"], pack),
        "slots": CHUNKS,
        "copy": True,
    }


# ---- the rows, in the consumer ----


class Window:
    """The rows that are made of some samples, from row ``first`` of the epoch on."""

    def __init__(self, first: int, chunks: list[dict[str, Any]], room: int, seed: int) -> None:
        names = chunks[0] if chunks else ()
        self._values = {
            name: np.concatenate([chunk[name].values for chunk in chunks]) for name in names
        }
        each = [next(iter(chunk.values())).lengths for chunk in chunks]
        self._lengths = lengths = np.concatenate([np.empty(0, np.int64), *each])
        self._begins = np.cumsum(lengths) - lengths
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        bins = first_fit(lengths[order], room)
        parts = np.cumsum(np.bincount(bins))[:-1]
        rows = np.split(order[np.argsort(bins, kind="stable")], parts) if bins.size else []
        self._rows = [rows[place] for place in permute(np.arange(len(rows)), len(rows), seed, 0)]
        self.first, self.end = first, first + len(rows)

    def write(self, row: int, out: dict[str, Any], *, has_extras: bool) -> None:
        """Write a row of the epoch."""
        samples = self._rows[row - self.first]
        lengths, used = self._lengths[samples], 0
        for begin, length in zip(self._begins[samples].tolist(), lengths.tolist(), strict=True):
            for name, values in self._values.items():
                out[name][used : used + length] = values[begin : begin + length]
            used += length
        for name in self._values:
            out[name][used:] = 0
        if has_extras:
            write_extras(out, lengths, used)


class _At(NamedTuple):
    """How far the packing is; it changes as a whole, so that Ctrl-C leaves it as it was."""

    samples: int  # where the next window begins, in the order of the samples
    rows: int  # where it begins, in that of the rows
    chunks: list[list[Any]]  # read for it and later ones: a batch or an error, and where it ends
    windows: list[Window]  # whose rows may be asked for
    marks: list[dict[str, Any]]  # states at the beginnings of windows


class PackedEpoch(Epoch):
    """The rows of an epoch: windows are read and packed as their rows are asked for."""

    most_ahead = 1
    waits = True

    def __init__(self, packing: Packing, number: int, start: int, state: Any) -> None:
        """Begin at row ``start``; the samples are read from the window of the state on."""
        runner = packing.runner
        state = state or {"rows": 0, "samples": 0, "order": None, "hooks": None}
        runner.set_seed(packing.seed)
        place = (number, *(state[name] for name in ("samples", "order", "hooks")))
        runner.go_to(type(runner.position.next)(*place))
        self._pack, self._seed, self._next = packing.pack, packing.seed, start
        self._walk: Any = iter(packing.samples)
        self._running = runner.position.running
        self._is_over = False
        self._at = _At(state["samples"], state["rows"], [], [], [state])

    def take(self, count: int) -> Indices:
        """Return the numbers of the next rows, whose windows are packed."""
        while (at := self._at).rows < self._next + count and (at.chunks or not self._is_over):
            self._add_window()
        stop = min(self._next + count, at.rows)
        if at.windows:
            # The next window is read as this one is used up, so that no batch waits for all of it.
            last, chunk = at.windows[-1], self._pack.chunk
            used = self._pack.window // chunk * (stop - last.first) // (last.end - last.first)
            self._read_to(at.samples + used * chunk)
        rows = np.arange(self._next, stop)
        self._next = stop
        return rows

    def state(self, position: int) -> dict[str, Any]:
        """Return where the window of a row begins, in rows and in samples."""
        return next(mark for mark in self._at.marks[::-1] if mark["rows"] <= position)

    def write(self, row: int, out: dict[str, Any], behind: int) -> None:
        """Write a row; windows that end ``behind`` rows ahead of it are not asked for again."""
        windows = [window for window in self._at.windows if window.end > row - behind]
        self._at = self._at._replace(windows=windows)
        window = next(window for window in windows if window.end > row)
        window.write(row, out, has_extras=bool(self._pack.extras))

    def _add_window(self) -> None:
        """Pack the samples of the next window, once they are read; raise what they have raised."""
        at, pack = self._at, self._pack
        stop = at.samples + pack.window
        self._read_to(stop)
        count = bisect_right(at.chunks, stop, key=itemgetter(1))
        for chunk in at.chunks[:count]:
            if isinstance(error := chunk[0], Exception):
                chunk[0] = None
                raise error
        found = [batch for batch, _ in at.chunks[:count] if batch is not None]
        seed = seed_of("pack", (self._seed, at.samples // pack.window))
        window = Window(at.rows, found, pack.max_length, seed)
        order, hooks = self._running.order.state(stop), self._running.begun.hooks
        mark = {"rows": window.end, "samples": stop, "order": order, "hooks": hooks}
        windows = [*at.windows, *[window] * (window.end > max(self._next, at.rows))]
        marks = [*at.marks[1 - MOST_MARKS :], mark]
        self._at = _At(stop, window.end, at.chunks[count:], windows, marks)

    def _read_to(self, stop: int) -> None:
        """Read samples up to a position, or to the end of the epoch."""
        chunks, running = self._at.chunks, self._running
        while True:
            if chunks and len(chunks[-1]) == 1:
                read = running.progress.finished_batches * self._pack.chunk
                chunks[-1].append(running.begun.samples + read)
            if self._is_over or (chunks[-1][1] if chunks else self._at.samples) >= stop:
                return
            self._read_chunk(chunks)

    def _read_chunk(self, chunks: list[list[Any]]) -> None:
        progress = self._running.progress
        before, finished = len(chunks), progress.finished_batches
        try:
            # C code takes a batch and keeps it, so that Ctrl-C loses none.
            chunks.extend(map(list, zip(islice(self._walk, 1), strict=True)))
        except Exception as error:
            if progress.finished_batches == finished:
                raise
            chunks.append([error])  # of a sample: it is raised in the place of its window
        if len(chunks) == before:
            if self._walk.failure is not None:
                raise self._walk.failure
            self._is_over = True


# ---- the loader of rows ----


class Packing(Sampler):
    """The rows of a `Pack` as a dataset, and their order, which only reading shows the end of."""

    pure = False
    ends_unsaid = True
    why_no_length = "rows are known once their samples were read"
    epoch_now: PackedEpoch

    def __init__(self, pack: Pack, samples: Any, runner: Any) -> None:
        """``runner``: of the loader of the samples."""
        self.pack, self.samples, self.runner = pack, samples, runner
        self.tree, self.behind = dict[str, Array](), 1

    def __ringfeed_source__(self, terms: Terms, _: Any) -> Source:
        """Return the source of the rows."""
        return PackingSource(self, terms)

    def check_state(self, start: int, state: Any) -> None:
        """Raise StateError unless this is the state of a window's beginning."""
        if state is not None:
            check_fields(state, rows=0, samples=0, order=None, hooks=None)
            check_at_most(state, "rows", start, "the state's samples")
            self.runner.position.sampler.check_state(state["samples"], state["order"])

    def epoch(self, number: int, start: int = 0, state: Any = None) -> PackedEpoch:
        """Return the rows of an epoch; the rows of another cannot be read any more."""
        self.epoch_now = PackedEpoch(self, number, start, state)
        return self.epoch_now

    def read_into(self, row: int, out: dict[str, Any]) -> None:
        """Write a row of the newest epoch."""
        self.epoch_now.write(row, out, self.behind)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return a row in new arrays."""
        out = {name: np.empty(array.shape, array.dtype) for name, array in self.tree.items()}
        self.read_into(row, out)
        return out


class PackingSource(PackSource):
    """The source of rows that the consumer makes; the samples have a loader of their own."""

    local_only = True
    changes = False

    def __init__(self, packing: Packing, terms: Terms) -> None:
        pack, sample = packing.pack, packing.samples.spec.tree
        check_batches(terms)
        check_names(pack.extras, sample)
        tree = {name: Array(array.shape, array.dtype) for name, array in sample.items()}
        packing.tree = tree | pack.extras
        IndexedSource.__init__(self, pack, packing, terms)
        packing.behind = self.indices if terms.part is None else terms.part.step
        self.samples_size = packing.samples.memory

    def learn(self) -> None:
        """Set the spec: that of the samples, but for their length, unless it is given."""
        if self.terms.spec is None:
            self.accept(Spec(self.dataset.tree), self.indices)
        else:
            super().learn()

    def planned(self, plan: Any) -> Any:
        """Have a plan say what the datasets of the samples take."""
        return replace(plan, caches=self.dataset.samples.plan.caches)

    def sampler(self, order: Sampler) -> Sampler:  # noqa: ARG002 - the samples have it
        """Return the order of the rows."""
        packing, pack = self.dataset, self.given
        samples = packing.runner.position.sampler
        packing.seed, packing.sample_count = self.seed, samples.length
        packing.order = f"pack:{pack.max_length}:{pack.window}:{samples.order}"
        return packing

    def describe(self, index: int, epoch: int | None = None) -> str:  # noqa: ARG002 - see pack
        """Name a row."""
        return f"row {index} of the Pack"

"""`Pack`: rows of fixed length, each of several samples. `orders.packing` says of which.

Where lengths are learnt as the samples are read, `datasets.learnt` makes the rows.

Pack         what users give a loader
PackedRows   the rows as a dataset, as workers have them: a row is a function of (seed, epoch,
             number), made of samples and of what says where they lie in it
PackSource   its source
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ringfeed._checks import check_choice, check_count, check_integer, error_of
from ringfeed._classes import is_iterable
from ringfeed._failure import NOT_CTRL_C
from ringfeed.datasets.arrays import Rows
from ringfeed.datasets.indexed import IndexedSource
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import installed, reseed
from ringfeed.spec.array import Array, shown
from ringfeed.spec.spec import Spec, plain
from ringfeed.spec.values import from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import ArrayLike, NDArray

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.packing import Packing, Pieces
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler

NAMED = 4  # samples of a row
BARE = "tokens"
EXTRAS = ("segment_ids", "positions", "cu_seqlens")
# Where lengths are learnt: the most elements that are read together, and the least parts of a
# window, of which so many are read ahead.
CHUNK, CHUNKS = 2**17, 16
_RETURN = (
    "return an array of one row an element, a list of numbers, or a dict of these, from __getitem__"
)


class Pack:
    """Rows of ``max_length`` elements, each of several samples, for models of sequences.

        documents = [np.arange(1 + number % 60) for number in range(500)]
        lengths = [len(document) for document in documents]
        pack = ringfeed.datasets.Pack(documents, lengths, max_length=128)
        loader = ringfeed.Loader(pack, batch_size=8, shuffle=True)
        for batch in loader:
            tokens = batch["tokens"]  # (8, 128)
            may_attend = batch["segment_ids"][:, :, None] == batch["segment_ids"][:, None, :]

    dataset: a sample is a sequence: an array whose first axis has the elements, a list of numbers,
        or a dict of these, all of one length. The dataset has a length, and samples by number.
    lengths: of each sample, an integer of 0 or more: an array of one axis, or an iterable. Rows are
        planned from these alone. A sample of length 0 is never read. None: lengths are learnt as
        the samples are read, see below.
    max_length: elements of a row.
    strategy: "ffd": samples stay whole, and first-fit decreasing finds them rows; none may be
        longer than ``max_length``. "wrap": the samples, one after another, are cut every
        ``max_length`` elements, so that only the last row is not full; a sample that is cut is read
        for each of its rows.
    window: samples that are packed together. For "ffd", a larger window means less padding, a
        smaller one rows that differ more from epoch to epoch; default: 2048, or as many as fill 128
        rows. For "wrap", the order is mixed within windows, and the windows come in a mixed order;
        default: 65536.
    segment_ids: whether rows say which element is of which sample.
    length_of: without ``lengths``: a function of a sample, as ``transform`` returns it, that
        returns how many of its first elements count. By default all do.

    A row is a dict of the sample's leaves, each of shape ``(max_length, ...)``, with zeros at the
    end; a sample that is no dict is ``"tokens"``. It also has these int32 leaves:

    - ``segment_ids``: ``(max_length,)``: 1 for the row's first sample (or part of one), 2 for the
      next; 0 for padding.
    - ``positions``: ``(max_length,)``: 0, 1, 2, ... in each segment; 0 for padding.
    - ``cu_seqlens``: ``(m + 1,)``: 0 and the end of each segment, as FlashAttention's functions for
      sequences of different lengths take it; the last end fills the rest. m is the largest number
      of segments in a row; for "wrap" an upper bound.

    The samples of a row are a function of (the loader's seed, epoch, row), defined in
    ``orders.packing``, and any row can be made at once. So ranks and states work as for samples,
    and each epoch has ``len(pack)`` rows. Every sample comes exactly once an epoch. With
    ``shuffle=True`` the rows of "ffd" come mixed, too; those of "wrap" come in the order of their
    samples. It takes 16 bytes a sample, shared by all workers, and for "wrap" 4 MB a worker.

    Each sample has its own random numbers; those of a row, in ``transform``, are those of a batch
    of its samples. An error names sample and row. With ``on_error="skip"`` the row of a failed
    sample is left out. The dataset's ``__getitems__`` is asked for all samples of a row at once; if
    that fails they are read one by one. ``read_into`` is not used.

    **Without lengths**, for a tokeniser that runs in the workers:

        def tokens(number):
            return documents[number].copy()  # or tokenise a text here

        pack = ringfeed.datasets.Pack(range(500), max_length=128)
        loader = ringfeed.Loader(pack, batch_size=8, shuffle=True, transform=tokens, workers=2)

    The workers read samples in the loader's order: any ``shuffle`` or ``sampler``, and ``dataset``
    may be a `Mix`, whose weights count samples. The loader's ``transform`` is for samples,
    ``batch_transform`` for rows. The consumer packs each ``window`` of samples (2048 by default) by
    first fit decreasing when it was read, and copies the elements into the rows. The rows are a
    function of (seed, epoch, window), for any number of workers and ranks. A run that is resumed
    reads its window again. Each rank reads all samples. There is no ``len()``, and ``cu_seqlens``
    has room for as many segments as a window has samples, or a row elements. A sample that is
    longer than a row is an error; an empty one gives no segment. An error of a sample is raised
    before the rows of its window, and the ``chunk`` of samples that were read with it is left out;
    with ``on_error="skip"`` only the sample is.

    Raises TypeError for datasets without samples by number, and for lengths that are no integers;
    ValueError for lengths that are negative, all 0, too long for "ffd" or not of one axis, for a
    max_length or window below 1, for another strategy, or one but "ffd" without lengths, and for
    both lengths and length_of; in a loader, ValueError if the dataset has another number of
    samples, and SpecError for a sample that is no sequence of its length.
    """

    def __init__(  # noqa: PLR0913 - the public parameters
        self,
        dataset: Any,
        lengths: ArrayLike | None = None,
        max_length: int | None = None,
        *,
        length_of: Callable[[Any], int] | None = None,
        strategy: Literal["ffd", "wrap"] = "ffd",
        window: int | None = None,
        segment_ids: bool = True,
    ) -> None:
        from ringfeed.orders.checks import digest  # noqa: PLC0415 - not for workers
        from ringfeed.orders.packing import FFD_WINDOW, STRATEGIES  # noqa: PLC0415 - not for workers

        self.learns = lengths is None
        """Whether lengths are learnt as the samples are read."""
        _check_dataset(dataset, learns=self.learns)
        given = np.empty(0, np.int64) if self.learns else _checked_lengths(lengths)
        self.dataset = dataset
        self.max_length = check_integer("max_length", max_length, 1)
        check_choice("strategy", strategy, (*STRATEGIES,))
        window = check_count("window", window, 1)
        self.strategy, self.segment_ids, self.length_of = strategy, bool(segment_ids), length_of
        if self.learns:
            self._learn(window or FFD_WINDOW)
            return
        if length_of is not None:
            raise ValueError(
                "length_of= is for samples whose lengths are not known, and lengths= says them; "
                "leave one of them out"
            )
        if strategy == "ffd" and (longer := np.flatnonzero(given > self.max_length)).size:
            raise ValueError(
                f"lengths[{longer[0]}] is {given[longer[0]]}, more than "
                f"max_length={self.max_length}, and strategy='ffd' keeps samples whole; raise "
                "max_length=, cut the sample in the dataset, or give strategy='wrap'"
            )
        self.count = given.size
        """Samples."""
        self.packing: Packing = STRATEGIES[strategy](given, self.max_length, window)
        self._add(self.packing.most)
        self.name = f"pack:{strategy}:{digest(given, repr((self.max_length, window)))}"

    def _add(self, most: int) -> None:
        """Know what a row has besides the sample's leaves; ``most``: samples of a row."""
        shapes = ((self.max_length,), (self.max_length,), (most + 1,))
        added = zip(EXTRAS, shapes, strict=True) if self.segment_ids else ()
        self.extras = {name: Array(shape, "int32") for name, shape in added}

    def _learn(self, window: int) -> None:
        """Learn lengths in windows of so many samples, which are read in chunks."""
        if self.strategy != "ffd":
            raise ValueError(
                "strategy='wrap' cuts the samples by their lengths; give lengths=, or leave "
                "strategy= out"
            )
        self.window = window
        most = max(min(CHUNK // self.max_length, window // CHUNKS), 1)
        self.chunk = next(size for size in range(most, 0, -1) if window % size == 0)
        """Samples that are read together."""
        self._add(min(window, self.max_length))

    def __ringfeed_source__(
        self, terms: Terms, open_source: Callable[[Any, Terms], Source]
    ) -> Source:
        """Return the source of the rows."""
        if self.learns:
            raise TypeError(
                "a Pack without lengths= reads its samples by a Loader of its own; give it to a "
                "Loader, or give lengths="
            )
        return PackSource(self, terms, open_source)

    def __len__(self) -> int:
        """Return the rows of an epoch; TypeError where they are not known beforehand."""
        if self.learns:
            raise TypeError("a Pack without lengths= has no length: its rows are not known yet")
        return self.packing.rows

    def __repr__(self) -> str:
        """Return how many samples make how many rows."""
        if self.learns:
            return (
                f"<Pack: rows of {self.max_length}, by windows of {self.window} samples whose "
                "lengths are learnt>"
            )
        return (
            f"<Pack: {self.count} samples in {len(self)} rows of {self.max_length}, by "
            f"{self.strategy!r}>"
        )


# ---- what users give ----


def _check_dataset(dataset: Any, *, learns: bool) -> None:
    """Refuse what has no samples by number; of a Mix the lengths cannot be known beforehand."""
    from ringfeed.datasets.mix import Mix  # noqa: PLC0415 - not for workers

    if learns and isinstance(dataset, Mix):
        return
    if isinstance(dataset, Mix | Pack):
        raise TypeError(
            f"the dataset of Pack() is a {type(dataset).__name__}, which has an order of its own; "
            "give a dataset"
        )
    if is_iterable(dataset):
        raise TypeError(
            f"the dataset of Pack() is an iterable (a {type(dataset).__name__}), whose samples "
            "have no numbers; give an object with __len__ and __getitem__"
        )
    if not isinstance(dataset, tuple | dict) and not hasattr(type(dataset), "__len__"):
        raise TypeError(
            f"the dataset of Pack() (a {type(dataset).__name__}) has no __len__; add one"
        )


def _checked_lengths(lengths: Any) -> Indices:
    from ringfeed.orders.checks import checked_array, refuse_where  # noqa: PLC0415 - no worker

    found = checked_array("lengths is", lengths, "iu", "integers")
    refuse_where(found < 0, "lengths", found, "an integer of 0 or more")
    if not found.any():
        raise ValueError("lengths has no sample of 1 or more, so there is no row")
    return found.astype(np.int64)


# ---- in workers ----


class PackedRows:
    """The rows as workers have them, of the seed and the epoch that the thread's context says."""

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, pack: Pack, *, reseeds: bool) -> None:
        self.dataset = dataset
        self.mixes = False
        """Whether each epoch has others."""
        self._packing, self._max_length = pack.packing, pack.max_length
        self._extras, self._reseeds = pack.extras, reseeds

    def __len__(self) -> int:
        return self._packing.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return a row in new arrays."""
        return self._packed(row, None)

    def read_into(self, row: int, out: dict[str, Any]) -> None:
        """Write a row."""
        self._packed(row, out)

    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Return what a row is made of."""
        return self._packing.pieces(row, seed if self.mixes else None, epoch)

    def _packed(self, row: int, out: dict[str, Any] | None) -> dict[str, Any]:
        context = installed.context
        assert context is not None
        pieces = self.pieces(row, context.seed, context.epoch)
        samples = pieces.samples.tolist()
        many = None if self._reseeds else getattr(self.dataset, "__getitems__", None)
        if callable(many) and len(samples) > 1:
            context.index = None  # of no sample: `rng()` says so
            with suppress(Exception):  # one by one, it is known which sample is at fault
                return self._put_together(row, out, pieces, many([*samples]))
        return self._put_together(row, out, pieces, self._one_by_one(samples, row))

    def _put_together(
        self, row: int, out: dict[str, Any] | None, pieces: Pieces, found: Iterable[Any]
    ) -> dict[str, Any]:
        """Make a row of its samples."""
        samples, begins, ends = (part.tolist() for part in pieces)
        used = 0
        for sample, begin, end, value in zip(samples, begins, ends, found, strict=True):
            where = _where(sample, row)
            leaves = self._leaves(sample, value, where)
            out = self._empty(leaves) if out is None else out
            self._check_fits(leaves, out, where)
            for name, leaf in leaves.items():
                out[name][used : used + end - begin] = leaf[begin:end]
            used += end - begin
        assert installed.context is not None
        assert out is not None
        installed.context.index = tuple(samples)
        for name in out.keys() - self._extras.keys():
            out[name][used:] = 0
        if self._extras:
            write_extras(out, np.array(ends) - begins, used)
        return out

    def _one_by_one(self, samples: list[int], row: int) -> Iterator[Any]:
        """Give samples, each read with its own random numbers."""
        context = installed.context
        assert context is not None
        for sample in samples:
            context.index = sample
            try:
                if self._reseeds:
                    reseed(context)
                found = self.dataset[sample]
            except NOT_CTRL_C as error:
                what = f"{_where(sample, row)} raised {type(error).__qualname__}: {error}"
                raise FunctionError(what.removesuffix(": ")) from error
            yield found

    def _leaves(self, sample: int, value: Any, where: str) -> dict[str, NDArray[Any]]:
        """Return the leaves of a sample, all of the length that was said."""
        return leaves_of(value, where, int(self._packing.lengths[sample]))

    def _empty(self, leaves: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Return a row of zeros for samples of such leaves."""
        check_names(self._extras, leaves)
        rows = {
            name: np.zeros((self._max_length, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in leaves.items()
        }
        extras = {name: np.zeros(array.shape, array.dtype) for name, array in self._extras.items()}
        return {**rows, **extras}

    def _check_fits(self, leaves: dict[str, NDArray[Any]], out: dict[str, Any], where: str) -> None:
        """Refuse a sample that differs from those before it in more than its length."""
        names = [name for name in out if name not in self._extras]
        if leaves.keys() != {*names}:
            raise error_of(
                f"{where}: sample",
                f"has the keys {[*leaves]}",
                str(names),
                "return the same keys for every index",
            )
        for name, leaf in leaves.items():
            expected, shape = out[name].dtype, out[name].shape[1:]
            if (leaf.dtype, leaf.shape[1:]) != (expected, shape):
                raise error_of(
                    f"{where}: sample[{name!r}]",
                    f"has {leaf.dtype} elements of shape {leaf.shape[1:]}",
                    f"{expected} of shape {shape}",
                    "return elements of one dtype and shape for every index",
                )


def _where(sample: int, row: int) -> str:
    return f"dataset[{sample}] (row {row} of the Pack)"


def check_batches(terms: Terms) -> None:
    """Refuse whole batches."""
    if terms.batch_size is None:
        raise ValueError(
            "Pack makes rows, of which the loader makes batches; with batch_size=None leave Pack "
            "out"
        )


def check_names(extras: Iterable[str], leaves: Iterable[str]) -> None:
    """Refuse samples with leaves of the names that a row's own leaves have."""
    if clash := [name for name in extras if name in leaves]:
        raise SpecError(
            f"the samples of the Pack have {clash[0]!r} of their own, which Pack() adds; give "
            "segment_ids=False, or leave it out in __getitem__"
        )


def leaves_of(sample: Any, where: str, length: int | None = None) -> dict[str, NDArray[Any]]:
    """Return the leaves of a sample by their names; ``length``: of all, where it is known."""
    found = plain(sample)
    leaves = found if isinstance(found, dict) else {BARE: found}
    return {
        name: _sequence(
            leaf,
            f"{where}: sample[{name!r}]" if leaves is found else f"{where}: sample",
            length,
        )
        for name, leaf in leaves.items()
    }


def _sequence(leaf: Any, where: str, length: int | None) -> NDArray[Any]:
    """Return a leaf as an array of one row an element; Python's floats become float32."""
    found = _from_list(leaf) if isinstance(leaf, list) else from_array(leaf, where)
    if found is None or not found.ndim:
        got = f"is the list {leaf}" if isinstance(leaf, list) else f"is {shown(leaf)}"
        raise error_of(where, got, "a sequence of numbers, or of lists of one length", _RETURN)
    if length not in {None, len(found)}:
        raise error_of(
            where,
            f"has {len(found)} elements",
            f"{length}, as lengths= says",
            "give Pack() the lengths of the samples as __getitem__ returns them",
        )
    return found


def _from_list(leaf: list[Any]) -> NDArray[Any] | None:
    """Return a list of numbers, or of lists of them, as an array; None for any other list."""
    try:
        found = np.asarray(leaf or np.empty(0, np.int64))
    except ValueError:  # lists of different lengths
        return None
    if found.dtype == np.float64:
        return found.astype(np.float32)
    return found if found.dtype.kind in "biufc" else None


def write_extras(out: dict[str, Any], lengths: NDArray[Any], used: int) -> None:
    """Write segment ids, positions and cumulated lengths of a row."""
    ids, positions, ends = (out[name] for name in EXTRAS)
    count = lengths.size
    ends[0] = 0
    np.cumsum(lengths, out=ends[1 : count + 1])
    ends[count + 1 :] = used
    ids[:used] = np.repeat(np.arange(1, count + 1), lengths)
    positions[:used] = np.arange(used) - np.repeat(ends[:count], lengths)
    ids[used:] = positions[used:] = 0


# ---- the source ----


class PackSource(IndexedSource):
    """A dataset of packed rows, around the source of the dataset that they are packed from."""

    def __init__(
        self, pack: Pack, terms: Terms, open_source: Callable[[Any, Terms], Source]
    ) -> None:
        """Open the dataset; ValueError or TypeError for what does not fit."""
        check_batches(terms)
        plain = terms._replace(spec=None, functions=None, max_batch_size=None)
        samples = pack.dataset
        is_list = isinstance(
            samples, list
        )  # of arrays, perhaps of one length, which are no columns here
        inner = IndexedSource(samples, samples, plain) if is_list else open_source(samples, plain)
        dataset = inner.dataset if inner.runs_code else Rows(inner.dataset)
        super().__init__(pack, PackedRows(dataset, pack, reseeds=terms.reseed), terms)
        self.consist_of([inner])

    def without_dataset(self) -> PackSource:
        """Return a copy for the engine, which knows rows, and not the dataset."""
        other, other.dataset = super().without_dataset(), copy(self.dataset)
        other.dataset.dataset = None
        return other

    def hold(self, dataset: PackedRows) -> None:
        """Read these rows from now on."""
        dataset.mixes = self.dataset.mixes
        self.dataset = dataset
        self.members[0].hold(self.users_own(dataset))

    def learn(self) -> None:
        """Set the spec, from the first row unless it is given."""
        spec = self.terms.given_spec()
        if spec is not None and self.function is None and not self.collates:
            self._check_given(spec)
            if any(leaf.cast is not None or leaf.casts for leaf in spec.leaves):
                self.method = "__getitem__"  # so that the rows are converted on their way
        super().learn()

    def _check_given(self, spec: Spec) -> None:
        """Refuse a spec that no row has."""
        tree = spec.tree if isinstance(spec.tree, dict) else {}
        extras, most = self.given.extras, self.given.max_length
        sequences = [array for name, array in tree.items() if name not in extras]
        fits = all(isinstance(array, Array) and array.shape[:1] == (most,) for array in sequences)
        if not (sequences and fits and all(tree.get(name) == extras[name] for name in extras)):
            names = "".join(f", {name!r}: {array!r}" for name, array in extras.items())
            raise SpecError(
                f"spec= says {self.terms.spec!r}, but a row of the Pack is a dict as {{{BARE!r}: "
                f"Array(({most},), 'int64'){names}}}; give the keys of your samples in the place "
                f"of {BARE!r}, or leave spec= out"
            )

    def element(self, index: int) -> Any:
        """Return a row; what a sample raises comes out as it is."""
        try:
            return super().element(index)
        except FunctionError as error:
            raise (error.__cause__ or error) from None

    def sampler(self, order: Sampler) -> Sampler:
        """Return the order of the rows; ValueError for another, or for a wrong count of lengths."""
        from ringfeed.orders.permutation import Shuffled  # noqa: PLC0415 - not for workers
        from ringfeed.orders.sampler import Sequential  # noqa: PLC0415 - not for workers

        if type(order) not in {Sequential, Shuffled}:
            raise ValueError(
                f"{order.given_as} is for samples, and a Pack has an order of rows of its own; "
                "give the loader shuffle=True or False"
            )
        pack, count = self.given, self.members[0].length()
        if count != pack.count:
            raise ValueError(
                f"Pack has {pack.count} lengths, but the dataset has {count} samples; give one for "
                "each"
            )
        shuffles = isinstance(order, Shuffled)
        self.is_sized, self.dataset.mixes = True, shuffles
        rows = order if pack.strategy == "ffd" else Sequential()
        rows = rows.bind(len(pack), self.seed)
        rows.order = f"{pack.name}:{'shuffled' if shuffles else 'in order'}"
        rows.sample_count = pack.count
        return rows

    def users_own(self, dataset: PackedRows) -> Any:
        """Return the user's dataset in what was sent to a worker."""
        return dataset.dataset.columns if isinstance(dataset.dataset, Rows) else dataset.dataset

    # ---- in words ----

    def describe(self, index: int, epoch: int | None = None) -> str:
        """Name a row and, of a batch that was delivered, the samples in it."""
        row = f"row {index} of the Pack"
        if epoch is None:
            return row
        samples = self.dataset.pieces(index, self.seed, epoch).samples.tolist()
        more = f" and {len(samples) - NAMED} more" if len(samples) > NAMED else ""
        return f"{row} ({', '.join(f'dataset[{sample}]' for sample in samples[:NAMED])}{more})"

    def describe_all(self, indices: list[int]) -> str:
        """Say at which rows some workers are."""
        return ", ".join(map(self.describe, indices)) or "the Pack"

"""Rows on their way from an actor's slot into a slot of the training's.

An actor sends the rows of a call as arrays over its own slot, one for each leaf. The bridge hands
them, sample by sample, to the writer that fills the slots of local workers. So it converts, checks
and refuses them as that does, and a row that does not fit fails in its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._failure import encode
from ringfeed.datasets.reader import beyond_caches
from ringfeed.orders.rng import SampleContext
from ringfeed.reading import _claims
from ringfeed.spec._rows import RowWriter
from ringfeed.spec.forms import Padded, Ragged, parted
from ringfeed.spec.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.ray.claims import Claim
    from ringfeed.ring._ring import Ring
    from ringfeed.spec.array import AnyArray, Leaf


class Filled(NamedTuple):
    """The rows of one call. Its arrays keep the actor's slot, which the next call needs.

    leaves: in the spec's order, each of ``delivered`` rows; none where all rows failed.
    delivered: the rows that were asked for, or fewer at an iterable's end, or those of a whole
        batch.
    failures: rows of the call, and a record; only the first row has one.
    work_ns, cpu_ns: inside the reader; work_ns is never 0.
    """

    leaves: tuple[AnyArray | Padded | Ragged, ...]
    delivered: int
    failures: tuple[tuple[int, bytes], ...] = ()
    work_ns: int = 1
    cpu_ns: int = 0

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        arrays: Any = (getattr(leaf, "values", leaf) for leaf in self.leaves)
        return sum(array.nbytes for array in arrays)


Part: TypeAlias = "tuple[Sequence[int], Filled]"
"""Rows of a ticket, and the answer of the call that made them."""


def failed(rows: int, record: bytes) -> Filled:
    """Return the answer of a call that made no row; ``record`` is of `_failure.encode`."""
    return Filled((), rows, tuple((row, b"" if row else record) for row in range(rows)))


# ---- what is sent ----


class SentSpec(Spec):
    """A spec whose leaves lie otherwise in a slot; the user's own judges and refuses values."""

    def __init__(self, spec: Spec, leaves: Sequence[Leaf]) -> None:
        """Have these leaves in the structure of the user's spec."""
        super().__init__(spec.tree)
        self.leaves = tuple(leaves)
        self.array = spec.array  # type: ignore[method-assign]
        self.batch_of_one = spec.batch_of_one  # type: ignore[method-assign]
        self.batch_array = spec.batch_array  # type: ignore[method-assign]


def _as_sent(leaf: Leaf, *, is_given: bool) -> Leaf:
    if leaf.form is not None:
        # The total is one of the training's batch, and lengths tell the samples of a batch apart.
        beside = "lengths" if leaf.form.is_padded else leaf.form.beside
        return leaf._replace(form=replace(leaf.form, total=None, beside=beside))
    if leaf.cast is None or not is_given:
        return leaf
    nbytes = leaf.nbytes // leaf.dtype.itemsize * leaf.given_dtype.itemsize
    return leaf._replace(shape=leaf.given_shape, dtype=leaf.given_dtype, nbytes=nbytes, cast=None)


def sent_spec(source: Source) -> Spec:
    """Return the spec of an actor's slot.

    It holds uint8 as it was given, unless the user's code looks at the floats of a batch there.
    """
    return SentSpec(
        source.spec,
        [_as_sent(leaf, is_given=not source.has_batch_transform) for leaf in source.spec.leaves],
    )


# ---- what lands ----


def lander_of(source: Source, offsets: Sequence[int], ring: Ring) -> Lander:
    """Return what lands the rows of a source's actors in the slots of a ring."""
    spec = source.spec
    if source.has_batch_transform:  # they come converted
        spec = SentSpec(spec, [leaf._replace(cast=None) for leaf in spec.leaves])
    return Lander(spec, offsets, ring, source.rows, is_whole=source.whole or source.collates)


class Lander:
    """Writes the rows of actors into claims. Of one thread at a time."""

    def __init__(
        self, spec: Spec, offsets: Sequence[int], ring: Ring, most: int, *, is_whole: bool = False
    ) -> None:
        """Write into slots of ``most`` rows; ``is_whole``: a call makes a batch of any rows."""
        self._spec = spec
        self._writer: Any = RowWriter(spec, offsets, ring, beyond_caches())
        self._most, self._is_whole = most, is_whole

    def land(self, claim: Claim, parts: Sequence[Part]) -> None:
        """Write all parts of a claim, and note which of its rows are not there, and why."""
        failures = {rows[row]: why for rows, filled in parts for row, why in filled.failures}
        first, end = parts[0][1], len(claim.indices)
        samples: dict[int, Any] = {}
        if self._is_whole:
            end = first.delivered
            if first.leaves:
                samples[0] = self._spec.unflatten(first.leaves)
        else:
            for rows, filled in parts:
                end = min([end, *rows[filled.delivered :]])
                samples.update(zip(rows, self._samples_of(filled.leaves), strict=False))
            samples = {row: sample for row, sample in samples.items() if row not in failures}

        def note(row: int, _: int, error: BaseException) -> None:
            if row in samples:
                failures[row] = encode(error)

        row_by_row = iter(claim.rows)
        most = [self._most] if self._is_whole else []
        write: Any = self._writer.batch if self._is_whole else self._writer.samples
        # One row of a ticket is timed here, but all rows of a whole batch.
        took_ns = first.work_ns if self._is_whole else first.work_ns // max(1, first.delivered)
        _claims.note_read(claim.address, took_ns)
        write(claim.address, lambda _: samples[next(row_by_row)], *most, SampleContext(0), note)
        claim.end.cut(end)
        for row in sorted(failures):  # the consumer asks for the record of the first
            claim.end.fail(row, failures[row])

    def _samples_of(self, leaves: Sequence[Any]) -> Iterator[Any]:
        columns = list(map(_column, self._spec.leaves, leaves))
        return map(self._spec.unflatten, zip(*columns, strict=True))


def _column(leaf: Leaf, values: Any) -> Iterable[Any]:
    """Return the values of a leaf, row by row, as arrays."""
    if leaf.form is not None and isinstance(values, Padded):
        return parted(leaf.form, values)
    return (
        values if isinstance(values, Ragged) else (values[row, ...] for row in range(len(values)))
    )

"""What a call of an actor gives: rows in the arrays that the readers have left, and why some are not there."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.spec.array import AnyArray


class Packed(NamedTuple):
    """The samples of a leaf with a form: their elements one after another, and the shape of each sample.

    Of a sample that is not there the shape is -1; of one that did not fit into the leaf's total it
    begins with -2 - its length.
    """

    values: AnyArray
    shapes: AnyArray


class Filled(NamedTuple):
    """The rows of one call. Its arrays are views of the actor's slot, until the next call."""

    leaves: tuple[
        AnyArray | Packed, ...
    ]  # in the spec's order, each of `delivered` rows; none where all rows failed
    delivered: int  # rows: those that were asked for, or fewer at an iterable's end, or those of a whole batch
    failures: tuple[
        tuple[int, bytes], ...
    ] = ()  # rows of the call, and a record; only the first has one
    work_ns: int = 1  # inside the reader; never 0
    cpu_ns: int = 0
    timed: int = 0  # rows of which the next two are the times, all together
    read_ns: int = 0
    write_ns: int = 0
    idle: float = 0.0  # share of its time that the actor has waited for this call

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        arrays = chain.from_iterable(
            leaf if isinstance(leaf, Packed) else [leaf] for leaf in self.leaves
        )
        return sum(array.nbytes for array in arrays)


Part: TypeAlias = (
    "tuple[Sequence[int], Filled]"  # of a claim: rows of the ticket, and the answer of their call
)


def failed(rows: int, record: bytes) -> Filled:
    """Return the answer of a call of which no row could be made; ``record`` says why, as `_failure.encode` does."""
    return Filled((), rows, tuple((row, b"" if row else record) for row in range(rows)))

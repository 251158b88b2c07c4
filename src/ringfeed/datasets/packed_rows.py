"""The rows of a `Pack` as workers have them: a dataset whose row is a function of (seed, epoch, number).

A row is made of samples, each read with its own random numbers, and of what says where they lie in it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed._failure import NOT_CTRL_C
from ringfeed.errors import FunctionError, SpecError
from ringfeed.orders.rng import installed, reseed
from ringfeed.spec.array import Array, shown
from ringfeed.spec.values import from_array, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from ringfeed.orders.packing import Packing, Pieces

BARE = "tokens"
EXTRAS = ("segment_ids", "positions", "cu_seqlens")
_RETURN = "return an array of one row an element, a list of numbers, or a dict of these, from __getitem__"


class PackedRows:
    """The rows as workers have them, of the seed and the epoch that the thread's context says."""

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, packing: Packing, max_length: int, *, has_extras: bool, reseeds: bool) -> None:
        self.dataset = dataset
        self.mixes = False
        """Whether each epoch has others."""
        self._packing = packing
        self._max_length = max_length
        self._has_extras = has_extras
        self._reseeds = reseeds

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

    def extras(self) -> dict[str, Array]:
        """Return what a row has besides the sample's leaves."""
        shapes = ((self._max_length,), (self._max_length,), (self._packing.most + 1,))
        return {name: Array(shape, "int32") for name, shape in zip(EXTRAS, shapes, strict=True) if self._has_extras}

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
            if out is None:
                out = self._empty(leaves)
            self._put(out, leaves, slice(begin, end), used, where)
            used += end - begin
        assert installed.context is not None
        assert out is not None
        installed.context.index = tuple(samples)
        for name, leaf in out.items():
            if name not in EXTRAS or not self._has_extras:
                leaf[used:] = 0
        if self._has_extras:
            _write_extras(out, np.array(ends) - begins, used)
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
                text = f"{_where(sample, row)} raised {type(error).__qualname__}: {error}".removesuffix(": ")
                raise FunctionError(text) from error
            yield found

    def _leaves(self, sample: int, value: Any, where: str) -> dict[str, NDArray[Any]]:
        """Return the leaves of a sample, all of the length that was said."""
        found = plain(value)
        leaves = found if isinstance(found, dict) else {BARE: found}
        expected = int(self._packing.lengths[sample])
        return {
            name: _sequence(leaf, f"{where}: sample[{name!r}]" if leaves is found else f"{where}: sample", expected)
            for name, leaf in leaves.items()
        }

    def _empty(self, leaves: dict[str, NDArray[Any]]) -> dict[str, Any]:
        extras = self.extras()
        if clash := [name for name in extras if name in leaves]:
            message = (
                f"the samples of the Pack have {clash[0]!r} of their own, which Pack() adds; give segment_ids=False, "
                f"or leave it out in __getitem__"
            )
            raise SpecError(message)
        found = {name: np.zeros((self._max_length, *leaf.shape[1:]), leaf.dtype) for name, leaf in leaves.items()}
        return {**found, **{name: np.zeros(array.shape, array.dtype) for name, array in extras.items()}}

    def _put(self, out: dict[str, Any], leaves: dict[str, Any], part: slice, at: int, where: str) -> None:
        """Write a part of a sample into a row."""
        names = [name for name in out if not (self._has_extras and name in EXTRAS)]
        if leaves.keys() != {*names}:
            remedy = "return the same keys for every index"
            raise error_of(f"{where}: sample", f"has the keys {[*leaves]}", str(names), remedy)
        for name, leaf in leaves.items():
            place = out[name]
            if (leaf.dtype, leaf.shape[1:]) != (place.dtype, place.shape[1:]):
                got = f"has {leaf.dtype} elements of shape {leaf.shape[1:]}"
                remedy = "return elements of one dtype and shape for every index"
                raise error_of(f"{where}: sample[{name!r}]", got, f"{place.dtype} of shape {place.shape[1:]}", remedy)
            place[at : at + part.stop - part.start] = leaf[part]


def _where(sample: int, row: int) -> str:
    return f"dataset[{sample}] (row {row} of the Pack)"


def _sequence(leaf: Any, where: str, length: int) -> NDArray[Any]:
    """Return a leaf as an array of one row an element; Python's floats are float32, as everywhere."""
    if isinstance(leaf, list):
        try:
            found = np.asarray(leaf)
        except ValueError:  # lists of different lengths
            raise error_of(where, "is a list of unlike elements", "numbers, or lists of one length", _RETURN) from None
        kind = found.dtype.kind
        found = found.astype(np.float32) if kind == "f" and found.dtype == np.float64 else found
        if kind not in "biufc":
            raise error_of(where, f"is a list that NumPy makes {found.dtype} of", "numbers", _RETURN)
    else:
        array = from_array(leaf, where)
        if array is None or not array.ndim:
            raise error_of(where, f"is {shown(leaf)}" if array is None else "has shape ()", "a sequence", _RETURN)
        found = array
    if len(found) != length:
        remedy = "give Pack() the lengths of the samples as __getitem__ returns them"
        raise error_of(where, f"has {len(found)} elements", f"{length}, as lengths= says", remedy)
    return found


def _write_extras(out: dict[str, Any], lengths: NDArray[Any], used: int) -> None:
    """Write segment ids, positions and cumulated lengths of a row."""
    ids, positions, ends = (out[name] for name in EXTRAS)
    count = lengths.size
    ends[0] = 0
    np.cumsum(lengths, out=ends[1 : count + 1])
    ends[count + 1 :] = used
    ids[:used] = np.repeat(np.arange(1, count + 1), lengths)
    positions[:used] = np.arange(used) - np.repeat(ends[:count], lengths)
    ids[used:] = positions[used:] = 0

"""Leaves whose samples differ in length: what holds them in a batch.

Form      how the samples of a leaf become one array: values, and what comes beside them
Ragged    values one after another, and where each sample begins
Padded    values filled up to one length, and the lengths;  Masked: and which of them are a sample's
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringfeed.spec.array import AnyArray, AnyDtype, Leaf


class Ragged:
    """The samples of a leaf with ``form="ragged"``, or of `Bytes` or `Text`, in one batch.

    values: all elements of the batch, sample after sample, an array over the slot: it keeps the
        slot.
    row_splits: int64, rows + 1 of them: sample i is ``values[row_splits[i]:row_splits[i + 1]]``.

    ``len()`` is the number of samples, ``[i]`` gives one: a view of the values; of `Bytes` a
    memoryview, of `Text` a str. ``list(ragged)`` makes a list.
    """

    __slots__ = ("form", "row_splits", "values")

    def __init__(self, values: AnyArray, row_splits: AnyArray, form: str = "ragged") -> None:
        """Hold these; ``form``: what ``[i]`` gives: "ragged", "bytes" or "text"."""
        self.values = values
        self.row_splits = row_splits
        self.form = form

    @property
    def lengths(self) -> AnyArray:
        """How long each sample is: int64."""
        return np.diff(self.row_splits)

    def copy(self) -> Ragged:
        """Return a copy that keeps no slot."""
        return Ragged(self.values.copy(), self.row_splits.copy(), self.form)

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[number] for number in range(len(self))[row]]
        number = range(len(self))[row]  # which knows negative ones, and raises IndexError
        return sample_of(
            self.form, self.values[self.row_splits[number] : self.row_splits[number + 1]]
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        count = f"{len(self)} sample{'' if len(self) == 1 else 's'}"
        if self.form != "ragged":
            return f"<Ragged: {count} of {self.form}, {len(self.values)} bytes>"
        inner = "".join(f", {axis}" for axis in self.values.shape[1:]) or ","
        return (
            f"<Ragged: {count} of shape (None{inner}), {self.values.dtype}, {len(self.values)} in "
            "all>"
        )


class Padded(NamedTuple):
    """The samples of a leaf with ``form="pad"`` and ``lengths=True`` in one batch.

    values: (rows, longest, ...), over the slot. lengths: int64 (rows,), or (rows, k) if k axes
        vary.
    """

    values: AnyArray
    lengths: AnyArray


class Masked(NamedTuple):
    """The samples of a leaf with ``form="pad"`` and ``mask=True`` in one batch.

    values: (rows, longest, ...), over the slot. mask: bool, over the rows and the axes that vary:
    True for a sample's own elements.
    """

    values: AnyArray
    mask: AnyArray


def sample_of(name: str, array: AnyArray) -> Any:
    """Return what the elements of one sample are given as."""
    if name == "text":
        return array.tobytes().decode()
    return array.data if name == "bytes" else array


def parted(form: Form, padded: Padded | Masked) -> list[AnyArray]:
    """Return the samples of padded values, as views, by what is beside them."""
    beside = np.asarray(padded[1])
    if isinstance(padded, Masked):
        others = [
            tuple(range(1, axis + 1)) + tuple(range(axis + 2, beside.ndim))
            for axis in range(beside.ndim - 1)
        ]
        beside = np.stack([beside.any(axes).sum(1) for axes in others], 1)
    beside = beside.reshape(len(beside), -1)
    found = []
    for row, lengths in zip(padded.values, beside.tolist(), strict=True):
        ends: dict[int, int] = dict(zip(form.axes, lengths, strict=True))
        found.append(row[tuple(slice(ends.get(axis)) for axis in range(len(form.most)))])
    return found


@dataclass(frozen=True)
class Form:
    """How the samples of a leaf, which differ in length, lie in a batch.

    name: "ragged", "pad", "bytes" or "text".
    most: the shape of the largest sample. axes: those that vary.
    total: elements of a whole batch along the varying axis; None: so many as its rows may have.
    padding: one element, as bytes. pad_to: lengths to choose from, ascending; empty: the longest of
        the batch.
    beside: what comes beside the values: "row_splits", "lengths", "mask" or None.
    """

    name: str
    most: tuple[int, ...]
    axes: tuple[int, ...] = (0,)
    total: int | None = None
    padding: bytes = b""
    pad_to: tuple[int, ...] = ()
    beside: str | None = "row_splits"

    @property
    def is_padded(self) -> bool:
        """Whether all rows of a batch have one shape."""
        return self.name == "pad"

    @property
    def unit(self) -> str:
        """What lengths and totals count."""
        return "bytes" if self.name in {"bytes", "text"} else "elements"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a sample, None where it varies."""
        return tuple(None if axis in self.axes else length for axis, length in enumerate(self.most))

    @property
    def room(self) -> tuple[int, ...]:
        """The shape that a slot has room for."""
        least = self.pad_to[-1] if self.pad_to else 0
        return tuple(max(least, n) if axis in self.axes else n for axis, n in enumerate(self.most))

    def record_size(self) -> int:
        """Return the bytes of what is written down of a row: see cext/bytes/forms.h."""
        return 8 * (2 + self.axes[-1] + 1)

    def field_size(self, leaf: Leaf, rows: int) -> int:
        """Return the bytes of a field; a total has room for a row more: see cext/bytes/forms.c."""
        if self.total is None:
            return rows * leaf.nbytes
        return leaf.nbytes // leaf.shape[0] * (self.total + leaf.shape[0])

    def given(self, array: AnyArray) -> Any:
        """Return what the elements of one sample are given as."""
        return sample_of(self.name, array)

    def padded_length(self, longest: int) -> int:
        """Return how long an axis of a batch is whose longest sample is so long."""
        return next((length for length in self.pad_to if length >= longest), longest)

    def padded_shape(self, lengths: AnyArray, room: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of all rows, of these lengths along the first axes.

        ``room``: of a slot.
        """
        longest = lengths.max(0, initial=0).tolist()
        own = [
            self.padded_length(longest[axis]) if axis in self.axes else room[axis]
            for axis in range(len(longest))
        ]
        return (*own, *room[len(longest) :])

    def beside_of(self, lengths: AnyArray, shape: tuple[int, ...]) -> AnyArray | None:
        """Return what comes beside padded values of ``shape`` (rows, ...), from all lengths."""
        varying = lengths[:, list(self.axes)]
        if self.beside == "lengths":
            return varying[:, 0].copy() if len(self.axes) == 1 else varying
        if self.beside is None:
            return None
        mask = np.ones(len(lengths), bool)
        for number, axis in enumerate(self.axes):
            own = np.arange(shape[axis + 1]) < varying[:, number].reshape(-1, *[1] * (number + 1))
            mask = mask[..., None] & own
        return mask

    def join(self, values: Any, beside: Any) -> Any:
        """Return what a batch holds: values, with what is beside them."""
        if self.beside is None:
            return values
        if self.is_padded:
            return (Padded if self.beside == "lengths" else Masked)(values, beside)
        return Ragged(values, beside, self.name)

    def joined(self, leaf: Leaf, samples: Sequence[AnyArray]) -> Any:
        """Return the batch of these samples as a copy; what is beside its values is read-only."""
        counted = self.axes[-1] + 1
        lengths = np.array([sample.shape[:counted] for sample in samples], np.int64)
        lengths = lengths.reshape(-1, counted)
        beside: AnyArray | None
        if self.is_padded:
            values = np.empty((len(samples), *self.padded_shape(lengths, leaf.shape)), leaf.dtype)
            values[...] = np.frombuffer(self.padding, leaf.dtype)[0]
            for row, sample in zip(values, samples, strict=True):
                row[tuple(map(slice, sample.shape))] = sample
            beside = self.beside_of(lengths, values.shape)
        else:
            values = np.concatenate([np.empty((0, *leaf.shape[1:]), leaf.dtype), *samples])
            beside = np.concatenate([[0], np.cumsum(lengths[:, 0])])
        if beside is not None:
            beside.flags.writeable = False
        return self.join(values, beside)

    def values_of(self, batch: Any) -> Any:
        """Return the values of what a batch holds, with a row a sample where it is padded."""
        return batch[0] if isinstance(batch, (Padded, Masked)) else batch

    def said(self, dtype: AnyDtype) -> str:
        """Return the arguments that make it of an Array, as they are written there."""
        given = {
            "max_shape": self.most,
            "form": self.name,
            "total": self.total,
            "padding_value": np.frombuffer(self.padding, dtype)[0].item()
            if any(self.padding)
            else None,
            "pad_to": self.pad_to[0] if len(self.pad_to) == 1 else self.pad_to or None,
        }
        if self.is_padded and self.beside is not None:
            given[self.beside] = True
        return "".join(f", {key}={value!r}" for key, value in given.items() if value is not None)

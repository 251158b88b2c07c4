"""The fields of a slot as DLPack capsules, which every framework takes without a copy.

A capsule holds the slot by itself, in plain C: the framework gives it back from whatever thread it
likes, without the GIL, also after the loader is closed. The type codes are those of dlpack.h
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.errors import SpecError
from ringfeed.frameworks._dlpack import capsule, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import numpy as np

    from ringfeed.ring._ring import Lease
    from ringfeed.spec.spec import Leaf

CPU = (1, 0)
"""What `__dlpack_device__` says of memory on this machine."""
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_WIDEST = {"c": 16}


class Exports:
    """Where leaves of a spec lie in a slot, and as what DLPack knows them."""

    def __init__(self, leaves: Iterable[Leaf], offsets: Iterable[int]) -> None:
        """Describe the leaves; SpecError for one whose dtype DLPack has no code for."""
        leaves = list(leaves)
        self._fields = [
            (offset, leaf.shape, *type_of(leaf))
            for leaf, offset in zip(leaves, offsets, strict=True)
        ]
        self._varying = [number for number, leaf in enumerate(leaves) if leaf.variable or leaf.form]
        self._last: tuple[int, list[tuple[int, tuple[int, ...], int, int]]] = -1, []
        """The rows of a batch and its fields, in one word: threads may share an iterator."""

    def capsules(self, lease: Lease, rows: int) -> list[object]:
        """Return a capsule a leaf over the first ``rows`` rows; each holds the slot by itself.

        Of a leaf with a form, over its values: `Fields.besides`, or `Fields.views`, comes first,
        and makes them.
        """
        known, forms = self._last
        if rows != known:
            forms = [
                (offset, (rows, *shape), code, bits) for offset, shape, code, bits in self._fields
            ]
            self._last = rows, forms
        if self._varying:
            forms = [*forms]
        for number in self._varying:
            offset, most, code, bits = self._fields[number]
            forms[number] = offset, _shape_now(lease, rows, offset, most), code, bits
        return [capsule(lease, offset, shape, code, bits) for offset, shape, code, bits in forms]


def _shape_now(lease: Lease, rows: int, offset: int, most: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a leaf has in this batch alone."""
    finished = lease.finished or {}
    return finished[offset][0] if offset in finished else (rows, *shape_of(lease, offset, most))


class Exported:
    """A capsule behind the protocol, for frameworks that take an object; it can be taken once."""

    def __init__(self, capsule: object) -> None:
        """Hand out ``capsule``."""
        self._capsule: object | None = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU's device type and number."""
        return CPU

    def __dlpack__(self, **unused: object) -> object:
        """Return the capsule, whatever is asked for; a second call raises BufferError."""
        capsule, self._capsule = self._capsule, None
        if capsule is None:
            raise BufferError("this capsule was taken already")
        return capsule


def can_be_exported(leaf: Leaf) -> bool:
    """Whether DLPack knows the dtype of the leaf."""
    try:
        type_of(leaf)
    except SpecError:
        return False
    return True


def type_of(leaf: Leaf) -> tuple[int, int]:
    """DLPack's type code and the bits of one element; SpecError where DLPack has no such dtype."""
    dtype: np.dtype[Any] = leaf.dtype
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None or not dtype.isnative or dtype.itemsize > _WIDEST.get(dtype.kind, 8):
        remedy = "convert it in __getitem__, as in value.astype('float32')"
        if dtype.name.startswith("float8"):
            remedy += (
                ", or return value.view('uint8') and take these bits for what they are in the "
                f"step, as by jax.lax.bitcast_convert_type(batch, '{dtype.name}') or "
                f"tensor.view(torch.{dtype.name})"
            )
        raise SpecError(
            f"{leaf.path} has dtype {dtype}, of which frameworks have no tensors; {remedy}"
        )
    return code, 8 * dtype.itemsize

"""The fields of a slot as DLPack capsules, which every framework takes without a copy.

A capsule holds the slot by itself, in plain C: the framework gives it back from whatever thread it likes, without the
GIL, also after the loader is closed. The type codes are those of dlpack.h
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy as np

    from ringfeed._ring import Lease
    from ringfeed.spec import Leaf, Spec

CPU = (1, 0)
"""What `__dlpack_device__` says of memory on this machine."""
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_WIDEST = {"c": 16}


class _Field(NamedTuple):
    offset: int  # in the slot
    shape: tuple[int, ...]  # of a sample
    code: int
    bits: int


class Exports:
    """Where each leaf of a spec lies in a slot, and as what DLPack knows it."""

    def __init__(self, spec: Spec, offsets: Sequence[int]) -> None:
        """Describe the leaves; SpecError for one whose dtype DLPack has no code for."""
        self._fields = [
            _Field(offset, leaf.shape, *_type_of(leaf)) for leaf, offset in zip(spec.leaves, offsets, strict=True)
        ]

    def capsules(self, lease: Lease, rows: int, *, versioned: bool = False) -> list[object]:
        """Return a capsule a leaf over the first ``rows`` rows; each holds the slot until whoever takes it lets go."""
        return [
            lease.dlpack(offset, (rows, *shape), code, bits, versioned) for offset, shape, code, bits in self._fields
        ]


class Exported:
    """One capsule behind the protocol, for a framework that takes an object and not a capsule. It can be taken once."""

    def __init__(self, capsule: object) -> None:
        """Hand out ``capsule``."""
        self._capsule: object | None = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU's device type and number."""
        return CPU

    def __dlpack__(self, **unused: object) -> object:
        """Return the capsule, whatever version or copy is asked for: a second call raises BufferError."""
        capsule, self._capsule = self._capsule, None
        if capsule is None:
            raise BufferError("this capsule was taken already")
        return capsule


def _type_of(leaf: Leaf) -> tuple[int, int]:
    """DLPack's type code, and the bits of one element."""
    dtype: np.dtype[Any] = leaf.dtype
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None or not dtype.isnative or dtype.itemsize > _WIDEST.get(dtype.kind, 8):
        raise SpecError(
            f"{leaf.path} has dtype {dtype}, of which frameworks have no tensors; convert it in __getitem__, as in "
            "value.astype('float32')"
        )
    return code, 8 * dtype.itemsize

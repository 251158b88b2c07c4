"""The fields of a slot as DLPack capsules, which every framework takes without a copy.

A capsule holds the slot by itself, in plain C: the framework gives it back from whatever thread it
likes, without the GIL, also after the loader is closed. The type codes are those of dlpack.h
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.errors import SpecError

if TYPE_CHECKING:
    import numpy as np

    from ringfeed.spec.spec import Leaf

CPU = (1, 0)
"""What `__dlpack_device__` says of memory on this machine."""
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_WIDEST = {"c": 16}


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

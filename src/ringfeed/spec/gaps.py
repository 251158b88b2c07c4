"""Padding in elements of structured dtypes and Intel's long doubles: zeros in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from ringfeed.spec.array import AnyDtype

X87_BITS = 63
X87_BYTES = 10  # of a number of Intel's 80 bits, of which NumPy makes 12 or 16 bytes


def gaps_in(dtype: AnyDtype) -> npt.NDArray[np.bool_] | None:
    """Return for each byte of an element whether it is padding; None where no byte is."""
    gaps = ~_is_meant(dtype)
    return gaps if gaps.any() else None


def _is_meant(dtype: AnyDtype) -> npt.NDArray[np.bool_]:
    """Return for each byte of an element whether it is part of a value."""
    if dtype.subdtype is not None:
        return np.tile(_is_meant(dtype.base), np.prod(dtype.shape, dtype=int))
    found = np.full(dtype.itemsize, dtype.names is None)
    if dtype.char in "gG" and np.finfo(np.longdouble).nmant == X87_BITS:
        parts = found.reshape(-1, np.dtype("g").itemsize)
        parts[:, X87_BYTES:] = False
        found = found if dtype.isnative else parts[:, ::-1].reshape(-1)
    for field, offset, *_ in (dtype.fields or {}).values():
        found[offset : offset + field.itemsize] |= _is_meant(field)
    return found

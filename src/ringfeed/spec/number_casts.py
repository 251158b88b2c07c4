"""What `cast=True` of an Array converts into its dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import error_of
from ringfeed.errors import SpecError
from ringfeed.spec.array import USER_DTYPE

if TYPE_CHECKING:
    from ringfeed.spec.array import Array
    from ringfeed.spec.spec import Spec

_WIDER = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}  # by kinds


def may_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether cast=True converts a dtype into another: whole numbers into all, fractions not into whole numbers."""
    kind = "f" if wanted.isbuiltin == USER_DTYPE else wanted.kind
    return kind in _WIDER.get(given.kind, "")


def check_cast(casts: object, array: Array) -> None:
    """Refuse a `cast=` that there is no conversion for."""
    if not isinstance(casts, bool):
        raise error_of("Array", f"has cast={casts!r}", "True or False", "write it as in cast=True")
    if casts and array.cast is not None:
        remedy = "leave cast= out: uint8 is converted already"
        raise error_of(
            "Array",
            "has cast=True beside scale=, offset=, mean=, std= or layout=",
            "one of them",
            remedy,
        )
    if casts and not may_cast(np.dtype("bool"), array.dtype):
        remedy = (
            "leave cast= out: shorter strings are taken anyway"
            if array.dtype.kind in "SU"
            else "leave cast= out"
        )
        raise error_of(
            "Array", f"has cast=True and dtype {array.dtype}", "a dtype of numbers", remedy
        )


def refuse_in_place(spec: Spec) -> None:
    """Refuse to convert what a dataset itself writes into the slot."""
    for leaf in spec.leaves:
        if leaf.cast is not None or leaf.casts:
            steps = "cast=" if leaf.casts else "scale=, offset=, mean=, std= and layout="
            message = (
                f"{leaf.path} is converted by its Array, but read_into writes into the slot "
                f"itself; write {leaf.dtype} there and leave {steps} out, or take read_into out of "
                "the dataset"
            )
            raise SpecError(message)

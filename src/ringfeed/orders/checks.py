"""Checks the parameters of ringfeed's samplers, and an order's part of a loader's state.

Each text names the value, what was expected, and what came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringfeed._units import shorten
from ringfeed.errors import StateError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_count(value: Any) -> bool:
    """Whether a value is an int of 0 or more, as in states."""
    return type(value) is int and value >= 0


def check_fields(state: Any, **fields: int | None) -> None:
    """Raise StateError unless a state has these fields.

    0: an int of 0 or more; another number: a list of so many of them; None: anything.
    """
    if not isinstance(state, dict) or fields.keys() - state.keys():
        refuse(state, f"expected a dict of {', '.join(fields)}")
    for name, size in fields.items():
        value = state[name]
        are_counts = isinstance(value, list) and len(value) == size and all(map(is_count, value))
        if size is not None and not (are_counts if size else is_count(value)):
            expected = f"a list of {size} ints" if size else "an int"
            refuse(state, f"whose {name} is {value!r}, expected {expected} of 0 or more")


def check_at_most(state: Any, name: str, most: int, what: str) -> None:
    """Raise StateError if a number of the state is too large: beyond ``what``."""
    if state[name] > most:
        refuse(state, f"whose {name} is {state[name]}, expected at most {what}, {most}")


def refuse(state: Any, why: str) -> NoReturn:
    """Raise StateError for a state of an order."""
    raise StateError(
        f"the state's 'sampler' is {shorten(repr(state))}, {why}; it was changed since"
    )


# ---- what users give ----


def digest(*parts: Any) -> str:
    """Return 8 letters; for different arrays or texts they differ, except once in 2**32."""
    from hashlib import blake2b  # noqa: PLC0415  (loads OpenSSL)

    found = blake2b(digest_size=4)
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return found.hexdigest()


def checked_array(  # noqa: PLR0913 - what an error says
    what: str,
    given: Any,
    kinds: str,
    expected: str,
    axis: str = "one axis",
    *,
    numbers: bool = False,
) -> NDArray[Any]:
    """Return an array of one axis; TypeError or ValueError for others, beginning with ``what``.

    ``what`` is such as "weights are".

    ``kinds``: the allowed kinds of NumPy dtypes. ``numbers``: the array holds sample numbers.
    """
    if not (hasattr(given, "__array__") or hasattr(given, "__iter__")):
        raise TypeError(f"{what} {given!r}, expected an array or another iterable of {expected}")
    found = np.asarray(given if hasattr(given, "__array__") else [*given])
    if found.dtype.kind not in kinds and found.size:
        mask = (
            "; np.flatnonzero turns a mask into sample numbers"
            if numbers and found.dtype.kind == "b"
            else ""
        )
        raise TypeError(f"{what} an array of {found.dtype}, expected {expected}{mask}")
    if found.ndim != 1:
        raise ValueError(f"{what} an array of shape {found.shape}, expected {axis}")
    return found


def refuse_where(
    wrong: NDArray[np.bool_],
    name: str,
    given: NDArray[Any],
    expected: str,
    error: type[Exception] = ValueError,
) -> None:
    """Raise an error for the first number that is wrong."""
    if (rows := np.flatnonzero(wrong)).size:
        raise error(f"{name}[{rows[0]}] is {given[rows[0]]}, expected {expected}")


def checked_number(name: str, value: Any, least: float, most: float, expected: str) -> float:
    """Return an int or a float in these bounds; TypeError or ValueError for any other value."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not least <= number <= most:  # NaN neither
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return number


def check_length(name: str, count: int, what: str, length: int | None) -> None:
    """Raise ValueError unless there are as many as the dataset has samples."""
    if length not in {None, count}:
        raise ValueError(
            f"{name} has {count} {what}, but the dataset has {length} samples; give one for each"
        )

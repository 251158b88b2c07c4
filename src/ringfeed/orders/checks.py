"""What an order adds to a loader's state, checked where it is loaded: the text names what, expected and got."""

from __future__ import annotations

from typing import Any, NoReturn

from ringfeed._units import shorten
from ringfeed.errors import StateError


def is_count(value: Any) -> bool:
    """Whether it is an int of 0 or more, as a state counts."""
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


def check_none(state: Any, order: str) -> None:
    """Raise StateError for a state of an order that adds nothing to it."""
    if state is not None:
        refuse(state, f"expected none with order {order!r}")


def check_at_most(state: Any, name: str, most: int, what: str) -> None:
    """Raise StateError where a number of the state is too large: it lies beyond ``what``."""
    if state[name] > most:
        refuse(state, f"whose {name} is {state[name]}, expected at most {what}, {most}")


def refuse(state: Any, why: str) -> NoReturn:
    """Raise StateError for a state of an order."""
    raise StateError(
        f"the state's 'sampler' is {shorten(repr(state))}, {why}; it was changed since"
    )

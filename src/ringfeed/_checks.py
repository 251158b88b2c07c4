"""Parameters as users give them, checked: the text names the parameter, and what it takes."""

from __future__ import annotations

import operator
from numbers import Real

from ringfeed.errors import SpecError

MAX_SHOWN = (
    220  # characters of each part of an error, so that it is whole when it comes from a worker
)
AUTO = "auto"
MOST = 2**63 - 1  # that C counts to


def check_choice(name: str, value: object, choices: tuple[str | bool, ...]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}; choose one of {', '.join(map(repr, choices))}")


def is_auto(name: str, value: object) -> bool:
    """Whether it is to be found out; ValueError for another word than "auto"."""
    if isinstance(value, str) and value != AUTO:
        raise ValueError(f"{name}={value!r}; give a number, or {AUTO!r}")
    return isinstance(value, str)


def check_seconds(name: str, value: object, otherwise: str) -> None:
    """Raise TypeError or ValueError unless it is None or a time above 0.

    ``otherwise`` says what else may be given.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} must be a number of seconds, {otherwise}")
    if not float(value) > 0:
        raise ValueError(f"{name}={value!r} must be positive, {otherwise}")


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return an int from ``least`` to ``most``; TypeError or ValueError for another value."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be an int")
    if number < least:
        raise ValueError(f"{name}={number} must be at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{name}={number} must be at most {most}")
    return number


def check_count(name: str, value: object, least: int, most: int | None = None) -> int | None:
    """Return an int from ``least`` to ``most``, or None for None."""
    return None if value is None else check_integer(name, value, least, most)


def error_of(where: str, got: str, expected: object, remedy: str) -> SpecError:
    """Return the refusal of what stands at ``where``."""
    parts = where, got, str(expected)
    shown = [part if len(part) <= MAX_SHOWN else f"{part[:90]} ... {part[-90:]}" for part in parts]
    error = SpecError("{} {}, expected {}; {}".format(*shown, remedy))
    vars(error)["parts"] = *parts, remedy
    return error


def reworded(error: SpecError, index: int, named: str, maker: str = "__getitem__") -> None:
    """Rename the sample of a refusal, and what makes it; a text of the user's own stays."""
    parts, where = getattr(error, "parts", None), f"dataset[{index}]"
    if parts is not None and parts[0].startswith(where):
        first, got, expected, remedy = parts
        remedy = remedy.replace("__getitem__", maker)
        new = error_of(named + first[len(where) :], got, expected, remedy)
        error.args, vars(error)["parts"] = new.args, vars(new)["parts"]

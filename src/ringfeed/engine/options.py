"""The loader's parameters, checked, and the part of them that says how it runs."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from numbers import Real

from ringfeed.ring import _ring

AUTO = "auto"
MOST = 2**63 - 1  # that C counts to


@dataclass(frozen=True)
class Settings:
    """How the engine behaves; the loader's parameters of the same names."""

    backend: str
    start_method: str
    workers: int
    copy: bool
    drop_remainder: bool
    timeout_s: float | None
    on_stall: str
    on_error: str
    max_attempts: int
    max_restarts: int | None
    pin: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for what does not fit; names the parameter and what it takes."""
        check_choice("backend", self.backend, ("process", "thread"))
        check_choice("start_method", self.start_method, ("spawn", "fork", "forkserver"))
        check_choice("on_stall", self.on_stall, ("raise", "restart"))
        check_choice("on_error", self.on_error, ("raise", "skip"))
        check_count("workers", self.workers, 0, _ring.MAX_WORKERS)
        check_count("max_attempts", self.max_attempts, 1, 1000)
        check_count("max_restarts", self.max_restarts, 0, MOST)
        check_seconds("timeout_s", self.timeout_s, "or None to wait for ever")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        message = f"{name}={value!r}; choose one of {', '.join(map(repr, choices))}"
        raise ValueError(message)


def is_auto(name: str, value: object) -> bool:
    """Whether it is to be found out; ValueError for another word than "auto"."""
    if isinstance(value, str) and value != AUTO:
        message = f"{name}={value!r}; give a number, or {AUTO!r}"
        raise ValueError(message)
    return isinstance(value, str)


def check_seconds(name: str, value: object, otherwise: str) -> None:
    """Raise TypeError or ValueError unless it is None or a time above 0; ``otherwise`` says what else may be given."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        message = f"{name}={value!r} must be a number of seconds, {otherwise}"
        raise TypeError(message)
    if not float(value) > 0:
        message = f"{name}={value!r} must be positive, {otherwise}"
        raise ValueError(message)


def check_count(name: str, value: object, least: int, most: int | None = None, *, none: bool = True) -> int | None:
    """Return an int from ``least`` to ``most``, or None for None where that is allowed."""
    if value is None and none:
        return None
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        message = f"{name}={value!r} must be an int"
        raise TypeError(message)
    if count < least:
        message = f"{name}={count} must be at least {least}"
        raise ValueError(message)
    if most is not None and count > most:
        message = f"{name}={count} must be at most {most}"
        raise ValueError(message)
    return count

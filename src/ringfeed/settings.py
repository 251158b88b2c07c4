"""The loader's parameters, checked, and the part of them that says how it runs."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from ringfeed import _ring

AUTO = "auto"


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
        check_count("max_restarts", self.max_restarts, 0)
        if self.timeout_s is not None and not self.timeout_s > 0:
            message = f"timeout_s={self.timeout_s!r} must be positive, or None to wait for ever"
            raise ValueError(message)


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


def check_count(name: str, value: object, least: int, most: int | None = None) -> int | None:
    """Return an int from ``least`` to ``most``, or None for None."""
    if value is None:
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

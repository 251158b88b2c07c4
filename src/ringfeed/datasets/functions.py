"""The user's functions for the workers: they are checked here, and sent with the dataset."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ringfeed.orders.rng import rng

if TYPE_CHECKING:
    from collections.abc import Callable


class Functions(NamedTuple):
    """The loader's parameters of these names."""

    transform: Any = None
    collate_fn: Any = None
    batch_transform: Any = None
    worker_init_fn: Any = None

    def check(self, batch_size: int | None) -> None:
        """Raise TypeError for what cannot be called so, ValueError where batch_size forbids it."""
        for name, function in self._asdict().items():
            if function is not None:
                _check_function(name, function)
        if self.transform is not None and batch_size is None:
            raise ValueError(
                "transform= is for single samples, and with batch_size=None dataset[i] is a whole "
                "batch; give batch_transform="
            )

    def of_each(self, *, whole: bool) -> Any:
        """Return the function of each sample, or of each whole batch; None where there is none."""
        return self.collate_fn if whole else self.transform


_ARGUMENTS = {
    "transform": "a sample",
    "collate_fn": "a list of samples",
    "batch_transform": "a batch",
    "worker_init_fn": "the number of a worker",
}


def _check_function(name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(
            f"{name} is of type {type(function).__name__}, expected a function of "
            f"{_ARGUMENTS[name]}"
        )
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{name}={_name(function)} is async def, and is called once a sample has come; await "
            "in an async def __getitem__ of the dataset"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some builtins
        return
    try:
        signature.bind(None, **({"rng": None} if _draws(function, name) else {}))
    except TypeError as error:
        one = _ARGUMENTS[name].split()[-1]
        also = "" if name == "worker_init_fn" else ", and of rng where it draws random numbers"
        raise TypeError(
            f"{name}={_name(function)}{signature} cannot be called as it is to be ({error}), "
            f"expected a function of {_ARGUMENTS[name]}{also}; give lambda {one}: ..."
        ) from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _draws(function: Any, name: str = "") -> bool:
    """Whether a function has a parameter ``rng`` besides its first."""
    if name == "worker_init_fn":
        return False
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    return any(one.name == "rng" and one.kind is not one.POSITIONAL_ONLY for one in parameters[1:])


def of_one(function: Any) -> Callable[[Any], Any]:
    """Return a function of the sample alone, which gives the user's its ``rng``, if it has one."""
    if not _draws(function):
        return cast("Callable[[Any], Any]", function)
    return lambda sample: function(sample, rng=rng())

"""By what names a class is known where its package need not be imported."""

from __future__ import annotations

from typing import Any


def module_of(cls: type) -> str:
    """Name the module of a class; "" where Cython's own metaclass has something else there."""
    module: object = cls.__module__
    return module if isinstance(module, str) else ""


def root_of(cls: type) -> str:
    """Name the root package of a class."""
    return module_of(cls).partition(".")[0]


def class_names(obj: Any) -> set[str]:
    """Name the classes of an object, each with its root package: "torch.Tensor"."""
    return {f"{root_of(base)}.{base.__name__}" for base in type(obj).__mro__}

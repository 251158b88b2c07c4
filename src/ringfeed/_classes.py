"""By what names a class is known where its package need not be imported."""

from __future__ import annotations

from typing import Any


def class_names(obj: Any) -> set[str]:
    """Name the classes of an object, each with its root package: "torch.Tensor"."""
    return {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(obj).__mro__}

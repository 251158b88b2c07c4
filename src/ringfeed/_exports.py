"""Public names of a package, imported on first use (PEP 562): a worker loads what it needs."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def importing(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package, and have ``dir()`` list its public names.

    ``homes``: the module in it that has each name.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    vars(sys.modules[package])["__dir__"] = lambda: sorted(homes)
    return get

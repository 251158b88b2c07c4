"""Which modules of the user travel by value: those whose import would import a framework.

A module is the user's own where its source lies outside the standard library and site-packages. It
leads to a framework where a global of it, or of the packages that are imported before it, comes
from one, or from another module that leads there. All other modules are imported in a worker by
their names.
"""

from __future__ import annotations

import sys
import weakref
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from ringfeed.transport.framework_stubs import of_framework
from ringfeed.transport.imports import is_of_library

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAIN = ("__main__", "__mp_main__")
# Decided once: a later version of a dataset must not find another answer.
_decided: weakref.WeakKeyDictionary[ModuleType, bool] = weakref.WeakKeyDictionary()


def by_value(name: object) -> bool:
    """Whether the module of this name is the user's own and its import would import a framework."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    if not isinstance(module, ModuleType) or not _is_own(module):
        return False
    if module not in _decided:
        _decided[module] = _leads_to_framework(module.__name__, set())
    return _decided[module]


def by_reference(modules: set[str]) -> None:
    """Have these modules imported from now on: what they hold cannot travel by value."""
    _decided.update((sys.modules[name], False) for name in modules if name in sys.modules)


def home_of(obj: object) -> tuple[str, str] | None:
    """Return the module and the qualified name of a class or function that is found there."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return (module, name) if found is obj else None


def is_users(name: object) -> bool:
    """Whether a module is the user's own.

    It is neither Python's, nor installed, nor one of C code inside the interpreter.
    """
    if name in _MAIN:
        return True
    file = getattr(sys.modules.get(str(name)), "__file__", None)
    return (
        isinstance(file, str)
        and str(name).partition(".")[0] != "ringfeed"
        and not is_of_library(file)
    )


def is_installed(name: str) -> bool:
    """Whether a module is Python's own or an installed package's.

    No program changes such a module as it runs.
    """
    has_file = isinstance(getattr(sys.modules.get(name), "__file__", None), str)
    return not is_users(name) if has_file else name in sys.builtin_module_names


def _is_own(module: ModuleType) -> bool:
    """Whether a module is the user's, of Python code, and may so travel by value."""
    name = module.__name__
    if name in _MAIN or of_framework(name) or not is_users(name):
        return False
    return str(module.__file__).endswith(".py")


def _leads_to_framework(name: str, seen: set[str]) -> bool:
    if of_framework(name):
        return True
    module = sys.modules.get(name)
    if name in seen or not isinstance(module, ModuleType):
        return False
    seen.add(name)
    owners = set(_owners(module))
    if any(map(of_framework, owners)):
        return True
    if not _is_own(module):  # an installed package: what it brings in shows in it, or in its root
        root = name.partition(".")[0]
        return root != name and _leads_to_framework(root, {*seen, *owners})
    owners.add(name.rpartition(".")[0])  # an import begins with the package
    return any(_leads_to_framework(owner, seen) for owner in owners)


def _owners(module: ModuleType) -> Iterator[str]:
    """Name the modules from which the globals of a module come."""
    for attribute, value in list(vars(module).items()):
        if isinstance(value, ModuleType):
            # A package has its submodules as attributes, also where something else has imported
            # them.
            owner: object = (
                None if value.__name__ == f"{module.__name__}.{attribute}" else value.__name__
            )
        elif issubclass(type(value), type) or isinstance(value, FunctionType | BuiltinFunctionType):
            owner = getattr(value, "__module__", None)
        else:
            owner = type(value).__module__
        if isinstance(owner, str) and owner != module.__name__:
            yield owner

"""Which modules of the user travel by value: those whose import would import a framework.

A module is the user's own where its source lies outside the standard library and site-packages. It
leads to a framework where a global of it, or of the packages that are imported before it, comes
from one, or from another module that leads there. All other modules are imported in a worker by
their names.
"""

from __future__ import annotations

import operator
import pickle
import sys
import weakref
from importlib.util import resolve_name
from modulefinder import ModuleFinder
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ringfeed.transport.framework_stubs import of_framework
from ringfeed.transport.imports import is_of_library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAIN = ("__main__", "__mp_main__")
_PLAIN_METACLASSES = frozenset(("builtins", "abc", "enum", "typing", "typing_extensions"))
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


def by_reference(modules: Iterable[str]) -> None:
    """Have these modules imported from now on: what they hold cannot travel by value."""
    _decided.update((sys.modules[name], False) for name in modules)


def found_at(module: object, name: str) -> object:
    """Return the object of this qualified name in a module that is imported, or None."""
    try:
        return operator.attrgetter(name)(sys.modules[module])  # type: ignore[index]
    except (KeyError, TypeError, AttributeError):
        return None


def is_users(name: object) -> bool:
    """Whether a module is the user's own.

    It is neither Python's, nor installed, nor one of C code inside the interpreter.
    """
    if name in MAIN:
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


def check_fit(obj: Any) -> None:
    """Raise PicklingError for a class or function that needs its module to have run in the worker.

    It would be another class there, or fail.
    """
    name = f"{obj.__module__}.{obj.__qualname__}"
    if isinstance(obj, FunctionType):
        package = obj.__globals__.get("__package__") or ""
        if any(map(by_value, _imported_in(obj.__code__, package))):
            raise pickle.PicklingError(
                f"{name} imports, when called, a module that travels by value"
            )
        return
    bases = [base for base in obj.__mro__[1:-1] if not of_framework(base.__module__)]
    hooked = any("__init_subclass__" in vars(base) for base in bases if base.__module__ != "typing")
    if hooked or type(obj).__module__ not in _PLAIN_METACLASSES:
        raise pickle.PicklingError(
            f"{name} has a metaclass or an __init_subclass__, which would run again in a worker"
        )


def _imported_in(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules that the import statements inside a function of this package name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported_in(constant, package)
    for what, statement in ModuleFinder().scan_opcodes(code):
        if what != "store":
            *level, names, module = statement
            root = resolve_name("." * sum(level) + module, package)
            yield from (root, *(f"{root}.{name}" for name in names or ()))


def _is_own(module: ModuleType) -> bool:
    """Whether a module is the user's, of Python code, and may so travel by value."""
    name = module.__name__
    if name in MAIN or of_framework(name) or not is_users(name):
        return False
    return str(module.__file__).endswith(".py")


def _leads_to_framework(name: str, seen: set[str]) -> bool:
    module = sys.modules.get(name)
    if of_framework(name) or name in seen or not isinstance(module, ModuleType):
        return of_framework(name)
    seen.add(name)
    owners = {*_owners(module)}
    if not _is_own(module):  # an installed package: what it brings in shows in it, or in its root
        root = sys.modules.get(name.partition(".")[0], module)
        return any(map(of_framework, {*owners, *_owners(root)}))
    owners.add(name.rpartition(".")[0])  # an import begins with the package
    return any(_leads_to_framework(owner, seen) for owner in owners)


def _owners(module: ModuleType) -> Iterator[str]:
    """Name the modules from which the globals of a module come."""
    for attribute, value in [*vars(module).items()]:
        if isinstance(value, ModuleType):
            owner: object = value.__name__
            # A package has its submodules as attributes, also where something else has imported
            # them.
            if owner == f"{module.__name__}.{attribute}":
                continue
        elif issubclass(type(value), type) or isinstance(value, FunctionType | BuiltinFunctionType):
            owner = getattr(value, "__module__", None)
        else:
            owner = type(value).__module__
        if isinstance(owner, str):
            yield owner

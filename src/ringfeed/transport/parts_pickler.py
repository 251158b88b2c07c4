"""A dataset taken apart: its pickle, and apart from it what it needs of the user's modules that travel by value.

A dataset names what it needs of such a module (`modules` tells which), and a pickle of its own holds these by value,
as for a script. A worker loads it once (`parts`), so that the classes of all versions of a dataset are the same, and
keep what the worker has set on them. Where they cannot travel by value, the module is imported by name.
"""

from __future__ import annotations

import dis
import pickle
import sys
import threading
import typing
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from ringfeed.transport import modules as _modules
from ringfeed.transport.framework_stubs import of_framework
from ringfeed.transport.pickler import Named, Pickled, Pickler, dump, watching

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN_METACLASSES = frozenset(("builtins", "abc", "enum", "typing", "typing_extensions"))
_IMPORT = dis.opmap["IMPORT_NAME"]


class Parts(NamedTuple):
    """What is needed of the user's modules: the names, a pickle stream, its large buffers, and what it imports."""

    names: frozenset[tuple[str, str]] = frozenset()
    streams: tuple[memoryview, ...] = ()
    modules: frozenset[str] = frozenset()


def take_apart(obj: object, known: Parts | None, *, watch: bool = False) -> tuple[Pickled, Parts]:
    """Return the pickle of ``obj``, and the parts of the user's modules that it needs.

    ``known``: the parts that workers have already; they stay as they were while they hold all that is needed.
    """
    known, named = known or Parts(), Named()
    try:
        pickled = dump(obj, (watching() if watch else Pickler)(named))
        return pickled, known if named.keys() <= known.names else _dump_parts(named)
    except Exception as error:
        if not named or isinstance(error, MemoryError):
            raise
    # Not within the handler: what this raises would come with the first error, and all of its frames.
    pickled = dump(obj, (watching() if watch else Pickler)())
    _modules.by_reference({module for module, _ in named})
    return pickled, Parts()


def _dump_parts(named: Named) -> Parts:
    pickled = dump(named, _PartsPickler({}))
    return Parts(frozenset(named), (pickled.stream, *pickled.buffers), pickled.modules)


class _PartsPickler(Pickler):
    """Pickles by value what modules that travel by value hold."""

    _lock = threading.Lock()

    def __init__(self, named: Named) -> None:
        super().__init__(named)
        self._reducers[typing.TypeVar] = self._reduce_typevar

    def _by_name(self, obj: object) -> Any:  # noqa: ARG002 - nothing is left to a name here
        return None

    def _reduce_anew(self, obj: Any) -> Any:
        home = self._home_of(obj)
        if home is None:
            return super()._reduce_anew(obj)
        _check_fit(obj)
        return self._registered(home[0], super()._reduce_anew, obj)

    def _reduce_typevar(self, variable: Any) -> Any:
        reduce = self.dispatch_table[typing.TypeVar]
        module = variable.__module__
        return self._registered(module, reduce, variable) if _modules.by_value(module) else NotImplemented

    def _registered(self, module: str, reduce: Callable[[Any], Any], obj: Any) -> Any:
        """Return what ``reduce`` gives while cloudpickle knows that this module travels by value, and no longer."""
        with self._lock:
            if module in cloudpickle.list_registry_pickle_by_value():
                return reduce(obj)
            try:
                cloudpickle.register_pickle_by_value(sys.modules[module])
                return reduce(obj)
            finally:
                if module in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.unregister_pickle_by_value(sys.modules[module])


def _check_fit(obj: Any) -> None:
    """Raise PicklingError for what would be another class, or fail, in a worker that has not run its module."""
    name = f"{obj.__module__}.{obj.__qualname__}"
    if isinstance(obj, FunctionType):
        if any(map(_modules.by_value, _imported_in(obj.__code__, obj.__globals__))):
            message = f"{name} imports, when called, a module that travels by value"
            raise pickle.PicklingError(message)
        return
    if not issubclass(type(obj), type):
        return
    bases = [base for base in obj.__mro__[1:] if base is not object and not of_framework(base.__module__)]
    hooked = any("__init_subclass__" in vars(base) for base in bases if base.__module__ != "typing")
    if hooked or type(obj).__module__ not in _PLAIN_METACLASSES:
        message = f"{name} has a metaclass or an __init_subclass__, which would run again in a worker"
        raise pickle.PicklingError(message)
    for member in vars(obj).values():
        if isinstance(member, FunctionType):
            _check_fit(member)


def _imported_in(code: CodeType, globals_: dict[str, Any]) -> set[str]:
    """Return the modules that the import statements inside a function name."""
    found = set().union(*(_imported_in(const, globals_) for const in code.co_consts if isinstance(const, CodeType)))
    if _IMPORT not in code.co_code[::2]:
        return found
    last: list[Any] = [None, None]  # the two constants before: the level and the names
    for step in dis.get_instructions(code):
        if step.opcode == _IMPORT:
            level, names = last
            package = ".".join((globals_.get("__package__") or "").split(".")[: 1 - level or None]) if level else ""
            root = f"{package}.{step.argval}".strip(".") if level else step.argval
            found.add(root)
            found.update(f"{root}.{name}" for name in names or ())
        elif step.opname.startswith("LOAD_"):
            last = [last[1], step.argval]
    return found

"""How a dataset is taken apart: cloudpickle, with its own ways for arrays, tensors and frameworks.

    np.memmap, views of one    file name, offset and layout
    other arrays               one contiguous buffer, whatever the dtype; out of band from 4 KiB
    torch CPU tensors          likewise
    framework modules          LazyModule
    framework functions and classes that user code refers to by a global, a closure variable, a default,
                               an attribute or a functools.partial: LazyObject
    the dataset bases of Keras and torch: the stand-ins
    annotations that name a framework: dropped
    classes and functions of the user's modules whose import would import a framework: see below

Everything else goes cloudpickle's way, framework instances included.

A dataset names what it needs of such a module (`_modules` tells which), and a pickle of its own holds these by value,
as for a script. A worker loads it once (`_parts`), so that the classes of all versions of a dataset are the same, and
keep what the worker has set on them. Where they cannot travel by value, the module is imported by name.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import io
import operator
import pickle
import sys
import threading
import typing
from abc import ABCMeta
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from ringfeed.transport import arrays as _buffers
from ringfeed.transport import framework_stubs as standins
from ringfeed.transport import modules as _modules
from ringfeed.transport import parts as _parts
from ringfeed.transport.framework_stubs import LazyModule, LazyObject, of_framework, standin_for

if TYPE_CHECKING:
    from collections.abc import Callable


Named = dict[tuple[str, str], object]  # classes and functions, by module and qualified name


class Parts(NamedTuple):
    """What is needed of the user's modules: the names, a pickle stream, and its large buffers."""

    names: frozenset[tuple[str, str]]
    streams: tuple[memoryview, ...]


NO_PARTS = Parts(frozenset(), ())


def take_apart(
    obj: object, visited: list[object] | None = None, known: Parts = NO_PARTS
) -> tuple[Parts, memoryview, list[memoryview]]:
    """Return the parts of the user's modules that ``obj`` needs, its pickle stream, and its large buffers, uncopied.

    ``known``: the parts that workers have already; they stay as they were while they hold all that is needed.
    """
    named: Named = {}
    buffers: list[memoryview] = []
    try:
        stream = dump(obj, buffers, visited, named)
        parts = known if named.keys() <= known.names else _dump_parts(named)
    except Exception as error:
        if not named or isinstance(error, MemoryError):
            raise
        del buffers[:]
        if visited is not None:
            del visited[:]
        stream, parts = dump(obj, buffers, visited), NO_PARTS
        _modules.by_reference({module for module, _ in named})
    return parts, stream, buffers


def dump(
    obj: object,
    buffers: list[memoryview],
    visited: list[object] | None = None,
    named: Named | None = None,
) -> memoryview:
    """The pickle stream of ``obj``; its large buffers are appended to ``buffers``, uncopied.

    ``visited`` takes each object that pickle comes to see, once for each mention; ``named`` takes what is referred to
    by name in modules that travel by value; without it none does.
    """
    return _stream(obj, buffers, _Pickler if visited is None else _watched(visited), named)


def _dump_parts(named: Named) -> Parts:
    buffers: list[memoryview] = []
    stream = _stream(named, buffers, _PartsPickler, {})
    return Parts(frozenset(named), (stream, *buffers))


def _stream(obj: object, buffers: list[memoryview], kind: type[_Pickler], named: Named | None) -> memoryview:
    """Pickle ``obj`` with a pickler of this kind."""

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _buffers.LARGE:
            buffers.append(raw)
        return raw.nbytes < _buffers.LARGE

    stream = io.BytesIO()
    _dump(obj, kind(stream, in_band, named))
    # Not getbuffer(): a BytesIO with a view on it complains when the garbage collector closes it.
    return memoryview(stream.getvalue())


def failure(obj: object) -> Exception | None:
    """What pickling ``obj`` raises; nothing is kept of what it gives."""
    try:
        _dump(obj, _Pickler(_Nowhere(), lambda _: False))
    except Exception as error:  # noqa: BLE001 - any of them is the answer
        return error
    return None


_Cached = type(functools.lru_cache(lambda: None))


class _Nowhere(io.RawIOBase):
    def write(self, chunk: Any) -> int:
        return len(chunk)


def _dump(obj: object, pickler: _Pickler) -> None:
    # The main module of a process that multiprocessing spawned has this name, which no worker can import.
    main = sys.modules.get("__mp_main__")
    by_value = main is not None and main.__name__ not in cloudpickle.list_registry_pickle_by_value()
    if by_value:
        cloudpickle.register_pickle_by_value(main)
    try:
        pickler.dump(obj)
    finally:
        pickler.clear_memo()  # or it keeps what it has seen until the garbage collector finds its cycle
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler; ``reducer_override`` sees every object but the plainest builtins."""

    def __init__(self, stream: Any, in_band: Callable[[pickle.PickleBuffer], bool], named: Named | None = None) -> None:
        super().__init__(stream, protocol=_buffers.PROTOCOL, buffer_callback=in_band)
        self._named = named
        self._namespaces: dict[str, _Namespace] = {}
        self._reducers: dict[type, Callable[[Any], Any]] = {
            np.ndarray: _buffers.reduce_array,
            np.memmap: _buffers.reduce_array,
            LazyObject: LazyObject.__reduce__,
            CellType: self._reduce_cell,
            FunctionType: self._reduce_function,
            functools.partial: _reduce_partial,
            _Cached: self._reduce_cached,
            dataclasses.Field: _reduce_field,
            io.TextIOWrapper: _refuse_file,
        }
        # A torch that is still being imported has no Tensor yet, and the dataset no tensors.
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        if tensor is not None:
            self._reducers[tensor] = _buffers.reduce_tensor

    def reducer_override(self, obj: Any) -> Any:
        """What pickle asks for each object: a reduce value, or NotImplemented for its ordinary way."""
        reduce = self._reducers.get(type(obj)) or self._by_kind(obj)
        reduced = self._by_name(obj) or reduce(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced

    def _by_kind(self, obj: object) -> Callable[[Any], Any]:
        if issubclass(type(obj), type):  # not isinstance: in Python 3.10 list[int] is an instance of type
            return self._reduce_class
        return self._reduce_module if isinstance(obj, ModuleType) else self._reduce_instance

    def _by_name(self, obj: object) -> Any:
        """Refer by name to a class or function of a module that travels by value; None for all else."""
        home = self._home_of(obj)
        if home is None or self._named is None:
            return None
        self._named[home] = obj
        return _parts.named, home

    def _home_of(self, obj: object) -> tuple[str, str] | None:
        """The module and name of a class or function, if its module travels by value."""
        if self._named is None or not (issubclass(type(obj), type) or type(obj) in (FunctionType, _Cached)):
            return None
        home = _modules.home_of(obj)
        return home if home is not None and _modules.by_value(home[0]) else None

    def _reduce_module(self, module: ModuleType) -> Any:
        if of_framework(module.__name__):
            return LazyModule, (module.__name__,)
        return (_parts.partial, (module.__name__,)) if self._is_sent(module) else NotImplemented

    def _reduce_cached(self, cached: Any) -> Any:
        """Send what lru_cache made by value where a worker must not import its module, such as the user's main one."""
        module = cached.__module__
        by_value = module in ("__main__", "__mp_main__") or self._home_of(cached) is not None
        if not by_value and _found(module, cached.__qualname__) is cached:
            return NotImplemented
        return standins.cached, (cached.__wrapped__, cached.cache_parameters())

    def _is_sent(self, module: object) -> bool:
        return isinstance(module, ModuleType) and self._named is not None and _modules.by_value(module.__name__)

    def _reduce_anew(self, obj: Any) -> Any:
        """What cloudpickle makes of a class or function."""
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        standin = standin_for(cls)
        if standin is not None:
            return standins.standin, (standin.__name__,)
        reduced = self._reduce_anew(cls)
        if not _has_state(reduced):  # by reference, or one of the builtin types
            return reduced
        make, args, (members, slots), *rest = reduced
        if _clashes(cls):
            bases = tuple(_Original(base) if standin_for(base) else base for base in cls.__bases__)
            args = (*args[:2], bases, *args[3:])
        return (make, args, (_lazy_members(members), slots), *rest)

    def _reduce_function(self, function: FunctionType) -> Any:
        reduced = self._reduce_anew(function)
        if reduced is NotImplemented:
            return reduced
        make, args, (attributes, slots), *rest = reduced
        if self._named is not None:
            args = (args[0], self._namespace(function, args[1]), *args[2:])
            slots["__globals__"] = self._with_parts(slots["__globals__"], names_in(function.__code__))
        for name in ("__globals__", "__kwdefaults__"):
            slots[name] = slots[name] and _lazy_values(slots[name])
        slots["__defaults__"] = slots["__defaults__"] and tuple(map(lazily, slots["__defaults__"]))
        slots["__annotations__"] = _without_frameworks(slots["__annotations__"])
        return (make, args, (_lazy_values(attributes), slots), *rest)

    def _namespace(self, function: FunctionType, special: dict[str, Any]) -> object:
        """The globals of a function: its module's, if a part of it is sent; ``special``: its __file__ and such."""
        module = sys.modules.get(function.__module__)
        if not self._is_sent(module) or vars(module) is not function.__globals__:
            return special
        return self._namespaces.setdefault(module.__name__, _Namespace(module.__name__, special))  # type: ignore[union-attr]

    def _with_parts(self, members: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """The same with parts in the place of whole modules: what a function with these names may ask them for."""
        return {
            name: _Part(
                value.__name__,
                _lazy_values(self._with_parts({n: v for n, v in vars(value).items() if n in names}, names)),
            )
            if self._is_sent(value)
            else _on_demand(value)
            if self._home_of(value)
            else value
            for name, value in members.items()
        }

    def _reduce_cell(self, cell: CellType) -> Any:
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return NotImplemented
        lazy = lazily(content)
        return NotImplemented if lazy is content else self.dispatch_table[CellType](CellType(lazy))

    def _reduce_instance(self, obj: object) -> Any:
        if of_framework(type(obj).__module__) or type(obj) in self.dispatch_table:
            return NotImplemented
        state = getattr(obj, "__dict__", None)
        if not isinstance(state, dict) or all(lazily(value) is value for value in state.values()):
            return NotImplemented
        reduced = obj.__reduce_ex__(_buffers.PROTOCOL)
        if not _has_state(reduced) or not isinstance(reduced[2], dict):
            return reduced
        return (*reduced[:2], _lazy_values(reduced[2]), *reduced[3:])


class _PartsPickler(_Pickler):
    """Pickles by value what modules that travel by value hold."""

    _lock = threading.Lock()

    def __init__(self, stream: Any, in_band: Callable[[pickle.PickleBuffer], bool], named: Named | None = None) -> None:
        super().__init__(stream, in_band, named)
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
        """What ``reduce`` gives while cloudpickle is told that this module travels by value: for as long as this."""
        with self._lock:
            if module in cloudpickle.list_registry_pickle_by_value():
                return reduce(obj)
            cloudpickle.register_pickle_by_value(sys.modules[module])
            try:
                return reduce(obj)
            finally:
                cloudpickle.unregister_pickle_by_value(sys.modules[module])


class _Namespace(NamedTuple):
    """The globals of a module."""

    module: str
    special: dict[str, Any]

    def __reduce__(self) -> Any:
        return _parts.namespace, tuple(self)


class _Part:
    """A module of which these globals are sent."""

    def __init__(self, module: str, members: dict[str, Any]) -> None:
        self.module = module
        self.members = members

    def __reduce__(self) -> Any:
        return _parts.partial, (self.module,), self.members


def _on_demand(value: Any) -> Any:
    """A class of the user on a framework's base (a model, say) as one that is imported when it is used."""
    if issubclass(type(value), type) and not issubclass(value, BaseException) and _modules.on_framework(value):
        bases = [base for base in value.__mro__ if of_framework(base.__module__)]
        if any(standin_for(base) is None for base in bases):
            return LazyObject(f"{value.__module__}:{value.__qualname__}")
    return value


_PLAIN_METACLASSES = frozenset(("builtins", "abc", "enum", "typing", "typing_extensions"))
_IMPORT = dis.opmap["IMPORT_NAME"]


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
    """The modules that the import statements inside a function name."""
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


def names_in(code: CodeType) -> set[str]:
    """The names that a function and the functions inside it may look up, as globals or as attributes."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _watched(visited: list[object]) -> type[_Pickler]:
    """Return a pickler that lists what it sees: pickle asks for the persistent id of each, and None is none."""
    return type("_Watched", (_Pickler,), {"persistent_id": staticmethod(visited.append)})


def _has_state(reduced: Any) -> bool:
    return isinstance(reduced, tuple) and len(reduced) > 2 and reduced[2] is not None  # noqa: PLR2004 - its place


class _Original:
    """Pickles as a reference to a class that would otherwise be replaced by its stand-in."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __reduce__(self) -> Any:
        return standins.resolve, (f"{self.cls.__module__}:{self.cls.__qualname__}",)


def _clashes(cls: type) -> bool:
    """Whether the metaclass of ``cls`` cannot be combined with that of the stand-ins."""
    plain = type(cls) is type or issubclass(type(cls), ABCMeta)
    return not plain and any(standin_for(base) for base in cls.__bases__)


def lazily(value: Any) -> Any:
    """A LazyObject for a framework's function or class; any other value as it is.

    Exceptions stay themselves, since ``except`` takes nothing but classes.
    """
    if issubclass(type(value), type):
        if issubclass(value, BaseException) or standin_for(value):
            return value
    elif not (isinstance(value, FunctionType | BuiltinFunctionType) or of_framework(type(value).__module__)):
        return value
    module: Any = getattr(value, "__module__", None)
    if of_framework(module):
        for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
            if isinstance(name, str) and _found(module, name) is value:
                return LazyObject(f"{module}:{name}")
    return value


def _found(module: str, name: str) -> object:
    try:
        return operator.attrgetter(name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _lazy_values(members: dict[str, Any]) -> dict[str, Any]:
    lazy = {name: lazily(value) for name, value in members.items()}
    if isinstance(lazy.get("__annotations__"), dict):
        lazy["__annotations__"] = _without_frameworks(lazy["__annotations__"])
    return lazy


def _lazy_members(members: dict[str, Any]) -> dict[str, Any]:
    """The same for a class, where a function is bound when it is looked up, and a lazy object is not."""
    lazy = _lazy_values(members)
    for name, member in members.items():
        if isinstance(member, FunctionType):
            lazy[name] = member
        elif isinstance(member, staticmethod) and lazily(member.__func__) is not member.__func__:
            lazy[name] = lazily(member.__func__)
    return lazy


def _without_frameworks(annotations: dict[str, Any]) -> dict[str, Any]:
    return {name: annotation for name, annotation in annotations.items() if not _mentions(annotation)}


def _mentions(annotation: Any) -> bool:
    """Whether unpickling an annotation would import a framework."""
    if isinstance(annotation, list):  # the parameters of a Callable
        return any(map(_mentions, annotation))
    parts = typing.get_args(annotation)
    if parts:
        return _mentions(typing.get_origin(annotation)) or any(map(_mentions, parts))
    owner = annotation if isinstance(annotation, type) else type(annotation)
    return of_framework(owner.__module__)


def _reduce_partial(partial: functools.partial[Any]) -> Any:
    lazy = lazily(partial.func)
    if lazy is partial.func:
        return NotImplemented
    return functools.partial(lazy, *partial.args, **partial.keywords).__reduce__()


def _reduce_field(field: dataclasses.Field[Any]) -> Any:
    if not _mentions(field.type):
        return NotImplemented
    reduced: Any = field.__reduce_ex__(_buffers.PROTOCOL)
    make, args, (attributes, slots), *rest = reduced
    return (make, args, (attributes, {**slots, "type": str(field.type)}), *rest)


def _refuse_file(file: io.TextIOWrapper) -> Any:
    """Refuse what cloudpickle would send as its whole content; the standard streams are found again."""
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    raise pickle.PicklingError(f"cannot pickle the open file {file.name}")

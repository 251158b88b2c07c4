"""How a dataset is taken apart: cloudpickle, with its own ways for arrays, tensors and frameworks.

    np.memmap, views of one    file name, offset and layout
    other arrays               one contiguous buffer, whatever the dtype; out of band from 4 KiB
    torch CPU tensors          likewise
    framework modules, and what user code refers to in them: LazyObject (see `lazy`)
    the dataset bases of Keras and torch: the stand-ins
    classes and functions of the user's modules whose import would import a framework: by name

Everything else goes cloudpickle's way, framework instances included.

What a dataset names in such modules (`modules` tells which) a pickle of its own holds by value, as
for a script. A worker loads it once (`_parts`), so that the classes of all versions of a dataset
are the same, and keep what the worker has set on them. Where they cannot travel by value, the
module is imported by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import pickle
import sys
import threading
import typing
from importlib.util import resolve_name
from modulefinder import ModuleFinder
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from ringfeed import _parts
from ringfeed.transport import arrays as _buffers
from ringfeed.transport import framework_stubs
from ringfeed.transport import modules as _modules
from ringfeed.transport.framework_stubs import LazyObject, of_framework, standin_for
from ringfeed.transport.lazy import (
    clashes,
    found_at,
    lazily,
    lazy_members,
    lazy_values,
    named_lazily,
    on_demand,
    reduce_code,
    reduce_field,
    reduce_partial,
    stays,
    without_frameworks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PLAIN_METACLASSES = frozenset(("builtins", "abc", "enum", "typing", "typing_extensions"))
MOST_COMPARED = 1 << 26  # bytes of a pickle, which are hashed in a tenth of a second
Named = dict[tuple[str, str], object]  # classes and functions, by module and qualified name


class Pickled(NamedTuple):
    """What pickling an object gave."""

    stream: memoryview
    buffers: Sequence[memoryview]  # its large ones, uncopied
    modules: frozenset[str]  # from which it refers to classes and functions
    # Each object that pickle came to see, once for each mention, with a watching pickler.
    visited: Sequence[object]


def dump(obj: object, pickler: Pickler) -> Pickled:
    """Pickle ``obj``."""
    _dump(obj, pickler)
    # Not getbuffer(): a BytesIO with a view on it complains when the garbage collector closes it.
    stream = memoryview(pickler.stream.getvalue())
    return Pickled(stream, pickler.buffers, frozenset(pickler.modules), pickler.visited)


def failure(obj: object, kind: type[Pickler] | None = None) -> Exception | None:
    """Return what pickling ``obj`` raises; nothing is kept of what it gives."""
    try:
        _dump(obj, (kind or Pickler)(stream=_Nowhere()))
    except Exception as error:  # noqa: BLE001 - any of them is the answer
        return error
    return None


def fingerprint(obj: object) -> bytes | None:
    """Return a hash that changes with the object.

    None where its pickle is large, or it has none.
    """
    stream = _Hashed()
    pickler = Pickler(stream=stream)
    try:
        _dump(obj, pickler)
        for buffer in pickler.buffers:
            stream.write(buffer)
    except Exception:  # noqa: BLE001
        # Any of them: what is the matter is told where the object is sent.
        return None
    return stream.hash.digest()


_Cached = type(functools.lru_cache(lambda: None))
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


class _Nowhere(io.RawIOBase):
    def write(self, chunk: Any) -> int:
        return len(chunk)


class _Hashed(io.RawIOBase):
    """Keeps a hash of what is written, and refuses more than `MOST_COMPARED`."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b()
        self._room = MOST_COMPARED

    def write(self, chunk: Any) -> int:
        size = memoryview(chunk).nbytes
        self._room -= size
        if self._room < 0:
            raise OverflowError
        self.hash.update(chunk)
        return size


def _dump(obj: object, pickler: Pickler) -> None:
    # The main module of a process that multiprocessing spawned has this name, which no worker can
    # import.
    main = sys.modules.get("__mp_main__")
    by_value = main is not None and main.__name__ not in cloudpickle.list_registry_pickle_by_value()
    if by_value:
        cloudpickle.register_pickle_by_value(main)
    try:
        pickler.dump(obj)
    finally:
        # Else it keeps what it has seen until the garbage collector finds its cycle.
        pickler.clear_memo()
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler; ``reducer_override`` sees every object but the plainest builtins."""

    visited: Sequence[object] = ()

    def __init__(self, named: Named | None = None, stream: Any = None) -> None:
        """Take into ``named`` what is referred to by name in modules that travel by value.

        Without it none does.
        """
        self.stream = io.BytesIO() if stream is None else stream
        super().__init__(self.stream, protocol=_buffers.PROTOCOL, buffer_callback=self._is_in_band)
        self.buffers: list[memoryview] = []
        self.modules: set[str] = set()
        self._named = named
        self._namespaces: dict[str, _Made] = {}
        # Many objects are of few types, and most go pickle's own way: their types are looked at
        # once.
        self._ordinary: set[type] = set()  # whose instances do, unless an attribute is lazy
        self._staying: set[type] = set()  # of attributes that never are
        self._reducers: dict[type, Callable[[Any], Any]] = {
            np.ndarray: _buffers.reduce_array,
            np.memmap: _buffers.reduce_array,
            LazyObject: LazyObject.__reduce__,
            CellType: self._reduce_cell,
            CodeType: reduce_code,
            FunctionType: self._reduce_function,
            functools.partial: reduce_partial,
            _Cached: self._reduce_cached,
            dataclasses.Field: reduce_field,
            io.TextIOWrapper: _refuse_file,
        }
        # A torch that is still being imported has no Tensor yet, and the dataset no tensors.
        if (tensor := getattr(sys.modules.get("torch"), "Tensor", None)) is not None:
            self._reducers[tensor] = self._reduce_tensor

    def _is_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _buffers.LARGE:
            self.buffers.append(raw)
        return raw.nbytes < _buffers.LARGE

    def reducer_override(self, obj: Any) -> Any:
        """Return a reduce value, or NotImplemented for pickle's ordinary way.

        Pickle asks for each object.
        """
        kind = type(obj)
        if kind in self._ordinary and not self._has_lazy(obj):
            return obj.__reduce_ex__(_buffers.PROTOCOL)
        reduce = self._reducers.get(kind) or self._by_kind(obj)
        reduced = self._by_name(obj) or reduce(obj)
        if reduced is NotImplemented:
            reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            if issubclass(kind, type) or kind in _FUNCTIONS:
                self.modules.add(str(obj.__module__))
            elif reduce == self._reduce_instance and kind not in self.dispatch_table:
                self._ordinary.add(kind)
        return reduced

    def _has_lazy(self, obj: object) -> bool:
        """Whether an attribute of an instance is to be made lazy."""
        state = getattr(obj, "__dict__", None)
        if not isinstance(state, dict) or self._staying.issuperset(map(type, state.values())):
            return False
        self._staying.update(filter(stays, map(type, state.values())))
        return any(lazily(value) is not value for value in state.values())

    def _reduce_tensor(self, tensor: Any) -> Any:
        self.modules.add("torch")
        return _buffers.reduce_tensor(tensor)

    def _by_kind(self, obj: object) -> Callable[[Any], Any]:
        if issubclass(type(obj), type):
            # Not isinstance: in Python 3.10 list[int] is an instance of type.
            return self._reduce_class
        return self._reduce_module if isinstance(obj, ModuleType) else self._reduce_instance

    def _by_name(self, obj: object) -> Any:
        """Refer by name to a class or function of a module that travels by value.

        None for all else.
        """
        home = self._home_of(obj)
        if home is None or self._named is None:
            return None
        self._named[home] = obj
        return _parts.named, home

    def _home_of(self, obj: object) -> tuple[str, str] | None:
        """Return the module and name of a class or function, if its module travels by value."""
        if self._named is None or not (
            issubclass(type(obj), type) or type(obj) in (FunctionType, _Cached)
        ):
            return None
        home = _modules.home_of(obj)
        return home if home is not None and _modules.by_value(home[0]) else None

    def _reduce_module(self, module: ModuleType) -> Any:
        if of_framework(module.__name__):
            return LazyObject, (module.__name__,)
        return (_parts.partial, (module.__name__,)) if self._is_sent(module) else NotImplemented

    def _reduce_cached(self, cached: Any) -> Any:
        """Send a cached function by value where a worker must not import its module.

        The user's main module is one.
        """
        module = cached.__module__
        by_value = module in ("__main__", "__mp_main__") or self._home_of(cached) is not None
        if not by_value and found_at(module, cached.__qualname__) is cached:
            return NotImplemented
        return framework_stubs.cached, (cached.__wrapped__, cached.cache_parameters())

    def _is_sent(self, module: object) -> bool:
        return (
            isinstance(module, ModuleType)
            and self._named is not None
            and _modules.by_value(module.__name__)
        )

    def _reduce_anew(self, obj: Any) -> Any:
        """Return what cloudpickle makes of a class or function."""
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        standin = standin_for(cls)
        if standin is not None:
            return framework_stubs.standin, (standin.__name__,)
        reduced = self._reduce_anew(cls)
        if not _has_state(reduced):  # by reference, or one of the builtin types
            return reduced
        make, args, (members, slots), *rest = reduced
        if clashes(cls):
            real = tuple(
                named_lazily(base) if standin_for(base) else base for base in cls.__bases__
            )
            args = (*args[:2], real, *args[3:])
        return (make, args, (lazy_members(cls, members), slots), *rest)

    def _reduce_function(self, function: FunctionType) -> Any:
        reduced = self._reduce_anew(function)
        if reduced is NotImplemented:
            return reduced
        make, args, (attributes, slots), *rest = reduced
        if self._named is not None:
            args = (args[0], self._namespace(function, args[1]), *args[2:])
            slots["__globals__"] = self._with_parts(
                slots["__globals__"], names_in(function.__code__)
            )
        for name in ("__globals__", "__kwdefaults__"):
            slots[name] = slots[name] and lazy_values(slots[name])
        slots["__defaults__"] = slots["__defaults__"] and tuple(map(lazily, slots["__defaults__"]))
        slots["__annotations__"] = without_frameworks(slots["__annotations__"])
        return (make, args, (lazy_values(attributes), slots), *rest)

    def _namespace(self, function: FunctionType, special: dict[str, Any]) -> object:
        """Return the globals of a function, of its module if a part of that is sent.

        ``special``: its __file__ etc.
        """
        module = sys.modules.get(function.__module__)
        if not self._is_sent(module) or vars(module) is not function.__globals__:
            return special
        name = str(function.__module__)
        return self._namespaces.setdefault(name, _Made(_parts.namespace, (name, special)))

    def _with_parts(self, members: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Return members with parts in the place of modules.

        The parts have what a function with these names may ask for.
        """
        return {
            name: _Made(
                _parts.partial,
                (value.__name__,),
                lazy_values(
                    self._with_parts({n: v for n, v in vars(value).items() if n in names}, names)
                ),
            )
            if self._is_sent(value)
            else on_demand(value)
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
        if not self._has_lazy(obj):
            return NotImplemented
        reduced: Any = obj.__reduce_ex__(_buffers.PROTOCOL)
        if not _has_state(reduced) or not isinstance(reduced[2], dict):
            return reduced
        return (*reduced[:2], lazy_values(reduced[2]), *reduced[3:])


def watching_pickler() -> type[Pickler]:
    """Return a class of picklers that lists the objects that they see.

    Pickle asks for the persistent id of each object, and None is none.
    """
    visited: list[object] = []
    return type(
        "_Watching", (Pickler,), {"visited": visited, "persistent_id": staticmethod(visited.append)}
    )


class _Made:
    """Pickles as the call that makes it in a worker.

    The call is a function, its arguments and, for some, a state.
    """

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function, and the functions inside it, may look up.

    They look them up as globals or as attributes.
    """
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _has_state(reduced: Any) -> bool:
    return isinstance(reduced, tuple) and any(part is not None for part in reduced[2:3])


def _refuse_file(file: io.TextIOWrapper) -> Any:
    """Refuse what cloudpickle would send as its whole content.

    The standard streams are found again.
    """
    if file in (sys.stdout, sys.stderr):
        return NotImplemented
    raise pickle.PicklingError(f"cannot pickle the open file {file.name}")


# ---- what is apart from a dataset's own pickle ----


class Parts(NamedTuple):
    """What a dataset needs of the user's modules.

    These are the names, a pickle stream with its large buffers, and the modules that it imports.
    """

    names: frozenset[tuple[str, str]] = frozenset()
    streams: tuple[memoryview, ...] = ()
    modules: frozenset[str] = frozenset()


def take_apart(obj: object, known: Parts | None, *, watch: bool = False) -> tuple[Pickled, Parts]:
    """Return the pickle of ``obj``, and the parts of the user's modules that it needs.

    ``known``: the parts that workers have already; they stay as they were while they hold all that
        is needed.
    """
    known, named = known or Parts(), Named()
    try:
        pickled = dump(obj, (watching_pickler() if watch else Pickler)(named))
        return pickled, known if named.keys() <= known.names else _dump_parts(named)
    except Exception as error:
        if not named or isinstance(error, MemoryError):
            raise
    # Not within the handler: what this raises would come with the first error, and all of its
    # frames.
    pickled = dump(obj, (watching_pickler() if watch else Pickler)())
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
        return (
            self._registered(module, reduce, variable)
            if _modules.by_value(module)
            else NotImplemented
        )

    def _registered(self, module: str, reduce: Callable[[Any], Any], obj: Any) -> Any:
        """Return what ``reduce`` gives for an object of a module that travels by value.

        cloudpickle is told of the module for as long as that takes.
        """
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
    """Raise PicklingError for what needs its module to have run in the worker.

    It would be another class there, or fail.
    """
    name = f"{obj.__module__}.{obj.__qualname__}"
    if isinstance(obj, FunctionType):
        if any(
            map(
                _modules.by_value,
                _imported_in(obj.__code__, obj.__globals__.get("__package__") or ""),
            )
        ):
            message = f"{name} imports, when called, a module that travels by value"
            raise pickle.PicklingError(message)
        return
    if not issubclass(type(obj), type):
        return
    bases = [
        base for base in obj.__mro__[1:] if base is not object and not of_framework(base.__module__)
    ]
    hooked = any("__init_subclass__" in vars(base) for base in bases if base.__module__ != "typing")
    if hooked or type(obj).__module__ not in _PLAIN_METACLASSES:
        message = (
            f"{name} has a metaclass or an __init_subclass__, which would run again in a worker"
        )
        raise pickle.PicklingError(message)
    for member in vars(obj).values():
        if isinstance(member, FunctionType):
            _check_fit(member)


def _imported_in(code: CodeType, package: str) -> set[str]:
    """Return the modules that the import statements inside a function of this package name."""
    found = set().union(
        *(_imported_in(const, package) for const in code.co_consts if isinstance(const, CodeType))
    )
    for what, found_there in ModuleFinder().scan_opcodes(code):
        if what != "store":
            *level, names, module = found_there
            root = resolve_name("." * sum(level) + module, package)
            found |= {root, *(f"{root}.{name}" for name in names or ())}
    return found

"""How a dataset is taken apart: cloudpickle, with its own ways for arrays, tensors and frameworks.

    np.memmap, views of one    file name, offset and layout
    other arrays               one contiguous buffer, whatever the dtype; out of band from 4 KiB
    torch CPU tensors          likewise
    framework modules, and what user code refers to in them: LazyObject (see `lazy`)
    the dataset bases of Keras and torch: the stand-ins
    classes and functions of the user's modules whose import would import a framework: by value, as
    those of a script (see `modules`); such a module itself is a ModulePart

Everything else goes cloudpickle's way, framework instances included. Where a user's module cannot
travel by value, it is imported by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import sys
import typing
from contextlib import suppress
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle
import cloudpickle.cloudpickle as _cloudpickle
import numpy as np

from ringfeed.transport import arrays as _buffers
from ringfeed.transport import modules as _modules
from ringfeed.transport.framework_stubs import (
    LazyObject,
    ModulePart,
    named_lazily,
    of_framework,
    standin,
    standin_for,
    with_members,
)
from ringfeed.transport.lazy import (
    clashes,
    lazily,
    lazy_members,
    lazy_values,
    reduce_cell,
    reduce_code,
    reduce_field,
    reduce_partial,
    stays,
    without_frameworks,
)
from ringfeed.transport.unpacking import with_cache

if TYPE_CHECKING:
    import pickle
    from collections.abc import Callable

MOST_COMPARED = 1 << 26  # bytes of a pickle, which are hashed in a tenth of a second
CACHED = type(functools.lru_cache(lambda: None))
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
# Of a function, beside its code, its globals and its closure.
_KEPT = ("__module__", "__name__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__")


def dump(obj: object, *, watch: bool = False) -> Pickler:
    """Return the pickler that has pickled ``obj``.

    Where a module of the user cannot travel by value, no module does, and those that were tried
    are imported from now on.
    """
    first = Pickler(by_value=True, watch=watch)
    try:
        return first.dumped(obj)
    except Exception as error:
        if not first.sent or isinstance(error, MemoryError):
            raise
    # Not within the handler: what this raises would come with the first error, and all of its
    # frames.
    second = Pickler(watch=watch).dumped(obj)
    _modules.by_reference(first.sent)
    return second


def failure(obj: object, pickler: Pickler | None = None) -> Exception | None:
    """Return what pickling ``obj`` raises."""
    try:
        (pickler or Pickler()).dumped(obj)
    except Exception as error:  # noqa: BLE001 - any of them is the answer
        return error
    return None


def fingerprint(obj: object) -> bytes | None:
    """Return a hash that changes with the object.

    None where its pickle is large, or it has none.
    """
    stream = _Hashed()
    try:
        for buffer in Pickler(stream).dumped(obj).buffers:
            stream.write(buffer)
    except Exception:  # noqa: BLE001
        # Any of them: what is the matter is told where the object is sent.
        return None
    return stream.hash.digest()


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


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler; ``reducer_override`` sees every object but the plainest builtins."""

    def __init__(self, stream: Any = None, *, by_value: bool = False, watch: bool = False) -> None:
        """Send modules of the user ``by_value``, as far as they lead to a framework."""
        self.stream = io.BytesIO() if stream is None else stream
        self.dispatch_table: dict[Any, Callable[[Any], Any]] = {
            # A plain dict, as pickle looks there for nearly each object.
            **cloudpickle.Pickler.dispatch_table,
            np.ndarray: _buffers.reduce_array,
            np.memmap: _buffers.reduce_array,
            LazyObject: LazyObject.__reduce__,
            CellType: reduce_cell,
            CodeType: reduce_code,
            functools.partial: reduce_partial,
            CACHED: self._reduce_cached,
            dataclasses.Field: reduce_field,
            io.TextIOWrapper: _reduce_file,
            typing.TypeVar: self._reduce_typevar,
            ModuleType: self._reduce_module,
            ModulePart: ModulePart.__reduce__,
        }
        # A torch that is still being imported has no Tensor yet, and the dataset no tensors.
        if (tensor := getattr(sys.modules.get("torch"), "Tensor", None)) is not None:
            self.dispatch_table[tensor] = self._reduce_tensor
        super().__init__(self.stream, protocol=_buffers.PROTOCOL, buffer_callback=self._is_in_band)
        self.buffers: list[memoryview] = []  # large ones, uncopied
        self.modules: set[str] = set()  # from which the pickle refers to classes and functions
        self.sent: set[str] = set()  # modules of which something travels by value
        self.visited: list[object] = []  # each object for each mention, if they are watched
        if watch:
            # Pickle asks for the persistent id of each object, and None is none.
            self.persistent_id = self.visited.append
        self._by_value = by_value
        self._staying: set[type] = set()  # of attributes that are never made lazy

    def dumped(self, obj: object) -> Pickler:
        """Pickle ``obj``, and return this pickler."""
        try:
            self.dump(obj)
        finally:
            # Else it keeps what it has seen until the garbage collector finds its cycle.
            self.clear_memo()
        return self

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
        if kind in self.dispatch_table:
            return NotImplemented
        # Not isinstance: a proxy has the __class__ of what it stands for.
        if not issubclass(kind, _NAMED):
            return self._reduce_instance(obj)
        if issubclass(kind, ModuleType):
            return self._reduce_module(obj)
        reduced = self._reduce_class(obj) if issubclass(kind, type) else self._reduce_function(obj)
        if reduced is NotImplemented:
            self.modules.add(str(obj.__module__))
        return reduced

    # ---- modules of the user ----

    def _sends(self, name: object) -> bool:
        """Whether what a module of the user holds travels by value."""
        # The main module of a process that multiprocessing spawned has this name, which no worker
        # can import.
        return name == "__mp_main__" or (self._by_value and _modules.by_value(name))

    def _note_sent(self, module: str, obj: Any) -> None:
        """Note a module of which a class or function is sent; PicklingError where it cannot be."""
        if module not in _modules.MAIN:
            self.sent.add(module)
            _modules.check_fit(obj)

    def _reduce_module(self, module: ModuleType) -> Any:
        name = module.__name__
        if of_framework(name):
            return LazyObject, (name,)
        if not self._sends(name):
            return _cloudpickle._module_reduce(module)  # noqa: SLF001
        places = {place: vars(module).get(place) for place in ("__package__", "__file__")}
        return ModulePart, (name,), places

    def _reduce_anew(self, obj: Any) -> Any:
        """Return what cloudpickle makes of a class or function."""
        module = obj.__module__
        if not self._sends(module) or _modules.found_at(module, obj.__qualname__) is not obj:
            return super().reducer_override(obj)
        self._note_sent(module, obj)
        if type(obj) is FunctionType:
            return self._dynamic_function_reduce(obj)
        return _cloudpickle._dynamic_class_reduce(obj)  # noqa: SLF001

    def _reduce_typevar(self, variable: Any) -> Any:
        """Make a type variable anew where its module travels by value."""
        if not self._sends(variable.__module__):
            return _cloudpickle._typevar_reduce(variable)  # noqa: SLF001
        return _cloudpickle._make_typevar, _cloudpickle._decompose_typevar(variable)  # noqa: SLF001

    def _reduce_cached(self, cached: Any) -> Any:
        """Send a cached function by value where a worker must not import its module.

        The user's main module is one.
        """
        module, name = cached.__module__, cached.__qualname__
        by_name = module not in _modules.MAIN and not self._sends(module)
        if by_name and _modules.found_at(module, name) is cached:
            return name
        return with_cache, (cached.__wrapped__, cached.cache_parameters())

    # ---- functions, classes and instances ----

    def _reduce_function(self, function: Any) -> Any:
        reduced = self._reduce_anew(function)
        if not _has_state(reduced):
            return reduced
        make, args, (attributes, slots), *rest = reduced
        slots["__globals__"] = self._parts(slots["__globals__"], names_in(function.__code__))
        slots["__kwdefaults__"] = slots["__kwdefaults__"] and lazy_values(slots["__kwdefaults__"])
        slots["__defaults__"] = slots["__defaults__"] and tuple(map(lazily, slots["__defaults__"]))
        slots["__annotations__"] = without_frameworks(slots["__annotations__"])
        return (make, args, (lazy_values(attributes), slots), *rest)

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        """Leave out annotations that cannot be made.

        Python 3.14 makes them when they are asked for: they may name what only a type checker has.
        """
        with suppress(Exception):  # an annotation is any code
            return super()._dynamic_function_reduce(function)
        twin = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
        functools.update_wrapper(twin, function, _KEPT)
        del twin.__wrapped__  # type: ignore[attr-defined]
        return super()._dynamic_function_reduce(twin)

    def _function_getnewargs(self, function: FunctionType) -> Any:
        """Let the functions of a module that travels by value have its part as their globals."""
        table = function.__globals__
        module = sys.modules.get(table.get("__name__", ""))
        if module and vars(module) is table and self._sends(module.__name__):
            self._note_sent(module.__name__, function)
            self.globals_ref.setdefault(id(table), _Made(vars, module))
        return super()._function_getnewargs(function)

    def _parts(self, members: dict[str, Any], names: set[str]) -> dict[str, Any]:
        """Return globals as a worker has them.

        A part of a module has what a function with these names may ask for.
        """
        # Without the own name of each: modules refer to each other.
        return {name: self._part(value, names - {name}) for name, value in members.items()}

    def _part(self, value: Any, names: set[str]) -> Any:
        if not isinstance(value, ModuleType):
            return lazily(value)
        if not _modules.is_users(value.__name__):
            return value
        asked = {name: vars(value)[name] for name in sorted(names & vars(value).keys())}
        held = self._parts(asked, names)
        if self._sends(value.__name__):
            return _Made(with_members, value, held)
        # A package without a framework may have a module with one.
        parts = {name: part for name, part in held.items() if type(part) is _Made}
        package = _Made(ModulePart, value.__name__)
        return _Made(with_members, package, parts) if parts else value

    def _reduce_class(self, cls: type) -> Any:
        if (base := standin_for(cls)) is not None:
            return standin, (base.__name__,)
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

    def _reduce_instance(self, obj: object) -> Any:
        """Make attributes of an instance lazy."""
        state = getattr(obj, "__dict__", None)
        if not isinstance(state, dict) or self._staying.issuperset(map(type, state.values())):
            return NotImplemented
        self._staying.update(filter(stays, map(type, state.values())))
        if of_framework(type(obj).__module__) or all(
            lazily(value) is value for value in state.values()
        ):
            return NotImplemented
        reduced: Any = obj.__reduce_ex__(_buffers.PROTOCOL)
        if not _has_state(reduced) or not isinstance(reduced[2], dict):
            return reduced
        return (*reduced[:2], lazy_values(reduced[2]), *reduced[3:])

    def _reduce_tensor(self, tensor: Any) -> Any:
        self.modules.add("torch")
        return _buffers.reduce_tensor(tensor)


class _Made:
    """Pickles as the call of a function that makes it in a worker."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self.call = make, args

    def __reduce__(self) -> Any:
        return self.call


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function, and the functions inside it, may look up.

    They look them up as globals or as attributes.
    """
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _has_state(reduced: Any) -> bool:
    return isinstance(reduced, tuple) and len(reduced) > 2 and reduced[2] is not None  # noqa: PLR2004


def _reduce_file(file: io.TextIOWrapper) -> Any:
    """Refuse what cloudpickle would send as its whole content.

    The standard streams are found again.
    """
    is_standard = file in (sys.stdout, sys.stderr)
    return _cloudpickle._file_reduce(file) if is_standard else file.__reduce_ex__(_buffers.PROTOCOL)  # noqa: SLF001

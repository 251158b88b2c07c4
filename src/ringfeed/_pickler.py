"""How a dataset is taken apart: cloudpickle, with its own ways for arrays, tensors and frameworks.

    np.memmap, views of one    file name, offset and layout
    other arrays               one contiguous buffer, whatever the dtype; out of band from 4 KiB
    torch CPU tensors          likewise
    framework modules          LazyModule
    framework functions and classes that user code refers to by a global, a closure variable, a default,
                               an attribute or a functools.partial: LazyObject
    the dataset bases of Keras and torch: the stand-ins
    annotations that name a framework: dropped

Everything else goes cloudpickle's way, framework instances included.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import operator
import pickle
import sys
import typing
from abc import ABCMeta
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from ringfeed import _buffers, standins
from ringfeed.standins import LazyModule, LazyObject, of_framework, standin_for

if TYPE_CHECKING:
    from collections.abc import Callable


def dump(obj: object, buffers: list[memoryview], visited: list[object] | None = None) -> memoryview:
    """The pickle stream of ``obj``; its large buffers are appended to ``buffers``, uncopied.

    ``visited`` takes each object that pickle comes to see, once for each mention.
    """

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _buffers.LARGE:
            buffers.append(raw)
        return raw.nbytes < _buffers.LARGE

    stream = io.BytesIO()
    _dump(obj, stream, in_band, visited)
    # Not getbuffer(): a BytesIO with a view on it complains when the garbage collector closes it.
    return memoryview(stream.getvalue())


def failure(obj: object) -> Exception | None:
    """What pickling ``obj`` raises; nothing is kept of what it gives."""
    try:
        _dump(obj, _Nowhere(), lambda _: False)
    except Exception as error:  # noqa: BLE001 - any of them is the answer
        return error
    return None


_Cached = type(functools.lru_cache(lambda: None))


class _Nowhere(io.RawIOBase):
    def write(self, chunk: Any) -> int:
        return len(chunk)


def _dump(
    obj: object,
    stream: Any,
    in_band: Callable[[pickle.PickleBuffer], bool],
    visited: list[object] | None = None,
) -> None:
    # The main module of a process that multiprocessing spawned has this name, which no worker can import.
    main = sys.modules.get("__mp_main__")
    by_value = main is not None and main.__name__ not in cloudpickle.list_registry_pickle_by_value()
    if by_value:
        cloudpickle.register_pickle_by_value(main)
    try:
        kind = _Pickler if visited is None else _watched(visited)
        kind(stream, in_band).dump(obj)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(main)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler; ``reducer_override`` sees every object but the plainest builtins."""

    def __init__(self, stream: Any, in_band: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(stream, protocol=_buffers.PROTOCOL, buffer_callback=in_band)
        self._reducers: dict[type, Callable[[Any], Any]] = {
            np.ndarray: _buffers.reduce_array,
            np.memmap: _buffers.reduce_array,
            LazyObject: LazyObject.__reduce__,
            CellType: self._reduce_cell,
            FunctionType: self._reduce_function,
            functools.partial: _reduce_partial,
            _Cached: _reduce_cached,
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
        reduced = reduce(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced

    def _by_kind(self, obj: object) -> Callable[[Any], Any]:
        if issubclass(type(obj), type):  # not isinstance: in Python 3.10 list[int] is an instance of type
            return self._reduce_class
        return _reduce_module if isinstance(obj, ModuleType) else self._reduce_instance

    def _reduce_class(self, cls: type) -> Any:
        standin = standin_for(cls)
        if standin is not None:
            return standins.standin, (standin.__name__,)
        reduced = super().reducer_override(cls)
        if not _has_state(reduced):  # by reference, or one of the builtin types
            return reduced
        make, args, (members, slots), *rest = reduced
        if _clashes(cls):
            bases = tuple(_Original(base) if standin_for(base) else base for base in cls.__bases__)
            args = (*args[:2], bases, *args[3:])
        return (make, args, (_lazy_members(members), slots), *rest)

    def _reduce_function(self, function: FunctionType) -> Any:
        reduced = super().reducer_override(function)
        if reduced is NotImplemented:
            return reduced
        make, args, (attributes, slots), *rest = reduced
        for name in ("__globals__", "__kwdefaults__"):
            slots[name] = slots[name] and _lazy_values(slots[name])
        slots["__defaults__"] = slots["__defaults__"] and tuple(map(lazily, slots["__defaults__"]))
        slots["__annotations__"] = _without_frameworks(slots["__annotations__"])
        return (make, args, (_lazy_values(attributes), slots), *rest)

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


def _reduce_module(module: ModuleType) -> Any:
    return (LazyModule, (module.__name__,)) if of_framework(module.__name__) else NotImplemented


def _reduce_partial(partial: functools.partial[Any]) -> Any:
    lazy = lazily(partial.func)
    if lazy is partial.func:
        return NotImplemented
    return functools.partial(lazy, *partial.args, **partial.keywords).__reduce__()


def _reduce_cached(cached: Any) -> Any:
    """Send what lru_cache made by value where its name would lead a worker into the user's main module."""
    module = cached.__module__
    if module not in ("__main__", "__mp_main__") and _found(module, cached.__qualname__) is cached:
        return NotImplemented
    return standins.cached, (cached.__wrapped__, cached.cache_parameters())


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

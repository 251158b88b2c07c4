"""Parts of the user's modules in a worker: the classes, functions and globals that a dataset needs of them.

They are sent once, and the dataset's pickles refer to them by name, as if their module had been imported. What was not
sent is found by importing the module.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_modules: dict[str, Partial] = {}
_named: dict[tuple[str, str], object] = {}
_loaded: set[bytes] = set()


class Partial(ModuleType):
    """A module of the user of which a part was sent; any other attribute imports the real module."""

    def __getattr__(self, name: str) -> object:
        """Look in the real module."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return partial, (self.__name__,)


def load(stream: memoryview, buffers: Iterable[memoryview]) -> None:
    """Take in what was sent of the user's modules; twice the same has no effect the second time."""
    content = bytes(stream)
    if content not in _loaded:
        _named.update(pickle.loads(content, buffers=buffers))  # noqa: S301 - the consumer pickled it
        _loaded.add(content)


def partial(name: str) -> Partial:
    """Return the module of this name, of which some part was or will be sent."""
    return _modules.setdefault(name, Partial(name))


def namespace(name: str, special: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of such a module, with its ``__file__`` and the like."""
    found = vars(partial(name))
    found.update(special)
    return found


def named(module: str, name: str) -> object:
    """Return a class or function by its name: the one that was sent, else that of the module, imported."""
    if (module, name) in _named:
        return _named[module, name]
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def were_sent() -> bool:
    """Whether this process has parts of modules."""
    return bool(_named)


def was_sent(cls: type) -> bool:
    """Whether a class came as part of a module that this process has not imported."""
    return cls.__module__ in _modules and cls.__module__ not in sys.modules


def pickled(obj: object, keep: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Pickle an object, which the consumer unpickles: by value what lives in a script, by name what came as a part.

    ``keep``: takes large buffers out, as pickle's ``buffer_callback``.
    """
    import cloudpickle  # noqa: PLC0415 - for such classes

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if issubclass(type(obj), type) and was_sent(obj):
                return named, (obj.__module__, obj.__qualname__)
            return super().reducer_override(obj)

    stream = io.BytesIO()
    Pickler(stream, 5, buffer_callback=keep).dump(obj)
    return stream.getvalue()

"""Parts of the user's modules in a worker: classes, functions and globals of a dataset.

They are sent once, and the dataset's pickles refer to them by name, as if their module had been
imported. What was not sent is found by importing the module.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sent:
    """What was sent of the user's modules."""

    current: ContextVar[Sent]
    """That of this process, but while a copy of a dataset is made in the process that sends it."""

    def __init__(self) -> None:
        self.modules: dict[str, Partial] = {}
        self.named: dict[tuple[str, str], object] = {}
        self.loaded: set[bytes] = set()


# One for all threads of this process.
Sent.current = ContextVar("sent", default=Sent())  # noqa: B039 - the comment above


class Partial(ModuleType):
    """A module of the user, partly sent; any other attribute imports the real module."""

    def __getattr__(self, name: str) -> object:
        """Look in the real module."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return partial, (self.__name__,)


def load(stream: memoryview, buffers: Iterable[memoryview]) -> None:
    """Take in what was sent of the user's modules; twice the same has no effect the second time."""
    content, sent = bytes(stream), Sent.current.get()
    if content not in sent.loaded:
        sent.named.update(pickle.loads(content, buffers=buffers))  # noqa: S301 - our pickle
        sent.loaded.add(content)


def partial(name: str) -> Partial:
    """Return the module of this name, of which some part was or will be sent."""
    return Sent.current.get().modules.setdefault(name, Partial(name))


def namespace(name: str, special: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of such a module, with its ``__file__`` and the like."""
    found = vars(partial(name))
    found.update(special)
    return found


def named(module: str, name: str) -> object:
    """Return a class or function by its name: as it was sent, else from its imported module."""
    found: Any = Sent.current.get().named.get((module, name))
    if found is None:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    return found


def pickled(obj: object, *, by_value: bool = False) -> bytes:
    """Pickle an object for another process; classes of partly sent modules go by name.

    Plain pickle would import the whole module. ``by_value`` is for classes and functions that no
    import finds.
    """
    modules = Sent.current.get().modules
    if not modules and not by_value:
        return pickle.dumps(obj, 5)
    base: Any = pickle.Pickler
    if by_value:
        import cloudpickle  # noqa: PLC0415 - for such classes

        base = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if (
                issubclass(type(obj), type)
                and obj.__module__ in modules
                and obj.__module__ not in sys.modules
            ):
                return named, (obj.__module__, obj.__qualname__)
            return super().reducer_override(obj) if by_value else NotImplemented

    stream = io.BytesIO()
    Pickler(stream, 5).dump(obj)
    return stream.getvalue()

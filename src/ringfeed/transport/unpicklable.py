"""Which part of a dataset cannot be pickled, and the way to it, after pickling has failed.

The culprit is what pickle came to see last, when the dataset is pickled again. The way to it is
looked for along the references of the dataset, the nearest objects first.
"""

from __future__ import annotations

import copyreg
import functools
import io
from collections import deque
from itertools import islice
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

from cloudpickle.cloudpickle import _extract_code_globals

from ringfeed._classes import module_of, root_of
from ringfeed.transport.arrays import PROTOCOL
from ringfeed.transport.pickler import failure, watching_pickler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_OBJECTS = 1_000_000  # looked at
MAX_CHILDREN = 1_000_000  # of one object
SHOWN_KEY = 40  # characters of a dict's key

_WAYS_OUT = (
    "create it on first use in __getitem__, in each worker, and leave it out in __getstate__ "
    "if this process reads the dataset too"
)
_SAMPLER = "ringfeed.orders.prioritized.PrioritizedSampler"  # a worker's would hear of no update
_WORDS = {
    _SAMPLER: "a PrioritizedSampler",
    "builtins.generator": "a generator",
    "builtins.coroutine": "a coroutine",
    "builtins.async_generator": "an asynchronous generator",
    "_thread.lock": "a lock",
    "_thread.RLock": "a lock",
    "_thread._local": "a thread local",
    "_thread._localdummy": "a thread local",
    "socket.socket": "a socket",
    "sqlite3.Connection": "a database connection",
    "sqlite3.Cursor": "a database cursor",
}

PLAIN = frozenset((int, float, complex, str, bytes, bytearray, bool, type(None)))
"""Types of objects that refer to nothing."""

Step = tuple[str, Any]  # what to append to the path, and the child it leads to


def explain(obj: object, name: str, error: Exception) -> str:
    """Say which part of ``obj`` cannot travel, and the ways out.

    The path to it starts at ``name``.
    """
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return (
            f"{name} is nested too deeply to be pickled for a worker process; "
            'keep its parts in a list or a dict, or use backend="thread" or "fork"'
        )
    watching = watching_pickler()
    reason = failure(obj, watching)
    culprit = watching.visited[-1] if reason else obj
    labels, holder = _way_to(culprit, obj) or (None, obj)
    where = f"something in {name}" if labels is None else users_path(obj, name, labels)
    way_out = _WAYS_OUT
    if _full_name(culprit) == _SAMPLER:
        way_out = "leave it out in __getstate__, and use it in this process"
    elif words(culprit) == "a lock" and _is_of_keras(type(holder)):
        way_out = 'it is of Keras\' own, so give backend="thread", whose workers share it'
    what = f"{where} is {words(culprit, reason or error)}"
    return f"{what} and cannot be sent to a worker process; {way_out}"


def _is_of_keras(kind: type) -> bool:
    """Whether Keras has made what an object of this class holds.

    Keras' base class of datasets holds nothing.
    """
    bases = (base for base in kind.__mro__ if base.__name__ not in {"PyDataset", "Sequence"})
    return not {"keras", "tf_keras", "keras_preprocessing"}.isdisjoint(map(root_of, bases))


def _full_name(culprit: object) -> str:
    return f"{module_of(type(culprit))}.{type(culprit).__qualname__}".lstrip(".")


def users_path(root: Any, name: str, labels: Iterable[str]) -> str:
    """Join the path to a part of the user's own dataset.

    What ringfeed puts around it is left out.
    """
    steps = [*labels]
    while steps and getattr(type(root), "holds_dataset", False):
        if steps[0] == ".functions":
            names = root.functions._fields
            # A NamedTuple is a tuple, too.
            numbered = {f"[{number}]": f".{one}" for number, one in enumerate(names)}
            own = steps[1:] and [numbered.get(steps[1], steps[1]), *steps[2:]]
            return joined(own).removeprefix(".") or name
        if steps[0] != ".dataset":
            break
        root = root.dataset
        del steps[0]
    return name + joined(steps)


def joined(labels: Iterable[str]) -> str:
    """Join the steps of a path; the name of a variable is quoted together with what follows it."""
    path, end = "", ""
    for label in labels:
        if label.startswith(": "):
            path, end = path + end, "'"
        path += label
    return path + end


def words(culprit: object, reason: Exception | None = None) -> str:
    """Say what an object is that a worker process cannot have."""
    kind, full_name = type(culprit), _full_name(culprit)
    if isinstance(culprit, io.IOBase):
        return f"an open file ({getattr(culprit, 'name', None)!r})"
    if full_name in _WORDS:
        return _WORDS[full_name]
    if root_of(kind) == "h5py":
        return f"an h5py object ({kind.__name__})"
    return f"a {full_name} object" + (
        f" ({type(reason).__name__}: {reason})" if reason is not None else ""
    )


def _way_to(culprit: object, root: object) -> tuple[list[str], object] | None:
    """Return the shortest way to the culprit, and what holds it; None where it is too far off."""
    seen = {id(root): root}  # keeps the objects, or their ids would be used again
    to_do: deque[tuple[list[str], object, object]] = deque([([], root, root)])
    while to_do and len(seen) < MAX_OBJECTS:
        labels, obj, holder = to_do.popleft()
        if obj is culprit:
            return labels, holder
        for label, child in islice(_children(obj), MAX_CHILDREN):
            if type(child) not in PLAIN and id(child) not in seen:
                seen[id(child)] = child
                to_do.append(([*labels, label], child, obj))
    return None


def _children(obj: Any) -> Iterable[Step]:
    """Return what pickling ``obj`` pickles besides."""
    parts = PARTS.get(type(obj))
    if parts is not None:
        return parts(obj)
    if isinstance(obj, type):
        return parts_of_class(obj)
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return [(f".{field}", value) for field, value in zip(obj._fields, obj, strict=False)]
    return _parts_of_instance(obj)


def _entries(pairs: Iterable[tuple[Any, Any]]) -> Iterator[Step]:
    for key, value in pairs:
        shown = repr(key)
        shown = shown if len(shown) <= SHOWN_KEY else shown[: SHOWN_KEY - 1] + "…"
        yield f".keys() {shown}", key
        yield f"[{shown}]", value


def _elements(elements: Iterable[Any]) -> Iterator[Step]:
    return ((f"[{number}]", element) for number, element in enumerate(elements))


def parts_of_function(function: FunctionType) -> Iterator[Step]:
    """Yield the variables, globals, defaults and attributes of a function."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f": variable '{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    table = function.__globals__
    named = sorted(_extract_code_globals(code).keys() & table.keys())  # which are pickled with it
    yield from ((f": global '{name}", table[name]) for name in named)
    positional = reversed(code.co_varnames[: code.co_argcount])
    last_first = zip(positional, reversed(function.__defaults__ or ()), strict=False)
    for name, value in (*last_first, *(function.__kwdefaults__ or {}).items()):
        yield f": default '{name}", value
    yield from ((f".{name}", value) for name, value in vars(function).items())


def parts_of_class(cls: type) -> Iterator[Step]:
    """Yield the members and bases of a class."""
    for name, member in vars(cls).items():
        # Made anew with the class, and never pickled.
        if name != "_abc_impl" and not isinstance(
            member, GetSetDescriptorType | MemberDescriptorType
        ):
            yield f".{name}", member
    yield from (("", base) for base in cls.__bases__)


def _parts_of_instance(obj: Any) -> Iterator[Step]:
    try:
        reduce = copyreg.dispatch_table.get(type(obj))
        reduced: Any = reduce(obj) if reduce else obj.__reduce_ex__(PROTOCOL)
    except Exception:  # noqa: BLE001 - then it is at fault itself, whatever it raised
        return
    if isinstance(reduced, str):
        return
    arguments, state, elements, entries = [*reduced, None, None, None][1:5]
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f".{name}", value) for name, value in part.items())
        else:
            yield ".__getstate__()", part
    yield from _elements(elements or ())
    yield from _entries(entries or ())
    yield "", type(obj)
    yield from ((f".__reduce__()[1]{label}", argument) for label, argument in _elements(arguments))


PARTS: dict[type, Callable[[Any], Iterable[Step]]] = {
    dict: lambda table: _entries(table.items()),
    list: _elements,
    tuple: _elements,
    set: _elements,
    frozenset: _elements,
    FunctionType: parts_of_function,
    MethodType: lambda method: [(".__self__", method.__self__), ("", method.__func__)],
    staticmethod: lambda method: [("", method.__func__)],
    classmethod: lambda method: [("", method.__func__)],
    property: lambda prop: [("", function) for function in (prop.fget, prop.fset, prop.fdel)],
    functools.partial: lambda call: [
        (".func", call.func),
        (".args", call.args),
        (".keywords", call.keywords),
    ],
}

"""What a dataset is, as a hash that another run finds, too: its state, and the user's code.

The pickle for workers cannot say it: cloudpickle numbers classes anew in each process, and what two
places of an object share depends on the run. So nothing is remembered here, and classes and
functions are written as what they do.
"""

from __future__ import annotations

import hashlib
import pickle
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._classes import fingerprint_of
from ringfeed.transport.arrays import reduce_array
from ringfeed.transport.modules import is_users
from ringfeed.transport.pickler import names_in
from ringfeed.transport.shared_dataset import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODE = type, FunctionType, staticmethod, classmethod, property
_PLAIN = bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, np.ndarray


def fingerprint(dataset: Any) -> str | None:
    """Return the dataset's own fingerprint, or one of its state and code; None: it has none.

    It sees what pickle does, and the code of the user's classes and functions as far as they name
    each other; not the content of files, nor that of installed packages.
    """
    try:
        return fingerprint_of(dataset) or _hashed(dataset)
    except Exception:  # noqa: BLE001 - of the user's classes; or it contains itself
        return None


def _hashed(obj: Any) -> str:
    stream = _Hash()
    stream.dump(obj)
    return stream.hash.hexdigest()


class _Hash(pickle.Pickler):
    """A pickler whose stream is alike for all that is alike, and is hashed."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        super().__init__(self, 5, buffer_callback=self._add)
        self.fast = True  # what is met again is written again
        self._written: set[int] = set()  # classes and functions, which name each other

    def write(self, chunk: Any) -> None:
        self.hash.update(chunk)

    def _add(self, buffer: pickle.PickleBuffer) -> None:
        """Hash a buffer; of a large one every second, third, ... byte."""
        raw = buffer.raw()
        self.hash.update(bytes(raw[:: 1 + raw.nbytes // WHOLE]))

    def persistent_id(self, obj: Any) -> Any:
        """Write a set in an order that does not depend on the run."""
        return sorted(map(_hashed, obj)) if type(obj) in {set, frozenset} else None

    def reducer_override(self, obj: Any) -> Any:
        """Return what is written for code, a module, an array, or a cache."""
        if getattr(type(obj), "holds_dataset", False):
            return str, (fingerprint_of(obj.dataset) or obj.dataset,)
        if isinstance(obj, type | FunctionType) and obj is not str:
            is_new = is_users(obj.__module__) and id(obj) not in self._written
            self._written.add(id(obj))
            return str, (obj.__qualname__, *(_parts_of(obj) if is_new else ()))
        if isinstance(obj, CodeType):
            return str, (obj.co_code, obj.co_consts, obj.co_names)
        if isinstance(obj, staticmethod | classmethod | property | ModuleType):
            names = "__name__", "__func__", "fget"
            return str, tuple(getattr(obj, name, None) for name in names)
        return reduce_array(obj) if isinstance(obj, np.ndarray) else NotImplemented


def _parts_of(obj: Any) -> Iterator[Any]:
    """Give what a class or a function does, as far as it says."""
    if isinstance(obj, type):
        yield obj.__bases__
        members = vars(obj)
        names = [name for name in members if not name.startswith("__") or callable(members[name])]
    else:
        yield obj.__code__, obj.__defaults__, obj.__kwdefaults__
        yield [cell.cell_contents for cell in obj.__closure__ or ()]
        members = obj.__globals__
        names = sorted(names_in(obj.__code__) & members.keys())
    for name in names:
        if isinstance(members[name], _CODE + _PLAIN):
            yield name, members[name]

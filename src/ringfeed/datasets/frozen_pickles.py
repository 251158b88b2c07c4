"""Items that only pickle takes, each pickled for itself.

No worker can import the main file of the user's program. So what an item has of it, classes and functions, lies beside
the pickles, which refer to it by number, and travels as all else does that a dataset has of that file.
"""

from __future__ import annotations

import io
import pickle
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAIN = ("__main__", "__mp_main__")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: dict[Any, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of what is of the main file; None: pickle refers to it itself."""
        is_named = issubclass(type(obj), type) or type(obj) is FunctionType
        if not is_named or getattr(obj, "__module__", None) not in _MAIN:
            return None
        return self._numbers.setdefault(obj, len(self._numbers))


class _Unpickler(pickle.Unpickler):
    def __init__(self, view: memoryview, beside: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(view))
        self._beside = beside

    def persistent_load(self, pid: Any) -> Any:
        return self._beside[pid]


def dump_all(items: Sequence[Any]) -> tuple[list[bytes], tuple[Any, ...]]:
    """Return a pickle of each, and what lies beside them; TypeError for an item that pickle refuses."""
    numbers: dict[Any, int] = {}
    return [_dumped(place, item, numbers) for place, item in enumerate(items)], tuple(numbers)


def _dumped(place: int, item: object, numbers: dict[Any, int]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, numbers).dump(item)
    except Exception as error:
        message = (
            f"items[{place}] is of type {type(item).__name__}, which cannot be pickled ({error}); expected "
            f"str, bytes, numbers, arrays, structures of them, or what pickle takes"
        )
        raise TypeError(message) from error
    return file.getvalue()


def loader_of(beside: Sequence[Any]) -> Callable[[memoryview], Any]:
    """Return what makes an item of its pickle."""
    return partial(_load, beside) if beside else pickle.loads


def _load(beside: Sequence[Any], view: memoryview) -> Any:
    return _Unpickler(view, beside).load()

"""A copy of a dataset, as a worker has it, in the process that sends it.

The first sample is read from this copy.

The dataset is pickled for the workers, and that pickle is opened here once. So what a sample opens,
counts or changes belongs to the copy, and goes with it. What travels by value (a script's
functions, classes and globals) is made anew in the copy. Classes of which samples and errors are
made stay the user's own: code compares them.
"""

from __future__ import annotations

import enum
import gc
import io
import pickle
import sys
import warnings
from abc import ABCMeta
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle.cloudpickle as by_value

from ringfeed._parts import Sent
from ringfeed.errors import WorkerError
from ringfeed.transport.shared_dataset import pack
from ringfeed.transport.unpacking import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.base import Source
    from ringfeed.transport.shared_dataset import DatasetPickle, SharedDataset

_T = TypeVar("_T")


def of_copy(obj: object, use: Callable[[Any], _T]) -> _T:
    """Return what ``use`` makes of a copy of a dataset, which a worker would have.

    Errors as of `pack`.
    """
    packed = pack(obj)
    with _closing():
        return use(
            opened_here(
                packed, [packed.stream, *(memoryview(bytearray(one)) for one in packed.buffers)]
            )
        )


@contextmanager
def _closing() -> Iterator[None]:
    """Drop a copy in silence: what it has opened is closed with it.

    Classes are cycles, and those that were made for the copy are young: the collector finds them in
    a moment.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect(1)


def opened_here(packed: DatasetPickle, views: Sequence[memoryview]) -> Any:
    """Return what was packed, made of its pieces; WorkerError where it cannot be unpickled."""
    (stream, *buffers), count = views, len(packed.parts.streams)
    sent = Sent()
    before = Sent.current.set(sent)
    try:
        if count:
            sent.named = _Unpickler(buffers[0], buffers[1:count]).made()
        return _Unpickler(stream, buffers[count:]).made()
    except Exception as error:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise WorkerError(
            f"the {packed.name} could not be unpickled for the workers: {text}"
        ) from error
    finally:
        Sent.current.reset(before)


@contextmanager
def read_from(source: Source, packed: DatasetPickle, sent: SharedDataset | None) -> Iterator[None]:
    """Have a source read a copy of its dataset for a while.

    ``sent``: the same in shared memory, whose pages the copy shares until it writes to them. None:
    it has the arrays of the dataset, for what does not write to them.
    """
    own = source.sent
    views = (
        [packed.stream, *packed.buffers]
        if sent is None
        else pieces_of(sent.manifest(), sent.fds)[2]
    )
    source.hold_sent(opened_here(packed, views))
    try:
        yield
    finally:
        source.end_reading()
        with _closing():
            source.hold_sent(own)


class _Unpickler(pickle.Unpickler):
    """Makes anew what travels by value.

    cloudpickle would find the user's own classes and set their attributes anew.
    """

    def __init__(self, stream: memoryview, buffers: Sequence[memoryview]) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._kept: set[type] = set()
        self._found = {
            (by_value.__name__, "_make_skeleton_class"): partial(
                self._make,
                by_value._make_skeleton_class,  # noqa: SLF001
            ),
            (by_value.__name__, "_make_skeleton_enum"): partial(
                self._make,
                by_value._make_skeleton_enum,  # noqa: SLF001
            ),
            (by_value.__name__, "_class_setstate"): self._set_state,
        }

    def made(self) -> Any:
        """Return what the stream holds, and keep nothing of it."""
        try:
            return self.load()
        finally:
            self.memo.clear()
            self._found.clear()

    def find_class(self, module: str, name: str) -> Any:
        """Return what the stream refers to."""
        return self._found.get((module, name)) or super().find_class(module, name)

    def _make(self, make: Callable[..., type], *args: Any) -> type:
        return self._own(args[-2]) or make(*args[:-2], None, args[-1])

    def _own(self, number: str) -> type | None:
        """Return the user's class that was pickled under a number, if it is to stay that."""
        own: type | None = by_value._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)  # noqa: SLF001
        if own is None or not _stays(own):
            return None
        self._kept.add(own)
        return own

    def _set_state(self, cls: type, state: Any) -> type:
        return cls if cls in self._kept else by_value._class_setstate(cls, state)  # noqa: SLF001


def _stays(own: type) -> bool:
    """Whether a class stays the user's: of samples, of errors, or one whose making runs code.

    A registry is one whose making runs code.
    """
    if issubclass(own, BaseException | enum.Enum) or hasattr(own, "_fields"):
        return True
    bases = [base for base in own.__mro__[1:-1] if base.__module__ not in sys.stdlib_module_names]
    hooked = any("__init_subclass__" in vars(base) for base in bases)
    return hooked or type(own) not in {type, ABCMeta}

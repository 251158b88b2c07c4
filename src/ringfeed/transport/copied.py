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
import random
import sys
import warnings
from abc import ABCMeta
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle.cloudpickle as by_value
import numpy as np

from ringfeed.errors import WorkerError
from ringfeed.transport.shared_dataset import DatasetPickle, SharedDataset, pack
from ringfeed.transport.unpacking import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.datasets.base import Source

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
    try:
        return _Unpickler(io.BytesIO(views[0]), buffers=views[1:]).load()
    except Exception as error:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise WorkerError(
            f"the {packed.name} could not be unpickled for the workers: {text}"
        ) from error


@contextmanager
def read_from(source: Source, packed: DatasetPickle, sent: SharedDataset | None) -> Iterator[None]:
    """Have a source read a copy of its dataset for a while.

    ``sent``: the same in shared memory, whose pages the copy shares until it writes to them. None:
    it has the arrays of the dataset, for what does not write to them.
    """
    own = source.sent
    views = [packed.stream, *packed.buffers] if sent is None else mapped(sent.fds, sent.pieces)
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

    def find_class(self, module: str, name: str) -> Any:
        """Return what the stream refers to."""
        found = super().find_class(module, name)
        if found is by_value._make_skeleton_class or found is by_value._make_skeleton_enum:  # noqa: SLF001
            return partial(_make, found)
        return _set_state if found is by_value._class_setstate else found  # noqa: SLF001


def _make(make: Callable[..., type], *args: Any) -> type:
    """Return the user's class that was pickled under a number, if it is to stay that."""
    *what, number, extra = args
    own = by_value._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)  # noqa: SLF001
    return own if own is not None and _stays(own) else make(*what, None, extra)


def _set_state(cls: type, state: Any) -> type:
    # Only what stays the user's has a number here.
    is_users = cls in by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
    return cls if is_users else by_value._class_setstate(cls, state)  # noqa: SLF001


def _stays(own: type) -> bool:
    """Whether a class stays the user's: of samples, of errors, or one whose making runs code.

    A registry is one whose making runs code.
    """
    if issubclass(own, BaseException | enum.Enum) or hasattr(own, "_fields"):
        return True
    bases = [base for base in own.__mro__[1:-1] if base.__module__ not in sys.stdlib_module_names]
    hooked = any("__init_subclass__" in vars(base) for base in bases)
    return hooked or type(own) not in {type, ABCMeta}


# ---- what is read here ----


@contextmanager
def random_kept(*own: Any) -> Iterator[None]:
    """Undo what reading here does to the global random numbers, and to these.

    The framework itself would read nothing here.
    """
    undo = [*map(_restorer, (random, np.random, *own))]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _restorer(draws: Any) -> Callable[[], object]:
    """Return what puts random numbers back to where they are now."""
    if isinstance(draws, np.random.Generator):
        return partial(setattr, draws.bit_generator, "state", draws.bit_generator.state)
    if hasattr(draws, "getstate"):  # Python's
        return partial(draws.setstate, draws.getstate())
    return partial(draws.set_state, draws.get_state())

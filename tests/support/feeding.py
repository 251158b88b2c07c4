"""A feed's functions in C, called as TensorFlow's op calls them: by threads that Python knows nothing of."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed.frameworks.tensorflow import _feed
from ringfeed.frameworks.tensorflow.feed import LoaderFeed
from ringfeed.loader import stream_of

if TYPE_CHECKING:
    import ringfeed

NEW = -1  # the state of an iteration without an epoch id
BATCH, ERROR, LATER = 0, 2, 3
INT64 = 9  # TensorFlow's number of the dtype
NUMBER, TEXT, ADDRESS = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p


class Handout(ctypes.Structure):
    """A batch on its way out: struct rf_handout."""

    _fields_ = (
        ("feed", ADDRESS),
        ("ring", ADDRESS),
        ("base", ADDRESS),
        ("slot", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("copy", ctypes.c_bool),
    )


def _call(place: int, answer: Any, *arguments: Any) -> Any:
    """Return a function of the table: struct rf_feed_calls."""
    table = (ADDRESS * 15).from_address(_feed.calls_address())
    return ctypes.CFUNCTYPE(answer, *arguments)(table[place])


_text, _handout = ctypes.POINTER(ADDRESS), ctypes.POINTER(Handout)
_begin = _call(8, ctypes.c_int, ctypes.c_uint64, NUMBER, NUMBER, ctypes.POINTER(NUMBER), _text)
_wait = _call(9, ctypes.c_int, ctypes.c_uint64, NUMBER, _text)
_next = _call(10, ctypes.c_int, ctypes.c_uint64, NUMBER, _handout, _text)
_hold = _call(12, ADDRESS, _handout)
_let_go = _call(13, None, ADDRESS, ctypes.c_size_t, ADDRESS)
_done = _call(14, None, _handout)
_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ADDRESS], None


class FeedError(Exception):
    """What the op would raise."""


def _answer(reply: int, error: Any) -> int:
    if reply == ERROR:
        text = ctypes.cast(error, TEXT).value
        _free(error)
        raise FeedError((text or b"").decode())
    return reply


class Tensor:
    """The rows of one leaf of int64 numbers, over the slot, which it holds until `let_go`."""

    def __init__(self, handout: Handout, offset: int, width: int) -> None:
        self._hold = _hold(handout)
        memory = (ctypes.c_int64 * (handout.rows * width)).from_address(handout.base + offset)
        self.rows = np.frombuffer(memory, np.int64).reshape(handout.rows, width)

    def let_go(self) -> None:
        """Let the slot be filled again."""
        _let_go(None, 0, self._hold)


class Steps:
    """A loader's batches of one leaf of int64 numbers, step by step, as the op has them."""

    def __init__(self, loader: ringfeed.Loader, count: int | None) -> None:
        """Each epoch has ``count`` batches, or None where that is not known."""
        stream = stream_of(loader)
        (self._offset,), (self._width,) = stream.info.offsets, stream.info.spec.leaves[0].shape
        self.count = count
        self._feed = LoaderFeed(stream, count, [INT64])

    def begin(self) -> int:
        """Return the id of a new epoch."""
        error, epoch_id = ADDRESS(), NUMBER()
        _answer(_begin(self._feed.number, NEW, 0, epoch_id, error), error)
        return epoch_id.value

    def next(self, epoch_id: int) -> Tensor | None:
        """Wait for the next batch; None at the end."""
        error, handout = ADDRESS(), Handout()
        while _answer(_wait(self._feed.number, epoch_id, error), error) == LATER:
            pass
        reply = _answer(_next(self._feed.number, epoch_id, handout, error), error)
        tensor = Tensor(handout, self._offset, self._width) if reply == BATCH else None
        _done(handout)
        return tensor

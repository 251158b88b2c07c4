"""An element of an iterable as bytes, and back: pickled, its large buffers beside, so that they are copied once."""

from __future__ import annotations

import io
import pickle
from struct import Struct
from typing import TYPE_CHECKING, Any

from ringfeed.transport import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    _Keep = Callable[[pickle.PickleBuffer], object] | None
    _Way = Callable[[Any, _Keep], bytes]

MOST_BUFFERS = 256  # that are written at once; an element with more is pickled as a whole
_ALIGN = 16  # bytes, of each buffer: malloc's
_SIZE = Struct("<Q")


class _ByName(pickle.Pickler):
    """Names the classes of modules of which parts were sent: plain pickle would import these modules."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and parts.was_sent(obj):
            return parts.named, (obj.__module__, obj.__qualname__)
        return NotImplemented


def _plainly(element: Any, keep: _Keep) -> bytes:
    if not parts.were_sent():
        return pickle.dumps(element, 5, buffer_callback=keep)
    stream = io.BytesIO()
    _ByName(stream, 5, buffer_callback=keep).dump(element)
    return stream.getvalue()


class Packer:
    """Makes bytes of elements; begins with the way that the one before has gone."""

    def __init__(self) -> None:
        """Begin with the quick way."""
        self._ways: tuple[_Way, ...] = (_plainly, parts.pickled)

    def pack(self, element: Any) -> list[Buffer]:
        """Return an element as bytes to be written one behind the other; raises what pickle does."""
        text, buffers = self._pickled(element, beside=True)
        raw = _raw(buffers)
        if raw is None:
            (text, _), raw = self._pickled(element, beside=False), []
        head = b"".join(map(_SIZE.pack, (len(raw), len(text), *(view.nbytes for view in raw))))
        return _padded([head, text, *raw])

    def _pickled(self, element: Any, *, beside: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Return an element's pickle and, where they lie ``beside`` it, its buffers."""
        for number, way in enumerate(self._ways):
            buffers: list[pickle.PickleBuffer] = []
            try:
                text = way(element, buffers.append if beside else None)
            except Exception:
                if way is self._ways[-1]:
                    raise
            else:
                self._ways = self._ways[number:]
                break
        return text, buffers


def _raw(buffers: Sequence[pickle.PickleBuffer]) -> list[memoryview] | None:
    """Return the bytes of buffers; None where they cannot be written as they are."""
    if len(buffers) > MOST_BUFFERS:
        return None
    try:
        return [buffer.raw() for buffer in buffers]
    except BufferError:  # not contiguous
        return None


def _padded(parts_of_it: Sequence[Buffer]) -> list[Buffer]:
    made: list[Buffer] = []
    for part in parts_of_it:
        size = memoryview(part).nbytes
        made.append(part)
        if size % _ALIGN:
            made.append(bytes(-size % _ALIGN))
    return made


def size_of(parts_of_it: Sequence[Buffer]) -> int:
    """Return how many bytes they are together."""
    return sum(memoryview(part).nbytes for part in parts_of_it)


def unpack(content: bytearray) -> Any:
    """Return the element that these bytes were made of; its arrays lie in them."""
    view = memoryview(content)
    (count,) = _SIZE.unpack_from(view)
    sizes = [_SIZE.unpack_from(view, 8 * (1 + number))[0] for number in range(count + 1)]
    at = _rounded(8 * (count + 2))
    found = []
    for size in sizes:
        found.append(view[at : at + size])
        at += _rounded(size)
    return pickle.loads(found[0], buffers=found[1:])  # noqa: S301 - from the reader, a process of our own


def _rounded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN

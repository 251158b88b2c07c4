"""An element of an iterable as bytes, and back: pickled, its large buffers beside, so that they are copied once."""

from __future__ import annotations

import pickle
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any

from ringfeed import _parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


MOST_BUFFERS = 256  # beside a pickle: so many are written at once
_ALIGN = 16  # bytes, of each buffer: malloc's
_SIZE = Struct("<Q")


def pack(element: Any) -> list[Buffer]:
    """Return an element as bytes to be written one behind the other; raises what pickle does."""
    beside: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Keep a buffer beside the pickle; True has it go into the pickle, as one that is not contiguous does."""
        with suppress(BufferError):
            if len(beside) < MOST_BUFFERS:
                beside.append(buffer.raw())
                return False
        return True

    try:
        text = _parts.pickled(element, keep)
    except Exception:  # noqa: BLE001 - what plain pickle refuses
        beside.clear()
        text = _parts.pickled(element, keep, by_value=True)
    head = b"".join(map(_SIZE.pack, (len(beside), len(text), *(view.nbytes for view in beside))))
    pieces: tuple[Buffer, ...] = (head, text, *beside)
    return [one for piece in pieces for one in (piece, bytes(-memoryview(piece).nbytes % _ALIGN))]


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

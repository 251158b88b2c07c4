"""Bytes and text as leaves: encoded pictures, documents, paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ringfeed._checks import error_of
from ringfeed.spec.array import UINT8, Array
from ringfeed.spec.form_checks import bytes_form

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST = 64  # bytes that are proposed
MOST_SHOWN = 600  # characters of a spec that is proposed as a whole


class Bytes(Array):
    """A leaf whose samples are ``bytes`` of different lengths, such as encoded pictures: ``Bytes(200_000)``.

    max_size: the most bytes of one sample. total: the bytes that a slot has room for in a whole
    batch, by default max_size for each row; since few pictures are as large as the largest, far
    less is enough.

    A dataset gives bytes, bytearray, memoryview, or an array of uint8 with one axis. A batch holds
    a `Ragged`: ``batch[i]`` is a memoryview of the slot, and ``batch.values`` and
    ``batch.row_splits`` are all bytes and where each sample begins. SpecError for a sample that is
    longer, and for a batch that needs more than ``total``.
    """

    __slots__ = ()

    def __init__(self, max_size: int, *, total: int | None = None) -> None:
        form = bytes_form(type(self).__name__.lower(), max_size, total)
        object.__setattr__(self, "shape", form.room)
        object.__setattr__(self, "dtype", UINT8)
        object.__setattr__(self, "variable", ())
        object.__setattr__(self, "cast", None)
        object.__setattr__(self, "casts", False)
        object.__setattr__(self, "form", form)

    def __repr__(self) -> str:
        form = self.form
        assert form is not None
        total = "" if form.total is None else f", total={form.total}"
        return f"{type(self).__name__}({form.most[0]}{total})"


class Text(Bytes):
    """A leaf whose samples are ``str`` of different lengths, in UTF-8: ``Text(4096)``.

    max_size and total count bytes: one to four a character. A batch holds a `Ragged`: ``batch[i]``
    is a str, made when it is asked for, and ``batch.values`` and ``batch.row_splits`` are the bytes
    and where each text begins. SpecError for text that UTF-8 cannot hold (surrogates), and as for
    `Bytes`.
    """

    __slots__ = ()


# ---- where a dataset gives them, and no spec ----


def proposed(value: str | bytes | bytearray | memoryview) -> Bytes:
    """Return what a spec may say of such samples: twice as long as this one, and a power of two."""
    size = (
        len(value.encode(errors="replace")) if isinstance(value, str) else memoryview(value).nbytes
    )
    return (Text if isinstance(value, str) else Bytes)(max(LEAST, 1 << (2 * size - 1).bit_length()))


def refuse_proposed(tree: object, root: str, leaves: Iterable[tuple[str, Array]]) -> None:
    """Refuse a sample with text or bytes, whose largest size no sample shows; the error has the spec to write."""
    found = [(path, array) for path, array in leaves if isinstance(array, Bytes)]
    if not found:
        return
    path, array = found[0]
    spec = re.sub(r"\b(Array|Bytes|Text)\(", r"ringfeed.\1(", repr(tree))
    if len(spec) > MOST_SHOWN:
        spec = f"a tree of ringfeed.Array and the like, with ringfeed.{array!r} in this place"
    kind = "a str" if isinstance(array, Text) else "bytes"
    remedy = f"give spec={spec}, where {type(array).__name__} has the most bytes of one sample"
    raise error_of(f"{root}{path}", f"is {kind}", "an array or number, or spec= for it", remedy)

"""A shared dataset in a worker.

Its memfds are mapped privately (`mapped`), and unpickled (`opened`).
"""

from __future__ import annotations

import functools
import pickle
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.system import _system
from ringfeed.transport.imports import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Piece(NamedTuple):
    """Where a stream or a buffer lies."""

    file: int  # index of its memfd in the shared dataset
    offset: int  # bytes
    length: int  # bytes


def unpack(manifest: bytes, fds: Sequence[int]) -> Any:
    """Return the dataset, in a worker; the descriptors may be closed afterwards.

    Its buffers are shared with all other workers until this one writes to them: then a page is
    copied, 4 KiB also where the kernel has huge ones.
    """
    pieces = pickle.loads(manifest)  # noqa: S301 - the consumer pickled it
    # Apart, so that a forkserver, which reads no more, keeps no page mapped.
    return opened([*mapped(fds, pieces[:1]), *mapped(fds, pieces[1:])])


def opened(views: Sequence[memoryview]) -> Any:
    """Return the dataset of these pieces, wherever they lie."""
    stream, *buffers = views
    with watched():
        # The consumer pickled it.
        return pickle.loads(stream, buffers=buffers)  # noqa: S301


def mapped(fds: Sequence[int], pieces: Sequence[Piece]) -> list[memoryview]:
    """Return the pieces as views of private mappings, which last as long as they do.

    Private also where they are only read: before Linux 6.7 a write-sealed memfd cannot be mapped
    shared.
    """
    ends = [1] * len(fds)
    for piece in pieces:
        ends[piece.file] = max(ends[piece.file], piece.offset + piece.length)
    maps = [memoryview(_system.PrivateMapping(fd, end)) for fd, end in zip(fds, ends, strict=True)]
    return [maps[piece.file][piece.offset : piece.offset + piece.length] for piece in pieces]


def with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> object:
    """Give ``function`` an empty cache of its own, as ``functools.lru_cache`` does.

    Where the program itself opens a copy of its dataset, a function that remembers something there
    stays the program's: what it has opened, as an environment of LMDB, may not be opened twice in
    one process.
    """
    made = functools.lru_cache(**parameters)(function)
    own = getattr(sys.modules.get(function.__module__), function.__qualname__, made)
    return own if type(own) is type(made) and own.cache_info().currsize else made

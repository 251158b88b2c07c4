"""Batches as private copies: what every adapter needs, and no framework is imported for.

A framework lets go of memory when it likes, TensorFlow and JAX many steps late, which a bounded ring cannot
wait for. So each batch is copied here, and its slot comes back before the framework sees the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.loader import Loader

    AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

ALIGNMENT = 64
"""Bytes. TensorFlow and JAX copy an array that starts elsewhere."""


def copy_aligned(array: Any) -> AnyArray:
    """A C-contiguous copy in the machine's byte order that starts at a multiple of `ALIGNMENT`."""
    room = np.empty(array.nbytes + ALIGNMENT - 1, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    native = array.dtype.newbyteorder("=")
    copy: AnyArray = room[start : start + array.nbytes].view(native).reshape(array.shape)
    copy[...] = array
    return copy


class PrivateEpoch:
    """The loader's next epoch, begun by the first ``next()``: the leaves of each batch as private copies.

    An error of the loader does not end it: the next ``next()`` goes on as the loader does.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = -1
        self._left: int | None = None

    def __iter__(self) -> PrivateEpoch:
        return self

    def __next__(self) -> list[AnyArray]:
        if self._batches is None:
            self._number = self._loader.epoch
            self._batches = iter(self._loader)
            self._left = batch_count(self._loader)
        if self._left is not None:
            self._left -= 1
        # The batch gets no name here: its slot comes back now, not when the caller asks for more.
        copies = [copy_aligned(leaf) for leaf in self._loader.spec.flatten(next(self._batches), 0)]
        if self._left == 0:
            # Callers that know the length never ask past the end, where the loader closes its epoch.
            next(self._batches, None)
        return copies

    def give_back(self) -> None:
        """Let the next epoch be this one again, unless another was begun since."""
        if self._batches is not None and self._loader.epoch == self._number + 1:
            self._loader.set_epoch(self._number)


def batch_count(loader: Loader) -> int | None:
    """The batches of one epoch, or None where the loader cannot know; fewer where all rows of one failed."""
    try:
        return len(loader)
    except TypeError:
        return None


def sure_count(loader: Loader) -> int | None:
    """The same, but None where failed samples are skipped, so that there may be fewer."""
    return None if _skips(loader) else batch_count(loader)


def row_axis(loader: Loader) -> int | None:
    """The rows of every batch, or None where they may differ."""
    fixed = loader.drop_remainder and loader.batch_size is not None and not _skips(loader)
    return loader.max_rows if fixed else None


def _skips(loader: Loader) -> bool:
    return loader.on_error == "skip"


def without_lists(tree: Any) -> Any:
    """The tree with tuples in the place of lists, which TensorFlow would stack into one tensor."""
    if isinstance(tree, dict):
        return {key: without_lists(branch) for key, branch in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(without_lists, tree))
    return tuple(map(without_lists, tree)) if isinstance(tree, (list, tuple)) else tree

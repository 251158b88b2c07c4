"""A loader's epochs as leaves, and what every adapter needs to know of a loader; no framework is imported here.

A framework lets go of memory when it likes. Where that cannot be waited for, each leaf is copied here, and the
slot comes back before the framework sees the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed._arrays import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed._ring import Lease
    from ringfeed.loader import Loader

    AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
    Extra: TypeAlias = Callable[[list[AnyArray]], list[AnyArray]]

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


class Epoch:
    """The loader's next epoch, begun by the first ``next()``, which gives the leaves of a batch.

    Subclasses say in `_take` what becomes of a batch; leaves that are not the loader's own, such as weights, are
    made by `extra` from those that are. An error of the loader does not end the epoch: the next ``next()`` goes on
    as the loader does.
    """

    def __init__(self, loader: Loader, extra: Extra | None = None) -> None:
        self._loader = loader
        self._fields = Fields(loader.spec, loader.plan.layout.offsets)
        self._extra = extra
        self._batches: Iterator[tuple[Lease, int]] | None = None
        self._number = -1
        self._left: int | None = None

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> list[Any]:
        if self._batches is None:
            self._number = self._loader.epoch
            self._batches = self._loader.batches(lambda lease, rows: (lease, rows), patient=True)
            self._left = batch_count(self._loader)
        if self._left is not None:
            self._left -= 1
        leaves = self._taken(*next(self._batches))
        if self._left == 0:
            # Callers that know the length never ask past the end, where the loader closes its epoch.
            next(self._batches, None)
        return leaves

    def _taken(self, lease: Lease, rows: int) -> list[Any]:
        """The leaves of one batch. The lease dies with this call: what is to keep the slot has a hold of its own."""
        views = self._fields.views(lease, rows)
        extra = [] if self._extra is None else self._extra(views)
        return self._take(lease, rows, views, extra)

    def _take(self, lease: Lease, rows: int, views: list[AnyArray], extra: list[AnyArray]) -> list[Any]:
        raise NotImplementedError

    def give_back(self) -> None:
        """Let the next epoch be this one again, unless another was begun since."""
        if self._batches is not None and self._loader.epoch == self._number + 1:
            self._loader.set_epoch(self._number)


class PrivateEpoch(Epoch):
    """An epoch whose leaves are private copies."""

    def _take(self, lease: Lease, rows: int, views: list[AnyArray], extra: list[AnyArray]) -> list[AnyArray]:
        del lease, rows
        return [*map(copy_aligned, views), *extra]


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

"""A loader's epochs as leaves; no framework is imported here.

A framework lets go of memory when it likes. Where that cannot be waited for, each leaf is copied here, and the
slot comes back before the framework sees the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed.errors import RingfeedError
from ringfeed.spec._fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringfeed.frameworks.base import BatchIterator, BatchStream, LoaderInfo
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.builder import BuildBatch
    from ringfeed.spec.spec import Spec

    AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
    Extra: TypeAlias = Callable[[list[AnyArray]], list[AnyArray]]
    Own: TypeAlias = Mapping[int, Callable[[AnyArray], AnyArray]]

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


def makers(spec: Spec, own: Own | None) -> list[Callable[[AnyArray], AnyArray]]:
    """What makes a private array of the view of each leaf: a copy, but for those that have a way of their ``own``."""
    return [(own or {}).get(number, copy_aligned) for number in range(len(spec.leaves))]


class Epoch:
    """The loader's next epoch, begun by the first ``next()``, which gives what ``build`` makes of a batch.

    An error of the loader does not end the epoch: the next ``next()`` goes on as the loader does. ``build`` must not
    refer to the epoch, which breaks off where it is dropped.
    """

    def __init__(self, stream: BatchStream, build: BuildBatch) -> None:
        self._stream = stream
        self._build = build
        self._batches: BatchIterator | None = None
        self._number = -1
        self._left: int | None = None

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._choose()
            self._number = self._stream.next_epoch
            self._batches = self._stream.epoch(self._build, wait_for_slots=True)
            info = self._stream.info
            # An iterable may give more than it says, or raise instead of ending: either is what comes next.
            self._left = None if info.is_iterable else info.length
        if self._left is not None:
            self._left -= 1
        try:
            leaves = next(self._batches)
        except RingfeedError as error:
            self._explain(error)
            raise
        if self._left == 0:
            # Callers that know the length never ask past the end, where the loader closes its epoch.
            next(self._batches, None)
        return leaves

    def _choose(self) -> None:
        """Set the loader's next epoch, where it is not the one after the last."""

    def _explain(self, error: RingfeedError) -> None:
        """Add to an error what its caller would lose of it."""

    def give_back(self) -> None:
        """Let the next epoch be this one again, unless another was begun since."""
        if self._batches is not None and self._stream.next_epoch == self._number + 1:
            self._stream.set_epoch(self._number)


class Copies:
    """Makes private copies of the leaves of a batch, and after them the extra leaves that are made of these."""

    def __init__(self, info: LoaderInfo, extra: Extra | None = None, own: Own | None = None) -> None:
        self._fields = Fields(info.spec, info.offsets)
        self._extra = extra
        self._makers = makers(info.spec, own)

    def __call__(self, lease: Lease, rows: int) -> list[AnyArray]:
        """Return the leaves."""
        views = self._fields.views(lease, rows)
        extra = [] if self._extra is None else self._extra(views)
        return [*(make(view) for make, view in zip(self._makers, views, strict=True)), *extra]


class PrivateEpoch(Epoch):
    """An epoch whose leaves are private copies."""

    def __init__(self, stream: BatchStream, extra: Extra | None = None) -> None:
        super().__init__(stream, Copies(stream.info, extra))


def without_lists(tree: Any) -> Any:
    """The tree with tuples in the place of lists, which TensorFlow would stack into one tensor."""
    if isinstance(tree, dict):
        return {key: without_lists(branch) for key, branch in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(without_lists, tree))
    return tuple(map(without_lists, tree)) if isinstance(tree, (list, tuple)) else tree

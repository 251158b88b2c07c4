"""The versions of a dataset as a bridge has sent them: pieces that lie where all actors find them, each put once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._units import show_bytes
from ringfeed.errors import PlanError
from ringfeed.ray.desk import SMALL
from ringfeed.transport.shared_dataset import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.ray.fleet import Fleet


SMALLEST_STORE = 32 << 20  # bytes: no node has less
STORE_SHARE = 2  # a dataset may take one part in so many of a node's object store


class Sent:
    """The newest version of the dataset, as actors are sent it."""

    def __init__(self, fleet: Fleet) -> None:
        """Nothing is sent yet."""
        self.version = -1
        self.size = 0  # bytes of what each node has a copy of
        self._fleet = fleet
        self._pieces: list[Any] = []
        self._large: dict[tuple[int, int, int], Any] = {}  # by file, offset and length

    @property
    def pieces(self) -> Sequence[Any]:
        """What `Desk.open` takes: how many are parts of modules, the small pieces, and what names each large one.

        A large piece is None among the small.
        """
        return self._pieces

    def put(self, version: int, manifest: bytes, fds: Sequence[int]) -> None:
        """Have actors be sent this version from now on; what did not change is not put again.

        PlanError where a node has no room for it.
        """
        self._check_room(sum(os.fstat(fd).st_size for fd in fds))
        part_count, places, views = pieces_of(manifest, fds)
        inodes = [os.fstat(fd).st_ino for fd in fds]
        small: list[bytes | None] = []
        large: dict[tuple[int, int, int], Any] = {}
        named: list[Any] = []
        for place, view in zip(places, views, strict=True):
            small.append(bytes(view) if view.nbytes < SMALL else None)
            if view.nbytes >= SMALL:
                key = inodes[place.file], place.offset, place.length
                large[key] = self._large.get(key) or self._fleet.put(np.frombuffer(view, np.uint8))
                named.append(large[key])
        self._large = large
        self._pieces = [part_count, small, *named]
        self.size = sum(view.nbytes for view in views)
        self.version = version

    def _check_room(self, size: int) -> None:
        for node in self._fleet.nodes() if size > SMALLEST_STORE else ():
            if node.store and size > node.store // STORE_SHARE:
                message = (
                    f"the dataset takes {show_bytes(size)} of each node's object store, and that of node "
                    f"{node.address} has {show_bytes(node.store)}, of which it may take half; start the node with a "
                    f"larger --object-store-memory, or keep less in the dataset and read files on demand"
                )
                raise PlanError(message)

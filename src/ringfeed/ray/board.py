"""What a bridge tells the training process without being asked: counts, and what its actors are at, in shared memory.

The bridge writes a page of JSON a few times a second; what is half written does not have its checksum, and is read
again.
"""

from __future__ import annotations

import json
import mmap
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Any

from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from ringfeed.system._system import Descriptor

SIZE = 1 << 16
_HEAD = Struct("<II")
TRIES = 3


class Board:
    """One bridge's page."""

    def __init__(self, memfd: Descriptor | None = None) -> None:
        """Reserve a page, or open that of a descriptor."""
        self.memfd = memfd or reserve("ringfeed-bridge", SIZE)
        self._memory = mmap.mmap(self.memfd.fileno(), SIZE)

    def write(self, said: dict[str, Any]) -> None:
        """Say it; the longest lists are cut where they do not fit."""
        text = json.dumps(said).encode()
        if len(text) > SIZE - _HEAD.size:
            cut = {"actors": said.get("actors", [])[:64], "asked": [], "stacks": {}}
            text = json.dumps({**said, **cut}).encode()[: SIZE - _HEAD.size]
        self._memory[: _HEAD.size] = bytes(_HEAD.size)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, len(text), zlib.crc32(text))

    def read(self) -> dict[str, Any]:
        """Return what was said last; nothing where nothing was."""
        for _ in range(TRIES):
            if self._memory.closed:
                break
            size, checksum = _HEAD.unpack_from(self._memory)
            text = bytes(self._memory[_HEAD.size : _HEAD.size + min(size, SIZE)])
            if size and zlib.crc32(text) == checksum:
                said: dict[str, Any] = json.loads(text)
                return said
        return {}

    def close(self) -> None:
        """Give the page back."""
        self._memory.close()
        self.memfd.close()

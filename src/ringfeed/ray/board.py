"""What a bridge tells the training process: counts, and what its actors are at, in shared memory.

The bridge writes a page of JSON a few times a second; what is half written does not have its
checksum, and is read again.

For a StallError the training process asks each bridge for the node, the rows and the Python stack
of each actor that takes long. The bridge has the stacks read on the actors' nodes, and the answer
comes by the board. A node that does not answer costs a StallError `STACKS_S`, and its actors have
no stack there.
"""

from __future__ import annotations

import json
import mmap
import time
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed.monitor.stacks import WRITING_S
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ringfeed.ray.ray_fleet import RayFleet
    from ringfeed.system._system import Descriptor

SIZE = 1 << 19  # more than all of it takes, whatever letters stacks are in
_HEAD = Struct("<II")
TRIES = 3
STACKS = 8  # of the actors that take longest, all asked at once
STACKS_S = STACKS * WRITING_S  # as long as so many workers here may take
LONGEST = 4000  # characters of a stack
_LOOK_S = 0.02

AtWork: TypeAlias = "tuple[int, str, float, int, int]"
"""An actor, its node, the seconds of its call so far, the index of its first row, its rows."""


class Board:
    """One bridge's page."""

    def __init__(self, memfd: Descriptor | None = None) -> None:
        """Reserve a page, or open that of a descriptor."""
        self.memfd = memfd or reserve("ringfeed-bridge", SIZE)
        self._memory = mmap.mmap(self.memfd.fileno(), SIZE)

    def write(self, said: dict[str, Any]) -> None:
        """Say it."""
        text = json.dumps(said).encode()
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


class Inquiry:
    """The stacks that a bridge was asked for last, and has asked actors for."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._number = 0
        self._stacks: dict[int, str | None] = {}  # by actor; None: still to come

    def begin(self, number: int, at_work: Sequence[AtWork], fleet: RayFleet) -> None:
        """Ask for the stacks of the first of these actors; ``number`` tells inquiries apart."""
        self._number = number
        self._stacks = {entry[0]: None for entry in at_work[:STACKS]}
        for actor in self._stacks:
            fleet.ask_stack(actor)

    def note(self, actor: int, text: str) -> None:
        """Take a stack, or why there is none."""
        if actor in self._stacks:
            self._stacks[actor] = text.strip()[:LONGEST]

    def said(self) -> dict[str, Any]:
        """Return what the board says: JSON has texts for keys."""
        stacks = {str(actor): text for actor, text in self._stacks.items()}
        return {"inquiry": self._number, "stacks": stacks}


def lines_of(boards: Iterable[Board], number: int, name: Callable[[int], str]) -> list[str]:
    """Wait for the stacks of an inquiry, and describe each actor; ``name`` names a sample."""
    deadline_s, lines = time.monotonic() + STACKS_S, []
    for board in boards:
        while not _has_answered(said := board.read(), number) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        stacks = said["stacks"] if said.get("inquiry") == number else {}
        for actor, node, seconds, index, rows in said.get("actors", ()):
            more = " or the row after it" if rows > 1 else ""
            if rows > 2:  # noqa: PLR2004
                more = f" or the {rows - 1} rows after it"
            stack = stacks.get(str(actor), "")
            if stack is None:
                stack = f"no stack came from there within {STACKS_S:g} s"
            lines.append(
                f"actor {actor} (node {node}): inside {name(index)}{more}, has been at it for "
                f"{seconds:.1f} s" + "".join(f"\n    {line}" for line in stack.splitlines())
            )
    return lines


def _has_answered(said: Mapping[str, Any], number: int) -> bool:
    """Whether a bridge has said all; one that is gone or not yet connected says nothing."""
    return not said or (said.get("inquiry") == number and None not in said["stacks"].values())

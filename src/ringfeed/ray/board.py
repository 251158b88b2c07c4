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
    from collections.abc import Callable, Mapping, Sequence

    from ringfeed.ray.ray_fleet import RayFleet
    from ringfeed.system._system import Descriptor

SIZE = 1 << 16
_HEAD = Struct("<II")
TRIES = 3
STACKS = 8  # of the actors that take longest, all asked at once
STACKS_S = STACKS * WRITING_S  # as long as so many workers here may take
NAMED = 64  # actors
LONGEST = 4000  # characters of a stack
_LOOK_S = 0.02

AtWork: TypeAlias = "tuple[int, str, float, int, int]"
"""An actor, its node, for how many seconds it has been at a call, the index of its first row, and how many it has."""


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


class Inquiry:
    """What actors were at when a bridge was asked last, and the stacks that have come since."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._number, self._until_s = 0, 0.0
        self._asked: Sequence[AtWork] = ()
        self._stacks: dict[int, str | None] = {}  # by actor; None: still to come

    def begin(self, number: int, now_s: float, at_work: Sequence[AtWork], fleet: RayFleet) -> None:
        """Have stacks be read of the first of these actors; ``number`` tells this inquiry from others."""
        self._number, self._until_s, self._asked = number, now_s + STACKS_S, at_work[:NAMED]
        self._stacks = {entry[0]: None for entry in at_work[:STACKS]}
        for actor in self._stacks:
            fleet.ask_stack(actor)

    def note(self, actor: int, text: str) -> None:
        """Take a stack, or why there is none."""
        if actor in self._stacks:
            self._stacks[actor] = text.strip()[:LONGEST]

    def waits_for(self, actor: int, now_s: float) -> bool:
        """Whether an actor's stack may still come: it is not ended meanwhile."""
        return self._stacks.get(actor, "") is None and now_s < self._until_s

    def said(self) -> dict[str, Any]:
        """Return what the board says: JSON has texts for keys."""
        stacks = {str(actor): text for actor, text in self._stacks.items()}
        return {"inquiry": self._number, "asked": self._asked, "stacks": stacks}


def lines_of(boards: Sequence[Board], number: int, name: Callable[[int], str]) -> list[str]:
    """Wait for what an inquiry brings, and describe what each actor is at; ``name``: of a sample."""
    deadline_s = time.monotonic() + STACKS_S
    while (
        not all(_has_answered(board.read(), number) for board in boards)
        and time.monotonic() < deadline_s
    ):
        time.sleep(_LOOK_S)
    lines = []
    for said in (board.read() for board in boards):
        is_answer = said.get("inquiry") == number
        entries, stacks = (
            (said["asked"], said["stacks"]) if is_answer else (said.get("actors", ()), {})
        )
        lines += [_line(entry, name, stacks) for entry in entries]
    return lines


def _has_answered(said: Mapping[str, Any], number: int) -> bool:
    """Whether a bridge has said all that it will; one that is no more, or not connected yet, says nothing."""
    return not said or (said.get("inquiry") == number and None not in said["stacks"].values())


def _line(entry: AtWork, name: Callable[[int], str], stacks: Mapping[str, Any]) -> str:
    actor, node, seconds, index, rows = entry
    more = (
        ""
        if rows == 1
        else f" or the {rows - 1} rows after it"
        if rows > 2  # noqa: PLR2004
        else " or the row after it"
    )
    stack = stacks.get(str(actor), "")  # None: it was asked for and has not come
    stack = f"no stack came from there within {STACKS_S:g} s" if stack is None else stack
    indented = "".join(f"\n    {line}" for line in stack.splitlines())
    return (
        f"actor {actor} (node {node}): inside {name(index)}{more}, has been at it for "
        f"{seconds:.1f} s{indented}"
    )

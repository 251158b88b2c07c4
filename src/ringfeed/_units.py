"""Sizes, times and long texts as people write and read them."""

from __future__ import annotations

import re
import zlib
from numbers import Integral
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}


def parse_memory(memory: int | str) -> int:
    """Return the bytes of ``512MB``, ``1.5GiB`` or a number (MB = 10**6, MiB = 2**20)."""
    if isinstance(memory, Integral) and not isinstance(memory, bool) and memory >= 0:
        return int(memory)
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        if isinstance(memory, str)
        else None
    )
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if match is None or match[2].lower() not in units or float(match[1]) == float("inf"):
        raise ValueError(
            f"memory={memory!r} is no amount of memory; write it as in '512MB', '2GiB' or a number "
            "of bytes"
        )
    return int(float(match[1]) * units[match[2].lower()])


def show_bytes(size: int) -> str:
    """Return a size as people read it: ``38.5 MB``."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def show_s(seconds: float) -> str:
    """Return a time as people read it: ``2.1 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.1f} {unit}"
    return f"{seconds / 1e-6:.1f} us"


def columns(rows: Sequence[Sequence[str]], between: str) -> list[str]:
    """Return the lines of a table: the first column stands at the left, the others at the right."""
    names, *others = zip(*rows, strict=True)
    aligned = [[name.ljust(max(map(len, names))) for name in names]]
    aligned += [[cell.rjust(max(map(len, cells))) for cell in cells] for cells in others]
    return [between.join(line) for line in zip(*aligned, strict=True)]


def shorten(text: str, most: int = 60) -> str:
    """Return a text; of a long one its beginning and a checksum."""
    return text if len(text) <= most else f"{text[: most - 12]}...{zlib.crc32(text.encode()):08x}"

"""Holds the size of the core: a feature gets a room beside it, which the core opens within a function.

Counted are all lines of .py, .pyx, .pxi and .pxd, by package. Lower a number when you have made its package smaller.

Run by `make lint`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "ringfeed"
MOST = {
    "system": 887,
    "ring": 1004,
    "spec": 1892,
    "data": 788,
    "sources": 193,
    "workers": 1195,
    "engine": 1984,
    "loader.py": 588,
}
COUNTED = {".py", ".pyx", ".pxi", ".pxd"}


def lines_of(package: Path) -> int:
    """Return the lines of a package, or of a module."""
    files = [package] if package.is_file() else [path for path in package.rglob("*") if path.suffix in COUNTED]
    return sum(len(path.read_text().splitlines()) for path in files)


def found() -> list[str]:
    """Return what to say of each package that has grown."""
    sizes = {name: lines_of(ROOT / name) for name in MOST}
    return [
        f"src/ringfeed/{name} has {size} lines, expected at most {MOST[name]}; have the feature in a room of its own, "
        f"as forms/ is, and open it within a function"
        for name, size in sizes.items()
        if size > MOST[name]
    ]


if __name__ == "__main__":
    sys.exit("\n".join(found()) or 0)

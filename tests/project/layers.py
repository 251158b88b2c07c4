"""The import contract: each package imports only from the layers below its own, also where only types are meant.

Run by `make lint`.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2] / "src" / "ringfeed"
LAYERS = (
    "errors _process _units _classes _callers _checks _foreign",
    "ring orders",
    "spec iterables",
    "data",
    "datasets transforms",
    "waiting",
    "sources transport",
    "workers monitor",
    "resume tuning",
    "engine frameworks",
    "loader",
    "keras torch cli testing",
    "__main__ __init__",
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted name of each module of ringfeed that a file imports."""
    text = path.read_text()
    if path.suffix in {".pyx", ".pxd", ".pxi"}:
        yield from re.findall(r"^\s*from (ringfeed\.[\w.]+) c?import", text, re.MULTILINE)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ringfeed":
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("ringfeed."))


def arrows() -> set[tuple[str, str]]:
    """Return the imports that do not go down: (file, package)."""
    found = set()
    for path in sorted(ROOT.rglob("*.p*")):
        here = path.relative_to(ROOT)
        if path.suffix not in {".py", ".pyi", ".pyx", ".pxd", ".pxi"} or here.name == "__init__.py":
            continue
        room = here.parts[0].split(".")[0]
        for name in imported(path):
            there = name.split(".")[1]
            if there in RANK and there != room and RANK[there] >= RANK[room]:
                found.add((str(here), there))
    return found


if __name__ == "__main__":
    lines = [f"{file} imports ringfeed.{package}, which does not lie below it" for file, package in sorted(arrows())]
    sys.exit("\n".join(lines) or 0)

"""The import contract: each package imports only from the layers below its own, also where only types are meant.

Run by `make lint`.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2] / "src" / "ringfeed"
LAYERS = (
    "errors",
    "_failure _process _units _html _progress _classes _callers _checks _foreign _exports",
    "system",
    "ring",
    "spec orders",
    "datasets",
    "transport monitor",
    "reading",
    "workers",
    "engine",
    "cache",
    "frameworks",
    "loader",
    "keras torch testing",
    "tools ray sharing",
    "__main__ __init__",
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}


class Import(NamedTuple):
    """One import of a module of ringfeed."""

    file: Path
    there: str
    """The package that it is of."""
    is_lazy: bool
    """Whether it stands in a function."""

    @property
    def room(self) -> str:
        """The package that imports."""
        return self.file.parts[0].split(".")[0]

    @property
    def goes_down(self) -> bool:
        """Whether it keeps to the layers."""
        return self.there == self.room or RANK[self.there] < RANK[self.room]

    @property
    def fault(self) -> str | None:
        """Say what is wrong with it."""
        if not self.goes_down:
            return f"{self.file} imports ringfeed.{self.there}, which does not lie below it"
        return None


def in_python(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the dotted name of each module of ringfeed that a file imports, and whether within a function."""

    def walk(node: ast.AST, *, is_lazy: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ringfeed":
            yield from ((f"{node.module}.{name.name}", is_lazy) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (name.name, is_lazy) for name in node.names if name.name.startswith("ringfeed.")
            )
        is_lazy |= isinstance(node, ast.FunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, is_lazy=is_lazy)

    yield from walk(ast.parse(path.read_text()), is_lazy=False)


def in_cython(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the same of a file of Cython."""
    for indent, module in re.findall(
        r"^(\s*)from (ringfeed\.[\w.]+) c?import", path.read_text(), re.MULTILINE
    ):
        yield module, bool(indent.strip("\n"))


def imports() -> Iterator[Import]:
    """Yield all imports of ringfeed's modules."""
    for path in sorted(ROOT.rglob("*.p*")):
        here = path.relative_to(ROOT)
        if path.suffix not in {".py", ".pyi", ".pyx", ".pxd", ".pxi"} or here.name == "__init__.py":
            continue
        for name, is_lazy in (in_python if path.suffix in {".py", ".pyi"} else in_cython)(path):
            if (there := name.split(".")[1]) in RANK:
                yield Import(here, there, is_lazy)


if __name__ == "__main__":
    sys.exit("\n".join(sorted({one.fault for one in imports() if one.fault is not None})) or 0)

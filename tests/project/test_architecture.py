"""Every module has its line in ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [path.relative_to(ROOT / "src" / "ringfeed") for path in (ROOT / "src" / "ringfeed").rglob("__init__.py")]
SUFFIXES = {".py", ".pyx", ".pxi", ".pxd"}


def listed(package: Path) -> set[str]:
    """The modules that ARCHITECTURE.md names below a package's line."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text()
    pattern = rf"^ {{{2 * len(package.parts)}}}{package.name}/ .*\n((?: {{16,}}.*\n)+)"
    found = re.search(pattern, rooms, re.MULTILINE)
    assert found, f"{package} has no line in ARCHITECTURE.md"
    return set(re.findall(r"\w+", found[1]))


@pytest.mark.parametrize("package", sorted(path.parent for path in PACKAGES if path.parent.name), ids=str)
def test_the_architecture_names_every_module(package: Path) -> None:
    """The modules named below a package are the modules that it has: none is missing, and none has gone."""
    files = (ROOT / "src" / "ringfeed" / package).iterdir()
    assert listed(package) == {path.stem for path in files if path.suffix in SUFFIXES} - {"__init__"}


def test_the_architecture_names_the_core() -> None:
    """So are the files in C, and the modules beside the packages."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text()
    names = [path.name for path in (ROOT / "cext").rglob("*.c")]
    names += [path.stem for path in (ROOT / "src" / "ringfeed").glob("*.py") if path.stem != "__init__"]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", rooms)] == []

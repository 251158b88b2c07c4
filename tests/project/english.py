"""Words of people that must not stand for a thread, a process or a function: run by `make lint`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_PEOPLE = re.compile(r"\b(who|whom|whoever|nobody|somebody|anybody|takers?)\b", re.IGNORECASE)
WRITTEN = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".c"}
FOLDERS = ("src", "cext", "bench", "examples")
PAGES = (
    "README.md",
    "SKILL.md",
    "llms.txt",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "bench/README.md",
)


def found() -> list[str]:
    """Return each line of the sources and pages with such a word, with its place."""
    files = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in WRITTEN
    ]
    files += [ROOT / page for page in PAGES] + [*(ROOT / "docs").rglob("*.md")]
    made = [path.with_suffix(".c") for path in files if path.suffix == ".pyx"]  # by Cython
    return [
        f"{path.relative_to(ROOT)}:{number}: say what it is, a thread or a process: {line.strip()}"
        for path in sorted({*files} - {*made})
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OF_PEOPLE.search(line)
    ]


if __name__ == "__main__":
    sys.exit("\n".join(found()) or 0)

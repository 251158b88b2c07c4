"""The pages of docs/: their code, which runs from the top of a page to its end, in a process of its own.

The messages in them; their links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import sourced
import warm

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs"
ELSEWHERE = {
    "forms",
    "frameworks",
    "packing",
    "remote",
    "resume",
    "share",
    "streams",
    "torch",
    "trainers",
    "waiting",
}
"""Pages with tests of their own, which need more than a page says."""
NEEDS = {
    "keras": ("import keras", "ringfeed.keras"),
    "tensorflow": ("import tensorflow", "to_tf_dataset"),
    "torch": ("import torch",),
}


def pages() -> list[str]:
    """Return the names of the pages whose code runs as it stands."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem not in ELSEWHERE)


def text_of(page: str) -> str:
    """Return what a page says."""
    return (FOLDER / f"{page}.md").read_text()


def codes(page: str) -> list[str]:
    """Return the code of each block."""
    return re.findall(r"^```python\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def packages(code: str) -> list[str]:
    """Return the frameworks that some code imports."""
    return [package for package, words in NEEDS.items() if any(word in code for word in words)]


def promised(code: str) -> Iterator[re.Pattern[str]]:
    """Yield what a block says that it prints: the comments of its print(), in which … stands for anything."""
    for line in code.splitlines():
        if "print(" in line and (found := re.search(r"\)  # (.*)", line)):
            yield re.compile(".*".join(map(re.escape, found[1].split("…"))))


def run(code: str, folder: Path) -> str:
    """Run code as a script, and return what it prints; AssertionError where it promises something else.

    TensorFlow is loaded already for code that imports it, and no other framework: torch crashes in
    a process that has had TensorFlow compute.
    """
    (script := folder / "page.py").write_text(code)
    if {"keras", "tensorflow"}.isdisjoint(packages(code)):
        out = sourced.run(folder, str(script))
    else:
        done = warm.run([script], cwd=folder)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    lines = iter(out.splitlines())
    for promise in promised(code):
        assert any(promise.fullmatch(line) for line in lines), promise.pattern
    return out


def messages(page: str) -> list[str]:
    """Return the texts in code at the beginning of the rows of a page's tables of messages."""
    _, *tables = text_of(page).split("\n| Message |")
    return [
        text
        for table in tables
        for text in re.findall(r"^\| `([^`]+)`", table.partition("\n\n")[0], re.MULTILINE)
    ]


def source() -> str:
    """Return all sources, with … in the place of what differs from error to error, and strings joined."""
    folder = ROOT / "src" / "ringfeed"
    code = "".join(
        path.read_text() for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.pyx")])
    )
    code = re.sub(r'"\n\s*\+? ?f?"', "", code)
    return re.sub(r"…+", "…", re.sub(r"\{[^{}\n]*\}", "…", code))


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page."""
    return {slug(heading) for heading in re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)}


def broken_links(path: Path) -> Iterator[str]:
    """Yield each link of a page to a file or a heading that is not there."""
    for link in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    ):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not re.match(r"\w+:", link) and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            yield link

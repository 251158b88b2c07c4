"""Simple tables of HTML, for notebooks and for pages: every text in them is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a table; without a ``head``, the first cell of a row is its name."""
    lines = ["<tr>" + _cells(head, "th") + "</tr>"] if head else []
    for first, *others in rows:
        lines.append(
            "<tr>" + _cells([first], "td" if head else "th") + _cells(others, "td") + "</tr>"
        )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(lines)}</table>"


def _cells(texts: Iterable[object], tag: str) -> str:
    """Return cells, aligned by themselves: notebooks align to the right."""
    style = ' style="text-align: left; vertical-align: top"'
    return "".join(f"<{tag}{style}>{escape(str(text))}</{tag}>" for text in texts)

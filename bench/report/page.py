"""The page of the bench: where a table was measured, and the marks it stands between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def where(records: list[dict[str, Any]]) -> str:
    """Machine, versions and every commit of a run, as one sentence without its end."""
    found: dict[str, str] = {}
    for record in records:
        found |= record.get("versions", {})
    packages = ", ".join(f"{name} {number}" for name, number in sorted(found.items()))
    return f"{machine_of(records[0])}; {packages}; commit {commits_of(records)}"


def machine_of(record: dict[str, Any]) -> str:
    """The machine of a run."""
    machine = record.get("machine", record)
    memory = f"{machine['memory_bytes'] / 1e9:.0f} GB" if "memory_bytes" in machine else ""
    place = (
        machine["cpu"],
        f"{machine['cores']} cores",
        memory,
        machine.get("gpu"),
        f"driver {machine['driver']}" if "driver" in machine else "",
        f"Linux {machine['kernel']}",
    )
    return ", ".join(filter(None, [*place, machine.get("libc")]))


def commits_of(records: list[dict[str, Any]]) -> str:
    """The commits that a run was made at."""
    return ", ".join(dict.fromkeys(record["commit"] for record in records))


def marks(name: str) -> tuple[str, str]:
    """The comments around the table of that name."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def insert(path: Path, name: str, text: str) -> bool:
    """Put `text` between the marks of that name.

    False, and nothing changed, where the file has none.
    """
    begin, end = marks(name)
    page = path.read_text() if path.exists() else ""
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        return False
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
    return True


def put(path: Path, name: str, text: str) -> None:
    """Put `text` there, or say that the file has no place for it."""
    if not insert(path, name, text):
        raise ValueError(
            f"{path} has no {' and '.join(marks(name))}; put them where the table belongs"
        )

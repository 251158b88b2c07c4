"""The table of versions: a line of versions.jsonl for each cell that ran makes docs/versions.md.

python release/versions.py                          # writes the tables into docs/versions.md
python release/versions.py --reason torch 2.15.0 3.11 "a CUDA build of 3 GB"  # not run
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINES, PAGE = ROOT / "release" / "versions.jsonl", ROOT / "docs" / "versions.md"
MARKS = "<!-- versions:begin -->", "<!-- versions:end -->"
BESIDE = ("tensorflow", "keras", "torch", "jax", "ray", "numpy", "ringfeed")
"""Packages whose versions a line has."""
HEAD = (
    "| | Python | NumPy | beside it | tests passed | failed | left out | run |\n"
    "|---|---|---|---|---:|---:|---:|---|"
)
TITLES = {
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "torch": "torch",
    "jax": "JAX",
    "ray": "Ray",
    "core": "The core alone",
}


def number(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to compare."""
    return tuple(
        int(part)
        for part in version.split("+", maxsplit=1)[0].rstrip("t").split(".")
        if part.isdigit()
    )


def wheel_of(folder: Path, python: str) -> Path:
    """Return the wheel of one Python."""
    # The tag of a Python and that of its extensions differ without the GIL: cp313-cp313t.
    found = [*folder.glob(f"ringfeed-*-cp{python.replace('.', '')}-[!c]*.whl")]
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} has {len(found)} wheels for Python {python}, not one: run make wheels"
        )
    return found[0]


def installed() -> dict[str, str]:
    """Return the versions that this environment has."""
    names = {package: package for package in BESIDE} | {
        "tensorflow_cpu": "tensorflow",
        "keras_nightly": "keras",
    }
    found = {
        distribution.name.replace("-", "_"): distribution.version
        for distribution in metadata.distributions()
    }
    return {names[name]: version for name, version in found.items() if name in names}


def counted(report: Path) -> dict[str, int]:
    """Return the counts of pytest's report."""
    suite = ET.parse(report).getroot()[0]  # noqa: S314 - as above
    total, failed, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "skipped"))
    failed += int(suite.attrib["errors"])
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def note(framework: str, python: str, found: dict[str, str], report: Path, seconds: float) -> int:
    """Append the line of a cell that has run; returns how many tests failed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],  # noqa: S607
        cwd=ROOT,
        stdout=-1,
        text=True,
        check=True,
    )
    line = {
        "framework": framework,
        "version": found.get(framework, found["ringfeed"]),
        "python": python,
        "versions": found,
        **counted(report),
        "seconds": round(seconds),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
    append(line)
    return int(line["failed"])


def append(line: dict[str, Any]) -> None:
    """Add a line to the file."""
    with LINES.open("a") as file:
        file.write(json.dumps(line) + "\n")


def newest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each cell's last line, in the order of the tables."""
    cells = {
        (line["framework"], line["version"].partition("+")[0], line["python"]): line
        for line in lines
    }
    order = [*TITLES]
    return sorted(
        cells.values(),
        key=lambda line: (
            order.index(line["framework"]),
            number(line["python"]),
            number(line["version"]),
        ),
    )


def row(line: dict[str, Any]) -> str:
    """Return the row of a cell that has run."""
    versions = line["versions"]
    own = {line["framework"], "numpy", "ringfeed"}
    beside = ", ".join(
        f"{TITLES[name]} {versions[name]}"
        for name in BESIDE
        if name in versions and name not in own
    )
    cells = (
        line["version"],
        line["python"],
        versions["numpy"],
        beside,
        line["passed"],
        line["failed"],
        line["skipped"],
    )
    return f"| {' | '.join(map(str, cells))} | {line['date']}, {line['commit'][:7]} |"


def left_out(lines: list[dict[str, Any]]) -> list[str]:
    """Say which cells did not run, reason by reason.

    A run with a Python's newest release is that cell.
    """
    ran = {line["python"] for line in lines if "reason" not in line}
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if "reason" in line and not (line["version"] == "newest" and line["python"] in ran):
            reasons.setdefault(line["reason"], []).append(
                f"{line['version']} on Python {line['python']}"
            )
    return [f"Not run, since {reason}: {', '.join(cells)}." for reason, cells in reasons.items()]


def render(lines: list[dict[str, Any]]) -> str:
    """Return for each framework a table of what has run, and a sentence for what has not."""
    cells = newest(lines)
    parts = []
    for framework, title in TITLES.items():
        its = [line for line in cells if line["framework"] == framework]
        rows = [row(line) for line in its if "reason" not in line]
        if its:
            parts += [f"### {title}", *(["\n".join([HEAD, *rows])] if rows else []), *left_out(its)]
    return "\n\n".join(parts)


def read() -> list[dict[str, Any]]:
    """Return all lines."""
    return [json.loads(line) for line in LINES.read_text().splitlines()]


def publish() -> None:
    """Write the tables between the marks of the page."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n{render(read())}\n{MARKS[1]}{after}")


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--installed", action="store_true", help="print this environment's versions"
    )
    parser.add_argument(
        "--reason", nargs=4, metavar=("FRAMEWORK", "VERSION", "PYTHON", "WHY"), help="note a cell"
    )
    options = parser.parse_args()
    if options.installed:
        json.dump(installed(), sys.stdout)
    elif options.reason:
        append(dict(zip(("framework", "version", "python", "reason"), options.reason, strict=True)))
    else:
        publish()


if __name__ == "__main__":
    main()

"""The programs of docs/sources: the code of a page, what it imports, and its loaders run in other ways."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ringfeed
import watching

SUPPORT = str(Path(__file__).parent)
FOLDER = Path(__file__).parents[2] / "docs" / "sources"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
WAYS: dict[str, dict[str, Any]] = {
    "threads": {"backend": "thread"},
    "spawn": {"backend": "spawn"},
    "process": {"backend": "process"},
    "fork": {"backend": "fork"},
    "a killed worker": {"backend": "spawn"},
}
DIFFERS = "differs: "  # a package may print, too
OPTIONAL = {"crc32c"}  # a page does without


def code_of(page: str) -> str:
    """Return the code of a page, all blocks in order."""
    return "\n".join(
        re.findall(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.DOTALL)
    )


def missing(code: str) -> list[str]:
    """Name the packages that some code imports and that are not installed."""
    nodes = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = [
        node.module if isinstance(node, ast.ImportFrom) else one.name
        for node in nodes
        for one in node.names
    ]
    roots = {str(name).partition(".")[0] for name in names} - OPTIONAL
    return sorted(
        root for root in roots if root not in sys.builtin_module_names and _found(root) is None
    )


def _found(package: str) -> object:
    """Find a package anywhere but among the tests, where a module and a folder have the name of Hugging Face's."""
    return importlib.machinery.PathFinder.find_spec(package, path_without_tests())


def path_without_tests() -> list[str]:
    """Return where Python looks for modules, without what pytest has added."""
    return [path for path in sys.path if not Path(path).is_relative_to(Path(SUPPORT).parent)]


def pages() -> list[Any]:
    """Return the pages as parameters, with a skip for each that needs what is not installed."""
    found = []
    for page in PAGES:
        absent = missing(code_of(page))
        skip = [pytest.mark.skip(reason=f"{absent[0]} is not installed")] if absent else []
        found.append(pytest.param(page, marks=skip))
    return found


def run(folder: Path, *command: str) -> str:
    """Run Python in a folder, temporary files too, and return what it prints.

    AssertionError with its errors.
    """
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- in the program ----


def run_in_each_way(main: Any, script: str) -> None:
    """Run a script, then each of its loaders in each way.

    Print what differs from what this process reads.
    """
    given: list[tuple[Any, dict[str, Any]]] = []
    make = ringfeed.Loader

    def recorded(dataset: Any, **options: Any) -> Any:
        given.append((dataset, options))
        return make(dataset, **options)

    ringfeed.Loader = recorded  # type: ignore[assignment,misc]
    exec(compile(Path(script).read_text(), script, "exec"), vars(main))  # noqa: S102 - the page's own code
    for number, (dataset, options) in enumerate(given):
        expected = _digest(make(dataset, **{**options, "workers": 0}))
        for way, more in WAYS.items():
            try:
                found = _digest(
                    make(dataset, **{**options, **more}), kills=way == "a killed worker"
                )
            except ringfeed.ShipError as error:
                found = str(error)
            if found != expected:
                print(f"{DIFFERS}loader {number}, {way}: {found}")  # noqa: T201 - read by the test


def _digest(loader: ringfeed.Loader, *, kills: bool = False) -> str:
    """Return a hash of all batches of an epoch.

    ``kills``: a worker is killed after the first one.
    """
    found = hashlib.sha256()
    count = 0
    for batch in loader:
        count += 1
        _update(found, batch)
        if kills and count == 1:
            os.kill(watching.pids(loader)[0], signal.SIGKILL)
    loader.close()
    return f"{count} batches {found.hexdigest()[:16]}"


def _update(found: Any, batch: Any) -> None:
    if isinstance(batch, dict):
        batch = [batch[key] for key in sorted(batch)]
    if isinstance(batch, tuple | list):
        for one in batch:
            _update(found, one)
    elif isinstance(batch, ringfeed.Ragged):
        _update(found, [batch.values, batch.row_splits])
    else:
        found.update(f"{batch.dtype} {batch.shape}".encode() + batch.tobytes())

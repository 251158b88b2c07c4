"""What `module:name` or `script.py:name` names on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def load(place: str) -> Any:
    """Return the dataset that ``place`` names; a class, or a function without indices, is called.

    Modules are looked for in the current directory first, as ``python -m`` does. A script is
    imported by its name, so that what stands below ``if __name__ == "__main__":`` does not run.
    With PYTHONSAFEPATH nothing is looked at first, as in Python. ValueError where nothing is named.
    """
    file, _, path = place.rpartition(":")
    if not (file and path):
        raise ValueError(
            f"{place!r} names no dataset; write module:name or script.py:name, as in "
            "mymodule:dataset"
        )
    is_script = file.endswith(".py") or os.sep in file
    found: Any = _script(Path(file)) if is_script else _module(file)
    for name in path.split("."):
        found = getattr(found, name)
    is_maker = isinstance(found, type) or (
        callable(found) and not hasattr(type(found), "__getitem__")
    )
    return found() if is_maker else found


def look_first(folder: str) -> None:
    """Put a folder first on ``sys.path``, unless PYTHONSAFEPATH or ``python -P`` forbids it."""
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _module(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path and "" not in sys.path:
        look_first(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] or here in sys.path or "" in sys.path:
            raise
        raise ValueError(
            f"no module {name!r} on sys.path, and PYTHONSAFEPATH is set, so the current directory "
            f"is not looked at; name the file, as in {name.replace('.', os.sep)}.py:dataset, or "
            "put its folder on PYTHONPATH"
        ) from None


def _script(file: Path) -> ModuleType:
    """Import a script by its path.

    Its folder comes first on ``sys.path``, for its own imports and for those of workers.
    """
    if not file.is_file():
        raise ValueError(f"there is no script {str(file)!r}")
    name, folder = file.stem, str(file.resolve().parent)
    if name in sys.modules:
        known = getattr(sys.modules[name], "__file__", None)
        if known is None or not Path(known).exists() or not file.samefile(known):
            raise ValueError(
                f"{file} has the name of a module that Python has imported already, {name}; rename "
                "the script"
            )
        return sys.modules[name]
    if folder not in sys.path:
        look_first(folder)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(file)!r} is no script of Python: its name does not end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

"""Warns of what it costs a worker to import a framework.

The one warning also names the user's line that asks for the import.

A worker imports this module for nearly every dataset: it stays light, and so does what it imports.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringfeed._callers import FRAMEWORKS, frame_above, frames_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Place = tuple[str, int, str]  # a file, a line and its module

MEGABYTE = 10**6
# A worker imports no pathlib for it.
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120
_LIBRARIES = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    os.path.dirname(os.__file__) + os.sep,  # noqa: PTH120 - see above
)


def is_of_library(file: str) -> bool:
    """Whether a file is Python's own or an installed package's.

    No program changes such a file as it runs.
    """
    return any(library in file for library in _LIBRARIES)


class _State:
    """What this process may say."""

    silent = False  # another worker says it
    needed: frozenset[str] = frozenset()  # packages of which the samples themselves are made


def frameworks_loaded() -> list[str]:
    """Return the root packages of the frameworks that this process has imported."""
    return [root for root in FRAMEWORKS if root in sys.modules]


def expect(packages: frozenset[str] | None, *, silent: bool) -> None:
    """Say nothing of frameworks among ``packages``, whose objects samples hold.

    Where ``silent``, say nothing at all.

    None: no sample has been read. Then torch is not named either: its datasets mostly give tensors.
    """
    _State.needed, _State.silent = frozenset(("torch",)) if packages is None else packages, silent


@contextmanager
def watched() -> Iterator[None]:
    """Warn once in a process of the frameworks that are imported inside.

    The warning says what they cost, and what asked for them.
    """
    if _State.silent or any(type(finder) is _Finder for finder in sys.meta_path):
        yield
        return
    before, began_s, memory = set(frameworks_loaded()), time.monotonic(), _private_bytes()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    new = [root for root in frameworks_loaded() if root not in before]
    if new and not _State.needed.intersection(new):
        _State.silent = True
        cost = f"{time.monotonic() - began_s:.1f} s"
        if memory:
            cost += f" and {max(0, _private_bytes() - memory) / MEGABYTE:.0f} MB"
        _warn(finder.place, new, cost)


def _warn(place: _Place | None, roots: list[str], cost: str) -> None:
    """Warn at the line that leads to the import, of what it says."""
    what = "what the dataset holds"
    if place is not None:
        import linecache  # noqa: PLC0415 - for the one warning

        text = linecache.getline(*place[:2]).strip()
        what = f"{os.path.basename(place[0])} line {place[1]}"  # noqa: PTH119
        what += f" ({text})" if text else ""
    message = (
        f"{what} makes the workers import {', '.join(roots)}, which took {cost} in this one; use "
        "NumPy there or leave it to the model, keep the import out of the dataset's module, or "
        "give workers=0 or backend='thread'"
    )
    file, line, module = place or ("dataset", 1, "dataset")
    warnings.warn_explicit(message, RuntimeWarning, file, line, module, {})


class _Finder:
    """Notes where the first framework is asked for; it finds nothing itself."""

    place: _Place | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Note the innermost line of the user's that led here.

        Else the outermost one of an installed package.
        """
        if self.place is not None or name not in FRAMEWORKS:
            return
        for frame in frames_from(frame_above(1)):
            file, function = frame.f_code.co_filename, frame.f_code.co_name
            # The program that a worker is started with (`python -c`) is no line of the user's.
            is_program = (file, function) == ("<string>", "<module>")
            if file.startswith((_OURS, "<frozen ")) or is_program:
                continue
            is_users = not is_of_library(file)
            if is_users or function == "<module>":
                self.place = file, frame.f_lineno, str(frame.f_globals.get("__name__"))
            if is_users:
                return


def _private_bytes() -> int:
    """Return the memory of this process that it shares with no other.

    0 where /proc does not say.
    """
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - see above
            resident, shared = file.read().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

"""Which tests mean something where workers are threads, for `make test-portable`.

A plugin of pytest: `-p without_linux`. What it leaves out is said here, with the reason, and nowhere else.
"""

from __future__ import annotations

import os
import signal
import threading
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "a worker dies, is replaced, or is stuck until it is killed": (
        "*::*_dies*",
        "*::*killed*",
        "*::*kills*",
        "*::*death*",
        "*::*replace*",
        "*/test_batch_deaths.py*",
        "*/test_optional_workers.py*",
    ),
    "it is about memfds and their seals": (
        "ring/test_segment.py*",
        "ring/test_watch.py*",
    ),
}
"""Patterns of what is left out, by the reason."""
FATAL = {signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT}


def pytest_configure(config: pytest.Config) -> None:
    """Let loaders say that their workers are threads: tests/portable looks for it."""
    config.addinivalue_line("filterwarnings", "ignore:a worker process needs memory:RuntimeWarning")
    for module, name in ((os, "kill"), (os, "_exit"), (os, "abort"), (signal, "raise_signal")):
        setattr(module, name, _outliving(getattr(module, name)))


def _outliving(end: Callable[..., object]) -> Callable[..., object]:
    """Refuse a worker that ends its process, since that is the tests' own: the test fails by this error."""

    def end_another(*given: Any) -> object:
        is_own = given[0] == os.getpid() if len(given) > 1 else True
        is_end = not given or end.__name__ == "_exit" or given[-1] in FATAL
        if is_own and is_end and threading.current_thread() is not threading.main_thread():
            message = f"a thread calls {end.__name__}, which ends the tests"
            raise RuntimeError(message)
        return end(*given)

    return end_another


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs processes."""
    patterns = [f"tests/{pattern}" for some in LEFT_OUT.values() for pattern in some]
    left = [item for item in items if any(fnmatch(item.nodeid, pattern) for pattern in patterns)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]

"""Looking at a loader's processes from a test, and at whole interpreters that run scripts."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import ringfeed

PATIENCE_S = 120.0
FORK_HINT = (
    ", or give backend='process', with ringfeed.torch multiprocessing_context='forkserver': a "
    "forked worker lacks the threads that libraries such as polars and tensorstore have started "
    "here, and a call that waits for them never ends"
)
"""What a StallError says more where workers are forked from this process."""


def pool_of(loader: ringfeed.Loader) -> Any:
    """Return the pool of a loader that runs."""
    assert loader._runner.engine is not None
    return loader._runner.engine.pool


def pids(loader: ringfeed.Loader) -> list[int]:
    """Return the processes of a loader's workers."""
    return [worker.pid for worker in list(pool_of(loader)._roster.workers.values())]


def inside(loader: ringfeed.Loader) -> list[int]:
    """Return the numbers of the samples or elements that workers are at."""
    assert loader._runner.engine is not None
    return [
        worker.inside
        for worker in loader._runner.engine.observer.workers()
        if worker.inside is not None
    ]


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a state that must come, however busy the machine is."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def lose_patience(loader: ringfeed.Loader, timeout_s: float) -> None:
    """Have a loader that runs wait for so long from now on: whoever places a stall first need not guess at times."""
    assert loader._runner.engine is not None
    engine = loader._runner.engine
    engine.options = copy.copy(engine.options)
    engine.options.timeout_s = timeout_s


def while_it_waits(act: Callable[[], object]) -> threading.Thread:
    """Have another thread act as soon as this one waits for a batch."""
    caller = threading.get_ident()

    def waits() -> bool:
        return sys._current_frames()[caller].f_code.co_name == "_wait_for_workers"

    def watch() -> None:
        wait_until(waits)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def _environment() -> dict[str, str]:
    """Return an environment in which a script finds the tests' modules and buffers its output."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": "",
    }


def run_script(
    text: str, *, through: tuple[str, ...] = (), cwd: Path | None = None
) -> tuple[str, str, int]:
    """Run a script in an interpreter of its own; return its output, its errors and its status."""
    command = [*through, sys.executable, "-c", text]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=_environment(),
        check=False,
        cwd=cwd,
    )
    return found.stdout, found.stderr, found.returncode


def start_script(text: str) -> subprocess.Popen[str]:
    """Start a script in an interpreter of its own; only its output is read."""
    command = [sys.executable, "-c", text]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment()
    )

"""Where and with what a figure was had: machine, kernel, versions, commit."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS = ("ringfeed", "numpy", "pillow")
KILLED_S, LOOK_S = 10.0, 0.02


def conditions(*, quick: bool) -> dict[str, Any]:
    """What every line of results says of when, where and how it was had."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "quick": quick,
        "commit": commit(),
        "machine": machine(),
        "load": os.getloadavg()[0],
    }


def printed_by(
    command: list[str],
    timeout_s: float,
    environment: dict[str, str] | None = None,
    look: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """What a fresh process prints in its last line, as JSON; or an error in its place.

    What it has started is killed when it ends, or at the end of its time. `look` is called with its
    number, again and again, as long as it runs.
    """
    # Files and no pipes: a worker that outlives its parent holds a pipe open, and its reader up.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603 - the bench's own files
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            until_s = time.monotonic() + timeout_s
            while look and process.poll() is None and time.monotonic() < until_s:
                look(process.pid)
                time.sleep(LOOK_S)
            status = process.wait(max(until_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return {"error": f"no end within {timeout_s:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for good
                process.wait(KILLED_S)
        output.seek(0)
        errors.seek(0)
        if status:
            said = errors.read().strip()[-500:]
            return {"error": said or f"exit status {status}, without a word"}
        found: dict[str, Any] = json.loads(output.read().splitlines()[-1])
        return found


def machine() -> dict[str, Any]:
    """The processor, the cores this process may use, memory in bytes, kernel and C library."""
    return {
        "cpu": _line_of("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_line_of("/proc/meminfo", "MemTotal").split()[0]) * 1024,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }


@cache
def gpu() -> dict[str, str]:
    """Name and driver of the first NVIDIA GPU, as nvidia-smi has them; empty without one."""
    asked = shutil.which("nvidia-smi")
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    said = _output_of(asked, *query) if asked else ""
    name, _, driver = said.partition("\n")[0].rpartition(", ")
    return {"gpu": name, "driver": driver} if name else {}


def _line_of(file: str, name: str) -> str:
    """The value of the first line `name: value` of a file of the kernel.

    Empty when there is none.
    """
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def versions(requires: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Python's version and those of the packages that take part, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in (*ALWAYS, *(pip for pip, _ in requires)):
        name = _distribution(package)
        if name is not None:
            found[package] = version(name)
    return found


def _distribution(package: str) -> str | None:
    """The installed distribution that holds a package: TensorFlow has a smaller one without GPU code."""
    for name in (package, f"{package}-cpu"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    return None


def commit() -> str:
    """The commit this stands at, with + behind it when files differ from it.

    "none" outside a repository.
    """
    git, here = shutil.which("git"), Path(__file__).parents[2]
    if git is None:
        return "none"
    head = _output_of(git, "-C", str(here), "rev-parse", "--short=12", "HEAD")
    # Results are written while the bench runs: they make no difference to what is measured.
    changes = _output_of(
        git, "-C", str(here), "status", "--porcelain", "--", ".", ":!bench/results"
    )
    return f"{head}+" if head and changes else head or "none"


def _output_of(*command: str) -> str:
    """What a command prints; nothing when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603, git
    return done.stdout.strip() if done.returncode == 0 else ""

"""A training that `remote.py` has started, as it sees it: waits until it is ready, and asks what it has found."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import leftovers  # of tests/support, which remote.py has put on the path

SCRIPT = Path(__file__).with_name("remote_run.py")
READY_S, END_S = 400.0, 300.0


class Training:
    """One process; ``stop()`` has it end its epoch and say what it has found."""

    def __init__(self, **terms: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._stop = Path(self._folder.name) / "stop"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        given = {**terms, "stop": str(self._stop)} if terms.pop("stops", False) else terms
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, str(SCRIPT), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._said, self._written = b"", ""
        self.noise: list[str] = []  # what actors, and Ray, have written there, too
        self._line(READY_S, "ready")

    def bridges(self) -> list[int]:
        """Return the processes of its bridges: those below it that have Ray."""
        return [pid for pid in sorted(leftovers.below(self._process.pid)) if _has_ray(pid)]

    def pid(self) -> int:
        """Return its own."""
        return self._process.pid

    def errors(self) -> str:
        """Return what it has written to its standard error until now."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def result(self) -> dict[str, Any]:
        """Return what it has found, when it has ended."""
        self._stop.touch()
        try:
            found: dict[str, Any] = json.loads(self._line(END_S, "{"))
            self._process.wait(END_S)
        finally:
            self.end()
        return found

    def _line(self, timeout_s: float, begins: str) -> str:
        """Return the next line that begins so."""
        until_s = time.monotonic() + timeout_s
        while not (line := self._any_line(until_s - time.monotonic())).startswith(begins):
            self.noise.append(line)
        return line

    def _any_line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        until_s, pipe = time.monotonic() + timeout_s, self._process.stdout.fileno()
        while b"\n" not in self._said:
            if not select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
                self.end()
                message = (
                    f"the training says nothing for {timeout_s:g} s; the end of its errors: "
                    f"{self._written}"
                )
                raise TimeoutError(message)
            if not (said := os.read(pipe, 1 << 16)):
                self.end()
                message = f"the training has ended; the end of its errors: {self._written}"
                raise RuntimeError(message)
            self._said += said
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def end(self) -> None:
        """End it, whatever it is at."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._errors.closed:
            self._errors.seek(0)
            self._written = self._errors.read()[-1500:]
            self._errors.close()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._folder.cleanup()


def run(**terms: Any) -> dict[str, Any]:
    """Have a training run for its time; return what it has found."""
    return Training(**terms).result()


def wait_until(holds: Any, timeout_s: float) -> bool:
    """Wait for something; False where it does not come."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def _has_ray(pid: int) -> bool:
    try:
        return "_raylet" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False

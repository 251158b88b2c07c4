"""A process that trains, told by a test what to do, line by line."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Self

SCRIPT = """
import gc, os, sys, time
import ringfeed
from datasets import *

for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Trainer:
    """Another Python, with `ringfeed` and `datasets` imported.

    Also a context manager, which ends it.
    """

    def __init__(self) -> None:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def begin(self, line: str) -> None:
        """Have it run a line, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def await_done(self) -> str:
        """Wait until a line has been run; returns what it has printed."""
        assert self._process.stdout is not None
        printed = []
        while (line := self._process.stdout.readline()) != "done\n":
            assert line, "it has ended"
            printed.append(line)
        return "".join(printed)

    def do(self, line: str) -> str:
        """Have it run a line to the end; returns what it has printed."""
        self.begin(line)
        return self.await_done()

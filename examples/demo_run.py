"""A training of the demo as a child process: it is told when to begin an epoch; each wait has a limit."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 90.0
CHILD_ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",  # errors only
    "CUDA_VISIBLE_DEVICES": "-1",  # two trainings at once would fight for one accelerator's memory
}


class Run:
    """One training: `epochs` and `memory` as it tells them, `trouble` where it does not go well."""

    def __init__(self, feed: str, command: list[str]) -> None:
        self.feed = feed
        self.epochs: list[dict[str, Any]] = []
        self.memory: dict[str, int] = {}
        self.trouble = ""
        self.last_words = ""
        self.complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by stop()
        self.child = subprocess.Popen(  # noqa: S603 - our own script
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=os.environ | CHILD_ENVIRONMENT,
            start_new_session=True,  # so that stop() reaches the workers too
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as told:
            for line in told:
                self.lines.put(line)
        self.lines.put("")

    def _next_event(self) -> dict[str, Any] | None:
        """Return what the child tells next.

        None, with `trouble` set, where it tells nothing any more.
        """
        try:
            line = self.lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            self.trouble = "hung"
            self.stop()  # it may be busy, and disturb the others
            return None
        if not line:
            self.trouble = "failed"
            return None
        event: dict[str, Any] = json.loads(line)
        return event

    def train_an_epoch(self, on_batch: Callable[[], None]) -> None:
        """Let the child train one more epoch, calling `on_batch` after each of its batches."""
        if self.trouble or self.child.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the end of its output will tell the same
            self.child.stdin.write("+")
            self.child.stdin.flush()
        while event := self._next_event():
            if event["event"] == "epoch":
                self.epochs.append(event)
                return
            on_batch()

    def finish(self) -> None:
        """Hear the child's last report and end it."""
        while not self.trouble and (event := self._next_event()):
            if event["event"] == "done":
                self.memory = event
                break
        self.stop()

    def stop(self) -> None:
        """End the child and all that it started, at once.

        `last_words` is its traceback, or all it wrote.
        """
        if self.complaints.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.listener.join(timeout=5)
        if self.child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.stdin.close()
        self.complaints.seek(0)
        _, traceback, rest = self.complaints.read().rpartition("Traceback")
        self.last_words = (traceback + rest)[-2000:].strip()
        self.complaints.close()

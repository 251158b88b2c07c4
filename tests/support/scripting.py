"""Loaders whose workers and slots move as a test says. Importable in workers."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import ringfeed
from datasets import Oracle
from ringfeed.engine.autotune import Setting, Step, Window

ROOM = {"workers": "auto", "slots": "auto"}


class Slowly(Oracle):
    """An oracle that takes its time."""

    def __getitem__(self, index: int) -> Any:
        """Wait 10 ms."""
        time.sleep(0.01)
        return super().__getitem__(index)


class Script:
    """A tuner that goes where it was told, one move a look; the last one is where it stays."""

    is_short = False  # training waits, and nothing is left to try

    def __init__(self, *settings: tuple[int, int]) -> None:
        first, *others = [Setting(*setting) for setting in settings]
        self.setting = first
        self.history: list[Any] = []
        self.why = "as written"
        self.windows: list[Window] = []
        self.refusals: list[str] = []
        self._others = deque(others)

    def look(self, window: Window) -> Step | None:
        """Go on to the next setting; when all slots are held, to one more."""
        self.windows.append(window)
        if window.all_held:
            self._before, self.setting = (
                self.setting,
                Setting(self.setting.workers, self.setting.slots + 1),
            )
        elif self._others:
            self._before, self.setting = self.setting, self._others.popleft()
        else:
            return None
        return Step(0, self.setting, self.why, 0.0, 0.0)

    def refuse(self, why: str) -> None:
        """Go back."""
        self.refusals.append(why)
        self.setting = self._before

    def make_do(self, workers: int, why: str) -> Step:
        """Stay with so many workers."""
        self.refusals.append(why)
        self.setting = Setting(workers, self.setting.slots)
        return Step(0, self.setting, why, 0.0, 0.0)


def scripted(
    dataset: Any, *settings: tuple[int, int], **parameters: Any
) -> tuple[ringfeed.Loader, Script]:
    """Return a loader that has room for every setting, and follows the script."""
    loader = ringfeed.Loader(dataset, **{"batch_size": 4, **ROOM, **parameters})
    script = Script(*settings)
    loader._runner.tuner = script  # type: ignore[assignment]
    return loader, script

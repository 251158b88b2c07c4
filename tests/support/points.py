"""Ctrl-C at each point of `next` at which CPython looks for signals: what comes after it must be what comes without."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(ringfeed.__file__).parent)
CALLS = {code for name, code in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name}
ALL = 10**9


class Points:
    """Raises KeyboardInterrupt at the `number`-th point of the package: at a function's start, or after a call."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""
        self._calling: set[int] = set()  # frames whose last step was a call, and that have called no traced function

    def __enter__(self) -> None:
        """Begin."""
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        """Put an end to it."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, *_: object) -> Any:
        self._calling.discard(id(frame.f_back))
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        self._pass(frame, "start of")
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        called = id(frame) in self._calling
        self._calling.discard(id(frame))
        if event == "opcode":
            if called:
                self._pass(frame, "after a call in")
            if frame.f_code.co_code[frame.f_lasti] in CALLS:
                self._calling.add(id(frame))
        return self._step

    def _pass(self, frame: FrameType, what: str) -> None:
        self.left -= 1
        if not self.left:
            code = frame.f_code
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno}, {what} {code.co_name}"
            raise KeyboardInterrupt


def live(make: Callable[[], ringfeed.Loader], read: Callable[[Any], Any], points: Points) -> tuple[list[Any], Any]:
    """Read an epoch, whatever Ctrl-C comes: what was handed out or raised, and what was counted."""
    seen: list[Any] = []
    with make() as loader:
        batches = iter(loader)
        while True:
            try:
                with points:
                    batch = next(batches)
                seen.append(read(batch))
                del batch
            except KeyboardInterrupt:
                pass
            except StopIteration:
                break
            except ringfeed.RingfeedError as error:
                seen.append(str(error))
                if isinstance(error, ringfeed.StallError):  # it would stall for ever
                    break
        stats = loader.stats()
    return seen, (stats.batches, stats.samples, sorted(stats.skipped), stats.none_batches)


def differing(make: Callable[[], ringfeed.Loader], read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return each place where one Ctrl-C changes what is read or counted, and what it is then."""
    counting = Points(ALL)
    expected = live(make, read, counting)
    found = {}
    for number in range(1, 1 + ALL - counting.left):
        points = Points(number)
        got = live(make, read, points)
        if got != expected:
            found[points.where] = got
    return found

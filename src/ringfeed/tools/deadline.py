"""A limit on the time of foreign code, which may hang: a loader that is measured."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AGAIN_S = 1.0  # later, where code has swallowed the first
GRACE_S = 5.0  # after the time, for code to see the error


class TimeUpError(BaseException):
    """The time of the body is over. No Exception: code that catches those does not see it."""


class Backstop:
    """What a thread calls where a body goes on GRACE_S after its time: it waits in C code, or is no main thread's."""

    call: ClassVar[Callable[[float], object] | None] = None

    @classmethod
    def watch(cls, seconds: float) -> threading.Event:
        """Begin to watch; ends by setting what is returned."""
        over, call = threading.Event(), cls.call
        if call is not None:
            thread = threading.Thread(target=_wait, args=(over, seconds, call), daemon=True, name="ringfeed-profile")
            thread.start()
        return over


def _wait(over: threading.Event, seconds: float, call: Callable[[float], object]) -> None:
    if not over.wait(seconds + GRACE_S):
        call(seconds)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeUpError in the body after some seconds, and each second from then on.

    Only in the main thread, where Python runs signal handlers, and between two steps of Python: see `Backstop`.
    SIGALRM and its timer are as before when it ends.
    """
    over = Backstop.watch(seconds)
    try:
        if threading.current_thread() is threading.main_thread():
            with _alarm(seconds):
                yield
        else:
            yield
    finally:
        over.set()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, _raise)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        for _ in range(2):  # an alarm may come right here, and then none for AGAIN_S
            with suppress(TimeUpError):
                signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        if timer[0]:  # the program's own, which has waited meanwhile
            left_s = max(timer[0] - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left_s, timer[1])


def _raise(*_: object) -> None:
    raise TimeUpError

"""Whether this process made a loader, or works for one, and whether it is about to end; what is called at ends."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Forks:
    """Counts the forks between the first process that imported this and this one."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Count one, in the child."""
        cls.count += 1


os.register_at_fork(after_in_child=Forks.note)


class Worker:
    """Knows whether this process works for a loader of another one: it is a worker, or it forks them.

    A module of the user's that makes a loader makes one here, too, where it is imported. That one must start nothing
    before its first epoch: its forkserver would import the module, and make the next one.
    """

    is_here = False


class Exit:
    """Knows whether the interpreter is on its way out."""

    begun = False
    calls: tuple[Callable[[], object], ...] = ()
    """Called when it begins, before the loaders are ended."""

    @classmethod
    def note(cls) -> None:
        """Be told so, before the loaders are ended."""
        cls.begun = True
        for call in cls.calls:
            call()

    @classmethod
    def park(cls) -> None:
        """Hold a daemon thread, as the interpreter soon will: an error it printed now could abort the exit."""
        thread = threading.current_thread()
        if cls.begun and thread.daemon and not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - no other way
            threading.Event().wait()


class Finalizer:
    """Calls something when an object dies, or at the exit; what Ctrl-C keeps it from, a second call does.

    Python ignores Ctrl-C there, on the first line of `weakref.finalize` too, which is then never called again.
    """

    def __init__(self, obj: object, call: Callable[[], object]) -> None:
        """Call it when this object dies."""
        self._is_done = False
        self._calls: list[weakref.finalize[[Callable[[], object]], object]] = []
        for _ in range(2):  # Ctrl-C here leaves those that there are
            self._calls.append(weakref.finalize(obj, self._run, call))

    def _run(self, call: Callable[[], object]) -> None:
        if not self._is_done:
            call()
            self._is_done = True
            for other in self._calls:  # that of an object that is dead cannot be detached, and keeps the call
                other()

    @property
    def alive(self) -> bool:
        """Whether a call is still to come."""
        return any(call.alive for call in self._calls)

    def __call__(self) -> None:
        """Call it now."""
        self._calls[0]()

    def detach(self) -> None:
        """Call it no more."""
        for call in self._calls:
            call.detach()

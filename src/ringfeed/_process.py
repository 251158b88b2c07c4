"""Whether this process works for a loader or is about to end, and what is called at ends."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

END_S = 10.0  # that a call may take which another thread makes, before it is no longer waited for


class Forks:
    """Counts the forks between the first process that imported this and this one."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Count one, in the child."""
        cls.count += 1


os.register_at_fork(after_in_child=Forks.note)


class Worker:
    """Knows whether this process is a worker of another process, or forks its workers.

    A module of the user's that makes a loader makes one here, too, where it is imported. That one
    must start nothing before its first epoch: its forkserver would import the module, and make the
    next one.
    """

    is_here = False
    consumer_fd = -1
    """The pidfd of the process that it works for."""


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
        """Hold a daemon thread at the exit: an error that it printed now could abort the exit."""
        thread = threading.current_thread()
        is_dummy = isinstance(thread, threading._DummyThread)  # noqa: SLF001 - no other way
        if cls.begun and thread.daemon and not is_dummy:
            threading.Event().wait()


class Finalizer:
    """Calls something soon after an object dies, or else at the exit.

    What Ctrl-C keeps it from, a second call does.

    Objects die wherever the garbage collector runs: in any thread, amid any allocation, under any
    lock. So nothing that waits for a lock or a thread may be called there. A thread of its own
    makes the call, and `finish` waits for it where no lock is held.

    Python ignores Ctrl-C in finalizers, on the first line of `weakref.finalize` too, which is then
    never called again.
    """

    _open: ClassVar[dict[Finalizer, None]] = {}  # whose call is still to come
    _at_exit: ClassVar[
        list[Callable[[], None]]
    ] = []  # what is registered for the exit, from the first object on

    def __init__(self, call: Callable[[], object]) -> None:
        """Watch no object yet.

        The owner keeps this first, and can `detach` it where Ctrl-C comes amid `watch`.
        """
        if not self._at_exit:  # now, so that it comes ahead of what frameworks do at the exit
            self._at_exit.append(atexit.register(self.finish_all))
        self._call: Callable[[], object] | None = call
        self._calling = threading.RLock()
        self._is_due = self._is_begun = False
        self._deaths: list[weakref.finalize[[], object]] = []

    def watch(self, obj: object) -> None:
        """Make the call when this object has died."""
        try:
            self._open[self] = None
            for _ in range(2):  # Ctrl-C here leaves those that there are
                death = weakref.finalize(obj, self._begin)
                death.atexit = False  # `finish_all` does
                self._deaths.append(death)
        except BaseException:
            if not self._deaths:  # or it would keep for ever what it was to end
                self._open.pop(self, None)
            raise

    def _begin(self) -> None:
        """Have a thread make the call. Where there is room for none, `finish` makes it."""
        self._is_due = True
        if not self._is_begun and self in self._open:
            with suppress(RuntimeError):
                # Not by `threading`: the lock that its start() takes may be what this thread holds.
                _thread.start_new_thread(self._begin_apart, ())
            self._is_begun = True

    def _begin_apart(self) -> None:
        """Have a thread that `threading` knows make the call: what is called may join others."""
        with suppress(RuntimeError):
            threading.Thread(target=self, name="ringfeed-end", daemon=True).start()

    def __call__(self) -> None:
        """Call it now, unless it was called; wait for a thread that is at it."""
        try:
            if (
                self._calling.acquire(timeout=END_S)
                and self in self._open
                and self._call is not None
            ):
                self._call()
                self.detach()
        finally:  # Ctrl-C may come when the lock is just taken: it is asked whether it was
            # `threading.Condition` asks so, too.
            if self._calling._is_owned():  # type: ignore[attr-defined] # noqa: SLF001
                self._calling.release()

    @property
    def alive(self) -> bool:
        """Whether the call is still to come."""
        return self in self._open

    def detach(self) -> None:
        """Call it no more, and keep nothing of it."""
        self._open.pop(self, None)
        self._call = None
        for death in self._deaths:
            death.detach()

    @classmethod
    def finish(cls) -> None:
        """Make the calls of all objects that have died, to free what they held; hold no lock."""
        for one in [*cls._open]:
            if one._is_due:  # noqa: SLF001 - its own
                one()

    @classmethod
    def forget_all(cls) -> None:
        """Make none of the calls, in a forked child: all of them are the parent's.

        Without the GIL the old dict may be locked there for ever, for a thread of the parent.
        """
        cls._open = {}

    @classmethod
    def finish_all(cls) -> None:
        """Have all calls made, at the exit."""
        for one in [*cls._open]:
            try:
                one()
            except BaseException:  # noqa: BLE001 - the others are still called
                sys.excepthook(*sys.exc_info())


os.register_at_fork(after_in_child=Finalizer.forget_all)

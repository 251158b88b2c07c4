"""Whether this process is still the one that made a loader, and whether it is about to end."""

from __future__ import annotations

import os
import threading


class Forks:
    """Counts the forks between the first process that imported this and this one."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Count one, in the child."""
        cls.count += 1


os.register_at_fork(after_in_child=Forks.note)


class Exit:
    """Knows whether the interpreter is on its way out."""

    begun = False

    @classmethod
    def note(cls) -> None:
        """Be told so, before the loaders are ended."""
        cls.begun = True

    @classmethod
    def park(cls) -> None:
        """Hold a daemon thread, as the interpreter soon will: an error it printed now could abort the exit."""
        thread = threading.current_thread()
        if cls.begun and thread.daemon and not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - no other way
            threading.Event().wait()

"""Children that a test forks, beside threads of the frameworks too."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60


class Child:
    """A forked child that runs ``deed`` as soon as `go` is called.

    It ends with 0 where that raises nothing.
    """

    def __init__(self, deed: Callable[[], object]) -> None:
        start, self._go = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                signal.alarm(PATIENCE_S)
                assert os.read(start, 1) == b"g"
                deed()
                status = 0
            except BaseException:  # noqa: BLE001 - shown, whatever it is
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(start)

    def go(self) -> int:
        """Let it begin, and return its wait status."""
        os.write(self._go, b"g")  # no mere end: other children have the pipe too
        os.close(self._go)
        return os.waitpid(self.pid, 0)[1]

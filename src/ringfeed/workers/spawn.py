"""backend="spawn": each worker is a fresh interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.system import channel as channels
from ringfeed.system.interpreter import explained, start_interpreter
from ringfeed.workers.process import Launcher, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.system.guard import Lifeline


class Spawner(Launcher):
    """Starts each worker as a fresh interpreter."""

    _begun: Sequence[WorkerProcess] = ()

    def __init__(self, module: str = "ringfeed.workers.worker_main") -> None:
        """Start none yet; ``module``: whose ``main`` they run."""
        super().__init__()
        self._module = module

    def begin(self, workers: int) -> None:
        """Start the first workers now, so that their interpreters come up while the dataset is packed."""
        self._begun = [spawn(self._module, self.lifeline) for _ in range(workers)]

    def start(self) -> WorkerProcess:
        """Return a worker that has begun, or start one."""
        if not self._begun:
            return spawn(self._module, self.lifeline)
        worker, *self._begun = self._begun
        return worker

    def close(self) -> None:
        """End what has begun and is no worker yet."""
        self._begun = ()
        super().close()


@explained()
def spawn(module: str, lifeline: Lifeline) -> WorkerProcess:
    """Run ``module.main(channel, parent, lifeline)`` in a fresh interpreter with this one's path and flags."""
    ours, theirs = channels.pair()
    with theirs:
        process = start_interpreter(module, (theirs.fileno(), *lifeline.fds))
    return WorkerProcess(process.pid, process.pidfd, ours, process.wait, is_child=True)

"""The pool of threads: none of them dies, and a dataset is what it is in the user's own code."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.reader import Port
from ringfeed.errors import WorkerError
from ringfeed.monitor.stacks import stacks_by_thread
from ringfeed.ring import _ring
from ringfeed.system.machine import start_thread
from ringfeed.workers.pool import STOP_S, Pool

if TYPE_CHECKING:
    from ringfeed.datasets.reader import Reader
    from ringfeed.workers.pool import PoolConfig


class Threads(Pool):
    """Worker threads of this process: for datasets that release the GIL, or cannot be pickled."""

    def __init__(self, config: PoolConfig) -> None:
        """Prepare ``config.workers`` threads."""
        super().__init__(config)
        self._dataset: Any = None
        self._threads: dict[int, threading.Thread] = {}
        self._leaving: set[int] = set()  # of them

    def start(self, dataset: Any) -> None:
        """Start the threads; they never keep the interpreter alive."""
        self._dataset = dataset
        self.resize(self._config.initial_workers)

    def resize(self, workers: int) -> None:
        """Have more threads or fewer; those that are sent away end what they are at."""
        ring = self._config.ring
        there = threading.enumerate()  # also those that have not begun to run
        for number in [number for number in self._leaving if self._threads[number] not in there]:
            ring.reap(number, blame=False)  # so that its id is like new
            self._leaving.discard(number)
            del self._threads[number]
        ring.set_worker_count(workers)
        staying = sorted(self._threads.keys() - self._leaving)
        self._leaving.update(staying[workers:])
        for number in self._leaving:  # again, if Ctrl-C came in between
            ring.retire(number)
        ids = (number for number in range(ring.ids) if number not in self._threads)
        for number in [*ids][: max(0, workers - len(staying))]:
            self._run(number)

    def _run(self, number: int) -> None:
        config = self._config
        end = _ring.WorkerEnd(config.ring, number, stream=number + 1)
        worker = number, config.workers, 0
        port = Port(end, config.ring, config.offsets, states=config.states, worker=worker)
        reader = config.source.reader(self._dataset, port)
        thread = threading.Thread(
            target=self._serve, args=(reader,), name=f"ringfeed-{number}", daemon=True
        )
        self._threads[number] = thread
        try:
            start_thread(thread)
        except BaseException:
            # After Ctrl-C it may run all the same, and its id must not be another's meanwhile.
            self._leaving.add(number)
            config.ring.retire(number)
            raise

    def _serve(self, reader: Reader) -> None:
        """Run a thread."""
        try:
            reader.serve(0)
        except BaseException as error:  # noqa: BLE001
            # Outside any sample: the consumer must hear of it.
            self.failure = WorkerError(f"a worker could not start: {error}")
            self.failure.__cause__ = error.__cause__ or error
            self._config.ring.alarm()

    def stalled(self) -> list[str]:
        """Describe each thread."""
        stacks = stacks_by_thread()
        return [
            self._describe(number, f"thread {thread.name}", stacks.get(thread.ident, ""))
            for number, thread in self._threads.items()
        ]

    def stop(self) -> None:
        """Wait a little for the threads; one inside a long sample ends after it."""
        self._config.ring.stop()
        for thread in self._threads.values():
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(STOP_S / len(self._threads))

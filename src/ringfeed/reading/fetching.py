"""Reads samples, several at a time, in the order in which they are asked for.

    Fetch      a sample that is asked for, and then what has come of it
    Tasks      ``await dataset[i]``, in the dataset's event loop
    Threads    ``dataset[i]``, in threads that start as they are needed

Each Fetch comes back once, by ``on_done``, in the thread that has read it: also one that is
unwanted by then.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.worker_info import being
from ringfeed.errors import WorkerError
from ringfeed.monitor.stacks import stacks_by_thread
from ringfeed.orders.rng import SampleContext, making
from ringfeed.ring._ring import now_ns
from ringfeed.system.machine import start_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from ringfeed.datasets.worker_info import WorkerInfo


class Fetch:
    """A sample that is asked for. ``context`` says which, and keeps what the sample has drawn.

    It is read within ``with``, which times it and keeps what it raises: that is the row's, whatever
    it is.
    """

    __slots__ = ("claim", "context", "error", "is_done", "row", "sample", "thread", "took_ns")

    def __init__(self, claim: Any, row: int, context: SampleContext) -> None:
        """Ask for the sample of the context, for a row of a claim; None: it is unwanted."""
        self.claim = claim
        self.row = row
        self.context = context
        self.sample: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.took_ns = self.thread = 0

    def __enter__(self) -> None:
        """Begin reading."""
        making.set(self.context)
        self.took_ns = -now_ns()

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End reading."""
        self.took_ns += now_ns()
        if error is not None and traceback is not None:
            # Without the frame that reads: it goes on, while another thread looks at the others.
            self.error = error.with_traceback(traceback.tb_next)
        return True


class Fetcher:
    """Reads what it is asked for, ``most`` samples at a time."""

    def __init__(
        self, dataset: Any, most: int, on_done: Callable[[Fetch], None], worker: WorkerInfo | None
    ) -> None:
        """Nothing is read yet; ``worker``: which one reads."""
        self._worker = worker
        self.getitem = dataset.__getitem__
        self._most = most
        self._on_done = on_done

    def drop(self, fetches: Sequence[Fetch]) -> None:
        """Give these samples up: none begins any more, and none holds on to the ring."""
        for fetch in fetches:
            fetch.claim = None


class Tasks(Fetcher):
    """Samples that are awaited. What is private runs in the event loop."""

    def __init__(self, dataset: Any, *how: Any) -> None:
        """Run the dataset's event loop."""
        from ringfeed.datasets.event_loop import LAST_S, loop_of  # noqa: PLC0415 - imports asyncio

        super().__init__(dataset, *how)
        self._last_s = LAST_S
        self._loop = loop_of(dataset)
        self._asked: deque[Fetch] = deque()
        self._running: dict[Fetch, asyncio.Task[None]] = {}
        self._is_over = threading.Event()

    def ask(self, fetches: Sequence[Fetch]) -> None:
        """Await these samples; returns at once."""
        self._loop.call_soon_threadsafe(self._begin, fetches)

    def drop(self, fetches: Sequence[Fetch]) -> None:
        """Give these samples up, and cancel those that are awaited."""
        super().drop(fetches)
        self._loop.call_soon_threadsafe(self._cancel, fetches)

    def close(self) -> None:
        """Cancel all, and give the tasks a little time to come to an end."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._close)
            self._is_over.wait(self._last_s)

    def stack(self, fetch: Fetch) -> str:
        """Return where the sample's task is, from its outermost coroutine to the innermost."""
        task, frames = self._running.get(fetch), []
        waits: Any = None if task is None else task.get_coro()
        while (frame := getattr(waits, "cr_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            waits = waits.cr_await
        return "".join(traceback.StackSummary.extract(frames).format())

    def _begin(self, fetches: Sequence[Fetch] = ()) -> None:
        self._asked.extend(fetches)
        while self._asked and len(self._running) < self._most:
            fetch = self._asked.popleft()
            if fetch.claim is None:
                self._on_done(fetch)
                continue
            task = self._running[fetch] = self._loop.create_task(self._read(fetch))
            task.add_done_callback(partial(self._end, fetch))

    async def _read(self, fetch: Fetch) -> None:
        being.set(self._worker)
        with fetch:
            fetch.sample = await self.getitem(fetch.context.index)

    def _end(self, fetch: Fetch, _: asyncio.Task[None]) -> None:
        """Begin the next one, then hand the sample over, which takes time."""
        del self._running[fetch]
        self._begin()
        self._on_done(fetch)
        if not self._running and not self._most:
            self._is_over.set()

    def _cancel(self, fetches: Sequence[Fetch]) -> None:
        for task in filter(None, map(self._running.get, fetches)):
            task.cancel()

    def _close(self) -> None:
        self._most = 0
        self._cancel([*self._running])
        if not self._running:
            self._is_over.set()


class Threads(Fetcher):
    """Samples that are read in daemon threads, which start as they are needed."""

    def __init__(self, *how: Any, take: Any = None, failed: Any = None) -> None:
        """Start no thread yet.

        ``take`` gives a thread its next sample, or None at the end; without it, threads take what
        was asked for. ``failed`` is told what ``take`` or ``on_done`` raises.
        """
        super().__init__(*how)
        self._asked: SimpleQueue[Fetch | None] = SimpleQueue()
        self._take = take or self._asked.get
        self._failed = failed
        self._threads: list[threading.Thread] = []

    def ask(self, fetches: Sequence[Fetch]) -> None:
        """Read these samples; returns at once. WorkerError where no thread can be started."""
        self.grow(self._asked.qsize() + len(fetches))
        for fetch in fetches:
            self._asked.put(fetch)

    def grow(self, wanted: int = 1) -> None:
        """Start up to that many threads more. WorkerError where none can run."""
        try:
            for _ in range(min(wanted, self._most - len(self._threads))):
                self._start()
        except WorkerError:  # those that run go on
            if not self._threads:
                raise
            self._most = len(self._threads)

    def _start(self) -> None:
        name = f"ringfeed-read-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)  # first: after Ctrl-C it may run all the same
        try:
            start_thread(thread)
        except WorkerError:
            self._threads.pop()
            raise

    def stack(self, fetch: Fetch) -> str:
        """Return where the sample's thread is."""
        return stacks_by_thread().get(fetch.thread, "")

    def close(self) -> None:
        """Let the threads end after the sample that each is in; they hold on to nothing else."""
        self._take, self._on_done = self._asked.get, SimpleQueue[Fetch]().put
        self._asked.put(None)

    def read(self, fetch: Fetch) -> None:
        """Read a sample in this thread, and hand it over."""
        if fetch.claim is not None:
            fetch.thread = threading.get_ident()
            with fetch:
                fetch.sample = self.getitem(fetch.context.index)
        self._on_done(fetch)

    def _work(self) -> None:
        being.set(self._worker)
        try:
            while (fetch := self._take()) is not None:
                self.read(fetch)
            self._asked.put(None)  # for the next thread, also one that has just been started
        except BaseException as error:
            if self._failed is None:
                raise
            self._failed(error)

"""One reading of a loader: some hundred samples, batch by batch, as fast as they come, and what that has used."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

try:
    import psutil
except ModuleNotFoundError as error:
    message = (
        "what a loader uses is read by the package psutil, which is missing: pip install "
        "'ringfeed[top]'"
    )
    raise ModuleNotFoundError(message, name="psutil") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

START_S = 60.0  # for the first batch, and the start of workers before it
END_S = 15.0  # for a loader to end its workers
LEAST_BATCHES = 16  # of a reading, where there is time
LEAST_S = 1.0  # the same
LEAST_RATE = 3  # batches, from which a rate is told
MOST_LOOKED_AT = 10_000  # leaves of a batch
AGAIN_S = 1.0  # between two alarms, where code has swallowed the first
GRACE_S = 5.0  # after the time, for code to see the error
LOOK_S = 0.1  # at how busy the machine is


class Limits(NamedTuple):
    """A reading ends after so many samples and LEAST_BATCHES, or so many seconds after the first batch.

    stuck: called by a thread with the seconds where a step goes on GRACE_S after its time: C code
    waits for ever.
    """

    samples: int = 300
    seconds: float = 10.0
    stuck: Callable[[float], object] | None = None


class Memory(NamedTuple):
    """Bytes of some processes: their own, and their parts of pages that other processes have, too."""

    private: int = 0
    shared: int = 0


NOTHING = Memory()


@dataclass
class Reading:
    """A loader that is read once, and what that took; times in seconds, memory in bytes.

    first_s: from the begin to the first batch. batch_s: a batch after those that come together at
    the start; NaN where there were fewer than LEAST_RATE. own_cpu_s, worker_cpu_s: CPU time a
    batch, of this process with all its threads, and of the processes that the loader has started.
    failure: why it ended early. fell_back: whether the framework itself made batches. change: the
    line that a script has to change for this loader. lead: batches that come together at the start,
    one of each worker. rows: the samples of a batch, and most: of an epoch, where that is known.
    """

    label: str
    batches: int = 0
    samples: int = 0
    size: int = 0
    first_s: float = math.nan
    batch_s: float = math.nan
    own_cpu_s: float = math.nan
    worker_cpu_s: float = math.nan
    workers: int = 0
    memory: Memory = NOTHING
    failure: str = ""
    notes: tuple[str, ...] = ()
    fell_back: bool = False
    change: str = ""
    lead: int = 1
    rows: int | None = None
    most: int | None = None

    @property
    def cpu_s(self) -> float:
        """CPU time a batch, of all processes."""
        return self.own_cpu_s + self.worker_cpu_s

    @property
    def samples_per_s(self) -> float:
        """Samples a second, once it runs; NaN where that is not known."""
        return self.samples / self.batches / self.batch_s if self.batches else math.nan

    # ---- the loader, of each framework its own ----

    def begin(self) -> Iterator[Any]:
        """Begin an epoch."""
        raise NotImplementedError

    def ask(self) -> None:
        """Note what the loader says of itself, before it ends: ``notes`` and ``fell_back``."""

    def end(self) -> None:
        """End the workers, and whatever else the loader keeps."""

    # ---- reading ----

    def read(self, limits: Limits) -> Exception | None:
        """Read an epoch to its end or to a limit, and end the loader; returns what it raised."""
        self._others = children()  # processes that are none of the loader's
        self._marks: list[
            Any
        ] = []  # what was used up to some batches: their number, seconds, CPU seconds
        self._came = (
            math.nan,
            math.nan,
        )  # when the newest batch did, and CPU seconds of this process then
        error: Exception | None = None
        try:
            try:
                self._take(limits)
            except StopIteration:  # there is no batch
                pass
            except TimeUpError:
                self.failure = "" if self.batches else f"it gave no batch within {START_S:g} s"
            except Exception as caught:  # noqa: BLE001 - whatever a loader raises
                error, self.failure = caught, in_a_line(caught)
            self._sum_up()
        finally:
            with suppress(TimeUpError, Exception), limited(END_S, limits.stuck):
                self.end()
            gc.collect()  # a loader that is only dropped later would end its workers amid the next reading
        return error

    def _take(self, limits: Limits) -> None:
        began_s = time.perf_counter()
        with limited(START_S, limits.stuck):
            batches = self.begin()
            self._count(next(batches))
        self.first_s = self._came[0] - began_s
        self._look()
        with limited(limits.seconds + 1, limits.stuck):
            for batch in batches:
                self._count(batch)
                spent_s = self._came[0] - self._marks[0][1]
                has_most = self.samples >= limits.samples and self.batches >= max(
                    LEAST_BATCHES, 4 * self.lead
                )
                has_enough = spent_s > limits.seconds or (has_most and spent_s > LEAST_S)
                if has_enough or self.batches == self.lead:
                    self._look()
                if has_enough:
                    break

    def _count(self, batch: Any) -> None:
        self._came = time.perf_counter(), time.process_time()
        size, rows = size_of(batch)
        self.batches += 1
        self.samples += self.rows or rows
        self.size += size

    def _look(self) -> None:
        """Look at the workers and their memory; the time of this look is not counted."""
        workers = children() - self._others
        self.workers = max(self.workers, len(workers))
        self.memory = max(self.memory, memory(workers), key=sum)
        self._mark(time.perf_counter(), time.process_time())

    def _mark(self, at_s: float, own_cpu_s: float) -> None:
        worker_cpu_s = cpu_s(children() - self._others)
        self._marks.append(np.array([self.batches, at_s, own_cpu_s, worker_cpu_s]))

    def _sum_up(self) -> None:
        """Tell what a batch took from the last mark on that lies LEAST_RATE batches behind the newest one."""
        self._mark(*self._came)
        for mark in self._marks:
            count, *used = self._marks[-1] - mark
            if count >= LEAST_RATE - 1:
                self.batch_s, self.own_cpu_s, self.worker_cpu_s = (
                    max(one, 0.0) / count for one in used
                )
        self.size //= max(self.batches, 1)
        self.samples = self.samples if self.most is None else min(self.samples, self.most)
        self.ask()


def in_a_line(error: Exception) -> str:
    """Return an error as a line; of a worker of torch's, which sends its whole traceback as text, the last of it."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "worker process" in lines[0]:
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


# ---- batches ----


def size_of(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch, as far as arrays and text tell them, and its rows: those of the first array."""
    leaves = [*islice(_leaves(batch), MOST_LOOKED_AT)]
    rows = next((int(leaf.shape[0]) for leaf in leaves if getattr(leaf, "shape", ())), len(leaves))
    return sum(map(_bytes_of, leaves)), rows or 1


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, Mapping):
        part = [*part.values()]
    if isinstance(part, (list, tuple)):
        for child in part:
            yield from _leaves(child)
    else:
        yield part


def _bytes_of(part: Any) -> int:
    """Return the bytes of an array, a tensor or a text; 0 for any other object."""
    if isinstance(part, (str, bytes)):
        return len(part)
    if isinstance(size := getattr(part, "nbytes", None), int):
        return size
    width = getattr(getattr(part, "dtype", None), "size", 0)  # of TensorFlow's
    return math.prod(part.shape) * width if isinstance(width, int) and width else 0


# ---- processes ----


def children() -> set[psutil.Process]:
    """Return the processes that this one has started, and those that they have started."""
    return set(psutil.Process().children(recursive=True))


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of some children, with those of all that have ended."""
    ended = os.times()
    total = ended.children_user + ended.children_system
    for process in processes:
        with suppress(psutil.Error):  # it has ended meanwhile
            total += sum(
                process.cpu_times()[:4]
            )  # user, system, and both of its own that have ended
    return total


def memory(processes: Iterable[psutil.Process]) -> Memory:
    """Return what some processes have; one that has ended, or hides, has nothing."""
    private = shared = 0
    for process in processes:
        with suppress(psutil.Error):
            sizes = process.memory_full_info()
            private += sizes.uss
            shared += sizes.pss - sizes.uss
    return Memory(private, shared)


def busy() -> float:
    """Return which share of the machine's CPUs is at work, as a mean of a tenth of a second."""
    return float(psutil.cpu_percent(LOOK_S)) / 100


# ---- a limit on the time of foreign code, which may hang ----


class TimeUpError(BaseException):
    """The time of the body is over. No Exception: code that catches those does not see it."""


@contextmanager
def limited(seconds: float, stuck: Callable[[float], object] | None = None) -> Iterator[None]:
    """Raise TimeUpError in the body after some seconds, and each second from then on.

    Only in the main thread, where Python runs signal handlers, and between two steps of Python:
    elsewhere, and where C code waits, a thread calls ``stuck``, if it is given. SIGALRM and its
    timer are as before when it ends.
    """
    watch = threading.Timer(seconds + GRACE_S, stuck or (lambda _: None), [seconds])
    watch.daemon = True
    if stuck is not None:
        watch.start()
    try:
        with (
            _alarm(seconds)
            if threading.current_thread() is threading.main_thread()
            else nullcontext()
        ):
            yield
    finally:
        watch.cancel()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, _raise)
    left_s, again_s = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        for _ in range(2):  # an alarm may come right here, and then none for AGAIN_S
            with suppress(TimeUpError):
                signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if left_s:  # the program's own, which has waited meanwhile
            signal.setitimer(
                signal.ITIMER_REAL, max(left_s - (time.monotonic() - began), 1e-3), again_s
            )


def _raise(*_: object) -> None:
    raise TimeUpError

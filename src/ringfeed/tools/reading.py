"""One reading of a loader: some hundred samples as fast as they come, and what that uses."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

try:
    import psutil
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "what a loader uses is read by the package psutil, which is missing: pip install "
        "'ringfeed[top]'",
        name="psutil",
    ) from error


LEAST_BATCHES = 16  # of a reading, where there is time
LEAST_S = 1.0  # the same
LEAST_RATE = 3  # batches, from which a rate is told
MOST_LOOKED_AT = 10_000  # leaves of a batch


class Limits(NamedTuple):
    """The end of a reading.

    It ends after so many samples and LEAST_BATCHES, or so many seconds after the first batch.
    """

    samples: int = 300
    seconds: float = 10.0


class Memory(NamedTuple):
    """Bytes of some processes: their own, and their parts of pages that others have, too."""

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
    opened: begins an epoch and yields its batches; at the end it sets ``notes`` and ``fell_back``,
    and ends the workers.
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
    opened: Callable[[Reading], AbstractContextManager[Iterator[Any]]] | None = None

    @property
    def cpu_s(self) -> float:
        """CPU time a batch, of all processes."""
        return self.own_cpu_s + self.worker_cpu_s

    @property
    def samples_per_s(self) -> float:
        """Samples a second, once it runs; NaN where that is not known."""
        return self.samples / self.batches / self.batch_s if self.batches else math.nan

    def read(self, limits: Limits) -> Exception | None:
        """Read an epoch to its end or to a limit, and end the loader; returns what it raised."""
        assert self.opened is not None
        others = children()  # processes that are none of the loader's
        error: Exception | None = None
        with ExitStack() as loader:
            try:
                began_s = time.perf_counter()
                batches = loader.enter_context(self.opened(self))
                self._count(next(batches))
                self.first_s = time.perf_counter() - began_s
                self._take(batches, limits, others)
            except StopIteration:  # there is no batch
                pass
            except Exception as caught:  # noqa: BLE001 - whatever a loader raises
                error, self.failure = caught, in_a_line(caught)
            with suppress(Exception):
                loader.close()
        self.opened = None  # the report outlives the loader
        # A loader that is dropped only later would end its workers amid the next reading.
        gc.collect()
        return error

    def _take(self, batches: Iterator[Any], limits: Limits, others: set[psutil.Process]) -> None:
        """Take the batches after the first."""
        # What was used up to some batches: their number, seconds, CPU seconds.
        marks = [self._look(others)]
        own = marks[0][1:3]
        for batch in batches:
            self._count(batch)
            own = [time.perf_counter(), time.process_time()]
            spent_s = own[0] - marks[0][1]
            least = max(LEAST_BATCHES, 4 * self.lead)
            has_most = self.samples >= limits.samples and self.batches >= least
            if spent_s > limits.seconds or (has_most and spent_s > LEAST_S):
                self._look(others)
                break
            if self.batches == self.lead:
                marks.append(self._look(others))
        newest = np.array([self.batches, *own, cpu_s(children() - others)])
        # A batch's costs are told from the last mark on that lies LEAST_RATE batches behind.
        for count, *used in newest - marks:
            if count >= LEAST_RATE - 1:
                self.batch_s, self.own_cpu_s, self.worker_cpu_s = (
                    max(float(spent), 0.0) / count for spent in used
                )
        self.size //= self.batches
        self.samples = self.samples if self.most is None else min(self.samples, self.most)

    def _count(self, batch: Any) -> None:
        size, rows = size_of(batch)
        self.batches += 1
        self.samples += self.rows or rows
        self.size += size

    def _look(self, others: set[psutil.Process]) -> list[float]:
        """Look at the workers and their memory; the time of this look is not counted."""
        workers = children() - others
        self.workers = max(self.workers, len(workers))
        self.memory = max(self.memory, memory(workers), key=sum)
        return [self.batches, time.perf_counter(), time.process_time(), cpu_s(workers)]


def in_a_line(error: Exception) -> str:
    """Return an error as a line.

    A worker of torch's sends its whole traceback as text, whose last line says the error.
    """
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "worker process" in lines[0]:
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


# ---- batches ----


def size_of(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch's arrays and texts, and its rows: those of the first array."""
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

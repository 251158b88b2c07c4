"""One reading of a loader: some hundred samples, batch by batch, as fast as they come."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.tools.deadline import TimeUpError, limited
from ringfeed.tools.usage import Memory, cpu_s, descendants, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_S = 60.0  # for the first batch, and the start of workers before it
END_S = 15.0  # for a loader to end its workers
LEAST_BATCHES = 16  # of a reading, where there is time
LEAST_S = 1.0  # the same
LEAST_RATE = 3  # batches, from which a rate is told
MOST_LOOKED_AT = 10_000  # objects of a batch
NOTHING = Memory()


class Limits(NamedTuple):
    """What a reading ends at: so many samples, and LEAST_BATCHES, or so many seconds from the first batch on."""

    samples: int = 300
    seconds: float = 10.0


def _nothing() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Candidate:
    """A loader to be read.

    begin: begins an epoch. end: ends what the loader keeps. notes: what is to be said of it, asked before ``end``, and
    fell_back: whether it has left the batches to the framework.
    lead: batches that come together at the start, one of each worker. rows: the samples of a batch, and most: of an
    epoch, where that is known. change: the line that a script has to change for it.
    """

    label: str
    begin: Callable[[], Iterator[Any]]
    end: Callable[[], object]
    notes: Callable[[], Sequence[str]] = _nothing
    fell_back: Callable[[], bool] = bool
    lead: int = 1
    rows: int | None = None
    most: int | None = None
    change: str = ""


@dataclass(frozen=True)
class Reading:
    """What a loader took; times in seconds, memory in bytes.

    first_s: from the begin to the first batch. batch_s: a batch after those that come together at the start; NaN where
    there were fewer than LEAST_RATE. own_cpu_s, worker_cpu_s: CPU time a batch, of this process with all its threads,
    and of the processes that the loader has started. failure: why it ended early. fell_back: whether the framework
    itself made batches.
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

    @property
    def cpu_s(self) -> float:
        """CPU time a batch, of all processes."""
        return self.own_cpu_s + self.worker_cpu_s

    @property
    def samples_per_s(self) -> float:
        """Samples a second, once it runs; NaN where that is not known."""
        return self.samples / self.batches / self.batch_s if self.batches else math.nan


class _Mark(NamedTuple):
    """What had been used when a number of batches had come."""

    batches: int
    at_s: float
    own_cpu_s: float
    worker_cpu_s: float


class _Reader:
    """Reads a loader, and notes what it has used."""

    def __init__(self, limits: Limits, candidate: Candidate) -> None:
        self.limits = limits
        self.candidate = candidate
        self.lead = candidate.lead
        self.batches = self.samples = self.size = self.workers = 0
        self.began_s = self.first_s = self.at_s = self.own_cpu_s = math.nan
        self.memory = Memory()
        self.marks: list[_Mark] = []
        self.failure = ""
        self.broke_off = False
        self.error: Exception | None = None
        self._others = descendants()  # processes that are none of the loader's

    def read(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Read from the begin of an epoch to its end, or to a limit; what the loader raises ends it, too."""
        self.began_s = time.perf_counter()
        try:
            with limited(START_S):
                batches = begin()
                first = next(batches, self)
            if first is not self:
                self._count(first)
                del first
                with limited(self.limits.seconds + 1):
                    self._go_on(batches)
        except TimeUpError:
            self.broke_off = True
            self.failure = self.failure if self.batches else f"it gave no batch within {START_S:g} s"
        except Exception as error:  # noqa: BLE001 - whatever a loader raises
            self.error = error
            self.failure = in_a_line(error)
        self._mark()

    def _go_on(self, batches: Iterator[Any]) -> None:
        while (batch := next(batches, self)) is not self:
            self._count(batch)
            if self._has_enough():
                self._look()
                break

    def _has_enough(self) -> bool:
        spent_s = self.at_s - self.marks[0].at_s
        if spent_s > self.limits.seconds:
            return True
        least = max(LEAST_BATCHES, 4 * self.lead)
        return self.samples >= self.limits.samples and self.batches >= least and spent_s > LEAST_S

    def _count(self, batch: Any) -> None:
        self.at_s, self.own_cpu_s = time.perf_counter(), time.process_time()
        size, rows = size_of(batch)
        self.batches += 1
        self.samples += self.candidate.rows or rows
        self.size += size
        if self.batches == 1:
            self.first_s = self.at_s - self.began_s
        if self.batches in {1, self.lead}:
            self._look()
            self.at_s, self.own_cpu_s = time.perf_counter(), time.process_time()
            self._mark()

    def _mark(self) -> None:
        """Note what was used up to the newest batch. What has ended meanwhile still counts."""
        workers = descendants() - self._others
        self.marks.append(_Mark(self.batches, self.at_s, self.own_cpu_s, cpu_s(workers)))

    def _look(self) -> None:
        """Look at the workers and their memory, as long as there are any."""
        workers = descendants() - self._others
        self.workers = max(self.workers, len(workers))
        self.memory = max(self.memory, memory(workers), key=sum)

    def reading(self) -> Reading:
        """Return what was noted."""
        candidate = self.candidate
        found = Reading(
            candidate.label,
            self.batches,
            self.samples if candidate.most is None else min(self.samples, candidate.most),
            self.size // max(self.batches, 1),
            self.first_s,
            workers=self.workers,
            memory=self.memory,
            failure=self.failure,
            notes=tuple(candidate.notes()),
            fell_back=candidate.fell_back(),
            change=candidate.change,
        )
        end = self.marks[-1]
        start = next((mark for mark in reversed(self.marks[:-1]) if end.batches - mark.batches >= LEAST_RATE - 1), None)
        if start is None:
            return found
        count = end.batches - start.batches
        return replace(
            found,
            batch_s=(end.at_s - start.at_s) / count,
            own_cpu_s=(end.own_cpu_s - start.own_cpu_s) / count,
            worker_cpu_s=max(end.worker_cpu_s - start.worker_cpu_s, 0.0) / count,
        )


def read(candidate: Candidate, limits: Limits) -> tuple[Reading, Exception | None]:
    """Read a loader once, and end it; returns what it took, and what it has raised."""
    reader = _Reader(limits, candidate)
    try:
        reader.read(candidate.begin)
        return reader.reading(), reader.error
    finally:
        with suppress(TimeUpError, Exception), limited(END_S):
            candidate.end()
        if reader.broke_off:
            gc.collect()  # a loader that is only dropped later would end its workers amid the next reading


def in_a_line(error: Exception) -> str:
    """Return an error as a line; of a worker of torch's, which sends its whole traceback as text, the last of it."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "worker process" in lines[0]:
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


# ---- batches ----


def size_of(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch, as far as arrays and text tell them, and its rows: those of the first array."""
    size, rows, looked = 0, 0, 0
    to_do = [batch]
    while to_do and looked < MOST_LOOKED_AT:
        part = to_do.pop()
        looked += 1
        if isinstance(part, Mapping):
            to_do.extend(reversed([*part.values()]))
        elif isinstance(part, (list, tuple)):
            rows = rows or len(part) * (bool(part) and not _is_nested(part[0]))
            to_do.extend(reversed(part))
        elif isinstance(part, (str, bytes)):
            size += len(part)
        else:
            size += _bytes_of(part)
            shape: Any = getattr(part, "shape", ())
            rows = rows or (int(shape[0]) if len(shape) else 0)
    return size, rows or 1


def _is_nested(part: Any) -> bool:
    return isinstance(part, (Mapping, list, tuple)) or hasattr(part, "shape")


def _bytes_of(part: Any) -> int:
    """Return the bytes of an array or a tensor; 0 for any other object."""
    if isinstance(size := getattr(part, "nbytes", None), int):
        return size
    width = getattr(getattr(part, "dtype", None), "size", 0)  # of TensorFlow's
    return math.prod(part.shape) * width if isinstance(width, int) and width else 0

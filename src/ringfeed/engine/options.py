"""The loader's parameters for how it runs, checked; "auto" stays "auto".

`Plan` is made from these.
"""

from __future__ import annotations

import sys
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from ringfeed._checks import check_choice, check_count, check_integer, check_seconds, is_auto
from ringfeed.ring import _ring
from ringfeed.system.machine import HAS_PROCESSES, check_shared, in_threads, usable_cpus

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.monitor.stats import Side
    from ringfeed.orders.sampler import Sampler
    from ringfeed.workers.pool import Remote

BACKENDS = ("process", "thread", "spawn", "fork")
AUTO_WORKERS = 4  # a CPU, at most: more than one helps while they wait for a disk or a network
DEFAULT_SLOTS = 4
# One in use and one ready, besides the batches that each worker fills alone, or that are in flight.
SPARE_SLOTS = 2


class Options:
    """The loader's parameters of the same names; ``auto`` names those that are "auto".

    ``backend``: "process" or "thread"; ``start_method``: how processes start, "forkserver", "spawn"
        or "fork"; ``remote``: a cluster, whose bridges are processes beside the workers.
    ``workers``: their number, or the most if "auto"; ``readers``: processes that read a stream for
        the workers; ``concurrency``: 0 if each worker reads one sample at a time.
    ``slots``: None if ``auto``, ``memory`` or the default decides the number.
    """

    def __init__(  # noqa: PLR0913 - as the loader has
        self,
        source: Source,
        *,
        backend: Any,
        workers: int | Literal["auto"] | None,
        concurrency: int | None = None,
        slots: int | Literal["auto"] | None,
        memory: int | str | None,
        copy: bool,
        drop_remainder: bool,
        timeout_s: float | None,
        on_stall: str,
        on_error: str,
        max_attempts: int,
    ) -> None:
        """Check the parameters for this dataset.

        Raises ValueError or TypeError for one that does not fit.
        """
        backend = default_backend() if backend is None else backend
        self.remote = remote = None if isinstance(backend, str) else _remote(backend)
        if remote is not None:
            check_shared("a bridge to a cluster", "leave backend= out")
            remote.check_fits(source, workers)
            backend = "process"
        check_choice("backend", backend, BACKENDS)
        self.start_method = backend if backend in {"spawn", "fork"} else "forkserver"
        self.backend = "thread" if backend == "thread" or source.local_only else "process"
        if self.backend == "process" and workers != 0 and not HAS_PROCESSES:
            in_threads()
            self.backend = "thread"
        asked_for: dict[Side, object] = {"workers": workers, "slots": slots}
        auto = {side for side, value in asked_for.items() if is_auto(side, value)}
        most_workers = _most_workers(workers, a_cpu=1 if remote else AUTO_WORKERS)
        readers = int(workers is not None and _reads_apart(source, most_workers, self.backend))
        if readers:
            most_workers = usable_cpus() if "workers" in auto else most_workers
            auto.discard("workers")
        elif source.streams:
            if isinstance(workers, int) and workers > source.streams:
                from ringfeed.datasets.peekable import tell_idle  # noqa: PLC0415 - if needed

                tell_idle(source, workers)
            most_workers = min(most_workers, source.streams)
            auto.discard("workers")  # one reads each
        if workers is None and isinstance(concurrency, int):
            most_workers = max(1, min(most_workers, concurrency))
        in_flight = _in_flight(source, concurrency, most_workers, is_auto="workers" in auto)
        count = None if "slots" in auto else check_count("slots", slots, 0)
        if slots is None and memory is None:
            if "workers" in auto and source.at_once:
                auto.add("slots")
            else:
                count = _default_slots(source, most_workers, in_flight, remote)
        self.workers, self.readers, self.concurrency = most_workers, readers, in_flight
        self.slots, self.memory, self.auto = count, memory, frozenset(auto)
        self.copy, self.drop_remainder, self.timeout_s = copy, drop_remainder, timeout_s
        self.on_stall, self.on_error, self.max_attempts = on_stall, on_error, max_attempts
        self.sends = (most_workers > 0 or remote is not None) and self.backend == "process"
        """Whether other processes read the dataset."""
        self.bridges = 0 if remote is None else remote.bridges
        """How many processes connect to a cluster."""
        check_choice("on_stall", on_stall, ("raise", "restart"))
        check_choice("on_error", on_error, ("raise", "skip"))
        check_count("workers", most_workers, 0, _ring.MAX_WORKERS)
        check_count("max_attempts", max_attempts, 1, 1000)
        check_seconds("timeout_s", timeout_s, "or None to wait for ever")

    def prefetches_epochs(self, source: Source, sampler: Sampler) -> bool:
        """Whether the workers begin the next epoch while the last batches of this one are used.

        They do not if the next epoch may still change: by the dataset's hooks, by a sampler that is
        read during the epoch, or by the program, if threads share its dataset.
        """
        may_change = source.hooks or source.has_passes or source.streams or not sampler.pure
        return self.sends and not may_change


def default_backend() -> str:
    """Return "process", or "thread" where Python runs without the GIL at this moment."""
    has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    return "process" if has_gil else "thread"


def _reads_apart(source: Source, workers: int, backend: str) -> bool:
    """Whether a separate process reads an iterable for this number of workers."""
    if source.streams != 1:
        return False
    from ringfeed.reading.relay import reads_apart  # noqa: PLC0415 - only where it is needed

    return reads_apart(source, workers, backend)


def _in_flight(source: Source, concurrency: int | None, workers: int, *, is_auto: bool) -> int:
    """Return the samples in flight in all workers together; 0 where each reads one at a time."""
    if concurrency is None and not source.is_async:
        return 0
    from ringfeed.reading.waiting import concurrency_of  # noqa: PLC0415 - if needed

    return concurrency_of(source, concurrency, workers, is_auto=is_auto)


def _default_slots(
    source: Source, workers: int, in_flight: int, remote: Remote | None
) -> int | None:
    """Return the slots if several batches are filled at a time; None if one is."""
    least = workers + SPARE_SLOTS if source.at_once else 0
    at_once = ceil(in_flight / source.indices) if in_flight else 0
    if remote is not None:
        at_once = max(at_once, remote.slots(source))
    return max(least or DEFAULT_SLOTS, at_once + SPARE_SLOTS) if at_once else least or None


def _remote(backend: Any) -> Remote:
    """Return the `Remote` given as backend; TypeError for any other object."""
    if not hasattr(backend, "make_pool"):
        raise TypeError(
            f"backend={backend!r}; choose one of 'process', 'thread', 'spawn', 'fork', or a "
            "ringfeed.ray.Ray"
        )
    found: Remote = backend
    return found


def _most_workers(workers: int | str | None, a_cpu: int) -> int:
    """Return the largest number of workers."""
    if workers is None:
        return min(usable_cpus(), _ring.MAX_WORKERS)
    if isinstance(workers, str):
        return min(usable_cpus() * a_cpu, _ring.MAX_WORKERS)
    return check_integer("workers", workers, 0)

"""Where the time of a sample goes, before workers are added: the command ``ringfeed profile``."""

from __future__ import annotations

import cProfile
import pstats
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._checks import check_count, check_seconds
from ringfeed._progress import tell
from ringfeed._units import show_bytes, show_s
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.loader import Loader
from ringfeed.orders.sampler import check_seed
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.system.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_SAMPLES = 100_000
LEAST_SAMPLES = 3
SLOWEST_SHOWN = 5
FUNCTIONS_SHOWN = 8
LEAST_SHARE = 0.01  # of the time, for a function to be shown
WAITING = 0.2  # of the time off the processor, from which threads are worth a thought
WIDTH = 60  # of a function's place, in characters


class Timer:
    """Adds up the seconds of calls, those of them on a processor, and those in its queue."""

    def __init__(self) -> None:
        """Begin with none."""
        self.wall_s = self.cpu_s = self.queued_s = 0.0

    def __call__(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call it, and take the time."""
        queued_s, began_s, began_cpu_s = _queued_s(), time.perf_counter(), time.thread_time()
        made = call(*arguments)
        self.cpu_s += time.thread_time() - began_cpu_s
        self.wall_s += time.perf_counter() - began_s
        self.queued_s += _queued_s() - queued_s
        return made


def _queued_s() -> float:
    """Return the seconds for which this thread was ready to run and had no processor; 0.0 where no kernel counts."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


@dataclass(frozen=True)
class Timed:
    """One sample: seconds in ``dataset[i]``, those of them on a processor and in its queue, and in its write."""

    index: int
    read_s: float
    cpu_s: float
    write_s: float
    queued_s: float = 0.0


class Called(NamedTuple):
    """One function that ``dataset[i]`` has called, or that those have: its share of the time, without its callees."""

    place: str
    share: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """What was measured; ``str()`` is the report."""

    name: str
    batch_size: int | None
    workers: int
    sample_size: int  # bytes
    samples: tuple[Timed, ...]
    functions: tuple[Called, ...]

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join([*self._times(), "", *self._forecast(), "", *self._slowest(), "", *self._functions()])

    def as_json(self) -> dict[str, Any]:
        """Return what a sample costs: its seconds, their coefficient of variation, its bytes."""
        each = np.array([sample.read_s + sample.write_s for sample in self.samples])
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            "samples": len(each),
            "sample_s": float(each.mean()),
            "cv": float(each.std() / each.mean()),
            "cpu_s": self._sum("cpu_s") / len(each),
            "sample_bytes": self.sample_size,
        }

    def _times(self) -> Iterator[str]:
        each = np.array([sample.read_s + sample.write_s for sample in self.samples])
        read_s, write_s = self._sum("read_s"), self._sum("write_s")
        waiting = max(0.0, 1 - self._wanted_s() / read_s)
        word = "sample" if self.batch_size else "batch"
        plural = "samples" if self.batch_size else "batches"
        yield f"{len(each):,} {plural} of {self.name}, one after another in this process"
        median, late = np.quantile(each, [0.5, 0.95])
        yield f"a {word}        {show_s(each.mean())} (median {show_s(median)}, 95 % within {show_s(late)})"
        yield f"  dataset[i]  {read_s / (read_s + write_s):5.1%}, {waiting:.0%} of it waiting rather than computing"
        rate = show_bytes(int(self.sample_size * len(each) / max(write_s, 1e-9)))
        yield f"  the write   {write_s / (read_s + write_s):5.1%}, {show_bytes(self.sample_size)} at {rate} a second"

    def _forecast(self) -> Iterator[str]:
        each_s = (self._sum("read_s") + self._sum("write_s")) / len(self.samples)
        rows = self.batch_size or 1
        workers = self.workers
        many = "1 worker" if workers == 1 else f"{workers} workers"
        yield (
            f"a batch{f' of {rows}' if self.batch_size else ''}: {show_s(rows * each_s)} with one worker, at best "
            f"{show_s(rows * each_s / workers)} with {many} ({workers / each_s:,.0f} a second)"
        )
        if self._wanted_s() < (1 - WAITING) * self._sum("read_s"):
            yield "much of it is waiting: concurrency= has many samples in flight, and more workers than CPUs help"

    def _slowest(self) -> Iterator[str]:
        ordered = sorted(self.samples, key=lambda sample: -sample.read_s)[:SLOWEST_SHOWN]
        yield "slowest: " + ", ".join(f"dataset[{sample.index}] {show_s(sample.read_s)}" for sample in ordered)

    def _functions(self) -> Iterator[str]:
        yield "where dataset[i] spends it, callees apart"
        for called in self.functions:
            yield f"  {called.share:4.0%}  {called.place}  ({called.calls:,} calls)"

    def _wanted_s(self) -> float:
        """Return for how long a processor was wanted: on a busy machine a sample waits for one, too."""
        return self._sum("cpu_s") + self._sum("queued_s")

    def _sum(self, field: str) -> float:
        return float(sum(getattr(sample, field) for sample in self.samples))


def profile(  # noqa: PLR0913 - what a user may set
    dataset: Any,
    name: str = "the dataset",
    *,
    batch_size: int | None = 32,
    workers: int | None = None,
    seconds: float = 10.0,
    seed: int = 0,
) -> Profile:
    """Read samples in a shuffled order for about ``seconds``, half of them under cProfile, and say where the time goes.

    A loader without workers reads them in this process, as one worker would. Under cProfile
    Python's own calls cost more than they do, so its shares are right for what is slow and rough
    for what is quick.

    Raises what a loader of this dataset raises, TypeError for what is no dataset, ValueError for
    one that is empty or has no length.
    """
    check_count("batch_size", batch_size, 1)
    check_count("workers", workers, 0)
    check_seconds("seconds", seconds, "the time for which samples are read")
    found = open_source(dataset, Terms(batch_size, seed=check_seed(seed)))
    if not found.runs_code:
        message = "a dataset of arrays has no __getitem__ to look into: its rows are copied by ringfeed itself"
        raise ValueError(message)
    if found.length() is None:
        message = f"{name} has no length, so there are no indices to try"
        raise ValueError(message)
    watched = _Watched(found.element, found.length() or 0)
    rows = None if batch_size is None else 1  # one by one: the times are of samples
    with Loader(watched, batch_size=rows, shuffle=True, seed=seed, workers=0, slots=MIN_SLOTS, copy=True) as loader:
        samples = watched.timed(loader, seconds / 2)
        watched.profiler = cProfile.Profile()
        watched.read(loader, len(samples), seconds / 2)
        size = loader.plan.layout.rows * sum(leaf.nbytes for leaf in loader.spec.leaves)
    functions = _largest(pstats.Stats(watched.profiler))
    return Profile(name, batch_size, workers or usable_cpus(), size, samples, functions)


class _Watched:
    """A dataset that takes the time of each of its samples, or shows them to a profiler."""

    def __init__(self, get: Callable[[int], Any], length: int) -> None:
        self.profiler: cProfile.Profile | None = None
        self._get = get
        self._length = length
        self._read: list[Timed] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if self.profiler is not None:
            return self.profiler.runcall(self._get, index)
        sample = (timer := Timer())(self._get, index)
        self._read.append(Timed(index, timer.wall_s, timer.cpu_s, 0.0, timer.queued_s))
        return sample

    def read(self, loader: Loader, most: int, seconds: float) -> None:
        """Have some time's samples read, each as a batch, in the order of epoch 0."""
        loader.set_epoch(0)
        began_s = time.perf_counter()
        until = began_s + seconds
        what = "timing samples" if self.profiler is None else "reading samples under cProfile"
        for number, _ in enumerate(islice(loader, most), 1):
            tell(what, min((time.perf_counter() - began_s) / seconds, 1.0) if seconds else None)
            if time.perf_counter() > until and number >= LEAST_SAMPLES:
                break

    def timed(self, loader: Loader, seconds: float) -> tuple[Timed, ...]:
        """Return the times of some time's samples; their writes together are shared out evenly."""
        self.read(loader, 1, 0.0)  # imports, caches and the first faults are not the sample's
        self._read.clear()
        self.read(loader, MOST_SAMPLES, seconds)
        stats = loader.stats()
        write_s = stats.write_s * stats.samples / stats.batches
        return tuple(replace(sample, write_s=write_s) for sample in self._read)


def _largest(stats: pstats.Stats) -> tuple[Called, ...]:
    table: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = stats.stats  # type: ignore[attr-defined]
    total_s = sum(own_s for _, _, own_s, _, _ in table.values()) or 1e-9
    found = [
        Called(_place(*function), own_s / total_s, calls)
        for function, (_, calls, own_s, _, _) in table.items()
        if own_s / total_s >= LEAST_SHARE
    ]
    return tuple(sorted(found, key=lambda called: -called.share)[:FUNCTIONS_SHOWN])


def _place(file: str, line: int, function: str) -> str:
    """Return a function's name with the end of its file's path; built-in ones have none."""
    if file == "~":
        return function
    place = f"{Path(*Path(file).parts[-2:])}:{line} {function}"
    return place if len(place) <= WIDTH else f"...{place[3 - WIDTH :]}"

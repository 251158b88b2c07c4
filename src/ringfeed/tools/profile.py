"""Where the time of a sample goes, before workers are added: the command ``ringfeed profile``."""

from __future__ import annotations

import cProfile
import pstats
import time
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._checks import check_count, check_integer, check_seconds
from ringfeed._progress import tell
from ringfeed._units import show_bytes, show_s
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.loader import Loader
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.system.machine import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_SAMPLES = 100_000
LEAST_SAMPLES = 3
SLOWEST_SHOWN = 5
FUNCTIONS_SHOWN = 8
WAITING = 0.2  # of the time off the processor, from which threads are worth a thought


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
    """Return the seconds for which this thread was ready to run and had no processor.

    0.0 where the kernel does not count them.
    """
    with suppress(OSError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


TIMED = np.dtype([("index", "i8"), ("read_s", "f8"), ("cpu_s", "f8"), ("queued_s", "f8")])
"""One sample: seconds in ``dataset[i]``, and those of them on a processor and in its queue."""


@dataclass(frozen=True)
class Profile:
    """What was measured; ``str()`` is the report.

    samples: the times of each, as TIMED. write_s: of a sample into its slot, as a mean of all.
    functions: a table of those that ``dataset[i]`` spends most of its time in.
    """

    name: str
    batch_size: int | None
    workers: int
    sample_size: int  # bytes
    samples: Any
    write_s: float
    functions: str

    def __str__(self) -> str:
        """Return the report as text."""
        lines = [*self._times(), "", *self._forecast(), "", self._slowest(), ""]
        return "\n".join([*lines, "where dataset[i] spends it, callees apart", self.functions])

    def as_json(self) -> dict[str, Any]:
        """Return what a sample costs: its seconds, their coefficient of variation, its bytes."""
        each = self.samples.read_s + self.write_s
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            "samples": len(each),
            "sample_s": float(each.mean()),
            "cv": float(each.std() / each.mean()),
            "cpu_s": float(self.samples.cpu_s.mean()),
            "sample_bytes": self.sample_size,
        }

    @property
    def _waiting(self) -> float:
        """The share of ``dataset[i]`` in which it wanted no processor."""
        # On a busy machine a sample waits for a processor, too: that is no wait of its own.
        wanted_s = self.samples.cpu_s + self.samples.queued_s
        return max(0.0, 1 - float(wanted_s.sum() / self.samples.read_s.sum()))

    def _times(self) -> Iterator[str]:
        each = self.samples.read_s + self.write_s
        written = self.write_s / each.mean()
        word, plural = ("sample", "samples") if self.batch_size else ("batch", "batches")
        yield f"{len(each):,} {plural} of {self.name}, one after another in this process"
        median, late = np.quantile(each, [0.5, 0.95])
        spread = f"median {show_s(median)}, 95 % within {show_s(late)}"
        yield f"a {word}        {show_s(each.mean())} ({spread})"
        waiting = f"{self._waiting:.0%} of it waiting rather than computing"
        yield f"  dataset[i]  {1 - written:5.1%}, {waiting}"
        rate = show_bytes(int(self.sample_size / max(self.write_s, 1e-9)))
        yield f"  the write   {written:5.1%}, {show_bytes(self.sample_size)} at {rate} a second"

    def _forecast(self) -> Iterator[str]:
        each_s = self.samples.read_s.mean() + self.write_s
        rows = self.batch_size or 1
        workers = self.workers
        many = "1 worker" if workers == 1 else f"{workers} workers"
        yield (
            f"a batch{f' of {rows}' if self.batch_size else ''}: {show_s(rows * each_s)} with one "
            f"worker, at best {show_s(rows * each_s / workers)} with {many} "
            f"({workers / each_s:,.0f} a second)"
        )
        if self._waiting > WAITING:
            yield (
                "much of it is waiting: concurrency= has many samples in flight, and more workers "
                "than CPUs help"
            )

    def _slowest(self) -> str:
        slowest = np.argsort(-self.samples.read_s, kind="stable")[:SLOWEST_SHOWN]
        shown = (
            f"dataset[{sample.index}] {show_s(sample.read_s)}" for sample in self.samples[slowest]
        )
        return f"slowest: {', '.join(shown)}"


def profile(  # noqa: PLR0913 - what a user may set
    dataset: Any,
    name: str = "the dataset",
    *,
    batch_size: int | None = 32,
    workers: int | None = None,
    seconds: float = 10.0,
    seed: int = 0,
) -> Profile:
    """Read samples in a shuffled order for about ``seconds``, and say where the time goes.

    The second half of the time is under cProfile.
    A loader without workers reads them in this process, as one worker would. Under cProfile
    Python's own calls cost more than they do, so its shares are right for what is slow and rough
    for what is quick.

    Raises what a loader of this dataset raises, TypeError for what is no dataset, ValueError for
    one that is empty or has no length.
    """
    check_count("batch_size", batch_size, 1)
    check_count("workers", workers, 0)
    check_seconds("seconds", seconds, "the time for which samples are read")
    found = open_source(dataset, Terms(batch_size, seed=check_integer("seed", seed, 0)))
    if not found.runs_code:
        raise ValueError(
            "a dataset of arrays has no __getitem__ to look into: its rows are copied by ringfeed "
            "itself"
        )
    if found.length() is None:
        raise ValueError(f"{name} has no length, so there are no indices to try")
    watched = _Watched(found.element, found.length() or 0)
    rows = None if batch_size is None else 1  # one by one: the times are of samples
    with Loader(
        watched, batch_size=rows, shuffle=True, seed=seed, workers=0, slots=MIN_SLOTS, copy=True
    ) as loader:
        watched.read(loader, 1, 0.0)  # imports, caches and the first faults are not the sample's
        watched.times.clear()
        watched.read(loader, MOST_SAMPLES, seconds / 2)
        samples, stats = np.array(watched.times, TIMED).view(np.recarray), loader.stats()
        write_s = stats.write_s * stats.samples / stats.batches
        watched.profiler = cProfile.Profile()
        watched.read(loader, len(samples), seconds / 2)
        size = loader.plan.layout.rows * sum(leaf.nbytes for leaf in loader.spec.leaves)
    table = StringIO()
    pstats.Stats(watched.profiler, stream=table).sort_stats("tottime").print_stats(FUNCTIONS_SHOWN)
    functions = table.getvalue().strip()
    return Profile(name, batch_size, workers or usable_cpus(), size, samples, write_s, functions)


class _Watched:
    """A dataset that takes the time of each of its samples, or shows them to a profiler."""

    def __init__(self, get: Callable[[int], Any], length: int) -> None:
        self.profiler: cProfile.Profile | None = None
        self._get = get
        self._length = length
        self.times: list[tuple[int, float, float, float]] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if self.profiler is not None:
            return self.profiler.runcall(self._get, index)
        sample = (timer := Timer())(self._get, index)
        self.times.append((index, timer.wall_s, timer.cpu_s, timer.queued_s))
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

"""A torch DataLoader or a Keras PyDataset as it is, beside ringfeed in its place."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ringfeed._checks import check_integer, check_seconds
from ringfeed._classes import class_names
from ringfeed._progress import tell
from ringfeed._units import columns, show_bytes, show_s
from ringfeed.errors import RingfeedError
from ringfeed.tools.reading import Limits, Reading, in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.tools.keras_subject import KerasSubject
    from ringfeed.tools.torch_subject import TorchSubject

    Subject: TypeAlias = "KerasSubject | TorchSubject"
    """A loader of a framework: what it is, how it is read, and what the steps of a batch take."""

SAME = 0.1  # of a time or a rate, from which there is a difference
MUCH = 0.5  # of a batch's time
WAITING = 0.3  # of the time off the processor
LATER_S = 1.0  # for a first batch, from which it is worth a word
COLD = 1.5  # times a reading from caches
MOST_TIMES = 100  # that a figure is told of another
STAGED = 8  # batches that are made step by step


class Stages(NamedTuple):
    """What the steps of some batches took in this process, one after another, in seconds.

    read_s: in the dataset, of which read_cpu_s on a processor or in its queue. collate_s: to make a
    batch of samples. send_s: into shared memory or through a pipe, where there are worker
    processes.
    """

    batches: int
    read_s: float
    read_cpu_s: float
    collate_s: float = 0.0
    send_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All steps of all batches."""
        return self.read_s + self.collate_s + self.send_s


@dataclass(frozen=True)
class LoaderProfile:
    """A loader beside what may stand in its place; ``str()`` is the report.

    readings: of the loader as it is, and of the others. cold: the first reading of the loader.
    stages: the steps of a batch; None where ``why`` says.
    """

    name: str
    reader: str
    readings: tuple[Reading, ...]
    cold: Reading
    stages: Stages | None = None
    why: str = ""

    @property
    def own(self) -> Reading:
        """The loader as it is."""
        return self.readings[0]

    @property
    def best(self) -> Reading:
        """The fastest reading; the loader as it is, where no other is clearly faster."""
        faster = [
            reading
            for reading in self.readings[1:]
            if not (reading.failure or reading.fell_back)
            and reading.batch_s < (1 - SAME) * self.own.batch_s
        ]
        return min(faster, key=lambda reading: reading.batch_s, default=self.own)

    def __str__(self) -> str:
        """Return the report as text."""
        own = self.own
        size = f", {show_bytes(own.size)} each" if own.size else ""
        count = f"{own.samples:,} samples in {_batches(own)}{size}"
        rows = [["", *(reading.label for reading in self.readings)]]
        rows += [[name, *self._cells(value, show)] for name, value, show in ROWS]
        lines = [
            self.name,
            f"{count}, taken as fast as they come, without a step of training",
            "",
            *(line.rstrip() for line in columns(rows, "   ")),
            "",
            *self._where(),
        ]
        for reading in self.readings[1:]:
            lines += self._words(reading)
        return "\n".join([*lines, *self._advice()])

    __repr__ = __str__

    def _cells(self, value: Callable[[Reading], Any], show: Callable[[Any], str]) -> Iterator[str]:
        own = value(self.own)
        for reading in self.readings:
            found = value(reading)
            text = show(found) if found and not math.isnan(found) else "-"
            # Beside the other figures stands how many times the loader's own they are, in a column
            # of one width.
            ratio = found / own if own else math.nan
            times = "" if math.isnan(ratio) else f"x{ratio:.2f}" if ratio < MOST_TIMES else ">x99"
            yield text if reading is self.own else f"{text} {times:>6}"

    def _where(self) -> Iterator[str]:
        if self.cold.batch_s > COLD * self.own.batch_s:
            times = self.cold.batch_s / self.own.batch_s
            yield (
                f"a first reading, with cold caches, took {times:.1f} times as long a batch: it is "
                "not in the table"
            )
        if math.isnan(self.own.batch_s):
            yield f"{_batches(self.own)} are too few to tell a rate: see the first batch alone"
        stages = self.stages
        if stages is None or not stages.total_s:
            why = self.why or "no batch was made here in time"
            yield f"where the time of a batch goes is not known: {why}"
            return
        steps = {self.reader: stages.read_s, "collate": stages.collate_s, "transfer": stages.send_s}
        shares = ", ".join(
            f"{name} {step_s / stages.total_s:.0%}" for name, step_s in steps.items() if step_s
        )
        yield f"a batch takes {show_s(stages.total_s / stages.batches)} in one process: {shares}"
        waiting = 1 - stages.read_cpu_s / max(stages.read_s, 1e-9)
        if waiting >= WAITING:
            yield (
                f"{waiting:.0%} of {self.reader} waits rather than computes: more workers than "
                "CPUs help"
            )

    def _words(self, reading: Reading) -> Iterator[str]:
        """Say what comes of another way to read."""
        if reading.failure:
            yield f"{reading.label}: {reading.failure}"
        times = self.own.batch_s / reading.batch_s
        if not (reading.failure or reading.fell_back or math.isnan(times)):
            speed = f"as fast as {self.own.label}, within {SAME:.0%}"
            if times >= 1 + SAME:
                speed = f"{times:.1f} times as fast as {self.own.label}"
            elif times <= 1 - SAME:
                speed = f"slower than {self.own.label}, {times:.2f} times as fast"
            less = 1 - reading.cpu_s / max(self.own.cpu_s, 1e-9)
            cpu = f"{abs(less):.0%} {'less' if less > 0 else 'more'}"
            yield f"{reading.label}: {speed}; {cpu if abs(less) >= SAME else 'as much'} CPU time"
        yield from (f"{reading.label}: {note}" for note in reading.notes)
        if reading.first_s > self.own.first_s + LATER_S:
            late = show_s(reading.first_s - self.own.first_s)
            yield (
                f"{reading.label}: the first batch comes {late} later, once: workers import what "
                "it needs"
            )

    def _advice(self) -> Iterator[str]:
        stages, best = self.stages, self.best
        reads = stages is not None and stages.read_s > MUCH * stages.total_s
        if reads and not best.batch_s <= MUCH * self.own.batch_s:  # or the loader itself took most
            yield (
                f"most of it is {self.reader}, which costs the same in any loader: make it "
                "cheaper, or add workers"
            )
        if math.isnan(self.own.batch_s):
            yield "read more than this to choose by speed"
        elif best is self.own:
            yield f"no other is clearly faster: for speed alone, keep {self.own.label}"
        else:
            yield f"to change: {best.change}"


def _batches(reading: Reading) -> str:
    return f"{reading.batches:,} batch{'es' * (reading.batches != 1)}"


ROWS: tuple[tuple[str, Callable[[Reading], Any], Callable[[Any], str]], ...] = (
    ("a batch", lambda reading: reading.batch_s, show_s),
    ("samples a second", lambda reading: reading.samples_per_s, "{:,.0f}".format),
    ("first batch", lambda reading: reading.first_s, show_s),
    ("CPU a batch: this process", lambda reading: reading.own_cpu_s, show_s),
    ("CPU a batch: workers", lambda reading: reading.worker_cpu_s, show_s),
    ("processes started", lambda reading: reading.workers, "{:,.0f}".format),
    ("their own memory", lambda reading: reading.memory.private, show_bytes),
    ("their part of shared memory", lambda reading: reading.memory.shared, show_bytes),
)


def profile_loader(
    loader: Any, *, samples: int = 300, seconds: float = 10.0, shuffle: bool = True
) -> LoaderProfile:
    """Read some hundred samples of a DataLoader or a PyDataset as it is, and by ringfeed.

    Returns the figures, whose ``str()`` is the report: times of a batch, CPU time of this process
    and of the workers, their memory, the steps of a batch, and the line to change.

    samples, seconds: of each reading, of which there are three or four; it ends at the samples (and
        16 batches, and a second), or at the seconds after the first batch, or at the end of the
        epoch.
    shuffle: as of Keras' ``fit``, for a PyDataset.

    torch's, NumPy's and Python's random numbers are the same afterwards, and so is what the loader
    refers to, but for arrays that it changes in place, and iterators that can be read only once.

    TypeError for what is neither, ValueError for numbers below 1; RingfeedError where the loader
    raises or is empty. A loader that waits for ever is waited for.
    """
    return profile_subject(subject_of(loader, shuffle=shuffle), limits_of(samples, seconds))


def limits_of(samples: int, seconds: float) -> Limits:
    """Check what a user has given."""
    check_integer("samples", samples, 1)
    check_seconds("seconds", seconds, "the time of each reading")
    return Limits(samples, seconds)


def subject_of(loader: Any, *, shuffle: bool = True) -> Subject:
    """Return what profiles it; TypeError for another object."""
    names = class_names(loader)
    if "torch.DataLoader" in names:
        # Imports torch, which the loader has imported already.
        from ringfeed.tools.torch_subject import TorchSubject  # noqa: PLC0415

        return TorchSubject(loader)
    if "keras.PyDataset" in names:
        # Imports keras, which the dataset has imported already.
        from ringfeed.tools.keras_subject import KerasSubject  # noqa: PLC0415

        return KerasSubject(loader, shuffle=shuffle)
    raise TypeError(
        f"a {type(loader).__name__} is neither a torch DataLoader nor a Keras PyDataset; give a "
        "dataset of samples to `ringfeed profile module:dataset`"
    )


def profile_subject(subject: Subject, limits: Limits) -> LoaderProfile:
    """Read a loader, and what may stand in its place, for some hundred samples each.

    The loader itself is read twice: the first time fills the caches of the system, from which all
    others read.

    RingfeedError where the loader gives no batch: it raises, or is empty.
    """
    logger, nowhere = logging.getLogger("ringfeed"), logging.NullHandler()
    with ExitStack() as stack:
        # The report says what ringfeed logs; only handlers of the program's own have the lines as
        # well.
        logger.addHandler(nowhere)
        stack.callback(logger.removeHandler, nowhere)
        cold, readings = subject.readings()[0], subject.readings()
        for number, reading in enumerate([cold, *readings]):
            note = "" if number else " for the caches"
            tell(f"reading {number + 1} of {len(readings) + 1}: {reading.label}{note}")
            with subject.untouched():
                error = reading.read(limits)
            if number <= 1:  # the loader as it is
                _check(subject, reading, error)
        tell("the steps of a batch")
        stages, why = _staged(subject, limits)
    return LoaderProfile(subject.name, subject.reader, tuple(readings), cold, stages, why)


def _check(subject: Subject, reading: Reading, error: Exception | None) -> None:
    """Raise RingfeedError unless the loader as it is was read."""
    if not reading.batches and not reading.failure:
        raise RingfeedError(f"the {subject.name} is empty: there is no batch to read")
    if error is not None or not reading.batches:
        after = f" after {reading.batches} batches" if reading.batches else ""
        raise RingfeedError(
            f"the {subject.name} fails as it is{after}, so there is nothing to compare with: "
            f"{reading.failure}"
        ) from error


def _staged(subject: Subject, limits: Limits) -> tuple[Stages | None, str]:
    """Return what the steps of a batch took, and why that is not known."""
    found: list[Stages] = []
    until_s = time.monotonic() + limits.seconds
    try:
        with subject.untouched():
            for stages in islice(subject.stages(), STAGED):
                found.append(stages)
                if time.monotonic() > until_s:
                    break
    except Exception as error:  # noqa: BLE001 - of the user's code, in this process
        return None, in_a_line(error)
    # The first batch imports and warms: it counts only where there is no other.
    counted = found[1:] or found
    return (Stages(*map(sum, zip(*counted, strict=True))) if counted else None), ""

"""What is profiled: a loader of a framework, as it is."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ringfeed._progress import tell
from ringfeed.errors import RingfeedError
from ringfeed.tools.deadline import TimeUpError, limited
from ringfeed.tools.profile_report import LoaderProfile
from ringfeed.tools.reading import Limits, in_a_line, read
from ringfeed.tools.usage import others_running, queued_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from ringfeed.tools.profile_report import Stages
    from ringfeed.tools.reading import Candidate, Reading

STAGED = 8  # batches that are made step by step


class Subject(ABC):
    """A loader as it is, and what may stand in its place."""

    name: str
    """What it is, in words."""
    reader: str = "dataset[i]"
    """What makes a sample, or a batch."""

    @abstractmethod
    def candidates(self) -> list[Candidate]:
        """Return the loader as it is, and what is to be read beside it."""

    @abstractmethod
    def untouched(self) -> AbstractContextManager[object]:
        """Undo what reading does to the program: random numbers, the dataset, the loader."""

    @abstractmethod
    def stages(self) -> Iterator[Stages]:
        """Make batches here, one after another, and yield what each step took."""


@dataclass
class Timer:
    """Adds up seconds, and those of them on a processor or in its queue."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        """Call it, and take the time."""
        before_s = queued_s()
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        made = call()
        self.cpu_s += time.thread_time() - began_cpu_s
        self.wall_s += time.perf_counter() - began_s
        self.cpu_s += queued_s() - before_s
        return made


def profile_subject(subject: Subject, limits: Limits | None = None) -> LoaderProfile:
    """Read a loader, and what may stand in its place, for some hundred samples each.

    The loader itself is read twice: the first time fills the caches of the system, from which all others read.

    RingfeedError where the loader gives no batch: it raises, hangs, or is empty.
    """
    limits = limits or Limits()
    load = others_running()
    with _quiet():
        own, *others = subject.candidates()
        turns = [(own, "for the caches"), *((each, "") for each in (own, *others))]
        cold, *readings = (
            _read(
                subject,
                each,
                limits,
                f"reading {number} of {len(turns)}: {each.label} {note}".strip(),
                is_own=each is own,
            )
            for number, (each, note) in enumerate(turns, 1)
        )
        tell("the steps of a batch")
        stages, why = _staged(subject, limits)
    cpus = os.cpu_count() or 1  # load is of all of them
    return LoaderProfile(subject.name, subject.reader, tuple(readings), cold, stages, why, load, cpus)


@contextmanager
def _quiet() -> Iterator[None]:
    """Have ringfeed's log lines go to the program's own handlers alone: the report says what they say."""
    logger, nowhere = logging.getLogger("ringfeed"), logging.NullHandler()
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.removeHandler(nowhere)


def _read(subject: Subject, candidate: Candidate, limits: Limits, told: str, *, is_own: bool) -> Reading:
    tell(told)
    with subject.untouched():
        reading, error = read(candidate, limits)
    if not is_own or (reading.batches and error is None):
        return reading
    if error is None and not reading.failure:
        raise RingfeedError(f"the {subject.name} is empty: there is no batch to read")
    after = f" after {reading.batches} batches" if reading.batches else ""
    raise RingfeedError(
        f"the {subject.name} fails as it is{after}, so there is nothing to compare with: {reading.failure}"
    ) from error


def _staged(subject: Subject, limits: Limits) -> tuple[Stages | None, str]:
    """Return what the steps of a batch took, and why that is not known."""
    total: Stages | None = None
    try:
        with subject.untouched(), limited(limits.seconds):
            for count, stages in enumerate(islice(subject.stages(), STAGED)):
                # The first batch imports and warms: it counts only where there is no other.
                total = total + stages if total is not None and count > 1 else stages
    except TimeUpError:
        pass
    except Exception as error:  # noqa: BLE001 - of the user's code, in this process
        return None, in_a_line(error)
    return total, ""

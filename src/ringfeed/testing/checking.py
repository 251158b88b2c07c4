"""What is wrong with a dataset, found before the run.

    here               is it pickled? does it hold what a fork would share? a long list?
    a fresh process    sees all that `look` sees
    a fork             reads the same samples: others, or none, are a finding

A process that hangs or dies is a finding, and ends alone.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._checks import check_count, check_seconds
from ringfeed._classes import class_names
from ringfeed._failure import decode
from ringfeed._progress import tell
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.errors import ShipError
from ringfeed.system import channel as channels
from ringfeed.system.guard import Lifeline
from ringfeed.system.machine import check_shared
from ringfeed.testing.look import FAILS, PLACE, START_S, Finding, Seen, answer
from ringfeed.transport.imports import is_of_library
from ringfeed.transport.object_size import advice
from ringfeed.transport.shared_dataset import DatasetPickle, SharedDataset, pack, to_shared_memory
from ringfeed.transport.unpicklable import refuse_to_share
from ringfeed.workers.fork import computing, forked
from ringfeed.workers.process import END_S, WorkerProcess, spawn

if TYPE_CHECKING:
    from collections.abc import Callable


FRESH, FORK = "in a fresh process", "in a fork of this process"
LOOK_S = 0.5  # between two looks at where a process is

BLOCKS = {
    FRESH: "a worker has no lock, queue or thread of this process: make them on first use, there",
    FORK: (
        "a lock that is held here stays held in a fork, where no thread releases it: make locks "
        "and threads on first use, in the worker, or keep to backend='process'"
    ),
}
DIES = "a crash in C, exit(), or too little memory: read it alone, under `python -X faulthandler`"
DIFFERS = (
    "have it depend on its number alone: not on hash() or the order of a set, the process or the "
    "worker, nor on what the program has changed in a module since its import"
)


class Report(NamedTuple):
    """The findings on a dataset; ``str()`` is the report, one screen."""

    title: str
    findings: list[Finding]

    @property
    def faults(self) -> int:
        """How many findings are no notes."""
        return sum(not finding.is_note for finding in self.findings)

    def __str__(self) -> str:
        """Return each finding: what and where, and below it what to do next."""
        lines = [self.title]
        for found in sorted(self.findings, key=lambda found: found.is_note):
            kind = "note" if found.is_note else "fault"
            lines += [f"{kind}: {found.fault}: {found.seen}", f"    {found.remedy}"]
        return "\n".join(
            [*lines, f"faults: {self.faults}, notes: {len(self.findings) - self.faults}"]
        )


def check(dataset: Any, *, batch_size: int | None = 32, seconds: float = 10.0) -> None:
    """Raise AssertionError unless some samples of a dataset are what workers need.

    Its text is the report of ``ringfeed check``: what is wrong, where, and what to do next. Some
    samples are read twice, in a fresh process and in a fork of this one, and none here.

    batch_size: None for a dataset of whole batches; a Keras PyDataset always is one.
    seconds: the limit of one sample, and about that of each process.

    TypeError for what is no dataset, WorkerError on macOS.
    """
    report = examine(dataset, "the dataset", batch_size=batch_size, seconds=seconds)
    if report.faults:
        raise AssertionError(f"{report}")


def examine(
    dataset: Any, name: str, *, batch_size: int | None = 32, seconds: float = 10.0
) -> Report:
    """Return the report on a dataset; parameters and errors as of `check`."""
    check_shared("a look by other processes", "read some samples twice, and compare them")
    check_count("batch_size", batch_size, 1)
    check_seconds("seconds", seconds, "the time that a sample may take")
    if "keras.PyDataset" in class_names(dataset):
        batch_size = None
    open_source(dataset, Terms(batch_size))
    packed, unsent, held = _sent(dataset)
    looks: dict[str, Seen] = {}
    order = {"batch_size": batch_size, "seconds": seconds}
    if packed is not None:
        sent = to_shared_memory(packed)
        assert sent is not None  # there was none before
        with closing(sent):
            order["first_s"] = max(START_S, seconds)  # it imports what the dataset needs
            looks[FRESH] = _look(FRESH, partial(_spawned, sent, order))
    if not held and not [*computing()]:  # else a fork has what is this process's alone
        looks[FORK] = _look(FORK, partial(_forked, dataset, {**order, "first_s": seconds}))
    told = {
        "holds a handle" if packed is None else "handle in a fork": held,
        "not picklable": unsent,
        "long list": advice(dataset).replace(": ", "; ", 1),
    }
    found = {fault: Finding(fault, *text.split("; ", 1)) for fault, text in told.items() if text}
    for where, one in looks.items():
        for fault, finding in one.findings.items():
            found.setdefault(fault, finding._replace(seen=f"{finding.seen}, {where}"))
    if len(looks) > 1:
        here, there = looks[FRESH].hashes, looks[FORK].hashes
        if differing := [index for index in here if here[index] != there.get(index, here[index])]:
            fault, many = "changes with the process", f"{len(differing)} of {len(here)} are"
            seen = f"sample {differing[0]} is another {FRESH} than {FORK} ({many})"
            found[fault] = Finding(fault, seen, DIFFERS)
    read = f"samples read twice, {' and '.join(looks)}" if looks else "no sample was read"
    return Report(f"{name}: {read}", [*found.values()])


def _sent(dataset: Any) -> tuple[DatasetPickle | None, str, str]:
    """Return a pickled dataset, or why there is none; and what it holds that a fork would share."""
    packed, unsent, held = None, "", ""
    try:
        packed = pack(dataset)
    except ShipError as error:
        unsent = str(error)
    try:
        refuse_to_share(dataset)
    except ShipError as error:
        held = str(error)
        if unsent.startswith(held.partition(" is ")[0]):
            unsent = ""  # of the same object
    return packed, unsent, held


def _spawned(sent: SharedDataset, order: dict[str, Any], lifeline: Lifeline, log: int) -> Any:
    process = spawn("ringfeed.testing.look", lifeline)
    process.send({**order, "manifest": sent.manifest()}, (log, *sent.fds))
    return process


def _forked(dataset: Any, order: dict[str, Any], lifeline: Lifeline, log: int) -> WorkerProcess:
    return forked(lifeline, partial(answer, dataset, log, order))


def _look(where: str, start: Callable[[Lifeline, int], WorkerProcess]) -> Seen:
    """Return what a process has seen, or how it ended; one that waits too long is ended."""
    tell(f"reading samples {where}")
    with TemporaryFile() as log, closing(Lifeline()) as lifeline:
        log.write(f"{START_S} 0 the start of the process".encode().ljust(PLACE))
        log.flush()
        process, place, until_s = start(lifeline, log.fileno()), b"", math.inf
        try:
            while time.monotonic() < until_s:
                with suppress(TimeoutError):
                    seen, _ = channels.receive(process.channel, LOOK_S)
                    if isinstance(seen, Seen):
                        return seen
                    found = Finding("fails", decode(seen["broken"]).summary, FAILS)
                    return Seen({"fails": found}, {})
                before, place = place, os.pread(log.fileno(), PLACE, 0)
                if place != before:
                    until_s = time.monotonic() + float(place.split()[0])
            process.kill(signal.SIGABRT)  # which writes its stack
            process.is_dead(END_S)
        except EOFError:
            until_s = math.inf
        finally:
            how = process.end(END_S)
        log.seek(0)
        limit_s, _, at = log.read(PLACE).decode().strip().split(" ", 2)
        line = _line(log.read().decode(errors="replace"))
    found = Finding("ends its process", f"{at}: it {how}{line}", DIES)
    if until_s < math.inf:
        seen = f"{at} takes more than {float(limit_s):g} s{line}"
        found = Finding("blocks", seen, BLOCKS[where])
    return Seen({found.fault: found}, {})


def _line(stack: str) -> str:
    """Name the innermost line of the user's in what faulthandler has written."""
    own = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - as it stands in the stack
    _, _, current = stack.partition("Current thread")
    for file, line in re.findall(r'File "(.*)", line (\d+)', current):
        if not file.startswith((own, "<")) and not is_of_library(file):
            return f", at {Path(file).name}:{line}"
    return ""

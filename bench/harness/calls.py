"""System calls of a process tree while something happens: counted by perf, or by strace where that may not.

perf only counts as they pass; strace stops the caller twice at each, which slows a caller that
makes many of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_S = 20.0
TRACE_POINTS = Path("/sys/kernel/tracing/events/syscalls")  # another kernel lacks some of the named
ALL = "raw_syscalls:sys_enter"
NAMED: tuple[str, ...] = (
    "futex",
    "sched_yield",
    "clock_nanosleep",
    "read",
    "write",
    "readv",
    "writev",
    "sendmsg",
    "recvmsg",
    "sendto",
)
NAMED += (
    "recvfrom",
    "poll",
    "ppoll",
    "select",
    "epoll_wait",
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "openat",
    "close",
)
NAMED += ("newfstat", "newfstatat", "lseek", "ftruncate")


class NoTracerError(RuntimeError):
    """No tool is there to count system calls, or it is not allowed to."""


class Counts:
    """Which tool counted, and how often each system call was made.

    `total` is the sum, named here or not.
    """

    tracer = ""
    total = 0

    def __init__(self) -> None:
        self.names: dict[str, int] = {}


@contextlib.contextmanager
def counted(pids: list[int]) -> Iterator[Counts]:
    """What is filled, once the block has been left, with the calls that these processes made in it.

    With strace about twenty of them are this process's, which hears that strace has begun and tells
    it to end.
    """
    found, failed = Counts(), []
    for tracer in (Perf, Strace):
        try:
            counter = tracer(pids)
        except NoTracerError as error:
            failed.append(str(error))
            continue
        try:
            yield found
        finally:
            counter.end(found)
        return
    raise NoTracerError(f"no tool to count system calls: {'; '.join(failed)}")


class Tracer:
    """A tool that looks at processes, writes what it saw to a file, and is ended in any case."""

    name = ""

    def __init__(self, *arguments: str, **settings: Any) -> None:
        program = shutil.which(self.name)
        if program is None:
            raise NoTracerError(f"{self.name} is not on PATH")
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self._summary = Path(file.name)
        self._process = subprocess.Popen(  # noqa: S603, one of the two tools
            [program, *arguments, "-o", str(self._summary)], stderr=subprocess.PIPE, **settings
        )

    def _hear(self, file: int, words: bytes, count: int) -> None:
        """Wait until the tool has said these words so often."""
        heard = b""
        while heard.count(words) < count:
            ready = select.select([file], [], [], ANSWER_S)[0]
            said = os.read(file, 1 << 16) if ready else b""
            heard += said
            if not said:
                self._stop(signal.SIGKILL)
                self._summary.unlink()
                raise NoTracerError(
                    f"{self.name} did not begin ({heard.decode(errors='replace').strip()})"
                )

    def _stop(self, number: signal.Signals) -> str:
        """End the tool, and read what it left."""
        self._process.send_signal(number)
        try:
            self._process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        return self._summary.read_text()

    def end(self, found: Counts) -> None:
        """Stop counting, and put the counts into `found`."""
        raise NotImplementedError


class Perf(Tracer):
    """`perf stat` of the kernel's own trace points, told when to begin and to end: nothing around it is counted."""

    name = "perf"

    def __init__(self, pids: list[int]) -> None:
        (theirs, self._tell), (self._hears, answers) = os.pipe(), os.pipe()
        known = [name for name in NAMED if os.access(TRACE_POINTS / f"sys_enter_{name}", os.R_OK)]
        events = ",".join([ALL, *(f"syscalls:sys_enter_{name}" for name in known)])
        told = ["--control", f"fd:{theirs},{answers}", "-D", "-1"]
        try:
            watched = ["-e", events, "-p", ",".join(map(str, pids))]
            super().__init__("stat", "-x,", *told, *watched, pass_fds=(theirs, answers))
        finally:
            os.close(theirs)
            os.close(answers)
        self._ask(b"enable\n")

    def _ask(self, words: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it may not look: it has said why, and gone
            os.write(self._tell, words)
        self._hear(self._hears, b"ack\n", 1)

    def end(self, found: Counts) -> None:
        """Stop counting, and put the counts into `found`."""
        self._ask(b"disable\n")
        text = self._stop(signal.SIGINT)
        self._summary.unlink()
        os.close(self._tell)
        os.close(self._hears)
        found.tracer = "perf"
        counts = perf_counts(text)
        found.total = counts.pop(ALL)
        found.names = counts


class Strace(Tracer):
    """`strace -c`, attached to every thread."""

    name = "strace"

    def __init__(self, pids: list[int]) -> None:
        super().__init__("-f", "-c", *(word for pid in pids for word in ("-p", str(pid))))
        assert self._process.stderr is not None
        self._hear(self._process.stderr.fileno(), b" attached", len(pids))

    def end(self, found: Counts) -> None:
        """Stop counting, and put the counts into `found`."""
        found.tracer, found.names = "strace", strace_counts(self._stop(signal.SIGINT))
        found.total = sum(found.names.values())
        self._summary.unlink()


def perf_counts(text: str) -> dict[str, int]:
    """The counts of `perf stat -x,` by the names of calls, and of all of them.

    What it did not count is none.
    """
    found = {ALL: 0}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and ":" in fields[2]:  # noqa: PLR2004 - count, unit, event
            found[fields[2].removeprefix("syscalls:sys_enter_")] = (
                int(fields[0]) if fields[0].isdigit() else 0
            )
    return {name: count for name, count in found.items() if count or name == ALL}


def strace_counts(summary: str) -> dict[str, int]:
    """The calls of each name in a summary of `strace -c`, most frequent first."""
    rows = [line.split() for line in summary.splitlines()]
    # % time, seconds, usecs/call, calls, (errors,) name; between two rules, the second before the
    # total
    rules = [number for number, row in enumerate(rows) if row and set(row[0]) == {"-"}]
    if len(rules) != 2:  # noqa: PLR2004 - no call was made: there is no table
        return {}
    found = {row[-1]: int(row[3]) for row in rows[rules[0] + 1 : rules[1]]}
    return dict(sorted(found.items(), key=lambda one: -one[1]))

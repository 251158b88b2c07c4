"""Run one job in a fresh process that cannot outstay its time, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from harness.proctree import descendants, memory_of_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.job import Job

HERE = Path(__file__).parent
PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
GRACE_S = 1.0  # for workers to notice that their parent has gone
SCRIPTS = {"plain": "script_plain.py", "unguarded": "script_unguarded.py"}
# glibc keeps what is freed, in every process of the job, as ringfeed's workers do by themselves.
WARM_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class Peak(NamedTuple):
    """The most memory a tree was seen to have, in bytes, what of it was shared memory, and whose it was."""

    total: int = 0
    shared: int = 0
    processes: int = 0

    def with_tree(self, pids: list[int]) -> Peak:
        """This peak, or the tree as it is now if that is more."""
        now = memory_of_tree(pids)
        return max(self, Peak(sum(now), now.shared, len(pids)))


class Ending(NamedTuple):
    """How a job's process ended, and what was seen of it from outside."""

    status: int
    in_time: bool
    left_behind: int  # processes that were still there a moment after it
    peak: Peak
    output: str

    def error(self) -> str:
        """Why there are no figures, in one line."""
        last = self.output.splitlines()[-1:]
        return (
            ": ".join([f"exit status {self.status}", *last])
            if self.in_time
            else "no end within its time"
        )


def adopt_orphans() -> None:
    """Make this process the parent of all that jobs leave behind, so that it can be found and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_job(job: Job, timeout_s: float) -> dict[str, Any]:
    """The figures, settings and versions of a job; or an `error` in their place."""
    # Files and no pipes: a worker that outlives its parent holds a pipe open, and its reader up.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603, the bench's own files
            [sys.executable, str(HERE / _script_of(job)), job.as_argument()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                **QUIET,
                **_path(),
                "KERAS_BACKEND": _backend_of(job),
                **_heap_of(job),
            },
            start_new_session=True,
        )
        try:
            peak = _wait(process, timeout_s, watch=job.workload.startswith("memory"))
        finally:
            in_time = process.poll() is not None
            left_behind = _end_all(process)
        return _outcome(job, Ending(process.returncode, in_time, left_behind, peak, _tail(output)))


def _script_of(job: Job) -> str:
    """The file that measures a workload; `memory` and `first_batch` name theirs behind a slash."""
    if job.workload.startswith("fit/"):
        return "fitting.py"
    return SCRIPTS.get(job.workload.partition("/")[2], "consume.py")


def _path() -> dict[str, str]:
    """What lets a job's process, and its workers, import the folders of the bench."""
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), given]))}


def _backend_of(job: Job) -> str:
    """The backend of Keras; `fit` names it behind a slash."""
    return job.workload.split("/")[1] if job.workload.startswith("fit/") else "tensorflow"


def _heap_of(job: Job) -> dict[str, str]:
    """What makes all heaps warm, where that is behind the slash."""
    return WARM_HEAP if job.workload.endswith("/warm") else {}


def _wait(process: subprocess.Popen[bytes], timeout_s: float, *, watch: bool) -> Peak:
    """Wait for the process, looking at its tree's memory meanwhile if asked to."""
    peak, deadline = Peak(), time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        if watch:
            peak = peak.with_tree([process.pid, *descendants(process.pid)])
            time.sleep(0.01)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(1.0, max(0.0, deadline - time.monotonic())))
    return peak


def _end_all(process: subprocess.Popen[bytes]) -> int:
    """End the process if it runs, and all it started.

    How many outlived it by more than a moment.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + GRACE_S
    while (left := _adopted()) and time.monotonic() < deadline:
        time.sleep(0.01)
    left_behind = len(left)
    while left:  # again: what they started in the meantime is adopted now
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        left = _adopted()
    return left_behind


def _adopted() -> list[int]:
    """What still lives of a job that has ended; its dead are buried."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants(os.getpid())


def _tail(output: IO[bytes]) -> str:
    """The last lines of what a job printed."""
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").strip().splitlines()[-3:])


def _outcome(job: Job, ending: Ending) -> dict[str, Any]:
    """What goes into the results: the answer, completed by what was seen from outside."""
    answer = Path(job.answer)
    if not answer.exists():
        return {"error": ending.error(), "output": ending.output}
    facts: dict[str, Any] = json.loads(answer.read_text())
    figures = facts["figures"]
    figures.update(exit_status=ending.status, left_behind=ending.left_behind)
    if ending.peak.total:
        figures.update(_memory(job, figures, ending.peak))
    return facts


def _memory(job: Job, figures: Mapping[str, Any], peak: Peak) -> dict[str, Any]:
    """The peak, what of it stands above the bare interpreter, and what of that is not slots, per worker."""
    above = peak.total - figures["bare_bytes"]
    return {
        "peak_bytes": peak.total,
        "peak_shared_bytes": peak.shared,
        "peak_processes": peak.processes,
        "above_bare_bytes": above,
        "per_worker_bytes": (above - figures["slots_bytes"]) / job.workers,
    }

"""The consumer ends, in whatever way: its workers, its memory and its files are gone soon after.

Also what it must not do to them: a Ctrl-C in its terminal, or the end of the thread that started
them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leftovers
import ringfeed
from datasets import Oracle, check, drain
from watching import pids, run_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = ["spawn", "fork", "process"]
GONE_S = 60.0  # no process ends by itself for ten minutes

# Tells the processes and the memory of its loader, once a batch has come; then waits for a line.
CONSUMER = """
import json, os, re, signal, sys, threading, time
import ringfeed
from ringfeed.workers import process
from datasets import Misbehaving, Oracle, Unhurried, Witness

def tell(*loaders):
    processes = []
    for loader in loaders:
        pool = loader._runner.engine.pool
        processes += [worker.pid for worker in pool._roster.workers.values()]
        forkserver = getattr(pool._launcher, "_forkserver", None)
        processes += [forkserver.pid] if forkserver else []
    inodes = re.findall(r"(\\d+) */memfd:ringfeed", open("/proc/self/maps").read())
    print(json.dumps([processes, sorted(set(map(int, inodes)))]), flush=True)
    sys.stdin.readline()

def loader_of(method, dataset=None, spec=Oracle.SPEC):
    dataset = dataset or Misbehaving("sleeps", at=21)  # one worker is stuck in it, the other asleep
    return ringfeed.Loader(dataset, batch_size=4, workers=2, slots=4, backend=method, spec=spec)
"""


class Run:
    """A consumer in a session of its own, so that a signal to its group reaches no other process."""

    def __init__(self, script: str, place: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TMPDIR": str(place),
        }
        self.place = place
        self.errors_path = place.with_suffix(".errors")
        with self.errors_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CONSUMER + script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=place,
                start_new_session=True,
            )

    def line(self) -> Any:
        """Return what it tells next."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def proceed(self) -> None:
        """Send it the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        """Return what it has written to stderr."""
        return self.errors_path.read_text()

    def wait(self) -> int:
        """Return its status, once it has ended."""
        return self.process.wait(120)

    def end(self) -> None:
        """End it, if it still runs.

        Workers that were left could have its pipes open, so these are not waited for.
        """
        self.process.kill()
        self.process.wait(120)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start consumers in an empty directory.

    They are ended with the test, and must leave no file.
    """
    place = tmp_path / "consumer"
    place.mkdir()
    runs: list[Run] = []

    def begin(script: str) -> Run:
        runs.append(Run(script, place))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()
    assert list(place.iterdir()) == []


def memory_in_use(inodes: list[int]) -> list[str]:
    """Return what maps, or has open, any of these memfds."""
    found = []
    for process in [place for place in Path("/proc").iterdir() if place.name.isdigit()]:
        try:
            lines = [
                line.split()
                for line in (process / "maps").read_text().splitlines()
                if "/memfd:ringfeed" in line
            ]
            found += [f"{process.name} maps {line[5]}" for line in lines if int(line[4]) in inodes]
            for fd in (process / "fd").iterdir():
                if "memfd:ringfeed" in str(fd.readlink()) and fd.stat().st_ino in inodes:
                    found.append(f"{process.name} has fd {fd.name} on {fd.readlink()}")
        except (
            FileNotFoundError,
            ProcessLookupError,
            PermissionError,
        ):  # it ended meanwhile, or is not ours
            continue
    return found


def left(processes: list[int], inodes: list[int]) -> list[str]:
    """Return what there is of a dead consumer's processes and memory."""
    return [f"process {pid}" for pid in processes if leftovers.runs(pid)] + memory_in_use(inodes)


def check_gone(processes: list[int], inodes: list[int]) -> None:
    """Fail unless all is soon gone."""
    deadline = time.monotonic() + GONE_S
    while left(processes, inodes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left(processes, inodes) == []


# ---- it dies ----

DEATHS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "its process group is killed": ("os.killpg(0, signal.SIGKILL)", -signal.SIGKILL),
    "os._exit": ("os._exit(3)", 3),
    "sys.exit in the loop": ("sys.exit(4)", 4),
    "an uncaught exception": ("raise RuntimeError('mine')", 1),
    "the script's end": ("break", 0),
}
LOOP = """
loader = loader_of({method!r})
kept = []
for number, batch in enumerate(loader):
    kept.append(batch[0][1:2])
    if number == 1:
        tell(loader)
        {end}
        break
iterator = iter(loader)
next(iterator)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", DEATHS)
def test_the_consumer_dies(method: str, end: str, start: Any) -> None:
    """However a consumer ends, with live views and a worker stuck in a sample, all is gone soon after."""
    deed, status = DEATHS[end]
    run = start(LOOP.format(method=method, end=deed))
    processes, inodes = run.line()
    assert len(processes) == (2 if method == "spawn" else 3)
    assert len(inodes) >= 2
    assert len(left(processes, inodes)) > len(processes)
    run.proceed()
    assert run.wait() == status
    check_gone(processes, inodes)
    assert run.errors().splitlines()[-1:] == (["RuntimeError: mine"] if "uncaught" in end else [])


ALL_METHODS = """
loaders = [loader_of(method) for method in ("spawn", "fork", "process")]
iterators = [iter(loader) for loader in loaders]
kept = [next(iterator) for iterator in iterators]
tell(*loaders)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("nothing_left")
def test_loaders_of_all_kinds_die_together(start: Any) -> None:
    """A forked forkserver has copies of the other loaders' descriptors, and keeps no process alive by them."""
    run = start(ALL_METHODS)
    processes, inodes = run.line()
    assert len(processes) == 8
    run.proceed()
    assert run.wait() == -signal.SIGKILL
    check_gone(processes, inodes)


ALL_CLOSED = """
loaders = [loader_of(method, Oracle(40)) for method in ("spawn", "fork", "process")]
for loader in loaders:
    next(iter(loader))
tell(loaders[0])
loaders.pop(0).close()
del loader
tell(*loaders)
"""


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_closed_beside_others(start: Any) -> None:
    """Workers of a closed loader are gone while those of another, forked after them, live on."""
    run = start(ALL_CLOSED)
    spawned, _ = run.line()
    run.proceed()
    others, _ = run.line()
    wait_until(lambda: not any(map(leftovers.runs, spawned)))
    assert all(map(leftovers.runs, others))
    run.proceed()
    assert (run.wait(), run.errors()) == (0, "")


STARTING = """
popen = process.start_interpreter
started = []
def note(*args):
    started.append(popen(*args))
    if len(started) == 2:
        print(json.dumps([process.pid for process in started]), flush=True)
    return started[-1]
process.start_interpreter = note
iterator = iter(loader_of("spawn", Unhurried(20)))
next(iterator)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("when", ["at once", "while they unpickle"])
def test_the_consumer_dies_while_its_workers_start(when: str, start: Any) -> None:
    """Workers that have only just begun, or still unpickle the dataset, end with their consumer."""
    run = start(STARTING)
    processes = run.line()
    if when == "while they unpickle":
        wait_until(
            lambda: {Path(f"/proc/{pid}/comm").read_text() for pid in processes} == {"unpickling\n"}
        )
    run.process.kill()
    run.wait()
    wait_until(lambda: not any(map(leftovers.runs, processes)))


OFFSPRING = """
loader = loader_of({method!r}, Witness("offspring"), ringfeed.Array((8192,), "uint8"))
batch = next(iter(loader))
print(json.dumps([json.loads(bytes(row)) for row in batch]), flush=True)
tell(loader)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_what_the_workers_have_started_dies_too(method: str, start: Any) -> None:
    """Processes that the dataset has started are gone as well, though they were not told."""
    run = start(OFFSPRING.format(method=method))
    children = run.line()
    processes, inodes = run.line()
    assert all(map(leftovers.runs, children))
    run.proceed()
    assert run.wait() == -signal.SIGKILL
    check_gone([*processes, *children], inodes)


SURVIVED = """
loader = loader_of({method!r})
batch = next(iter(loader))
pid = os.fork()
if pid == 0:
    time.sleep(600)
    os._exit(0)
print(pid, flush=True)
tell(loader)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_child_of_the_consumer_lives_on(method: str, start: Any) -> None:
    """A forked child holds copies of the consumer's descriptors.

    The workers end with the consumer all the same.
    """
    run = start(SURVIVED.format(method=method))
    child = run.line()
    try:
        processes, _ = run.line()
        run.proceed()
        assert run.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(leftovers.runs, processes)))
        assert leftovers.runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


EXEC = """
loader = loader_of({method!r})
batch = next(iter(loader))
tell(loader)
os.execv("/bin/sleep", ["sleep", "600"])
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_consumer_becomes_another_program(method: str, start: Any) -> None:
    """After an exec the process is there and the consumer is not: workers and memory are gone."""
    run = start(EXEC.format(method=method))
    processes, inodes = run.line()
    run.proceed()
    wait_until(lambda: Path(f"/proc/{run.process.pid}/comm").read_text() == "sleep\n")
    check_gone(processes, inodes)
    assert run.process.poll() is None


# ---- Ctrl-C in its terminal ----

CAUGHT = """
loader = loader_of({method!r}, Oracle(400, sleep_s=0.002))
iterator = iter(loader)
seen = next(iterator)[1].tolist()
tell(loader)
interrupts = 0
while True:
    try:
        for batch in iterator:
            seen += batch[1].tolist()
            if len(seen) == 40:
                os.killpg(0, signal.SIGINT)  # what a terminal does
        break
    except KeyboardInterrupt:
        interrupts += 1
assert seen == list(range(400)), seen
print(json.dumps([interrupts, loader.stats().restarts, loader._runner.engine.pool.pids()]), flush=True)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_is_the_consumers_alone(method: str, start: Any) -> None:
    """A Ctrl-C that the consumer catches costs no worker and no batch."""
    run = start(CAUGHT.format(method=method))
    processes, _ = run.line()
    run.proceed()
    interrupts, restarts, workers = run.line()
    assert (interrupts, restarts, workers) == (1, 0, processes[:2])
    assert (run.wait(), run.errors()) == (0, "")


UNCAUGHT = """
loader = loader_of({method!r}, {dataset})
print(json.dumps("begins"), flush=True)
for batch in loader:
    print(json.dumps("goes on"), flush=True)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_in_a_terminal(method: str, start: Any) -> None:
    """Ctrl-C to the foreground group ends a consumer that waits, with one clean KeyboardInterrupt of its own."""
    run = start(UNCAUGHT.format(method=method, dataset="Misbehaving('sleeps', at=9)"))
    assert [run.line() for _ in range(3)] == ["begins", "goes on", "goes on"]
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == -signal.SIGINT
    text = run.errors()
    assert text.count("Traceback") == 1
    assert text.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "process"])
def test_ctrl_c_while_the_workers_start(method: str, start: Any) -> None:
    """Ctrl-C while the dataset is still being unpickled elsewhere is one clean KeyboardInterrupt too."""
    run = start(UNCAUGHT.format(method=method, dataset="Unhurried(20)"))
    assert run.line() == "begins"

    def unpickling() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):  # one has ended meanwhile
            below = leftovers.below(run.process.pid)  # a worker's parent is the forkserver
            return any(Path(f"/proc/{pid}/comm").read_text() == "unpickling\n" for pid in below)
        return False

    wait_until(unpickling)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == -signal.SIGINT
    text = run.errors()
    assert text.count("Traceback") == 1
    assert text.splitlines()[-1] == "KeyboardInterrupt"


# ---- the thread that started them ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_the_thread_that_started_the_workers_ends(method: Any) -> None:
    """Workers belong to the process: they live on when the thread that began the epoch has ended."""
    with ringfeed.Loader(Oracle(200), batch_size=4, workers=2, backend=method) as loader:
        begun: list[Any] = []

        def begin() -> None:
            begun.append(iter(loader))
            begun.append(check(next(begun[0])))

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join(120)
        assert not thread.is_alive()
        iterator, seen = begun
        before = pids(loader)
        time.sleep(0.1)  # a death signal that is bound to the thread would have come
        assert seen + drain(iterator) == list(range(200))
        assert drain(loader) == list(range(200))
        assert (pids(loader), loader.stats().restarts) == (before, 0)


# A module from before ours outlives them, as a framework's may: Python has set their names to None
# by then.
LATE = """
import shelve, sys
import fakedevice, ringfeed
loader = fakedevice.oracle(workers={workers})
shelve.kept = iter({epochs})
next(shelve.kept)
sys.kept = [*sys.modules.values()]
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "epochs", ["loader", "fakedevice.epochs_of(loader, fakedevice.FakeDevice())"]
)
def test_an_unfinished_iterator_is_quiet_at_the_end(epochs: str, workers: int) -> None:
    """An iterator, over slots or over a device's copies, that dies after the modules it came from says nothing."""
    assert run_script(LATE.format(epochs=epochs, workers=workers)) == ("", "", 0)

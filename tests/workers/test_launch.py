"""How worker processes come into the world, with what around them, and how they leave it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leftovers
import ringfeed
from datasets import Oracle, Witness, check, drain, told
from ringfeed.ring._ring import Descriptor
from ringfeed.ring._snapshot import Observer
from ringfeed.ring.machine import show_limit
from ringfeed.workers import channel as channels
from ringfeed.workers import forkserver, launch
from ringfeed.workers.launch import Forker, Spawner
from ringfeed.workers.process import Lifeline, WorkerProcess
from watching import pids, pool_of, run_script, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = ["spawn", "fork", "forkserver"]
FORKS = ["fork", "forkserver"]


def ask(look: str, method: Any, **settings: Any) -> Any:
    """Return what a worker of the given start method tells."""
    spec = ringfeed.Array((8192,), "uint8")
    with ringfeed.Loader(Witness(look), batch_size=2, workers=1, start_method=method, spec=spec, **settings) as loader:
        return told(next(iter(loader)))


# ---- what is around a worker ----


@pytest.mark.parametrize("method", METHODS)
def test_the_surroundings_of_a_worker(method: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker reads no stdin, leads its group, leaves Ctrl-C and signals alone, and finds the consumer's modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path, tmp_path])  # the last is a Path, which is no entry
    for name in launch._ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        found = ask("surroundings", method)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found["pid"] != os.getpid()
    assert found["group"] == found["pid"]
    assert found["stdin"] == "/dev/null"
    assert found["ignores_ctrl_c"]
    assert (found["handles"], found["blocked"]) == ([], [])
    assert found["cwd"] == str(tmp_path)
    assert found["threads"] == ["1"]
    if method != "fork":
        assert found["path"] == [str(tmp_path), *sys.path[1:-1]]
        assert found["main"] is None
        assert found["frameworks"] == []


def test_what_the_user_says_of_threads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread variable that is set already stays as it is."""
    for name in launch._ONE_THREAD:
        monkeypatch.setenv(name, "3")
    assert ask("surroundings", "spawn")["threads"] == ["3"]


@pytest.mark.parametrize(("keep", "most"), [("1", 50), ("0", 10**9)])
def test_a_worker_keeps_its_heap(keep: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was freed is there again without page faults, unless RINGFEED_KEEP_HEAP=0."""
    monkeypatch.setenv("RINGFEED_KEEP_HEAP", keep)
    faults = ask("faults", "spawn")
    assert faults <= most
    assert (faults > 200) == (keep == "0")


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """A consumer whose directory was deleted, and whose sys.path has "", can start workers."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = (
        "import os, sys, datasets, ringfeed.loader; os.rmdir(os.getcwd()); sys.path.insert(0, '')\n"
        + COUNT.format(method="spawn")
    )
    found = run_script(script, cwd=gone)
    assert found == ("20\n", "", 0)


COUNT = """
import os, sys, socket, signal
import ringfeed
from datasets import Oracle
with ringfeed.Loader(Oracle(20), batch_size=4, workers=2, start_method={method!r}) as loader:
    iterator = iter(loader)
    low = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in range(3)]
    assert not any("memfd" in link or "pidfd" in link for link in low), low
    count = sum(len(batch[0]) for batch in iterator)
    print(count, file=sys.stdout or sys.stderr)
"""


@pytest.mark.parametrize(
    ("method", "closed"),
    [("spawn", "<&-"), ("spawn", ">&-"), ("spawn", "<&- >&-"), ("fork", "<&- >&-"), ("forkserver", "<&- >&-")],
)
def test_closed_standard_streams(method: str, closed: str) -> None:
    """Where stdin or stdout is closed, no descriptor of ours takes its number, and workers end quietly."""
    out, errors, status = run_script(COUNT.format(method=method), through=("/bin/sh", "-c", f'exec "$0" "$@" {closed}'))
    assert (out + errors, status) == ("20\n", 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_default_timeout_for_sockets(method: str) -> None:
    """socket.setdefaulttimeout() in the consumer does not hurry the workers' channels."""
    slow = "import time, socket; socket.setdefaulttimeout(0.05)\n"
    patch = (
        "from ringfeed.workers.processes import Processes\nold = Processes._configure\n"
        "Processes._configure = lambda *a: (time.sleep(0.2), old(*a))\n"
    )
    found = run_script(slow + patch + COUNT.format(method=method))
    assert found == ("20\n", "", 0)


@pytest.mark.parametrize("method", METHODS)
def test_output_is_written_once(method: str) -> None:
    """What the consumer has printed, and a pipe has not taken yet, is not printed again by forked workers."""
    found = run_script("import sys; sys.stdout.write('before ')\n" + COUNT.format(method=method))
    assert found == ("before 20\n", "", 0)


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded Python that does not know its executable gets told so."""
    monkeypatch.setattr(sys, "executable", "")
    with (
        ringfeed.Loader(Oracle(20), batch_size=4, workers=1) as loader,
        pytest.raises(ringfeed.WorkerError) as caught,
    ):
        iter(loader)
    assert str(caught.value) == (
        "sys.executable does not say which Python runs here, so no worker can be started; set it"
    )


# ---- how a worker ended ----


@pytest.fixture
def lifeline() -> Iterator[Lifeline]:
    """What ties a worker to this process."""
    found = Lifeline()
    yield found
    found.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize(
    ("number", "end"),
    [(signal.SIGKILL, "was killed by SIGKILL"), (40, "was killed by signal 40"), (None, "exited with status 1")],
    ids=str,
)
def test_how_a_worker_ended(method: str, number: Any, end: str, lifeline: Lifeline) -> None:
    """The exit reason names the signal, real-time ones too, or the exit status, whatever process was the parent."""
    launcher = Spawner(lifeline) if method == "spawn" else Forker(lifeline, Oracle(8))
    worker = launcher.start()
    if number is None:
        worker.shutdown()  # it waits for its hello
    else:
        signal.pidfd_send_signal(worker.pidfd, number)
    assert worker.is_dead(120)
    assert worker.exit_reason() == end
    launcher.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_process_that_cannot_die_is_not_waited_for(lifeline: Lifeline) -> None:
    """Where even SIGKILL has no effect, as on a dead network disk, another thread waits for the end."""
    worker = Spawner(lifeline).start()
    waiting: list[str] = []
    status = lambda: waiting.append(threading.current_thread().name)  # noqa: E731 - one line
    stuck = WorkerProcess(worker.pid, Descriptor(os.dup, worker.pidfd), worker.channel, status, is_child=True)
    assert stuck.exit_reason() == "ended"
    wait_until(lambda: waiting == ["ringfeed-undertaker"])
    worker.kill()
    assert worker.is_dead(120)
    worker.exit_reason()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_what_a_worker_has_started_goes_with_it(method: Any) -> None:
    """Processes that a dataset starts are gone after close(), whether the worker left or was killed."""
    loader = ringfeed.Loader(
        Witness("offspring"), batch_size=2, workers=1, start_method=method, spec=ringfeed.Array((8192,), "uint8")
    )
    child = told(next(iter(loader)))
    assert leftovers.runs(child)
    loader.close()
    wait_until(lambda: not leftovers.runs(child))


@pytest.mark.usefixtures("nothing_left")
def test_a_pidfd_that_cannot_be_had(lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a started process cannot be watched it is ended, and the error is raised."""

    def full(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    for launcher in (Spawner(lifeline), Forker(lifeline, Oracle(8))):
        with pytest.raises((OSError, ringfeed.WorkerError)):
            launcher.start()
        launcher.close()


# ---- the forkserver ----


def written_by(pid: int) -> set[int]:
    """Return the inodes of what a process has open for writing only."""
    modes = {fd.name: int(fd.read_text().split()[3], 8) for fd in Path(f"/proc/{pid}/fdinfo").iterdir()}
    return {Path(f"/proc/{pid}/fd/{fd}").stat().st_ino for fd, mode in modes.items() if mode & 3 == os.O_WRONLY}


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_holds_no_loaders_lifeline() -> None:
    """The pipes that tie workers to the consumer are written by it alone, however many loaders fork."""
    settings: Any = {"workers": 1, "start_method": "fork", "batch_size": 4}
    with ringfeed.Loader(Oracle(8), **settings) as one, ringfeed.Loader(Oracle(8), **settings) as other:
        assert len([*iter(one)]) == len([*iter(other)]) == 2
        writers = {os.fstat(pool_of(loader)._lifeline.writer.fileno()).st_ino for loader in (one, other)}
        for loader in (one, other):
            for pid in (pool_of(loader)._launcher._forkserver.pid, *pids(loader)):
                assert not writers & written_by(pid)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", FORKS)
@pytest.mark.parametrize("when", ["between epochs", "in an epoch", "with a worker"])
def test_a_forkserver_that_is_killed_is_replaced(method: Any, when: str) -> None:
    """Whenever the process that forks workers is killed, the workers go on, and the next death is made good."""
    with ringfeed.Loader(Oracle(300, sleep_s=0.001), batch_size=4, workers=2, start_method=method) as loader:
        first = iter(loader)
        seen = check(next(first))
        pool = pool_of(loader)
        if when == "between epochs":
            seen += drain(first)
            os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
        else:
            os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
            if when == "with a worker":
                os.kill(pool._workers[0].pid, signal.SIGKILL)
            seen += drain(first)
        assert seen == list(range(300))
        deaths = 1 if when == "with a worker" else 0
        wait_until(lambda: loader.stats().restarts == deaths and len(pool._workers) == 2)
        os.kill(pool._workers[1].pid, signal.SIGKILL)
        assert drain(loader) == list(range(300))
        wait_until(lambda: loader.stats().restarts == deaths + 1)


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_killed_before_it_can_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker that it had forked, and that nobody knows, gets no part in the work."""
    once = tmp_path / "once"
    original = channels.send

    def send(end: Any, message: Any, fds: Any = ()) -> None:
        if "pid" in message and not once.exists():
            once.write_text(str(message["pid"]))
            os.kill(os.getpid(), signal.SIGKILL)
        original(end, message, fds)

    monkeypatch.setattr(forkserver.channels, "send", send)
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, start_method="fork") as loader:
        iterator = iter(loader)
        seen = check(next(iterator))
        orphan, known = int(once.read_text()), pool_of(loader)._workers[0].pid
        assert orphan != known
        assert Observer(pool_of(loader)._config.ring).worker(0).tickets > 0
        seen += drain(iterator)
        assert seen == list(range(40))
    wait_until(lambda: not leftovers.runs(orphan))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", FORKS)
def test_a_forkserver_that_does_not_answer(method: Any) -> None:
    """A stopped forkserver does not keep close() waiting."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=1, start_method=method, timeout_s=600)
    check(next(iter(loader)))
    pool = pool_of(loader)
    os.kill(pool._launcher._forkserver.pid, signal.SIGSTOP)
    os.kill(pool._workers[0].pid, signal.SIGKILL)
    time.sleep(0.3)  # the watcher waits for a replacement
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 120


def test_a_forkserver_that_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer hears why no worker could be forked."""
    here = os.getpid()
    fork = os.fork

    def full() -> int:
        if os.getpid() != here:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", full)
    with (
        ringfeed.Loader(Oracle(40), batch_size=4, workers=1, start_method="fork") as loader,
        pytest.raises(ringfeed.WorkerError) as caught,
    ):
        iter(loader)
    assert str(caught.value) == (
        "no worker can be started: Resource temporarily unavailable: "
        f"RLIMIT_NPROC (ulimit -u) is {show_limit(resource.RLIMIT_NPROC)}, "
        f"RLIMIT_AS (ulimit -v) is {show_limit(resource.RLIMIT_AS)}; "
        "raise what is reached, or its cgroup's pids.max, or use fewer workers"
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_children_that_are_buried_by_themselves(method: Any) -> None:
    """A consumer that ignores SIGCHLD, so that nobody can wait for a child, gets its batches all the same."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ringfeed.Loader(Oracle(400, sleep_s=0.001), batch_size=4, workers=2, start_method=method) as loader:
            iterator = iter(loader)
            seen = check(next(iterator))
            os.kill(pool_of(loader)._workers[0].pid, signal.SIGKILL)
            assert seen + drain(iterator) == list(range(400))
            assert loader.stats().restarts == 1
    finally:
        signal.signal(signal.SIGCHLD, before)


SUBREAPER = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us, as they do to PID 1
import ringfeed, leftovers
from datasets import Oracle
if __name__ == "__main__":
    before = leftovers.present()
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, start_method="fork") as loader:
        for batch in loader: pass
        pool = loader._engine.pool
        os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
        os.kill(pool._workers[0].pid, signal.SIGKILL)
        for batch in loader: pass
    del batch, pool, loader
    print(leftovers.since(before))
"""


def test_orphans_of_a_forkserver_are_buried() -> None:
    """Where orphans come to the consumer, as in a container, those of a killed forkserver do not stay as zombies."""
    found = run_script(SUBREAPER)
    assert found == ("[]\n", "", 0)


SLOW_NURSERY = """
import os, ringfeed, sys, threading, time
from datasets import Oracle, Unhurried
from ringfeed.workers import launch
spawn = launch.spawn
def told(*a):
    worker = spawn(*a); print(worker.pid, flush=True); return worker
launch.spawn = told
loader = ringfeed.Loader(Unhurried(20), batch_size=2, workers=1, start_method="forkserver", spec=Oracle.SPEC)
iter(loader)
"""


def test_a_forkserver_that_still_unpickles_ends_with_its_consumer() -> None:
    """A forkserver is tied to the consumer before it touches the dataset."""
    process = start_script(SLOW_NURSERY)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "unpickling\n")
    finally:
        process.kill()
        process.communicate(timeout=120)
    wait_until(lambda: not leftovers.runs(pid))

"""How worker processes come into the world, with what around them, and how they leave it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import leftovers
import ringfeed
from datasets import Oracle, Witness, told
from ringfeed.system import interpreter
from ringfeed.system._system import Descriptor
from ringfeed.workers.fork import Fork
from ringfeed.workers.process import Launcher, Spawner, WorkerProcess
from watching import run_script, wait_until

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ["spawn", "fork", "process"]
FORKS = ["fork", "process"]


def ask(look: str, method: Any, **settings: Any) -> Any:
    """Return what a worker of the given start method tells."""
    spec = ringfeed.Array((8192,), "uint8")
    with ringfeed.Loader(
        Witness(look), batch_size=2, workers=1, backend=method, spec=spec, **settings
    ) as loader:
        return told(next(iter(loader)))


# ---- what is around a worker ----


@pytest.mark.parametrize("method", METHODS)
def test_the_surroundings_of_a_worker(
    method: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker reads no stdin, leads its group, leaves signals alone, and finds modules."""
    monkeypatch.chdir(tmp_path)
    # The last is a Path, which is no entry.
    monkeypatch.setattr(sys, "path", ["", *sys.path, tmp_path])
    for name in interpreter._ONE_THREAD:
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
    for name in interpreter._ONE_THREAD:
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
        "import os, signal, socket, sys, datasets, ringfeed.loader; os.rmdir(os.getcwd()); "
        "sys.path.insert(0, '')\n" + COUNT.format(method="spawn")
    )
    found = run_script(script, cwd=gone)
    assert found == ("20\n", "", 0)


COUNT = """
import os, sys, socket, signal
import ringfeed
from datasets import Oracle
with ringfeed.Loader(Oracle(20), batch_size=4, workers=2, backend={method!r}) as loader:
    iterator = iter(loader)
    low = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in range(3)]
    assert not any("memfd" in link or "pidfd" in link for link in low), low
    count = sum(len(batch[0]) for batch in iterator)
    print(count, file=sys.stdout or sys.stderr)
"""


@pytest.mark.parametrize(
    ("method", "closed"),
    [
        ("spawn", "<&-"),
        ("spawn", ">&-"),
        ("spawn", "<&- >&-"),
        ("fork", "<&- >&-"),
        ("process", "<&- >&-"),
    ],
)
def test_closed_standard_streams(method: str, closed: str) -> None:
    """Where stdin or stdout is closed, no descriptor of ours takes its number."""
    out, errors, status = run_script(
        COUNT.format(method=method), through=("/bin/sh", "-c", f'exec "$0" "$@" {closed}')
    )
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
    """What the consumer has printed into a full pipe is not printed again by workers."""
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


def forker() -> Fork:
    """Return a launcher that forks from this process."""
    launcher = Fork()
    launcher.hold(Oracle(8), None)
    return launcher


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (40, "was killed by signal 40"),
        (None, "exited with status 1"),
    ],
    ids=str,
)
def test_how_a_worker_ended(method: str, number: Any, end: str) -> None:
    """The exit reason names the signal or the exit status, whatever process was the parent."""
    launcher = Spawner() if method == "spawn" else forker()
    worker = launcher.start()
    if number is None:
        worker.channel.shutdown()  # it waits for its first message
    else:
        signal.pidfd_send_signal(worker.pidfd, number)
    assert worker.is_dead(120)
    assert worker.exit_reason() == end
    launcher.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_process_that_cannot_die_is_not_waited_for() -> None:
    """Where even SIGKILL has no effect, another thread waits for the end."""
    launcher = Spawner()
    worker = launcher.start()
    waiting: list[str] = []
    child: Any = SimpleNamespace(wait=lambda: waiting.append(threading.current_thread().name))
    stuck = WorkerProcess(worker.pid, Descriptor(os.dup, worker.pidfd), worker.channel, child=child)
    assert stuck.exit_reason() == "ended"
    wait_until(lambda: waiting == ["ringfeed-reaper"])
    worker.kill()
    assert worker.is_dead(120)
    worker.exit_reason()
    launcher.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_what_a_worker_has_started_goes_with_it(method: Any) -> None:
    """Processes that a dataset starts are gone after close(), however the worker ended."""
    loader = ringfeed.Loader(
        Witness("offspring"),
        batch_size=2,
        workers=1,
        backend=method,
        spec=ringfeed.Array((8192,), "uint8"),
    )
    child = told(next(iter(loader)))
    assert leftovers.runs(child)
    loader.close()
    wait_until(lambda: not leftovers.runs(child))


@pytest.mark.usefixtures("nothing_left")
def test_a_pidfd_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a started process cannot be watched it is ended, and the error is raised."""

    def full(_: int) -> int:
        raise OSError(24, "Too many open files")

    launchers: list[Launcher] = [Spawner(), forker()]
    monkeypatch.setattr(os, "pidfd_open", full)
    for launcher in launchers:
        with pytest.raises((OSError, ringfeed.WorkerError)):
            launcher.start()
        launcher.close()

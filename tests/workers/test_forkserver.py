"""The process that forks workers: its start, what it takes over, and its replacement."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import Oracle, Reshuffling, Witness, check, drain, told
from ringfeed.monitor._snapshot import Observer
from ringfeed.system import _system
from ringfeed.system import channel as channels
from ringfeed.system.machine import show_limit
from ringfeed.workers import fork, launchers
from ringfeed.workers import forkserver as forkserver_main
from watching import PATIENCE_S, pids, pool_of, run_script, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ["spawn", "fork", "process"]
FORKS = ["fork", "process"]
COUNT = 400


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader with a spawned forkserver."""
    return ringfeed.Loader(dataset, batch_size=4, workers=2, backend="process", **settings)


# ---- it starts with the loader ----


def begun(loader: ringfeed.Loader) -> int:
    """Return the process that a loader without an epoch has begun to start."""
    launcher: Any = loader._runner.launcher
    launcher._begun = launcher._arrived_forkserver()
    return int(launcher._begun.pid)


@pytest.mark.usefixtures("nothing_left")
def test_the_first_epoch_uses_the_forkserver_that_the_loader_has_started() -> None:
    """The forkserver starts when the loader is made, and forks the workers of its first epoch."""
    with loader_of(Oracle(40)) as loader:
        pid = begun(loader)
        assert leftovers.runs(pid)
        assert drain(loader) == list(range(40))
        assert pool_of(loader)._launcher._forkserver.pid == pid


OWN = """
from pathlib import Path
import numpy as np
Path({ran!r}).touch()
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return np.int64(index)
"""


@pytest.mark.usefixtures("nothing_left")
def test_the_forkserver_imports_the_datasets_modules_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the dataset's classes come from is imported before the first epoch asks for it."""
    ran = tmp_path / "ran"
    (tmp_path / "own_numbers.py").write_text(OWN.format(ran=str(ran)))
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers = __import__("own_numbers").Numbers()
    ran.unlink()
    with loader_of(numbers) as loader:
        wait_until(ran.exists)
        assert np.concatenate([*loader]).tolist() == list(range(8))
    sys.modules.pop("own_numbers")


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_among_many_starts_its_forkserver_with_its_first_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where many loaders wait for their first epoch, another starts no process before its own."""
    monkeypatch.setattr(launchers, "MOST_WAITING", 1)
    with loader_of(Oracle(8)) as first, loader_of(Oracle(8)) as second:
        assert begun(first) > 0
        assert second._runner.launcher is None
        assert drain(second) == list(range(8))
        with loader_of(Oracle(8)) as third:
            assert third._runner.launcher is None
        assert drain(first) == list(range(8))
        with loader_of(Oracle(8)) as fourth:  # none waits any more
            assert begun(fourth) > 0
        with loader_of(Oracle(8)) as fifth:
            assert begun(fifth) > 0


MAKES_A_LOADER = """
import os
import numpy as np
import leftovers, ringfeed
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return np.int64(index)
loader = ringfeed.Loader(Numbers(), batch_size=4, workers=1)
with open({told!r}, "a") as file:
    print(len(leftovers.children(os.getpid())), file=file)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "process"])
def test_a_module_that_makes_a_loader(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that a module makes where workers import it starts nothing there.

    Each would start the next one.
    """
    told = tmp_path / "told"
    (tmp_path / "own_loader.py").write_text(MAKES_A_LOADER.format(told=str(told)))
    monkeypatch.syspath_prepend(str(tmp_path))
    own = __import__("own_loader")
    with own.loader as loader:
        assert np.concatenate([*loader]).tolist() == list(range(8))
    with ringfeed.Loader(own.Numbers(), batch_size=4, workers=1, backend=method) as loader:
        assert np.concatenate([*loader]).tolist() == list(range(8))
    here, *elsewhere = map(int, told.read_text().split())
    assert here > 0  # this process has begun its forkserver
    assert elsewhere
    assert not any(elsewhere)
    sys.modules.pop("own_loader")


class Cycle:
    """Refers to itself, so that the garbage collector alone ends it."""

    def __init__(self) -> None:
        self.itself = self


class Frozen:
    """Says what the garbage collector of its process leaves alone."""

    def __init__(self) -> None:
        self.unneeded: Any = Cycle()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self.unneeded = None if self.unneeded is None else weakref.ref(self.unneeded)
        made = weakref.ref(Cycle())
        gc.collect()
        found = self.unneeded is None or self.unneeded() is None, made() is None
        self.unneeded = None
        return np.array([gc.get_freeze_count(), *found])


# What was there before the fork is not collected, the dataset with it: to look at it would copy its
# pages in each worker, and to end what the parent has, too, would close its descriptors and
# connections. So cycles that the dataset had then, and no longer needs, stay in the worker. What a
# worker makes is collected as elsewhere.
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["process", "fork", "spawn"])
def test_a_collection_in_a_worker_leaves_alone_what_was_there_before_the_fork(method: Any) -> None:
    """Modules and cycles of the dataset.

    Cycles that the worker makes are ended, and all where nothing is forked.
    """
    with ringfeed.Loader(Frozen(), batch_size=4, workers=1, backend=method) as loader:
        frozen, ended_earlier, ended_new = np.concatenate([*loader]).T
    assert all(ended_new)
    assert bool(ended_earlier[0]) is (method == "spawn")
    assert bool(min(frozen) > len(sys.modules)) is (method != "spawn")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("end", ["close", "forget", "refuse"])
def test_a_loader_without_an_epoch_leaves_no_forkserver(end: str) -> None:
    """What a loader has begun ends with it, also when it is dropped, or has had no epoch."""
    loader = loader_of(Oracle(8))
    pid = begun(loader)
    if end == "close":
        loader.close()
    elif end == "forget":
        del loader
        gc.collect()
    else:
        loader._runner.plan = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            iter(loader)
        del loader
    wait_until(lambda: not leftovers.runs(pid))


@pytest.mark.usefixtures("nothing_left")
def test_a_forked_process_does_not_end_the_loaders_forkserver() -> None:
    """A process that the user forks drops its copy of a loader.

    The forkserver goes on for the one that made it.
    """
    loader = loader_of(Oracle(40))
    pid = begun(loader)
    child = os.fork()
    if child == 0:
        try:
            loader.close()
            del loader
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert leftovers.runs(pid)
    assert drain(loader) == list(range(40))
    assert pool_of(loader)._launcher._forkserver.pid == pid
    loader.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_forkserver_that_is_ended_before_the_first_epoch(number: signal.Signals) -> None:
    """It may be killed at any time: another takes its place.

    One that is stopped is ended with the loader.
    """
    loader = loader_of(Oracle(40))
    pid = begun(loader)
    os.kill(pid, number)
    if number == signal.SIGKILL:
        assert drain(loader) == list(range(40))
    loader.close()
    wait_until(lambda: not leftovers.runs(pid))


@pytest.mark.usefixtures("nothing_left")
def test_the_consumer_dies_before_the_first_epoch() -> None:
    """The forkserver ends with its consumer, also before it has a dataset."""
    process = start_script(
        "import sys, time, ringfeed; from datasets import Oracle\n"
        "loader = ringfeed.Loader(Oracle(8), batch_size=4, workers=1, backend='process')\n"
        "launcher = loader._runner.launcher; launcher._begun = launcher._arrived_forkserver()\n"
        "print(launcher._begun.pid, flush=True); time.sleep(600)"
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=120)
    wait_until(lambda: not leftovers.runs(pid))


class Surrounded(Witness):
    """Tells what is around a worker, and a variable that was set after the loader was made."""

    def surroundings(self) -> dict[str, Any]:
        return {
            **super().surroundings(),
            "late": os.environ.get("LATE"),
            "early": os.environ.get("EARLY"),
        }


def test_what_changes_before_the_first_epoch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers have the environment, folder and path as they are when the first epoch begins."""
    monkeypatch.setenv("EARLY", "1")
    spec = ringfeed.Array((8192,), "uint8")
    with loader_of(Surrounded(), spec=spec) as loader:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LATE", "1")
        monkeypatch.delenv("EARLY")
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
        found = told(next(iter(loader)))
    assert (found["late"], found["early"], found["cwd"]) == ("1", None, str(tmp_path))
    assert found["path"][-1] == str(tmp_path)
    assert found["main"] is None


def test_a_forkserver_that_cannot_start_is_no_error_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps a forkserver from starting is raised by the first epoch."""
    monkeypatch.setattr(sys, "executable", "")
    with (
        loader_of(Oracle(8)) as loader,
        pytest.raises(ringfeed.WorkerError, match=r"^sys.executable does not say"),
    ):
        iter(loader)


# ---- what a dataset opens when it is unpickled ----


class Opening:
    """Opens its file when it is unpickled, and reads it by its position, slowly."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self.file = self.open()

    def open(self) -> Any:
        return Path(self.path).open("rb", buffering=0)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * 8)
        time.sleep(0.001)
        return np.frombuffer(self.file.read(8), np.int64)[0]


_files: dict[str, Any] = {}


class Keeping(Opening):
    """Keeps its file in its module, so that it stays open when the dataset is gone."""

    def open(self) -> Any:
        if self.path not in _files:
            _files[self.path] = super().open()
        return _files[self.path]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", [Opening, Keeping])
def test_workers_share_no_file_that_unpickling_opens(
    kind: Callable[[str], Any],
    killed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    """Where unpickling opens a file, each worker unpickles for itself.

    With one position the rows would be wrong.
    """
    np.arange(COUNT).tofile(tmp_path / "rows")
    with loader_of(
        kind(str(tmp_path / "rows")), copy=True, spec=ringfeed.Array((), "int64")
    ) as loader:
        if killed:
            os.kill(begun(loader), signal.SIGKILL)
        assert np.concatenate([*loader]).tolist() == list(range(COUNT))
        os.kill(pids(loader)[0], signal.SIGKILL)
        os.kill(pool_of(loader)._launcher._forkserver.pid, signal.SIGKILL)
        assert np.concatenate([*loader]).tolist() == list(range(COUNT))


OWN_FILE = """
import os
from pathlib import Path
import numpy as np
FILE, PID = Path({rows!r}).open({mode!r}), os.getpid()
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return np.array([index, PID, os.getpid()])
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("mode", "apart"), [("rb", True), ("r+b", True), ("ab", False)])
def test_workers_share_no_file_that_an_import_opens(
    mode: str,
    apart: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the module of the dataset opens a file, each worker imports it for itself.

    A log may be shared.
    """
    (tmp_path / "rows").touch()
    (tmp_path / "own_file.py").write_text(OWN_FILE.format(rows=str(tmp_path / "rows"), mode=mode))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("own_file")
    with loader_of(module.Numbers()) as loader:
        index, importer, worker = np.concatenate([*loader]).T
    module.FILE.close()
    sys.modules.pop("own_file")
    assert index.tolist() == list(range(8))
    assert (importer == worker).tolist() == [apart] * 8


class Computing:
    """Starts a thread of C code where it is unpickled, as a framework's tensor does."""

    def __init__(self) -> None:
        self.unpickler = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        sys.modules.setdefault("jax", ModuleType("jax"))
        faulthandler.dump_traceback_later(10**6)
        self.unpickler = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"unpickler": 0}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.array([self.unpickler, os.getpid()])


@pytest.mark.usefixtures("nothing_left")
def test_workers_lack_no_thread_that_a_frameworks_tensors_have_started() -> None:
    """Where unpickling starts a thread, each worker unpickles for itself.

    A fork would not have the thread, and wait for it.
    """
    with loader_of(Computing(), spec=ringfeed.Array((2,), "int64")) as loader:
        unpickler, worker = np.concatenate([*loader]).T
    assert unpickler.tolist() == worker.tolist()


def await_groups(loader: ringfeed.Loader) -> None:
    """Wait until each worker leads a process group: before that it ends with its forkserver."""
    wait_until(lambda: [os.getpgid(pid) for pid in pids(loader)] == pids(loader))


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_is_replaced_after_the_dataset_has_changed() -> None:
    """A forkserver that dies after a new version was sent is replaced by one without it."""
    with loader_of(Reshuffling()) as loader:
        for _ in range(2):
            for batch in loader:
                del batch
        pool = pool_of(loader)
        await_groups(loader)
        os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
        os.kill(pool._roster.workers[0].pid, signal.SIGKILL)
        wait_until(lambda: loader.stats().restarts == 1 and len(pool._roster.workers) == 2)
        assert loader._runner.engine is not None
        assert pool.failure is None


# ---- how it is replaced, and how it ends ----


def written_by(pid: int) -> set[int]:
    """Return the inodes of what a process has open for writing only."""
    modes = {
        fd.name: int(fd.read_text().split()[3], 8) for fd in Path(f"/proc/{pid}/fdinfo").iterdir()
    }
    return {
        Path(f"/proc/{pid}/fd/{fd}").stat().st_ino
        for fd, mode in modes.items()
        if mode & 3 == os.O_WRONLY
    }


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_holds_no_loaders_lifeline() -> None:
    """The pipes that tie workers to the consumer are written by it alone."""
    settings: Any = {"workers": 1, "backend": "fork", "batch_size": 4}
    with (
        ringfeed.Loader(Oracle(8), **settings) as one,
        ringfeed.Loader(Oracle(8), **settings) as other,
    ):
        assert len([*iter(one)]) == len([*iter(other)]) == 2
        writers = {
            os.fstat(pool_of(loader)._launcher.lifeline.writer.fileno()).st_ino
            for loader in (one, other)
        }
        for loader in (one, other):
            for pid in (pool_of(loader)._launcher._forkserver.pid, *pids(loader)):
                assert not writers & written_by(pid)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", FORKS)
@pytest.mark.parametrize("when", ["between epochs", "in an epoch", "with a worker"])
def test_a_forkserver_that_is_killed_is_replaced(method: Any, when: str) -> None:
    """Whenever the forkserver is killed, the workers go on, and the next death is made good."""
    with ringfeed.Loader(
        Oracle(300, sleep_s=0.001), batch_size=4, workers=2, backend=method
    ) as loader:
        first = iter(loader)
        seen = check(next(first))
        pool = pool_of(loader)
        await_groups(loader)
        if when == "between epochs":
            seen += drain(first)
            os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
        else:
            os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
            if when == "with a worker":
                os.kill(pool._roster.workers[0].pid, signal.SIGKILL)
            seen += drain(first)
        assert seen == list(range(300))
        deaths = 1 if when == "with a worker" else 0
        wait_until(lambda: loader.stats().restarts == deaths and len(pool._roster.workers) == 2)
        os.kill(pool._roster.workers[1].pid, signal.SIGKILL)
        assert drain(loader) == list(range(300))
        wait_until(lambda: loader.stats().restarts == deaths + 1)


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_killed_before_it_can_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker that it had forked, and that the pool does not know, gets no part in the work."""
    once = tmp_path / "once"
    original = channels.send

    def send(end: Any, message: Any, fds: Any = ()) -> None:
        if isinstance(message, dict) and "pid" in message and not once.exists():
            once.write_text(str(message["pid"]))
            os.kill(os.getpid(), signal.SIGKILL)
        original(end, message, fds)

    monkeypatch.setattr(forkserver_main.channels, "send", send)
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend="fork") as loader:
        iterator = iter(loader)
        seen = check(next(iterator))
        orphan, known = int(once.read_text()), pool_of(loader)._roster.workers[0].pid
        assert orphan != known
        assert Observer(pool_of(loader)._config.ring).worker(0).tickets > 0
        seen += drain(iterator)
        assert seen == list(range(40))
    wait_until(lambda: not leftovers.runs(orphan))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", FORKS)
def test_a_forkserver_that_does_not_answer(method: Any) -> None:
    """A stopped forkserver does not keep close() waiting."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend=method, timeout_s=600)
    check(next(iter(loader)))
    pool = pool_of(loader)
    os.kill(pool._launcher._forkserver.pid, signal.SIGSTOP)
    os.kill(pool._roster.workers[0].pid, signal.SIGKILL)
    time.sleep(0.3)  # the watcher waits for a replacement
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 120


STRICT = """
import os, threading, warnings
import ringfeed
# As another thread does that leaves a `catch_warnings` of its own meanwhile.
os.register_at_fork(before=lambda: warnings.simplefilter("error"))
threading.Thread(target=threading.Event().wait, daemon=True).start()
with ringfeed.Loader([1.0, 2.0, 3.0], batch_size=1, workers=1, backend="fork") as loader:
    print([batch.item() for batch in loader])
"""


@pytest.mark.usefixtures("nothing_left")
def test_a_fork_beside_threads_does_not_warn() -> None:
    """Python's own warning of it, as an error, comes when the child is there, which nothing would end."""
    assert run_script(STRICT) == ("[1.0, 2.0, 3.0]\n", "", 0)


def test_a_forkserver_that_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer hears why no worker could be forked."""
    here = os.getpid()
    fork = _system.fork

    def full(body: Callable[[], object]) -> int:
        if os.getpid() != here:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork(body)

    monkeypatch.setattr(_system, "fork", full)
    with (
        ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend="fork") as loader,
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
def test_a_pipe_of_popen_whose_number_is_the_lifelines_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a number of a pipe that Popen has closed is used anew, the lifeline stays open."""
    monkeypatch.setattr(fork, "pipes_of_launches", own_pipes)
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend="fork") as loader:
        assert sum(1 for _ in loader) == 10


@pytest.mark.usefixtures("nothing_left")
def test_forked_processes_that_end_before_they_hear_of_pipes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One has answered with the first sample; a forkserver that was killed is replaced."""
    make, children, looks = fork.fork, list[Any](), itertools.count(1)

    def made(live: Any) -> Any:
        children.append(make(live))
        return children[-1]

    def pipes() -> set[int]:
        look = next(looks)  # one before each fork, and one after it
        if look == 4:
            os.kill(children[-1].pid, signal.SIGKILL)
        if look in {2, 4}:
            assert channels.readable([children[-1].pidfd], PATIENCE_S)
        return own_pipes()

    monkeypatch.setattr(fork, "fork", made)
    monkeypatch.setattr(fork, "pipes_of_launches", pipes)
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend="fork") as loader:
        assert sum(1 for _ in loader) == 10
    assert len(children) == 3


def test_a_launch_is_waited_for_that_has_no_pipes_yet() -> None:
    """A fork beside a Popen of another thread knows its pipes only when they are made."""
    begun, goes_on, looked = threading.Event(), threading.Event(), threading.Event()

    class Slow(subprocess.Popen[bytes]):
        def _get_handles(self, *given: Any) -> Any:
            begun.set()
            assert goes_on.wait(PATIENCE_S)
            return super()._get_handles(*given)  # type: ignore[misc]

    launch = threading.Thread(target=lambda: Slow(["/bin/true"]).wait(), daemon=True)
    launch.start()
    assert begun.wait(PATIENCE_S)
    look = threading.Thread(target=lambda: (fork.pipes_of_launches(), looked.set()), daemon=True)
    look.start()
    assert not looked.wait(fork.OPENING_S / 4)
    goes_on.set()
    assert looked.wait(PATIENCE_S)
    launch.join(PATIENCE_S)


def own_pipes() -> set[int]:
    """Return the inodes of all pipes that this process has open."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            status = fd.stat()
            found.update([status.st_ino] if stat.S_ISFIFO(status.st_mode) else [])
    return found


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_children_that_are_buried_by_themselves(method: Any) -> None:
    """A consumer that ignores SIGCHLD gets its batches, though no thread can wait for a child."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ringfeed.Loader(
            Oracle(400, sleep_s=0.001), batch_size=4, workers=2, backend=method
        ) as loader:
            iterator = iter(loader)
            seen = check(next(iterator))
            os.kill(pool_of(loader)._roster.workers[0].pid, signal.SIGKILL)
            assert seen + drain(iterator) == list(range(400))
            wait_until(lambda: loader.stats().restarts == 1)
    finally:
        signal.signal(signal.SIGCHLD, before)


SUBREAPER = """
import ctypes, os, signal
# PR_SET_CHILD_SUBREAPER: orphans come to us, as they do to PID 1.
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
import ringfeed, leftovers
from datasets import Oracle
if __name__ == "__main__":
    before = leftovers.present()
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend="fork") as loader:
        for batch in loader: pass
        pool = loader._runner.engine.pool
        os.kill(pool._launcher._forkserver.pid, signal.SIGKILL)
        os.kill(pool._roster.workers[0].pid, signal.SIGKILL)
        for batch in loader: pass
    del batch, pool, loader
    print(leftovers.since(before))
"""


def test_orphans_of_a_forkserver_are_buried() -> None:
    """Where orphans come to the consumer, a killed forkserver's do not stay as zombies."""
    found = run_script(SUBREAPER)
    assert found == ("[]\n", "", 0)


ORDERED_LAST = """
import ctypes, os, signal, time
from contextlib import suppress
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # as above
import ringfeed, leftovers
from datasets import Oracle
backend, when = "BACKEND", "WHEN"
before = leftovers.present()
with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, backend=backend) as loader:
    for batch in loader: pass
    launcher = loader._runner.engine.pool._launcher
    forkserver = launcher._forkserver
    launcher.request_stop()  # as another thread's close() does
    if when == "late":
        os.kill(forkserver.pid, signal.SIGSTOP)
    try:
        launcher.start().end(60)
        print("forked")
    except ringfeed.ClosedError as error:
        print(error)
        with suppress(ProcessLookupError):
            os.kill(forkserver.pid, signal.SIGCONT)
        # Its second child dies soon, and would be buried there if it lived on.
        children, end_s = f"/proc/{forkserver.pid}/task/{forkserver.pid}/children", time.monotonic() + 60
        while not forkserver.is_dead() and time.monotonic() < end_s:
            if len(open(children).read().split()) == 2:
                forkserver.kill()
del batch, launcher, loader
print(leftovers.since(before))
"""
ANSWERS = {"at once": "forked", "late": "this loader is closed; make a new one"}


@pytest.mark.parametrize("backend", ["process", "fork"])
@pytest.mark.parametrize("when", ANSWERS)
def test_a_worker_that_is_ordered_as_its_loader_closes_is_no_zombie(
    backend: str, when: str
) -> None:
    """A worker that is forked already is taken, and a forkserver that has not forked yet is ended."""
    found = run_script(ORDERED_LAST.replace("BACKEND", backend).replace("WHEN", when))
    assert found == (f"{ANSWERS[when]}\n[]\n", "", 0)


SLOW_NURSERY = """
import os, ringfeed, sys, threading, time
from datasets import Oracle, Unhurried
from ringfeed.workers.launchers import Forkserver
opened = Forkserver._open
def told(launcher):
    forkserver = opened(launcher); print(forkserver.pid, flush=True); return forkserver
Forkserver._open = told
loader = ringfeed.Loader(Unhurried(20), batch_size=2, workers=1, backend="process", spec=Oracle.SPEC)
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

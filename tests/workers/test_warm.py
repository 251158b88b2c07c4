"""The warm forkserver: what loaders share by it, when it is another one, how it ends."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import Oracle, check, drain
from ringfeed.loader import runner_of
from ringfeed.transport import modules
from ringfeed.workers import launchers, warm
from watching import PATIENCE_S, lose_patience, pids, pool_of, run_script, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def fresh(nothing_left: None) -> Iterator[None]:  # noqa: ARG001 - it looks after this has ended
    """Keep no warm forkserver of a test before, or for one after."""
    warm.end()
    yield
    warm.end()


def loader_of(dataset: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader whose workers are forked."""
    settings = {"batch_size": 4, "workers": 1, "backend": "process", **settings}
    return ringfeed.Loader(dataset, **settings)


def parent_of(pid: int) -> int:
    """Return the process that has forked this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def warm_of(loader: ringfeed.Loader) -> int:
    """Return the process that has forked the forkserver of a loader that runs."""
    return parent_of(pool_of(loader)._launcher._forkserver.pid)


def spent(dataset: Any, **settings: Any) -> int:
    """Read a dataset whole, and return the process that has forked the forkserver."""
    with loader_of(dataset, **settings) as loader:
        for _ in loader:
            pass
        return warm_of(loader)


# ---- how long it stays ----


def soon_idle(loader: ringfeed.Loader, seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have the warm forkserver of a loader that runs end after so long without one; return its pid.

    If it had been told so at its start, it could end before the loader asks for a forkserver.
    """
    monkeypatch.setenv("RINGFEED_WARM_S", str(seconds))
    assert warm._Kept.warm is not None
    warm._Kept.warm._warm_up(None, ())
    (pid,) = warm.pids()
    assert warm_of(loader) == pid
    return pid


def test_a_loader_for_each_epoch_waits_for_its_start_once() -> None:
    """It outlives the loader that was closed, or dropped, and forks the next one's forkserver."""
    assert spent(Oracle(8)) == spent(Oracle(8))
    loader = loader_of(Oracle(8))
    drain(loader)
    found = [warm_of(loader)]
    del loader
    gc.collect()
    assert spent(Oracle(8)) == found[0]
    assert warm.pids() == found


def test_it_ends_soon_after_the_last_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left then in this process: no zombie, no descriptor, no thread."""
    # Names are enough.
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with loader_of(Oracle(8)) as loader:
        drain(loader)
        pid = soon_idle(loader, 0.1, monkeypatch)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() and warm._Kept.warm is None)
    wait_until(lambda: threading.active_count() == threads)
    assert len(os.listdir("/proc/self/fd")) == fds  # noqa: PTH208 - as above


def test_a_collection_amid_its_end_ends_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer of the user's that closes a loader, or ends it, may run at any moment."""
    close = warm.Warm.close

    def collected(self: warm.Warm) -> None:
        warm.end()
        close(self)

    monkeypatch.setattr(warm.Warm, "close", collected)
    with loader_of(Oracle(8)) as one, loader_of(Oracle(8)) as other:
        drain(one)
        drain(other)
    warm.end()
    assert warm.pids() == []


# ---- what is shared, and what is not ----


def test_all_loaders_are_forked_from_one_process() -> None:
    """The second loader, and one made beside it, begin from what the first one has had imported."""
    with loader_of(Oracle(40)) as one, loader_of(Oracle(24)) as other:
        assert drain(one) == list(range(40))
        assert drain(other) == list(range(24))
        assert [warm_of(one), warm_of(other)] == warm.pids() * 2
        assert pool_of(one)._launcher._forkserver.pid != pool_of(other)._launcher._forkserver.pid
    assert [spent(Oracle(8))] == warm.pids()


OWN = """
import random
import numpy as np
SEEN, GENERATOR, OTHER = [], np.random.default_rng(), random.Random()
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index):
        SEEN.append(index)
        return np.array([index, len(SEEN), {version}, GENERATOR.integers(2**62), OTHER.getrandbits(62)])
"""


def test_loaders_share_nothing_of_the_users_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loader imports them anew.

    It has neither their state, nor their random numbers, nor their code of before.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for version in (1, 2):
        (tmp_path / "own_state.py").write_text(OWN.format(version=version))
        # A change within one second goes unseen.
        os.utime(tmp_path / "own_state.py", (version, version))
        sys.modules.pop("own_state", None)
        importlib.invalidate_caches()
        with loader_of(
            importlib.import_module("own_state").Numbers(), spec=ringfeed.Array((5,), "int64")
        ) as loader:
            found.append(np.concatenate([batch.copy() for batch in loader]))
    sys.modules.pop("own_state")
    for version, rows in enumerate(found, start=1):
        assert rows[:, :3].tolist() == [[index, index + 1, version] for index in range(8)]
    assert not set(found[0][:, 3]) & set(found[1][:, 3])
    assert not set(found[0][:, 4]) & set(found[1][:, 4])


INSTALLED = """
import os
FILE = open({rows!r}, "rb", buffering=0)
IMPORTED_BY = os.getpid()
class Rows:
    def __len__(self): return 256
    def __getitem__(self, index):
        import numpy as np
        FILE.seek(index * 8)
        return np.array([np.frombuffer(FILE.read(8), np.int64)[0], IMPORTED_BY, os.getpid()])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package that opens a file when it is imported."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    np.arange(256).tofile(tmp_path / "rows")
    (folder / "opens_a_file.py").write_text(INSTALLED.format(rows=str(tmp_path / "rows")))
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("opens_a_file")
    assert modules.is_installed("opens_a_file")
    yield module
    module.FILE.close()
    sys.modules.pop("opens_a_file")


def test_loaders_share_no_file_that_an_installed_package_opens(package: Any) -> None:
    """Where an import opens a file, no warm forkserver has it: each worker imports for itself."""
    before = len(warm._Kept.unfit)
    for _ in range(2):
        with loader_of(package.Rows(), workers=2, copy=True) as loader:
            value, importer, worker = np.concatenate([*loader]).T
        assert value.tolist() == list(range(256))
        assert importer.tolist() == worker.tolist()
    wait_until(lambda: len(warm._Kept.unfit) == before + 1 or not warm.pids())


# ---- when it is another one ----


def _nice() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)


def _fewer_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def _on_one_cpu() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


CHANGES: dict[str, Callable[[], object]] = {
    "an environment variable": lambda: os.environ.update(WARM="1"),
    "the path of modules": lambda: sys.path.append("/nowhere"),
    "umask": lambda: os.umask(0o077),
    "nice": _nice,
    "a limit": _fewer_files,
    "the CPUs": _on_one_cpu,
    "an ignored signal": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
}


class Surrounded:
    """Tells what its process was started with."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        umask = os.umask(0)
        os.umask(umask)
        here = (
            int(os.environ.get("WARM", "0")),
            int("/nowhere" in sys.path),
            umask,
            os.getpriority(os.PRIO_PROCESS, 0),
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            len(os.sched_getaffinity(0)),
            int(signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN),
        )
        return np.array(here, np.int64)


def changed(change: str) -> None:
    """Make loaders before and after a change.

    Run in a process of its own, which keeps the change.
    """
    with loader_of(Surrounded()) as loader:
        next(iter(loader))
        before = warm_of(loader)
        CHANGES[change]()
        with loader_of(Surrounded()) as other:
            found = next(iter(other))[0].tolist()
            after = warm_of(other)
        expected = Surrounded()[0].tolist()
        sys.stdout.write(f"{before != after} {found == expected}\n")


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_process_takes_over_when_it_starts(change: str) -> None:
    """A loader made after a change has workers that were started after it."""
    if change == "the CPUs" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one CPU")
    assert run_script(
        f"import test_warm; test_warm.changed({change!r})", cwd=Path(__file__).parent
    ) == (
        "True True\n",
        "",
        0,
    )


def test_no_more_than_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one.

    A loader whose warm forkserver has ended goes on, and can replace its workers.
    """
    monkeypatch.setenv("WARM", "first")
    with loader_of(Oracle(40)) as loader:
        first = next(iter(loader))
        oldest = warm_of(loader)
        del first
        monkeypatch.setenv("WARM", "second")
        assert [spent(Oracle(4))] == warm.pids()
        assert not leftovers.runs(oldest)
        os.kill(pids(loader)[0], signal.SIGKILL)
        os.kill(pool_of(loader)._launcher._forkserver.pid, signal.SIGKILL)
        assert drain(loader) == list(range(40))


# ---- it may end at any time ----


@pytest.mark.parametrize("when", ["before", "amid", "after"])
def test_it_may_be_killed_at_any_time(when: str) -> None:
    """Killed before a loader needs it, before it has forked, or beside a loader that runs."""
    spent(Oracle(4))
    if when == "before":
        os.kill(warm.pids()[0], signal.SIGKILL)
    elif when == "amid":
        os.kill(warm.pids()[0], signal.SIGSTOP)
    with loader_of(Oracle(40)) as loader:
        if when == "amid":
            os.kill(warm.pids()[0], signal.SIGKILL)
        iterator = iter(loader)
        seen = check(next(iterator))
        if when == "after":
            for pid in warm.pids():
                os.kill(pid, signal.SIGKILL)
            os.kill(pids(loader)[0], signal.SIGKILL)
        assert [*seen, *drain(iterator)] == list(range(40))


def test_one_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, so it is ended after ``timeout_s``, and another way is taken.

    It has ten seconds at least.
    """
    monkeypatch.setattr(launchers, "ARRIVAL_S", 0.2)
    spent(Oracle(4))
    (stopped,) = warm.pids()
    os.kill(stopped, signal.SIGSTOP)
    close = warm.Warm.close
    with loader_of(Oracle(40), timeout_s=0.2) as loader:
        launcher: Any = runner_of(loader).launcher

        def be_patient(self: warm.Warm) -> None:
            launcher._timeout_s = PATIENCE_S  # for all others: none of them is lost
            close(self)

        monkeypatch.setattr(warm.Warm, "close", be_patient)
        batches = iter(loader)
        assert launcher._timeout_s == PATIENCE_S
        lose_patience(loader, PATIENCE_S)
        assert drain(batches) == list(range(40))
    assert not leftovers.runs(stopped)


def test_it_ends_when_it_has_had_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """After RINGFEED_WARM_S seconds without a loader, and never beside one.

    The next loader starts another.
    """
    with loader_of(Oracle(40, sleep_s=0.05)) as loader:
        batches = iter(loader)
        pid = soon_idle(loader, 0.2, monkeypatch)
        assert drain(batches) == list(range(40))  # for two seconds
        assert warm.pids() == [pid]
    wait_until(lambda: not leftovers.runs(pid))
    assert spent(Oracle(8)) != pid


def test_none_is_kept_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RINGFEED_WARM_S=0 a loader leaves no process behind."""
    monkeypatch.setenv("RINGFEED_WARM_S", "0")
    assert spent(Oracle(8)) == os.getpid()
    assert warm.pids() == []


def test_end_ends_it_and_no_loader() -> None:
    """`end` leaves no process of its own; loaders that run have all that they need."""
    with loader_of(Oracle(40)) as loader:
        iterator = iter(loader)
        seen = check(next(iterator))
        (pid,) = warm.pids()
        warm.end()
        assert not Path(f"/proc/{pid}").exists()
        assert [*seen, *drain(iterator)] == list(range(40))


SCRIPT = """
import os, sys, time, ringfeed
from datasets import Oracle
from ringfeed.workers import warm
loader = ringfeed.Loader(Oracle(8), batch_size=4, workers=1, backend="process")
for batch in loader: pass
print(*warm.pids(), flush=True)
"""


@pytest.mark.parametrize("end", ["exit", "os._exit(0)", "os.execl('/bin/true', 'true')", "killed"])
def test_it_ends_with_its_consumer(end: str) -> None:
    """However the program ends."""
    if end == "killed":
        process = start_script(SCRIPT + "time.sleep(600)")
        try:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
        finally:
            process.kill()
            process.communicate(timeout=120)
    else:
        output, errors, status = run_script(SCRIPT + ("" if end == "exit" else end))
        assert (errors, status) == ("", 0)
        pid = int(output)
    wait_until(lambda: not leftovers.runs(pid))


# ---- what it holds, and what it says ----


def test_it_holds_nothing_of_the_users(tmp_path: Path) -> None:
    """Neither a file that may be inherited, nor the pipes that its workers print to."""
    with (tmp_path / "inherited").open("wb") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - os' own
        found = subprocess.run(
            [sys.executable, "-c", HOLDS],
            stdout=subprocess.PIPE,
            pass_fds=(file.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True,
            timeout=120,
        )
    held = found.stdout.decode().split()
    kinds = sorted(one.partition(":")[0] for one in held)
    assert kinds == [*["/dev/null"] * 3, "anon_inode", "pipe", "socket"]


HOLDS = """
import os, ringfeed
from contextlib import suppress
from datasets import Oracle
from ringfeed.workers import warm
loader = ringfeed.Loader(Oracle(8), batch_size=4, workers=1, backend="process")
for batch in loader: pass
loader.close()
folder = f"/proc/{warm.pids()[0]}/fd"
def held():
    while names := os.listdir(folder):
        with suppress(FileNotFoundError):  # one was closed meanwhile
            paths = [os.readlink(f"{folder}/{name}") for name in names]
            return [path for path in paths if "/libffi." not in path]  # which keeps its own file open
while len(held()) > 6: pass  # a descriptor of the forkserver that it has forked
print(*held(), sep="\\n")
"""


class Saying:
    """Prints where its process prints to."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        os.write(1, b"out\n")
        os.write(2, b"err\n")
        return np.int64(index)


def test_workers_print_where_the_program_prints_now(tmp_path: Path) -> None:
    """A program that sends its output elsewhere has that of later workers there, too."""
    spent(Oracle(4))
    saved = [os.dup(number) for number in (1, 2)]
    paths = tmp_path / "out", tmp_path / "err"
    try:
        for number, path in enumerate(paths, start=1):
            file = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
            os.close(file)
        spent(Saying(), spec=ringfeed.Array((), "int64"))
    finally:
        for number, fd in enumerate(saved, start=1):
            os.dup2(fd, number)
            os.close(fd)
    assert [{*path.read_text().split()} for path in paths] == [{"out"}, {"err"}]


def test_its_memory_is_told() -> None:
    """`Stats.memory` names the forkserver of the loader and the warm one, with what each has."""
    with loader_of(Oracle(8)) as loader:
        for _ in loader:
            pass
        memory = loader.stats().memory
        own, kept = memory.forkservers
        assert (own.pid, own.name) == (pool_of(loader)._launcher._forkserver.pid, "forkserver")
        assert [(kept.pid, kept.name)] == [(pid, "warm forkserver") for pid in warm.pids()]
        assert kept.pss is not None
        assert kept.pss > 1_000_000
        assert f"\nwarm forkserver {kept.pid}: touched 0 bytes; with its interpreter " in str(
            memory
        )


# ---- several processes, several threads ----


def test_a_forked_child_has_one_of_its_own() -> None:
    """A process that the user forks starts its own, and leaves that of its parent alone."""
    spent(Oracle(4))
    (ours,) = warm.pids()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, f"{spent(Oracle(8))}".encode())
            warm.end()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        theirs = int(file.read())
    os.waitpid(child, 0)
    assert ours != theirs
    assert leftovers.runs(ours)
    assert spent(Oracle(8)) == ours


def test_loaders_of_many_threads() -> None:
    """Made and read at once by eight threads, they share one; each has its rows."""
    found: list[list[int]] = []

    def read() -> None:
        for _ in range(3):
            with loader_of(Oracle(16)) as loader:
                found.append(drain(loader))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(16))] * 24
    assert len(warm.pids()) == 1

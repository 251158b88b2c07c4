"""A worker's life: what a dataset may do inside it, newer versions, last words, and sudden ends."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import BadBulk, Oracle, check, drain
from ringfeed.datasets.indexed import IndexedSource
from ringfeed.datasets.reader import Port, Reader
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.engine.plan import make_plan
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.system import channel as channels
from ringfeed.transport.shared_dataset import pack, to_shared_memory
from ringfeed.workers.process import Spawner
from travel import without_figures
from watching import pool_of, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

METHODS = ["spawn", "fork", "process"]


# ---- one worker, by hand ----


class Bench:
    """A ring of one worker over numbers, and the first message of a worker process."""

    def __init__(self, dataset: Any) -> None:
        self.source = open_source(dataset, Terms(4))
        self.source.learn()
        self.plan = make_plan(self.source.spec, self.source.rows, 4, workers=1, slots=2)
        self.segment = Segment(self.plan.sizes)
        self.ring = self.segment.open()
        self.ring.become_consumer(8, 3)
        self.stack_fd = os.memfd_create("stack")

    def config(self, sent: Any, version: int = 0) -> tuple[Any, tuple[int, ...]]:
        """Return the first message to a worker, and its descriptors."""
        config = SimpleNamespace(
            source=self.source,
            offsets=self.plan.layout.offsets,
            sizes=self.segment.sizes,
            number=0,
            stream=0,
            workers=1,
            starts=0,
            version=version,
            manifest=sent.manifest(),
            bars=[],
            states_size=0,
            family=None,
        )
        return config, (self.segment.control_fd, self.segment.slots_fd, self.stack_fd, *sent.fds)

    def take(self, version: int) -> list[int]:
        """Plan one batch of a version, and return what it is filled with."""
        self.ring.plan(np.arange(4, dtype=np.int64), 4, 0, version)
        assert self.ring.wait(120 * 10**9) == _ring.TAKEABLE
        lease = self.ring.take()
        return np.frombuffer(lease, np.int64)[:4].tolist()

    def close(self) -> None:
        """Close the descriptors."""
        self.segment.close()
        os.close(self.stack_fd)


def numbers(first: int) -> list[int]:
    """Return a dataset that differs from version to version."""
    return [first + n for n in range(4)]


@pytest.fixture
def tied() -> Iterator[Any]:
    """A spawned worker process that waits for its first message."""
    launcher = Spawner()
    found = launcher.start()
    yield found
    found.kill()
    found.is_dead(120)
    found.exit_reason()
    launcher.close()


def test_a_thread_serves_until_the_ring_stops() -> None:
    """The loop of a worker thread fills what is planned, and returns when the ring stops."""
    bench = Bench(numbers(5))
    end = _ring.WorkerEnd(bench.ring, 0)
    reader = bench.source.reader(numbers(5), Port(end, bench.ring, bench.plan.layout.offsets))
    thread = threading.Thread(target=reader.serve, args=(0,))
    thread.start()
    assert bench.take(0) == [5, 6, 7, 8]
    bench.ring.stop()
    thread.join(120)
    assert not thread.is_alive()
    bench.close()


@pytest.mark.parametrize("backend", ["fork", "thread"])
def test_what_is_raised_outside_a_sample_fails_its_ticket(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception between two samples, of a signal's handler say, is an error in its place.

    The worker goes on.
    """
    original = IndexedSource.open

    def opened(self: IndexedSource, dataset: Any, reader: Reader) -> Callable[[], bool]:
        read = original(self, dataset, reader)

        def interrupted() -> bool:
            if reader.end.indices[0] == 4:
                raise TimeoutError("between two samples")
            return read()

        return interrupted

    monkeypatch.setattr(IndexedSource, "open", opened)
    with ringfeed.Loader(
        Oracle(12), batch_size=4, workers=1, backend=backend, timeout_s=120
    ) as loader:
        iterator = iter(loader)
        found = check(next(iterator))
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iterator)
        text = "dataset[4] raised TimeoutError: between two samples (3 more of this batch failed)"
        assert str(caught.value) == text
        assert found + check(next(iterator)) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert loader.stats().restarts == 0


@pytest.mark.usefixtures("nothing_left")
def test_versions_are_fetched_when_a_batch_asks(tied: Any) -> None:
    """A batch is read from the version that it names.

    Older messages are passed over, newer ones wait.
    """
    bench = Bench(numbers(0))
    versions = [to_shared_memory(pack(numbers(10 * version))) for version in range(5)]
    channels.send(tied.channel, *bench.config(versions[0]))
    assert bench.take(0) == [0, 1, 2, 3]
    for version in (1, 2, 3):
        sent = versions[version]
        channels.send(tied.channel, {"version": version, "manifest": sent.manifest()}, sent.fds)
    assert bench.take(2) == [20, 21, 22, 23]
    assert bench.take(3) == [30, 31, 32, 33]
    bench.ring.stop()
    assert tied.is_dead(120)
    for sent in versions:
        sent.close()
    bench.close()


def test_idle_workers_leave_at_once(tied: Any) -> None:
    """A worker that waits for work ends with status 0 when the ring stops."""
    bench = Bench(numbers(0))
    sent = to_shared_memory(pack(numbers(0)))
    channels.send(tied.channel, *bench.config(sent))
    bench.take(0)
    bench.ring.stop()
    assert tied.is_dead(120)
    assert (
        os.waitstatus_to_exitcode(
            os.waitid(os.P_PID, tied.pid, os.WEXITED | os.WNOWAIT).si_status << 8
        )
        == 0
    )
    sent.close()
    bench.close()


def test_a_worker_whose_consumer_hangs_up_leaves(tied: Any) -> None:
    """The end of the channel before the first message ends the worker, without a word."""
    tied.channel.shutdown()
    assert tied.is_dead(120)


class Lonely(Oracle):
    """Runs out of input when it is unpickled."""

    def __setstate__(self, state: object) -> None:
        raise EOFError("the index file is empty")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (
            "spawn",
            "a worker could not open the dataset: EOFError: the index file is empty; try workers=0",
        ),
        (
            "process",
            "the dataset could not be unpickled for the workers: EOFError: the index file is empty",
        ),
    ],
)
def test_a_dataset_whose_file_is_empty(method: Any, text: str) -> None:
    """An EOFError of the dataset is told, and not taken for the end of the consumer."""
    with (
        ringfeed.Loader(Lonely(20), workers=1, backend=method, spec=Oracle.SPEC) as loader,
        pytest.raises(ringfeed.WorkerError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == text


# ---- what a dataset does in its worker ----


class Guest:
    """Does a deed in every process that makes its sample 5, and is an Oracle."""

    def __init__(self, deed: str) -> None:
        self.deed = deed
        self.oracle = Oracle(40)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            getattr(self, self.deed)()
        return self.oracle[index]

    def closes_descriptors(self) -> None:
        os.closerange(0, 256)

    def changes_directory(self) -> None:
        os.chdir("/proc")

    def starts_threads(self) -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()

    def prints(self) -> None:
        print("x" * 100_000)  # noqa: T201 - what it is for
        sys.stdout = None  # type: ignore[assignment]

    def forks(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(3)
        os.waitpid(pid, 0)

    def returns_twice(self) -> None:
        """Fork, and go on in the child too: it has no part in the segment, and dies of it."""
        if os.fork() == 0:
            faulthandler.disable()  # of a forked worker, pytest's
            time.sleep(0.05)

    def takes_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def hurries_sockets(self) -> None:
        socket.setdefaulttimeout(0.001)

    def collects_garbage(self) -> None:
        gc.collect()


DEEDS = [name for name in vars(Guest) if not name.startswith("_")]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("deed", DEEDS)
def test_a_dataset_may_do_that(deed: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a dataset does with its process, each sample arrives once and in order."""
    method: Any = METHODS[DEEDS.index(deed) % 2]
    with ringfeed.Loader(
        Guest(deed), batch_size=4, workers=1, backend=method, spec=Oracle.SPEC
    ) as loader:
        for _ in range(2):
            assert drain(loader) == list(range(40))
        if deed == "returns_twice":
            assert loader.stats().restarts <= 1
    if deed == "prints":
        assert capfd.readouterr().out.count("x") >= 100_000


# ---- exceptions of all kinds ----


class RaisesInReduce(Exception):  # noqa: N818 - it stands for a user's
    """Cannot be pickled, and says so in its own way."""

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


class RaisesInText(Exception):  # noqa: N818 - it stands for a user's
    """Has no text, and takes one for a reason to leave."""

    def __str__(self) -> str:
        raise SystemExit(4)


class Fancy(str):
    """A str that only its own process knows."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise RuntimeError


class FancyText(Exception):  # noqa: N818 - it stands for a user's
    """Its text is not a plain str."""

    def __str__(self) -> str:
        return Fancy("fancy")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):  # noqa: N818 - it stands for a user's
    """Can be pickled, but not unpickled."""

    code: int


class Sealed(Exception):  # noqa: N818 - it stands for a user's
    """Takes no cause."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Nameless(Exception):  # noqa: N818 - it stands for a user's
    """Cannot say where it comes from."""

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError


RAISED = {
    "reduce": (RaisesInReduce("a"), "RaisesInReduce: a"),
    "text": (RaisesInText("b"), "RaisesInText: (its text could not be made)"),
    "fancy": (FancyText("c"), "FancyText: fancy"),
    "frozen": (Frozen(7), "Frozen: 7"),
    "sealed": (Sealed("e"), "Sealed: e"),
    "huge": (ValueError("z" * 10_000_000), "ValueError: " + "z" * 500),
    "wide": (type("\U0001f600" * 300, (Exception,), {})("\U0001f600" * 9000), None),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator exit": (GeneratorExit(), "GeneratorExit"),
    "stop": (StopIteration(3), "StopIteration: 3"),
    "surrogates": (ValueError("\udcff"), "ValueError: \udcff"),
    "traceback": (Nameless("d"), "Nameless: d"),
    "group": (
        ExceptionGroup("many", [ValueError(n) for n in range(200)]),
        "ExceptionGroup: many (200 sub-exceptions)",
    ),
}


class Raising(Oracle):
    """Raises at index 17."""

    def __init__(self, name: str) -> None:
        super().__init__(40)
        self.name = name

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise RAISED[self.name][0]
        return super().__getitem__(index)


@pytest.mark.parametrize("backend", ["fork", "thread"])
@pytest.mark.parametrize("name", RAISED)
def test_any_exception_is_told(name: str, backend: Any) -> None:
    """However odd an exception is, its batch is an error that names the sample."""
    how = {"backend": backend}
    with ringfeed.Loader(Raising(name), batch_size=8, workers=1, timeout_s=120, **how) as loader:
        iterator = iter(loader)
        assert check(next(iterator)) + check(next(iterator)) == list(range(16))
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iterator)
        assert drain(iterator) == list(range(24, 40))
        assert loader.stats().restarts == 0
    text = RAISED[name][1]
    assert str(caught.value).startswith("dataset[17] raised ")
    if text is not None:
        assert str(caught.value) == f"dataset[17] raised {text}"


@pytest.mark.parametrize("deed", ["raises", "dies"])
def test_many_at_once_with_one_bad(deed: str) -> None:
    """Where __getitems__ fails, only the sample at fault is left out, and it is named."""
    with ringfeed.Loader(
        BadBulk(deed), batch_size=8, workers=1, slots=2, on_error="skip", max_attempts=2
    ) as loader:
        assert drain(loader) == [*range(17), *range(18, 40)]
        assert loader.stats().skipped == [17]
    with (
        ringfeed.Loader(BadBulk(deed), batch_size=8, workers=1, slots=2, max_attempts=2) as loader,
        pytest.raises(ringfeed.WorkerError, match=r"dataset\[17\] (raised|ended)"),
    ):
        list(map(check, loader))


# ---- the end of the consumer, and of the worker's own life ----

HOLDS_THE_GIL = """
import ctypes, os, ringfeed, sys, time
class Stubborn:
    def __len__(self): return 8
    def __getitem__(self, index):
        import ctypes, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if index == 0:
            open({flag!r}, "w").close()
        ctypes.PyDLL(None).sleep(600)  # in C, with the GIL
        return index
loader = ringfeed.Loader(Stubborn(), batch_size=2, workers=2, backend={method!r}, spec=ringfeed.Array((), "int64"))
iterator = iter(loader)
pool = loader._runner.engine.pool
forkserver = getattr(pool._launcher, "_forkserver", None)
print(*[w.pid for w in pool._roster.workers.values()], *([forkserver.pid] if forkserver else []), flush=True)
while not os.path.exists({flag!r}): time.sleep(0.01)
print("busy", flush=True)
{end}
"""

ENDS = {
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "exec": "os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'])",
    "exception": "raise SystemError",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("method", METHODS)
def test_workers_end_with_their_consumer(method: str, end: str, tmp_path: Any) -> None:
    """However the consumer ends, its workers are gone soon after.

    They are in C code with the GIL and all signals blocked.
    """
    script = HOLDS_THE_GIL.format(method=method, end=ENDS[end], flag=str(tmp_path / "flag"))
    process = start_script(script)
    try:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == (2 if method == "spawn" else 3)
        assert process.stdout.readline() == "busy\n"
        wait_until(lambda: not any(map(leftovers.runs, pids)))
    finally:
        process.kill()
        process.communicate(timeout=120)


class Leaving:
    """Puts another program in the place of its process, or of one that it has forked."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            child = os.fork()
            if child == 0:
                os.execlp("true", "true")  # noqa: S606, S607 - what is tried
            return np.int64(os.waitpid(child, 0)[1])
        return os.execlp("true", "true")  # noqa: S606, S607 - what is tried


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_becomes_no_other_program(method: Any) -> None:
    """Nothing would end that with the consumer, so it is an error.

    A child of the dataset's may become one.
    """
    with ringfeed.Loader(
        Leaving(), batch_size=1, workers=1, backend=method, spec=ringfeed.Array((), "int64")
    ) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0]
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(batches)
    assert str(caught.value.__cause__) == (
        "a worker process cannot become another program, since nothing would end that with the "
        "training; start it with subprocess"
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_stopped_workers_at_the_end(method: Any) -> None:
    """Workers that SIGSTOP holds are ended by close() all the same."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend=method)
    check(next(iter(loader)))
    for one in pool_of(loader)._roster.workers.values():
        os.kill(one.pid, signal.SIGSTOP)
    loader.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2])
def test_killed_while_it_starts(delay_s: float) -> None:
    """A worker that is killed at any moment of its start is replaced, and nothing is lost."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1) as loader:
        iterator = iter(loader)
        time.sleep(delay_s)
        os.kill(pool_of(loader)._roster.workers[0].pid, signal.SIGKILL)
        assert drain(iterator) == list(range(40))
        wait_until(lambda: loader.stats().restarts == 1)


MODULE = """
import keras
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return index
"""
HIDDEN = (
    MODULE.replace("return index", "return index * (lock is not None)")
    + "import threading\nlock = threading.Lock()\n"
)
USED = MODULE.replace("return index", "return index + keras.nothing()")
WARNING = """makes the workers import keras, which took N s and N MB in this one; use NumPy there or leave \
it to the model, keep the import out of the dataset's module, or give workers=0 or backend='thread'"""


@pytest.mark.parametrize("backend", ["spawn", "process"])
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (MODULE, ""),
        (HIDDEN, f"numbers_of_mine.py line N (import keras) {WARNING}\n  import keras\n"),
        (
            USED,
            "numbers_of_mine.py line N (def __getitem__(self, index): return index + "
            f"keras.nothing()) {WARNING}\n  def __getitem__(self, index): return index + "
            "keras.nothing()\n",
        ),
    ],
    ids=["not needed", "by its module", "used"],
)
def test_a_dataset_that_brings_a_framework_in_is_named(
    tmp_path: Path, module: str, said: str, backend: str
) -> None:
    """One process says which line of the user's imports a framework, and what it took.

    Where none is needed, none.
    """
    # It goes by the name, and the real one takes seconds.
    (tmp_path / "keras.py").write_text("def nothing(): return 0")
    (tmp_path / "numbers_of_mine.py").write_text(module)
    script = (
        "import numbers_of_mine, ringfeed\n"
        f"loader = ringfeed.Loader(numbers_of_mine.Numbers(), workers=2, backend={backend!r})\n"
        "for _ in range(3): print([batch.tolist() for batch in loader])\n"
    )
    (tmp_path / "script.py").write_text(script)
    found = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.stdout == "[[0, 1, 2, 3, 4, 5, 6, 7]]\n" * 3
    said = (
        said
        and f"{tmp_path / 'numbers_of_mine.py'}:{2 if 'lock' in module else 5}: RuntimeWarning: {said}"
    )
    # A worker that fills nothing imports nothing; the one that speaks may be that one.
    assert without_figures(found.stderr) in ({said, ""} if "keras.nothing" in module else {said})


@pytest.mark.parametrize("backend", ["spawn", "process"])
def test_an_installed_class_that_brings_a_framework_in_is_named(
    tmp_path: Path, backend: str
) -> None:
    """Where no line of the user's asks for the framework, the package's line is named."""
    package = tmp_path / "site-packages" / "numbers_of_theirs.py"
    package.parent.mkdir()
    package.write_text(HIDDEN)
    (tmp_path / "site-packages" / "keras.py").write_text("")
    script = (
        "import sys; sys.path.insert(0, 'site-packages')\n"
        "import numbers_of_theirs, ringfeed\n"
        f"loader = ringfeed.Loader(numbers_of_theirs.Numbers(), workers=2, backend={backend!r})\n"
        "print([batch.tolist() for batch in loader])\n"
    )
    (tmp_path / "script.py").write_text(script)
    found = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.stdout == "[[0, 1, 2, 3, 4, 5, 6, 7]]\n"
    said = f"RuntimeWarning: numbers_of_theirs.py line N (import keras) {WARNING}\n  import keras\n"
    assert without_figures(found.stderr) == f"{package}:2: {said}"


def test_rng_is_the_function_whatever_was_imported_first() -> None:
    """No submodule hides a public name."""
    modules = "ringfeed.loader, ringfeed.orders.rng, ringfeed.engine.open_source, ringfeed"
    script = f"import {modules}; print(ringfeed.rng().random() < 1)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert (found.stdout, found.stderr) == ("True\n", "")

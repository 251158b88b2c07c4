"""A stuck worker's stack is read through a file of its own."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import FOREVER_S, Oracle
from ringfeed.monitor import faults, stacks
from ringfeed.monitor._snapshot import Observer
from ringfeed.monitor.stacks import Stacks
from watching import FORK_HINT, lose_patience, pids, pool_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Writer:
    """Stands in for a worker process, which is this one; writes when it is asked."""

    pid = os.getpid()

    def __init__(self, fd: int, text: bytes) -> None:
        self.text = text
        self.file = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 - closefd
        self.asked: list[int] = []

    def kill(self, number: int) -> None:
        self.asked.append(number)
        self.file.write(self.text)


@pytest.fixture
def files() -> Iterator[Stacks]:
    """Files that are closed afterwards."""
    found = Stacks()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield found
    signal.signal(signal.SIGUSR1, before)
    found.close()


@pytest.mark.usefixtures("nothing_left")
def test_the_stack_is_the_newest(files: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack replaces the one before, also where it is shorter."""
    monkeypatch.setattr(stacks, "WRITING_S", 60.0)  # it ends as soon as the text stays the same
    for text in (b"a long stack of many lines", b"short \xff"):
        worker: Any = Writer(files.fd_of(3), text)
        assert files.read(3, worker) == text.decode(errors="replace")
        assert worker.asked == [signal.SIGUSR1]


def test_the_stack_ends_where_each_worker_is_the_same() -> None:
    """Frames of how the worker was started, and of the program that it was forked from, are cut."""
    frames = (
        "worker 1 (pid 5): inside dataset[3], has been at it for 3.1 s",
        "    Stack (most recent call first):",
        '  File "/home/me/data.py", line 7 in __getitem__',
        '  File "/site-packages/ringfeed/datasets/reader.py", line 93 in serve',
        '  File "/site-packages/ringfeed/workers/worker_main.py", line 71 in run',
        '  File "/site-packages/ringfeed/workers/fork.py", line 47 in live',
        '  File "/home/me/train.py", line 12 in <module>',
    )
    source: Any = SimpleNamespace(describe_all=lambda _: "dataset[i] (i = 3)")
    observer: Any = SimpleNamespace(workers=lambda: [SimpleNamespace(inside=3)])
    assert str(faults.stalled(observer, source, ["\n".join(frames)], 3)) == "\n".join(
        (
            "no batch for 3 s: 1 of 1 workers inside dataset[i] (i = 3); raise timeout_s or look there",
            *frames[:4],
        )
    )


def test_a_worker_that_does_not_answer(files: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot even write its stack is not waited for."""
    monkeypatch.setattr(stacks, "WRITING_S", 0.05)
    worker: Any = Writer(files.fd_of(0), b"")
    assert files.read(0, worker) == ""


def test_each_worker_has_its_own_file(files: Stacks) -> None:
    """Two ids never share a file; one keeps its own."""
    assert files.fd_of(0) != files.fd_of(1)
    assert files.fd_of(0) == files.fd_of(0)


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_worker_that_the_signal_would_end_is_not_asked(
    files: Stacks, disposition: signal.Handlers
) -> None:
    """One whose dataset has reset SIGUSR1 goes on, and the reason takes its stack's place."""
    signal.signal(signal.SIGUSR1, disposition)
    worker: Any = Writer(files.fd_of(0), b"a stack")
    assert files.read(0, worker) == (
        f"no stack: /proc/{worker.pid}/status shows no handler of SIGUSR1, which asks for it; the "
        "dataset may have taken it away"
    )
    assert worker.asked == []


def test_a_worker_of_which_proc_says_nothing_is_not_asked(files: Stacks) -> None:
    """Without /proc, or where it hides other processes, it is not known what the signal would do."""
    worker: Any = Writer(files.fd_of(0), b"a stack")
    worker.pid = 2**22 + 1  # beyond any process
    assert files.read(0, worker) == (
        "no stack: /proc/4194305/status shows no handler of SIGUSR1, which asks for it; the "
        "dataset may have taken it away"
    )
    assert worker.asked == []


class Resets(Oracle):
    """Resets the signal that asks for a stack, and sleeps."""

    def __getitem__(self, index: int) -> Any:
        """Do so at sample 0."""
        if index == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            time.sleep(FOREVER_S)
        return super().__getitem__(index)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_a_dataset_that_resets_the_signal_lives(method: Any) -> None:
    """The StallError says why there is no stack, and the worker is not ended by it."""
    with ringfeed.Loader(
        Resets(8), batch_size=4, workers=1, backend=method, spec=Oracle.SPEC
    ) as loader:
        batches = iter(loader)
        pid = pids(loader)[0]
        wait_until(lambda: Observer(pool_of(loader)._config.ring).worker(0).inside == 0)
        wait_until(lambda: not stacks._catches_usr1(pid))
        lose_patience(loader, 0.1)
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        first, second, third = str(caught.value).splitlines()
        said = (
            "no batch for 0.1 s: 1 of 1 workers inside dataset[i] (i = 0); raise timeout_s or "
            "look there"
        )
        assert first == said + (FORK_HINT if method == "fork" else "")
        assert second.startswith(f"worker 0 (pid {pid}): inside dataset[0], has been at it for ")
        assert third == (
            f"    no stack: /proc/{pid}/status shows no handler of SIGUSR1, which asks for it; the "
            "dataset may have taken it away"
        )
        assert pids(loader) == [pid]
        assert not pool_of(loader)._roster.workers[0].is_dead()

"""Ctrl-C in a loader's life, and other threads' Popen: slices of interrupts.py, and each defect that it has found."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import interrupts
import ringfeed
from ahead import loader_with
from datasets import Oracle, check, drain
from ringfeed._process import Finalizer
from ringfeed.engine._iterator import BatchIterator
from ringfeed.ring.segment import Segment
from watching import PATIENCE_S, pool_of

PROGRAM = str(Path(interrupts.__file__))


def show(*arguments: str) -> None:
    """Run interrupts.py in a process of its own; what it says is the failure."""
    command = [sys.executable, PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", interrupts.KINDS)
def test_ctrl_c_at_any_moment_leaves_nothing(kind: str) -> None:
    """One Ctrl-C at a random moment of a life leaves no process, descriptor, mapping or thread."""
    show("moments", "--kind", kind, "--hits", "10")


@pytest.mark.long
@pytest.mark.parametrize("kind", interrupts.KINDS)
def test_ctrl_c_at_any_line_leaves_nothing(kind: str) -> None:
    """What an exception at a line of start or close has left, a second close ends, or the garbage collector."""
    show("lines", "--kind", kind, "--most", "12")


def test_loaders_in_many_threads_beside_popen() -> None:
    """Loaders of all kinds that five threads make and drop all end, beside a thread that starts programs."""
    show("threads", "--loaders", "25", "--limit", "400")


# ---- another thread's Popen ----


class Gate(dict[str, str]):
    """An environment for Popen, which reads it once it has made its pipes: it waits there.

    Since Python 3.13 it makes none where posix_spawn() can start the program, which makes no session.
    """

    def __init__(self) -> None:
        super().__init__(os.environ)
        self.reached = threading.Event()
        self.opened = threading.Event()

    def items(self) -> Any:
        """Wait until the gate is opened."""
        self.reached.set()
        assert self.opened.wait(120)
        return super().items()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("captured", [False, True], ids=["no pipes", "its output through a pipe"])
def test_a_forking_loader_does_not_hold_up_another_threads_popen(captured: bool) -> None:  # noqa: FBT001 - a parameter
    """A call of Popen that a fork came in the middle of ends while the forked processes live."""
    gate, output = Gate(), subprocess.PIPE if captured else None
    run = threading.Thread(
        target=subprocess.run,
        args=(["/bin/true"],),
        kwargs={"env": gate, "stdout": output, "start_new_session": True},
    )
    run.daemon = True
    run.start()
    assert gate.reached.wait(120)
    with ringfeed.Loader(Oracle(20), batch_size=4, workers=1, backend="fork") as loader:
        iterator = iter(loader)
        gate.opened.set()
        run.join(PATIENCE_S)
        is_over = not run.is_alive()
        assert drain(iterator) == list(range(20))
    run.join(120)
    assert is_over


class Telling(Oracle):
    """Writes a byte into a pipe for each sample."""

    def __init__(self, length: int, fd: int) -> None:
        super().__init__(length)
        self.fd = fd

    def __getitem__(self, index: int) -> Any:
        os.write(self.fd, b"x")
        return super().__getitem__(index)


@pytest.mark.usefixtures("nothing_left")
def test_a_forked_dataset_keeps_its_pipes() -> None:
    """Only the pipes of a Popen that is under way are closed in forked processes: a dataset's own still work."""
    gate = Gate()
    run = threading.Thread(
        target=subprocess.run,
        args=(["/bin/true"],),
        kwargs={"env": gate, "start_new_session": True},
        daemon=True,
    )
    run.start()
    assert gate.reached.wait(120)
    reader, writer = os.pipe()
    how: Any = {"workers": 1, "backend": "fork", "spec": Oracle.SPEC, "ahead": False}
    with loader_with(Telling(20, writer), batch_size=4, **how) as loader:
        assert drain(loader) == list(range(20))
    gate.opened.set()
    run.join(120)
    os.close(writer)
    assert os.read(reader, 100) == b"x" * 20
    os.close(reader)


class NeverUnpickled(Oracle):
    """Takes for ever to be unpickled."""

    def __reduce__(self) -> Any:
        return eval, ("__import__('time').sleep(1000)",)


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_is_waited_for_no_longer_than_timeout_s() -> None:
    """Where a process that is to fork workers does not get that far, workers are forked that are waited for as ever."""
    loader = ringfeed.Loader(
        NeverUnpickled(20),
        batch_size=4,
        workers=1,
        backend="process",
        spec=Oracle.SPEC,
        timeout_s=1.5,
    )
    with pytest.raises(ringfeed.StallError) as caught:
        next(iter(loader))
    first = str(caught.value).splitlines()[0]
    assert first == "no batch for 1.5 s: no worker inside dataset[i]; raise timeout_s or look there"
    del caught
    loader.close()


# ---- close() ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("then", ["closed again", "dropped", "at the exit"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_close_is_finished(
    then: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ctrl-C has kept close() from is done by another close(), the garbage collector or the exit."""
    loader = ringfeed.Loader(Oracle(20), batch_size=4, workers=workers)
    check(next(iter(loader)))

    def interrupted(_: Segment) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loader.close()
    if then == "closed again":
        loader.close()
        loader.close()
    elif then == "at the exit":
        assert loader._runner.finalizer is not None
        assert loader._runner.finalizer.alive
        loader._runner.finalizer()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("call", [weakref.finalize.__call__, Finalizer._begin])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_dropped_as_ctrl_c_comes(
    workers: int, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C on the first line of the finalizer, or of what it runs, keeps nothing, though Python ignores it there."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_type))
    loader = ringfeed.Loader(Oracle(20), batch_size=4, workers=workers)
    check(next(iter(loader)))

    def interrupt(frame: Any, *_: object) -> None:
        if frame.f_code is call.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    sys.settrace(interrupt)
    del loader
    sys.settrace(None)
    assert lost == [KeyboardInterrupt]


def test_ctrl_c_at_any_line_of_a_finalizers_start_keeps_nothing() -> None:
    """It was not registered, or its call is made when the object has died: else it would keep what it was to end."""
    before, reached, number = {*Finalizer._open}, True, 0
    while reached:
        number += 1
        tracer, subject = interrupts.Tracer(number), Oracle(1)
        with suppress(KeyboardInterrupt), tracer:
            Finalizer(int).watch(subject)
        reached = bool(tracer.where)
        del subject
        Finalizer.finish()
        assert {*Finalizer._open} == before, tracer.where
    assert number > 8


@pytest.mark.usefixtures("nothing_left")
def test_a_wake_after_close_writes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just after a descriptor is closed: a later wake does not write into what has its number now."""
    loader = ringfeed.Loader(Oracle(20), batch_size=4, workers=1)
    check(next(iter(loader)))
    pool: Any = pool_of(loader)
    number = pool._wake_fd if isinstance(pool._wake_fd, int) else pool._wake_fd.fileno()
    close = os.close

    def interrupted(fd: int) -> None:
        close(fd)
        if fd == number:
            raise KeyboardInterrupt

    hook = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", interrupted)
        with suppress(KeyboardInterrupt):
            loader.close()
    monkeypatch.setattr(threading, "excepthook", hook)
    mine = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(mine, number)
    pool.request_stop()
    loader.close()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(mine)
    close(number)
    if mine != number:
        close(mine)


# ---- an iterator, and a fork, that did not get far ----


def test_an_iterator_that_was_never_begun_goes_quietly() -> None:
    """An iterator whose __init__() Ctrl-C has ended breaks no epoch off."""
    BatchIterator.__new__(BatchIterator).__del__()


@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c_in_a_fork_blocks_no_signals() -> None:
    """Wherever Ctrl-C comes in the start of a forking loader, this thread takes signals afterwards."""
    draw = random.Random(7)  # noqa: S311 - no secret
    for _ in range(10):
        interrupts.interrupt_start("fork", draw.randrange(1, 250))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()

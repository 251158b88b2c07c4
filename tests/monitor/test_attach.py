"""`ringfeed.tools.discover`: the loaders of another process, found and looked at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import ringfeed
from ringfeed.tools import discover as attach
from ringfeed.tools.discover import Attached, Target, processes
from trainer import Trainer
from watching import run_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

OPEN = (
    'loader = ringfeed.Loader(Oracle(96), batch_size=4, workers=2, backend="thread", slots=3); '
    "batches = iter(loader)"
)
MORE = "more = ringfeed.Loader(Oracle(96), batch_size=8, workers=0, slots=2); next(iter(more))"


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    """A process that trains."""
    with Trainer() as found:
        yield found


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_is_looked_at(trainer: Trainer) -> None:
    """Its geometry, the batch that it holds, those that are ready, and its worker threads."""
    trainer.do(OPEN)
    trainer.do("held = next(batches)")
    with Target(trainer.pid) as target:
        (loader,) = target.loaders()
        assert (
            loader.number,
            loader.observer.geometry.slots,
            loader.observer.geometry.rows,
            loader.observer.geometry.workers,
        ) == (1, 3, 4, 2)
        wait_until(
            lambda: (
                sorted(slot.state for slot in loader.observer.snapshot().slots)
                == ["held", "ready", "ready"]
            )
        )
        look = loader.observer.snapshot()
        assert (look.consumer.batches, look.consumer.samples, look.consumer.open_slots) == (1, 4, 3)
        assert not look.consumer.stopped
        assert {slot.batch: slot.rows for slot in look.slots} == {0: 4, 1: 4, 2: 4}
        held = next(slot for slot in look.slots if slot.state == "held")
        assert (held.batch, held.over, 0 < held.held_ns < look.at_ns) == (0, 0, True)
        assert sum(worker.samples for worker in look.workers) == 12
        assert [worker.pid for worker in look.workers] == [0] * 4
        assert " -c import gc, os, sys, time import ringfeed" in " ".join(target.command.split())
        assert 1 <= target.cpus() <= (os.cpu_count() or 1)


@pytest.mark.usefixtures("nothing_left")
def test_loaders_keep_their_numbers(trainer: Trainer) -> None:
    """Each keeps its first number, also when another one is closed; a new one has the next.

    Another descriptor of the same control block is no other loader, nor does it keep one running.
    """
    trainer.do(OPEN)
    trainer.do(MORE)
    with Target(trainer.pid) as target:
        assert [(loader.number, loader.observer.geometry.rows) for loader in target.loaders()] == [
            (1, 4),
            (2, 8),
        ]
        second = target.loaders()[1]
        trainer.do("copy = os.dup(loader._runner.engine.segment.control_fd)")
        assert len(target.loaders()) == 2
        trainer.do("loader.close()")
        assert target.loaders() == [second]
        trainer.do(OPEN)
        assert sorted(loader.number for loader in target.loaders()) == [2, 3]
        trainer.do("loader.close(); more.close()")
        assert target.loaders() == []
        assert second.observer.snapshot().consumer.stopped


@pytest.mark.usefixtures("nothing_left")
def test_worker_processes(trainer: Trainer) -> None:
    """They are known by their pids; one that dies is replaced."""
    trainer.do(
        "loader = ringfeed.Loader(Oracle(96), batch_size=4, workers=1, slots=2); batches = "
        "iter(loader)"
    )
    trainer.do("held = next(batches)")
    with Target(trainer.pid) as target:
        (loader,) = target.loaders()
        (pid,) = {worker.pid for worker in loader.observer.snapshot().workers} - {0}
        trainer.do(f"import signal; os.kill({pid}, signal.SIGKILL)")
        wait_until(
            lambda: (
                {worker.pid for worker in loader.observer.snapshot().workers} - {0, pid} != set()
            )
        )


@pytest.mark.usefixtures("nothing_left")
def test_the_end_of_the_process() -> None:
    """It is waited for, and what is attached to can still be looked at, until it is let go of."""
    with Trainer() as trainer, Target(trainer.pid) as target:
        trainer.do(OPEN)
        (loader,) = target.loaders()
        assert not target.wait(0.01)
        trainer.begin("os.kill(os.getpid(), 9)")
        assert target.wait(120)
        assert target.loaders() == []
        assert loader.observer.snapshot().consumer.batches == 0


@pytest.mark.usefixtures("nothing_left")
def test_looking_changes_nothing(trainer: Trainer) -> None:
    """While it is looked at as often as can be, an epoch delivers what it does otherwise."""
    trainer.do(OPEN)
    with Target(trainer.pid) as target:
        (loader,) = target.loaders()
        trainer.begin("print(drain(batches) == list(range(96)))")
        while loader.observer.snapshot().consumer.batches < 24:
            assert not target.wait(0)
        assert trainer.await_done() == "True\n"


# ---- who has loaders ----


@pytest.mark.usefixtures("nothing_left")
def test_the_processes_that_have_loaders(trainer: Trainer) -> None:
    """Each with its number of loaders; a forked process has the descriptors, and no loader."""
    assert trainer.pid not in {pid for pid, _, _ in processes()}
    trainer.do(OPEN)
    trainer.do(MORE)
    child = int(trainer.do("child = os.fork() or time.sleep(600) or os._exit(0); print(child)"))
    try:
        found = {pid: (count, command) for pid, count, command in processes()}
        assert child not in found
        count, command = found[trainer.pid]
        assert count == 2
        assert "import ringfeed from datasets import *" in " ".join(command.split())
    finally:
        trainer.do("os.kill(child, 9); os.waitpid(child, 0)")


# ---- refusals ----


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31 - 1, 2**70])
def test_no_such_process(pid: int) -> None:
    """A number that no process has is named."""
    with pytest.raises(ringfeed.RingfeedError) as caught:
        Target(pid)
    assert str(caught.value) == (
        f"there is no process {pid}; `ringfeed top` alone lists those that have a running loader"
    )


AS_ANOTHER = """
import os
from ringfeed.tools.discover import Target, processes
from ringfeed.errors import RingfeedError
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    with Target({pid}) as target:
        target.loaders()
except RingfeedError as error:
    print(error)
print(processes())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("nothing_left")
def test_another_users_process(trainer: Trainer) -> None:
    """What the kernel refuses is said in words, and not listed."""
    trainer.do(OPEN)
    text = (
        f"process {trainer.pid} may not be looked at: it belongs to another user, or hides from "
        "its own\n[]\n"
    )
    assert run_script(AS_ANOTHER.format(pid=trainer.pid)) == (text, "", 0)


@pytest.mark.usefixtures("nothing_left")
def test_a_block_of_another_version(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> None:
    """A control block that cannot be read is no loader, and why is kept; the others are found."""
    trainer.do(OPEN)
    trainer.do(MORE)
    refused = []

    class Picky(Attached):
        def __init__(self, number: int, fd: int) -> None:
            if not refused:
                refused.append(os.fstat(fd).st_ino)
            if os.fstat(fd).st_ino in refused:
                message = "another version"
                raise ValueError(message)
            super().__init__(number, fd)

    monkeypatch.setattr(attach, "Attached", Picky)
    with Target(trainer.pid) as target:
        assert [(loader.number, loader.observer.geometry.rows) for loader in target.loaders()] == [
            (1, 8)
        ]
        assert target.refusal == "another version; run the ringfeed of its own environment"


@pytest.mark.usefixtures("nothing_left")
def test_a_block_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> None:
    """A control block of somebody else is no loader; the kernel's refusal is kept."""
    trainer.do(OPEN)

    def refuse(path: str, _: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    with Target(trainer.pid) as target:
        monkeypatch.setattr(attach.os, "open", refuse)
        assert target.loaders() == []
        monkeypatch.undo()
        assert target.refusal.startswith("[Errno 13] Permission denied: '/proc/")
        assert [loader.number for loader in target.loaders()] == [1]

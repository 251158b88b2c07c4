"""A stuck worker's stack is read through a file of its own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from ringfeed import stacks
from ringfeed.stacks import Stacks

if TYPE_CHECKING:
    from collections.abc import Iterator


class Writer:
    """Stands in for a worker process; writes when it is asked."""

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
    yield found
    found.close()


@pytest.mark.usefixtures("nothing_left")
def test_the_stack_is_the_newest(files: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack replaces the one before, also where it is shorter."""
    monkeypatch.setattr(stacks, "WRITING_S", 60.0)  # it ends as soon as the text stays the same
    for text in (b"a long stack of many lines", b"short \xff"):
        worker: Any = Writer(files.fd_of(3), text)
        assert files.read(3, worker) == text.decode(errors="replace")
        assert worker.asked == [signal.SIGUSR1]


def test_a_worker_that_does_not_answer(files: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot even write its stack is not waited for."""
    monkeypatch.setattr(stacks, "WRITING_S", 0.05)
    worker: Any = Writer(files.fd_of(0), b"")
    assert files.read(0, worker) == ""


def test_each_worker_has_its_own_file(files: Stacks) -> None:
    """Two ids never share a file; one keeps its own."""
    assert files.fd_of(0) != files.fd_of(1)
    assert files.fd_of(0) == files.fd_of(0)

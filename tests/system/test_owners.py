"""Descriptors and child processes that end with the last reference to their owner."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

import leftovers
from ringfeed._process import Finalizer
from ringfeed.system import _system
from ringfeed.system._system import Child, Descriptor
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("nothing_left")
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


def is_open(fd: int) -> bool:
    """Whether a number is a descriptor's."""
    return Path(f"/proc/self/fd/{fd}").is_symlink()


def sleeper() -> NoReturn:
    """Sleep, in a forked process."""
    while True:
        time.sleep(1000)


def test_a_descriptor_closes_with_the_last_reference_to_it() -> None:
    """It is open for as long as it is referred to."""
    descriptor = Descriptor(os.memfd_create, "ringfeed-test", os.MFD_CLOEXEC)
    fd = descriptor.fileno()
    assert is_open(fd)
    del descriptor
    assert not is_open(fd)


def test_a_descriptor_is_closed_once() -> None:
    """A second close() does not close what has its number by then."""
    with Descriptor(os.eventfd, 0) as descriptor:
        fd = descriptor.fileno()
    assert descriptor.fileno() == -1
    other = os.dup(0)
    assert other == fd
    descriptor.close()
    del descriptor
    assert is_open(other)
    os.close(other)


def test_a_detached_descriptor_is_the_callers() -> None:
    """What was detached stays open."""
    fd = Descriptor(os.eventfd, 0).detach()
    assert is_open(fd)
    os.close(fd)


def test_a_call_that_fails_owns_nothing() -> None:
    """The error of the call comes out."""
    with pytest.raises(FileNotFoundError):
        Descriptor(os.open, "/no/such/file", os.O_RDONLY)


def test_received_descriptors_close_by_themselves() -> None:
    """What a message brings is owned before Python sees it."""
    ours, theirs = _system.socket_pair()
    with ours, theirs, Descriptor(os.eventfd, 0) as sent:
        _system.send(ours.fileno(), b"hello", (sent.fileno(),) * 3)
        packet, received, truncated = _system.receive(theirs.fileno())
        assert (packet, len(received), truncated) == (b"hello", 3, False)
        fds = [descriptor.fileno() for descriptor in received]
        assert all(map(is_open, fds))
        assert not any(map(os.get_inheritable, fds))
        del received
        assert not any(map(is_open, fds))
        with pytest.raises(BlockingIOError):
            _system.receive(theirs.fileno())


def test_too_many_descriptors_for_a_message() -> None:
    """The kernel's limit is an error before anything is sent."""
    ours, theirs = _system.socket_pair()
    with (
        ours,
        theirs,
        pytest.raises(ValueError, match=r"^251 descriptors in one message, at most 250$"),
    ):
        _system.send(ours.fileno(), b"hello", (0,) * 251)


def test_a_forked_process_closes_all_but_what_it_is_given() -> None:
    """`close_others` leaves the descriptors that are named, and those that are not ours."""
    kept, other = _system.pipe()
    foreign, report = os.pipe()

    def look() -> None:
        fds = (kept.fileno(), other.fileno(), foreign)
        _system.close_others(kept)
        os.write(report, bytes(map(is_open, fds)))

    child = Child(_system.fork, look)
    assert child.wait() == 1
    assert os.read(foreign, 9) == bytes([True, False, True])
    os.close(foreign)
    os.close(report)


def test_a_child_ends_with_the_last_reference_to_it() -> None:
    """It is killed and waited for, and what it has started with it."""
    child = Child(os.posix_spawn, "/bin/sh", ["sh", "-c", "sleep 1000"], os.environ, setsid=True)
    pid = child.pid
    assert leftovers.runs(pid)
    del child
    assert not Path(f"/proc/{pid}").exists()


def test_a_child_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for its pidfd it does not stay."""

    def full(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="Too many open files"):
        Child(_system.fork, sleeper)


def test_a_child_is_waited_for_once() -> None:
    """Its exit code is told to the first."""
    child = Child(os.posix_spawn, "/bin/sh", ["sh", "-c", "exit 7"], os.environ)
    select.select([child.pidfd], [], [], 120)
    assert [child.wait(), child.wait()] == [7, None]


def test_a_forked_copy_of_an_owner_ends_nothing() -> None:
    """In a forked process the parent's children are not its own to end."""
    owners = [Child(_system.fork, sleeper)]
    copy = Child(_system.fork, owners.clear)
    assert copy.wait() == 1
    assert leftovers.runs(owners[0].pid)


def test_a_fork_leaves_the_signal_mask_alone() -> None:
    """In the parent it is what it was; in the child all are blocked, until the body lets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    reader, writer = os.pipe()
    blocked = lambda: os.write(  # noqa: E731
        writer, bytes([signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])])
    )
    child = Child(_system.fork, blocked)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert os.read(reader, 1) == b"\1"
    os.close(reader)
    os.close(writer)
    child.wait()


def test_threads_own_descriptors_side_by_side() -> None:
    """Each is closed once, and the list of all stays whole: also in Python without the GIL."""
    over = threading.Event()
    fds: list[int] = []

    def own() -> None:
        while not over.is_set():
            owned = [Descriptor(os.eventfd, 0) for _ in range(20)]
            ours, theirs = _system.socket_pair()
            del owned, ours, theirs

    def detach(descriptor: Descriptor, start: threading.Barrier) -> None:
        start.wait(PATIENCE_S)
        fds.append(descriptor.detach())

    owners = [threading.Thread(target=own, daemon=True) for _ in range(3)]
    for thread in owners:
        thread.start()
    for _ in range(200):
        start, descriptor = threading.Barrier(4), Descriptor(os.eventfd, 0)
        several = [threading.Thread(target=detach, args=(descriptor, start)) for _ in range(4)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join(PATIENCE_S)
        assert sorted(fds)[:-1] == [-1] * 3, "a number was given to two"
        os.close(max(fds))
        fds.clear()
    over.set()
    for thread in owners:
        thread.join(PATIENCE_S)
    # A forked process goes through the list of all, and closes them.
    with Descriptor(os.eventfd, 0) as one, Descriptor(os.eventfd, 0) as other:
        numbers = one.fileno(), other.fileno()

        def look() -> NoReturn:
            _system.close_others(other)
            os._exit(is_open(numbers[0]) + 2 * is_open(numbers[1]))

        assert _system.wait_for(_system.fork(look)) == 2


@pytest.mark.parametrize(
    "act",
    [Descriptor().close, partial(Finalizer._open.pop, None, None)],
    ids=["descriptors", "finalizers"],
)
def test_a_forked_child_waits_for_no_thread_of_its_parent(act: Callable[[], object]) -> None:
    """It closes what it has beside threads that do so, too: without the GIL each waits for the others."""
    over = threading.Event()
    own = Descriptor(os.eventfd, 0)

    def close() -> None:
        while not over.is_set():
            for _ in range(100):
                act()

    def leave() -> NoReturn:
        own.close()
        os._exit(0)

    threads = [threading.Thread(target=close, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20 if HAS_GIL else 300):
            child = Child(_system.fork, leave)
            assert select.select([child.pidfd], [], [], PATIENCE_S)[0], "the child hangs"
            assert child.wait() == 0
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)

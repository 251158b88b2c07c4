"""`ringfeed.monitor._snapshot`: a control block looked at from outside.

The C tests place the states beneath.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import Observer
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Array, Spec
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAN = make_plan(Spec(Array((8,), "int32")), 4, 4, workers=2, slots=3)
NONE = "this is no loader of this version of ringfeed: seals, magic, ABI or sizes differ"
FREE = ("free", 0, 0, 0, 0, 0, 0, 0)
IDLE = (0, None, 0, 0, 0, 0, 0, 0, 0, 0, False)


@pytest.fixture
def made() -> Iterator[Segment]:
    """A fresh segment of 3 slots of 4 rows, for two workers, which its maker has opened."""
    segment = Segment(PLAN.sizes)
    segment.open()
    yield segment
    segment.close()


def look_at(segment: Segment) -> Observer:
    """Return a look through a descriptor that is open for reading only, and closed again."""
    fd = os.open(f"/proc/self/fd/{segment.control_fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Observer(fd)
    finally:
        os.close(fd)


@pytest.mark.usefixtures("nothing_left")
def test_a_fresh_ring(made: Segment) -> None:
    """All is free and idle before there is a consumer, and the geometry is the plan's."""
    watch = look_at(made)
    fields_size = PLAN.layout.failures_at
    assert watch.geometry == (3, PLAN.layout.slot_size, fields_size, 4, 2)
    assert watch.slots() == (FREE,) * 3
    assert watch.workers() == (IDLE,) * 4
    assert watch.consumer() == (0, 0, 0, 0, 0, False)


@pytest.mark.usefixtures("nothing_left")
def test_a_batch_on_its_way(made: Segment) -> None:
    """A batch is seen filling, ready, held and gone; its worker at its row, and after it."""
    watch, ring = look_at(made), made.open()
    ring.become_consumer(8, 3)
    ring.note_pid(1, 4711)
    ends = [_ring.WorkerEnd(ring, number) for number in range(2)]
    ring.plan(np.arange(4, dtype=np.int64), 4, 5, 0)
    assert ends[1].claim(0) == _ring.TAKEABLE
    assert watch.slots()[0] == ("filling", 0, 5, 4, 2, 1, 0, 0)
    pid, inside, since_ns, *_, tickets, timed, read_ns, write_ns, leave = watch.workers()[1]
    assert (pid, inside, tickets, timed, read_ns, write_ns, leave) == (
        4711,
        None,
        1,
        0,
        0,
        0,
        False,
    )
    assert 0 < since_ns <= _ring.now_ns()
    ends[1].publish()
    assert watch.slots()[0][4:7] == (2, 0, 1)
    assert ends[0].claim(0) == _ring.TAKEABLE
    ends[0].publish()
    assert watch.slots()[0][0] == "ready"
    assert [worker[5] for worker in watch.workers()] == [2, 2, 0, 0]
    for workers in (watch.workers(), Observer(ring).workers()):
        assert (sum(one.samples for one in workers), sum(one.tickets for one in workers)) == (4, 2)
    assert watch.workers()[1][2] == 0
    lease = ring.take()
    ring.note_stall(77)
    held = watch.slots()[0]
    assert held[0] == "held"
    assert since_ns < held[-1] <= _ring.now_ns()
    assert watch.consumer() == (1, 4, 77, 0, 3, False)
    del lease
    assert watch.slots()[0][0] == "free"
    ring.set_open(1)
    ring.retire(1)
    ring.stop()
    assert [slot[0] for slot in watch.slots()] == ["free", "parked", "parked"]
    assert watch.workers()[1][-1] is True
    assert watch.consumer()[4:] == (1, True)


@pytest.mark.usefixtures("nothing_left")
def test_a_wait_under_way(made: Segment) -> None:
    """A wait is seen from its beginning until it is counted, however often one looks."""
    watch, ring = look_at(made), made.open()
    ring.become_consumer(8, 3)
    ring.plan(np.arange(4, dtype=np.int64), 4, 0, 0)
    began_ns = _ring.now_ns()
    assert ring.wait(10**6) == _ring.PENDING
    since_ns = watch.consumer()[3]
    assert began_ns <= since_ns <= _ring.now_ns()
    assert ring.wait(10**6) == _ring.PENDING
    assert watch.consumer()[3] == since_ns
    ring.note_stall(10**6)
    assert watch.consumer()[2:4] == (10**6, 0)


@pytest.mark.usefixtures("nothing_left")
def test_it_is_mapped_for_reading_only(made: Segment) -> None:
    """The mapping cannot be written, and goes with the object."""

    def rights() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return [line.split()[1] for line in lines if "/memfd:ringfeed-control" in line]

    before = rights()
    watch = look_at(made)
    assert sorted(rights()) == sorted([*before, "r--s"])
    del watch
    assert rights() == before


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", ["pipe", "file", "unsealed", "empty", "zeros", "slots", "longer"])
def test_what_is_no_control_block(made: Segment, tmp_path: Path, kind: str) -> None:
    """Whatever else a descriptor is open on is refused, and nothing of it is mapped."""
    size = made.control_size
    if kind == "pipe":
        fds = os.pipe()
    elif kind == "file":
        fds = (os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT),)
        os.ftruncate(fds[0], size)
    elif kind == "unsealed":
        fds = (os.memfd_create("ringfeed-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING),)
        os.pwrite(fds[0], os.pread(made.control_fd, size, 0), 0)
    elif kind == "slots":
        fds = (os.dup(made.slots_fd),)
    else:
        fds = (
            reserve(
                "ringfeed-test", {"empty": 1, "zeros": size, "longer": size + 4096}[kind]
            ).detach(),
        )
        if kind == "longer":
            os.pwrite(fds[0], os.pread(made.control_fd, size, 0), 0)
    with pytest.raises(ValueError, match="no loader") as caught:
        Observer(fds[0])
    assert str(caught.value) == NONE
    for fd in fds:
        os.close(fd)


@pytest.mark.usefixtures("nothing_left")
def test_a_closed_descriptor(made: Segment) -> None:
    """A descriptor that is no more is said to be none."""
    fd = os.dup(made.control_fd)
    os.close(fd)
    with pytest.raises(OSError, match="descriptor") as caught:
        Observer(fd)
    assert caught.value.errno == errno.EBADF


@pytest.mark.usefixtures("nothing_left")
def test_rubbish_in_the_memory(made: Segment) -> None:
    """Whatever is written over an open block, it has as many slots and workers as before."""
    watch = look_at(made)
    for rubbish in (b"\xff", b"\x5a", b"\x00"):
        os.pwrite(made.control_fd, rubbish * made.control_size, 0)
        assert [slot[0] for slot in watch.slots()] == ["free"] * 3
        assert all(
            slot[4] <= PLAN.layout.cells and slot[5] + slot[6] <= PLAN.layout.cells
            for slot in watch.slots()
        )
        assert len(watch.workers()) == 4
        assert len(watch.consumer()) == 6
    assert watch.geometry[0] == 3

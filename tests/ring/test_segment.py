"""The segment: sealed, reserved, without a name."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import leftovers
import ringfeed
from ringfeed._units import show_bytes
from ringfeed.engine.plan import make_plan
from ringfeed.monitor._snapshot import Observer
from ringfeed.ring import segment
from ringfeed.ring.mapping import open_ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Array, Spec
from ringfeed.system.machine import show_limit
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAN = make_plan(Spec(Array((8,), "int32")), 4, 4, workers=1, slots=2)


@pytest.mark.usefixtures("nothing_left")
def test_it_has_no_name_and_its_size_is_sealed() -> None:
    """Nothing appears in /dev/shm, no child inherits it by exec, and nobody can cut it short."""
    before = leftovers.present()
    made = Segment(PLAN.sizes)
    assert [left for left in leftovers.since(before, 0) if left.startswith("/dev/shm")] == []
    for fd in (made.control_fd, made.slots_fd):
        assert not os.get_inheritable(fd)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) == 6
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    made.close()
    made.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_mapping_outlives_the_descriptors() -> None:
    """open() gives a ring that works after close()."""
    made = Segment(PLAN.sizes)
    ring = made.open()
    made.close()
    ring.become_consumer(4, 3)
    assert Observer(ring).states() == ["free", "free"]


@pytest.mark.usefixtures("nothing_left")
def test_every_page_is_there_before_it_is_written() -> None:
    """What is reserved has all its blocks, is zero and private, and keeps its size."""
    memfd = reserve("ringfeed-test", 100_000)
    fd = memfd.fileno()
    found = os.fstat(fd)
    assert found.st_blocks * 512 >= found.st_size == 100_000
    assert found.st_mode & 0o777 == 0o600
    assert os.pread(fd, 100_001, 0) == bytes(100_000)
    for size in (99_999, 100_001):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    memfd.close()


# ---- who attaches to what ----


@pytest.fixture
def made() -> Iterator[Segment]:
    """Return a fresh segment, which its maker has opened."""
    segment = Segment(PLAN.sizes)
    segment.open()
    yield segment
    segment.close()


NO_SEGMENT = "this is no segment of this version of ringfeed: magic, ABI or sizes differ"
UNSEALED = (
    "this is no segment of ringfeed: its size is not sealed, so that reading it could be a SIGBUS"
)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (0, "Q"),
        *((place, "I") for place in range(8, 36, 4)),
        *((place, "Q") for place in range(40, 72, 8)),
    ],
    ids=[
        "magic",
        "ABI",
        "size",
        "slots",
        "cells",
        "workers",
        "rows",
        "ids",
        "slot",
        "indices",
        "marks",
        "failures",
    ],
)
def test_a_header_of_another_version(made: Segment, place: int, kind: str) -> None:
    """A field that differs, by little or by much, is refused; put right again, it is taken."""
    size = struct.calcsize(kind)
    (before,) = struct.unpack(kind, os.pread(made.control_fd, size, place))
    little = before + 1 if place < 16 else 2 * before + 1_000_000 * 8
    for wrong in (0, little, 2 ** (8 * size) - 1):
        if wrong == before or (wrong == 0 and place >= 48):
            continue  # an offset of 0 is as good as another
        os.pwrite(made.control_fd, struct.pack(kind, wrong), place)
        with pytest.raises(ValueError, match="no segment") as caught:
            open_ring(made.control_fd, made.slots_fd, made.sizes)
        assert str(caught.value) == NO_SEGMENT, wrong
    os.pwrite(made.control_fd, struct.pack(kind, before), place)
    assert open_ring(made.control_fd, made.slots_fd, made.sizes).slots == 2


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "change", [(-4096, 0), (4096, 0), (0, 4096), (0, -4096), (1 << 30, 0), (0, 1 << 40)]
)
def test_sizes_that_are_not_those_of_the_files(made: Segment, change: tuple[int, int]) -> None:
    """Sizes other than the files have, or the header says, are refused before the mapping."""
    control, slots = (size + more for size, more in zip(made.sizes, change, strict=True))
    with pytest.raises(ValueError, match="no segment") as caught:
        open_ring(made.control_fd, made.slots_fd, (control, slots))
    assert str(caught.value) == NO_SEGMENT


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("which", ["control", "slots"])
@pytest.mark.parametrize("kind", ["file", "pipe", "unsealed memfd", "empty memfd", "another memfd"])
def test_what_is_no_segment(made: Segment, tmp_path: Path, kind: str, which: str) -> None:
    """A file, a pipe, a memfd not sealed or too short, and a zero header are refused."""
    size = made.sizes[which == "slots"]
    fds = _no_segment(kind, size, tmp_path)
    control, slots = (fds[0], made.slots_fd) if which == "control" else (made.control_fd, fds[0])
    # Slots have no header: they are all zero at first.
    good = kind == "another memfd" and which == "slots"
    with suppress(ValueError) if good else pytest.raises(ValueError, match="no segment") as caught:
        open_ring(control, slots, made.sizes)
    if not good:
        assert str(caught.value) == (
            UNSEALED if kind in {"file", "pipe", "unsealed memfd"} else NO_SEGMENT
        )
    for fd in fds:
        os.close(fd)


def _no_segment(kind: str, size: int, place: Path) -> tuple[int, ...]:
    """Return a descriptor of something else, and those to close with it."""
    if kind == "pipe":
        return os.pipe()
    if kind == "file":
        fd = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    elif kind == "unsealed memfd":
        fd = os.memfd_create("ringfeed-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        return (reserve("ringfeed-test", size if kind == "another memfd" else 1).detach(),)
    os.ftruncate(fd, size)
    return (fd,)


@pytest.mark.usefixtures("nothing_left")
def test_a_closed_descriptor() -> None:
    """A descriptor that is no more is refused like any other thing that is no segment."""
    made = Segment(PLAN.sizes)
    fds = made.control_fd, made.slots_fd
    made.close()
    with pytest.raises(ValueError, match="no segment") as caught:
        open_ring(*fds, made.sizes)
    assert str(caught.value) == UNSEALED


# ---- what is missing ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_is_a_plan_error(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """What the kernel refuses to reserve is a PlanError with the size, and nothing is left."""

    def refuse(*_: object) -> None:
        raise OSError(code, "no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ringfeed.PlanError) as caught:
        reserve("ringfeed-test", 2 * 10**6)
    assert (
        str(caught.value)
        == "cannot reserve 2.0 MB of shared memory: no room; use fewer slots, or memory="
    )


@pytest.mark.usefixtures("nothing_left")
def test_without_memfds_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses memfd_create is named."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(ringfeed.PlanError) as caught:
        Segment(PLAN.sizes)
    assert str(caught.value) == (
        "cannot create shared memory: memfd_create: Function not implemented; ringfeed needs "
        "Linux 3.17 or newer, and a container whose seccomp profile allows memfd_create"
    )


@pytest.mark.usefixtures("nothing_left")
def test_without_a_descriptor_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no descriptor is left, the limit is named."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(ringfeed.PlanError) as caught:
        reserve("ringfeed-test", 4096)
    assert str(caught.value) == (
        "cannot create shared memory: memfd_create: Too many open files; raise RLIMIT_NOFILE "
        "(ulimit -n), or close what keeps descriptors open"
    )


@pytest.mark.usefixtures("nothing_left")
def test_what_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the address space is used up, nothing of the segment is left."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(segment._ring, "Ring", refuse)
    made = Segment(PLAN.sizes)
    with pytest.raises(ringfeed.PlanError) as caught:
        made.open()
    made.close()
    assert str(caught.value) == (
        f"cannot map {show_bytes(sum(made.sizes))} of shared memory: Cannot allocate memory; "
        f"RLIMIT_AS (ulimit -v) is {show_limit(resource.RLIMIT_AS)}; raise it, use fewer slots, or "
        "memory="
    )


def test_large_slots_lie_where_huge_pages_can() -> None:
    """All of the memory is there and empty, and begins where a huge page would."""
    spec = Spec(Array((1 << 20,), "uint8"))
    found = Segment(make_plan(spec, 3, 3, workers=1, slots=3).sizes)
    try:
        ring = found.open()
        assert ring.address % (2 << 20) == 0
        assert os.fstat(found.slots_fd).st_blocks * 512 == found.slots_size
        with mmap.mmap(found.slots_fd, found.slots_size) as memory:
            assert not any(memory[:])
    finally:
        found.close()

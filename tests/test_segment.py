"""The segment: sealed, reserved, without a name."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

import ringfeed
from ringfeed import segment
from ringfeed.plan import make_plan
from ringfeed.segment import Segment, reserve
from ringfeed.spec import Array, Spec

PLAN = make_plan(Spec(Array((8,), "int32")), 4, 4, workers=1, slots=2)


@pytest.mark.usefixtures("nothing_left")
def test_it_has_no_name_and_its_size_is_sealed() -> None:
    """Nothing appears in /dev/shm, no child inherits it by exec, and nobody can cut it short."""
    before = set(Path("/dev/shm").iterdir())
    made = Segment(PLAN)
    assert set(Path("/dev/shm").iterdir()) == before
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
    made = Segment(PLAN)
    ring = made.open()
    made.close()
    ring.become_consumer(4, 3)
    assert ring.slot_states() == ["free", "free"]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_is_a_plan_error(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """What the kernel refuses to reserve is a PlanError with the size, and nothing is left."""

    def refuse(*_: object) -> None:
        raise OSError(code, "no room")

    monkeypatch.setattr(segment.os, "posix_fallocate", refuse)
    with pytest.raises(ringfeed.PlanError) as caught:
        reserve("ringfeed-test", 2 * 10**6)
    assert str(caught.value) == "cannot reserve 2.0 MB of shared memory: no room; use fewer slots, or memory="


@pytest.mark.usefixtures("nothing_left")
def test_without_memfds_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses memfd_create is named."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(segment.os, "memfd_create", refuse)
    with pytest.raises(ringfeed.PlanError) as caught:
        Segment(PLAN)
    assert str(caught.value) == "cannot create shared memory: memfd_create: Function not implemented"

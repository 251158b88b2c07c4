"""What made-up machines allow: memory, cgroups of both versions, descriptors, threads."""

from __future__ import annotations

import errno
import os
import resource
import threading
from typing import TYPE_CHECKING

import pytest

import ringfeed
from ringfeed.monitor.free_memory import free_memory
from ringfeed.system import machine as limits

if TYPE_CHECKING:
    from pathlib import Path

ONE = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
TWO = "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


class Machine:
    """A folder with the files of /proc and /sys that are asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    5000 kB\n")

    def write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def belongs_to(self, cgroup: str, *mounts: str) -> None:
        """Be in these cgroups, seen through these mounts."""
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", "\n".join(mounts))

    def limit_one(self, folder: str, limit: int, usage: int, cache: int = 0) -> None:
        """Limit a cgroup of version 1."""
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        self.write(
            f"{folder}/memory.stat", f"total_inactive_file {cache}\ntotal_active_file {cache}\n"
        )

    def limit_two(self, folder: str, limit: str, usage: int, high: str = "max") -> None:
        """Limit a cgroup of version 2, which has 30 bytes that can be taken back."""
        self.write(f"{folder}/memory.max", f"{limit}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        self.write(f"{folder}/memory.current", f"{usage}\n")
        self.write(
            f"{folder}/memory.stat",
            "anon 500\ninactive_file 10\nactive_file 15\nslab_reclaimable 5\n",
        )

    def free(self) -> list[tuple[int, str]]:
        """Return what is free, with the folders as this machine has them.

        The machine itself comes first.
        """
        found = [
            (size, whose.replace(str(self.root), "")) for size, whose in free_memory(self.root)
        ]
        assert found[0] == (5_120_000, "the machine has")
        return found[1:]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without any cgroup."""
    return Machine(tmp_path)


def test_without_cgroups(machine: Machine) -> None:
    """What /proc/meminfo says is all."""
    assert machine.free() == []


def test_a_cgroup_of_version_2_and_all_around_it(machine: Machine) -> None:
    """Each limit counts, less what is used, and more what the kernel would take back."""
    machine.belongs_to("0::/a.slice/b\n", TWO)
    machine.limit_two("sys/fs/cgroup/a.slice/b", "1000", 700)
    machine.limit_two("sys/fs/cgroup/a.slice", "max", 700, high="900")
    machine.limit_two("sys/fs/cgroup", "max", 9)
    assert machine.free() == [
        (330, "its cgroup (/sys/fs/cgroup/a.slice/b/memory.max) has"),
        (230, "its cgroup (/sys/fs/cgroup/a.slice/memory.high) has"),
    ]


def test_a_cgroup_of_version_1_beside_an_empty_version_2(machine: Machine) -> None:
    """A hybrid system limits memory by version 1.

    Other controllers are none of our business, and 2**60 is no limit.
    """
    machine.belongs_to(
        "5:cpu:/c\n4:hugetlb,memory:/m/n\n0::/\n", ONE, TWO.replace("/cgroup ", "/cgroup/unified ")
    )
    machine.limit_one("sys/fs/cgroup/memory/m/n", 2000, 500, cache=5)
    machine.limit_one("sys/fs/cgroup/memory/m", 1900, 500)
    machine.limit_one("sys/fs/cgroup/memory", 2**60, 600)
    machine.limit_one("sys/fs/cgroup/memory/c", 1, 1)
    assert machine.free() == [
        (1510, "its cgroup (/sys/fs/cgroup/memory/m/n/memory.limit_in_bytes) has"),
        (1400, "its cgroup (/sys/fs/cgroup/memory/m/memory.limit_in_bytes) has"),
    ]


@pytest.mark.parametrize(
    ("cgroup", "outermost", "folder"),
    [
        ("/", "/", ""),  # a namespace of its own
        ("/docker/1f", "/docker/1f", ""),  # none, and its own cgroup mounted
        ("/docker/1f/job", "/docker/1f", "/job"),
        ("/../other", "/", ""),  # the process is outside the namespace
        ("/elsewhere", "/docker/1f", ""),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container(
    machine: Machine, version: int, cgroup: str, outermost: str, folder: str
) -> None:
    """The limit of a container is found, whether or not its cgroups have a namespace."""
    mount = (ONE if version == 1 else TWO).replace(" / ", f" {outermost} ", 1)
    machine.belongs_to(f"4:memory:{cgroup}\n" if version == 1 else f"0::{cgroup}\n", mount)
    place = "/sys/fs/cgroup/memory" if version == 1 else "/sys/fs/cgroup"
    if version == 1:
        machine.limit_one(f"{place[1:]}{folder}", 100, 60)
    else:
        machine.limit_two(f"{place[1:]}{folder}", "100", 90)
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    assert machine.free() == [(40, f"its cgroup ({place}{folder}/{name}) has")]


def test_without_proc(tmp_path: Path) -> None:
    """Where nothing says what is free, a plan must at least be smaller than the machine."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert list(free_memory(tmp_path)) == [(total, "the machine has at most")]


def test_this_machine_answers() -> None:
    """What is free on this very machine is a positive number of bytes."""
    free = list(free_memory())
    assert free[0][1] == "the machine has"
    assert all(size > 0 for size, _ in free)


def test_shortages_are_explained() -> None:
    """The limit that was reached is named with its value; any other error is itself."""
    shown = {
        name: limits.show_limit(getattr(resource, f"RLIMIT_{name}"))
        for name in ("NOFILE", "NPROC", "AS")
    }
    said = {
        number: limits.reason(OSError(number, "no"))
        for number in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM)
    }
    assert said == {
        errno.EMFILE: f"no: RLIMIT_NOFILE (ulimit -n) is {shown['NOFILE']}; raise it, or use fewer workers",
        errno.EAGAIN: (
            f"no: RLIMIT_NPROC (ulimit -u) is {shown['NPROC']}, RLIMIT_AS (ulimit -v) is "
            f"{shown['AS']}; raise what is reached, or its cgroup's pids.max, or use fewer workers"
        ),
        errno.ENOMEM: (
            f"no: RLIMIT_AS (ulimit -v) is {shown['AS']}; "
            f"raise it, or give the machine or its cgroup more memory, or use fewer workers"
        ),
    }
    assert limits.reason(FileNotFoundError(2, "no", "python")) == "[Errno 2] no: 'python'"
    assert not limits.is_shortage(FileNotFoundError(2, "no"))
    assert limits.is_shortage(OSError(errno.ENFILE, "no"))


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python says of it is said, and the limit."""

    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ringfeed.WorkerError) as caught:
        limits.start_thread(threading.Thread())
    why = limits.reason(OSError(errno.EAGAIN, "can't start new thread"))
    assert str(caught.value) == f"no thread can be started: {why}"


def test_an_interrupted_start_of_a_thread_is_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the midst of Thread.start() is Ctrl-C, also where an undone lock complains."""

    def interrupted(_: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.RLock().release()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limits.start_thread(threading.Thread())


def test_a_thread_that_was_started_is_no_shortage() -> None:
    """What Python says of anything else comes out as it is."""
    thread = threading.Thread()
    limits.start_thread(thread)
    thread.join(120)
    with pytest.raises(RuntimeError, match=r"^threads can only be started once$"):
        limits.start_thread(thread)


def test_a_python_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that was built where a system call was unknown is named."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ringfeed.WorkerError) as caught:
        limits.check_processes(1)
    assert str(caught.value) == (
        "worker processes need the system call pidfd_open, which is refused: this Python was "
        "built without it; it takes Linux 5.3 or newer, and a container whose seccomp profile "
        "allows it; or use backend='thread', or workers=0"
    )


@pytest.mark.parametrize(("code", "opened"), [(errno.EMFILE, 64), (errno.ENOENT, None)])
def test_descriptors_that_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch, code: int, opened: int | None
) -> None:
    """Not one free is enough to refuse; no /proc is not."""

    def refuse(_: str) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(limits.os, "listdir", refuse)
    if opened is None:
        limits._check_descriptors(1)
        return
    with pytest.raises(ringfeed.WorkerError) as caught:
        limits._check_descriptors(1)
    assert str(caught.value) == (
        "RLIMIT_NOFILE is 64, and workers=1 needs 15 descriptors beside the 64 in use; raise it "
        "(ulimit -n 79), or use backend='thread'"
    )

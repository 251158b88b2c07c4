"""The look at what a test leaves behind sees each kind of thing, and waits for what is going away."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path

import leftovers

BRIEFLY_S = 0.1


def test_a_child_is_seen_until_it_is_waited_for() -> None:
    """A child process is reported alive, then dead, and no more once somebody has waited for it."""
    before = leftovers.present()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        alive = [left for left in leftovers.since(before, BRIEFLY_S) if left.startswith("process")]
        assert alive == [f"process {child.pid} ({alive[0].partition('(')[2][:-1]})"]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        dead = [left for left in leftovers.since(before, BRIEFLY_S) if left.startswith("process")]
        assert dead == [f"{alive[0][:-1]}, dead but not waited for)"]
    assert leftovers.since(before) == []


def test_a_grandchild_is_seen() -> None:
    """A process started by a child is reported as well as the child."""
    before = leftovers.present()
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); "
        "input()'])"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        assert sum(left.startswith("process") for left in leftovers.since(before, BRIEFLY_S)) == 2


def test_a_descriptor_is_seen_until_it_is_closed() -> None:
    """An open file descriptor is reported with what it is open on."""
    before = leftovers.present()
    opened = os.open(os.devnull, os.O_RDONLY)
    left = leftovers.since(before, BRIEFLY_S)
    os.close(opened)
    assert left == [f"fd {opened} -> /dev/null"]
    assert leftovers.since(before) == []


def test_a_memfd_is_seen_while_only_its_mapping_is_left() -> None:
    """A mapping keeps memory after its descriptor is closed, and is reported."""
    before = leftovers.present()
    memfd = os.memfd_create("leftover")
    os.truncate(memfd, mmap.PAGESIZE)
    inode = os.fstat(memfd).st_ino
    mapping = mmap.mmap(memfd, mmap.PAGESIZE)
    os.close(memfd)
    left = [left for left in leftovers.since(before, BRIEFLY_S) if left.startswith("mapping")]
    mapping.close()
    assert left == [f"mapping of /memfd:leftover (deleted), inode {inode}"]
    assert leftovers.since(before) == []


def test_named_shared_memory_is_seen_until_it_is_unlinked() -> None:
    """A name under /dev/shm is reported even when nobody has it open."""
    before = leftovers.present()
    named = shared_memory.SharedMemory(create=True, size=1)
    named.close()
    left = leftovers.since(before, BRIEFLY_S)
    named.unlink()
    assert f"/dev/shm/{named.name}" in left


SEMAPHORE = """
import multiprocessing, os, sys, time
if os.fork():
    os._exit(0)
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


def test_named_memory_of_another_program_is_not_reported() -> None:
    """A semaphore of multiprocessing's, in a process that is none of ours, stays as long as that process likes."""
    before = leftovers.present()
    with subprocess.Popen(
        [sys.executable, "-c", SEMAPHORE], stdin=-1, stdout=-1, text=True
    ) as program:
        assert program.stdout is not None
        name = program.stdout.readline().strip().removeprefix("/")
        program.wait()
        assert Path(f"/dev/shm/sem.{name}").exists()
        left = leftovers.since(before, BRIEFLY_S)
    assert [one for one in left if one.startswith("/dev/shm")] == []
    assert leftovers.since(before) == []


TRACKER = """
import leftovers
before = leftovers.present()
from multiprocessing import resource_tracker
resource_tracker.ensure_running()
print(leftovers.since(before, 0.1))
"""


def test_multiprocessings_tracker_is_not_reported() -> None:
    """It stays as long as the program, and the first loader may start it: see `family`."""
    ran = subprocess.run(
        [sys.executable, "-c", TRACKER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=-1,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "[]\n"


def test_what_goes_away_in_time_is_not_reported() -> None:
    """Patience is time that things have to go: what is closed meanwhile is no leftover."""
    before = leftovers.present()
    opened = os.open(os.devnull, os.O_RDONLY)
    threading.Timer(0.1, os.close, [opened]).start()
    assert leftovers.since(before) == []


def test_what_was_there_before_is_not_reported() -> None:
    """Only what came since is reported, whatever else is open."""
    opened = os.open(os.devnull, os.O_RDONLY)
    before = leftovers.present()
    left = leftovers.since(before, patience_s=0)
    os.close(opened)
    assert left == []

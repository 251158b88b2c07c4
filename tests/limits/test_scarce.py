"""Machines that lack something: every loader is right to the last byte, or refused up front in one clear error."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringfeed.monitor import free_memory
from scarcity import MB, live
from watching import run_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = ("spawn", "fork", "process")
BY_PROCESSES = [f"workers=2, backend={method!r}" for method in METHODS]
WITHOUT_PROCESSES = ["workers=2, backend='thread'", "workers=0"]
WAYS = BY_PROCESSES + WITHOUT_PROCESSES


def trials(ways: list[str], more: str = "") -> list[str]:
    """Return what a poor process is to try."""
    return [f"outcome({way}{more})" for way in ways]


def said(text: str) -> str:
    """Return a text without the numbers that differ from machine to machine."""
    return re.sub(r"\b\d{6,}\b|(?<=has )[\d.]+ [kMG]B|(?<=batches of )[\d,]+", "N", text)


# ---- system calls that a seccomp profile refuses ----

REFUSALS = {"ENOSYS": "Function not implemented", "EPERM": "Operation not permitted"}
RELEASES = {"pidfd_open": "5.3", "pidfd_send_signal": "5.1", "eventfd2": "2.6.27"}


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("call", RELEASES)
def test_calls_that_processes_need(call: str, error: str) -> None:
    """Without one, worker processes are refused with the way out, which works: threads, or none."""
    refusal = (
        f"WorkerError: worker processes need the system call {call}, which is refused: "
        f"{REFUSALS[error]}; it takes Linux {RELEASES[call]} or newer, and a container whose "
        "seccomp profile allows it; or use backend='thread', or workers=0"
    )
    assert live(f"refuse({error!r}, {call!r})", *trials(WAYS)) == [refusal] * 3 + ["right"] * 2


@pytest.mark.parametrize("error", REFUSALS)
def test_no_memfd(error: str) -> None:
    """Without memfd_create there is no segment, in whatever way it is filled."""
    refusal = (
        f"PlanError: cannot create shared memory: memfd_create: {REFUSALS[error]}; ringfeed needs "
        "Linux 3.17 or newer, and a container whose seccomp profile allows memfd_create"
    )
    assert live(f"refuse({error!r}, 'memfd_create')", *trials(WAYS)) == [refusal] * 5


@pytest.mark.parametrize("which", ["", ", argument=(1, 128, 0)"], ids=["all", "between processes"])
@pytest.mark.parametrize("error", REFUSALS)
def test_no_futex(error: str, which: str) -> None:
    """Without futex it is refused before the C library's first wait would abort the process."""
    refusal = (
        f"WorkerError: ringfeed needs the system call futex, which is refused: {REFUSALS[error]}; "
        "it takes Linux 2.6.28 or newer, and a container whose seccomp profile allows it"
    )
    assert live(f"refuse({error!r}, 'futex'{which})", *trials(WAYS)) == [refusal] * 5


def test_a_futex_that_is_refused_later() -> None:
    """A consumer whose waits are refused from some moment on naps instead: it goes on, and does not spin."""
    found, cpu_s = live("", "wait_without_futex()")[0]
    assert found == [1, 2]
    assert cpu_s < 0.2  # of two seconds: a spin takes all it is given


@pytest.mark.parametrize(
    "poverty",
    [
        "refuse('EINVAL', 'madvise', argument=(2, 0xFFFFFFFF, 23))",  # MADV_POPULATE_WRITE, before Linux 5.14
        "refuse('EPERM', 'madvise')",
        "refuse('EPERM', 'sched_getaffinity')",
        "limit(MEMLOCK=0); limit_beyond('DATA', 100 * MB)",  # 128 MB are shared: neither limit is about them
    ],
)
def test_what_can_be_done_without(poverty: str) -> None:
    """What is no more than a matter of speed, or not about shared memory, changes nothing."""
    more = ", size=8 * MB" if "DATA" in poverty else ""
    assert live(poverty, *trials([*WAYS, "workers=None"], more)) == ["right"] * 6


# ---- limits of a process ----


def test_few_descriptors() -> None:
    """64 descriptors are enough for 8 workers.

    32 are refused with how many can be had, and they can.
    """
    counts = [f"workers={count}, backend={method!r}" for count in (2, 8, 32) for method in METHODS]
    found = live(
        "limit(NOFILE=64)", *trials([*counts, "workers=32, backend='thread'", "workers=0"])
    )
    # The warm forkserver's are in use, too, where there is one.
    limits = [re.findall(r"the (\d+) in use.*workers=(\d+)", refusal)[0] for refusal in found[6:9]]
    refusals = [
        "WorkerError: RLIMIT_NOFILE is 64, and workers=32 needs 108 descriptors beside the "
        f"{opened} in use; raise it (ulimit -n {int(opened) + 108}), or use workers={most}"
        for opened, most in limits
    ]
    assert found == ["right"] * 6 + refusals + ["right"] * 2
    again = [
        f"workers={most}, backend={method!r}"
        for method, (_, most) in zip(METHODS, limits, strict=True)
    ]
    assert live("limit(NOFILE=64)", *trials(again)) == ["right"] * 3


def test_too_few_descriptors_for_any_worker() -> None:
    """Where not even one worker can be had, threads can."""
    ways = ["workers=1, backend='process'", "workers=4, backend='thread'"]
    found = live("limit(NOFILE=16)", *trials(ways))
    opened = re.findall(r"the (\d+) in use", found[0])[0]
    assert found == [
        f"WorkerError: RLIMIT_NOFILE is 16, and workers=1 needs 15 descriptors beside the {opened} "
        f"in use; raise it (ulimit -n {int(opened) + 15}), or use backend='thread'",
        "right",
    ]


def test_no_descriptor_for_a_replacement() -> None:
    """Where a dead worker cannot be replaced, the consumer hears why.

    The next epoch is right once there is room. A forked one needs no more than the dead one had.
    """
    found = live(
        "limit(NOFILE=64)", *[f"outcome_of_a_death(backend={method!r})" for method in METHODS]
    )
    full = (
        "WorkerError: no worker can be started: Too many open files: RLIMIT_NOFILE (ulimit -n) is "
        "64; raise it, or use fewer workers"
    )
    assert found == [[said, "4000 samples"] for said in (full, "3996 samples", "3996 samples")]


def test_little_address_space() -> None:
    """What cannot be mapped is refused with its size and the limit."""
    refusal = (
        "PlanError: cannot map 64.1 MB of shared memory: Cannot allocate memory; RLIMIT_AS "
        "(ulimit -v) is N; raise it, use fewer slots, or memory="
    )
    found = live(
        "limit_beyond('AS', 40 * MB)", *trials(WAYS, ", size=4 * MB"), "outcome(workers=2)"
    )
    assert list(map(said, found)) == [refusal] * 5 + ["right"]


def test_no_address_space_at_all() -> None:
    """Where not even the control block can be mapped, that is said."""
    refusal = (
        "PlanError: cannot map 8.2 kB of shared memory: Cannot allocate memory; RLIMIT_AS (ulimit "
        "-v) is N; raise it, use fewer slots, or memory="
    )
    found = live("outcome(workers=1); limit(AS=4096)", "outcome(workers=2)")
    assert [
        re.sub(r"(?<=map )[\d.]+", "8.2", re.sub(r"(?<=is )\d+", "N", text)) for text in found
    ] == [refusal]


def test_little_address_space_of_workers_alone() -> None:
    """What a worker cannot map ends the epoch with its reason."""
    found = live(
        "limit_address_space_of_workers(300 * MB)",
        *trials([f"workers=1, backend='process'{size}" for size in ("", ", size=16 * MB")]),
    )
    refusal = (
        "WorkerError: a worker could not start: cannot map 256.1 MB of shared memory: Cannot "
        "allocate memory; RLIMIT_AS (ulimit -v) is 300000000; raise it, use fewer slots, or "
        "memory="
    )
    assert found == ["right", refusal]


def test_small_files_only() -> None:
    """RLIMIT_FSIZE holds for shared memory too.

    It is asked, since the kernel may answer with a signal.
    """
    refusal = (
        "PlanError: RLIMIT_FSIZE (ulimit -f) is 10000000 bytes, and 64.1 MB of shared memory are "
        "needed; raise it, use fewer slots, or memory="
    )
    poverty = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); limit(FSIZE=10 * MB)"
    assert live(poverty, *trials(WAYS, ", size=4 * MB"), "outcome(workers=2)") == [refusal] * 5 + [
        "right"
    ]


@pytest.mark.long
def test_few_processes() -> None:
    """However many tasks a user may have, each loader is right or says what was one too many.

    10 are enough.
    """
    sweep = "[[limit(NPROC=most)] and [outcome(**way) for way in ways] for most in range(1, 11)]"
    ways = ", ".join(f"dict({way})" for way in WAYS)
    alone = "import os; os.environ['RINGFEED_WARM_S'] = '0'"  # a warm process would be one more of the user's
    found = live(f"{alone}; be_nobody(); global ways; ways = [{ways}]", sweep)[0]
    assert [row[-1] for row in found] == ["right"] * 10
    assert found[-1] == ["right"] * 5
    assert found[0][0] == (
        "WorkerError: no worker can be started: Resource temporarily unavailable: RLIMIT_NPROC "
        "(ulimit -u) is 1, RLIMIT_AS (ulimit -v) is unlimited; raise what is reached, or its "
        "cgroup's pids.max, or use fewer workers"
    )
    for most, row in enumerate(found, start=1):
        assert set(row) <= {"right", *_wants(most)}


def _wants(most: int) -> Iterator[str]:
    """Yield what may be said where a user may have so many tasks."""
    limit = (
        f"RLIMIT_NPROC (ulimit -u) is {most}, RLIMIT_AS (ulimit -v) is unlimited; raise what is "
        "reached, or its cgroup's pids.max, or use fewer workers"
    )
    unavailable = f"Resource temporarily unavailable: {limit}"
    guard = f"the thread that guards a worker cannot be started: {unavailable}"
    yield f"WorkerError: no worker can be started: {unavailable}"
    yield f"WorkerError: no thread can be started: can't start new thread: {limit}"
    yield f"WorkerError: {guard}"
    yield f"WorkerError: a worker could not start: {guard}"


# ---- file systems ----


@pytest.mark.long
@pytest.mark.parametrize(
    "options", ["size=8m", "size=4k,nr_inodes=1,mode=000"], ids=["8 MB", "none"]
)
def test_little_dev_shm(options: str) -> None:
    """64 MB of slots do not care how large /dev/shm is, nor whether anything can be made there."""
    assert live(f"cover('/dev/shm', {options!r})", *trials(WAYS, ", size=4 * MB")) == ["right"] * 5


def test_nothing_can_be_written() -> None:
    """With every file system read-only, /tmp and the working directory too, and no HOME, all is right."""
    assert (
        live("make_all_read_only()", *trials(WAYS), through=("env", "-u", "HOME")) == ["right"] * 5
    )


def test_no_proc() -> None:
    """Nothing that is needed is read from /proc."""
    assert live("have_own_mounts()", *trials(WAYS, ", covered='/proc'")) == ["right"] * 5


def test_what_needs_proc_says_so() -> None:
    """A private map of a file travels by value, as it may have been written to.

    `ringfeed top` is refused.
    """
    refusal = (
        "loaders are found through /proc, which is not here: mount it (mount -t proc proc /proc)"
    )
    assert live("have_own_mounts()", "looks_without_proc()") == [[True, refusal, refusal]]


def test_a_file_system_that_is_full() -> None:
    """Pages are had before anybody writes to them: too few are an error, not a SIGBUS."""
    refusal = (
        "PlanError: cannot reserve 64.1 MB of shared memory: No space left on device; use fewer "
        "slots, or memory="
    )
    poverty = "cover('/dev/shm', 'size=1m'); put_slots_in('/dev/shm')"
    assert live(poverty, *trials(["workers=0", "workers=2"], ", size=4 * MB")) == [refusal] * 2


@pytest.mark.parametrize("way", ["workers=1", "workers=1, backend='thread'"])
def test_a_machine_that_is_full_in_mid_run(way: str) -> None:
    """With slots="auto" training goes on with the slots there are, loses nothing, and stats().tuning says why."""
    whole, slots, whys = live("", f"tuned_without_room({way})")[0]
    assert whole
    assert slots == [2, 2, 2]
    assert [said(why) for why in whys[:2]] == [
        "four slots",
        (
            "cannot reserve 20.5 kB of shared memory: No space left on device; use fewer slots, "
            "or memory="
        ),
    ]
    assert not any("3 slots" in why or "4 slots" in why for why in whys)


# ---- the memory of a cgroup ----


LIMITS = ("memory.max", "memory.limit_in_bytes")


def limited(folder: Path) -> bool:
    """Make a cgroup here that is limited to 256 MB.

    Return whether that is allowed and the controller is there.
    """
    try:
        folder.mkdir()
    except OSError:
        return False
    for name in LIMITS:
        with suppress(OSError):
            (folder / name).write_text(str(256 * MB), "ascii")
            return True
    folder.rmdir()
    return False


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return a cgroup of our own that is limited to 256 MB."""
    folders = (
        around / f"ringfeed-test-{os.getpid()}" for around in free_memory._cgroups(Path("/"))
    )
    folder = next(filter(limited, folders), None)
    if folder is None:
        pytest.skip(
            "no memory cgroup can be made here: only root may, and only where the controller is "
            "passed on"
        )
    yield folder
    wait_until(
        lambda: not (folder / "cgroup.procs").read_text()
    )  # what a process was is counted until it is gone
    folder.rmdir()


def test_the_limit_of_a_cgroup(cgroup: Path) -> None:
    """A plan within it works.

    One beyond it, or beyond what is left, is refused, and nobody is killed.
    """
    within, beyond = trials(["workers=2, size=4 * MB", "workers=2, size=20 * MB"])
    found = live(f"be_in_cgroup({str(cgroup)!r})", within, beyond, "take_memory(200 * MB)", within)
    name = next(name for name in LIMITS if (cgroup / name).exists())
    refusal = (
        "PlanError: the plan needs {} ({} of {}), but its cgroup ("
        + str(cgroup / name)
        + ") has N free; use fewer "
        "slots, a smaller batch_size, or memory=: with 2 slots, batches of N rows fit"
    )
    assert [said(text or "") for text in found] == [
        "right",
        refusal.format("320.1 MB", "4 slots", "80.0 MB"),
        "",
        refusal.format("64.1 MB", "4 slots", "16.0 MB"),
    ]
    events = (
        cgroup / ("memory.events" if name == "memory.max" else "memory.oom_control")
    ).read_text()
    assert "oom_kill 0" in events


# ---- who may look at the segments ----


@pytest.mark.parametrize("method", METHODS)
def test_no_exec_keeps_what_is_ours(method: str) -> None:
    """No descriptor of a consumer or of a worker, beside the standard streams, goes to what they start."""
    consumer, worker = live("", f"descriptors_of(backend={method!r})")[0]
    assert {"/memfd:ringfeed-control (deleted)", "/memfd:ringfeed-slots (deleted)"} <= {
        what for _, what, _ in consumer
    }
    assert [each for each in consumer + worker if each[0] > 2 and each[2]] == []


def test_no_other_user_can_open_a_memfd() -> None:
    """Another user can neither open the descriptors of a process, nor would the memfds let that user."""
    modes, own, others = live("", "as_another_user()")[0]
    if others is None:
        pytest.skip("only root can become another user")
    assert modes == [0o600] * 4
    assert own == ["opened"] * 4
    assert others == ["PermissionError"] * 4


MANY = """
import os, resource
import numpy as np
import ringfeed
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

class Rows:
    def __init__(self, number): self.number = number
    def __len__(self): return 6
    def __getitem__(self, index): return np.array([self.number, index])

loaders = [ringfeed.Loader(Rows(number), batch_size=2, workers=2, shuffle=True, seed=1) for number in range(40)]
under_way = iter(loaders[0])
found = [next(under_way).tolist()]
most = 0
for epoch in range(2):
    for number, loader in enumerate(loaders[1:], start=1):
        batches = iter(loader)
        rows = [row for batch in batches for row in batch.tolist()]
        again = ringfeed.Loader(Rows(number), batch_size=2, workers=0, shuffle=True, seed=1)
        again.set_epoch(epoch)
        assert rows == [row for batch in again for row in batch.tolist()], number
        if number % 3 == 0 and epoch == 0:
            next(iter(loader))  # and left amid an epoch
            loader.set_epoch(1)
        most = max(most, len(os.listdir("/proc/self/fd")))
found += [batch.tolist() for batch in under_way]
assert sorted(index for batch in found for _, index in batch) == [*range(6)]
assert most <= 128 + 40, most
"""


def test_loaders_without_number_that_rest() -> None:
    """Those between epochs give up their workers where descriptors get few: half of them stay the program's."""
    assert run_script(MANY) == ("", "", 0)

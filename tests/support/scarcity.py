"""Makes the process that it runs in poor, tries loaders there, and says what became of them.

`live()` runs it all in an interpreter of its own, since most of what is taken away never comes
back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import re
import resource
import struct
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import Oracle, check, flat, told
from ringfeed.errors import WorkerError
from ringfeed.reading import fetching
from ringfeed.tools.discover import Target, processes
from ringfeed.workers import process
from watching import pids, run_script

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

MB = 10**6
NUMBERS = {  # of the system calls that are refused
    "x86_64": {
        "futex": 202,
        "fallocate": 285,
        "madvise": 28,
        "sched_getaffinity": 204,
        "eventfd2": 290,
        "memfd_create": 319,
        "pidfd_send_signal": 424,
        "pidfd_open": 434,
    },
    "aarch64": {
        "futex": 98,
        "fallocate": 47,
        "madvise": 233,
        "sched_getaffinity": 123,
        "eventfd2": 19,
        "memfd_create": 279,
        "pidfd_send_signal": 424,
        "pidfd_open": 434,
    },
}
LOAD, AND, EQUAL, ANSWER = 0x20, 0x54, 0x15, 0x06  # instructions of a filter
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
NO_NEW_PRIVILEGES, SECCOMP, BY_FILTER = 38, 22, 2  # for prctl()
DUMPABLE, KEEP_CAPABILITIES, AMBIENT = 4, 8, 47  # the same
READ_ALL = 0b110  # the capabilities not to be asked who may read
NOBODY = (
    10_000 + os.getpid() % 50_000
)  # of this process alone: RLIMIT_NPROC counts what others run as the same user
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # for unshare()
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # for mount()
DETACH = 2  # for umount2()
TAKEN: list[Any] = []  # for as long as this process lasts
libc = ctypes.CDLL(None, use_errno=True)


class CannotBePoorError(Exception):
    """This machine does not let us take that away."""


# ---- what is taken away ----


def limit(**soft: int) -> None:
    """Set resource limits by name."""
    for name, size in soft.items():
        which = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(which, (size, resource.getrlimit(which)[1]))


def limit_beyond(name: str, room: int) -> None:
    """Leave so many bytes of "AS", address space, or of "DATA" beside what is in use already."""
    line = {"AS": "VmSize", "DATA": "VmData"}[name]
    used = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert used is not None
    limit(**{name: int(used[1]) * 1024 + room})


def limit_address_space_of_workers(size: int) -> None:
    """Leave each spawned worker so much address space."""
    popen = process.start_interpreter

    def start(*args: Any) -> Any:
        process = popen(*args)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (size, size))
        return process

    process.start_interpreter = start


def be_nobody() -> None:
    """Be a user without other processes, whom RLIMIT_NPROC holds, but who may still read what root may."""
    if os.getuid():
        message = "only root can become a user who has no other process"
        raise CannotBePoorError(message)
    libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0)
    try:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        message = f"not even root can become another user here: {error.strerror}"
        raise CannotBePoorError(message) from error
    header, sets = struct.pack("II", 0x20080522, 0), struct.pack("6I", *[READ_ALL] * 3, 0, 0, 0)
    libc.capset(header, sets)
    for capability in (1, 2):
        libc.prctl(AMBIENT, 2, capability, 0, 0)  # so that a spawned worker has it too
    libc.prctl(DUMPABLE, 1, 0, 0, 0)  # so that /proc/self is ours again


def refuse(error: str, *calls: str, argument: tuple[int, int, int] | None = None) -> None:
    """Have the kernel answer these system calls with an errno, where argument (number, mask, value) fits if given."""
    numbers = NUMBERS.get(platform.machine())
    if numbers is None:
        message = f"the numbers of the system calls of {platform.machine()} are not known here"
        raise CannotBePoorError(message)
    code = [(LOAD, 0, 0, 0)]
    for call in calls:
        rule = [(ANSWER, 0, 0, REFUSE | getattr(errno, error))]
        if argument is not None:
            place, mask, value = argument
            rule = [
                (LOAD, 0, 0, 16 + 8 * place),
                (AND, 0, 0, mask),
                (EQUAL, 0, 1, value),
                *rule,
                (LOAD, 0, 0, 0),
            ]
        code += [(EQUAL, 0, len(rule), numbers[call]), *rule]
    code.append((ANSWER, 0, 0, ALLOW))
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    program = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(packed)))
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, BY_FILTER, program, 0, 0):
        message = f"seccomp filters cannot be set here: {os.strerror(ctypes.get_errno())}"
        raise CannotBePoorError(message)


def _mount(what: str, place: str, kind: str | None, flags: int, options: str = "") -> None:
    names = [None if name is None else name.encode() for name in (what, place, kind)]
    if libc.mount(*names, flags, options.encode()):
        message = f"{place} cannot be mounted here: {os.strerror(ctypes.get_errno())}"
        raise CannotBePoorError(message)


def have_own_mounts() -> None:
    """See a copy of the mounts that is ours to change."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS):
        if libc.unshare(NEW_MOUNTS | NEW_USER):
            message = f"no namespace for mounts can be had here: {os.strerror(ctypes.get_errno())}"
            raise CannotBePoorError(message)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, RECURSIVE | PRIVATE)


def cover(place: str, options: str) -> None:
    """Mount a fresh tmpfs of our own."""
    have_own_mounts()
    _mount("tmpfs", place, "tmpfs", 0, options)


def make_all_read_only() -> None:
    """Make every file system read-only, and have no home."""
    have_own_mounts()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4].encode().decode("unicode_escape")
        if not place.startswith(("/proc", "/sys", "/dev/")) and place != "/dev":
            kept = os.statvfs(place).f_flag & (
                2 | 4 | 8 | 1024 | 2048 | 4096
            )  # what it may not lose
            flags = (kept & 14) | (kept & 3072) | ((1 << 21) if kept & 4096 else 0)
            _mount("none", place, None, REMOUNT | BIND | READ_ONLY | flags)
    for place in (Path("/tmp"), Path.cwd(), Path.home()):
        assert not os.access(place, os.W_OK), place


def be_in_cgroup(folder: str) -> None:
    """Be limited by this cgroup."""
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))


def take_memory(size: int) -> None:
    """Use so much memory of our own, all pages touched."""
    TAKEN.append(b"1" * size)


def put_slots_in(folder: str) -> None:
    """Take the memory of slots from a file system that can be full."""
    create = os.memfd_create

    def make(name: str, flags: int) -> int:
        return (
            os.open(folder, os.O_RDWR | os.O_TMPFILE)
            if name == "ringfeed-slots"
            else create(name, flags)
        )

    os.memfd_create = make  # type: ignore[assignment]


# ---- what is tried ----


class Wide(Oracle):
    """Samples as large as one likes, told apart by their content."""

    def __init__(self, size: int) -> None:
        super().__init__(16)
        self.size = size

    def __getitem__(self, index: int) -> Any:
        return np.full(self.size, index, np.uint8)


class Descriptors(Oracle):
    """Tells which descriptors the process that fills has open: [number, what it is, whether an exec keeps it]."""

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(json.dumps(descriptors()).encode().ljust(8192), np.uint8)


def descriptors() -> list[tuple[int, str, bool]]:
    """Return (number, what it is, whether an exec keeps it) of this process's open descriptors."""
    found = []
    for fd in range(256):
        try:
            kept = not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        except OSError:
            continue
        found.append((fd, str(Path(f"/proc/self/fd/{fd}").readlink()), kept))
    return found


def outcome(*, size: int = 0, covered: str = "", **settings: Any) -> str:
    """Return "right" if two epochs of a loader are, else its error; and what is left behind.

    size: the bytes of a sample; covered: a folder that is empty meanwhile.
    """
    before = leftovers.present()
    with _covered(covered) if covered else nullcontext():
        said = _try(Wide(size) if size else Oracle(16), settings)
    left = leftovers.since(before)
    return "; ".join([said, *(f"left: {each}" for each in left)])


def _try(dataset: Any, settings: dict[str, Any]) -> str:
    try:
        with ringfeed.Loader(dataset, batch_size=4, **settings) as loader:
            for _ in range(2):
                found = flat(map(_indices, loader))
                assert found == list(range(16)), found
    except Exception as error:  # noqa: BLE001 - told
        return f"{type(error).__name__}: {error}"
    return "right"


def looks_without_proc() -> list[Any]:
    """Return what a copy-on-write map of a file gives without /proc, and what is said of loaders of other processes."""
    path = Path(np.__file__)  # any file
    mapped = np.memmap(path, np.uint8, "c", shape=(8, 4))
    mapped[0] = 7
    with _covered("/proc"):
        with ringfeed.Loader((mapped,), batch_size=8, workers=1, backend="spawn") as loader:
            same = all((batch == mapped).all() for (batch,) in loader)
        said = []
        for ask in (processes, lambda: Target(os.getpid())):
            with pytest.raises(ringfeed.RingfeedError) as caught:
                ask()
            said.append(str(caught.value))
        return [same, *said]


@contextmanager
def _covered(place: str) -> Iterator[None]:
    _mount("tmpfs", place, "tmpfs", 0)
    try:
        yield
    finally:
        libc.umount2(place.encode(), DETACH)


def _indices(batch: Any) -> list[int]:
    if isinstance(batch, tuple):
        return check(batch)
    assert (batch == batch[:, :1]).all()
    return [int(index) for index in batch[:, 0]]


def outcome_of_a_death(**settings: Any) -> list[str]:
    """Return the outcome of an epoch in which a worker must be replaced and no descriptor is left, and of the next."""
    loader = ringfeed.Loader(Oracle(4000), batch_size=4, workers=1, **settings)
    iterator = iter(loader)
    check(next(iterator))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        os.kill(pids(loader)[0], 9)
    try:
        said = f"{sum(len(check(batch)) for batch in iterator)} samples"
    except Exception as error:  # noqa: BLE001 - told
        said = f"{type(error).__name__}: {error}"
    for fd in taken:
        os.close(fd)
    total = sum(len(check(batch)) for batch in loader)
    loader.close()
    return [said, f"{total} samples"]


def tuned_without_room(**settings: Any) -> list[Any]:
    """Return what becomes of a tuner's wish for two more slots in mid-run, when the kernel answers ENOSPC.

    Whether all samples came in order; slots open, reserved and wanted at the end; why slots were
    moved.
    """
    with ringfeed.Loader(
        Oracle(400, sleep_s=0.001), batch_size=4, slots="auto", **settings
    ) as loader:
        iterator = iter(loader)
        seen = check(next(iterator))
        tuner, engine = loader._runner.tuner, loader._runner.engine
        assert tuner is not None
        assert engine is not None
        refuse("ENOSPC", "fallocate", argument=(1, 0xFFFFFFFF, 0))
        with monkeypatched(
            tuner, look=lambda _: tuner._go(tuner.setting._replace(slots=4), "four slots")
        ):
            while len(tuner.history) < 2:
                seen += check(next(iterator))
        seen += flat(map(check, iterator))
        slots = [engine.ring.open_slots, len(engine.segment.reserved), tuner.setting.slots]
        return [seen == list(range(400)), slots, [step.why for step in loader.stats().tuning]]


@contextmanager
def monkeypatched(what: object, **names: Any) -> Iterator[None]:
    """Put other things in the place of attributes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setattr(what, name, value)
        yield


def wait_without_futex() -> tuple[list[int], float]:
    """Return what a wait of some two seconds gives once futexes are refused, and the processor time it costs."""
    loader = ringfeed.Loader(Oracle(8, sleep_s=1.0), batch_size=1, workers=1, slots=2)
    iterator = iter(loader)  # closed by the end of this process: joining a thread needs a futex
    TAKEN.append(iterator)
    next(iterator)
    refuse("EPERM", "futex", argument=(1, 128, 0))
    before_s = time.thread_time()
    found = [check(next(iterator))[0] for _ in range(2)]
    return found, time.thread_time() - before_s


def descriptors_of(**settings: Any) -> list[Any]:
    """Return the descriptors of a consumer and of its worker, in mid-epoch."""
    spec = ringfeed.Array((8192,), "uint8")
    with ringfeed.Loader(Descriptors(8), batch_size=2, workers=1, spec=spec, **settings) as loader:
        return [told(next(iter(loader))), descriptors()][::-1]


def as_another_user() -> list[Any]:
    """Return the modes of segment, dataset and stack, and whether we and another user can open them through /proc."""
    with ringfeed.Loader(Oracle(8), batch_size=2, workers=1, backend="spawn") as loader:
        next(iter(loader))
        mine = [fd for fd, what, _ in descriptors() if "memfd:ringfeed" in what]
        modes = [os.fstat(fd).st_mode & 0o777 for fd in mine]
        paths = [f"/proc/{os.getpid()}/fd/{fd}" for fd in mine]
        return [modes, _open(paths), None if os.getuid() else _in_child(_open_as_another, paths)]


def _open(paths: list[str]) -> list[str]:
    found = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDWR))
            found.append("opened")
        except OSError as error:
            found.append(type(error).__name__)
    return found


def _open_as_another(paths: list[str]) -> list[str] | None:
    try:
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return None
    return _open(paths)


def _in_child(function: Callable[[Any], Any], *args: Any) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, json.dumps(function(*args)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


# ---- how it is told ----


def tell(poverty: str, *trials: str) -> None:
    """Print, from the poor process, what became of each trial, or why it is not poor; and end."""
    here = {**globals(), "MB": MB}
    try:
        exec(poverty, here)  # noqa: S102 - a line of the test
    except CannotBePoorError as error:
        found: Any = str(error)
    else:
        found = [eval(trial, here) for trial in trials]  # noqa: S307 - as above
    print(json.dumps(found), flush=True)  # noqa: T201 - read by live()
    os._exit(0)  # without futex, not even an interpreter can end


def live(poverty: str, *trials: str, through: tuple[str, ...] = ()) -> list[Any]:
    """Return what became of each trial in a poor process.

    Skip the test where it cannot be made poor.
    """
    script = f"import scarcity; scarcity.tell(*{(poverty, *trials)!r})"
    single = ("env", "OPENBLAS_NUM_THREADS=1")  # its threads would count, and not have the filter
    told, errors, status = run_script(script, through=(*single, *through))
    assert status == 0, (status, told, errors)
    found = json.loads(told.splitlines()[-1])
    if isinstance(found, str):
        pytest.skip(found)
    return list(found)


def leave_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let samples in flight have this number of threads, and refuse the next as the kernel does."""
    start, left = fetching.start_thread, [count]

    def start_some(thread: threading.Thread) -> None:
        if not left[0]:
            message = "no thread can be started: RLIMIT_NPROC"
            raise WorkerError(message)
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(fetching, "start_thread", start_some)

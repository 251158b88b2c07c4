"""A system without Linux: workers are threads, one line says so, and what cannot be is refused.

Run by `make test-portable`, over the portable layer, in a Python that lacks what macOS lacks.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.system import machine
from ringfeed.system._system import HAS_PROCESSES
from watching import run_script

if TYPE_CHECKING:
    from collections.abc import Callable

if HAS_PROCESSES:
    pytest.skip("Linux: make test-portable has the other layer", allow_module_level=True)

HERE = f"which ringfeed has on Linux alone; here ({sys.platform})"
SAID = (
    f"a worker process needs memory that processes share, {HERE} workers are threads, with the "
    "same batches, orders and states; backend='thread' says so without this line"
)


class Named:
    """Samples that say which thread has read them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return index, threading.get_ident() % 2**31, os.getpid()


def read(**settings: Any) -> list[tuple[int, int, int]]:
    """Return all rows of an epoch."""
    with ringfeed.Loader(Named(), batch_size=4, shuffle=True, **settings) as loader:
        return [
            (int(index), int(thread), int(pid))
            for batch in loader
            for index, thread, pid in zip(*batch, strict=True)
        ]


def test_what_macos_lacks_is_lacking() -> None:
    """The interpreter is one without Linux: else the other tests prove nothing."""
    assert not hasattr(os, "memfd_create")
    assert not hasattr(os, "sched_getaffinity")
    with pytest.raises(FileNotFoundError):
        open("/proc/self/stat")  # noqa: PTH123, SIM115
    assert machine.usable_cpus() == os.cpu_count()


@pytest.mark.parametrize("backend", [None, "process", "spawn", "fork", "thread"])
def test_every_backend_runs_in_threads(backend: str | None) -> None:
    """The order is that without workers, and other threads of this process have read the samples."""
    given = {} if backend is None else {"backend": backend}
    rows = read(workers=2, **given)
    assert [index for index, *_ in rows] == [index for index, *_ in read(workers=0)]
    assert {pid for *_, pid in rows} == {os.getpid()}
    assert threading.get_ident() % 2**31 not in {thread for _, thread, _ in rows}


def test_it_is_said_once() -> None:
    """The first loader whose workers would be processes says it at its own line; no other does."""
    machine.in_threads.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read(workers=2, backend="thread")
        read(workers=0)
        assert said == []
        read(workers=2)
        read(workers=2, backend="spawn")
    assert [(str(one.message), one.category, one.filename) for one in said] == [
        (SAID, RuntimeWarning, __file__)
    ]


def test_the_loader_says_it() -> None:
    """Its repr names threads."""
    with ringfeed.Loader(Named(), batch_size=4, workers=2) as loader:
        assert repr(loader).startswith("<Loader of Named: batches of 4, workers in threads: 2, ")


def test_what_is_reserved() -> None:
    """The memory of slots and control block counts as reserved while there is any."""
    with ringfeed.Loader(np.zeros((64, 1000)), batch_size=4, workers=1) as loader:
        next(iter(loader))
        memory = loader.stats().memory
        plan = loader.plan
        assert memory.reserved == plan.slots * plan.slot_size + plan.control_size
        assert memory.touched is None


def test_slots_that_are_opened_and_parked() -> None:
    """With slots="auto" no memory is to be set aside, and what is given back is fresh."""
    with ringfeed.Loader(np.arange(4096), batch_size=4, workers=1, slots="auto") as loader:
        for _ in range(3):
            assert np.concatenate([batch.copy() for batch in loader]).tolist() == [*range(4096)]


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "share": (
        lambda: ringfeed.share(lambda: None, name="x", ranks=1, mode="split"),  # type: ignore[arg-type, return-value]
        ringfeed.WorkerError,
        f"share() needs memory that processes share, {HERE} all runs in one process; give each "
        "training a Loader of its own",
    ),
    "Ray": (
        lambda: read(workers=1, backend=ringfeed.ray.Ray(workers=1, address="local")),
        ringfeed.WorkerError,
        f"a bridge to a cluster needs memory that processes share, {HERE} all runs in one process; "
        "leave backend= out",
    ),
    "reseed": (
        lambda: read(workers=1, reseed=True),
        ValueError,
        "reseed=True seeds states that all threads share; use workers=0, or ringfeed.rng()",
    ),
    "a process by itself": (
        lambda: machine.check_processes(1),
        ringfeed.WorkerError,
        f"a worker process needs memory that processes share, {HERE} all runs in one process; use "
        "backend='thread', or workers=0",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_processes_is_refused(what: str) -> None:
    """The error says what lacks, and what to do."""
    call, kind, text = REFUSED[what]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_what_has_reseed_without_workers() -> None:
    """The way out that the error names."""
    assert len(read(workers=0, reseed=True)) == 64


def test_the_command_top() -> None:
    """It names the way out, too."""
    code = "import sys; from ringfeed.tools.main import main; sys.exit(main(['top', '1']))"
    out, errors, status = run_script(code)
    assert (out, status) == ("", 2)
    assert errors == (
        "ringfeed top: a look at another process needs memory that processes share, "
        f"{HERE} all runs in one process; print(loader.stats()) in that process\n"
    )


FORK = """
import os, warnings
import numpy as np
import ringfeed

with ringfeed.Loader(np.arange(4096).reshape(-1, 4), batch_size=8, slots=8, workers=2, backend="thread") as loader:
    batches = iter(loader)
    held = [next(batches) for _ in range(2)]
    before = [batch.tolist() for batch in held]
    warnings.simplefilter("ignore", DeprecationWarning)
    pid = os.fork()
    if pid == 0:
        try:
            next(batches)
        except ringfeed.ClosedError:
            held[0][:] = -1
            os._exit(not ([batch.tolist() for batch in held[1:]] == before[1:]))
        os._exit(3)
    rest = [batch.tolist() for batch in batches]
    _, status = os.waitpid(pid, 0)
    whole = [batch.tolist() for batch in held] + rest
    assert np.array(whole).ravel().tolist() == [*range(4096)]
    raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child() -> None:
    """It keeps what its parent held, as a copy, and takes nothing from its parent."""
    assert run_script(FORK) == ("", "", 0)

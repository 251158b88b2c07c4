"""`ringfeed.monitor.memory`: the plan against what the kernel says."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Oracle
from ringfeed._units import show_bytes
from ringfeed.engine.plan import make_plan
from ringfeed.monitor import memory
from ringfeed.monitor._snapshot import Observer
from ringfeed.monitor.memory import Held, Memory, Pages, WorkerMemory, own_bytes
from ringfeed.monitor.stats import Stats
from ringfeed.spec.spec import Array, Spec
from ringfeed.workers.processes import Processes
from watching import pids, wait_until

pytestmark = pytest.mark.once

BENCH = Path(__file__).parents[2] / "bench"
WITHIN = 0.02  # of the plan
BIG = 3_000_000


class Filled:
    """Samples of some bytes; each page of what it ships is read for each of them."""

    def __init__(self, shipped: int = 0, width: int = 1000) -> None:
        self.shipped = np.ones(shipped, np.uint8)
        self.width = width

    def __len__(self) -> int:
        return 3840

    def __getitem__(self, index: int) -> Any:
        return np.full(self.width, index % 251 + int(self.shipped[::4096].sum()) % 2, np.uint8)


class Growing(Filled):
    """Ships something else in each epoch."""

    def __len__(self) -> int:
        return 96

    def on_epoch_end(self) -> None:
        self.shipped = np.full(len(self.shipped) + 500_000, 2, np.uint8)


def used(loader: ringfeed.Loader) -> Any:
    """Take an epoch, and of the next until each worker has filled something and all rest."""
    for _ in loader:
        pass
    batches = iter(loader)
    next(batches)
    assert loader._runner.engine is not None
    ring = loader._runner.engine.ring
    while not all(Observer(ring).worker(number).samples for number in range(loader.plan.workers)):
        if next(batches, None) is None:
            batches = iter(loader)
    wait_until(
        lambda: "filling" not in loader.slot_states()
    )  # processes are looked at one after another
    return batches


def shared_plan(loader: ringfeed.Loader) -> int:
    """Return what the plan says of shared memory."""
    plan = loader.plan
    return plan.slots * plan.slot_size + plan.control_size + plan.dataset_shared


# ---- a loader's life ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_the_kernel_agrees_with_the_plan(method: str) -> None:
    """Once all slots were used, every byte is reserved, and resident within two percent."""
    with ringfeed.Loader(Filled(BIG), batch_size=64, slots=40, workers=2, backend=method) as loader:
        stats = loader.stats()
        assert stats.memory == Memory(loader.plan, 0, Pages(0, 0), (), ())
        batches = used(loader)
        now = stats.memory
        assert now.planned == loader.memory
        assert now.reserved == shared_plan(loader)
        assert now.resident == pytest.approx(shared_plan(loader), rel=WITHIN)
        slots = loader.plan.slots * loader.plan.slot_size
        assert slots < now.touched <= slots + loader.plan.control_size
        assert [worker.pid for worker in now.workers] == pids(loader)
        for worker in now.workers:
            assert worker.pages is not None
            assert 0 < worker.pages.share <= worker.pages.touched <= now.reserved
            assert worker.pss > worker.pages.share
            assert 1_000_000 < worker.private < worker.pss
        del batches
    after = stats.memory
    assert (after.reserved, after.touched, after.workers) == (0, 0, ())


def test_own_memory_is_the_same_everywhere() -> None:
    """What a trace draws of a worker is what the statistics call its own: pages of no other process."""
    with ringfeed.Loader(Filled(BIG), batch_size=64, slots=4, workers=2) as loader:
        for _ in loader:
            pass
        for worker in loader.stats().memory.workers:
            assert own_bytes(worker.pid) == pytest.approx(worker.private, rel=0.05)
    assert own_bytes(2**22 + 1) == 0


@pytest.mark.parametrize(
    "how", [{"workers": 0}, {"workers": 2, "backend": "thread"}], ids=["none", "threads"]
)
def test_without_processes_there_are_no_workers(how: dict[str, Any]) -> None:
    """The consumer has it all."""
    with ringfeed.Loader(Filled(BIG), batch_size=64, slots=40, **how) as loader:
        assert loader.plan.dataset_shared == 0
        for _ in loader:
            pass
        now = loader.stats().memory
        assert now.workers == ()
        assert now.reserved == loader.memory
        assert now.resident == now.touched == pytest.approx(loader.memory, rel=WITHIN)


def test_each_loader_sees_its_own() -> None:
    """Two of the same process are told apart by their memfds."""
    with (
        ringfeed.Loader(Filled(), batch_size=64, slots=10, workers=0) as small,
        ringfeed.Loader(Filled(), batch_size=64, slots=40, workers=0) as large,
    ):
        for _ in zip(small, large, strict=True):
            pass
        assert small.stats().memory.touched == pytest.approx(small.memory, rel=2 * WITHIN)
        assert large.stats().memory.touched == pytest.approx(large.memory, rel=WITHIN)


def test_a_new_version_of_the_dataset_takes_the_place_of_the_old() -> None:
    """Only what is kept for workers now is counted."""
    with ringfeed.Loader(Growing(BIG), batch_size=32, slots=2, workers=1) as loader:
        segment = shared_plan(loader) - loader.plan.dataset_shared
        for epoch in range(3):
            for _ in loader:
                pass
            shipped = loader.stats().memory.reserved - segment
            # What on_epoch_end() changed travels when the next epoch begins.
            assert shipped == pytest.approx(BIG + epoch * 500_000, abs=20_000)


def test_held_slots_are_told_with_their_ages() -> None:
    """The oldest first; one that is let go of is gone."""
    with ringfeed.Loader(Oracle(40), batch_size=4, slots=4, workers=0) as loader:
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        held = loader.stats().memory.held
        assert len(held) == 2
        assert held[0].age_s > held[1].age_s > 0
        assert [place for _, place in held] == ["", ""]
        del kept[0]
        (left,) = loader.stats().memory.held
        assert left.age_s > held[1].age_s


def test_statistics_do_not_look() -> None:
    """Only who asks for the memory waits for the kernel."""
    with (
        ringfeed.Loader(Oracle(40), batch_size=4, workers=0) as loader,
        pytest.MonkeyPatch.context() as patch,
    ):
        kept = next(iter(loader))
        patch.setattr("ringfeed.monitor.memory.look", None)
        stats = loader.stats()
        with pytest.raises(TypeError):
            _ = stats.memory
        del kept


def test_copies_of_statistics_have_no_memory() -> None:
    """They compare, pickle and copy as before, and say what to ask instead."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=0) as loader:
        stats = loader.stats()
        for other in (copy.copy(stats), pickle.loads(pickle.dumps(stats)), Stats()):
            assert other.batches == stats.batches
            with pytest.raises(AttributeError) as caught:
                _ = other.memory
            assert str(caught.value) == (
                "these statistics are a copy, which has no loader to look at; ask "
                "loader.stats().memory"
            )
        assert stats.memory.planned == loader.memory


def test_statistics_keep_no_loader() -> None:
    """A loader that nobody refers to goes at once; its statistics still know the plan."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=0)
    for _ in loader:
        pass
    stats, plan, gone = loader.stats(), loader.plan, weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()
    assert stats.memory == Memory(plan, 0, Pages(0, 0), (), ())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_bench_finds_that_they_agree(method: str) -> None:
    """Its smallest case, in a process of its own, as `make` runs all of them."""
    sys.path.append(str(BENCH))
    try:
        bench = importlib.import_module("studies.memory")
    finally:
        sys.path.remove(str(BENCH))
    found = bench.run_case(0, method)
    assert found["reserved"] == found["planned"]
    assert not bench.is_off(found)
    assert bench.row({"case": "a", "method": method, **found})[:4] == (
        "a",
        method,
        show_bytes(found["planned"]),
        show_bytes(found["reserved"]),
    )
    assert bench.is_off({**found, "kernel": 1.1 * found["planned"]})


# ---- what goes away meanwhile ----


def test_a_worker_that_dies_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that nobody has waited for yet, and one whose number no process has any more."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1) as loader:
        kept = next(iter(loader))
        (own,) = pids(loader)
        monkeypatch.setattr(Processes, "pids", lambda _: [process.pid, own])
        assert [worker.pid for worker in loader.stats().memory.workers] == [process.pid, own]
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in /proc
        assert [worker.pid for worker in loader.stats().memory.workers] == [own]
        process.communicate()
        assert [worker.pid for worker in loader.stats().memory.workers] == [own]
        del kept


def test_a_worker_is_replaced_in_the_figures() -> None:
    """Whoever takes the place of a dead worker is looked at from then on."""
    with ringfeed.Loader(Filled(), batch_size=8, workers=1) as loader:
        batches = used(loader)
        (first,) = loader.stats().memory.workers
        os.kill(first.pid, signal.SIGKILL)
        wait_until(
            lambda: (
                [worker.pid for worker in loader.stats().memory.workers] not in ([], [first.pid])
            )
        )
        assert loader.stats().memory.reserved == shared_plan(loader)
        del batches


def test_where_proc_is_hidden_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is made up: what /proc does not say is None, and the text says so."""
    with ringfeed.Loader(Oracle(40), batch_size=4, slots=4, workers=1) as loader:
        kept = next(iter(loader))
        monkeypatch.setattr(memory, "PROC", tmp_path)
        now = loader.stats().memory
        assert (now.pages, now.touched, now.resident) == (None, None, None)
        assert now.workers == ()
        assert now.reserved == shared_plan(loader)
        assert (
            str(now).splitlines()[2] == f"touched    unknown: {tmp_path}/self/smaps cannot be read"
        )
        del kept


def test_another_files_descriptor_is_never_counted(tmp_path: Path) -> None:
    """A descriptor that another file got between two looks is looked at again."""
    large = tmp_path / "large"
    large.write_bytes(bytes(1_000_000))

    with large.open("rb") as file:
        known = [
            [file.fileno()],
            [],
            [],
            [],
        ]  # closed while it is looked at; the number is another file's at once
        assert memory._sizes(lambda: known.pop(0)) == {}


# ---- as text ----


def test_the_text_of_a_loader_that_runs() -> None:
    """One line a thing, and one a worker."""
    plan = make_plan(
        Spec(Array((256, 256, 3), "uint8")),
        64,
        64,
        workers=2,
        slots=2,
        dataset_shared=30_003_200,
        dataset_per_worker=2012,
    )
    found = Memory(
        plan,
        55_320_576,
        Pages(25_309_184, 12_600_000),
        (Held(12.34, "train.py:41 in step"), Held(0.06, "C code")),
        (WorkerMemory(4711, Pages(25_309_184, 9_000_000), 61_200_000, 18_300_000),),
    )
    assert found.resident == 21_600_000
    assert str(found) == (
        f"planned    {show_bytes(plan.total)}: 2 slots of 12.7 MB, {show_bytes(plan.control_size)} "
        "of control, 30.0 MB of the dataset, 2.0 kB more in each of 2 workers; and 262.1 kB of "
        "indices in this process\nreserved   55.3 MB\ntouched    25.3 MB by this process\nheld    "
        "   2 of 2 slots, for 12.3, 0.1 s: 1 from train.py:41 in step, 1 from C code\nworker "
        "4711: touched 25.3 MB; with its interpreter 61.2 MB, of which 18.3 MB are its own"
    )


def test_the_text_of_a_loader_that_does_not_run() -> None:
    """The plan, and zeros."""
    plan = make_plan(Spec(Array((256, 256, 3), "uint8")), 64, 64, workers=2, slots=2)
    assert str(Memory(plan, 0, Pages(0, 0), (), ())) == (
        f"planned    {show_bytes(plan.total)}: 2 slots of 12.7 MB, {show_bytes(plan.control_size)} "
        "of control; and 262.1 kB of indices in this process\nreserved   0 bytes\ntouched    0 "
        "bytes by this process\nheld       0 of 2 slots"
    )


def test_the_planned_indices_are_all_that_is_kept_of_large_batches() -> None:
    """With any number of slots, the consumer keeps the indices of one large batch, as planned."""
    rows, slots = 250_000, 32

    def anonymous() -> int:
        status = Path("/proc/self/status").read_text()
        # Linux has this line.
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    data = np.zeros(rows * slots, np.uint8)
    with ringfeed.Loader((data,), batch_size=rows, slots=slots, workers=1, shuffle=True) as loader:
        assert loader.plan.planned_size == 2 * rows * 8
        before, most = anonymous(), 0
        for _ in loader:
            most = max(most, anonymous() - before)
        assert most < loader.plan.planned_size + 8 * 10**6

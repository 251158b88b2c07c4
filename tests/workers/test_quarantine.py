"""Workers that SIGKILL cannot end: their samples run again elsewhere.

A process that waits for a dead file system outlives SIGKILL. Here it is played by one that has
stopped itself, and that this process's SIGKILL does not reach; unlike the real one it can wake up,
and go on to write.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import FOREVER_S
from ringfeed.monitor._snapshot import Observer
from ringfeed.workers import processes
from ringfeed.workers.process import WorkerProcess
from ringfeed.workers.roster import Roster
from watching import lose_patience, pids, pool_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

METHODS = ["spawn", "fork", "process"]
ROW = (1000,)


class Stuck:
    """At some indices the first worker stops in mid-row, and spoils the row when it wakes."""

    def __init__(self, place: Path, at: tuple[int, ...] = (5,), length: int = 40) -> None:
        self.place = place
        self.at = at
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full(ROW, index, np.int64)

    def read_into(self, index: int, out: Any) -> None:
        out[:] = index
        if index in self.at:
            with suppress(FileExistsError), Path(self.place, str(index)).open("x") as file:
                file.write(str(os.getpid()))
                file.flush()
                out[500:] = -1
                os.kill(os.getpid(), signal.SIGSTOP)
                out[:] = -2
                Path(self.place, f"{index} spoiled").touch()


class SlowToOpen(Stuck):
    """Takes its time to unpickle: the first workers for ever, others a while."""

    def __init__(self, place: Path, *, never: int = 0, open_s: float = 0.0) -> None:
        super().__init__(place, at=())
        self.never = never
        self.open_s = open_s

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        opened = Path(self.place, "opened")
        with opened.open("a") as file:
            file.write("x")
        time.sleep(FOREVER_S if opened.stat().st_size <= self.never else self.open_s)


def quarantined(loader: ringfeed.Loader) -> set[int]:
    """Return the processes that SIGKILL could not end, and that were replaced."""
    return {one.pid for one in [*pool_of(loader)._roster.all.values()] if one.is_quarantined}


@pytest.fixture
def immortal(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Processes that SIGKILL does not end before the test is over."""
    pids: set[int] = set()
    kill = WorkerProcess.kill

    def kill_mortals(worker: WorkerProcess, number: signal.Signals = signal.SIGKILL) -> None:
        if worker.pid not in pids:
            kill(worker, number)

    monkeypatch.setattr(WorkerProcess, "kill", kill_mortals)
    monkeypatch.setattr(processes, "KILL_S", 0.1)
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stopped(place: Path, index: int | str = 5) -> int:
    """Return the process that has stopped in a sample, once it has."""
    path = place / str(index)
    wait_until(lambda: path.exists() and path.read_text() != "")
    pid = int(path.read_text())
    wait_until_stopped(pid)
    return pid


def wait_until_stopped(pid: int) -> None:
    """Wait until a process has stopped.

    The signal takes a moment where it runs on another processor.
    """
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")


def all_done_but_one(loader: ringfeed.Loader, tickets: int) -> None:
    """Wait until a single one of so many tickets is unfinished.

    Whoever has it is the only one inside a sample.
    """
    ring = pool_of(loader)._config.ring

    def done() -> bool:
        workers = Observer(ring).workers()
        claimed = sum(worker.tickets for worker in workers)
        return claimed == tickets and sum(worker.since_ns > 0 for worker in workers) == 1

    wait_until(done)


def check(batch: Any, number: int) -> None:
    """A batch of four rows, each all of its own index."""
    assert np.array_equal(
        batch, np.repeat(np.arange(4 * number, 4 * number + 4), ROW[0]).reshape(4, -1)
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_cannot_be_ended(method: Any, tmp_path: Path, immortal: set[int]) -> None:
    """Its batch comes in its place, whole, from another slot.

    Its own stays out of use until it is dead.
    """
    settings: Any = {"workers": 2, "slots": 3, "backend": method, "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path), batch_size=4, **settings) as loader:
        batches = iter(loader)
        immortal.add(stopped(tmp_path))
        all_done_but_one(loader, 6)
        assert pool_of(loader).kill_stuck(1) == 1
        for number in range(10):
            check(next(batches), number)
        assert next(batches, None) is None
        wait_until(lambda: loader.stats().restarts == 1)
        assert len(pids(loader)) == 2
        assert loader.slot_states().count("draining") == 1
        os.kill(immortal.pop(), signal.SIGKILL)
        wait_until(lambda: "draining" not in loader.slot_states())
        wait_until(lambda: quarantined(loader) == set())
        for number, batch in enumerate(loader):
            check(batch, number)
        wait_until(lambda: loader.stats().restarts == 1)


@pytest.mark.usefixtures("nothing_left")
def test_a_fenced_worker_that_wakes_up(tmp_path: Path, immortal: set[int]) -> None:
    """What it writes then goes into no batch, neither into a held one nor a later one."""
    settings: Any = {"workers": 2, "slots": 3, "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path), batch_size=4, **settings) as loader:
        batches = iter(loader)
        immortal.add(pid := stopped(tmp_path))
        check(next(batches), 0)
        lose_patience(loader, 0.1)
        held = next(batches)
        check(held, 1)
        lose_patience(loader, 120)
        assert quarantined(loader) == {pid}
        os.kill(pid, signal.SIGCONT)
        wait_until((tmp_path / "5 spoiled").exists)
        check(held, 1)
        del held
        for number in range(2, 10):
            check(next(batches), number)


@pytest.mark.usefixtures("nothing_left")
def test_every_slot_in_quarantine(tmp_path: Path, immortal: set[int]) -> None:
    """When no slot is left a StallError names those that cannot be ended.

    The run goes on when they are dead.
    """
    settings: Any = {"workers": 1, "slots": 2, "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path, at=(0, 1)), batch_size=4, **settings) as loader:
        batches = iter(loader)
        for index in (0, 1):
            immortal.add(stopped(tmp_path, index))
            assert pool_of(loader).kill_stuck(1) == 1
        assert loader.slot_states() == ["draining", "draining"]
        lose_patience(loader, 0.1)
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        lose_patience(loader, 120)
        lines = str(caught.value).splitlines()
        assert lines[0] == (
            "no batch for 0.1 s: 2 of 2 workers inside dataset[i] (i = 0, 1); raise timeout_s or "
            "look there"
        )
        ended = [line for line in lines if "SIGKILL" in line]
        assert [
            int(pid)
            for line in ended
            for pid in re.findall(r"pid (\d+), which SIGKILL could not end", line)
        ] == [
            stopped(tmp_path, 0),
            stopped(tmp_path, 1),
        ]
        for pid in [*immortal]:
            immortal.remove(pid)
            os.kill(pid, signal.SIGKILL)
        for number in range(10):
            check(next(batches), number)


@pytest.mark.usefixtures("nothing_left")
def test_every_open_slot_in_quarantine(tmp_path: Path, immortal: set[int]) -> None:
    """Where workers that SIGKILL cannot end keep all open slots, a StallError ends the wait."""
    settings: Any = {"workers": 2, "slots": "auto", "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path, at=(0, 4)), batch_size=4, **settings) as loader:
        batches = iter(loader)
        assert loader._runner.engine is not None
        for index in (0, 4):
            immortal.add(stopped(tmp_path, index))
        assert pool_of(loader).kill_stuck(1) == 1
        assert loader.slot_states()[:3] == ["draining", "draining", "parked"]
        with pytest.raises(ringfeed.StallError):
            loader._runner.engine.stalled()
        del batches
        while immortal:
            os.kill(immortal.pop(), signal.SIGKILL)


class Poisonous(Stuck):
    """Every worker stops at these indices."""

    def read_into(self, index: int, out: Any) -> None:
        super().read_into(index, out)
        if index in self.at:
            Path(self.place, "again").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.usefixtures("nothing_left")
def test_a_sample_that_no_worker_comes_back_from(tmp_path: Path, immortal: set[int]) -> None:
    """After max_attempts workers that could not be ended, a StallError names the sample."""
    settings: Any = {"workers": 2, "slots": 4, "on_stall": "restart", "max_attempts": 2}
    with ringfeed.Loader(Poisonous(tmp_path, at=(0,)), batch_size=4, **settings) as loader:
        batches = iter(loader)
        for name in ("0", "again"):
            immortal.add(stopped(tmp_path, name))
            (tmp_path / name).write_text("")
            assert pool_of(loader).kill_stuck(1) == 1
        immortal.add(stopped(tmp_path, "again"))
        assert quarantined(loader) < immortal
        assert loader.stats().restarts >= 2
        lose_patience(loader, 0.1)
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        found = re.match(
            r"no batch for 0\.1 s: [34] of 4 workers inside dataset\[i\] \(i = (.*)\);",
            str(caught.value),
        )
        assert found is not None
        assert found[1].split(", ").count("0") == 3
        assert len(immortal) == 3
        while immortal:
            os.kill(immortal.pop(), signal.SIGKILL)


@pytest.mark.usefixtures("nothing_left")
def test_workers_that_are_slow_to_start(tmp_path: Path) -> None:
    """One that takes longer to start than timeout_s is replaced, and it is no early death."""
    settings: Any = {
        "workers": 3,
        "slots": 2,
        "backend": "spawn",
        "timeout_s": 0.5,
        "on_stall": "restart",
    }
    settings["spec"] = ringfeed.Array(ROW, "int64")
    with ringfeed.Loader(SlowToOpen(tmp_path, never=3), batch_size=4, **settings) as loader:
        for number, batch in enumerate(loader):
            check(batch, number)
        assert loader.stats().restarts >= 3


@pytest.mark.usefixtures("nothing_left")
def test_a_start_that_takes_longer_than_a_batch_may(tmp_path: Path) -> None:
    """Each worker that is replaced for it makes the loader more patient, so that one arrives."""
    settings: Any = {
        "backend": "spawn",
        "timeout_s": 0.2,
        "on_stall": "restart",
        "max_attempts": 1000,
    }
    settings["spec"] = ringfeed.Array(ROW, "int64")
    with ringfeed.Loader(
        SlowToOpen(tmp_path, open_s=0.5), batch_size=4, workers=1, slots=2, **settings
    ) as loader:
        for number, batch in enumerate(loader):
            check(batch, number)
        assert loader.stats().restarts >= 1


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_has_just_begun_is_not_stuck(tmp_path: Path, immortal: set[int]) -> None:
    """No worker is suspected before it has been at a sample for timeout_s."""
    settings: Any = {"workers": 1, "slots": 2, "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path, at=(0,)), batch_size=4, **settings) as loader:
        batches = iter(loader)
        immortal.add(stopped(tmp_path, 0))
        pool, hour_ns = pool_of(loader), 3600 * 10**9
        assert 0 < pool.kill_stuck(hour_ns) < hour_ns
        killed = [one for one in pool._roster.all.values() if one.is_killed]
        assert (killed, loader.stats().restarts) == ([], 0)
        os.kill(immortal.pop(), signal.SIGKILL)
        check(next(batches), 0)


@pytest.mark.usefixtures("nothing_left")
def test_workers_that_are_stopped_while_they_sleep(tmp_path: Path) -> None:
    """If no worker comes for what is to be filled all workers are suspected, and replaced."""
    settings: Any = {"workers": 2, "slots": 2, "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path, at=()), batch_size=4, **settings) as loader:
        batches = iter(loader)
        held = [
            next(batches),
            next(batches),
        ]  # the second is a copy, so that its slot is filled again
        before, observer = pids(loader), pool_of(loader)._observer
        # A worker that is stopped inside a ticket, or claims what is freed now, would be the only
        # one suspected.
        wait_until(lambda: observer.states() == ["held", "ready"])
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        for pid in before:
            wait_until_stopped(pid)
        held.clear()
        assert pool_of(loader).kill_stuck(1) == 1
        for number in range(2, 10):
            check(next(batches), number)
        # The second death may be heard of after the last batch.
        wait_until(lambda: loader.stats().restarts >= 2)
        assert loader.stats().restarts == 2
        assert not any(map(leftovers.runs, before))


@pytest.mark.usefixtures("nothing_left")
def test_fencing_counts_as_a_restart(tmp_path: Path, immortal: set[int]) -> None:
    """A worker that cannot be ended is one that was replaced."""
    settings: Any = {"workers": 1, "slots": 3, "backend": "spawn", "on_stall": "restart"}
    with ringfeed.Loader(Stuck(tmp_path, at=(0,)), batch_size=4, **settings) as loader:
        batches = iter(loader)
        immortal.add(stopped(tmp_path, 0))
        assert pool_of(loader).kill_stuck(1) == 1
        check(next(batches), 0)
        assert loader.stats().restarts == 1
        os.kill(immortal.pop(), signal.SIGKILL)


def test_closing_does_not_wait_for_the_immortal(tmp_path: Path, immortal: set[int]) -> None:
    """close() comes back though a worker cannot be ended.

    When it can, it is, and nothing is left.
    """
    before = leftovers.present()
    settings: Any = {"workers": 1, "slots": 3, "backend": "spawn", "on_stall": "restart"}
    loader = ringfeed.Loader(Stuck(tmp_path, at=(0,)), batch_size=4, **settings)
    batches = iter(loader)
    immortal.add(pid := stopped(tmp_path, 0))
    assert pool_of(loader).kill_stuck(1) == 1
    check(next(batches), 0)
    loader.close()
    assert leftovers.runs(pid)
    os.kill(pid, signal.SIGKILL)
    del batches, loader
    assert not leftovers.since(before)


def test_the_worst_of_some_samples_counts() -> None:
    """By the workers that it has cost; none where there are no samples, or they have cost none."""
    # Workers whose ids are those of the samples that they are inside of.
    observer: Any = SimpleNamespace(worker=lambda number: SimpleNamespace(inside=number or None))
    roster = Roster(None, observer, None, 4)  # type: ignore[arg-type]
    roster._unkillable_at.update({1: 2, 2: 5, 3: 7})
    found = [
        roster.most_unkillable_in([SimpleNamespace(number=number) for number in numbers])  # type: ignore[misc]
        for numbers in ([1, 2], [2, 1, 9], [9], [0], [])
    ]
    assert found == [5, 5, 0, 0, 0]

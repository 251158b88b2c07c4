"""Slots that open and close, and workers that come and go, while batches are delivered.

Nothing is lost by it.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import Oracle, check, drain, flat
from ringfeed._units import show_bytes
from ringfeed.datasets import reader
from ringfeed.engine import autotune
from ringfeed.engine.autotune import Setting
from ringfeed.errors import PlanError, WorkerError
from scripting import ROOM, Slowly, scripted
from watching import pids, pool_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]

BACKENDS = [{"backend": "thread"}, {"backend": "spawn"}, {"backend": "fork"}]


@pytest.fixture(autouse=True)
def _looks_at_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "LOOK_NS", 0)


def reserved_slots(loader: ringfeed.Loader) -> float:
    """Return for how many slots the kernel has set memory aside."""
    assert loader._runner.engine is not None
    return os.fstat(loader._runner.engine.segment.slots_fd).st_blocks * 512 / loader.plan.slot_size


def living_threads(loader: ringfeed.Loader) -> int:
    """Return how many threads fill."""
    return sum(thread.is_alive() for thread in pool_of(loader)._threads.values())


# ---- what is delivered ----


@pytest.mark.parametrize("form", BACKENDS)
def test_every_sample_comes_once_in_order_whatever_moves(form: dict[str, Any]) -> None:
    """Slots and workers go up and down at every batch.

    Each epoch is the one that a loader at rest gives.
    """
    walk = [(1, 2), (3, 5), (1, 2), (4, 3), (2, 8), (1, 1), (4, 4), (2, 2)] * 3
    loader, script = scripted(Oracle(200), *walk, **form)
    with loader:
        assert drain(loader) == list(range(200))
        assert drain(loader) == list(range(200))
        assert not script._others


def test_shuffled_batches_do_not_depend_on_the_moves() -> None:
    """The order is that of the seed."""
    loader, _ = scripted(Oracle(100), (1, 2), (2, 4), (1, 3), shuffle=True, seed=5)
    with (
        loader,
        ringfeed.Loader(Oracle(100), batch_size=4, workers=0, shuffle=True, seed=5) as still,
    ):
        assert drain(loader) == drain(still)


def test_an_epoch_that_is_broken_off_loses_nothing_of_the_next() -> None:
    """Slots that drain while others are parked come back."""
    loader, _ = scripted(Oracle(80), (2, 6), (1, 2), (2, 6), (1, 2), (2, 6))
    with loader:
        for _ in range(4):
            for number, batch in enumerate(loader):
                check(batch)
                if number == 2:
                    break
        assert drain(loader) == list(range(80))


# ---- slots ----


def test_what_is_not_open_is_not_reserved() -> None:
    """The kernel has set aside what the open slots take, no more.

    And what is parked comes back to it.
    """
    loader, _ = scripted(Oracle(400), (1, 2), (1, 6))
    with loader:
        iterator = iter(loader)
        assert reserved_slots(loader) == 2
        seen = [check(next(iterator)) for _ in range(3)]
        assert reserved_slots(loader) == 6
        loader._runner.tuner._others.append(Setting(1, 3))  # type: ignore[union-attr]
        seen += [check(next(iterator)) for _ in range(20)]
        assert reserved_slots(loader) == 3
        assert loader.slot_states()[3:] == ["parked"] * (loader.plan.slots - 3)
        assert flat(seen) + drain(iterator) == list(range(400))


def test_a_view_keeps_a_slot_that_is_to_be_parked() -> None:
    """Its memory is given back when the view is gone, and not before."""
    loader, _ = scripted(Oracle(400), (1, 4), (1, 2))
    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator)) for _ in range(2)]
        kept = next(iterator)  # in one of the two slots that are to go
        seen += [check(next(iterator)) for _ in range(6)]
        assert check(kept) == [8, 9, 10, 11]
        assert reserved_slots(loader) == 3
        del kept
        seen += [check(next(iterator)) for _ in range(3)]
        assert reserved_slots(loader) == 2
        assert flat(seen) + drain(iterator) == [*range(8), *range(12, 400)]


def test_slots_that_are_all_held_open_another() -> None:
    """A loop that keeps batches gets more slots, up to the tuner's most, and no error."""
    loader, script = scripted(Oracle(400), (1, 2))
    with loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(6)]
        assert flat(check(batch) for batch in kept) == list(range(24))
        assert script.setting.slots >= 6
        assert any(window.all_held for window in script.windows)


def test_a_slot_that_the_machine_has_no_room_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training goes on with the slots there are, and the tuner is told why."""

    def full(size: int, what: str) -> None:
        assert size == loader.plan.slot_size
        raise PlanError(what)

    loader, script = scripted(Oracle(100), (1, 3), (1, 5))
    monkeypatch.setattr(autotune, "check_free", full)
    with loader:
        assert drain(loader) == list(range(100))
        assert script.refusals == [f"another slot needs {show_bytes(loader.plan.slot_size)}"]
        assert reserved_slots(loader) == 3


def test_a_worker_that_cannot_be_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on with the workers there are."""
    loader, script = scripted(Oracle(100), (1, 3), (2, 3))
    with loader:
        iterator = iter(loader)

        def poor() -> None:
            message = "no worker can be started: no memory"
            raise WorkerError(message)

        with monkeypatch.context() as patch:
            patch.setattr(pool_of(loader), "_launch", poor)
            assert drain(iterator) == list(range(100))
        assert script.refusals == ["no worker can be started: no memory"]
        assert len(pids(loader)) == 1


# ---- workers ----


def test_processes_come_and_go() -> None:
    """A worker that is sent away exits, is not replaced and is no restart; ids are used again."""
    loader, _ = scripted(Slowly(400), (1, 4), (3, 4))
    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator)) for _ in range(2)]
        assert len(pids(loader)) == 3
        for workers in (1, 4, 2):
            loader._runner.tuner._others.append(Setting(workers, 4))  # type: ignore[union-attr]
            seen += [check(next(iterator)) for _ in range(2)]
            wait_until(lambda workers=workers: len(pids(loader)) == workers)  # type: ignore[misc]
        assert loader.stats().restarts == 0
        assert flat(seen) + drain(iterator) == list(range(400))


def test_threads_come_and_go() -> None:
    """The same of threads."""
    loader, _ = scripted(Slowly(400), (1, 4), (3, 4), backend="thread")
    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator)) for _ in range(2)]
        assert living_threads(loader) == 3
        for workers in (1, 4, 2):
            loader._runner.tuner._others.append(Setting(workers, 4))  # type: ignore[union-attr]
            seen += [check(next(iterator)) for _ in range(2)]
            wait_until(lambda workers=workers: living_threads(loader) == workers)  # type: ignore[misc]
        assert flat(seen) + drain(iterator) == list(range(400))


@pytest.mark.parametrize("form", BACKENDS[1:])
def test_a_worker_killed_while_it_leaves_loses_nothing(form: dict[str, Any]) -> None:
    """Its rows run again elsewhere, and nobody comes in its place."""
    loader, _ = scripted(Slowly(60), (3, 4), (1, 4), **form)
    with loader:
        iterator = iter(loader)
        wait_until(lambda: bool(pids(loader)))
        first = check(next(iterator))
        for pid in pids(loader)[1:]:
            os.kill(pid, signal.SIGKILL)
        assert first + drain(iterator) == list(range(60))
        wait_until(lambda: len(pids(loader)) == 1)


@pytest.mark.parametrize("form", BACKENDS[1:])
def test_the_last_worker_is_replaced_when_it_is_killed(form: dict[str, Any]) -> None:
    """One that stays is as unkillable as ever, also where others have gone before."""
    loader, _ = scripted(Oracle(400), (3, 4), (1, 4), **form)
    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator)) for _ in range(4)]
        wait_until(lambda: len(pids(loader)) == 1)
        os.kill(pids(loader)[0], signal.SIGKILL)
        assert flat(seen) + drain(iterator) == list(range(400))
        wait_until(lambda: loader.stats().restarts == 1)


# ---- the real tuner ----


def moving(pull: Callable[[ringfeed.Loader], Iterable[Any]]) -> ringfeed.Loader:
    """Return a loader over a slow source that has moved."""
    loader = ringfeed.Loader(Slowly(10_000), batch_size=8, **ROOM)
    for batch in pull(loader):
        check(batch)
        if loader.stats().tuning:
            break
    return loader


def test_a_slow_source_gets_more_workers() -> None:
    """The tuner sees that training waits; the statistics say what it did, and why."""
    with moving(lambda loader: loader) as loader:
        step = loader.stats().tuning[0]
        assert step.setting.workers > 1
        assert "training waits" in step.why
        assert len(pids(loader)) == step.setting.workers


def test_begins_small_and_plans_for_the_most() -> None:
    """One worker and two slots at first, within the budget that it was given."""
    with ringfeed.Loader(Oracle(100), batch_size=4, memory="1MB", **ROOM) as loader:  # type: ignore[arg-type]
        check(next(iter(loader)))
        assert len(pids(loader)) == 1
        assert loader.slot_states().count("parked") == loader.plan.slots - 2
        assert loader.memory <= 10**6


def test_counts_go_on_over_epochs_and_restarts() -> None:
    """A tuner outlives the ring that it tunes."""
    loader, script = scripted(Oracle(40), (1, 2), (2, 3))
    with loader:
        assert drain(loader) == list(range(40))
        assert np.sum([window.batches for window in script.windows]) <= 10
        assert drain(loader) == list(range(40))
        assert script.setting == Setting(2, 3)


def test_ctrl_c_while_a_thread_starts_gives_its_id_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread whose start was interrupted runs all the same.

    It leaves, and no other has its id before it is gone.
    """
    loader, _ = scripted(Oracle(400), (1, 2), backend="thread")
    others, started = (
        set(threading.enumerate()),
        threading.Event.wait,
    )

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        monkeypatch.undo()
        started(event, timeout)
        raise KeyboardInterrupt

    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator))]
        monkeypatch.setattr(threading.Event, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            pool_of(loader).resize(2)
        pool_of(loader).resize(2)
        wait_until(lambda: living_threads(loader) == 2)
        names = [thread.name for thread in set(threading.enumerate()) - others]
        assert len(set(names)) == len(names)
        assert flat(seen) + drain(iterator) == list(range(400))


@pytest.mark.parametrize("method", ["fork", "process"])
def test_ctrl_c_while_a_worker_is_forked_does_not_mix_up_workers(method: Any) -> None:
    """The forkserver's answer to an order that was given up is not taken for the next one's."""
    loader, _ = scripted(Oracle(400, sleep_s=0.002), (1, 2), backend=method)
    with loader:
        iterator = iter(loader)
        seen = [check(next(iterator))]
        pool = pool_of(loader)
        forkserver = pool._launcher._forkserver.pid
        os.kill(forkserver, signal.SIGSTOP)
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            pool.resize(2)
        with suppress(ProcessLookupError):
            os.kill(forkserver, signal.SIGCONT)
        pool.resize(2)
        assert flat(seen) + drain(iterator) == list(range(400))
        assert pool.restarts == 0


@contextmanager
def interrupted_after(delay_s: float) -> Iterator[None]:
    """Have Ctrl-C come after so long."""
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_memory_that_the_kernel_does_not_take_back_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot whose pages are locked is parked all the same, and training goes on."""
    loader, _ = scripted(Oracle(80), (1, 4), (1, 2))

    def refuse(*_: Any) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with loader:
        iterator = iter(loader)
        monkeypatch.setattr(loader._runner.engine.segment, "give_back", refuse)  # type: ignore[union-attr]
        assert drain(iterator) == list(range(80))
        assert reserved_slots(loader) == 4
        assert loader.slot_states()[2:4] == ["parked"] * 2


def test_the_first_worker_is_woken_though_others_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sleeps is all there are, however many are allowed.

    What is to be filled does not wait for them.
    """
    monkeypatch.setattr(reader, "IDLE_NS", 10**12)  # or it would look round by itself
    loader, _ = scripted((np.arange(8000),), (1, 4), backend="fork")
    with loader:
        iterator = iter(loader)
        for _ in range(300):
            next(iterator)  # quick enough to do without wakes
        for _ in range(100):
            for _ in range(3):
                next(iterator)
            wait_until(iterator.ready)

"""The pools: which workers are replaced, what is left after an error, and how all of it ends."""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import FOREVER_S, Misbehaving, Oracle, Unhurried, check, drain
from ringfeed.engine.runner import EpochRunner
from ringfeed.system import channel as channels
from ringfeed.workers import launchers as forkserver
from ringfeed.workers import processes
from ringfeed.workers.process import Spawner
from ringfeed.workers.roster import Roster
from watching import pids, pool_of, run_script, wait_until, while_it_waits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringfeed.workers.process import WorkerProcess

pytestmark = pytest.mark.once

METHODS = ["spawn", "fork", "process"]


def ctrl_c() -> None:
    """Have Ctrl-C arrive at the main thread."""
    os.kill(os.getpid(), signal.SIGINT)


# ---- the consumer forks ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_forked_child_ends_no_worker(method: Any) -> None:
    """A child of the consumer that runs its exit hooks leaves the parent's workers alone."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend=method) as loader:
        iterator = iter(loader)
        check(next(iterator))
        before = pids(loader)
        pid = os.fork()
        if pid == 0:
            try:
                assert loader._runner.finalizer is not None
                loader._runner.finalizer()  # what its exit would run
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0
        time.sleep(0.2)
        assert pids(loader) == before
        assert all(map(leftovers.runs, before))
        assert not select.select([pool_of(loader)._wake_fd], [], [], 0)[0]
        assert loader.stats().restarts == 0
        assert drain(iterator) == list(range(4, 40))


def test_a_forked_child_cannot_take_batches() -> None:
    """A child that goes on with its parent's loader is refused, and takes no batch away."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1) as loader:
        iterator = iter(loader)
        check(next(iterator))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for call in (lambda: next(iterator), lambda: iter(loader)):
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - told to the parent
                    os.write(write, f"{type(error).__name__}: {error}\n".encode())
            del iterator
            loader.close()
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            lines = told.read().splitlines()
        assert os.waitpid(pid, 0)[1] == 0
        expected = (
            "ClosedError: this loader belongs to the process that this one was forked from; make "
            "a new one here"
        )
        assert lines == [expected, expected]
        assert drain(iterator) == list(range(4, 40))


# ---- failures of the pool ----


@pytest.mark.usefixtures("nothing_left", "irreplaceable")
def test_what_is_ready_comes_before_the_failure_of_the_pool() -> None:
    """Filled batches are delivered, then the error is raised, then the iterator is over."""
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1, slots=3) as loader:
        iterator = iter(loader)
        wait_until(lambda: loader.slot_states() == ["ready"] * 3)
        os.kill(pids(loader)[0], signal.SIGKILL)
        wait_until(lambda: pool_of(loader).failure is not None)
        assert [check(next(iterator)) for _ in range(3)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9, 10, 11],
        ]
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iterator)
        assert str(caught.value) == (
            "0 workers in a row ended before they filled anything; the last was killed by "
            "SIGKILL; look at its output above, or try workers=0"
        )
        assert next(iterator, "over") == "over"
        assert drain(loader) == list(range(40))


@pytest.mark.usefixtures("nothing_left", "irreplaceable")
def test_a_failure_between_epochs_is_mended_by_the_next() -> None:
    """A pool that failed when no thread waited is made anew by the next iter()."""
    with ringfeed.Loader(Oracle(8), batch_size=4, workers=1) as loader:
        assert drain(loader) == list(range(8))
        failed = pool_of(loader)
        os.kill(pids(loader)[0], signal.SIGKILL)
        wait_until(lambda: failed.failure is not None)
        assert drain(loader) == list(range(8))


@pytest.mark.usefixtures("irreplaceable")
def test_statistics_go_on_over_a_failure() -> None:
    """Times and restarts are counted since the loader was made, not since its workers were."""
    with ringfeed.Loader(Misbehaving("dies", at=4), batch_size=4, workers=1) as loader:
        for restarts in (1, 2):
            with pytest.raises(ringfeed.WorkerError):
                list(map(check, loader))
            assert loader.stats().restarts == restarts
            assert loader.stats().busy_s > 0
    assert loader.stats().restarts == 2


def test_a_worker_that_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the watcher reaches the consumer, with its cause."""
    with ringfeed.Loader(Oracle(4000), batch_size=4, workers=1, backend="spawn") as loader:
        iterator = iter(loader)
        check(next(iterator))

        def full(*_: object) -> WorkerProcess:
            raise BlockingIOError(11, "no more processes")

        monkeypatch.setattr(Spawner, "start", full)
        os.kill(pids(loader)[0], signal.SIGKILL)
        with pytest.raises(ringfeed.WorkerError) as caught:
            list(map(check, iterator))
        assert (
            str(caught.value)
            == "a worker could not be replaced: BlockingIOError: [Errno 11] no more processes"
        )
        assert type(caught.value.__cause__) is BlockingIOError


# ---- Ctrl-C, signals, garbage ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_while_it_closes(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupting close() while it waits for a busy worker leaves nothing behind all the same."""
    settings: Any = {"backend": method, "spec": Oracle.SPEC}
    loader = ringfeed.Loader(Misbehaving("sleeps", at=0), batch_size=4, workers=1, **settings)
    iterator = iter(loader)
    wait_until(lambda: loader._runner.engine.observer.worker(0).inside == 0)  # type: ignore[union-attr]
    terminate_all, presses = processes.terminate_all, [ctrl_c]
    monkeypatch.setattr(
        processes,
        "terminate_all",
        lambda *given: (presses and presses.pop()(), terminate_all(*given)),
    )
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    loader.close()
    del iterator


class SlowToPack(Oracle):
    """Takes long to pickle, and is interrupted in it, once a file exists."""

    def __init__(self, flag: Path) -> None:
        super().__init__(20)
        self.flag = flag

    def __reduce__(self) -> Any:
        if self.flag.exists():
            ctrl_c()
            time.sleep(FOREVER_S)
        return Oracle, (20,)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "process"])
def test_ctrl_c_while_it_starts(method: Any, tmp_path: Path) -> None:
    """Interrupting the start leaves nothing behind, and the next iter() starts again."""
    flag = tmp_path / "slow"
    with ringfeed.Loader(SlowToPack(flag), batch_size=4, workers=2, backend=method) as loader:
        flag.touch()
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        flag.unlink()
        assert drain(loader) == list(range(20))


@pytest.mark.usefixtures("nothing_left")
def test_closing_in_a_signal_handler() -> None:
    """A signal handler may close the loader that the main thread waits for."""
    loader = ringfeed.Loader(Misbehaving("sleeps", at=0), batch_size=4, workers=1, spec=Oracle.SPEC)
    before = signal.signal(signal.SIGUSR2, lambda *_: loader.close())
    try:
        batches = iter(loader)
        while_it_waits(lambda: os.kill(os.getpid(), signal.SIGUSR2))
        with pytest.raises(ringfeed.ClosedError):
            next(batches)
    finally:
        signal.signal(signal.SIGUSR2, before)


class ClosesItsLoader(Oracle):
    """Closes its loader when an epoch begins."""

    loader: ringfeed.Loader | None = None

    def on_epoch_begin(self) -> None:
        assert self.loader is not None
        self.loader.close()


@pytest.mark.usefixtures("nothing_left")
def test_closing_in_a_hook() -> None:
    """A hook of the dataset may close the loader that runs it; nothing is started afterwards."""
    dataset = ClosesItsLoader(20)
    dataset.loader = loader = ringfeed.Loader(dataset, batch_size=4, workers=0)
    with pytest.raises(ringfeed.ClosedError) as caught:
        iter(loader)
    assert str(caught.value) == "this loader is closed; make a new one"


@pytest.mark.usefixtures("nothing_left")
def test_garbage_collected_while_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator that the garbage collector finds inside close() does not stop it."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=1)
    cycle: list[Any] = [iter(loader)]
    check(next(cycle[0]))
    cycle.append(cycle)
    stop = EpochRunner.stop_engine

    def collect_and_stop(self: ringfeed.Loader) -> None:
        cycle_out()
        gc.collect()
        stop(self)

    def cycle_out() -> None:
        nonlocal cycle
        cycle = []

    monkeypatch.setattr(EpochRunner, "stop_engine", collect_and_stop)
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    closing.join(120)
    assert not closing.is_alive()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_loader_that_dies_in_its_watcher(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader whose last reference goes in the watching thread leaves nothing behind."""
    loaders = [ringfeed.Loader(Oracle(40), batch_size=4, workers=2, backend=method)]
    check(next(iter(loaders[0])))
    original = Roster._count_death
    seen = threading.Event()

    def drop(self: Roster, *rest: Any) -> None:
        loaders.clear()
        original(self, *rest)
        seen.set()

    monkeypatch.setattr(Roster, "_count_death", drop)
    os.kill(pids(loaders[0])[0], signal.SIGKILL)
    assert seen.wait(120)


@pytest.mark.usefixtures("nothing_left")
def test_closing_from_several_threads() -> None:
    """However many threads close a loader at once, all come back, and nothing is left."""
    loader = ringfeed.Loader(Oracle(400, sleep_s=0.01), batch_size=4, workers=2)
    check(next(iter(loader)))
    threads = [threading.Thread(target=loader.close, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("nothing_left")
def test_iterators_from_several_threads() -> None:
    """Threads that begin epochs at once start the workers once.

    The newest iterator wins, the others are told.
    """
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=1) as loader:
        made: list[Any] = []
        threads = [
            threading.Thread(target=lambda: made.append(iter(loader)), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        newest = max(made, key=lambda iterator: iterator.epoch_id)
        for older in made:
            if older is not newest:
                with pytest.raises(ringfeed.SupersededError):
                    next(older)
        assert drain(newest) == list(range(40))
        assert len(pids(loader)) == 1


@pytest.mark.parametrize("method", ["fork", "process"])
def test_rows_do_not_wait_for_a_forkserver_that_is_stopped(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead worker's rows go to others at once, though its forkserver cannot say yet how it ended."""
    monkeypatch.setattr(forkserver, "END_S", 200.0)
    with ringfeed.Loader(
        Oracle(400, sleep_s=0.01),
        batch_size=4,
        workers=2,
        backend=method,
        spec=Oracle.SPEC,
        timeout_s=120,
    ) as loader:
        batches = iter(loader)
        for _ in range(10):
            check(next(batches))
        stopped = pool_of(loader)._launcher._forkserver.pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            os.kill(pids(loader)[0], signal.SIGKILL)
            for _ in range(20):
                check(next(batches))
        finally:
            os.kill(stopped, signal.SIGCONT)


@pytest.mark.usefixtures("nothing_left")
def test_closing_replaces_no_worker() -> None:
    """Workers that leave because the loader closes are not taken for dead and replaced."""
    loader = ringfeed.Loader(Oracle(40), batch_size=4, workers=2)
    check(next(iter(loader)))
    with loader._runner.lock:  # another thread is in next() for a while
        closing = threading.Thread(target=loader.close)
        closing.start()
        time.sleep(0.4)
    closing.join(120)
    assert loader.stats().restarts == 0


# ---- descriptors ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_every_number_of_descriptors(method: Any) -> None:
    """Whichever descriptor is one too many, there is an error and nothing is left, or it works."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = ringfeed.Loader(Oracle(8), batch_size=4, workers=1, backend=method)
    used = os.dup(0)  # the lowest number that is free
    os.close(used)
    outcomes = []
    for room in range(48):
        before = leftovers.present()
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, hard))
        try:
            outcomes.append(sum(len(check(batch)) for batch in loader))
        except (OSError, ringfeed.RingfeedError):
            outcomes.append(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if not outcomes[-1]:
            assert leftovers.since(before) == [], f"with room for {room}"
        else:
            break
    loader.close()
    assert outcomes[0] == 0
    assert outcomes[-1] == 8


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["process", "fork"])
def test_no_room_for_the_descriptor_of_a_worker(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose pidfd the consumer cannot take is an error that says so, and is gone."""
    arrived = forkserver.Forker._arrived

    def full(*given: Any) -> Any:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)  # the lowest number that is free
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            return arrived(*given)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with ringfeed.Loader(Oracle(8), batch_size=4, workers=1, backend=method) as loader:
        with monkeypatch.context() as patched:
            patched.setattr(forkserver.Forker, "_arrived", full)
            with pytest.raises(
                ringfeed.WorkerError, match=r"^no worker can be started: .* RLIMIT_NOFILE"
            ) as caught:
                iter(loader)
        assert str(caught.value.__cause__) == (
            "[Errno 24] no room for the descriptors of a message"
        )
        del caught
        assert drain(loader) == list(range(8))


# ---- versions of a dataset ----


class Growing:
    """Is another dataset in every epoch: sample i is 1000 times the epoch, plus i."""

    def __init__(self, rows: int = 24, padding: int = 0) -> None:
        self.epoch = -1
        self.rows = rows
        self.padding = "x" * padding

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        time.sleep(0.0005)
        return 1000 * self.epoch + index

    def on_epoch_begin(self) -> None:
        self.epoch += 1


def epoch_of(loader: ringfeed.Loader) -> list[int]:
    """Return all samples of the next epoch."""
    return np.concatenate([batch.copy() for batch in loader]).tolist()  # type: ignore[no-any-return]


def has_killed(loader: ringfeed.Loader, number: int) -> bool:
    """Kill a worker; False where it is one that was killed before and has been reaped meanwhile."""
    there = pids(loader)
    with suppress(ProcessLookupError, IndexError):
        os.kill(there[number % 2 if len(there) == 2 else 0], signal.SIGKILL)
        return True
    return False


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_versions_while_workers_die(method: Any) -> None:
    """Workers that are killed as the dataset changes are replaced, and read the right version."""
    settings: Any = {"backend": method, "spec": ringfeed.Array((), "int64")}
    with ringfeed.Loader(Growing(), batch_size=4, workers=2, **settings) as loader:
        for epoch in range(6):
            iterator = iter(loader)
            wait_until(partial(has_killed, loader, epoch))
            seen = np.concatenate([batch.copy() for batch in iterator]).tolist()
            assert seen == list(range(1000 * epoch, 1000 * epoch + 24))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.EAGAIN, errno.ENOBUFS])
def test_a_worker_that_cannot_be_told(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that a message cannot reach is replaced, instead of waiting for it for ever."""
    with ringfeed.Loader(
        Growing(), batch_size=4, workers=2, spec=ringfeed.Array((), "int64"), timeout_s=120
    ) as loader:
        assert epoch_of(loader) == list(range(24))
        left = [1]
        original = channels.send

        def send(end: Any, message: Any, fds: Any = ()) -> None:
            if isinstance(message, dict) and "version" in message and left:
                left.clear()
                raise OSError(error, os.strerror(error))
            original(end, message, fds)

        monkeypatch.setattr(channels, "send", send)
        assert epoch_of(loader) == list(range(1000, 1024))
        wait_until(lambda: loader.stats().restarts == 1)
        assert epoch_of(loader) == list(range(2000, 2024))


@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c_while_a_version_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If sending a version is interrupted, no worker reads an old one afterwards."""
    dataset = Growing()
    with ringfeed.Loader(
        dataset, batch_size=4, workers=2, spec=ringfeed.Array((), "int64"), timeout_s=120
    ) as loader:
        assert epoch_of(loader) == list(range(24))
        original, calls = channels.send, []

        def send(end: Any, message: Any, fds: Any = ()) -> None:
            calls.append(message)
            if len(calls) == 2:
                raise KeyboardInterrupt
            original(end, message, fds)

        monkeypatch.setattr(channels, "send", send)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        dataset.epoch -= 1  # the same content again, which workers may have been sent already
        assert epoch_of(loader) == list(range(1000, 1024))
        assert epoch_of(loader) == list(range(2000, 2024))


@pytest.mark.usefixtures("nothing_left")
def test_a_sample_of_thousands_of_parts() -> None:
    """A spec whose description is longer than a packet may be still reaches the workers."""
    sample = {f"{'a part with a long name ' * 12}{n}": n for n in range(900)}
    with ringfeed.Loader([sample] * 2, batch_size=2, workers=1, slots=2, timeout_s=120) as loader:
        batch = next(iter(loader))
        assert [leaf.tolist() for leaf in batch.values()] == [[n, n] for n in range(900)]


# ---- workers that do not come up ----


class Reluctant(Oracle):
    """Takes for ever to unpickle, as long as a file exists."""

    def __init__(self, flag: Path, length: int = 20) -> None:
        super().__init__(length)
        self.flag = flag

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.flag.exists():
            self.flag.unlink()
            time.sleep(FOREVER_S)


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_stuck_in_its_start_is_replaced(tmp_path: Path) -> None:
    """With on_stall="restart", one that hangs before its first sample is replaced."""
    flag = tmp_path / "hang"
    flag.touch()
    how: Any = {"on_stall": "restart", "backend": "spawn", "spec": Oracle.SPEC}
    with ringfeed.Loader(Reluctant(flag), batch_size=4, workers=1, **how) as loader:
        batches = iter(loader)
        wait_until(lambda: not flag.exists())
        assert pool_of(loader).kill_stuck(1) == 1
        assert drain(batches) == list(range(20))
        wait_until(lambda: loader.stats().restarts == 1)


class TwiceReluctant(Reluctant):
    """Takes for ever to unpickle the first two times."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        times = len(self.flag.read_text())
        self.flag.write_text("x" * (times + 1))
        if times < 2:
            time.sleep(FOREVER_S)


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_stuck_in_the_dataset_is_done_without(tmp_path: Path) -> None:
    """Where it hangs in unpickling, each worker unpickles, and is watched.

    With on_stall="restart" it is replaced.
    """
    flag = tmp_path / "times"
    flag.touch()
    how: Any = {"on_stall": "restart", "backend": "process", "timeout_s": 2, "spec": Oracle.SPEC}
    with ringfeed.Loader(TwiceReluctant(flag), batch_size=4, workers=1, **how) as loader:
        assert drain(loader) == list(range(20))
        assert loader.stats().restarts >= 1
    assert len(flag.read_text()) >= 3  # once in the forkserver


@pytest.mark.usefixtures("nothing_left")
def test_close_ends_a_start(tmp_path: Path) -> None:
    """Another thread that closes a loader while it waits for the forkserver is not kept waiting."""
    flag = tmp_path / "hang"
    flag.touch()
    loader = ringfeed.Loader(
        Reluctant(flag), batch_size=4, workers=1, backend="process", spec=Oracle.SPEC
    )
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(lambda: iter(loader))
        wait_until(lambda: not flag.exists())
        loader.close()
        error = asked.exception(120)
    assert type(error) is ringfeed.ClosedError
    assert str(error) == "this loader is closed; make a new one"
    del asked, error


@pytest.mark.usefixtures("nothing_left")
def test_workers_that_die_early() -> None:
    """Three deaths in a row at the start are an error that says how the last one ended."""
    with ringfeed.Loader(
        Unhurried(20), batch_size=4, workers=1, spec=Oracle.SPEC, backend="spawn"
    ) as loader:
        iterator = iter(loader)
        pool = pool_of(loader)
        for deaths in range(1, 4):
            os.kill(pids(loader)[0], signal.SIGKILL)
            wait_until(
                lambda: loader.stats().restarts == deaths and (deaths == 3 or pids(loader) != [])  # noqa: B023
            )
        wait_until(lambda: pool.failure is not None)
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iterator)
    assert str(caught.value) == (
        "3 workers in a row ended before they filled anything; the last was killed by SIGKILL; "
        "look at its output above, or try workers=0"
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", ["spawn", "process"])
def test_a_dataset_that_cannot_be_packed_any_more(method: Any) -> None:
    """A dataset that cannot be pickled any more is an error at iter(), and nothing is left."""
    dataset = Oracle(20)
    loader = ringfeed.Loader(dataset, batch_size=4, workers=2, backend=method)
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ringfeed.ShipError) as caught:
        iter(loader)
    assert str(caught.value) == (
        "dataset.lock is a lock and cannot be sent to a worker process; create it on first use in "
        "__getitem__, in each worker, and leave it out in __getstate__ if this process reads the "
        "dataset too"
    )
    del dataset.lock  # type: ignore[attr-defined]
    assert drain(loader) == list(range(20))
    loader.close()


# ---- errors of the user's own code in this process ----


class BadBeginning(Oracle):
    """Fails when its second epoch begins."""

    begun = 0

    def on_epoch_begin(self) -> None:
        self.begun += 1
        if self.begun == 2:
            raise OSError("no more epochs")


@pytest.mark.usefixtures("nothing_left")
def test_a_hook_that_fails() -> None:
    """An error of on_epoch_begin comes out of iter(), and the next one begins that epoch."""
    with ringfeed.Loader(BadBeginning(20), batch_size=4, workers=1, shuffle=True) as loader:
        first = drain(loader)
        with pytest.raises(OSError, match="no more epochs"):
            iter(loader)
        second = drain(loader)
    with ringfeed.Loader(Oracle(20), batch_size=4, workers=0, shuffle=True) as loader:
        assert [drain(loader) for _ in range(2)] == [first, second]


@pytest.mark.usefixtures("nothing_left")
def test_a_sampler_that_fails() -> None:
    """An error of the sampler comes out of next(), and the next epoch is whole."""

    def sampler(epoch: int) -> Iterator[int]:
        yield from range(18)
        if epoch == 0:
            raise OSError("no more indices")

    with ringfeed.Loader(Oracle(20), batch_size=2, workers=1, slots=3, sampler=sampler) as loader:
        seen: list[int] = []
        iterator = iter(loader)
        with pytest.raises(OSError, match="no more indices"):
            seen.extend(index for batch in iterator for index in check(batch))
        assert seen == list(range(len(seen)))
        assert drain(loader) == list(range(18))


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e30, None])
def test_waiting_for_ever(timeout_s: float | None) -> None:
    """A timeout may be as long as can be said."""
    with ringfeed.Loader(Oracle(20), batch_size=4, workers=1, timeout_s=timeout_s) as loader:
        assert drain(loader) == list(range(20))


# ---- the interpreter exits ----

EXIT = """
import sys, threading
import numpy as np
import ringfeed
from datasets import Misbehaving, Oracle
loader = ringfeed.Loader({dataset}, batch_size=4, workers=2, {how}, spec=Oracle.SPEC)
iterator = iter(loader)
kept = next(iterator)
{end}
"""
AT_EXIT = {
    "with views": "",
    "in a cycle": "loop = [iterator, kept]; loop.append(loop)",
    "with a consumer thread": (
        "threading.Thread(target=lambda: [None for _ in iterator], daemon=True).start()"
    ),
}


@pytest.mark.parametrize(
    ("how", "end"),
    [
        *((f"backend={method!r}", "with views") for method in METHODS),
        *(("backend='thread'", end) for end in AT_EXIT),
        ("backend='spawn'", "in a cycle"),
        ("backend='spawn'", "with a consumer thread"),
        ("backend='fork'", "with a consumer thread"),
    ],
)
def test_exit_with_everything_alive(how: str, end: str) -> None:
    """An interpreter that exits with loaders and views alive ends at once, in silence."""
    found = run_script(
        EXIT.format(dataset="Oracle(4000, sleep_s=0.001)", how=how, end=AT_EXIT[end])
    )
    assert found == ("", "", 0)


def test_exit_with_a_stuck_thread() -> None:
    """A worker thread inside a long sample does not keep the interpreter."""
    dataset = "Misbehaving('sleeps', at=9)"
    found = run_script(EXIT.format(dataset=dataset, how="backend='thread'", end=""))
    assert found == ("", "", 0)

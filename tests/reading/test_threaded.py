"""Workers of several threads: one process, whose threads claim and write by themselves.

What holds for any samples in flight stands in test_waiting.py, for plain samples as well.
"""

from __future__ import annotations

import os
import queue
import re
import select
import signal
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import threaded_sources as threaded
from ringfeed import Array, Loader, WorkerError
from ringfeed.datasets.reader import Port
from ringfeed.orders.rng import SampleContext
from ringfeed.reading import fetching
from ringfeed.ring._ring import WorkerEnd
from scarcity import leave_threads
from slow_sources import Hanging, Plain, Waits, adds_noise, collates, doubles
from watching import PATIENCE_S, pids, pool_of, start_script, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
WAYS: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 1, "backend": "fork"},
    "spawn": {"workers": 1, "backend": "spawn"},
    "process": {"workers": 2, "backend": "process"},
}
QUICK = {name: WAYS[name] for name in ("threads", "fork")}
NUMBER = Array((), "int64")
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "samples": (Waits, {}),
    "large batches": (Waits, {"batch_size": 100}),
    "transform": (Waits, {"transform": adds_noise}),
    "batch_transform": (Waits, {"batch_transform": doubles}),
    "collate_fn": (Waits, {"collate_fn": collates}),
    "read_into": (threaded.Into, {}),
    "read_into and transform": (threaded.Into, {"transform": threaded.changes}),
    "read_into and batch_transform": (threaded.IntoOrNot, {"batch_transform": doubles}),
}


def content(loader: Loader[Any], epochs: int = 2) -> list[Any]:
    """Return all that a loader gives in some epochs, as bytes."""
    with loader:
        return [
            [(key, batch[key].tobytes()) for key in batch]
            for _ in range(epochs)
            for batch in loader
        ]


def numbers(batches: Any) -> list[int]:
    """Return the samples of batches of numbers, which are not kept."""
    return [number for batch in batches for number in batch.tolist()]


def rows(loader: Loader[Any]) -> Any:
    """Return all rows of an epoch."""
    with loader:
        return np.concatenate([batch.copy() for batch in loader])


# ---- readers of samples ----


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", QUICK)
def test_batches_are_those_of_one_thread(way: str, case: str) -> None:
    """Also with ``read_into``, whose row is drawn in the thread that writes it."""
    kind, settings = CASES[case]
    common = {"batch_size": 16, "shuffle": True, "seed": 3} | settings
    expected = content(Loader(Plain(), workers=0, **common))
    assert content(Loader(kind(), concurrency=5, **QUICK[way], **common)) == expected


@pytest.mark.parametrize("way", WAYS)
def test_one_process_and_one_dataset(way: str) -> None:
    """Each worker has as many threads as it has samples in flight, and they share its dataset."""
    how = WAYS[way]
    dataset = threaded.Where(4 if how["workers"] == 1 else 1)
    found = rows(
        Loader(
            dataset, spec=Array((5,), "int64"), batch_size=8, concurrency=4 * how["workers"], **how
        )
    )
    assert len(found) == 64
    assert {*found[:, 2].tolist()} <= {*range(how["workers"])}
    assert found[:, 3].all()
    for worker in {*found[:, 2].tolist()}:
        own = found[found[:, 2] == worker]
        assert len({*own[:, 0].tolist()}) == 1
        assert dataset.threads <= len({*own[:, 1].tolist()}) <= 4
    if way != "threads":
        assert os.getpid() not in found[:, 0]
        assert found[:, 4].max() <= 4


@pytest.mark.parametrize("way", WAYS)
def test_worker_init_fn_is_called_once_a_worker(way: str, tmp_path: Path) -> None:
    """Its threads are no workers."""
    how = WAYS[way]
    begun = threaded.Begun(tmp_path)
    assert numbers(
        Loader(threaded.GrowingWaits(), batch_size=4, concurrency=6, worker_init_fn=begun, **how)
    ) == [*range(24)]
    lines = (tmp_path / "begun").read_text().split("\n")[:-1]
    called = [int(line.split()[0]) for line in lines]
    assert {*called} <= {*range(how["workers"])}
    assert len({*called}) == len(called) > 0


def test_samples_are_not_kept_for_their_batch(tmp_path: Path) -> None:
    """A row is written once it is read: a slow sample of its batch keeps none of the others."""
    dataset = threaded.Kept(tmp_path)
    with Loader(dataset, batch_size=32, concurrency=4, workers=1, backend="thread",
                spec=Array((4,), "float32")) as loader:  # fmt: skip
        batches = iter(loader)
        wait_until(lambda: dataset.now == 31 and len(dataset.alive) <= 1)
        (tmp_path / "go").touch()
        assert next(batches)[:, 0].tolist() == [*range(32)]


@pytest.mark.parametrize("way", QUICK)
def test_a_dataset_that_changes_between_epochs(way: str) -> None:
    """The threads end what is in flight of the old one before others read the new one."""
    with Loader(threaded.GrowingWaits(), batch_size=8, concurrency=6, **QUICK[way]) as loader:
        for epoch in range(4):
            assert numbers(loader) == [epoch * 100 + index for index in range(24)]


@pytest.mark.parametrize("kind", [Waits, threaded.Into])
def test_times(kind: type) -> None:
    """All rows are timed; a worker is busy no longer than there is time."""
    with Loader(kind(), batch_size=16, concurrency=6, workers=1, backend="thread") as loader:
        assert len([len(batch["index"]) for batch in loader]) == 13
        stats = loader.stats()
        assert stats.samples == 203
        assert 0 < stats.busy_s <= stats.elapsed_s
        assert stats.read_s >= threaded.WAIT_S


# ---- failures ----


@pytest.mark.parametrize("way", QUICK)
def test_the_first_row_that_fails_is_named(way: str) -> None:
    """Whichever fails first; the next batch goes on."""
    with Loader(threaded.FailsLate(24), batch_size=8, concurrency=8, spec=NUMBER, workers=1,
                backend=WAYS[way]["backend"]) as loader:  # fmt: skip
        batches = iter(loader)
        with pytest.raises(WorkerError) as caught:
            next(batches)
        assert str(caught.value).startswith("dataset[2] raised ValueError: 2")
        assert numbers(batches) == [*range(8, 24)]


@pytest.mark.parametrize("kind", [threaded.DiesLate, threaded.DiesInto])
def test_a_death_blames_no_neighbour(kind: type) -> None:
    """All threads end with their process, and only the sample that ends it is an error."""
    with Loader(
        kind(), batch_size=8, concurrency=8, max_attempts=1, workers=1, backend="fork"
    ) as loader:
        batches = iter(loader)
        text = (
            "dataset[2] ended its worker; the last one was killed by SIGKILL; try it with workers=0"
        )
        with pytest.raises(WorkerError, match=f"^{re.escape(text)}$"):
            next(batches)
        assert numbers(batch[1] for batch in batches) == [*range(8, 200)]
        assert loader.stats().restarts == 3


@pytest.mark.parametrize("way", QUICK)
def test_an_error_whose_text_takes_long_holds_up_no_other_loader(way: str) -> None:
    """Neither one of this process, nor one that is forked from it meanwhile."""
    slow = threaded.FailsSlowly()
    how: dict[str, Any] = {"batch_size": 2, "concurrency": 2, "spec": NUMBER, "workers": 1}
    with Loader(slow, backend="thread", **how) as held_up:
        batches = iter(held_up)
        wait_until(slow.is_asked.is_set)
        other: dict[str, Any] = {"backend": WAYS[way]["backend"], "timeout_s": 30, **how}
        try:
            with Loader(threaded.FailsLate(8), **other) as loader:
                found = iter(loader)
                assert next(found).tolist() == [0, 1]
                with pytest.raises(WorkerError, match=r"dataset\[2\] raised ValueError"):
                    next(found)
        finally:
            slow.go_on.set()
        with pytest.raises(WorkerError, match="SlowError: slow"):
            next(batches)


def test_an_error_leaves_its_thread_without_frames_that_go_on() -> None:
    """Another thread looks at its traceback, which is safe only for frames that have ended."""
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reads = fetching.Threads(threaded.FailsLate(8), 1, came.put, None)
    reads.ask([fetching.Fetch(object(), 0, SampleContext(0, 0, 5))])
    error = came.get(timeout=PATIENCE_S).error
    reads.close()
    places = [place.name for place in traceback.extract_tb(error.__traceback__)]
    assert places == ["__getitem__"]


def test_a_thread_that_fails_outside_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends its worker, which says why: no thread ends in silence."""
    from ringfeed.reading import threaded as place  # noqa: PLC0415 - a place of no public name

    def fails(*_: object) -> None:
        message = "no memory for a claim"
        raise MemoryError(message)

    monkeypatch.setattr(place, "Claim", fails)
    with (
        Loader(Waits(), batch_size=8, concurrency=4, workers=1, backend="thread") as loader,
        pytest.raises(WorkerError, match="no memory for a claim"),
    ):
        next(iter(loader))


def test_no_room_for_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With some the worker goes on; with none it says why."""
    leave_threads(monkeypatch, 2)
    how: dict[str, Any] = {"concurrency": 8, "workers": 1, "backend": "thread"}
    assert content(Loader(Waits(), **how), 1) == content(Loader(Plain(), workers=0), 1)
    with (
        Loader(Waits(), **how) as loader,
        pytest.raises(WorkerError, match="no thread can be started: RLIMIT_NPROC"),
    ):
        next(iter(loader))


# ---- the end ----


def test_a_stop_asks_for_no_newer_dataset() -> None:
    """Whatever is claimed: it is of the newest already, where no thread has begun it."""
    with Loader(Waits(), batch_size=8, workers=1, concurrency=1, backend="thread") as loader:
        next(iter(loader))
        engine = loader._runner.engine
        assert engine is not None
        engine.ring.stop()
        port = Port(WorkerEnd(engine.ring, 0, 1), engine.ring, engine.plan.layout.offsets)
        reader = engine.source.reader(Waits(), port)
        with reader._claiming:
            assert not reader.serve(0, claimed=True)


@pytest.mark.parametrize("way", QUICK)
def test_a_break_leaves_a_row_to_the_thread_that_writes_it(way: str, tmp_path: Path) -> None:
    """The slot of a ``read_into`` that hangs is filled anew only after it; others go on."""
    with Loader(threaded.HangingInto(tmp_path, at=(5,)), batch_size=2, concurrency=8, slots=5,
                spec=NUMBER, **QUICK[way]) as loader:  # fmt: skip
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        wait_until((tmp_path / "hangs-5").exists)
        (tmp_path / "go").touch()
        del batches
        loader.set_epoch(1)
        assert numbers(loader) == [*range(64)]
        assert loader.slot_states().count("draining") == 1
        (tmp_path / "on").touch()
        # A slot is looked at again when another is bound.
        wait_until(
            lambda: numbers(loader) == [*range(64)] and "draining" not in loader.slot_states()
        )


def test_a_worker_ends_though_all_its_threads_hang(tmp_path: Path) -> None:
    """In samples of an epoch that was broken off; it keeps no slot for them."""
    with Loader(Hanging(tmp_path, at=(0, 1)), batch_size=2, concurrency=2, spec=NUMBER, workers=1,
                backend="thread") as loader:  # fmt: skip
        batches = iter(loader)
        (worker,) = pool_of(loader)._threads.values()
        (reader,) = vars(worker)["_args"]
        wait_until(lambda: (tmp_path / "hangs-0").exists() and (tmp_path / "hangs-1").exists())
        del batches
        wait_until(lambda: not reader._held)
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_epochs_that_are_broken_off(way: str) -> None:
    """Each epoch is whole, wherever the one before it was left."""
    with Loader(Waits(101), batch_size=8, concurrency=5, shuffle=True, **WAYS[way]) as loader:
        for epoch in range(8):
            loader.set_epoch(epoch)
            for number, batch in enumerate(loader):
                del batch
                if number == epoch:
                    break
        loader.set_epoch(3)
        found = [(key, batch[key].tobytes()) for batch in loader for key in batch]
    with Loader(Plain(101), batch_size=8, workers=0, shuffle=True) as plain:
        plain.set_epoch(3)
        assert found == [(key, batch[key].tobytes()) for batch in plain for key in batch]


def test_a_fork_beside_the_threads() -> None:
    """A process that a sample forks and ends is nothing to the other threads."""
    with Loader(
        threaded.Forks(), batch_size=6, concurrency=4, workers=1, backend="spawn"
    ) as loader:
        for _ in range(2):
            assert numbers(loader) == [*range(60)]


SCRIPT = """
from pathlib import Path
import ringfeed
from slow_sources import Hanging
from watching import pids

loader = ringfeed.Loader(Hanging(Path({folder!r}), at=(2, 3, 4)),
                         batch_size=2, concurrency=4, workers=1, spec=ringfeed.Array((), "int64"))
batches = iter(loader)
next(batches)
print(*pids(loader), flush=True)
next(batches)
"""


def test_the_consumer_is_killed(tmp_path: Path) -> None:
    """The guard ends a worker whose threads all hang."""
    script = start_script(SCRIPT.format(folder=str(tmp_path)))
    try:
        assert script.stdout is not None
        (worker,) = map(int, script.stdout.readline().split())
        wait_until(lambda: all((tmp_path / f"hangs-{index}").exists() for index in (2, 3, 4)))
        pidfd = os.pidfd_open(worker)
        script.kill()
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(PATIENCE_S * 1000)
        os.close(pidfd)
    finally:
        script.kill()
        script.communicate()


def test_deaths_with_rows_of_one_ticket_in_several_threads() -> None:
    """Each row comes once, whichever rows of a ticket were written before its worker died."""
    with Loader(threaded.Into(600, wait_s=0.004), batch_size=32, concurrency=6, workers=2, backend="fork",
                max_attempts=1000) as loader:  # fmt: skip
        found: list[int] = []
        for number, batch in enumerate(loader):
            found += batch["index"].tolist()
            del batch
            if number in {2, 6, 10}:
                wait_until(lambda: len(pids(loader)) == 2)
                os.kill(pids(loader)[number % 4 // 2 % 2], signal.SIGKILL)
        assert found == [*range(600)]
        wait_until(lambda: loader.stats().restarts >= 3)

"""Sources that wait.

Many samples in flight, and all that holds for one at a time holds for them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
import slow_sources as slow
from datasets import drain
from ringfeed import Array, Loader, SpecError, StallError, WorkerError
from ringfeed.datasets import Mix, Pack
from ringfeed.monitor.bottleneck import verdict
from ringfeed.monitor.stats import Stats
from scarcity import leave_threads
from watching import PATIENCE_S, lose_patience, pids, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
WAYS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "spawn": {"workers": 2, "backend": "spawn"},
    "threads": {"workers": 2, "backend": "thread"},
    "fork": {"workers": 2, "backend": "fork"},
    "process": {"workers": 1, "backend": "process"},
}
QUICK = {name: WAYS[name] for name in ("here", "threads", "fork")}
PLANS: dict[str, tuple[type, type, type, dict[str, Any]]] = {
    "samples": (slow.Plain, slow.Awaits, slow.Waits, {}),
    "tasks of their own": (slow.Plain, slow.Branches, slow.Waits, {}),
    "transform": (slow.Plain, slow.Awaits, slow.Waits, {"transform": slow.adds_noise}),
    "batch_transform": (slow.Plain, slow.Awaits, slow.Waits, {"batch_transform": slow.doubles}),
    "collate_fn": (slow.Plain, slow.Awaits, slow.Waits, {"collate_fn": slow.collates}),
    "doubled": (slow.Plain, slow.Awaits, slow.Waits, {"sampler": [5, 5, 5, 7, 7, 3, 5, 9] * 4}),
    "whole batches": (
        slow.PlainBatches,
        slow.AwaitsBatches,
        slow.WaitsBatches,
        {"batch_size": None},
    ),
}


def content(loader: Loader[Any], epochs: int = 2) -> list[list[Any]]:
    """Return all that a loader gives in some epochs, as bytes."""
    with loader:
        return [
            [[(key, batch[key].tobytes()) for key in batch] for batch in loader]
            for _ in range(epochs)
        ]


def numbers(batches: Iterable[Any]) -> list[int]:
    """Return the samples of batches of numbers, which are not kept."""
    return [number for batch in batches for number in batch.tolist()]


# ---- the same batches ----


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("way", QUICK)
def test_batches_are_those_of_one_at_a_time(way: str, plan: str) -> None:
    """Order, bytes and random numbers do not depend on how many samples are in flight."""
    plain, awaits, waits, settings = PLANS[plan]
    common = {"batch_size": 16, "shuffle": "sampler" not in settings, "seed": 3} | settings
    expected = content(Loader(plain(), workers=0, **common))
    assert content(Loader(awaits(), concurrency=30, **QUICK[way], **common)) == expected
    assert content(Loader(waits(), concurrency=30, **QUICK[way], **common)) == expected


@pytest.mark.parametrize("way", ["spawn", "process"])
@pytest.mark.parametrize("kind", [slow.Awaits, slow.Waits])
def test_they_are_in_workers_that_are_started_otherwise(way: str, kind: type) -> None:
    """What is sent to them says how many samples are in flight."""
    expected = content(Loader(slow.Plain(), workers=0, shuffle=True))
    assert content(Loader(kind(), concurrency=30, shuffle=True, **WAYS[way])) == expected


@pytest.mark.parametrize("way", QUICK)
def test_prioritized_samples(way: str) -> None:
    """The draws of a PrioritizedSampler are read by their numbers."""

    def epoch(dataset: Any, **settings: Any) -> list[Any]:
        sampler = ringfeed.orders.PrioritizedSampler(203)
        with Loader(dataset, sampler=sampler, batch_size=16, **settings) as loader:
            batches = itertools.islice(loader, 8)
            return [
                (*(sample[key].tobytes() for key in sample), i.tobytes(), w.tobytes())
                for sample, i, w in batches
            ]

    assert epoch(slow.Awaits(), concurrency=20, **QUICK[way]) == epoch(slow.Plain(), workers=0)


@pytest.mark.parametrize("kind", [slow.Awaits, slow.Waits])
def test_a_run_goes_on_where_it_was(kind: type) -> None:
    """A state that is saved with samples in flight is that of the batches that were handed out."""
    common: dict[str, Any] = {"batch_size": 16, "shuffle": True, "workers": 2, "backend": "fork"}
    whole = content(Loader(kind(), concurrency=40, **common), 1)[0]
    with Loader(kind(), concurrency=40, **common) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
    other = Loader(slow.Plain(), **common)
    other.load_state_dict(state)
    assert content(other, 1)[0] == whole[5:]


def test_a_dataset_that_changes_between_epochs() -> None:
    """The workers end what is in flight of the old one before they read the new one."""
    with Loader(slow.Growing(), batch_size=8, concurrency=16, workers=2, backend="fork") as loader:
        for epoch in range(3):
            assert numbers(loader) == [epoch * 100 + index for index in range(24)]


# ---- how many ----


@pytest.mark.parametrize("kind", [slow.Counting, slow.CountingAwaits])
@pytest.mark.parametrize("way", ["here", "threads"])
def test_so_many_are_in_flight(kind: type, way: str) -> None:
    """As many as was said, in all workers together, and not one more."""
    dataset = kind()
    with Loader(
        dataset, batch_size=8, concurrency=21, spec=Array((), "float32"), **WAYS[way]
    ) as loader:
        wait_until(lambda: sum(map(len, loader)) == 300 and dataset.most >= 21)
    assert dataset.most == 21


def test_an_async_dataset_alone() -> None:
    """Without concurrency= two batches of samples are in flight: from one a worker to 100."""

    def of(**settings: Any) -> int:
        return Loader(slow.Awaits(), **settings)._options.concurrency

    found = [of(batch_size=16), of(batch_size=32), of(batch_size=256), of(batch_size=1, workers=7)]
    assert found == [32, 64, 100, 7]
    assert Loader(slow.AwaitsBatches(), batch_size=None, workers=1)._options.concurrency == 2
    assert content(Loader(slow.Awaits(), workers=0)) == content(Loader(slow.Plain(), workers=0))


def test_slots_follow() -> None:
    """There are slots for the samples in flight, unless the user gives slots or memory."""
    found = [
        Loader(
            slow.Waits(), batch_size=16, workers=2, concurrency=concurrency, **settings
        ).plan.slots
        for concurrency, settings in [
            (2, {}),
            (32, {}),
            (100, {}),
            (100, {"slots": 3}),
            (100, {"memory": "1MB"}),
        ]
    ]
    assert found[:4] == [4, 4, 9, 3]
    assert Loader(slow.Waits(), batch_size=16, workers=2, memory="1MB").plan.slots == found[4]


@pytest.mark.parametrize("kind", [slow.Awaits, slow.Waits])
def test_times(kind: type) -> None:
    """A sample's time is that of its wait; a worker is busy no longer than there is time."""
    with Loader(kind(), batch_size=16, concurrency=40, workers=1, backend="thread") as loader:
        assert len([len(batch["index"]) for batch in loader]) == 13
        stats = loader.stats()
        assert stats.read_s >= slow.WAIT_S
        assert 0 < stats.busy_s <= stats.elapsed_s
        assert stats.samples == 203


def test_the_verdict() -> None:
    """It says what there is to turn: a worker that waits for samples is not busy."""
    stats = Stats(batches=10, samples=100, stall_s=5.0, busy_s=9.0, elapsed_s=10.0)
    told = verdict(stats, workers=2, slots=9, slot_size=64, cpus=2, concurrency=200)
    flight = "concurrency=200 and slots=9 say how many samples are in flight"
    assert told == f"input-bound: training waited 50% of the time; {flight}"


def test_workers_follow() -> None:
    """Of fewer samples in flight than CPUs, each has a worker."""
    assert Loader(slow.Awaits(), concurrency=1).plan.workers == 1


def test_a_slow_sample_delays_its_own_batch_alone(tmp_path: Path) -> None:
    """Later slots fill meanwhile, all but the one that it is in."""
    with Loader(slow.OneSlow(tmp_path), batch_size=4, concurrency=16, slots=6, workers=1, backend="fork",
                spec=Array((), "int64")) as loader:  # fmt: skip
        batches = iter(loader)
        wait_until(lambda: sorted(loader.slot_states()) == ["filling", *["ready"] * 5])
        (tmp_path / "go").touch()
        assert numbers(batches) == [*range(32)]


# ---- where they run ----


@pytest.mark.parametrize("way", WAYS)
def test_one_event_loop(way: str) -> None:
    """What a sample opens is there for all others, also of a later loader."""
    dataset = slow.Session()
    for _ in range(2):
        with Loader(dataset, batch_size=8, concurrency=20, **WAYS[way]) as loader:
            for _ in range(2):
                indices, workers = map(np.concatenate, zip(*map(np.array, loader), strict=True))
                assert indices.tolist() == [*range(48)]
                assert set(workers.tolist()) <= ({-1} if way == "here" else {0, 1})
    assert (dataset.opened is None) == (way not in {"here", "threads"})


def test_an_event_loop_that_runs_already() -> None:
    """A loader is used in a coroutine, as in a notebook."""

    async def main() -> list[Any]:
        return content(Loader(slow.Awaits(), workers=0), 1)

    assert asyncio.run(main()) == content(Loader(slow.Plain(), workers=0), 1)


# ---- failures ----

FAULTS = {
    "raises": (WorkerError, "dataset[17] raised KeyError: 'bad one'"),
    "exits": (WorkerError, "dataset[17] raised SystemExit: 3"),
    "cancels": (WorkerError, "dataset[17] raised CancelledError"),
    "wrong_shape": (SpecError, "dataset[17]: sample[0] has shape (4,), expected (3,)"),
}


@pytest.mark.parametrize("way", QUICK)
@pytest.mark.parametrize("kind", [slow.Failing, slow.FailingAwaits])
@pytest.mark.parametrize("deed", FAULTS)
def test_a_failed_sample_is_named(deed: str, kind: type, way: str) -> None:
    """In its place in the order; the next batch goes on."""
    if not hasattr(kind, deed):
        pytest.skip("only a task is cancelled")
    error, text = FAULTS[deed]
    with Loader(kind(deed), batch_size=8, concurrency=16, **QUICK[way]) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(2)] == [[*range(8)], [*range(8, 16)]]
        with pytest.raises(error) as caught:
            next(batches)
        assert str(caught.value).startswith(text)
        assert [batch[1].tolist() for batch in batches] == [[*range(24, 32)], [*range(32, 40)]]


@pytest.mark.parametrize("kind", [slow.Failing, slow.FailingAwaits])
def test_failed_samples_are_left_out(kind: type) -> None:
    """With on_error="skip"."""
    at = (3, 17, 18)
    with Loader(
        kind("raises", at), batch_size=8, concurrency=16, on_error="skip", **WAYS["fork"]
    ) as loader:
        found = numbers(batch[1] for batch in loader)
        assert found == [index for index in range(40) if index not in at]
        assert loader.stats().skipped == [*at]


def test_the_users_own_frames() -> None:
    """The cause has the traceback of the coroutine that raised it."""
    with Loader(
        slow.FailingAwaits("raises"), batch_size=8, concurrency=16, **WAYS["fork"]
    ) as loader:
        with pytest.raises(WorkerError) as caught:
            numbers(batch[1] for batch in loader)
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        names, place = [], cause.__traceback__
        while place is not None:
            names.append(place.tb_frame.f_code.co_name)
            place = place.tb_next
        assert names == ["__getitem__", "found", "raises"]


@pytest.mark.parametrize("kind", [slow.AwaitedOracle, slow.Oracle])
@pytest.mark.parametrize("backend", ["fork", "spawn"])
def test_workers_that_are_killed(kind: type, backend: str) -> None:
    """With many samples in flight each: nothing is lost, doubled or reordered."""
    settings: dict[str, Any] = {"workers": 2, "backend": backend, "max_attempts": 1000}
    with Loader(kind(1500, sleep_s=0.01), batch_size=16, concurrency=100, **settings) as loader:
        found: list[int] = []
        for number, batch in enumerate(loader):
            found += drain([batch])
            del batch
            if number in {10, 30, 50, 70}:
                wait_until(lambda: len(pids(loader)) == 2)
                os.kill(pids(loader)[number // 10 % 4 // 2], signal.SIGKILL)
        assert found == [*range(1500)]
        wait_until(lambda: loader.stats().restarts >= 4)


@pytest.mark.parametrize("kind", [slow.Failing, slow.FailingAwaits])
def test_a_sample_that_kills_is_named(kind: type) -> None:
    """After two deaths without blame it is read alone, until it has cost max_attempts workers."""
    with Loader(
        kind("dies"), batch_size=8, concurrency=16, max_attempts=2, **WAYS["fork"]
    ) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(2)] == [[*range(8)], [*range(8, 16)]]
        text = (
            "dataset[17] ended 2 workers; the last one was killed by SIGKILL; try it with workers=0"
        )
        with pytest.raises(WorkerError, match=f"^{re.escape(text)}$"):
            next(batches)
        assert [batch[1].tolist() for batch in batches] == [[*range(24, 32)], [*range(32, 40)]]
        assert loader.stats().restarts <= 5


def test_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With some threads it goes on; with none it says why, and then reads the same batch."""
    leave_threads(monkeypatch, 3)
    expected = content(Loader(slow.Plain(), workers=0), 1)
    assert content(Loader(slow.Waits(), concurrency=20, workers=0), 1) == expected
    spec = Loader(slow.Plain(), workers=0).spec
    with Loader(slow.Waits(), concurrency=20, workers=0, spec=spec, on_error="skip") as loader:
        batches = iter(loader)
        with pytest.raises(WorkerError, match="no thread can be started: RLIMIT_NPROC"):
            next(batches)
        monkeypatch.undo()
        assert next(batches)["index"].tolist() == [*range(32)]


@pytest.mark.parametrize("kind", [slow.Interrupts, slow.InterruptsAwaits])
def test_ctrl_c_in_the_consumer(kind: type) -> None:
    """With workers=0 what is in flight is given up, and asked for again by the next call."""
    expected = content(Loader(slow.Plain(), workers=0), 1)[0]
    found: list[Any] = []
    with Loader(kind(), concurrency=40, workers=0) as loader:
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            found.extend([(key, batch[key].tobytes()) for key in batch] for batch in batches)
        found.extend([(key, batch[key].tobytes()) for key in batch] for batch in batches)
    assert found == expected


# ---- the end ----


def epoch_after_a_break(loader: Loader[Any], folder: Path, at: Iterable[int]) -> list[int]:
    """Break an epoch off with samples that hang, and return the next one."""
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    wait_until(lambda: all((folder / f"hangs-{index}").exists() for index in at))
    (folder / "go").touch()
    del batches
    loader.set_epoch(1)
    return numbers(loader)


@pytest.mark.parametrize("way", ["threads", "fork"])
@pytest.mark.parametrize("kind", [slow.Hanging, slow.HangingAwaits])
def test_a_break_waits_for_no_request(kind: type, way: str, tmp_path: Path) -> None:
    """Slots come back while samples of a broken-off epoch hang in their threads."""
    dataset = kind(tmp_path, at=(5, 6))
    spec = Array((), "int64")
    with Loader(dataset, batch_size=2, concurrency=12, slots=4, spec=spec, **WAYS[way]) as loader:
        assert epoch_after_a_break(loader, tmp_path, (5,)) == [*range(64)]
    assert (tmp_path / "cancelled-5").exists() == (kind is slow.HangingAwaits)


@pytest.mark.parametrize("way", ["threads", "fork", "spawn"])
@pytest.mark.parametrize("kind", [slow.Hanging, slow.HangingAwaits])
def test_closing_waits_for_no_request(kind: type, way: str, tmp_path: Path) -> None:
    """Tasks are cancelled, and may clean up; threads are left to themselves."""
    with Loader(
        kind(tmp_path), batch_size=2, concurrency=8, spec=Array((), "int64"), **WAYS[way]
    ) as loader:
        batches = iter(loader)
        next(batches)
        wait_until((tmp_path / "hangs-3").exists)
    assert (tmp_path / "cancelled-3").exists() == (kind is slow.HangingAwaits)


@pytest.mark.parametrize("way", ["threads", "fork"])
@pytest.mark.parametrize("kind", [slow.Hanging, slow.HangingAwaits])
def test_a_stall_names_the_sample(kind: type, way: str, tmp_path: Path) -> None:
    """It is the oldest that its worker waits for."""
    with Loader(
        kind(tmp_path), batch_size=2, concurrency=8, spec=Array((), "int64"), **WAYS[way]
    ) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: loader.slot_states().count("ready") == loader.plan.slots - 1)
        lose_patience(loader, 0.3)
        text = (
            "no batch for 0.3 s: 1 of 2 workers inside dataset[i] (i = 3); raise timeout_s or "
            "look there"
        )
        with pytest.raises(StallError, match=f"^{re.escape(text)}"):
            next(batches)


@pytest.mark.parametrize("kind", [slow.Hanging, slow.HangingAwaits])
def test_a_stall_here_names_the_sample_and_its_line(kind: type, tmp_path: Path) -> None:
    """With workers=0 the wait for samples in flight is as bounded as that for workers.

    The next call asks again.
    """
    dataset, spec = kind(tmp_path), Array((), "int64")
    with Loader(
        dataset, batch_size=2, concurrency=8, spec=spec, workers=0, timeout_s=0.3
    ) as loader:
        batches = iter(loader)
        _expect_stall(batches)
        assert next(batches).tolist() == [0, 1]  # what has come beside it
        _expect_stall(batches)
        (tmp_path / "go").touch()
        assert numbers(batches) == [*range(2, 64)]


def test_a_stall_names_the_sample_where_no_claim_follows(tmp_path: Path) -> None:
    """The samples before it in its claim have come, and nothing else happens in the worker."""
    spec = Array((), "int64")
    with Loader(
        slow.Hanging(tmp_path), batch_size=64, concurrency=64, spec=spec, workers=0, timeout_s=0.3
    ) as loader:
        batches = iter(loader)
        _expect_stall(batches)
        (tmp_path / "go").touch()
        assert numbers(batches) == [*range(64)]


def _expect_stall(batches: Any) -> None:
    with pytest.raises(StallError) as caught:
        next(batches)
    first, second, *stack = str(caught.value).splitlines()
    assert (
        first
        == "no batch for 0.3 s: 1 of 1 workers inside dataset[i] (i = 3); raise timeout_s or look there"
    )
    assert re.fullmatch(
        r"worker 0 \(this process\): inside dataset\[3\], has been at it for \d+\.\d s", second
    )
    assert any("slow_sources.py" in line for line in stack)


# ---- what loaders share, and what Ctrl-C leaves half made ----


class Never:
    """Its samples never come."""

    def __len__(self) -> int:
        return 8

    async def __getitem__(self, index: int) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("way", WAYS)
def test_a_first_sample_that_never_comes_is_a_stall(way: str, on_error: Any) -> None:
    """It is awaited for ``timeout_s``, wherever it is read; no other one is tried."""
    with pytest.raises(StallError) as raised:
        Loader(Never(), batch_size=2, timeout_s=0.5, on_error=on_error, **WAYS[way])
    if way != "fork":  # where both processes wait
        message = (
            "dataset[0], read for the spec, has not come in 0.5 s; raise timeout_s, give spec=, "
            "or look there"
        )
        assert str(raised.value) == message


def test_a_second_loader_of_an_async_dataset_ends_nothing_of_the_first() -> None:
    """Their samples are awaited in one event loop, which lives as long as the dataset."""
    dataset = slow.Awaits()
    one = iter(Loader(dataset, batch_size=16, workers=0))
    found = [next(one)["index"].tolist()]
    for settings in WAYS.values():
        with Loader(dataset, batch_size=16, **settings) as other:
            next(iter(other))
        found.append(next(one)["index"].tolist())
    assert found == [[*range(16 * number, 16 * number + 16)] for number in range(1 + len(WAYS))]


@pytest.mark.parametrize("after", ["it began", "nothing"])
def test_ctrl_c_while_the_event_loop_starts(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept of what did not come to run: the next epoch starts another."""
    start, calls = Thread.start, []

    def interrupted(thread: Thread) -> None:
        if thread.name == "ringfeed-loop" and not calls:
            calls.append(thread)
            if after == "it began":
                start(thread)
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(Thread, "start", interrupted)
    dataset = slow.HangingAwaits(tmp_path, at=())
    with Loader(dataset, batch_size=16, workers=0, spec=Array((), "int64")) as loader:
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        assert numbers(loader) == [*range(64)]
    (thread,) = calls
    if after == "it began":
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", [slow.Hanging, slow.HangingAwaits])
def test_a_stuck_worker_is_replaced(kind: type, tmp_path: Path) -> None:
    """With on_stall="restart": its samples are asked for again."""
    settings: dict[str, Any] = {"workers": 1, "backend": "fork", "on_stall": "restart"}
    with Loader(
        kind(tmp_path), batch_size=2, concurrency=8, spec=Array((), "int64"), **settings
    ) as loader:
        batches = iter(loader)
        next(batches)
        wait_until((tmp_path / "hangs-3").exists)
        (tmp_path / "go").touch()
        lose_patience(loader, 0.3)
        assert numbers(batches) == [*range(2, 64)]
        wait_until(lambda: loader.stats().restarts == 1)


# ---- refusals ----


class AsyncInto(slow.Plain):
    """Writes itself into a row, when it is awaited."""

    async def read_into(self, index: int, out: Any) -> None:
        """Never called."""


class AsyncMany(slow.Plain):
    """Is read many at once, when it is awaited."""

    async def __getitems__(self, indices: list[int]) -> Any:
        """Never called."""


async def awaited(sample: Any) -> Any:
    """Make nothing of a sample."""
    return sample


def _three() -> Iterable[int]:
    return range(3)


X = np.zeros((8, 2), np.float32)
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "a float": (slow.Awaits, {"concurrency": 2.5}, TypeError, "concurrency=2.5 must be an int"),
    "none": (slow.Awaits, {"concurrency": 0}, ValueError, "concurrency=0 must be at least 1"),
    "a bool": (slow.Awaits, {"concurrency": True}, TypeError, "concurrency=True must be an int"),
    "too many": (
        slow.Awaits,
        {"concurrency": 10_001},
        ValueError,
        "concurrency=10001 must be at most 10000",
    ),
    "fewer than workers": (
        slow.Awaits,
        {"concurrency": 2, "workers": 3},
        ValueError,
        "concurrency=2 with 3 workers: it counts the samples in flight in all of them, and each "
        "has one at least; raise it, or give workers=2",
    ),
    "auto": (
        slow.Awaits,
        {"workers": "auto"},
        ValueError,
        (
            "an async __getitem__ with workers='auto': each worker has its part of the samples in "
            "flight; give a number"
        ),
    ),
    "reseed": (
        slow.Waits,
        {"concurrency": 8, "reseed": True},
        ValueError,
        "reseed=True with concurrency=8: it seeds states that all samples in flight share; draw "
        "from ringfeed.rng(), and leave reseed= out",
    ),
    "arrays": (
        lambda: X,
        {"concurrency": 8},
        ValueError,
        (
            "concurrency=8 is for a dataset whose __getitem__ waits, and of arrays no code runs; "
            "leave concurrency= out"
        ),
    ),
    "an iterable": (
        lambda: _three,
        {"concurrency": 8},
        ValueError,
        "concurrency=8 is for a dataset whose __getitem__ waits, and an iterable is read one "
        "element after another (Interleave reads several side by side); leave concurrency= out",
    ),
    "a mix": (
        lambda: Mix([slow.Waits(), slow.Waits()]),
        {"concurrency": 8},
        ValueError,
        "concurrency=8 is for a dataset whose __getitem__ waits, and Mix reads its datasets "
        "itself; leave concurrency= out",
    ),
    "an async member": (
        lambda: Mix([slow.Awaits(), slow.Plain()]),
        {},
        TypeError,
        "Mix of a dataset with an async def __getitem__, which it cannot await; give that dataset "
        "to a loader of its own",
    ),
    "an async pack": (
        lambda: Pack(slow.Awaits(8), [1] * 8, max_length=4),
        {},
        TypeError,
        "Pack of a dataset with an async def __getitem__, which it cannot await; give that "
        "dataset to a loader of its own",
    ),
    "read_into": (
        AsyncInto,
        {},
        TypeError,
        "read_into of AsyncInto is async def, and only __getitem__ may be; leave read_into out, "
        "and give concurrency= samples that are awaited at a time",
    ),
    "__getitems__": (
        AsyncMany,
        {"concurrency": 8},
        TypeError,
        "__getitems__ of AsyncMany is async def, and only __getitem__ may be; leave __getitems__ "
        "out, and give concurrency= samples that are awaited at a time",
    ),
    "transform": (
        slow.Awaits,
        {"transform": awaited},
        TypeError,
        "transform=awaited is async def, and is called once a sample has come; await in an async "
        "def __getitem__ of the dataset",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    """With what, where, and what to do."""
    dataset, settings, error, text = REFUSED[case]
    with pytest.raises(error) as caught:
        Loader(dataset(), **settings)
    assert str(caught.value) == text

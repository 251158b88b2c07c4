"""The loader as users see it: content and order, epochs, lifetimes, settings and their errors."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from datasets import (
    Batches,
    Bulk,
    Drawing,
    Misbehaving,
    Oracle,
    Pair,
    ReadInto,
    Reshuffling,
    check,
    flat,
)
from watching import wait_until, while_it_waits

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = [{"workers": 2, "backend": method} for method in ("spawn", "fork", "process")]
BACKENDS = [{"workers": 0}, {"workers": 2, "backend": "thread"}, *PROCESSES]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_delivers_every_sample_once_in_order(how: dict[str, Any]) -> None:
    """Two epochs deliver exactly what the sampler asks for, bit for bit, on every backend."""
    with ringfeed.Loader(Oracle(101), batch_size=8, **how) as loader:
        assert len(loader) == 13
        for _ in range(2):
            batches = [check(batch) for batch in loader]
            assert [len(batch) for batch in batches] == [8] * 12 + [5]
            assert flat(batches) == list(range(101))


def digest(**settings: Any) -> str:
    """Return a hash over two epochs' batches of a dataset that draws random numbers."""
    found = hashlib.sha256()
    with ringfeed.Loader(Drawing(), batch_size=7, shuffle=True, seed=5, **settings) as loader:
        for _ in range(2):
            for batch in loader:
                for name in sorted(batch):
                    found.update(batch[name].tobytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def reference() -> str:
    """The digest of the plainest loader."""
    return digest(workers=0, slots=2)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize("how", [{"backend": "thread"}, {"backend": "fork"}, {}], ids=str)
def test_same_batches_whatever_the_machinery(
    reference: str, workers: int, slots: int, how: dict[str, Any]
) -> None:
    """One hash over all numbers of workers and slots, threads and processes: promise 2."""
    assert digest(workers=workers, slots=slots, **how) == reference


def test_same_batches_with_forkserver_and_in_process(reference: str) -> None:
    """The remaining start method and slots agree too."""
    assert digest(workers=2, backend="process") == reference
    assert digest(workers=0, slots=8) == reference


@pytest.mark.parametrize("concurrency", [2, 5])
@pytest.mark.parametrize("how", [{"backend": "thread"}, {"backend": "fork"}, {}], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_same_batches_from_threads_of_workers(
    reference: str, workers: int, how: dict[str, Any], concurrency: int
) -> None:
    """And where each worker reads by several threads."""
    assert digest(workers=workers, concurrency=concurrency, **how) == reference


def test_epochs_differ_and_repeat() -> None:
    """Each epoch has an order of its own, which set_epoch brings back."""
    with ringfeed.Loader(Oracle(50), batch_size=10, shuffle=True, seed=1, workers=0) as loader:
        first, second = ([check(batch) for batch in loader] for _ in range(2))
        loader.set_epoch(0)
        again = [check(batch) for batch in loader]
    assert first == again
    assert first != second
    assert sorted(flat(second)) == list(range(50))


def test_drop_remainder_leaves_out_the_short_batch() -> None:
    """With drop_remainder every batch is full."""
    with ringfeed.Loader(Oracle(50), batch_size=8, drop_remainder=True, workers=0) as loader:
        assert [len(check(batch)) for batch in loader] == [8] * 6
        assert len(loader) == 6


def test_sampler_decides_the_indices() -> None:
    """A custom sampler's indices come in its order, repeats included.

    Its length is the loader's.
    """
    with ringfeed.Loader(Oracle(50), batch_size=4, sampler=[9, 3, 3, 49, 0], workers=0) as loader:
        assert [check(batch) for batch in loader] == [[9, 3, 3, 49], [0]]
        assert len(loader) == 2


def test_sampler_of_unknown_length_ends() -> None:
    """A generator ends the epoch with itself, and is read at most `slots` batches ahead."""
    read = []

    def indices(epoch: int) -> Any:
        for index in range(20 + epoch):
            read.append(index)
            yield index

    with ringfeed.Loader(Oracle(50), batch_size=3, sampler=indices, workers=0, slots=2) as loader:
        with pytest.raises(TypeError) as caught:
            len(loader)
        assert str(caught.value) == "the length of this loader is unknown: its sampler has no len()"
        iterator = iter(loader)
        next(iterator)
        assert len(read) <= 3 * 3
        assert sum(len(check(batch)) for batch in iterator) == 17
        assert sum(len(check(batch)) for batch in loader) == 21


def test_a_loader_may_be_told_what_a_batch_is() -> None:
    """A subscripted class makes the same loader.

    The type is for type checkers (see typing/public_face.py).
    """
    with ringfeed.Loader[tuple[np.ndarray, np.ndarray]](
        Oracle(4), batch_size=4, workers=0
    ) as loader:
        assert type(loader) is ringfeed.Loader
        assert [check(batch) for batch in loader] == [[0, 1, 2, 3]]


def test_batch_mirrors_the_structure() -> None:
    """Bare arrays give bare arrays, dicts dicts, NamedTuples their class.

    Numbers keep the promised dtypes.
    """
    samples: list[Any] = [
        np.ones(3, np.int16),
        [1, 2.5],
        {"a": True, "b": (np.float64(2), [7])},
        Pair(np.zeros((2, 2), np.uint8), 3),
    ]
    for sample in samples:
        with ringfeed.Loader([sample] * 5, batch_size=5, workers=0) as loader:
            batch = next(iter(loader))
        if isinstance(sample, np.ndarray):
            assert type(batch) is np.ndarray
            assert batch.dtype == np.int16
        elif isinstance(sample, dict):
            assert batch["a"].dtype == bool
            assert batch["b"][0].dtype == np.float64
            assert batch["b"][1][0].dtype == np.int64
        elif isinstance(sample, list):
            assert [leaf.dtype for leaf in batch] == [np.int64, np.float32]
        else:
            assert type(batch) is Pair
            assert batch.image.shape == (5, 2, 2)


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_whole_batches(how: dict[str, Any]) -> None:
    """With batch_size=None each item is a batch, and may be shorter than batch 0."""
    with ringfeed.Loader(Batches(), batch_size=None, **how) as loader:
        numbers = [(numbers.tolist(), rest.shape) for numbers, rest in loader]
    assert flat(rows for rows, _ in numbers) == list(range(52))
    assert numbers[-1] == ([48, 49, 50, 51], (4, 2))


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_read_into_fills_rows_in_place(how: dict[str, Any]) -> None:
    """A dataset with read_into writes each sample into its row."""
    with ringfeed.Loader(ReadInto(), batch_size=4, **how) as loader:
        batches = [
            {"image": batch["image"].copy(), "label": batch["label"].copy()} for batch in loader
        ]
    labels = np.concatenate([batch["label"] for batch in batches])
    assert labels.tolist() == list(range(30))
    assert all((batch["image"] == batch["label"][:, None, None]).all() for batch in batches)


def test_getitems_is_used() -> None:
    """A dataset with __getitems__ is asked for many samples at once."""
    with ringfeed.Loader(Bulk(30), batch_size=4, workers=2) as loader:
        assert flat(check(batch) for batch in loader) == list(range(30))


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_arrays_are_gathered(how: dict[str, Any]) -> None:
    """A tuple or dict of arrays is a dataset, strided and read-only ones included."""
    x = np.arange(120, dtype=np.float32).reshape(20, 6)
    x.flags.writeable = False
    y = np.arange(40, dtype=np.int16).reshape(20, 2)[:, ::-1]
    with ringfeed.Loader(
        (x, {"y": y, "again": x[::-1]}), batch_size=6, shuffle=True, **how
    ) as loader:
        seen = [(bx.copy(), rest["y"].copy(), rest["again"].copy()) for bx, rest in loader]
    order = (np.concatenate([batch[0] for batch in seen])[:, 0] / 6).astype(int)
    assert sorted(order) == list(range(20))
    assert (np.concatenate([batch[1] for batch in seen]) == y[order]).all()
    assert (np.concatenate([batch[2] for batch in seen]) == x[::-1][order]).all()


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_a_dataset_that_changes_between_epochs(how: dict[str, Any]) -> None:
    """The hooks run in this process, once an epoch.

    What they change reaches running workers.
    """
    dataset = Reshuffling()
    expected = np.arange(40)
    with ringfeed.Loader(dataset, batch_size=8, **how) as loader:
        for epoch in range(3):
            assert len(loader) == (5, 5, 4)[epoch]
            seen = np.concatenate([batch.copy() for batch in loader])
            assert seen.tolist() == expected.tolist()
            expected = expected[::-1][: len(expected) - 4]
            assert (dataset.begun, dataset.ended) == (epoch + 1, epoch + 1)


# ---- lifetimes ----


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_views_stay_valid_while_referenced(how: dict[str, Any]) -> None:
    """A held batch, and a slice of one, is never overwritten, and stays readable after close()."""
    loader = ringfeed.Loader(Oracle(200), batch_size=4, slots=5, **how)
    iterator = iter(loader)
    kept = next(iterator)
    piece = next(iterator)[0][1:3, 2]
    before = piece.copy()
    for batch in iterator:
        check(batch)
    del batch
    loader.close()
    assert check(kept) == [0, 1, 2, 3]
    assert (piece == before).all()


def test_the_slot_returns_with_its_last_view() -> None:
    """While a view lives its slot is held; when the last dies it is free, in whatever order."""
    with ringfeed.Loader(Oracle(8), batch_size=2, slots=4, workers=0) as loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(3)]
        assert loader.slot_states().count("held") == 3
        views = [kept[1][0], kept[0][2], kept[2][1][:1]]
        del kept
        assert loader.slot_states().count("held") == 3
        for left in (2, 1, 0):
            del views[0]
            assert loader.slot_states().count("held") == left


def test_batches_are_writable_and_aligned() -> None:
    """Views are plain writable ndarrays whose fields start at multiples of 64 bytes.

    The lease is their base.
    """
    with ringfeed.Loader(Oracle(8), batch_size=3, workers=0) as loader:
        batch = next(iter(loader))
        for leaf in batch:
            assert type(leaf) is np.ndarray
            assert leaf.flags.writeable
            assert leaf.flags.c_contiguous
            assert leaf.ctypes.data % 64 == 0
        batch[0][...] = 1
        assert memoryview(batch[0].base)[:3].tolist() == [1, 1, 1]


def test_copies_hold_no_slot() -> None:
    """With copy=True every batch of an epoch can be kept."""
    with ringfeed.Loader(Oracle(80), batch_size=2, slots=2, workers=1, copy=True) as loader:
        kept = list(loader)
    assert flat(check(batch) for batch in kept) == list(range(80))


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_early_break_and_next_epoch(how: dict[str, Any]) -> None:
    """An epoch can be broken off at any batch; the next one is whole."""
    with ringfeed.Loader(Oracle(60, sleep_s=0.0005), batch_size=4, **how) as loader:
        for stop in (0, 1, 3, 7):
            for number, batch in enumerate(loader):
                check(batch)
                if number == stop:
                    break
        assert flat(check(batch) for batch in loader) == list(range(60))


def test_the_newest_iterator_wins() -> None:
    """An older iterator raises at its next next(); the newer one is whole."""
    with ringfeed.Loader(Oracle(20), batch_size=4, workers=1) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(ringfeed.SupersededError) as caught:
            next(old)
        assert str(caught.value) == (
            "a newer iterator of this loader has taken over; finish one before you make the next"
        )
        del old
        assert flat(check(batch) for batch in new) == list(range(20))
        assert next(new, "over") == "over"


def test_two_loaders_side_by_side() -> None:
    """Training and validation loaders run at once and do not mix."""
    with (
        ringfeed.Loader(Oracle(40), batch_size=4, workers=1) as train,
        ringfeed.Loader(Oracle(30), batch_size=3, workers=1) as validate,
    ):
        for a, b in zip(train, validate, strict=True):
            assert check(a)[0] * 3 == check(b)[0] * 4


def test_several_threads_share_one_iterator() -> None:
    """Consumer threads that draw from one iterator get each batch once."""
    seen: list[int] = []
    with ringfeed.Loader(Oracle(200), batch_size=4, workers=2, slots=6) as loader:
        iterator = iter(loader)

        def consume() -> None:
            for batch in iterator:
                seen.extend(check(batch))

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert sorted(seen) == list(range(200))


def test_close_ends_a_waiting_iterator() -> None:
    """close() from another thread wakes a consumer that waits.

    Later calls say that it is closed.
    """
    loader = ringfeed.Loader(Misbehaving("sleeps", at=0), batch_size=4, workers=1, spec=Oracle.SPEC)
    iterator = iter(loader)
    while_it_waits(loader.close)
    with pytest.raises(ringfeed.ClosedError) as caught:
        next(iterator)
    assert str(caught.value) == "the loader was closed while this iterator waited"
    with pytest.raises(ringfeed.ClosedError) as caught:
        iter(loader)
    assert str(caught.value) == "this loader is closed; make a new one"
    loader.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_dropping_the_loader_leaves_nothing(how: dict[str, Any]) -> None:
    """Without close(), in the middle of an epoch, everything goes with the last reference."""
    iterator = iter(ringfeed.Loader(Oracle(100), batch_size=4, **how))
    check(next(iterator))
    del iterator
    gc.collect()


def test_a_forked_child_frees_no_slots() -> None:
    """A child of the consumer that drops its copies of the views leaves the slots held.

    Its exit kills nobody.
    """
    with ringfeed.Loader(Oracle(40), batch_size=4, workers=2, slots=3) as loader:
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]
        pid = os.fork()
        if pid == 0:
            del kept
            gc.collect()
            os._exit(loader.slot_states().count("held"))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 2
        assert check(kept[0]) == [0, 1, 2, 3]
        assert loader.slot_states().count("held") == 2
        kept.clear()
        assert flat(check(batch) for batch in iterator) == list(range(8, 40))


class Gated(Oracle):
    """Has no sample before a file exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__(8)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        while not self.gate.exists():
            time.sleep(0.01)
        return super().__getitem__(index)


def test_ctrl_c_while_waiting(tmp_path: Path) -> None:
    """A consumer that waits answers SIGINT, and can go on."""
    gate = tmp_path / "gate"
    with ringfeed.Loader(Gated(gate), batch_size=2, workers=1, spec=Oracle.SPEC) as loader:
        iterator = iter(loader)
        while_it_waits(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        gate.touch()
        assert check(next(iterator)) == [0, 1]


def test_ctrl_c_in_process_loses_nothing() -> None:
    """Without workers, a KeyboardInterrupt inside dataset[i] comes out.

    The batch is run again.
    """

    class Interrupting(Oracle):
        interrupted = False

        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with ringfeed.Loader(Interrupting(12), batch_size=4, workers=0) as loader:
        iterator = iter(loader)
        assert check(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert flat(check(batch) for batch in iterator) == list(range(4, 12))


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_workers_killed_in_mid_epoch(method: Any) -> None:
    """Whichever workers are killed, every batch arrives, in order, right."""
    with ringfeed.Loader(
        Oracle(600, sleep_s=0.001), batch_size=4, workers=2, backend=method
    ) as loader:
        seen: list[int] = []
        for number, batch in enumerate(loader):
            seen += check(batch)
            if number in (10, 40, 41):
                for worker in list(loader._runner.engine.pool._roster.workers.values()):  # type: ignore[union-attr]
                    with suppress(ProcessLookupError):  # one killed at 40 is not replaced yet
                        os.kill(worker.pid, signal.SIGKILL)
        assert seen == list(range(600))
        assert loader.stats().restarts >= 2


SCRIPT = """
import ringfeed, numpy as np
class Local:
    def __len__(self): return 12
    def __getitem__(self, i): return np.full(3, i), i
loader = ringfeed.Loader(Local(), batch_size=4, workers=2, backend='process')
print([y.tolist() for x, y in loader])
"""


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_script_without_main_guard(tmp_path: Any, how: str) -> None:
    """A script without a main guard, from a file or standard input, prints once and ends."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *(["script.py"] if how == "file" else [])]
    found = subprocess.run(
        command,
        cwd=tmp_path,
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (found.stdout, found.stderr) == ("[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]\n", "")
    assert found.returncode == 0


def test_workers_die_with_their_consumer(tmp_path: Any) -> None:
    """When the consumer is killed, its workers are soon gone."""
    script = (
        SCRIPT
        + "import os; print([w.pid for w in loader._runner.engine.pool._roster.workers.values()], flush=True)\n"
    )
    script += "it = iter(loader); next(it); os.kill(os.getpid(), 9)\n"
    found = subprocess.run(
        [sys.executable, "-"],
        cwd=tmp_path,
        input=script,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    pids = [int(word) for word in found.stdout.splitlines()[-1].strip("[]").split(", ")]
    assert len(pids) == 2
    wait_until(lambda: not any(map(leftovers.runs, pids)))


class Ending(Oracle):
    """Raises at the end of an epoch."""

    ended = 0

    def on_epoch_end(self) -> None:
        self.ended += 1
        raise ValueError(self.ended)


def test_a_hook_that_raises_is_called_once() -> None:
    """What on_epoch_end raises comes once, and the epoch is over."""
    dataset = Ending(8)
    with ringfeed.Loader(dataset, workers=0, batch_size=4) as loader:
        for epoch in (1, 2):
            iterator = iter(loader)
            next(iterator), next(iterator)
            with pytest.raises(ValueError, match=str(epoch)):
                next(iterator)
            assert next(iterator, "over") == "over"
            assert dataset.ended == epoch


def in_the_slot(lease: Any, rows: int) -> Any:
    """Return the batch of a form that makes no copies."""
    return np.frombuffer(lease, np.int64)[:rows]


def test_a_slot_that_another_thread_lets_go_of_is_filled_here() -> None:
    """Without workers a wait for slots ends with the release.

    The reason: nothing else would fill the slot.
    """
    with ringfeed.Loader(
        (np.arange(8),), batch_size=2, workers=0, slots=2, timeout_s=120
    ) as loader:
        batches = loader._stream.epoch(in_the_slot)
        held = [next(batches), next(batches)]
        threading.Timer(0.2, held.clear).start()
        assert next(batches).tolist() == [4, 5]


def test_a_slot_that_the_garbage_collector_lets_go_of_is_filled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is when the slot comes back just before the wait begins."""
    with ringfeed.Loader(
        (np.arange(8),), batch_size=2, workers=0, slots=2, timeout_s=None
    ) as loader:
        batches = loader._stream.epoch(in_the_slot)
        held = [next(batches), next(batches)]
        monkeypatch.setattr(gc, "collect", held.clear)
        assert next(batches).tolist() == [4, 5]


def test_a_slot_that_becomes_garbage_while_it_is_waited_for() -> None:
    """The garbage collector runs again meanwhile."""
    with ringfeed.Loader((np.arange(8),), batch_size=2, workers=0, slots=2, timeout_s=20) as loader:
        batches = loader._stream.epoch(in_the_slot)
        held: list[list[Any]] = [[next(batches), next(batches)]]
        held[0].append(held[0])
        gc.disable()
        try:
            threading.Timer(0.2, held.clear).start()
            assert next(batches).tolist() == [4, 5]
        finally:
            gc.enable()


# ---- in words ----


def test_what_is_printed_is_a_line() -> None:
    """A loader, its plan and its statistics say in a line what a person wants to know."""
    plan = (
        "290.8 kB: 4 slots of 69.6 kB, 12.3 kB of control; and 262.1 kB of indices in this process"
    )
    columns = np.zeros((100, 3)), np.arange(100)
    with ringfeed.Loader(columns, workers=0) as loader:
        assert repr(loader) == "<Loader of tuple: batches of 32, no workers, slots: 4, 290.8 kB>"
        assert (repr(loader.plan), str(loader.plan)) == (f"<Plan of {plan}>", plan)
        assert repr(loader.stats()) == (
            "<Stats: 0 batches of 0 samples in 0.0 s, 0.0 s of it waited; too early to say: 0 "
            "batches in 0.0 s>"
        )
        assert repr(loader.stats().memory).splitlines()[0] == f"planned    {plan}"
    with ringfeed.Loader(
        list(columns[0]), workers="auto", slots="auto", backend="thread", memory="1MB"
    ) as loader:
        plan = loader.plan
        assert repr(loader).startswith(
            f"<Loader of list: batches of 32, workers in threads: up to {plan.workers}, slots: up "
            f"to {plan.slots}, "
        )
    assert repr(ringfeed.Loader.__new__(ringfeed.Loader)).startswith(
        "<ringfeed.loader.Loader object at "
    )
    with ringfeed.Loader([columns[0]] * 3, batch_size=None, workers=1) as loader:
        assert repr(loader).startswith(
            "<Loader of list: whole batches, workers by forkserver: 1, slots: 3, "
        )

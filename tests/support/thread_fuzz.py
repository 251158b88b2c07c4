"""Seeded rounds of threads alone against a content oracle: for Python without the GIL. See fuzz.py.

    python tests/support/fuzz.py --threads --seconds 60
    python tests/support/fuzz.py --threads --seed 1234

A round is one loader whose workers are threads, in some rounds of several threads each, or that has
none, and reads in its own. Several threads take from one iterator, hold views
and hand them to each other; beside them threads ask for statistics and states, collect garbage,
draw a trace, make and drop descriptors, and begin epochs of another loader; signals come. Some
epochs are broken off: by `close()`, by a newer iterator, or because the iterator is dropped.

Each sample must come once, as the dataset says it is, and the batches of one thread in order.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from orders import SHAPE, Tally
from ringfeed.loader import loaders_in_use
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import SampleContext, installed, making
from ringfeed.system import _system
from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 100.0
ENDS = (ringfeed.ClosedError, ringfeed.SupersededError)  # of an epoch that is broken off
SPEC = {
    "content": ringfeed.Array(SHAPE, "uint8"),
    "epoch": ringfeed.Array((), "int64"),
    "index": ringfeed.Array((), "int64"),
    "list": ringfeed.Array((3,), "float32"),
}


class Contents:
    """Samples of several leaves; some raise.

    One dict and one list are given again and again, changed, unless others are read meanwhile.
    """

    def __init__(self, length: int, sleep_s: float, every: int, *, are_new: bool) -> None:
        self.length, self.sleep_s, self.every, self.are_new = length, sleep_s, every, are_new
        self.given = threading.local()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        if is_bad(index, self.every):
            raise ValueError(index)
        here = {} if self.are_new else vars(self.given)
        numbers, sample = here.setdefault("list", [0.0] * 3), here.setdefault("sample", {})
        numbers[:] = [float(index)] * 3
        context = installed.context or making.get()
        assert context is not None
        sample |= {"content": ringfeed.rng().integers(0, 256, SHAPE, np.uint8)}
        sample |= {"epoch": context.epoch, "index": index, "list": numbers}
        return sample


def _keep(batch: Any) -> Any:
    return batch


def is_bad(index: int, every: int) -> bool:
    """Whether a sample raises."""
    return every > 0 and index % every == 1


class Plan:
    """All decisions of one round, drawn from its seed alone."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = Random(f"{seed} threads")  # noqa: S311 - no secret
        self.seed = seed
        self.workers, self.consumers = draw.randint(1, 4), draw.randint(1, 6)
        self.slots: Any = draw.choice([2, 3, 4, 6, "auto"])
        # A loader of two slots trusts a loop that drops each batch for the next, and waits for it.
        self.holds = self.slots != 2
        self.consumers = self.consumers if self.holds else 1
        self.batch_size = draw.choice([1, 2, 5, 16, 33])
        self.batches = draw.randint(10, 80)
        self.length = self.batches * self.batch_size - draw.randrange(self.batch_size)
        self.shuffle, self.copy = draw.random() < 0.7, draw.random() < 0.2
        self.sleep_s = draw.choice([0.0, 0.0, 0.0002, 0.003 / self.batch_size])
        self.every = draw.choice([0, 0, 7, 2])  # one sample in this number raises; 0: none
        self.epochs = draw.randint(1, 4)
        self.repeats = draw.random() < 0.3
        self.breaks = [
            draw.choice(["close", "newer", None, None, None]) for _ in range(self.epochs)
        ]
        self.break_s = [draw.expovariate(1 / 0.02) for _ in range(self.epochs)]
        self.disturbances = [name for name in DISTURBANCES if draw.random() < 0.5]
        if draw.random() < 0.2:
            self.workers = 0
        self.concurrency = (
            max(1, self.workers) * draw.randint(1, 5) if draw.random() < 0.4 else None
        )
        self.changes = {"batch_transform": _keep} if draw.random() < 0.2 else {}

    def __str__(self) -> str:
        return (
            f"{self.workers} workers, concurrency={self.concurrency}, {[*self.changes]}, "
            f"{self.consumers} consumers, {self.slots} slots"
        )

    def loader(self) -> ringfeed.Loader:
        """The round's loader."""
        return ringfeed.Loader(
            Contents(self.length, self.sleep_s, self.every, are_new=self.concurrency is not None),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            workers=self.workers,
            concurrency=self.concurrency,
            backend="thread",
            **self.changes,
            slots=self.slots,
            copy=self.copy,
            spec=SPEC,
            timeout_s=PATIENCE_S,
            on_error="skip",
        )

    def order(self, epoch: int) -> np.ndarray[Any, Any]:
        """The indices of an epoch, in order."""
        positions = np.arange(self.length, dtype=np.int64)
        return permute(positions, self.length, self.seed, epoch) if self.shuffle else positions


class Oracle:
    """What the batches of a loader must be, and which of them have come."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._places: dict[int, dict[int, int]] = {}  # by epoch and index
        self.came: Counter[tuple[int, int]] = Counter()  # epochs and numbers
        self._lock = threading.Lock()

    def places(self, epoch: int) -> dict[int, int]:
        """Where each sample of an epoch comes."""
        with self._lock:
            if epoch not in self._places:
                order = self._plan.order(epoch).tolist()
                self._places[epoch] = {index: place for place, index in enumerate(order)}
            return self._places[epoch]

    def check(self, batch: dict[str, Any]) -> tuple[int, int]:
        """Return the epoch and the number of a batch, which is right."""
        plan, indices = self._plan, batch["index"].tolist()
        (epoch,) = {*batch["epoch"].tolist()}
        places = self.places(epoch)
        number = places[indices[0]] // plan.batch_size
        order = [*places][number * plan.batch_size :][: plan.batch_size]
        expected = [index for index in order if not is_bad(index, plan.every)]
        assert indices == expected, f"batch {number} of epoch {epoch} has {indices}, not {expected}"
        context = SampleContext(plan.seed, epoch)
        before, installed.context = installed.context, context
        for row, index in enumerate(indices):
            context.index = index
            right = ringfeed.rng().integers(0, 256, SHAPE, np.uint8)
            assert (batch["content"][row] == right).all(), f"sample {index} of epoch {epoch}"
            assert batch["list"][row].tolist() == [index] * 3, f"the list of sample {index}"
        installed.context = before
        with self._lock:
            self.came[epoch, number] += 1
        return epoch, number

    def expected(self, epoch: int) -> Iterator[tuple[int, int]]:
        """The batches that an epoch must have."""
        size, every = self._plan.batch_size, self._plan.every
        order = [*self.places(epoch)]
        for number in range(self._plan.batches):
            if not all(is_bad(index, every) for index in order[number * size :][:size]):
                yield epoch, number


class Consumers:
    """Threads that take from one iterator, and check what they get."""

    def __init__(self, plan: Plan, oracle: Oracle) -> None:
        self._plan, self._oracle = plan, oracle
        self._passed_on: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.errors: list[BaseException] = []

    def run(self, iterator: Any, *, broken: bool) -> None:
        """Take all batches, by several threads."""
        batches = [iterator]  # the threads' only reference to it goes with the list
        threads = [
            threading.Thread(target=self._take, args=(batches, number, broken), daemon=True)
            for number in range(self._plan.consumers)
        ]
        del iterator
        for thread in threads:
            thread.start()
        for thread in threads:
            joined(thread)

    def _take(self, batches: list[Any], number: int, broken: bool) -> None:  # noqa: FBT001
        draw = Random(f"{self._plan.seed} {number}")  # noqa: S311 - no secret
        last, held = (-1, -1), list[tuple[Any, Any]]()
        try:
            while True:
                try:
                    batch = next(batches[0])
                except StopIteration:
                    return
                found = self._oracle.check(batch)
                assert found > last, f"batch {found} after {last}"
                last = found
                self._hold_or_pass_on(batch, draw, held)
                del batch
        except ENDS:
            if not broken:
                raise
        except BaseException as error:  # noqa: BLE001 - the round raises it
            self.errors.append(error)
        finally:
            for kept, copy in held:
                if not (kept == copy).all():
                    self.errors.append(AssertionError("a view that was held has changed"))

    def _hold_or_pass_on(self, batch: Any, draw: Random, held: list[tuple[Any, Any]]) -> None:
        """Keep a view of this batch, or let other threads drop it."""
        choice = draw.random() if self._plan.holds else 1.0
        if choice < 0.2:
            held.append((batch["content"][::2], batch["content"][::2].copy()))
        elif choice < 0.4:
            self._passed_on.put(batch)
        if len(held) > 1:
            kept, copy = held.pop(0)
            assert (kept == copy).all(), "a view that was held has changed"
        if draw.random() < 0.5 and not self._passed_on.empty():
            with suppress(queue.Empty):
                self._passed_on.get_nowait()

    def let_go(self) -> None:
        """Drop what is still passed on."""
        while not self._passed_on.empty():
            self._passed_on.get_nowait()


def joined(thread: threading.Thread) -> None:
    """Join a thread; one that hangs ends the process, with all stacks."""
    thread.join(PATIENCE_S)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
        os._exit(99)


# ---- disturbances: each is called again and again, in a thread of its own ----


def _ask(loader: ringfeed.Loader) -> None:
    str(loader.stats())
    loader.slot_states()
    repr(loader)
    loader.state_dict()
    assert all(isinstance(found, ringfeed.Loader) for found in loaders_in_use())


def _collect(_: ringfeed.Loader) -> None:
    gc.collect()
    time.sleep(0.001)


def _weigh(loader: ringfeed.Loader) -> None:
    str(loader.stats().memory)
    time.sleep(0.001)


def _own_descriptors(_: ringfeed.Loader) -> None:
    ours, theirs = _system.socket_pair()
    with Descriptor(os.eventfd, 0) as sent:
        _system.send(ours.fileno(), b"x", (sent.fileno(),) * 3)
    _, found, _ = _system.receive(theirs.fileno())
    assert len({one.fileno() for one in found}) == 3


def _run_another(_: ringfeed.Loader) -> None:
    rows = np.arange(100)
    with ringfeed.Loader(rows, batch_size=10, workers=1, backend="thread") as other:
        assert np.concatenate([batch.copy() for batch in other]).tolist() == rows.tolist()


def _drop_another(_: ringfeed.Loader) -> None:
    next(iter(ringfeed.Loader(np.arange(100), batch_size=10, workers=2, backend="thread")))


def _signal(_: ringfeed.Loader) -> None:
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0.002)


_hearing = threading.Lock()


def _heard(*_: object) -> None:
    """Collect garbage amid whatever the main thread is at; not amid itself, on a slow machine."""
    if _hearing.acquire(blocking=False):
        try:
            gc.collect(0)
        finally:
            _hearing.release()


DISTURBANCES: dict[str, Callable[[ringfeed.Loader], None]] = {
    "ask": _ask,
    "collect": _collect,
    "weigh": _weigh,
    "descriptors": _own_descriptors,
    "another": _run_another,
    "drop": _drop_another,
    "signal": _signal,
}


@contextmanager
def disturbed(plan: Plan, loader: ringfeed.Loader, errors: list[BaseException]) -> Iterator[None]:
    """Have the round's disturbances at work."""
    over = threading.Event()

    def run(disturb: Callable[[ringfeed.Loader], None]) -> None:
        try:
            while not over.is_set():
                disturb(loader)
        except BaseException as error:  # noqa: BLE001 - the round raises it
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(DISTURBANCES[name],), daemon=True)
        for name in plan.disturbances
    ]
    with ExitStack() as end:
        if plan.draw.random() < 0.3:
            file = end.enter_context(tempfile.NamedTemporaryFile(suffix=".json"))
            end.enter_context(loader.trace(file.name))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                joined(thread)


# ---- rounds ----


def _break_off(how: str | None, after_s: float, loader: ringfeed.Loader) -> threading.Thread:
    """Break an epoch off after a while, from another thread."""

    def run() -> None:
        time.sleep(after_s)
        if how == "close":
            loader.close()
        elif how == "newer":
            iter(loader)  # and is dropped at once, which breaks its own epoch off

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _run_epochs(plan: Plan, loader: ringfeed.Loader, consumers: Consumers, oracle: Oracle) -> int:
    """Run epoch by epoch; returns how many were broken off."""
    broken = 0
    for how, after_s in zip(plan.breaks, plan.break_s, strict=True):
        epoch = loader.epoch
        iterator: Any = iter(loader)
        breaker = _break_off(how, after_s, loader)
        consumers.run(iterator, broken=how is not None)
        del iterator
        joined(breaker)
        _raise(consumers.errors)
        came = {found: count for found, count in oracle.came.items() if found[0] == epoch}
        if how is None:
            assert came == dict.fromkeys(oracle.expected(epoch), 1), f"epoch {epoch}"
        broken += how is not None
        assert {*came.values()} <= {1}, f"epoch {epoch}: a batch came twice"
        if how == "close":
            break
    return broken


def _run_repeated(plan: Plan, loader: ringfeed.Loader, consumers: Consumers, oracle: Oracle) -> int:
    """Run all epochs as one iterator."""
    consumers.run(loader.repeat(plan.epochs), broken=False)
    _raise(consumers.errors)
    expected = [found for epoch in range(plan.epochs) for found in oracle.expected(epoch)]
    assert oracle.came == dict.fromkeys(expected, 1)
    return 0


def _raise(errors: list[BaseException]) -> None:
    if errors:
        raise errors[0]


def run_round(seed: int, tally: Tally) -> None:
    """Run one round; an AssertionError names its seed."""
    plan = Plan(seed)
    oracle = Oracle(plan)
    consumers = Consumers(plan, oracle)
    before = signal.signal(signal.SIGUSR2, _heard)
    run = _run_repeated if plan.repeats else _run_epochs
    try:
        with plan.loader() as loader, disturbed(plan, loader, consumers.errors):
            tally.broken_off += run(plan, loader, consumers, oracle)
        consumers.let_go()
        _raise(consumers.errors)
    except Exception as error:
        message = f"python tests/support/fuzz.py --threads --seed {seed} ({plan}): {error!r}"
        raise AssertionError(message) from error
    finally:
        signal.signal(signal.SIGUSR2, before)
    tally.rounds += 1
    tally.batches += sum(oracle.came.values())
    tally.rows += sum(oracle.came.values()) * plan.batch_size

"""A seeded killer against a content oracle: random workers die at random times, and every batch must be right.

    python tests/fuzz.py --seconds 60
    python tests/fuzz.py --seed 1234

A round is one loader with random settings. While a thread kills and stops its workers and its nursery, the consumer
holds random views, breaks epochs off and begins others. Each batch is compared with what the sampler and the dataset
say it must be, so that a lost, doubled, reordered or corrupt row is found at once; held views are looked at again
when they are let go. A failure names the seed of its round: the same seed takes the same decisions again. (How they
meet the workers in time is up to the machine.)
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import leftovers
import ringfeed
from ringfeed.permutation import permute
from ringfeed.randomness import SampleContext, enter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

TIMEOUT_S = 9.0  # less than the 10 s after which a sleeping worker looks round: no lost wake-up heals by itself
ROUND_S = 120.0
DEEDS = {"kill": 60, "kill all": 8, "stop": 14, "stop and kill": 8, "kill nursery": 8, "stop nursery": 2}
SHAPE = (5, 7)


def _random(seed: int, purpose: str) -> Random:
    return Random(f"{seed} {purpose}")  # noqa: S311 - no secret


class Contents:
    """Samples whose every byte depends on their index and on the epoch, so that no stale row looks right."""

    SPEC = (ringfeed.Array(SHAPE, "uint8"), ringfeed.Array((), "int64"))

    def __init__(self, length: int, sleep_s: float) -> None:
        self.length = length
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return ringfeed.rng().integers(0, 256, SHAPE, np.uint8), index


@dataclass(frozen=True)
class Deed:
    """What the killer does next."""

    delay_s: float
    name: str
    victim: int
    pause_s: float


class Script:
    """All decisions of one round, drawn from its seed alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = _random(seed, "settings")
        self.method = draw.choices(["spawn", "fork", "forkserver"], [3, 5, 4])[0]
        self.workers = draw.randint(1, 4)
        self.slots = draw.randint(2, 6)
        self.batch_size = draw.choice([1, 2, 3, 5, 8, 16, 33])
        self.batches = draw.randint(20, 120)
        self.length = self.batches * self.batch_size - draw.randrange(self.batch_size)
        self.shuffle = draw.random() < 0.7
        self.sleep_s = draw.choice([0.0, 0.0002, 0.001]) if self.batch_size < 16 else 0.0002
        self.epochs = draw.randint(1, 4)
        self.stops = draw.random() < 0.4
        self.mean_delay_s = draw.choice([0.01, 0.03, 0.1])
        self.consumer = _random(seed, "consumer")

    def deeds(self) -> Iterator[Deed]:
        """What the killer does, one after another, without end."""
        draw = _random(self.seed, "killer")
        shares = [share if self.stops or "stop" not in name else 0 for name, share in DEEDS.items()]
        while True:
            delay_s = draw.expovariate(1 / self.mean_delay_s)
            name = draw.choices(list(DEEDS), shares)[0]
            yield Deed(delay_s, name, draw.randrange(self.workers), draw.uniform(0.001, 0.05))

    def loader(self) -> ringfeed.Loader:
        """The round's loader."""
        return ringfeed.Loader(
            Contents(self.length, self.sleep_s),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            workers=self.workers,
            start_method=self.method,  # type: ignore[arg-type]
            slots=self.slots,
            spec=Contents.SPEC,
            timeout_s=TIMEOUT_S,
            max_attempts=1000,  # random deaths are no sample's fault
        )

    def order(self, epoch: int) -> np.ndarray[Any, Any]:
        """The indices of an epoch, in order."""
        positions = np.arange(self.length, dtype=np.int64)
        return permute(positions, self.length, self.seed, epoch) if self.shuffle else positions


@dataclass
class Tally:
    """What has happened."""

    rounds: int = 0
    kills: int = 0
    nurseries: int = 0
    stops: int = 0
    restarts: int = 0
    batches: int = 0
    rows: int = 0
    broken_off: int = 0
    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        """All of it; a tally of rounds that passed has lost nothing."""
        lines = [
            f"{self.rounds} rounds: {self.kills} kills of workers, {self.nurseries} of nurseries, {self.stops} stops, "
            f"{self.restarts} replacements",
            f"{self.batches} batches, {self.rows} rows, {self.broken_off} epochs broken off: "
            f"0 lost, 0 doubled, 0 reordered, 0 wrong bytes",
        ]
        for name, gaps_s in sorted(self.gaps_s.items()):
            tenth = sorted(gaps_s)[-1 - len(gaps_s) // 10]
            lines.append(
                f"gap after a kill, {name}: median {statistics.median(gaps_s) * 1e3:.0f} ms, one in ten over "
                f"{tenth * 1e3:.0f} ms, longest {max(gaps_s) * 1e3:.0f} ms, of {len(gaps_s)}"
            )
        return "\n".join(lines)


class Killer:
    """A thread that does the deeds of a script to a loader's processes."""

    def __init__(self, script: Script, loader: ringfeed.Loader, tally: Tally) -> None:
        self.killed_at_s: list[tuple[float, str]] = []  # when, and who else lived
        self._script = script
        self._tally = tally
        self._pool: Any = loader._engine.pool  # type: ignore[union-attr]
        self._until_progress = 0
        self._killed_early = -1  # the last worker that was killed before it had worked
        self._nursery_after = -1  # restarts at its last death; it must have forked again before it dies again
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        """Put an end to it."""
        self._over.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def progress(self) -> None:
        """Be told that a batch has come: a loader whose every worker dies before it works cannot go on."""
        self._until_progress = 0

    def _run(self) -> None:
        try:
            for deed in self._script.deeds():
                if self._over.wait(deed.delay_s):
                    return
                self._do(deed)
        except BaseException as error:  # noqa: BLE001 - raised where the round ends
            self._error = error

    def _do(self, deed: Deed) -> None:
        if "nursery" in deed.name:
            self._do_to_nursery(deed)
            return
        worker = self._pool._workers.get(deed.victim)
        if worker is None:
            return
        if "stop" in deed.name:
            self._pause(worker.pid, deed, end=signal.SIGKILL if "kill" in deed.name else signal.SIGCONT)
        elif deed.name == "kill":
            self._kill(deed.victim, worker)
        else:
            for number, each in list(self._pool._workers.items()):
                self._kill(number, each)

    def _may_die(self, number: int) -> bool:
        """Whether a death leaves the loader able to go on: three in a row before any work are an error, rightly."""
        if self._until_progress >= 2 * self._script.workers:
            return False
        if not self._pool._is_starting(number):
            return True
        pids = [worker.pid for worker in list(self._pool._workers.values())]
        return self._pool._early_deaths == 0 and self._killed_early not in pids

    def _note_kill(self, number: int, pid: int) -> None:
        if self._pool._is_starting(number):
            self._killed_early = pid
        self._until_progress += 1
        self._tally.kills += 1

    def _kill(self, number: int, worker: Any) -> None:
        if not self._may_die(number):
            return
        others = "others live" if self._script.workers > 1 else "sole worker"
        self._note_kill(number, worker.pid)
        self.killed_at_s.append((time.perf_counter(), f"{self._script.method}, {others}"))
        self._send(worker.pid, signal.SIGKILL)

    def _pause(self, pid: int, deed: Deed, end: signal.Signals) -> None:
        """Stop a process for a while; then let it go on, or kill it as it is."""
        if end == signal.SIGKILL and not self._may_die(deed.victim):
            end = signal.SIGCONT
        if end == signal.SIGKILL:
            self._note_kill(deed.victim, pid)
        self._send(pid, signal.SIGSTOP)
        self._over.wait(deed.pause_s)
        self._send(pid, end)
        self._tally.stops += 1

    def _do_to_nursery(self, deed: Deed) -> None:
        nursery = getattr(self._pool._launcher, "_nursery", None)
        if nursery is None:
            return
        if "stop" in deed.name:
            self._pause(nursery.pid, deed, end=signal.SIGCONT)
            return
        restarts = self._pool.restarts
        if restarts > self._nursery_after and len(self._pool._workers) == self._script.workers:
            self._nursery_after = restarts
            self._send(nursery.pid, signal.SIGKILL)
            self._tally.nurseries += 1

    @staticmethod
    def _send(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Consumer:
    """Takes the batches of a round, checks them, and holds some."""

    def __init__(self, script: Script, loader: ringfeed.Loader, tally: Tally) -> None:
        self.waits_s: list[tuple[float, float]] = []  # begin and end of each wait for a batch
        self._script = script
        self._loader = loader
        self._tally = tally
        self._draw = script.consumer
        self._held: list[tuple[Any, Any]] = []  # views, and what they must say

    def expected(self, epoch: int, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The contents of some samples in an epoch."""
        context = SampleContext(self._script.seed, epoch)
        before = enter(context)
        found = np.empty((len(indices), *SHAPE), np.uint8)
        for row, index in enumerate(indices.tolist()):
            context.index = index
            found[row] = ringfeed.rng().integers(0, 256, SHAPE, np.uint8)
        enter(before)
        return found

    def run_epoch(self, iterator: Any, epoch: int, killer: Killer) -> None:
        """Take an epoch's batches, all of them or up to some point."""
        stop = self._draw.randrange(self._script.batches) if self._draw.random() < 0.4 else None
        order = self._script.order(epoch)
        for number in range(self._script.batches):
            if number == stop:
                self._tally.broken_off += 1
                return
            began_s = time.perf_counter()
            batch = next(iterator, None)
            self.waits_s.append((began_s, time.perf_counter()))
            assert batch is not None, f"epoch {epoch} ended before batch {number} of {self._script.batches}"
            killer.progress()
            indices = order[number * self._script.batch_size :][: self._script.batch_size]
            self._check(batch, epoch, number, indices)
            self._hold_or_release(batch)
        assert next(iterator, None) is None, f"epoch {epoch} has more than {self._script.batches} batches"

    def _check(self, batch: Any, epoch: int, number: int, indices: np.ndarray[Any, Any]) -> None:
        contents, found = batch
        where = f"batch {number} of epoch {epoch}"
        assert found.tolist() == indices.tolist(), f"{where} has samples {found.tolist()}, not {indices.tolist()}"
        right = contents == self.expected(epoch, indices)
        assert right.all(), f"{where} has {np.count_nonzero(~right)} wrong bytes"
        self._tally.batches += 1
        self._tally.rows += len(found)

    def _hold_or_release(self, batch: Any) -> None:
        """Hold this batch or a part of it, or let go of others; one slot at least stays free to be filled."""
        if self._held and self._draw.random() < 0.5:
            self.release(self._draw.randrange(len(self._held)))
        if len(self._held) < self._script.slots - 1 and self._draw.random() < 0.5:
            views = batch if self._draw.random() < 0.5 else (batch[0][::2, 1:3],)
            self._held.append((views, [view.copy() for view in views]))

    def release(self, place: int) -> None:
        """Let go of held views, which must be as they were."""
        views, copies = self._held.pop(place)
        for view, copy in zip(views, copies, strict=True):
            assert (view == copy).all(), "a view that was held has changed"

    def release_all(self) -> None:
        """Let go of all that is held."""
        while self._held:
            self.release(0)


def _epochs(script: Script, loader: ringfeed.Loader, consumer: Consumer, tally: Tally) -> None:
    """Run a round's epochs with the killer at work."""
    iterator: Any = iter(loader)
    with Killer(script, loader, tally) as killer:
        for number in range(script.epochs):
            epoch = loader.epoch - 1
            consumer.run_epoch(iterator, epoch, killer)
            if script.consumer.random() < 0.5:
                iterator = None  # breaks the epoch off now, else the next one does
            if script.consumer.random() < 0.3:
                loader.set_epoch(script.consumer.randrange(100))
            if number + 1 < script.epochs:
                iterator = iter(loader)
        if script.consumer.random() < 0.5:
            loader.close()  # under fire
    tally.restarts += loader.stats().restarts
    if not script.stops:
        _measure(killer, consumer, script, tally)


def _measure(killer: Killer, consumer: Consumer, script: Script, tally: Tally) -> None:
    """Note, for each kill, the longest wait among the batches that were bound when it came, counted from it."""
    for at_s, name in killer.killed_at_s:
        after = [end_s - max(begin_s, at_s) for begin_s, end_s in consumer.waits_s if end_s > at_s]
        if after:
            tally.gaps_s[name].append(max(after[: script.slots]))


def run_round(seed: int, tally: Tally) -> None:
    """Run one round; an AssertionError names its seed."""
    script = Script(seed)
    before = leftovers.present()
    try:
        with script.loader() as loader:
            consumer = Consumer(script, loader, tally)
            _epochs(script, loader, consumer, tally)
        consumer.release_all()
        del loader, consumer
        left = leftovers.since(before, patience_s=2.0)
        assert not left, f"left behind: {left}"
    except Exception as error:
        message = f"python tests/fuzz.py --seed {seed} ({script.method}, {script.workers} workers): {error}"
        raise AssertionError(message) from error
    tally.rounds += 1


def run(seed: int, seconds: float, *, bounded: bool = False) -> Tally:
    """Run rounds from a seed onward until the time is over; ``bounded`` ends the process if one hangs."""
    tally = Tally()
    deadline_s = time.monotonic() + seconds
    while not tally.rounds or time.monotonic() < deadline_s:
        if bounded:
            faulthandler.dump_traceback_later(ROUND_S, exit=True)
            sys.stderr.write(f"\rseed {seed} ") if sys.stderr.isatty() else None
        run_round(seed, tally)
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the first round; alone: that round only")
    parser.add_argument("--seconds", type=float, help="begin rounds for so long")
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    seconds = chosen.seconds if chosen.seconds is not None else 0.0 if chosen.seed is not None else 60.0
    sys.stdout.write(f"from seed {seed}\n")
    sys.stdout.flush()
    sys.stdout.write(f"{run(seed, seconds, bounded=True)}\n")


if __name__ == "__main__":
    main()

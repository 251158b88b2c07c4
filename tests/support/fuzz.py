"""A seeded killer against a content oracle: random workers die at random times, and every batch must be right.

    python tests/support/fuzz.py --seconds 60
    python tests/support/fuzz.py --seed 1234
    python tests/support/fuzz.py --seconds 60 --unkillable
    python tests/support/fuzz.py --seconds 60 --threads

A round is one loader with random settings, in half of the rounds with several threads in each
worker. While a thread kills and stops its workers and its
forkserver, the consumer holds random views, breaks epochs off and begins others. In some rounds
workers are stopped for good, and the loader must suspect and end them; with --unkillable in all,
and some of them cannot be ended, and wake up later.

Each batch is compared with what the sampler and the dataset say it must be, so that a lost,
doubled, reordered or corrupt row is found at once; held views are looked at again when they are let
go. A failure names the seed of its round: the same seed takes the same decisions again. (How they
meet the workers in time is up to the machine.)

With --threads no process dies: see thread_fuzz.py.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import leftovers
import ringfeed
import thread_fuzz
from killer import Killer
from orders import SHAPE, Script, Tally
from ringfeed.orders.rng import SampleContext, installed

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND_S = 120.0


class Consumer:
    """Takes the batches of a round, checks them, and holds some."""

    def __init__(self, script: Script, tally: Tally) -> None:
        self.waits_s: list[tuple[float, float]] = []  # begin and end of each wait for a batch
        self._script = script
        self._tally = tally
        self._draw = script.consumer
        self._held: list[tuple[Any, Any]] = []  # views, and what they must say

    def expected(self, epoch: int, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The contents of some samples in an epoch."""
        context = SampleContext(self._script.seed, epoch)
        before, installed.context = installed.context, context
        found = np.empty((len(indices), *SHAPE), np.uint8)
        for row, index in enumerate(indices.tolist()):
            context.index = index
            found[row] = ringfeed.rng().integers(0, 256, SHAPE, np.uint8)
        installed.context = before
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
            batch = self._next(iterator)
            self.waits_s.append((began_s, time.perf_counter()))
            assert batch is not None, (
                f"epoch {epoch} ended before batch {number} of {self._script.batches}"
            )
            killer.progress()
            indices = order[number * self._script.batch_size :][: self._script.batch_size]
            self._check(batch, epoch, number, indices)
            self._hold_or_release(batch)
            del batch  # or it would hold a slot while the next is waited for
        assert next(iterator, None) is None, (
            f"epoch {epoch} has more than {self._script.batches} batches"
        )

    @staticmethod
    def _next(iterator: Any) -> Any:
        """Return the next batch, or None.

        While every free slot is in quarantine there is none, and that is said.
        """
        while True:
            try:
                return next(iterator, None)
            except ringfeed.StallError as error:
                if "which SIGKILL could not end" not in str(error):
                    raise

    def _check(self, batch: Any, epoch: int, number: int, indices: np.ndarray[Any, Any]) -> None:
        contents, found = batch
        where = f"batch {number} of epoch {epoch}"
        assert found.tolist() == indices.tolist(), (
            f"{where} has samples {found.tolist()}, not {indices.tolist()}"
        )
        right = contents == self.expected(epoch, indices)
        assert right.all(), f"{where} has {np.count_nonzero(~right)} wrong bytes"
        self._tally.batches += 1
        self._tally.rows += len(found)

    def _hold_or_release(self, batch: Any) -> None:
        """Hold this batch or a part of it, or let go of others.

        One slot at least stays free to be filled.
        """
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
    if not (script.stops or script.suspicious):
        _measure(killer, consumer, script, tally)


def _measure(killer: Killer, consumer: Consumer, script: Script, tally: Tally) -> None:
    """Note, for each kill, the longest wait among the batches that were bound when it came, counted from it."""
    for at_s, name in killer.killed_at_s:
        after = [
            (max(begin_s, at_s), end_s) for begin_s, end_s in consumer.waits_s if end_s > at_s
        ][: script.slots]
        if not after:
            continue
        alone = not any(at_s < other_s < after[-1][1] for other_s, _ in killer.killed_at_s)
        gap_s = max(end_s - begin_s for begin_s, end_s in after)
        tally.gaps_s[name if alone else f"{script.method}, one of several"].append(gap_s)


def run_round(seed: int, tally: Tally, *, unkillable: bool = False) -> None:
    """Run one round; an AssertionError names its seed."""
    script = Script(seed, unkillable=unkillable)
    before = leftovers.present()
    try:
        with script.loader() as loader:
            consumer = Consumer(script, tally)
            _epochs(script, loader, consumer, tally)
        consumer.release_all()
        del loader, consumer
        left = leftovers.since(before)
        assert not left, f"left behind: {left}"
    except Exception as error:
        switch = " --unkillable" * unkillable
        message = (
            f"python tests/support/fuzz.py --seed {seed}{switch} ({script.method}, "
            f"{script.workers} workers, concurrency={script.concurrency}, {script.form}): {error}"
        )
        raise AssertionError(message) from error
    tally.rounds += 1


def run(
    seed: int, seconds: float, run_one: Callable[[int, Tally], None], *, bounded: bool = False
) -> Tally:
    """Run rounds from a seed onward until the time is over; ``bounded`` ends the process if one hangs."""
    tally = Tally()
    deadline_s = time.monotonic() + seconds
    while not tally.rounds or time.monotonic() < deadline_s:
        if bounded:
            faulthandler.dump_traceback_later(ROUND_S, exit=True)
            sys.stderr.write(f"\rseed {seed} ") if sys.stderr.isatty() else None
        run_one(seed, tally)
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    return tally


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of the first round; alone: that round only")
    parser.add_argument("--seconds", type=float, help="begin rounds for so long")
    parser.add_argument(
        "--unkillable",
        action="store_true",
        help="SIGKILL does not end some, and they wake up later",
    )
    parser.add_argument(
        "--threads", action="store_true", help="no deaths: several threads take from one loader"
    )
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    seconds = (
        chosen.seconds if chosen.seconds is not None else 0.0 if chosen.seed is not None else 60.0
    )
    sys.stdout.write(f"from seed {seed}\n")
    sys.stdout.flush()
    run_one = (
        thread_fuzz.run_round
        if chosen.threads
        else partial(run_round, unkillable=chosen.unkillable)
    )
    sys.stdout.write(f"{run(seed, seconds, run_one, bounded=True)}\n")


if __name__ == "__main__":
    main()

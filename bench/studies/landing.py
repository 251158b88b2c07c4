"""A bridge's part of a ticket, without a cluster: claim, land, give up. `python bench/studies/landing.py`.

Rows as an actor sends them are landed in slots, ticket by ticket, beside NumPy's own copy of the
same bytes into memory as cold as those: how many times as long a ticket takes, and the GB/s. Then
what a claim costs with hundreds held, and how long after a break all of them are published and
their slots bound again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import commit, machine
from ringfeed import Array
from ringfeed.engine.plan import make_plan
from ringfeed.ray.claims import Claims
from ringfeed.ray.landing import Filled, Lander
from ringfeed.ring import _ring
from ringfeed.ring.segment import Segment
from ringfeed.spec.spec import Spec

SLOTS = 8
SIZES = (0.6, 2.4, 9.6, 38.5)  # MB a ticket
ROWS = 16
HELD = (1, 100, 500)


class Bridge:
    """A ring of tickets of so many rows, and what claims them."""

    def __init__(self, array: Array, rows: int, ticket_rows: int) -> None:
        spec = Spec(array)
        plan = make_plan(spec, rows, rows, workers=1, slots=SLOTS, more=1000)
        segment = Segment(plan.sizes)
        self.ring, self.rows = segment.open(), rows
        segment.close()
        self.ring.become_consumer(plan.lookahead, 3)
        self.ring.set_pace(10**12, ticket_rows)
        lander = Lander(spec, plan.layout.offsets, self.ring, rows)
        self.claims = Claims(_ring.WorkerEnd(self.ring, 0), lander)

    def plan(self, batches: int) -> None:
        """Bind so many batches."""
        self.ring.plan(np.arange(self.rows * batches, dtype=np.int64), self.rows, 0, 0)


def land(array: Array, given: np.ndarray, seconds: float) -> tuple[float, float]:
    """Return the seconds of a landing and of NumPy's copy, medians of turns."""
    bridge = Bridge(array, ROWS, ROWS)
    cold = [given.copy() for _ in range(SLOTS)]
    landed, copied, until = [], [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        bridge.plan(1)
        claim = bridge.claims.next(0)
        assert claim is not None
        began = time.perf_counter()
        bridge.claims.land(claim, Filled((given,), ROWS))
        landed.append(time.perf_counter() - began)
        bridge.ring.take()
        began = time.perf_counter()
        np.copyto(cold[len(landed) % SLOTS], given)
        copied.append(time.perf_counter() - began)
    half = len(landed) // 2  # the first ones touch memory for the first time
    return median(landed[half:]), median(copied[half:])


def hold(repetitions: int) -> tuple[dict[int, float], float]:
    """Return the seconds of a claim by how many are held, and those from a break to free slots."""
    claimed: dict[int, list[float]] = {count: [] for count in HELD}
    broken = []
    for _ in range(repetitions):
        bridge = Bridge(Array((), "uint8"), 64, 1)
        bridge.plan(SLOTS)
        for number in range(SLOTS * 64):
            began = time.perf_counter()
            bridge.claims.next(0)
            if number in claimed:
                claimed[number].append(time.perf_counter() - began)
        bridge.ring.cancel()
        began = time.perf_counter()
        bridge.claims.cancel()
        bridge.plan(SLOTS)
        broken.append(time.perf_counter() - began)
        assert bridge.claims.next(0) is not None
    return {count: median(times) for count, times in claimed.items()}, median(broken)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size")
    seconds = parser.parse_args().seconds
    print(machine(), commit())
    for megabytes in SIZES:
        shape = (int(megabytes * 1e6 / ROWS / 4) // 3, 4, 3)
        given = np.random.default_rng(0).integers(0, 256, (ROWS, *shape), np.uint8)
        took, copy = land(Array(shape, "uint8"), given, seconds)
        cast, _ = land(Array(shape, "float32", scale=1 / 255), given, seconds)
        size = given.nbytes
        print(
            f"{size / 1e6:5.1f} MB: {took * 1e3:.3f} ms, {size / took / 1e9:.1f} GB/s, "
            f"{took / copy:.2f} times NumPy's copy; to float32 {cast * 1e3:.3f} ms, "
            f"{5 * size / cast / 1e9:.1f} GB/s read and written"
        )
    claims, broken = hold(20)
    print(
        ", ".join(
            f"a claim with {count} held {took * 1e6:.1f} us" for count, took in claims.items()
        )
    )
    print(f"a break with {SLOTS * 64} held: {broken * 1e6:.0f} us until all slots are bound again")


if __name__ == "__main__":
    main()

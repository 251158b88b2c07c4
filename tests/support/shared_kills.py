"""Trainings of a share killed at random moments, against what the others must have: `--kills 200`.

Of two to four trainings all but one may be killed, the first one as often as any other, while they
join, train, or end. The others must have every batch of all epochs, right and in order, and of the
host, its workers and its socket nothing may be there afterwards. A failure names the seed.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import ringfeed
import shared
from watching import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

EPOCHS = 2
LINES = 25  # that a training writes
EARLY = 0.25  # of the kills come at a moment between the start and so many seconds
MOST_S = 4.0
STEP_S = 0.02  # the others, after a line, within so many seconds


def once(chance: random.Random) -> list[str]:
    """Kill some of some trainings; returns what was done, in a line a kill."""
    ranks, mode = chance.choice([2, 3, 4]), chance.choice(["broadcast", "split"])
    name = shared.unique("kills")
    rows = shared.ROWS if mode == "broadcast" else 2 * ranks
    given: dict[str, Any] = {"make": {"batch_size": rows}, "step_s": 0.01, "timeout_s": 100}
    parts = [{"rank": rank} if mode == "split" else {} for rank in range(ranks)]
    began = [shared.begin(name, ranks, mode, EPOCHS, **given, **part) for part in parts]
    victims = chance.sample(range(ranks), chance.randrange(1, ranks))
    done = []
    for victim in victims:
        heard = _kill(began[victim], chance)
        if (
            heard < 2
        ):  # perhaps before all had come: then no epoch begins without another in its place
            began.append(shared.begin(name, ranks, mode, EPOCHS, **given, **parts[victim]))
        done.append(f"{mode} to {ranks}, number {victim} killed after {heard} lines")
    for number in {*range(ranks)} - {*victims}:
        _check(shared.lines(began[number]), number, ranks, mode, rows)
        assert began[number].returncode == 0, began[number].returncode
    for training in began[ranks:]:  # which may be alone by now, and wait
        training.kill()
        shared.lines(training)
    wait_until(lambda: shared.is_all_gone(name))
    return done


def _kill(training: subprocess.Popen[str], chance: random.Random) -> int:
    """Kill a training at a random moment; returns how many lines it was heard to write."""
    assert training.stdout is not None
    is_early = chance.random() < EARLY
    heard = 0 if is_early else chance.randrange(1, LINES)
    for _ in range(heard):
        training.stdout.readline()
    time.sleep(chance.uniform(0, MOST_S if is_early else STEP_S))
    training.kill()
    training.wait()
    training.stdout.close()  # not read to its end, which comes with that of the host
    return heard


def _check(lines: list[Any], rank: int, ranks: int, mode: str, rows: int) -> None:
    """Compare what a training has had with what a loader gives."""
    part = (
        {"batch_size": rows}
        if mode == "broadcast"
        else {"shard": ringfeed.Shard(rank, ranks), "batch_size": 2}
    )
    batches = [line for line in lines if "samples" in line]
    assert all(line["right"] for line in batches), rank
    assert [line["samples"] for line in batches] == shared.expected(EPOCHS, **part), rank


def run(seed: int, kills: int, tell: Callable[[str], object]) -> int:
    """Kill so often, or a little more; returns how often it was done."""
    chance = random.Random(seed)  # noqa: S311 - to be had again
    number = 0
    while number < kills:
        for line in once(chance):
            number += 1
            tell(f"{number:4}: {line}")
    return number


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="200")
    parser.add_argument("--seed", type=int)
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    tell = functools.partial(print, flush=True)
    tell(f"seed {seed}")
    began_s = time.monotonic()
    kills = run(seed, chosen.kills, tell)
    tell(
        f"{kills} kills, the others' batches right, nothing left behind; "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a round of the fuzz decides, what a killer is ordered to do, and the count of what has happened. See fuzz.py."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed.datasets import reader
from ringfeed.orders.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 120.0
SUSPECT_S = {"spawn": 3.0, "process": 3.0, "fork": 1.0}  # mostly enough for a start
DEEDS = {
    "kill": 60,
    "kill all": 8,
    "stop": 14,
    "stop and kill": 8,
    "kill forkserver": 8,
    "stop forkserver": 2,
}
SUSPICIOUS = {"stop for good": 40}  # in rounds with on_stall="restart": the loader must end it
SHAPE = (5, 7)


def _random(seed: int, purpose: str) -> Random:
    return Random(f"{seed} {purpose}")  # noqa: S311 - no secret


class Contents:
    """Samples whose every byte depends on their index and on the epoch, so that no stale row looks right."""

    SPEC = (ringfeed.Array(SHAPE, "uint8"), ringfeed.Array((), "int64"))

    def __init__(self, length: int, sleep_s: float) -> None:
        self.__setstate__({"length": length, "sleep_s": sleep_s})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        reader.IDLE_NS = (
            2**60
        )  # here, and so in forks, and in a spawned worker: no lost wake-up heals by itself

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return ringfeed.rng().integers(0, 256, SHAPE, np.uint8), index


class Into(Contents):
    """The same, written into their rows."""

    def read_into(self, index: int, out: Any) -> None:
        out[0][...], out[1][...] = self[index]


def keep(batch: Any) -> Any:
    """Return a batch as it is, in the place of a ``batch_transform``."""
    return batch


# By how many threads of each worker a round's rows are read, and in which way they are written.
FORMS: dict[str, dict[str, Any]] = {"rows": {}, "into": {}, "batches": {"batch_transform": keep}}


@dataclass(frozen=True)
class Deed:
    """What the killer does next."""

    delay_s: float
    name: str
    victim: int
    pause_s: float
    unkillable: bool  # whether it is spared by SIGKILL, where it is stopped for good


class Orders:
    """What a killer does to one loader, drawn from a seed alone."""

    def __init__(self, seed: int, method: str, workers: int) -> None:
        self.seed = seed
        self.method = method
        self.workers = workers
        draw = _random(seed, "orders")
        self.stops = draw.random() < 0.4
        self.suspicious = draw.random() < 0.2  # on_stall="restart" and a short timeout_s
        self.unkillable = (
            False  # whether SIGKILL fails to end some of those that are stopped for good
        )
        self.most_kills = draw.randint(
            5, 20 if method == "spawn" else 60
        )  # else a sole worker dies for minutes
        self.most_suspects = draw.randint(1, 4 if method == "fork" else 2)  # each costs SUSPECT_S
        self.mean_delay_s = draw.choice([0.01, 0.03, 0.1, 0.3])

    def deeds(self) -> Iterator[Deed]:
        """What the killer does, one after another, without end."""
        draw = _random(self.seed, "killer")
        deeds = DEEDS | (SUSPICIOUS if self.suspicious else {})
        if self.unkillable:
            deeds |= dict.fromkeys(SUSPICIOUS, 200)
        if not self.stops:
            deeds |= dict.fromkeys([name for name in DEEDS if "stop" in name], 0)
        while True:
            delay_s = draw.expovariate(1 / self.mean_delay_s)
            name = draw.choices(list(deeds), list(deeds.values()))[0]
            pause_s = min(0.3, draw.expovariate(1 / 0.05))
            yield Deed(
                delay_s,
                name,
                draw.randrange(self.workers),
                pause_s,
                draw.random() < 0.7 and self.unkillable,
            )


class Script(Orders):
    """All decisions of one round of the fuzz, drawn from its seed alone."""

    def __init__(self, seed: int, *, unkillable: bool = False) -> None:
        draw = _random(seed, "settings")
        method = draw.choices(["spawn", "fork", "process"], [3, 5, 4])[0]
        super().__init__(seed, method, draw.randint(1, 4))
        self.unkillable = unkillable
        self.suspicious |= unkillable
        self.slots = draw.randint(2, 6)
        self.batch_size = draw.choice([1, 2, 3, 5, 8, 16, 33])
        self.batches = draw.randint(20, 120)
        self.length = self.batches * self.batch_size - draw.randrange(self.batch_size)
        self.shuffle = draw.random() < 0.7
        self.sleep_s = draw.choice([0.0, 0.0002, 0.001]) if self.batch_size < 16 else 0.0002
        self.epochs = draw.randint(1, 4)
        self.consumer = _random(seed, "consumer")
        draw = _random(seed, "concurrency")
        self.concurrency = self.workers * draw.randint(1, 6) if draw.random() < 0.5 else None
        self.form = draw.choice([*FORMS]) if self.concurrency else "rows"

    def loader(self) -> ringfeed.Loader:
        """The round's loader."""
        kind = Into if self.form == "into" else Contents
        return ringfeed.Loader(
            kind(self.length, self.sleep_s),
            concurrency=self.concurrency,
            **FORMS[self.form],
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            workers=self.workers,
            backend=self.method,  # type: ignore[arg-type]
            slots=self.slots,
            spec=Contents.SPEC,
            timeout_s=SUSPECT_S[self.method] if self.suspicious else TIMEOUT_S,
            on_stall="restart" if self.suspicious else "raise",
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
    forkservers: int = 0
    stops: int = 0
    timed_out: int = 0
    unkillable: int = 0
    restarts: int = 0
    batches: int = 0
    rows: int = 0
    broken_off: int = 0
    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        """All of it; a tally of rounds that passed has lost nothing."""
        lines = [
            f"{self.rounds} rounds: {self.kills} kills of workers, {self.forkservers} of "
            f"forkservers, {self.stops} stops, {self.timed_out} for good, {self.unkillable} of "
            f"these spared by SIGKILL, {self.restarts} replacements",
            f"{self.batches} batches, {self.rows} rows, {self.broken_off} epochs broken off: "
            f"0 lost, 0 doubled, 0 reordered, 0 wrong bytes",
        ]
        for name, gaps_s in sorted(self.gaps_s.items()):
            tenth = sorted(gaps_s)[-1 - len(gaps_s) // 10]
            lines.append(
                f"gap after a kill, {name}: median {statistics.median(gaps_s) * 1e3:.0f} ms, one "
                f"in ten over {tenth * 1e3:.0f} ms, longest {max(gaps_s) * 1e3:.0f} ms, of "
                f"{len(gaps_s)}"
            )
        return "\n".join(lines)

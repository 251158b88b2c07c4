"""What a round of the fuzz decides, and the killer that carries it out. See fuzz.py."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ringfeed.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

TIMEOUT_S = 9.0  # less than the 10 s after which a sleeping worker looks round: no lost wake-up heals by itself
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
        self.most_kills = draw.randint(5, 20 if self.method == "spawn" else 60)  # else a sole worker dies for minutes
        self.mean_delay_s = draw.choice([0.01, 0.03, 0.1, 0.3])
        self.consumer = _random(seed, "consumer")

    def deeds(self) -> Iterator[Deed]:
        """What the killer does, one after another, without end."""
        draw = _random(self.seed, "killer")
        shares = [share if self.stops or "stop" not in name else 0 for name, share in DEEDS.items()]
        while True:
            delay_s = draw.expovariate(1 / self.mean_delay_s)
            name = draw.choices(list(DEEDS), shares)[0]
            yield Deed(delay_s, name, draw.randrange(self.workers), min(0.3, draw.expovariate(1 / 0.05)))

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
        self._pauses: list[tuple[float, int, Any]] = []  # when it ends, of which process, which worker dies of it
        self._until_progress = 0
        self._killed: set[int] = set()
        self._working: set[int] = set()  # processes that have been seen to be past their start
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
                if self._wait(deed.delay_s):
                    return
                self._do(deed)
        except BaseException as error:  # noqa: BLE001 - raised where the round ends
            self._error = error
        finally:
            self._end_pauses(float("inf"))

    def _wait(self, delay_s: float) -> bool:
        """Wait for the next deed, and end the pauses that are over meanwhile; True when the round is."""
        deadline_s = time.monotonic() + delay_s
        while (now_s := time.monotonic()) < deadline_s:
            until_s = min([deadline_s, *(end_s for end_s, _, _ in self._pauses)])
            if self._over.wait(max(0.0, until_s - now_s)):
                return True
            self._end_pauses(time.monotonic())
        return False

    def _do(self, deed: Deed) -> None:
        if "nursery" in deed.name:
            self._do_to_nursery(deed)
            return
        worker = self._pool._workers.get(deed.victim)
        if worker is None:
            return
        if "stop" in deed.name:
            self._pause(worker.pid, deed, deed.victim if "kill" in deed.name else None)
        elif deed.name == "kill":
            self._kill(deed.victim, worker)
        else:
            for number, each in list(self._pool._workers.items()):
                self._kill(number, each)

    def _may_die(self, pid: int) -> bool:
        """Whether a death leaves the loader able to go on: three in a row before any work are an error, rightly."""
        if self._until_progress >= 2 * self._script.workers or len(self._killed) >= self._script.most_kills:
            return False
        if pid in self._killed:
            return False  # dead, and not replaced yet
        if pid in self._working:
            return True
        if not self._pool._lock.acquire(blocking=False):
            return False  # somebody is being replaced: nobody can tell yet who starts
        try:
            pids = {each: worker.pid for each, worker in self._pool._workers.items()}
            self._working |= {pid for each, pid in pids.items() if not self._pool._is_starting(each)}
            early = self._pool._early_deaths or self._killed_early in pids.values()
        finally:
            self._pool._lock.release()
        return pid in self._working or not early

    def _note_kill(self, pid: int) -> None:
        if pid not in self._working:
            self._killed_early = pid
        self._until_progress += 1
        self._killed.add(pid)
        self._tally.kills += 1

    def _kill(self, number: int, worker: Any) -> None:
        if not self._may_die(worker.pid):
            return
        name = f"{self._script.method}, {self._circumstances(number)}"
        self._note_kill(worker.pid)
        self.killed_at_s.append((time.perf_counter(), name))
        self._send(worker.pid, signal.SIGKILL)

    def _circumstances(self, number: int) -> str:
        if self._pool._is_starting(number):
            return "of one that starts"
        others = [each for each in self._pool._workers.copy() if each != number and not self._pool._is_starting(each)]
        return "another works" if others else "no other works"

    def _pause(self, pid: int, deed: Deed, doomed: int | None) -> None:
        """Stop a process for a while; then it goes on, or is killed as it is where it is the worker ``doomed``."""
        self._send(pid, signal.SIGSTOP)
        self._pauses.append((time.monotonic() + deed.pause_s, pid, doomed))
        self._tally.stops += 1

    def _end_pauses(self, now_s: float) -> None:
        for pause in [pause for pause in self._pauses if pause[0] <= now_s]:
            self._pauses.remove(pause)
            _, pid, doomed = pause
            worker = self._pool._workers.get(doomed)
            if worker is not None and worker.pid == pid:
                self._kill(doomed, worker)
            self._send(pid, signal.SIGCONT)

    def _do_to_nursery(self, deed: Deed) -> None:
        nursery = getattr(self._pool._launcher, "_nursery", None)
        if nursery is None:
            return
        if "stop" in deed.name:
            self._pause(nursery.pid, deed, None)
            return
        if any(pid not in self._working for _, pid, _ in self._pauses):
            return  # a stopped process dies of SIGHUP when its parent does: one that starts would die too early
        restarts = self._pool.restarts
        if restarts > self._nursery_after and len(self._pool._workers) == self._script.workers:
            self._nursery_after = restarts
            self._send(nursery.pid, signal.SIGKILL)
            self._tally.nurseries += 1

    @staticmethod
    def _send(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

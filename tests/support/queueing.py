"""A loader and its training loop as queues, in plain Python: what a Tuner would see of them, without waiting for it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ringfeed.engine.autotune import Setting, Window

if TYPE_CHECKING:
    from ringfeed.engine.autotune import Step, Tuner

NOISE_S = 0.5  # how long the machine keeps one speed
WARM_UP = 50  # batches


@dataclass(frozen=True)
class Job:
    """A dataset, a training loop and a machine; times in seconds."""

    name: str
    cpu_s: float = 0.0  # a sample, of a core
    wait_s: float = 0.0  # a sample, of nobody's
    step_s: float = 0.0  # a batch
    cores: int = 2
    rows: int = 8  # of a batch, each a ticket
    whole: bool = False  # dataset[i] is a whole batch: one ticket
    one_in: int = 0  # so many samples there is one that costs ``times`` as much
    times: float = 50.0
    held: int = 1  # batches that the loop holds while it asks for another
    at_once: bool = False  # it lets go of them all together, and asks for as many
    computes: bool = False  # the step takes a core
    start_s: float = 0.15  # until a new worker fills its first ticket
    noise: float = 0.0


class Queue:
    """A job that runs at a setting, and can be given another."""

    def __init__(self, job: Job, setting: Setting, seed: int = 0) -> None:
        self.job, self.setting = job, setting
        self.now_s = 0.0
        self.batches = 0
        self._random, self._weather = Random(seed), Random(seed + 10**6)  # noqa: S311 - no secrets
        self._speeds: list[float] = []
        self._free_s = [
            0.0
        ] * setting.workers  # a heap: when each worker is through with what it has claimed
        self._let_go_s: list[float] = []  # when each batch's slot came back
        self._seen = Window()

    @property
    def starved(self) -> bool:
        """Whether the loop holds every slot."""
        return self.setting.slots <= self.job.held

    def move(self, setting: Setting) -> None:
        """Go on at another setting.

        New workers start now, those that leave finish their tickets.
        """
        for _ in range(setting.workers - len(self._free_s)):
            heapq.heappush(self._free_s, self.now_s + self.job.start_s)
        self._free_s = sorted(self._free_s)[: setting.workers]
        self.setting = setting

    def step(self) -> Window:
        """Fill a batch, take it, and train on it; what was seen meanwhile."""
        job = self.job
        if self.starved:
            return Window(all_held=True)
        batch, began_s = self.batches, self.now_s
        came_s = self._bound_s(batch)
        pressure_s = busy_s = 0.0
        for cost_s in self._costs_s():
            free_s = heapq.heappop(self._free_s)
            start_s = max(free_s, self._bound_s(batch))
            busy_for_s = cost_s * self._slowness(start_s)
            heapq.heappush(self._free_s, start_s + busy_for_s)
            came_s = max(came_s, start_s + busy_for_s)
            pressure_s += start_s - free_s
            busy_s += busy_for_s
        taken_s = max(came_s, began_s)
        self._let_go(batch, taken_s)
        self.now_s = taken_s + job.step_s * self._speed(taken_s) * (
            self._slowness(taken_s, 0) if job.computes else 1.0
        )
        self.batches += 1
        return Window(self.now_s - began_s, taken_s - began_s, busy_s, pressure_s, 1, job.rows)

    def _bound_s(self, batch: int) -> float:
        before = batch - self.setting.slots
        return self._let_go_s[min(before, len(self._let_go_s) - 1)] if before >= 0 else 0.0

    def _let_go(self, batch: int, taken_s: float) -> None:
        """Note which batches the loop lets go of as it takes this one."""
        held = self.job.held
        if not self.job.at_once:
            self._let_go_s += [taken_s] * (batch >= held)
        elif batch % held == 0 and batch:
            self._let_go_s += [taken_s] * held

    def _costs_s(self) -> list[float]:
        job = self.job
        cost_s = job.cpu_s + job.wait_s
        costs_s = [
            cost_s * job.times if job.one_in and self._random.random() < 1 / job.one_in else cost_s
            for _ in range(job.rows)
        ]
        return [sum(costs_s)] if job.whole else costs_s

    def _slowness(self, at_s: float, beside: int = 1) -> float:
        """How many times longer work takes while the cores are shared."""
        job = self.job
        active = sum(free_s > at_s for free_s in self._free_s) + beside
        share = job.cpu_s / ((job.cpu_s + job.wait_s) or 1.0)
        crowd = max(1.0, (active * share + job.computes * (job.step_s > 0)) / job.cores)
        return self._speed(at_s) * (1 + share * (crowd - 1))

    def _speed(self, at_s: float) -> float:
        if not self.job.noise:
            return 1.0
        number = int(at_s / NOISE_S)
        while len(self._speeds) <= number:
            self._speeds.append(1 + self.job.noise * self._weather.uniform(-1, 1))
        return self._speeds[number]


def throughput(job: Job, setting: Setting, batches: int = 400) -> float:
    """Batches a second at a setting, in the long run; 0 where nothing moves."""
    queue = Queue(job, setting)
    if queue.starved:
        return 0.0
    for _ in range(WARM_UP):
        queue.step()
    began_s = queue.now_s
    for _ in range(batches):
        queue.step()
    return batches / (queue.now_s - began_s)


def tune(queue: Queue, tuner: Tuner, seconds: float) -> list[Step]:
    """Run for so long, as the tuner says; its moves."""
    moves = []
    while queue.now_s < seconds:
        window = queue.step()
        move = tuner.look(window)
        if move is not None:
            moves.append(move)
            queue.move(move.setting)
        elif window.all_held:
            break
    return moves

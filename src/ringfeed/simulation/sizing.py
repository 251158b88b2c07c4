"""A setting for each number of workers, what it gives, and how many a trainer needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringfeed.remote.answers import LEAST_WINDOW, MOST_WINDOW
from ringfeed.remote.pace import TICKET_BYTES
from ringfeed.simulation.model import simulate
from ringfeed.simulation.terms import Setting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringfeed.simulation.terms import Costs, LostKind, Outcome, Work

WORKERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
MOST_WORKERS, MOST_BRIDGES = 10_000, 16
TICKET_S = 0.02  # the work of a ticket; a loader whose slots have the rows makes it eight times as much
CELLS = 64  # tickets of a batch, at most
SPARE = 2  # slots beyond those that are being filled: one that the trainer holds, one that is ready
FULL = 0.8  # of a bridge's time, from which another one is wanted
FED = 0.99  # of its appetite, from which a trainer is fed
GAIN = 1.02  # times the rate, for which more slots are worth their memory
NEAR = 0.9  # of a bound, from which it is the limit
STEP, CLOSE = 1.15, 0.03  # of the search for the least number of workers
LOSS_TICKETS = 60_000  # of a run in which an actor or a node is lost, at most


@dataclass(frozen=True)
class Wanted:
    """A trainer, its samples and its surroundings: what no number of workers changes."""

    work: Work
    costs: Costs
    batch_size: int
    appetite: float  # samples a second
    node_gbits: float = math.inf
    gbits: float = math.inf
    latency_s: float = 0.0
    actors_per_node: int = 16
    actor_losses: float = 0.0  # of each actor, an hour
    node_losses: float = 0.0  # of each node, an hour
    slots: int | None = None  # None: as many as there should be
    bridges: int | None = None


@dataclass(frozen=True)
class Row:
    """One number of workers: how it is set, what it gives, and what limits it."""

    setting: Setting
    outcome: Outcome
    appetite: float
    gbits: float  # on the trainer's link
    limit: str
    stall_s: float  # an hour

    @property
    def share(self) -> float:
        """The part of the appetite that is satisfied."""
        return min(1.0, self.outcome.samples_per_s / self.appetite)

    @property
    def is_fed(self) -> bool:
        """Whether that is all of it."""
        return self.share >= FED


def setting_of(wanted: Wanted, workers: int) -> Setting:
    """Return how so many workers are best set: tickets, windows, slots, bridges."""
    work, costs = wanted.work, wanted.costs
    size = max(work.sample_bytes, 1)
    rows = min(round(TICKET_S / work.sample_s), TICKET_BYTES // size, wanted.batch_size // 2)
    rows = max(1, rows, math.ceil(wanted.batch_size / CELLS))
    ticket_s = rows * work.sample_s
    wire_s = rows * size * 8e-9 / min(wanted.node_gbits, wanted.gbits)
    away_s = 2 * wanted.latency_s + costs.call_s + costs.land_s(rows * size) + wire_s
    window = min(max(1 + math.ceil(away_s / ticket_s), LEAST_WINDOW), MOST_WINDOW)
    tickets = math.ceil(wanted.batch_size / rows)
    slots = wanted.slots or max(4, math.ceil(workers * window / tickets) + SPARE)
    rate = min(wanted.appetite, workers / work.sample_s)
    bridge_s = costs.call_s / rows + costs.land_s(rows * size) / rows
    bridges = wanted.bridges or min(max(1, math.ceil(rate * bridge_s / FULL)), MOST_BRIDGES, workers)
    return Setting(
        workers=workers,
        batch_size=wanted.batch_size,
        rows=rows,
        window=window,
        slots=slots,
        bridges=bridges,
        actors_per_node=wanted.actors_per_node,
        step_s=wanted.batch_size / wanted.appetite,
        node_gbits=wanted.node_gbits,
        gbits=wanted.gbits,
        latency_s=wanted.latency_s,
    )


def row_of(wanted: Wanted, workers: int, seed: int = 0) -> Row:
    """Simulate so many workers, with as many slots as bring something unless their number is given."""
    setting = setting_of(wanted, workers)
    outcome = simulate(setting, wanted.work, wanted.costs, seed=seed)
    while wanted.slots is None and limit_of(wanted, setting, outcome) == "slots":
        more = replace(setting, slots=math.ceil(1.5 * setting.slots))
        found = simulate(more, wanted.work, wanted.costs, seed=seed)
        if found.samples_per_s < GAIN * outcome.samples_per_s:
            break
        setting, outcome = more, found
    stall_s = 3600 * outcome.stall if outcome.samples_per_s < FED * wanted.appetite else 0.0
    deaths: dict[LostKind, float] = {
        "actor": wanted.actor_losses * setting.workers,
        "node": wanted.node_losses * setting.nodes,
    }
    for what, losses in deaths.items():
        if losses:
            stall_s += losses * _loss_s(wanted, setting, outcome, what, seed)
    gbits = outcome.samples_per_s * wanted.work.sample_bytes * 8e-9
    limit = limit_of(wanted, setting, outcome)
    return Row(setting, outcome, wanted.appetite, gbits, limit, min(3600.0, stall_s))


def limit_of(wanted: Wanted, setting: Setting, outcome: Outcome) -> str:
    """Name the part that limits the rate."""
    bounds = setting.bounds(wanted.work, wanted.costs)
    lowest = min(bounds, key=lambda name: bounds[name])
    if outcome.samples_per_s >= NEAR * bounds[lowest]:
        return lowest
    if outcome.starved > 1 - NEAR:
        return "slots"
    return "window" if max(outcome.busy.values()) < NEAR else max(outcome.busy, key=lambda name: outcome.busy[name])


def _loss_s(wanted: Wanted, setting: Setting, outcome: Outcome, what: LostKind, seed: int) -> float:
    """Return the seconds that one death costs: a run with it, against the same one without."""
    costs = wanted.costs
    away_s = costs.start_s + (costs.actor_lost_s if what == "actor" else costs.node_lost_s)
    enough = math.ceil(3 * away_s * outcome.samples_per_s / setting.batch_size)
    batches = max(len(outcome.batches), min(enough, LOSS_TICKETS // setting.tickets))
    whole_s = simulate(setting, wanted.work, costs, batches=batches, seed=seed).took_s
    lost = replace(setting, lost=((0.4 * whole_s, what),))
    return max(0.0, simulate(lost, wanted.work, costs, batches=batches, seed=seed).took_s - whole_s)


def rows_of(wanted: Wanted, workers: Iterable[int] = WORKERS, seed: int = 0) -> list[Row]:
    """Simulate each number of workers."""
    return [row_of(wanted, number, seed) for number in workers]


def needed(wanted: Wanted, seed: int = 0) -> Row | None:
    """Return the row of the least number of workers that feed the trainer; None where no number up to 10,000 does."""
    most = setting_of(wanted, MOST_WORKERS)
    fixed = {name: bound for name, bound in most.bounds(wanted.work, wanted.costs).items() if name != "actors"}
    each_s = wanted.work.sample_s + wanted.costs.actor_call_s / most.rows
    workers = max(1, math.floor(FED * wanted.appetite * each_s))
    if min(fixed.values()) < FED * wanted.appetite or workers > MOST_WORKERS:
        return None
    too_few = workers - 1
    while not (row := row_of(wanted, workers, seed)).is_fed:
        if workers == MOST_WORKERS:
            return None
        too_few, workers = workers, min(max(workers + 1, math.ceil(STEP * workers)), MOST_WORKERS)
    while workers - too_few > max(1, CLOSE * workers):
        middle = row_of(wanted, (too_few + workers) // 2, seed)
        if middle.is_fed:
            row, workers = middle, middle.setting.workers
        else:
            too_few = middle.setting.workers
    return row

"""How many actors of a cluster a trainer needs, by discrete events: `python bench/studies/cluster_size.py`.

    python bench/studies/cluster_size.py --sample-ms 20 --bytes 150528 --appetite 2000 --gbit 10
    python bench/studies/cluster_size.py --profile profile.json --costs costs.json --workers 4 16

`ringfeed profile --json module:dataset` writes a profile; `python bench/studies/remote.py
--calibrate` writes costs. It needs SimPy (`pip install simpy`), and neither Ray nor a cluster.

The model is one closed loop. A batch gets a slot as soon as one is free. Its calls go to the actors
that have the fewest calls. A bridge sends one call after another. An actor makes the rows of its
calls in turn; the work of a call is lognormal. Answers pass the link of the actor's node, the link
of the trainer and then a bridge. The trainer takes the oldest batch when all its rows are there,
and holds its slot for one step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import simpy

from ringfeed.ray.pace import SHARES, TICKET_BYTES, TICKET_NS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
NEAR = 0.9  # of what a part could pass, from which that part is the limit
FED = 0.99  # of its appetite, from which a trainer is fed
WARM = 0.25  # of a run, that does not count


class Costs(NamedTuple):
    """What calls cost, in seconds. The defaults were measured on two cores.

    call_s: of a bridge, for each call. inline_s_per_gb, plasma_s_per_gb: of a bridge, for answers
    up to 8 MB, and for larger ones. actor_call_s: of an actor, for each call. start_s: until an
    actor is there.
    """

    call_s: float = 0.0003
    inline_s_per_gb: float = 0.84
    plasma_s_per_gb: float = 0.2
    actor_call_s: float = 0.0009
    start_s: float = 0.9

    def land_s(self, size: int) -> float:
        """Return the seconds that a bridge takes for an answer of so many bytes."""
        return size / 1e9 * (self.inline_s_per_gb if size <= TICKET_BYTES else self.plasma_s_per_gb)


@dataclass(frozen=True)
class Setting:
    """A trainer, its samples and its cluster.

    cv: standard deviation of a sample's seconds over their mean. rows: of one call. window: calls
    that an actor has at a time. step_s: of a batch. gbit, node_gbit: of the trainer's link, and of
    each node's. latency_s: one way. cores: that all actors and bridges share; None: each has its
    own.
    """

    workers: int
    sample_s: float
    sample_bytes: int
    cv: float = 0.0
    batch_size: int = 32
    rows: int = 1
    window: int = WINDOW
    slots: int = 4
    bridges: int = 1
    actors_per_node: int = 16
    step_s: float = 0.0
    gbit: float = math.inf
    node_gbit: float = math.inf
    latency_s: float = 0.0
    cores: int | None = None

    @property
    def calls(self) -> int:
        """Calls of a batch."""
        return math.ceil(self.batch_size / self.rows)

    def most(self, costs: Costs) -> dict[str, float]:
        """Return samples a second that each part could pass if the others were free."""
        rows = self.batch_size / self.calls
        call_s = costs.call_s + costs.land_s(self.rows * self.sample_bytes)
        bits = self.sample_bytes * 8e-9 or sys.float_info.min
        return {
            "actors": self.workers / (self.sample_s + costs.actor_call_s / rows),
            "bridges": self.bridges * rows / (call_s or sys.float_info.min),
            "node links": math.ceil(self.workers / self.actors_per_node) * self.node_gbit / bits,
            "link": self.gbit / bits,
            "trainer": self.batch_size / self.step_s if self.step_s else math.inf,
        }


class Run:
    """One simulated run of some batches."""

    def __init__(self, setting: Setting, costs: Costs, batches: int, seed: int = 0) -> None:
        """Have all that is in it idle."""
        self._setting, self._costs, self._batches = setting, costs, batches
        self._draws = random.Random(seed)  # noqa: S311 - no secret
        self._env = env = simpy.Environment()
        self._cores = simpy.PriorityResource(env, setting.cores) if setting.cores else None
        self._bridges = [simpy.Resource(env) for _ in range(setting.bridges)]
        self._link = simpy.Resource(env)
        self._node_links = [
            simpy.Resource(env) for _ in range(0, setting.workers, setting.actors_per_node)
        ]
        self._actors = [simpy.Resource(env) for _ in range(setting.workers)]
        self._room = simpy.PriorityStore(
            env
        )  # (calls that an actor has already, actor) for each call that it may have
        for place in (
            (load, actor) for load in range(setting.window) for actor in range(setting.workers)
        ):
            self._room.put(place)
        self._slots = simpy.Container(env, init=setting.slots)
        self._left = [setting.calls] * batches
        self._ready = [env.event() for _ in range(batches)]
        self._taken_s: list[float] = []

    def samples_per_s(self) -> float:
        """Run it; return the rate, without the beginning and without the end, where nothing more is asked for."""
        self._env.process(self._ask())
        self._env.run(self._env.process(self._train()))
        first = int(WARM * self._batches)
        last = max(first + 1, self._batches - 1 - self._setting.slots)
        return (
            (last - first) * self._setting.batch_size / (self._taken_s[last] - self._taken_s[first])
        )

    def _train(self) -> Iterator[simpy.Event]:
        for ready in self._ready:
            yield ready
            self._taken_s.append(self._env.now)
            yield self._env.timeout(self._setting.step_s)
            yield self._slots.put(1)

    def _ask(self) -> Iterator[simpy.Event]:
        for batch in range(self._batches):
            yield self._slots.get(1)
            for call in range(self._setting.calls):
                place = yield self._room.get()
                self._env.process(self._answer(batch, call, place))

    def _answer(self, batch: int, call: int, place: Any) -> Iterator[simpy.Event]:
        setting, costs, actor = self._setting, self._costs, place[1]
        rows = min(setting.rows, setting.batch_size - call * setting.rows)
        size = rows * setting.sample_bytes
        bridge = self._bridges[(batch * setting.calls + call) % setting.bridges]
        yield from self._serve(bridge, costs.call_s, computes=True)
        yield self._env.timeout(setting.latency_s)
        with self._actors[actor].request() as turn:
            yield turn
            yield self._env.timeout(rows * setting.sample_s * self._spread(rows))
            if self._cores is None:
                yield self._env.timeout(costs.actor_call_s)
        if self._cores is not None:
            yield from self._compute(costs.actor_call_s, priority=1)
        yield from self._serve(
            self._node_links[actor // setting.actors_per_node], size * 8e-9 / setting.node_gbit
        )
        yield from self._serve(self._link, size * 8e-9 / setting.gbit)
        yield self._env.timeout(setting.latency_s)
        yield from self._serve(bridge, costs.land_s(size), computes=True)
        self._room.put(place)
        self._left[batch] -= 1
        if not self._left[batch]:
            self._ready[batch].succeed()

    def _serve(
        self, server: simpy.Resource, seconds: float, *, computes: bool = False
    ) -> Iterator[simpy.Event]:
        """Have a server busy for so long, one call after another.

        What computes needs a core, too.
        """
        with server.request() as turn:
            yield turn
            if computes and self._cores is not None:
                yield from self._compute(seconds, priority=0)
            else:
                yield self._env.timeout(seconds)

    def _compute(self, seconds: float, priority: int) -> Iterator[simpy.Event]:
        """Have a core busy for so long.

        A bridge sleeps often, so the kernel gives it one before actors.
        """
        assert self._cores is not None
        with self._cores.request(priority) as turn:
            yield turn
            yield self._env.timeout(seconds)

    def _spread(self, rows: int) -> float:
        sigma = math.sqrt(math.log1p(self._setting.cv**2 / rows))
        return self._draws.lognormvariate(-(sigma**2) / 2, sigma) if sigma else 1.0


def simulate(setting: Setting, costs: Costs, batches: int = 0) -> float:
    """Return samples a second, of so many batches; 0: as many as it takes to tell."""
    enough = max(
        40,
        math.ceil(max(1500, 4 * setting.workers * setting.window) / setting.calls),
        6 * setting.slots,
    )
    return Run(setting, costs, max(2, batches or enough)).samples_per_s()


def set_for(asked: Setting, costs: Costs, workers: int) -> Setting:
    """Return how so many actors are set: as a loader does it, and with as many bridges as it takes."""
    size = max(1, asked.sample_bytes)
    rows = min(round(TICKET_NS / 1e9 / asked.sample_s), TICKET_BYTES // size, asked.batch_size // 2)
    rows = max(
        1, min(rows, math.ceil(8 * asked.batch_size / (workers * SHARES)))
    )  # some for each, in 8 slots
    slots = max(4, math.ceil(workers * SHARES * rows / asked.batch_size) + 2)
    rate = min(asked.batch_size / asked.step_s, workers / asked.sample_s)
    bridges = math.ceil(rate * (costs.call_s + costs.land_s(rows * size)) / rows / 0.8)
    return replace(
        asked,
        workers=workers,
        rows=rows,
        window=WINDOW,
        slots=slots,
        bridges=min(max(1, bridges), 16, workers),
    )


def row_of(asked: Setting, costs: Costs, workers: int) -> dict[str, Any]:
    """Return what so many actors bring, and what limits it."""
    setting = set_for(asked, costs, workers)
    rate, most = simulate(setting, costs), setting.most(costs)
    narrowest = min(most, key=lambda name: most[name])
    return {
        "workers": workers,
        "rows a call": setting.rows,
        "slots": setting.slots,
        "bridges": setting.bridges,
        "samples/s": round(rate),
        "fed": f"{min(1.0, rate * asked.step_s / asked.batch_size):.1%}",
        "limit": narrowest if rate >= NEAR * most[narrowest] else "slots",
    }


def asked_for() -> tuple[Setting, Costs, list[int]]:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--profile", type=Path, help="what a sample takes, in place of --sample-ms and --bytes"
    )
    parser.add_argument("--costs", type=Path, help="what calls cost on your cluster")
    parser.add_argument(
        "--appetite", type=float, required=True, help="samples that the trainer takes a second"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=WORKERS, help="numbers of actors to try"
    )
    for name in ("--sample-ms", "--cv", "--gbit", "--node-gbit", "--latency-ms"):
        parser.add_argument(name, type=float)
    for name in ("--bytes", "--batch-size", "--actors-per-node"):
        parser.add_argument(name, type=int)
    chosen = vars(parser.parse_args())
    given = {name: value for name, value in chosen.items() if value is not None}
    if "profile" in given:
        profile = json.loads(given["profile"].read_text())
        given = {
            "sample_ms": profile["sample_s"] * 1e3,
            "bytes": profile["sample_bytes"],
            "cv": profile["cv"],
            **given,
        }
        given.setdefault("batch_size", profile["batch_size"] or 1)
    elif not {"sample_ms", "bytes"} <= given.keys():
        parser.error("give --profile, or --sample-ms and --bytes")
    costs = Costs(**json.loads(given["costs"].read_text())) if "costs" in given else Costs()
    batch_size = given.get("batch_size", 32)
    of_cluster = {
        name: given[name]
        for name in ("cv", "gbit", "node_gbit", "actors_per_node")
        if name in given
    }
    setting = Setting(
        workers=1,
        sample_s=given["sample_ms"] / 1e3,
        sample_bytes=given["bytes"],
        batch_size=batch_size,
        step_s=batch_size / given["appetite"],
        latency_s=given.get("latency_ms", 0.0) / 1e3,
        **of_cluster,
    )
    return setting, costs, [*given["workers"]]


def main() -> None:
    """Write the table."""
    asked, costs, numbers = asked_for()
    rows = [row_of(asked, costs, workers) for workers in numbers]
    lines = [[*rows[0]], *([str(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        sys.stdout.write(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
        )


if __name__ == "__main__":
    main()

"""What `remote.py` kills, and what becomes of the training meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import cluster
import ringfeed
from remote_sets import KINDS, content, moved
from studies.remote_training import Training, run, wait_until

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

ACTORS, SAMPLE_S, COUNT = 4, 0.02, 256
PLACES = {"address": "", "count": COUNT, "batch_size": 8, "hashed": True}
CASES = ((1, 1, 0), (4, 1, 0), (4, 2, 0), (16, 4, 0), (4, 2, 1))  # actors, nodes, workers here
PROMISED = {
    "actor": (200, 5, 1.0),
    "node": (20, 2, 2.0),
    "raylet": (5, 1, 2.0),
    "bridge": (20, 2, 3.0),
    "bridges": (20, 2, 1.0),  # one of two
    "stop": (10, 1, 2.0),
    "cut": (10, 1, 2.0),
    "gcs": (3, 1, 3.0),
}
"""How often, how often if quick, and the longest pause that is promised."""
ORPHANS_S = 1.0  # that actors may outlive their raylet
AWAY_S = 3.0  # how long a node is stopped, a link cut
BETWEEN_S = 1.0
BACK_S = 90.0  # until there are as many actors as before
ALONE, ALONE_S = "training goes on with the workers here alone", 300.0
EPOCHS = (1000, 1001)


def hashes(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the hashes of two epochs."""
    wanted = run(**PLACES, local=1, epochs=EPOCHS)["hashes"]
    cases = CASES[:3] if chosen.quick else CASES
    found = {"local 2": run(**PLACES, local=2, epochs=EPOCHS)["hashes"]}
    for nodes in sorted({nodes for _, nodes, _ in cases}):
        with cluster.start(nodes, cpus=4) as made:
            for actors, on, local in cases:
                if on == nodes:
                    place = {**PLACES, "address": made.address}
                    name = f"{actors} actors, {nodes} nodes, {local} workers here"
                    found[name] = run(**place, actors=actors, local=local, epochs=EPOCHS)["hashes"]
                    yield {"case": name, "hashes": found[name], "text": f"{name}: {found[name]}"}
    with cluster.start(2, cpus=4) as made:
        ray = ringfeed.ray.Ray(workers=4, num_cpus=0.1, address=made.address)
        ways = {
            kind: partial(content, dataset, **given) for kind, (dataset, given) in KINDS.items()
        }
        for name, way in {**ways, "set_epoch, break, hook, resume": moved}.items():
            is_same = way(workers=1) == way(workers=0, backend=ray, timeout_s=200)
            found[name] = wanted if is_same else "others"
            yield {
                "case": name,
                "kept": is_same,
                "text": f"{name}: {'equal' if is_same else 'DIFFERS'}",
            }
    differ = [name for name, each in found.items() if each != wanted]
    text = (
        f"{len(found)} ways, {len(differ)} differ from one local "
        f"worker{': ' if differ else ''}{'; '.join(differ)}"
    )
    yield {"case": "all", "wanted": wanted, "kept": not differ, "text": text}


class Deeds:
    """What is done to a cluster and a training."""

    def __init__(self, made: cluster.Cluster, training: Training, bridges: int) -> None:
        self._made, self._training, self._bridges = made, training, bridges
        self._random = random.Random(0)  # noqa: S311 - no secret
        self.orphans = 0  # times that actors outlived their raylet

    def actor(self) -> None:
        """Kill one."""
        node = self._random.choice([node for node in self._made.nodes if node.actors])
        node.kill_actor(self._random.randrange(len(node.actors)))

    def node(self) -> None:
        """Kill the newest node with its actors; another one comes in its place."""
        self._made.nodes.pop().kill()
        self._made.add(4)

    def raylet(self) -> None:
        """Kill that of the newest node alone; its actors end with it.

        Another node comes in its place.
        """
        node = self._made.nodes.pop()
        node.kill_raylet()
        self.orphans += not wait_until(lambda: not node.actors, ORPHANS_S)
        node.kill()
        self._made.add(4)

    def bridge(self) -> None:
        """Kill one, once all are connected; its actors end with it."""
        assert wait_until(lambda: len(self._training.bridges()) == self._bridges, BACK_S)
        before = {*self._made.actors}
        os.kill(self._training.bridges()[0], signal.SIGKILL)
        wait_until(lambda: not before <= {*self._made.actors}, BACK_S)

    bridges = bridge

    def stop(self) -> None:
        """Stop a node for a while."""
        self._made.nodes[-1].stop()
        time.sleep(AWAY_S)
        self._made.nodes[-1].go_on()

    def cut(self) -> None:
        """Cut a link for a while."""
        self._made.nodes[-1].cut()
        time.sleep(AWAY_S)
        self._made.nodes[-1].mend()

    def gcs(self) -> None:
        """Kill it, and wait until Ray has ended the bridge, and no other one finds the cluster."""
        self._made.nodes[0].kill_gcs()
        wait_until(lambda: ALONE in self._training.errors(), ALONE_S)

    def do(self, kind: str) -> None:
        """Do one, and wait until all is as before."""
        deed: Callable[[], None] = getattr(self, kind)
        deed()
        if kind != "gcs":
            wait_until(lambda: len(self._made.actors) >= ACTORS, BACK_S)
        time.sleep(BETWEEN_S)


def kills(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill each kind so often, in a run of its own."""
    kept, longest = True, {}
    for kind, (often, quick, promised_s) in PROMISED.items():
        if chosen.kind not in (None, kind):
            continue
        if kind == "cut" and (why := cluster.why_not(network=True)):
            yield {"case": kind, "text": f"{kind}: left out: {why}"}
            continue
        answer = _killed(kind, chosen.times or (quick if chosen.quick else often), promised_s)
        kept &= answer["kept"]
        longest[kind] = answer["longest_s"]
        yield answer
    text = "; ".join(f"{kind} {seconds:.2f} s" for kind, seconds in longest.items())
    yield {
        "case": "all",
        "kept": kept,
        "text": f"longest pauses: {text}; {'kept' if kept else 'NOT KEPT'}",
    }


def _killed(kind: str, often: int, promised_s: float) -> dict[str, Any]:
    """Kill so often; a cluster whose GCS was killed is not used again."""
    rounds = [_round(kind, times) for times in ([1] * often if kind == "gcs" else [often])]
    pauses_s = sorted([took_s for one in rounds for _, took_s in one["found"]["pauses"]] or [0.0])
    longest_s, over = pauses_s[-1], sum(took_s > promised_s for took_s in pauses_s)
    is_right, left = all(one["is_right"] for one in rounds), any(one["left"] for one in rounds)
    text = (
        f"{kind}: {often} times, {sum(len(one['found']['hashes']) for one in rounds)} epochs "
        f"{'equal' if is_right else 'DIFFER'}, longest pause {longest_s:.2f} s (promised "
        f"{promised_s:g}; {over} above it){', actors LEFT' if left else ''}"
    )
    kept = is_right and not left and longest_s <= promised_s
    return {"case": kind, "kept": kept, "longest_s": longest_s, "rounds": rounds, "text": text}


def _round(kind: str, often: int) -> dict[str, Any]:
    """Kill so often on one cluster; without its GCS, a worker here goes on."""
    with cluster.start(3, cpus=4, network=kind == "cut") as made:
        place = {**PLACES, "address": made.address, "actors": ACTORS, "sample_s": SAMPLE_S}
        bridges = 2 if kind == "bridges" else 1
        training = Training(**place, local=int(kind == "gcs"), bridges=bridges, stops=True)
        try:
            deeds = Deeds(made, training, bridges)
            for _ in range(often):
                deeds.do(kind)
            found = training.result()
            left = not made.without_actors(30.0) or deeds.orphans > 0
        finally:
            training.end()
    wanted = run(**PLACES, local=1, epochs=[int(number) for number in found["hashes"]])["hashes"]
    return {
        "is_right": wanted == found["hashes"] and not found["wrong"],
        "left": left,
        "noise": training.noise[:20],
        "found": found,
    }

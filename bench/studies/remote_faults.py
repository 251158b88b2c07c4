"""What `remote.py` kills, and what becomes of the training meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import cluster
from studies.remote_training import Training, run, wait_until

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

ACTORS, SAMPLE_S, COUNT = 4, 0.02, 256
PLACES = {"address": "", "count": COUNT, "batch_size": 8, "hashed": True}
CASES = ((1, 1, 0), (4, 1, 0), (4, 2, 0), (16, 4, 0), (4, 2, 1))  # actors, nodes, workers here
KINDS = {
    "actor": (200, 5, 1.0),
    "node": (20, 2, 2.0),
    "bridge": (20, 2, 3.0),
    "stop": (10, 1, 2.0),
    "cut": (10, 1, 2.0),
}
"""How often, how often if quick, and the longest pause that is promised."""
AWAY_S = 3.0  # how long a node is stopped, a link cut
BETWEEN_S = 1.0
BACK_S = 90.0  # until there are as many actors as before
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
    differ = [name for name, each in found.items() if each != wanted]
    text = f"{len(found)} ways, {len(differ)} differ from one local worker{': ' if differ else ''}{'; '.join(differ)}"
    yield {"case": "all", "wanted": wanted, "kept": not differ, "text": text}


class Deeds:
    """What is done to a cluster and a training."""

    def __init__(self, made: cluster.Cluster, training: Training) -> None:
        self._made, self._training = made, training
        self._random = random.Random(0)  # noqa: S311 - no secret

    def actor(self) -> None:
        """Kill one."""
        node = self._random.choice([node for node in self._made.nodes if node.actors])
        node.kill_actor(self._random.randrange(len(node.actors)))

    def node(self) -> None:
        """Kill the newest node with its actors; another one comes in its place."""
        self._made.nodes.pop().kill()
        self._made.add(4)

    def bridge(self) -> None:
        """Kill it."""
        os.kill(self._training.bridges()[0], signal.SIGKILL)

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

    def do(self, kind: str) -> float:
        """Do one; return when."""
        deed: Callable[[], None] = getattr(self, kind)
        began_s = time.monotonic()
        deed()
        wait_until(lambda: len(self._made.actors) >= ACTORS, BACK_S)
        time.sleep(BETWEEN_S)
        return began_s


def kills(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill each kind so often, in a run of its own."""
    kept, longest = True, {}
    for kind, (often, quick, promised_s) in KINDS.items():
        if kind == "cut" and (why := cluster.why_not(network=True)):
            yield {"case": kind, "text": f"{kind}: left out: {why}"}
            continue
        answer = _killed(kind, quick if chosen.quick else often, promised_s)
        kept &= answer["kept"]
        longest[kind] = answer["longest_s"]
        yield answer
    text = "; ".join(f"{kind} {seconds:.2f} s" for kind, seconds in longest.items())
    yield {"case": "all", "kept": kept, "text": f"longest pauses: {text}; {'kept' if kept else 'NOT KEPT'}"}


def _killed(kind: str, often: int, promised_s: float) -> dict[str, Any]:
    with cluster.start(3, cpus=4, network=kind == "cut") as made:
        place = {**PLACES, "address": made.address, "actors": ACTORS, "sample_s": SAMPLE_S}
        training = Training(**place, stops=True)
        try:
            deeds = Deeds(made, training)
            at_s = [deeds.do(kind) for _ in range(often)]
            found = training.result()
            left = not made.without_actors(30.0)
        finally:
            training.end()
    epochs = [int(number) for number in found["hashes"]]
    wanted = run(**PLACES, local=1, epochs=epochs)["hashes"]
    after = partial(_pause_after, found["pauses"])
    longest_s = max(map(after, at_s), default=0.0)
    is_right = wanted == found["hashes"] and not found["wrong"]
    kept = is_right and not left and longest_s <= promised_s
    text = (
        f"{kind}: {often} times, {len(epochs)} epochs {'equal' if is_right else 'DIFFER'}, longest pause "
        f"{longest_s:.2f} s (promised {promised_s:g}){', actors LEFT' if left else ''}"
    )
    return {
        "case": kind,
        "kept": kept,
        "longest_s": longest_s,
        "at_s": at_s,
        "noise": training.noise[:20],
        "found": found,
        "text": text,
    }


def _pause_after(pauses: list[list[float]], at_s: float) -> float:
    """Return the longest pause that a deed may have caused: one that was there a while after it."""
    return max(
        (took_s for began_s, took_s in pauses if at_s - 0.5 <= began_s + took_s and began_s <= at_s + 5), default=0.0
    )

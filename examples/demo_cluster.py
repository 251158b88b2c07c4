"""Three Ray nodes on this machine feed a training; a node is killed, and the batches stay the same.

`make demo-cluster` runs it in under two minutes: a small network learns to read digits, which
actors on the nodes shift and blur. In the second epoch a node is killed with all of its actors. The
table shows how long training waited then, and compares the hash of all batches with that of a run
without a cluster. Nothing is left of the cluster afterwards.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

NEEDED = ("ringfeed", "ray", "tensorflow", "keras", "sklearn", "rich")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if ABSENT:
    sys.exit(
        f"demo: not installed: {', '.join(ABSENT)}; `make demo-cluster` installs all that the demo "
        "needs"
    )
sys.path.insert(
    0, str(Path(__file__).parents[1] / "tests" / "support")
)  # clusters that can be killed

import numpy as np  # noqa: E402 - after the check, for one clear line instead of a traceback
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import cluster  # noqa: E402
import ringfeed  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # or TensorFlow tells of them

NODES, ACTORS, EPOCHS, ROWS = 3, 4, 6, 32
KILLED_AT = 1, 0.4  # the epoch, and how far into it
WORK_S = 0.005  # a digit takes so long, as a photograph would
SEEN = 1500  # the digits to learn from; the others are held out


class Digits:
    """Digits of 8 by 8, shifted by up to a pixel and made noisy: as random as the sample's own generator is."""

    def __init__(self) -> None:
        found = load_digits()
        self.pictures = np.pad(found.images[:SEEN] / 16, ((0, 0), (1, 1), (1, 1))).astype(
            np.float32
        )
        self.labels = found.target[:SEEN]

    def __len__(self) -> int:
        return SEEN

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(WORK_S)
        rng = ringfeed.rng()
        down, right = rng.integers(0, 3, 2)
        picture = self.pictures[index, down : down + 8, right : right + 8]
        return picture + rng.normal(0, 0.05, (8, 8)).astype(np.float32), int(self.labels[index])


@dataclass
class Run:
    """What a training has seen: the hash of all batches, the pauses between them, and how much it has learnt."""

    digest: Any = field(default_factory=hashlib.sha256)
    times_s: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    @property
    def hash(self) -> str:
        """The first letters."""
        return str(self.digest.hexdigest()[:16])

    def pause_s(self, since_s: float) -> float:
        """Return the longest pause from a time on."""
        times = [since_s, *(time_s for time_s in self.times_s if time_s > since_s)]
        return max(later - sooner for sooner, later in pairwise(times))


def network() -> Any:
    """Return a small network."""
    import keras  # noqa: PLC0415 - after the cluster, whose start waits for this machine

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8, 8)),
        keras.layers.Flatten(),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def batches(loader: ringfeed.Loader[Any], run: Run) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield each batch of all epochs with its place, and take note of it."""
    for epoch in range(EPOCHS):
        for number, (pictures, labels) in enumerate(loader):
            run.times_s.append(time.monotonic())
            run.digest.update(pictures.tobytes() + labels.tobytes())
            yield epoch, number, pictures, labels


def train(
    loader: ringfeed.Loader[Any], model: Any, at: tuple[int, int], act: Callable[[], None]
) -> Run:
    """Train on a cluster's batches; ``act`` is called at a batch."""
    run = Run()
    for epoch, number, pictures, labels in batches(loader, run):
        model.train_on_batch(pictures, labels)
        if (epoch, number) == at:
            act()
    held_out = load_digits()
    run.accuracy = float(
        model.evaluate(held_out.images[SEEN:] / 16, held_out.target[SEEN:], verbose=0)[1]
    )
    return run


def on_a_cluster(console: Console) -> tuple[Run, float]:
    """Train while a node dies; return what was seen, and the longest pause after that."""
    killed_s: list[float] = []
    with cluster.start(NODES, cpus=2) as made:
        console.print(f"{NODES} nodes run; {ACTORS} actors make the digits")
        ray = ringfeed.ray.Ray(workers=ACTORS, address=made.address)
        with ringfeed.Loader(
            Digits(), batch_size=ROWS, shuffle=True, seed=0, workers=0, backend=ray
        ) as loader:
            at = KILLED_AT[0], int(KILLED_AT[1] * len(loader))

            def kill() -> None:
                node = max(made.nodes[1:], key=lambda node: len(node.actors))
                console.print(
                    f"killing node {node.address} with its {len(node.actors)} actors, in epoch "
                    f"{at[0] + 1}"
                )
                node.kill()
                killed_s.append(time.monotonic())

            run = train(loader, network(), at, kill)
        console.print("the actors are gone" if made.without_actors(30.0) else "ACTORS ARE LEFT")
    return run, run.pause_s(killed_s[0])


def at_home() -> Run:
    """Read the same batches by two workers here."""
    run = Run()
    with ringfeed.Loader(Digits(), batch_size=ROWS, shuffle=True, seed=0, workers=2) as loader:
        for _ in batches(loader, run):
            pass
    return run


def main() -> None:
    """Run both, and compare."""
    console, began_s = Console(highlight=False), time.monotonic()
    there, pause_s = on_a_cluster(console)
    here = at_home()
    table = Table("", "with a cluster that loses a node", "two workers here")
    table.add_row("Hash of all batches", there.hash, here.hash)
    table.add_row("Longest pause after the death", f"{pause_s:.2f} s", "")
    table.add_row("Held-out digits read", f"{there.accuracy:.1%}", "")
    console.print(table)
    console.print(f"This took {time.monotonic() - began_s:.0f} s; nothing is left of the cluster.")
    if there.hash != here.hash:
        sys.exit("demo: the batches differ")


if __name__ == "__main__":
    main()

"""CPU seconds of a batch that K trainings read by `ringfeed.share`, against K loaders: `python bench/studies/share.py`.

Pictures are decoded; K trainings are processes that read all batches and look at one row of each.
Told is the CPU of all processes (trainings, host, workers) after the first epoch, for a batch of
one training. `ratio` is the share's over that of K loaders: the promise is at most 1.1 / K. The two
take turns; each repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROWS = 32
PICTURES, QUICK_PICTURES = 1920, 96
COUNTS = (1, 2, 4)
REPETITIONS = 5
PROMISED = 1.1
MOST_S = 600
TICKS = os.sysconf("SC_CLK_TCK")


class Pictures:
    """Encoded pictures of one file, decoded when they are asked for.

    They are PNG, whose decoding takes as long in each process. That of JPEG, by libjpeg in Pillow,
    takes a third longer or shorter by where its buffers come to lie in the heap, which would decide
    a comparison of processes.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.content, self.count = path.read_bytes(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image  # noqa: PLC0415 - workers import it here

        return np.array(Image.open(io.BytesIO(self.content)))


def write_picture(path: Path) -> None:
    """Write a picture of 224 by 224 pixels."""
    from PIL import Image  # noqa: PLC0415 - as above

    grain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8))
    grain.resize((224, 224)).save(path)


def cpu_s(pid: int) -> float:
    """Return what a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def below(pid: int) -> set[int]:
    """Return the process and all below it."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= below(int(child))
    return found


def train(kind: str, name: str, ranks: int, pictures: Pictures, pipe: Connection) -> None:
    """Be a training: an epoch to warm up, another one that counts."""

    def make_loader() -> ringfeed.Loader[Any]:
        return ringfeed.Loader(pictures, batch_size=ROWS, shuffle=True, workers=2, slots=6)

    shared = kind == "share"
    loader: Any = (
        ringfeed.share(make_loader, name=name, ranks=ranks, mode="broadcast")
        if shared
        else make_loader()
    )
    with loader:
        for _ in range(2):
            pipe.send(loader.host_pid if shared else os.getpid())
            pipe.recv()
            for batch in loader:
                batch[0].sum()
        pipe.send(None)
        pipe.recv()


def heard(pipe: Connection) -> Any:
    """Return what a training says next."""
    if not pipe.poll(MOST_S):
        message = f"a training has said nothing for {MOST_S} s"
        raise TimeoutError(message)
    return pipe.recv()


def measured(kind: str, ranks: int, pictures: Pictures) -> float:
    """Return CPU seconds of all processes, a batch of one training."""
    context = multiprocessing.get_context("fork")
    pipes, trainings, hosts = [], [], set()
    for _ in range(ranks):
        here, there = context.Pipe()
        name = f"bench-{os.getpid()}-{ranks}"
        training = context.Process(target=train, args=(kind, name, ranks, pictures, there))
        training.start()
        pipes.append(here)
        trainings.append(training)
    spent = []
    for _ in range(3):
        tops = {heard(pipe) for pipe in pipes}
        hosts = {top for top in tops if top is not None} or hosts
        pids = set().union(
            *(below(pid) for pid in {*hosts, *(training.pid for training in trainings)})
        )
        spent.append(sum(map(cpu_s, pids)))
        for pipe in pipes:
            pipe.send(None)
    for training in trainings:
        training.join()
    return (spent[2] - spent[1]) / ranks / (len(pictures) // ROWS)


def main() -> int:
    """Run from the command line; 1 where the promise is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    count, repetitions = (QUICK_PICTURES, 1) if chosen.quick else (PICTURES, chosen.repetitions)
    about = {**conditions(quick=chosen.quick), "versions": versions((("pillow", ""),))}
    lines, kept = [json.dumps(about, default=str)], True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        write_picture(path)
        pictures = Pictures(path, count)
        for ranks in COUNTS:
            ratios = []
            for repetition in range(repetitions):
                alone = measured("loader", ranks, pictures)
                share = measured("share", ranks, pictures)
                ratios.append(share / alone)
                line = {
                    "ranks": ranks,
                    "repetition": repetition,
                    "loaders_s": alone,
                    "share_s": share,
                }
                lines.append(json.dumps({**line, "ratio": share / alone}))
            is_kept = median(ratios) <= PROMISED / ranks
            kept = kept and is_kept
            told = (
                f"K = {ranks}: {median(ratios):.3f} of {ranks} loaders' CPU, promised "
                f"{PROMISED / ranks:.3f}"
            )
            print(told, "" if is_kept else "NOT KEPT", flush=True)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text("\n".join(lines) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

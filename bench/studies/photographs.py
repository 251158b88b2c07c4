"""Photographs to normalised batches, by each loader at its documented best: `python bench/studies/photographs.py`.

2,048 JPEG files of 500 x 375 are made from the photographs that come inside scikit-learn and
scikit-image. Each contender gives an epoch that is checked (shapes, types, means, each file once),
then three that are timed, in a fresh process; contenders take turns, and each repetition begins with
another one. The consumer reads a part of each picture of each batch.

    images_per_s      all images of the timed epochs, over their time
    cpu_s             CPU seconds for 1,000 images, of all processes
    trainer_cpu_s     the same of the consumer's process alone
    memory_mb         proportional set size of all processes amid the first epoch
    first_s           from making the loader to its first batch; its package was imported before
    p99_gap_ms        between two batches

A contender gives the same batches in two runs when the sums of all batches of its first epoch are
equal in all repetitions. `photograph_loaders.py` has the contenders, and which of them decode the
part of a picture that is kept alone. Those whose package is missing are left out. Each run leaves
one JSON line; a table comes last.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import tarfile
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import descendants, memory_of_tree, usage_of_tree
from harness.turns import installed, parser_of, said_by, take_turns
from report import report
from report.results import Results
from studies.photograph_loaders import ALL, PART, SIDE, packages_of
from workloads.photographs import PHOTOGRAPHS, _photographs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES, QUICK_FILES, BATCH = 2048, 256, 64
SIZE = (500, 375)
REPETITIONS, EPOCHS = 5, 3
MOST_S = 180
CASE = "photographs"
RIVALS = (
    "torch",
    "tensorflow",
    "grain",
    "spdl",
    "turboloader",
    "nvidia-dali-cuda130",
    "simplejpeg",
)


def write_files(folder: Path, count: int) -> None:
    """Write so many JPEG files of parts of the photographs, and a tar of them."""
    from PIL import Image  # noqa: PLC0415 - the contenders' processes do not need it

    pictures = [
        Image.open(path).convert("RGB") for name in PHOTOGRAPHS for path in _photographs_of(name)
    ]
    rng = np.random.default_rng(0)
    for number in range(count):
        picture = pictures[number % len(pictures)]
        scale = rng.uniform(0.7, 1.0) * min(picture.width / SIZE[0], picture.height / SIZE[1])
        width, height = SIZE[0] * scale, SIZE[1] * scale
        left = rng.uniform(0, picture.width - width)
        top = rng.uniform(0, picture.height - height)
        part = picture.resize(SIZE, box=(left, top, left + width, top + height))
        part.save(folder / f"{number:05d}.jpg", quality=90)
    with tarfile.open(folder / "photographs.tar", "w") as archive:
        for path in sorted(folder.glob("*.jpg")):
            archive.add(path, path.name)


def seen_of(images: Any) -> float:
    """Return the sum of one value in a thousand of a batch, of each picture some."""
    return float(np.asarray(images)[:, :, ::32, ::32].sum(dtype=np.float64))


def checked_epoch(batches: Any, count: int) -> dict[str, Any]:
    """Read an epoch whose batches are looked at; return the sums' digest, and memory amid it."""
    digest, numbers, memory = hashlib.sha256(), [], 0
    for taken, (images, labels) in enumerate(batches):
        array = np.asarray(images)
        if array.shape[1:] != (3, SIDE, SIDE) or array.dtype != np.float32:
            raise ValueError(f"a batch of shape {array.shape}, {array.dtype}")
        if not -1.5 < array.mean() < 1.5:  # noqa: PLR2004 - normalised
            raise ValueError(f"a batch whose mean is {array.mean()}")
        digest.update(repr(round(seen_of(images), 3)).encode())
        numbers += np.asarray(labels).tolist()
        if taken == count // BATCH // 2:
            memory = sum(memory_of_tree([os.getpid(), *descendants(os.getpid())]))
    if len({*numbers}) != count or len(numbers) != count:
        raise ValueError(f"{len(numbers)} images, {len({*numbers})} different, of {count}")
    return {"digest": digest.hexdigest()[:16], "memory_mb": round(memory / 1e6, 1)}


def run_contender(name: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Measure one contender in this process."""
    for package in packages_of(name):
        importlib.import_module(package)
    count = len([*folder.glob("*.jpg")])
    began = time.perf_counter()
    epoch = ALL[name](folder, BATCH)
    walk = iter(epoch(0))
    first = next(walk)
    first_s = time.perf_counter() - began

    # A loader may give memory back in order: nothing holds the first batch while others are read.
    whole = chain(iter([first]), walk)
    del first
    facts = (
        {"digest": "", "memory_mb": 0.0}
        if name == "two bare processes"
        else checked_epoch(whole, count)
    )
    gaps: list[float] = []
    tree, own, start = usage_of_tree(), time.process_time(), time.perf_counter()
    images = 0
    for number in range(1, 1 + epochs):
        before = time.perf_counter()
        for batch, labels in epoch(number):
            seen_of(batch)
            images += len(labels)
            now = time.perf_counter()
            gaps.append(now - before)
            before = now
    took_s = time.perf_counter() - start
    thousands = images / 1000
    return facts | {
        "images_per_s": round(images / took_s, 1),
        "cpu_s": round(usage_of_tree().since(tree).cpu_s / thousands, 3),
        "trainer_cpu_s": round((time.process_time() - own) / thousands, 3),
        "first_s": round(first_s, 3),
        "p99_gap_ms": round(float(np.percentile(gaps, 99)) * 1e3, 2),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return the medians, the fastest first."""
    results = Results(records)
    names = ("images_per_s", "cpu_s", "trainer_cpu_s", "memory_mb", "first_s", "p99_gap_ms")
    rows = []
    for name in fastest_first(results):
        shown = f"{name} (decodes the part)" if name in PART and "part" not in name else name
        cells = [f"{results.median(CASE, name, key) or 0:,.2f}" for key in names]
        rows.append([shown, *cells, "yes" if same_batches(results, name) else "no"])
    return report.table(["", *names, "same batches"], rows)


def fastest_first(results: Results) -> list[str]:
    """Return the contenders by their images a second."""
    names = results.contenders(CASE)
    return sorted(names, key=lambda one: -(results.median(CASE, one, "images_per_s") or 0))


def same_batches(results: Results, name: str) -> bool:
    """Return whether a contender's first epoch was the same in all repetitions."""
    return len({*results.values(CASE, name, "digest").values()}) == 1


def take_turns_over_files(
    script: str,
    asked: argparse.Namespace,
    cases: dict[str, list[str]],
    rivals: Iterable[str],
    most_s: float,
) -> list[dict[str, Any]]:
    """Make the files, and let contenders take turns over them, in fresh processes of a script."""
    with tempfile.TemporaryDirectory() as made:
        write_files(Path(made), QUICK_FILES if asked.quick else FILES)
        words = ["--folder", made, "--epochs", str(asked.epochs), "--one"]
        return take_turns(
            asked,
            cases,
            REPETITIONS,
            rivals,
            lambda _, name: said_by(script, [*words, name], most_s),
        )


def main() -> None:
    """Let all contenders take turns."""
    parser = parser_of(__doc__, ALL)
    parser.add_argument("--epochs", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run_contender(*asked.one, asked.folder, asked.epochs)), flush=True)
        os._exit(0)  # some rivals' threads do not end
    asked.epochs = 1 if asked.quick else EPOCHS
    names = [name for name in asked.contender if installed(packages_of(name))]
    print(table(take_turns_over_files(__file__, asked, {CASE: names}, RIVALS, MOST_S)))


if __name__ == "__main__":
    main()

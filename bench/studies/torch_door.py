"""Milliseconds a batch with torch's DataLoader, the import changed, and `Loader`: `python bench/studies/torch_door.py`.

    38.5 MB     64 samples of float32 (3, 224, 224) that are there already
    JPEG        32 pictures of 224 pixels, decoded by Pillow where it is installed
    ready       128 samples of 16 numbers
    tensors     the same in tensors, so that workers have torch
    114 leaves  32 samples, each a dict of 114 small arrays
    collate     the first of these, collated by a function of the user's

Two workers each, which stay. Each turn reads some epochs in a row, which count as one time;
`Loader` reads the next epoch ahead ("Loader, ahead") or, as torch does, begins it when it is asked
for ("Loader"). The contenders take turns, another one first in each repetition, and a ratio is
taken within a repetition. ``--quick`` for a short look. Each repetition leaves one JSON line, with
the milliseconds of CPU a batch of this process and of its workers; medians of ratios come last.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions
from harness.proctree import usage_of_tree
from harness.resting import resting
from ringfeed.torch import DataLoader

WORKERS, REPETITIONS, EPOCHS = 2, 7, 3
QUIET_S = 0.3


class Samples(torch.utils.data.Dataset[Any]):
    """So many samples that a function makes of their numbers."""

    def __init__(self, make: Any, length: int) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def pictures() -> Any:
    """Return what decodes pictures."""
    from PIL import Image  # noqa: PLC0415 - where it is installed

    files = []
    for number in range(32):
        noise = np.random.default_rng(number).integers(0, 256, (28, 28, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((224, 224)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return lambda index: (np.asarray(Image.open(io.BytesIO(files[index % 32]))), index)


def cases(*, quick: bool) -> dict[str, tuple[Any, int, dict[str, Any]]]:
    """Return dataset, batch size and more settings of each case."""
    big = np.random.default_rng(0).random((64, 3, 224, 224), np.float32)
    small = np.zeros((20_000, 16), np.float32)
    vectors, labels = torch.zeros(20_000, 16), torch.arange(20_000)
    batches = 8 if quick else 40
    large = Samples(lambda index: (big[index % 64], index), 64 * batches)
    found: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "38.5 MB": (large, 64, {}),
        "ready": (
            Samples(lambda index: (small[index], index), 20_000 if not quick else 4_000),
            128,
            {},
        ),
        "114 leaves": (
            Samples(
                lambda index: {f"k{n}": np.full(4, index, np.float32) for n in range(114)},
                32 * batches,
            ),
            32,
            {},
        ),
        "tensors": (
            Samples(lambda index: (vectors[index], labels[index]), 20_000 if not quick else 4_000),
            128,
            {},
        ),
        "collate": (large, 64, {"collate_fn": collated}),
    }
    if importlib.util.find_spec("PIL"):
        found["JPEG"] = Samples(pictures(), 32 * batches), 32, {}
    return found


def collated(samples: list[Any]) -> Any:
    """Collate as torch does, and say the mean."""
    return [*torch.utils.data.default_collate(samples), len(samples)]


def contenders(dataset: Any, size: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return what gives the batches."""
    settings = {"batch_size": size, "num_workers": WORKERS, "persistent_workers": True, **more}
    own: dict[str, Any] = {
        "batch_size": size,
        "workers": WORKERS,
        "slots": 2 * WORKERS + 1,
        "timeout_s": 120,
    }
    own |= {"backend": "process"} | (
        {"collate_fn": torch.utils.data.default_collate} if more else {}
    )
    return {
        "torch": torch.utils.data.DataLoader(dataset, **settings),
        "import changed": DataLoader(dataset, **settings),
        "Loader": resting(ringfeed.Loader(dataset, **own)).to_torch(),
        "Loader, ahead": ringfeed.Loader(dataset, **own).to_torch(),
    }


def timed(batches: Any, epochs: int) -> tuple[float, float]:
    """Return the milliseconds of a batch of so many epochs in a row, and those of CPU, workers and all."""
    count, used, began = 0, usage_of_tree(), time.perf_counter()
    for _ in range(epochs):
        for _ in batches:
            count += 1
    took_s = time.perf_counter() - began
    time.sleep(QUIET_S)  # what is read ahead is paid for by its own contender
    return took_s / count * 1e3, usage_of_tree().since(used).cpu_s / count * 1e3


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help="this one alone")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(json.dumps(conditions(quick=asked.quick) | {"versions": versions((("torch", ""),))}))
    for case, (dataset, size, more) in cases(quick=asked.quick).items():
        if asked.case not in (None, case):
            continue
        made = contenders(dataset, size, more)
        for batches in made.values():
            timed(batches, 1)
        rows = []
        for number in range(2 if asked.quick else REPETITIONS):
            order = [*made][number % len(made) :] + [*made][: number % len(made)]
            times = {name: timed(made[name], 1 if asked.quick else EPOCHS) for name in order}
            rows.append({name: time_ms for name, (time_ms, _) in times.items()})
            record = {
                name: [round(figure, 3) for figure in figures] for name, figures in times.items()
            }
            print(json.dumps({"case": case, **record}), flush=True)
        of = {
            name: round(median(row["import changed"] / row[name] for row in rows), 3)
            for name in made
        }
        print(json.dumps({"case": case, "import changed, as a part of": of}), flush=True)


if __name__ == "__main__":
    main()

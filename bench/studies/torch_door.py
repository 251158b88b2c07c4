"""Milliseconds a batch with torch's DataLoader, the import changed, and `Loader`: `python bench/studies/torch_door.py`.

    38.5 MB     64 samples of float32 (3, 224, 224) that are there already
    JPEG        32 pictures of 224 pixels, decoded by Pillow where it is installed
    ready       128 samples of 16 numbers
    114 leaves  32 samples, each a dict of 114 small arrays
    collate     the first of these, collated by a function of the user's

Two workers each, which stay; the contenders take turns, another one first in each repetition, and a ratio is taken
within a repetition. ``--quick`` for a short look. Each repetition leaves one JSON line; medians of ratios come last.
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
from ringfeed.torch import DataLoader

WORKERS, REPETITIONS = 2, 7


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
    batches = 8 if quick else 40
    large = Samples(lambda index: (big[index % 64], index), 64 * batches)
    found: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "38.5 MB": (large, 64, {}),
        "ready": (Samples(lambda index: (small[index], index), 20_000 if not quick else 4_000), 128, {}),
        "114 leaves": (
            Samples(lambda index: {f"k{n}": np.full(4, index, np.float32) for n in range(114)}, 32 * batches),
            32,
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
    slots = 2 * WORKERS + 1
    given = {"collate_fn": torch.utils.data.default_collate} if more else {}
    loader = ringfeed.Loader(
        dataset, batch_size=size, workers=WORKERS, slots=slots, start_method="forkserver", timeout_s=120, **given
    )
    return {
        "torch": torch.utils.data.DataLoader(dataset, **settings),
        "import changed": DataLoader(dataset, **settings),
        "Loader": loader.to_torch(),
    }


def timed(batches: Any) -> float:
    """Return the milliseconds of a batch of an epoch."""
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
    return (time.perf_counter() - began) / count * 1e3


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
            timed(batches)
        rows = []
        for number in range(3 if asked.quick else REPETITIONS):
            order = [*made][number % 3 :] + [*made][: number % 3]
            rows.append({name: round(timed(made[name]), 3) for name in order})
            print(json.dumps({"case": case, **rows[-1]}), flush=True)
        of = {name: round(median(row["import changed"] / row[name] for row in rows), 3) for name in ("torch", "Loader")}
        print(json.dumps({"case": case, "import changed, as a part of": of}), flush=True)


if __name__ == "__main__":
    main()

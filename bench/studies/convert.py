"""GB/s of float32 made of uint8 samples: `python bench/studies/convert.py`, or `--quick` for a short look.

    ringfeed    a loader over arrays, workers=0, whose Array converts them: what is timed is a whole epoch
    copy        as many bytes of float32 that are there already, copied sample by sample by NumPy
    in place    NumPy's best: multiply, subtract and divide a sample in the memory where it is wanted
    numpy       astype, multiply, subtract and divide, each an array of its own, copied to where it is wanted

All in one thread, into as many buffers as the loader has slots. They take turns, another one first
in each repetition, so that a machine that slows down slows all of them; ratios are taken within a
repetition. Before anything is timed, all must have made the same bits. Each repetition of a case
leaves one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).parents[1]
SCALE = 1 / 255
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = {224: 64, 1024: 3}  # and the samples of a batch: 38 MB
LAYOUTS = ("HWC", "CHW")
SLOTS = 4
CONTENDERS = ("ringfeed", "copy", "in place", "numpy")
REPETITIONS = 15
SECONDS = 0.2  # a contender and repetition


class Case:
    """Samples of one size that come out in one layout: as many batches as there are slots."""

    def __init__(self, side: int, layout: str, *, quick: bool) -> None:
        self.rows = 1 if quick else SIDES[side]
        self.x = np.random.default_rng(side).integers(
            0, 256, (SLOTS * self.rows, side, side, 3), np.uint8
        )
        self.turn = (2, 0, 1) if layout == "CHW" else (0, 1, 2)
        shape = [(side, side, 3)[axis] for axis in self.turn]
        per_channel = (3, 1, 1) if layout == "CHW" else (3,)
        self.scale = np.float32(SCALE)
        self.mean, self.std = (np.float32(numbers).reshape(per_channel) for numbers in (MEAN, STD))
        # A whole line of the sample at a time: NumPy is slow where its innermost loop has three
        # turns.
        self.lines = (3, side, side) if layout == "CHW" else (side, side * 3)
        self.means, self.stds = (
            numbers if layout == "CHW" else np.tile(numbers, side)
            for numbers in (self.mean, self.std)
        )
        self.out = np.zeros((len(self.x), *shape), np.float32)
        self.ready = np.ones_like(self.out)
        spec = ringfeed.Array(
            shape,
            "float32",
            scale=SCALE,
            mean=MEAN,
            std=STD,
            layout=layout if layout == "CHW" else None,
        )
        self.loader = ringfeed.Loader(
            self.x, batch_size=self.rows, workers=0, slots=SLOTS, spec=spec
        )

    def contenders(self) -> dict[str, Callable[[], None]]:
        """What each one calls to convert all samples once."""
        return dict(
            zip(CONTENDERS, (self.load, self.copy, self.in_place, self.step_by_step), strict=True)
        )

    def load(self) -> None:
        """Through the loader."""
        for batch in self.loader:
            del batch

    def copy(self) -> None:
        """Nothing but the memory."""
        for ready, out in zip(self.ready, self.out, strict=True):
            np.copyto(out, ready)

    def in_place(self) -> None:
        """Without an array in between."""
        for sample, target in zip(self.x, self.out, strict=True):
            out = target.reshape(self.lines)
            np.multiply(sample.transpose(self.turn).reshape(self.lines), self.scale, out=out)
            np.subtract(out, self.means, out=out)
            np.divide(out, self.stds, out=out)

    def step_by_step(self) -> None:
        """As it is written."""
        for sample, out in zip(self.x, self.out, strict=True):
            np.copyto(
                out,
                (sample.transpose(self.turn).astype(np.float32) * self.scale - self.mean)
                / self.std,
            )

    def check(self) -> None:
        """Raise unless all that convert make the same bits."""
        self.step_by_step()
        expected = self.out.copy()
        self.in_place()
        loaded = np.concatenate([np.array(batch) for batch in self.loader])
        for name, found in (("in place", self.out), ("ringfeed", loaded)):
            if found.tobytes() != expected.tobytes():
                message = f"{name} differs from numpy"
                raise AssertionError(message)

    def rate(self, convert: Callable[[], None], seconds: float) -> float:
        """GB/s of float32 that come out, over at least so many seconds."""
        began_s = time.perf_counter()
        rounds, took_s = 0, 0.0
        while took_s < seconds:
            convert()
            rounds += 1
            took_s = time.perf_counter() - began_s
        return rounds * self.out.nbytes / took_s / 1e9


def measure(side: int, layout: str, *, quick: bool) -> list[dict[str, Any]]:
    """The lines of one case."""
    case = Case(side, layout, quick=quick)
    case.check()
    contenders = list(case.contenders().items())
    found = []
    for repetition in range(3 if quick else REPETITIONS):
        first = repetition % len(contenders)
        turns = contenders[first:] + contenders[:first]
        rates = {
            name: case.rate(convert, SECONDS / 10 if quick else SECONDS) for name, convert in turns
        }
        found.append({"case": f"{side} {layout}", "repetition": repetition, "gb_per_s": rates})
    case.loader.close()
    return found


def show(records: list[dict[str, Any]]) -> str:
    """A line for each case and contender: GB/s, least and most, and the ratio to a copy in the same repetition."""
    lines = []
    for case in dict.fromkeys(record["case"] for record in records):
        runs = [record["gb_per_s"] for record in records if record["case"] == case]
        for name in CONTENDERS:
            rates = [run[name] for run in runs]
            ratio = median(run[name] / run["copy"] for run in runs)
            lines.append(
                f"{case:10} {name:10} {median(rates):6.2f} GB/s ({min(rates):.2f} to "
                f"{max(rates):.2f})   {ratio:.2f} of a copy"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, append to the results and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="three short repetitions, a sample a batch"
    )
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results" / f"convert-{time.strftime('%Y-%m-%d')}.jsonl"
    )
    options = parser.parse_args()
    records = []
    for side, layout in product(SIDES, LAYOUTS):
        facts = {**conditions(quick=options.quick), "versions": versions(())}
        records += [{**facts, **found} for found in measure(side, layout, quick=options.quick)]
    with options.out.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(show(records))


if __name__ == "__main__":
    main()

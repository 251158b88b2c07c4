"""Measure copies from slots to a GPU, registered and not: `python bench/studies/device_copy.py`. Needs torch and a GPU.

Three figures of each: gigabytes a second of a copy alone; what a step takes that is fed by the loader; and how much of
the copy it hides, given what the same step takes with a batch that lies on the GPU already. Prints a line of JSON,
and adds it to a file with `--output`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import commit, machine, versions

try:
    import torch
except ModuleNotFoundError:
    torch = None

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, SHAPE = 64, (224, 224, 3)  # 38.5 MB of float32 a batch
SAMPLES = 256
COPIES, STEPS, WARM_UP = 20, 40, 5
WIDTH = 4096  # of the matrices that a step multiplies
STEP_COPIES = 2.0  # how many copies from registered memory a step is to take


def why_not() -> str:
    """Why nothing can be measured here; empty where it can."""
    if torch is None:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def loader(*, pin: bool) -> ringfeed.Loader:
    """Batches of an array, for ever."""
    pictures = np.random.default_rng(0).random((SAMPLES, *SHAPE), np.float32)
    order = np.arange((WARM_UP + STEPS + 8) * ROWS) % SAMPLES
    return ringfeed.Loader((pictures,), batch_size=ROWS, workers=2, slots=4, sampler=order.tolist(), pin=pin)


def on_gpu_s(work: Callable[[], Any]) -> float:
    """What some work takes on the stream that is current."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def copy_s(*, pin: bool) -> float:
    """The median of a copy from a slot, alone on the machine."""
    with loader(pin=pin) as batches:
        (batch,) = next(iter(batches.to_torch()))
        room = torch.empty_like(batch, device="cuda")
        return median([on_gpu_s(lambda: room.copy_(batch, non_blocking=True)) for _ in range(COPIES)][1:])


class Step:
    """Multiplies matrices for about so long, and looks at the batch."""

    def __init__(self, wanted_s: float) -> None:
        self.numbers = torch.rand((WIDTH, WIDTH), device="cuda")
        self.rounds = 1
        self.run()
        one_s = median(on_gpu_s(self.run) for _ in range(WARM_UP))
        self.rounds = max(1, round(wanted_s / one_s))

    def run(self, batch: torch.Tensor | None = None) -> None:
        """Do it once."""
        for _ in range(self.rounds):
            torch.mm(self.numbers, self.numbers)
        if batch is not None:
            batch.sum()


def step_s(step: Step, batches: Any) -> float:
    """The mean of a step, once the ring is warm."""
    for number, (batch,) in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            began_s = time.perf_counter()
        if number == WARM_UP + STEPS:
            break
        step.run(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / STEPS


def figures() -> dict[str, Any]:
    """All figures, registered and not."""
    size = ROWS * int(np.prod(SHAPE)) * 4
    copies_s = {pin: copy_s(pin=pin) for pin in (True, False)}
    step = Step(STEP_COPIES * copies_s[True])
    resident = torch.zeros((ROWS, *SHAPE), device="cuda")
    alone_s = step_s(step, ((resident,) for _ in range(WARM_UP + STEPS + 1)))
    found: dict[str, Any] = {"batch_bytes": size, "step_alone_s": alone_s}
    for pin, name in ((True, "pinned"), (False, "pageable")):
        with loader(pin=pin) as batches:
            fed_s = step_s(step, batches.to_torch("cuda"))
        hidden = 1 - (fed_s - alone_s) / copies_s[pin]
        found[name] = {
            "copy_s": copies_s[pin],
            "gigabytes_per_s": size / copies_s[pin] / 1e9,
            "step_s": fed_s,
            "hidden": min(1.0, hidden),
        }
    return found


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file to add the line to")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"nothing was measured: {reason}")
        return
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "case": "device_copy",
        "commit": commit(),
        "machine": machine() | {"gpu": torch.cuda.get_device_name()},
        "versions": versions((("torch", "torch"),)),
        "figures": figures(),
    }
    print(json.dumps(record))
    if options.output:
        with options.output.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

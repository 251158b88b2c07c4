"""Microseconds per step in Keras' `fit`: a loader whose slots are always ready, against one constant tensor.

    python bench/studies/fit_step.py     # the backends that are installed, five repetitions
    python bench/studies/fit_step.py --backend jax --repetitions 9 --output results.jsonl

Each run is a fresh process; contenders take turns. A batch is 4 x 3584 x 224 x 3 float32 (38.5 MB)
of which the model reads one pixel, so that what is left is the step itself. `ringfeed` has a worker
process that fills a slot at once, by leaving it as it is; `constant` is the barest adapter there
can be, which hands out the same DLPack tensor again and again. The time of a step is the difference
between a long and a short `fit`, over the difference in steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import commit, machine, printed_by, versions
from workloads.cases import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = "constant", "ringfeed"
SHAPE = (4, 3584, 224, 3)  # few rows, since a worker calls the dataset once for each
SHORT, LONG = 50, 550
ROUNDS = 7  # pairs of a short and a long fit; their median counts
TIMEOUT_S = 240
PROMISED = 1.25

# ---- in the fresh process ----


class Ready:
    """Samples that take no time to make: their memory is left as it is."""

    def __len__(self) -> int:
        return LONG * SHAPE[0]

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(index)

    def read_into(self, index: int, out: Any) -> None:
        """Fill one row."""


def fed_by_ringfeed(slots: int) -> tuple[Any, Any]:
    """The adapter of a loader, and what to ask for its copies."""
    import ringfeed  # noqa: PLC0415 - the other contender runs without it

    spec = (ringfeed.Array(SHAPE[1:], "float32"), ringfeed.Array((), "float32"))
    loader = ringfeed.Loader(Ready(), batch_size=SHAPE[0], spec=spec, workers=1, slots=slots)
    fed = loader.to_keras()
    return fed, lambda: fed.copied


def fed_by_constant() -> tuple[Any, Any]:
    """The barest adapter."""
    import numpy as np  # noqa: PLC0415
    from keras.src.trainers.data_adapters import data_adapter_utils  # noqa: PLC0415
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter  # noqa: PLC0415

    from harness.bare import tensor  # noqa: PLC0415

    batch = tuple(map(tensor, (np.zeros(SHAPE, np.float32), np.zeros(SHAPE[:1], np.float32))))

    class Walk:
        def __iter__(self) -> Walk:
            return self

        def __next__(self) -> Any:
            return batch

    class Constant(DataAdapter):  # type: ignore[misc]  # keras has no types
        num_batches = LONG
        batch_size = SHAPE[0]
        has_partial_batch = partial_batch_size = None

        def get_tf_dataset(self) -> Any:
            return Walk()

        def get_jax_iterator(self) -> Iterator[Any]:
            return Walk()

        def get_torch_dataloader(self) -> Any:
            return data_adapter_utils.get_torch_dataloader(Walk())

    return Constant(), lambda: 0


def measure(contender: str, slots: int) -> dict[str, Any]:
    """The figures of one contender on this process's backend."""
    import keras  # noqa: PLC0415

    fed, copied = fed_by_ringfeed(slots) if contender == "ringfeed" else fed_by_constant()
    image = keras.Input(SHAPE[1:])
    model = keras.Model(image, keras.layers.Dense(1)(image[:, 0, 0, :]))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")

    def seconds(steps: int) -> float:
        began = time.perf_counter()
        model.fit(fed, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)
        return time.perf_counter() - began

    seconds(SHORT)
    pairs = [(seconds(SHORT), seconds(LONG)) for _ in range(ROUNDS)]
    steps = [(long - short) / (LONG - SHORT) for short, long in pairs]
    return {
        "step_s": median(steps),
        "least_s": min(steps),
        "most_s": max(steps),
        "copied": copied(),
    }


# ---- the runner ----


def run(backend: str, contender: str, slots: int) -> dict[str, Any]:
    """The figures of one fresh process, or an error in their place."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--measure", contender, "--slots", str(slots)]
    printed = printed_by(command, TIMEOUT_S, os.environ | quiet)
    return printed if "error" in printed else {"figures": printed}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--output", type=Path, help="file to add JSON lines to")
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def compare(backend: str, options: argparse.Namespace) -> None:
    """Run both contenders in turn, and print what was had."""
    ratios, places = (
        [],
        {
            **machine(),
            "versions": versions(((backend, backend), ("keras", "keras"))),
            "commit": commit(),
        },
    )
    for repetition in range(options.repetitions):
        steps = {}
        for contender in sorted(CONTENDERS, reverse=bool(repetition % 2)):
            record = {
                "case": f"fit_step/{backend}",
                "contender": contender,
                "repetition": repetition,
            }
            record |= run(backend, contender, options.slots) | {
                "load": os.getloadavg()[0],
                **places,
            }
            if options.output:
                with options.output.open("a") as file:
                    print(json.dumps(record), file=file)
            if "figures" in record:
                steps[contender] = record["figures"]["step_s"]
                print(
                    f"{backend:12}{contender:10}{steps[contender] * 1e6:10.1f} us a step"
                    f"{record['figures']['copied']:6} copied",
                    flush=True,
                )
            else:
                print(f"{backend:12}{contender:10}{record['error']}", flush=True)
        if len(steps) == len(CONTENDERS):
            ratios.append(steps["ringfeed"] / steps["constant"])
    if ratios:
        verdict = "kept" if median(ratios) <= PROMISED else "broken"
        print(f"{backend:12}{median(ratios):.3f}x, at most {PROMISED}x: {verdict}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Compare on every backend asked for that is installed."""
    options = options_of(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure, options.slots)))
        return
    for backend in options.backend:
        if importlib.util.find_spec(backend) is None:
            print(f"{backend:12}not installed")
        else:
            compare(backend, options)


if __name__ == "__main__":
    main()

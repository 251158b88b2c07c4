"""What decoding costs the training beside it, though nothing is handed over: `python bench/studies/beside.py`.

    alone       the model, whose batches lie in memory
    ready       a loader whose samples are decoded already: the hand-over alone
    beside      the model alone, while two processes decode as many photographs as each of its batches has, for nothing
    ringfeed    a loader that decodes them, with two workers

Milliseconds a batch of Keras' `fit` on JAX, by the model that takes longer than its input
(`fit/jax/compute-bound`). Each run is a process of its own, in turns; `--quick`: once, and shorter.
Each leaves one JSON line with `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import conditions, printed_by, versions
from workloads.photographs import Photographs
from workloads.workload import Window, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = "alone", "ready", "beside", "ringfeed"
REPETITIONS, SECONDS, QUICK_SECONDS = 5, 8.0, 0.5
WORKERS, SLOTS = 2, 4
TIMEOUT_S = 240


class Decoded(Photographs):
    """The same photographs, of which each worker decodes a few at first and hands out copies."""

    _made: list[Any] | None = None

    def __getitem__(self, index: int) -> Any:
        self._made = self._made or [Photographs.__getitem__(self, number) for number in range(64)]
        return self._made[index % 64]


# ---- in the fresh process ----


def decode(asked: Any, photographs: Photographs, each: int) -> None:
    """Decode so many photographs whenever it is asked."""
    while asked.recv_bytes():
        for number in range(each):
            photographs[number]


@contextmanager
def beside(workload: Workload, workers: int, slots: int) -> Iterator[Any]:
    """The model alone.

    Processes that have nothing to do with it are asked for a batch's photographs at each step.
    """
    from harness.bare import Constant  # noqa: PLC0415 - in the fresh process

    class Telling(Constant):
        """Asks before each batch."""

        def get_jax_iterator(self) -> Iterator[Any]:
            for batch in super().get_jax_iterator():
                for connection, _ in decoders:
                    connection.send_bytes(b"go on")
                yield batch

    context, decoders = get_context("spawn"), []
    for _ in range(workers):
        asked, connection = context.Pipe(duplex=False)
        terms = asked, workload.dataset, workload.batch_size // workers
        process = context.Process(target=decode, args=terms, daemon=True)
        process.start()
        decoders.append((connection, process))
    yield Telling([workload.batch(number) for number in range(slots)], workload.window.most)
    for _, process in decoders:
        process.kill()
        process.join()


def measure(contender: str, seconds: float) -> dict[str, Any]:
    """The figures of one contender."""
    from harness import fitting  # noqa: PLC0415 - imports Keras

    size = "compute-bound"
    window = Window(0, fitting.BATCHES[size], seconds)
    photographs = (Decoded if contender == "ready" else Photographs)(fitting.ROWS * window.most)
    workload = Workload("jpeg", photographs, fitting.ROWS, window)
    feeds = {"alone": fitting.FEEDS["model"], "beside": beside}
    model, epochs = fitting.build_model(size), fitting.Epochs(seconds)
    with feeds.get(contender, fitting.FEEDS["ringfeed"])(workload, WORKERS, SLOTS) as feed:
        model.fit(feed, epochs=sys.maxsize, callbacks=[epochs], shuffle=False, verbose=0)
        return epochs.figures(window.most)


# ---- the turns ----


def main() -> None:
    """Measure all contenders in turns, and print their medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="adds a JSON line for each run")
    parser.add_argument("--child", choices=CONTENDERS, help="measure one, here")
    options = parser.parse_args()
    seconds = QUICK_SECONDS if options.quick else SECONDS
    if options.child:
        print(json.dumps(measure(options.child, seconds)))
        return
    about = {"versions": versions((("ringfeed", ""), ("keras", ""), ("jax", "")))}
    lines = [conditions(quick=options.quick) | about]
    for repetition in range(1 if options.quick else REPETITIONS):
        for place in range(len(CONTENDERS)):
            contender = CONTENDERS[(repetition + place) % len(CONTENDERS)]
            command = [
                sys.executable,
                __file__,
                "--child",
                contender,
                *(["--quick"] if options.quick else []),
            ]
            figures = printed_by(command, TIMEOUT_S, os.environ | {"KERAS_BACKEND": "jax"})
            if "error" in figures:
                sys.exit(f"{contender}: {figures['error']}")
            lines.append({"contender": contender, "repetition": repetition, **figures})
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for contender in CONTENDERS:
        runs = [line for line in lines if line.get("contender") == contender]
        ms = [1e3 * run["per_batch_s"] for run in runs]
        cpu_ms, idle = (
            median(run[name] for run in runs) for name in ("cpu_s_per_batch", "cores_idle")
        )
        print(
            f"{contender:9} {median(ms):6.1f} ms ({min(ms):.1f} - {max(ms):.1f}); "
            f"{1e3 * cpu_ms:.0f} ms of CPU, {idle:.2f} cores idle"
        )


if __name__ == "__main__":
    main()

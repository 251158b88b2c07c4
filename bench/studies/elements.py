"""Microseconds an element of a tf.data.Dataset: `python bench/studies/elements.py`, or `--quick` for a short look.

    constant     Dataset.range(n).map() of two constants: what tf.data itself takes
    generator    from_generator over arrays that are there
    python       to_tf_dataset() where the op cannot be had: numpy_function, one copy
    op           to_tf_dataset()

Each repetition is a fresh process that measures all of them one after another, idle and while a
Python thread burns the GIL. That thread often does not get the GIL back before from_generator asks
for it again, and then an element costs no 5 ms: how often, differs from run to run. tf.data walks
the elements by itself (`skip`), since a loop in Python would wait for the GIL on its own account.
The batches are small, so that what is timed is the way and not the memory. Each measurement leaves
one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import conditions, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BENCH = Path(__file__).parents[1]
ROWS, WIDTH = 32, 16  # of a batch
ELEMENTS = {"idle": 4000, "burning": 4000}
GENERATOR_ELEMENTS = {"idle": 2000, "burning": 100}  # at 5 ms an element
REPETITIONS = 5
PROMISED = {"idle": 1.5, "burning": 30.0}  # times from_generator
TIMEOUT_S = 300.0


def arrays(elements: int) -> tuple[np.ndarray, np.ndarray]:
    """So many batches, as a dataset of arrays."""
    return np.zeros((elements * ROWS, WIDTH), np.float32), np.arange(elements * ROWS)


def time_elements(dataset: Any, elements: int) -> float:
    """Seconds an element, all of them walked in C++."""
    iterator = iter(dataset.skip(elements - 1))
    began_s = time.perf_counter()
    next(iterator)
    return (time.perf_counter() - began_s) / elements


def make_contenders(elements: int, slots: int) -> dict[str, Callable[[], Any]]:
    """How each contender makes a dataset; the loaders have begun to work."""
    import tensorflow as tf  # noqa: PLC0415 - only the measuring process pays for it

    import ringfeed  # noqa: PLC0415
    from ringfeed.frameworks.tensorflow import dataset as tensorflow_dataset  # noqa: PLC0415

    x, y = arrays(elements)
    signature = (tf.TensorSpec((None, WIDTH), tf.float32), tf.TensorSpec((None,), tf.int64))
    loader = ringfeed.Loader((x, y), batch_size=ROWS, workers=1, slots=slots)
    loader_by_op, load_ops = loader.to_tf_dataset(), tensorflow_dataset.load_ops
    tensorflow_dataset.load_ops = _refuse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader_by_python = loader.to_tf_dataset()
    tensorflow_dataset.load_ops = load_ops

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, len(x), ROWS):
            yield x[first : first + ROWS], y[first : first + ROWS]

    constants = tf.constant(x[:ROWS]), tf.constant(y[:ROWS])
    return {
        "constant": lambda: tf.data.Dataset.range(elements).map(lambda _: constants),
        "generator": lambda: tf.data.Dataset.from_generator(generate, output_signature=signature),
        "python": lambda: loader_by_python,
        "op": lambda: loader_by_op,
    }


def _refuse() -> None:
    raise ImportError("the bench wants the other way")


def measure(slots: int, *, quick: bool) -> list[dict[str, Any]]:
    """All measurements of one process."""
    share = 10 if quick else 1
    elements = max(ELEMENTS.values()) // share
    contenders = make_contenders(elements, slots)
    found = []
    for case in ELEMENTS:
        burning = threading.Event()
        if case != "idle":
            burning.set()
            threading.Thread(target=_burn, args=(burning,), daemon=True).start()
        for contender, make in contenders.items():
            by_python = contender in ("generator", "python")
            count = GENERATOR_ELEMENTS[case] // share if by_python else elements
            if case == "idle":
                time_elements(make(), count)  # workers start, TensorFlow traces
            found.append(
                {
                    "case": case,
                    "contender": contender,
                    "elements": count,
                    "s": time_elements(make(), count),
                }
            )
        burning.clear()
    return found


def _burn(burning: threading.Event) -> None:
    while burning.is_set():
        pass


def run(repetition: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of one repetition, or one that says why there are none."""
    command = [sys.executable, str(Path(__file__)), "--measure", "--slots", str(options.slots)]
    command += ["--quick"] if options.quick else []
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    facts = {
        **conditions(quick=options.quick),
        "repetition": repetition,
        "slots": options.slots,
        "versions": versions((("tensorflow", ""), ("tensorflow-cpu", ""))),
    }
    try:
        ended = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment
        )
    except subprocess.SubprocessError as error:
        return [{**facts, "error": f"{error}: {getattr(error, 'stderr', '')}"[-500:]}]
    return [{**facts, **figures} for figures in json.loads(ended.stdout.splitlines()[-1])]


def show(records: list[dict[str, Any]]) -> str:
    """A line for each case and contender: microseconds an element, and the generator's over it in the same runs."""
    lines = []
    for case, promised in PROMISED.items():
        of_case = {
            (r["contender"], r["repetition"]): r["s"] for r in records if r.get("case") == case
        }
        for contender in dict.fromkeys(name for name, _ in of_case):
            runs = [number for name, number in of_case if name == contender]
            time_us = 1e6 * median(of_case[contender, number] for number in runs)
            ratio = median(
                of_case["generator", number] / of_case[contender, number] for number in runs
            )
            wanted = f", promised {promised}" if contender == "op" else ""
            lines.append(
                f"{case:8} {contender:10} {time_us:9.1f} us   from_generator takes {ratio:.2f} "
                f"times it{wanted}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, append to the results and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    parser.add_argument("--slots", type=int, default=4, help="slots of the loader (4)")
    parser.add_argument(
        "--out",
        type=Path,
        default=BENCH / "results" / f"elements-{time.strftime('%Y-%m-%d')}.jsonl",
    )
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.slots, quick=options.quick)))
        return
    records = [
        record
        for number in range(1 if options.quick else REPETITIONS)
        for record in run(number, options)
    ]
    with options.out.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(show(records))
    for record in records:
        if "error" in record:
            sys.exit(record["error"])


if __name__ == "__main__":
    main()

"""One unchanged Keras script before and after `ringfeed.keras.install()`: seconds an epoch, memory, losses.

    python bench/studies/keras_install.py    # examples/keras_unchanged.py, three times each
    python bench/studies/keras_install.py --repetitions 1 --pictures 256 --output results.jsonl

Each run is a fresh process; the two take turns. The script asks for two worker processes. Its first
epoch counts apart: it starts the workers, and traces the model. Memory is the peak of the private
pages of all processes of the run, and of the shared memory between them, looked at every 50 ms. The
losses must be the same to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness import proctree
from harness.machine import commit, machine, versions

SCRIPT = Path(__file__).parents[2] / "examples" / "keras_unchanged.py"
CONTENDERS = {
    "keras": "",
    "ringfeed": "import ringfeed.keras; ringfeed.keras.install(); ",
}
LOOK_S = 0.05
TIMEOUT_S = 300


def measure(contender: str, pictures: int, epochs: int) -> dict[str, Any]:
    """The figures of one fresh process, or an error in their place."""
    code = (
        f"{CONTENDERS[contender]}import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    sizes = {"PICTURES": str(pictures), "EPOCHS": str(epochs)}
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as errors:
        run = subprocess.Popen(  # noqa: S603 - the bench's own script
            [sys.executable, "-c", code], stdout=told, stderr=errors, env=os.environ | quiet | sizes
        )
        peak, ended = _watch(run)
        told.seek(0)
        errors.seek(0)
        if not ended:
            return {"error": f"no end within {TIMEOUT_S} s"}
        if run.returncode:
            return {
                "error": f"exit status {run.returncode}: {errors.read().strip().splitlines()[-1:]}"
            }
        figures = json.loads(told.read().splitlines()[-1])
        said = [line for line in errors.read().splitlines() if "ringfeed" in line]
    return {
        "figures": {
            **figures,
            "peak_own_bytes": peak[0],
            "peak_shared_bytes": peak[1],
            "said": said,
        }
    }


def _watch(run: subprocess.Popen[str]) -> tuple[tuple[int, int], bool]:
    """Peak bytes of the run's processes, private and shared, and whether it came to its end."""
    own = shared = 0
    deadline_s = time.monotonic() + TIMEOUT_S
    while run.poll() is None:
        memory = proctree.memory_of_tree([run.pid, *proctree.descendants(run.pid)])
        own, shared = max(own, memory.own), max(shared, memory.shared)
        if time.monotonic() > deadline_s:
            run.kill()
            run.wait()
            return (own, shared), False
        time.sleep(LOOK_S)
    return (own, shared), True


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=768)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", type=Path, help="file to add JSON lines to")
    return parser.parse_args(arguments)


def show(contender: str, figures: dict[str, Any]) -> None:
    """Print one run."""
    later = median(figures["epoch_s"][1:] or figures["epoch_s"])
    print(
        f"{contender:10}{figures['epoch_s'][0]:8.2f} s the first epoch{later:8.2f} s a later one"
        f"{figures['peak_own_bytes'] / 1e6:8.0f} MB "
        f"private{figures['peak_shared_bytes'] / 1e6:8.1f} MB shared",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Compare; 1 where the losses differ or a run failed."""
    options = options_of(arguments)
    place = {
        **machine(),
        "versions": versions((("tensorflow", "tensorflow"), ("keras", "keras"))),
        "commit": commit(),
    }
    losses, failed = set(), False
    for repetition in range(options.repetitions):
        for contender in sorted(CONTENDERS, reverse=bool(repetition % 2)):
            record = {"case": "keras_install", "contender": contender, "repetition": repetition}
            record |= measure(contender, options.pictures, options.epochs) | {
                "load": os.getloadavg()[0],
                **place,
            }
            if options.output:
                with options.output.open("a") as file:
                    print(json.dumps(record), file=file)
            if "figures" in record:
                show(contender, record["figures"])
                losses.add(json.dumps([record["figures"]["loss"], record["figures"]["val_loss"]]))
            else:
                failed = True
                print(f"{contender:10}{record['error']}", flush=True)
    print(
        "losses: "
        + ("the same in every run" if len(losses) == 1 else f"{len(losses)} different histories")
    )
    return int(failed or len(losses) != 1)


if __name__ == "__main__":
    sys.exit(main())

"""Every figure that needs a GPU, in ten minutes: `make bench-gpu`, or `python bench/studies/gpu.py --render`.

    python bench/studies/gpu.py                        # prints; leaves a file in bench/results/
    python bench/studies/gpu.py --seconds 120 --framework torch
    python bench/studies/gpu.py --device cpu --quick   # tries the script where there is no GPU

A row is a contender of a case, in a fresh process: batches in memory, by torch, JAX and TensorFlow
(a copy alone, a step alone, a step fed while the next batch is copied); photographs decoded from
JPEG, by torch and JAX; and Keras' `fit` on photographs, on each backend. `ROWS` has the rows that
matter most first. All rows run once before any runs again. A row is killed at its `--bound`, and a
row for which too little of `--seconds` is left is left out, so that repetitions go first. What was
left out, and what is missing for want of a GPU or a package, is said.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from devices.common import PAGEABLE, PINNED, SLOTS, WORKERS, Scale
from harness.machine import conditions, gpu, printed_by, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[1]
FRAMEWORKS = ("torch", "jax", "tensorflow")
PIN_MEMORY, DATALOADER = "DataLoader, pin_memory", "DataLoader"
ROWS = (
    ("torch", PINNED),
    ("torch", PIN_MEMORY),
    ("torch", PAGEABLE),
    ("photographs on torch", PINNED),
    ("photographs on torch", PIN_MEMORY),
    ("fit on torch", "ringfeed"),
    ("fit on torch", "PyDataset, threads"),
    ("jax", PINNED),
    ("jax", "device_put, one ahead"),
    ("photographs on jax", PINNED),
    ("photographs on jax", "DataLoader, device_put one ahead"),
    ("fit on jax", "ringfeed"),
    ("fit on jax", "PyDataset, threads"),
    ("tensorflow", "ringfeed"),
    ("tensorflow", "from_generator"),
    ("fit on tensorflow", "ringfeed"),
    ("fit on tensorflow", "PyDataset, threads"),
    ("jax", PAGEABLE),
    ("torch", DATALOADER),
)
"""Case and contender; the case ends with the framework, and without another word has batches in memory."""
FILES, QUICK_FILES = 512, 16
QUICK = {"rows": 4, "samples": 8, "copies": 3, "steps": 4, "warm_up": 2, "step_s": 1e-3, "width": 8}


def framework_of(case: str) -> str:
    """The framework of a case, or the backend of Keras."""
    return case.rpartition(" ")[2]


def missing(case: str, contender: str) -> str:
    """Which packages a row lacks; empty where all are installed."""
    needs = ["ringfeed", framework_of(case)]
    needs += ["keras"] if case.startswith("fit") else []
    needs += ["PIL", "sklearn", "skimage"] if " on " in case else []
    needs += ["torch"] if contender.startswith(DATALOADER) and "torch" not in needs else []
    lacks = [name for name in needs if importlib.util.find_spec(name) is None]
    return f"{' and '.join(lacks)} not installed" if lacks else ""


# ---- in the fresh process ----


def scale_of(case: str, folder: str, *, quick: bool) -> Scale:
    """How much a row measures."""
    settings: dict[str, Any] = dict(QUICK) if quick else {}
    if " on " in case:
        settings = {"steps": 80, "warm_up": max(2 * WORKERS, SLOTS) + 2, "step_s": 0.01} | settings
        settings |= {"folder": folder, "shape": (3, 224, 224)}
    elif quick:
        settings["shape"] = (8, 8, 3)
    return Scale(**settings)


def measure(case: str, contender: str, device: str | None, scale: Scale) -> dict[str, Any]:
    """The figures of a row, or why its framework has none."""
    kind = "keras" if case.startswith("fit") else framework_of(case)
    module = importlib.import_module(f"devices.by_{kind}")
    if device is None and (reason := module.why_not()):
        return {"why_not": reason}
    if kind == "keras":
        found: dict[str, Any] = module.measure(contender, scale)
        return found
    from devices.common import figures  # noqa: PLC0415 - beside the module

    chosen = {} if device is None else {"device": device}
    with module.feed(contender, scale, **chosen) as feed:
        return figures(module.Gpu(scale=scale, **chosen), feed, scale)


# ---- the runner ----


def environment(case: str) -> dict[str, str]:
    """The environment of a fresh process: no framework takes the whole GPU for itself."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return os.environ | quiet | {"KERAS_BACKEND": framework_of(case)}


def run(row: tuple[str, str], bound_s: float, options: argparse.Namespace) -> dict[str, Any]:
    """What a fresh process of this script says of a row, which it has so many seconds for."""
    words = ["--measure", *row, "--folder", options.folder]
    words += ["--quick"] if options.quick else []
    words += ["--device", options.device] if options.device else []
    return printed_by([sys.executable, __file__, *words], bound_s, environment(row[0]))


def outcomes(options: argparse.Namespace, ends_s: float) -> Iterator[dict[str, Any]]:
    """Of each row and repetition: its figures, an error, what it is missing, or that no time was left."""
    rows = [row for row in ROWS if framework_of(row[0]) in options.framework]
    lasted_s: dict[tuple[str, str], float] = {}
    left_out = f"left out for time, of {options.seconds:g} s"
    without: dict[str, str] = {}  # why a framework has no figures
    for repetition in range(options.repetitions):
        again = []  # rows that failed once fail again
        for row in rows:
            case, contender = row
            found: dict[str, Any] = {"case": f"gpu/{case}", "contender": contender}
            found["repetition"] = repetition
            reason = missing(*row) or without.get(framework_of(case), "")
            left_s = ends_s - time.monotonic()
            needs_s = lasted_s.get(row) or median([*lasted_s.values(), 1.0])
            if reason:
                found["missing"] = reason
            elif left_s < needs_s:
                found["left_out"] = left_out
                again.append(row)
            else:
                began_s = time.monotonic()
                said = run(row, min(options.bound, left_s), options)
                lasted_s[row] = time.monotonic() - began_s
                found["lasted_s"] = round(lasted_s[row], 1)
                if "why_not" in said:
                    found["missing"] = without[framework_of(case)] = said["why_not"]
                elif lasted_s[row] >= left_s:  # killed, and not at its bound
                    found["left_out"] = left_out
                elif "error" in said:
                    found["error"] = said["error"]
                else:
                    found["figures"] = said
                    again.append(row)
            yield found
        rows = again


def record_of(found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """A line of the results: when, where, with which versions; and the outcome."""
    where = conditions(quick=options.quick)
    case = found["case"].removeprefix("gpu/")
    names = [framework_of(case), *(["keras"] if case.startswith("fit") else [])]
    where["versions"] = versions(tuple((name, "") for name in names))
    where["commit"] = options.commit or where["commit"]
    where["machine"] |= {"gpu": options.device} if options.device else gpu()
    return where | found


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=540, help="for all of it: 540")
    parser.add_argument("--bound", type=float, default=60, help="seconds a row may take: 60")
    parser.add_argument("--repetitions", type=int, default=3, help="at most: 3")
    parser.add_argument("--framework", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--device", choices=["cpu"], help="a stand-in for the GPU")
    parser.add_argument("--quick", action="store_true", help="little of everything, to try it")
    parser.add_argument("--commit", default="", help="of a copy that is no repository")
    parser.add_argument(
        "--output", type=Path, help="file to add lines to; a new one in bench/results/"
    )
    parser.add_argument("--render", action="store_true", help="put the table into bench/README.md")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions {options.repetitions}: at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 where a contender gave no figures."""
    began_s, options = time.monotonic(), options_of(arguments)
    if options.measure:
        case, contender = options.measure
        scale = scale_of(case, options.folder, quick=options.quick)
        print(json.dumps(measure(case, contender, options.device, scale)), flush=True)
        os._exit(0)  # some rivals' threads do not end
    from report import page, tables  # noqa: PLC0415 - which read this module
    from studies.photographs import write_files  # noqa: PLC0415 - not in the fresh process

    output = options.output or BENCH / "results" / time.strftime("gpu-%Y-%m-%d.jsonl")
    records: list[dict[str, Any]] = []
    unwritten: list[str] = []  # until there are figures, which a file is left for
    with tempfile.TemporaryDirectory() as options.folder:
        if any(" on " in case and not missing(case, contender) for case, contender in ROWS):
            write_files(Path(options.folder), QUICK_FILES if options.quick else FILES)
        for found in outcomes(options, began_s + options.seconds):
            records.append(record_of(found, options))
            unwritten.append(json.dumps(records[-1]) + "\n")
            if any("figures" in record for record in records):
                output.parent.mkdir(parents=True, exist_ok=True)
                with output.open("a") as lines:
                    lines.writelines(unwritten)
                unwritten.clear()
            said = json.dumps({name: found[name] for name in found if name != "case"})
            print(found["case"], said, flush=True)
    text = tables.gpu_table(records)
    print(f"\n{text}\n\n{time.monotonic() - began_s:.0f} s of {options.seconds:g}")
    if options.render:
        page.put(tables.README, "gpu", text)
    return int(any("error" in record for record in records))


if __name__ == "__main__":
    sys.exit(main())

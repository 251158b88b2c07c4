"""Every figure that needs a GPU: `make bench-gpu`, or `python bench/studies/device_copy.py --render`.

    python bench/studies/device_copy.py                       # prints; leaves a file in bench/results/
    python bench/studies/device_copy.py --framework torch --repetitions 5

Of torch, TensorFlow and JAX, from slots that are registered with the driver and from others, and of
each one's own way: a copy alone; a step that takes 10 ms by itself, fed while it runs; and what it
hides of the copy. Then `fit` on each backend of Keras. Each contender is a fresh process, and they
take turns. Where there is no GPU, or a framework is missing or sees none, that is said, with the
figures that are missing for it; `--render` puts the table, or that, into the page.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from devices.common import PAGEABLE, PINNED, Scale
from harness.machine import conditions, printed_by, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[1]
TIMEOUT_S = 600.0
MODULES = {
    "torch": "by_torch",
    "tensorflow": "by_tensorflow",
    "jax": "by_jax",
    "fit on torch": "by_keras",
    "fit on tensorflow": "by_keras",
    "fit on jax": "by_keras",
}
"""The module of each framework; `fit` has the backend that its name ends with."""
RIVALS = {
    "torch": ("DataLoader, pin_memory", "DataLoader"),
    "tensorflow": ("from_generator",),
    "jax": ("device_put, one ahead",),
    "fit": ("PyDataset, threads",),
}


def contenders_of(framework: str) -> tuple[str, ...]:
    """The contenders of a framework, without importing it."""
    return PINNED, PAGEABLE, *RIVALS[framework.partition(" ")[0]]


def packages_of(framework: str) -> list[str]:
    """What must be installed for it."""
    name = framework.rpartition(" ")[2]
    return [name, "keras"] if framework != name else [name]


# ---- in the fresh process ----


def measure(
    framework: str, contender: str, device: str | None = None, scale: Scale | None = None
) -> dict[str, Any]:
    """The figures of one contender."""
    scale = scale or Scale()
    module = importlib.import_module(f"devices.{MODULES[framework]}")
    if MODULES[framework] == "by_keras":
        found: dict[str, Any] = module.measure(contender, scale)
        return found
    from devices.common import figures  # noqa: PLC0415 - beside the module

    chosen = {} if device is None else {"device": device}
    with module.feed(contender, scale, **chosen) as feed:
        return figures(module.Gpu(scale=scale, **chosen), feed, scale)


def checked(framework: str) -> str:
    """Why a framework cannot be measured in this process; empty where it can."""
    reason: str = importlib.import_module(f"devices.{MODULES[framework]}").why_not()
    return reason


# ---- the runner ----


def environment(framework: str) -> dict[str, str]:
    """The environment of a fresh process: no framework takes the whole GPU for itself."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return os.environ | quiet | {"KERAS_BACKEND": framework.rpartition(" ")[2]}


def run(framework: str, *words: str) -> dict[str, Any]:
    """What a fresh process of this script says."""
    return printed_by(
        [sys.executable, __file__, *words, "--framework", framework],
        TIMEOUT_S,
        environment(framework),
    )


def why_not(framework: str) -> str:
    """Why a framework cannot be measured on this machine; empty where it can."""
    if missing := [
        name for name in packages_of(framework) if importlib.util.find_spec(name) is None
    ]:
        return f"{' and '.join(missing)} not installed"
    found = run(framework, "--check")
    if "error" in found:
        return (str(found["error"]).strip().splitlines() or ["its process ends without a word"])[-1]
    return str(found["why_not"])


def records(options: argparse.Namespace, able: list[str]) -> Iterator[dict[str, Any]]:
    """A line for each contender and repetition; another contender begins each repetition."""
    for repetition in range(options.repetitions):
        for framework in able:
            names = contenders_of(framework)
            turn = repetition % len(names)
            for contender in names[turn:] + names[:turn]:
                found = run(framework, "--measure", contender)
                facts = {
                    "case": f"device/{framework}",
                    "contender": contender,
                    "repetition": repetition,
                }
                where = conditions(quick=False) | {
                    "versions": versions(tuple((name, "") for name in packages_of(framework)))
                }
                where["machine"] |= {"gpu": found["gpu"]} if "gpu" in found else {}
                yield (
                    where
                    | facts
                    | ({"error": found["error"]} if "error" in found else {"figures": found})
                )


def missing_lines(reasons: dict[str, str]) -> list[str]:
    """A line for each framework that was not measured: why, and which figures are missing."""
    return [
        f"{framework}: {reason}; missing: {'; '.join(contenders_of(framework))}"
        for framework, reason in reasons.items()
        if reason
    ]


def _publish(output: Path | None, reasons: dict[str, str]) -> None:
    from report import page, tables  # noqa: PLC0415 - which read this module

    lines = [] if output is None else output.read_text().splitlines()
    text = tables.device_copy_table([json.loads(line) for line in lines]) + "\n\n" if lines else ""
    gone = "".join(f"\n- {line}" for line in missing_lines(reasons))
    text += f"Not measured yet:\n{gone}" if gone else ""
    page.put(tables.README, "device_copy", text.strip())
    print(f"{tables.README}: {'the reasons' if output is None else output.name}")


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, understood."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", nargs="+", choices=MODULES, default=[*MODULES], help="all")
    parser.add_argument("--repetitions", type=int, default=3, help="3")
    parser.add_argument(
        "--output", type=Path, help="file to add lines to; a new one in bench/results/"
    )
    parser.add_argument("--render", action="store_true", help="put the table into bench/README.md")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions {options.repetitions}: at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and show; 1 where a contender gave no figures."""
    options = options_of(arguments)
    if options.check:
        print(json.dumps({"why_not": checked(options.framework[0])}))
        return 0
    if options.measure:
        print(json.dumps(measure(options.framework[0], options.measure)))
        return 0
    reasons = {framework: why_not(framework) for framework in options.framework}
    for line in missing_lines(reasons):
        print(line)
    able = [framework for framework, reason in reasons.items() if not reason]
    output: Path | None = None
    failed = False
    if able:
        output = options.output or BENCH / "results" / time.strftime("device_copy-%Y-%m-%d.jsonl")
        output.parent.mkdir(parents=True, exist_ok=True)
        for record in records(options, able):
            with output.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
            failed |= "error" in record
            print(
                record["case"],
                record["contender"],
                json.dumps(record.get("figures", record.get("error"))),
                flush=True,
            )
    else:
        print("nothing was measured")
    if options.render:
        _publish(output, reasons)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

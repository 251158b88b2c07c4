"""The command ``ringfeed simulate``: its options, and what is made of them."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringfeed.simulation.report import Report
    from ringfeed.simulation.terms import Work

DESCRIPTION = (
    "Simulates a trainer whose samples are made by actors of a cluster, with backend=ringfeed.Ray, and says how many "
    "workers, slots, bridges and gigabits it needs, and what limits it. Give --profile or --sample-ms, and --appetite "
    "or --step-ms."
)
NUMBERS = {
    "--sample-ms": "of work, in place of a profile",
    "--cv": "coefficient of variation of that (default: 0)",
    "--step-ms": "that the trainer takes for a batch",
    "--appetite": "samples that the trainer takes a second",
    "--node-gbit": "of each node's link (default: no limit)",
    "--gbit": "of the trainer's link (default: no limit)",
    "--latency-ms": "one way (default: 0)",
    "--actor-losses": "of each actor, an hour (default: 0)",
    "--node-losses": "of each node, an hour (default: 0)",
}
COUNTS = {
    "--bytes": "of a sample, in place of a profile",
    "--batch-size": "samples (default: the profile's, or 32)",
    "--actors-per-node": "(default: 16)",
    "--slots": "(default: as many as bring something)",
    "--bridges": "(default: as many as it takes)",
    "--seed": "of the random numbers (default: 0)",
}


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = DESCRIPTION
    parser.add_argument("--profile", type=Path, help="a file that `ringfeed profile --json` has written")
    parser.add_argument(
        "--calibration", type=Path, help="what calls cost, as `bench/studies/remote.py --calibrate` says"
    )
    parser.add_argument("--workers", type=_workers, help="as 10,100,1000 (default: from 1 to 10,000)")
    for name, meaning in NUMBERS.items():
        parser.add_argument(name, type=float, help=meaning)
    for name, meaning in COUNTS.items():
        parser.add_argument(name, type=int, help=meaning)
    parser.add_argument("--plot", type=Path, help="a picture to draw: .svg, .png or .pdf")
    parser.add_argument("--json", action="store_true", help="write the figures as JSON")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Simulate, write the table, and draw it."""
    if chosen.plot is not None:
        from ringfeed.simulation.drawing import check_path, draw  # noqa: PLC0415 - for this command alone

        check_path(chosen.plot)
    report = _report(chosen)
    if chosen.plot is not None:
        draw(report, chosen.plot)
    sys.stdout.write(f"{json.dumps(report.as_json()) if chosen.json else report}\n")


def _report(chosen: argparse.Namespace) -> Report:
    from ringfeed.simulation import report, sizing, terms  # noqa: PLC0415 - as above

    work, batch_size = _work(chosen)
    costs = terms.Costs() if chosen.calibration is None else terms.Costs.read(chosen.calibration)
    wanted = sizing.Wanted(work, costs, **_surroundings(chosen, chosen.batch_size or batch_size))
    seed = chosen.seed or 0
    rows = sizing.rows_of(wanted, chosen.workers or sizing.WORKERS, seed)
    return report.Report(wanted, tuple(rows), sizing.needed(wanted, seed), chosen.calibration is not None)


def _work(chosen: argparse.Namespace) -> tuple[Work, int]:
    """Return what a sample takes, and samples of a batch: one, where a profile is of whole batches."""
    from ringfeed.simulation.terms import Work  # noqa: PLC0415 - as above

    by_hand = {
        name: getattr(chosen, name) for name in ("sample_ms", "cv", "bytes") if getattr(chosen, name) is not None
    }
    if chosen.profile is not None:
        if by_hand:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in by_hand)
            message = f"--profile says what a sample takes: leave out {names}"
            raise ValueError(message)
        work, batch_size = Work.read(chosen.profile)
        return work, batch_size or 1
    if chosen.sample_ms is None or chosen.bytes is None:
        raise ValueError("give --profile, or --sample-ms and --bytes")
    return Work(chosen.sample_ms / 1e3, chosen.cv or 0.0, chosen.bytes), 32


def _surroundings(chosen: argparse.Namespace, batch_size: int) -> dict[str, Any]:
    if (chosen.appetite is None) == (chosen.step_ms is None):
        raise ValueError("give either --appetite, samples a second, or --step-ms, the time of a batch")
    for names, least, fits in (
        (("appetite", "step_ms", "node_gbit", "gbit"), "above 0", (0.0).__lt__),
        (("latency_ms", "actor_losses", "node_losses"), "0 or more", (0.0).__le__),
        (("batch_size", "actors_per_node", "slots", "bridges"), "1 or more", (1).__le__),
    ):
        for name in names:
            if (value := getattr(chosen, name)) is not None and not (fits(value) and value < math.inf):
                message = f"--{name.replace('_', '-')} {value:g} must be {least}"
                raise ValueError(message)
    return {
        "batch_size": batch_size,
        "appetite": chosen.appetite or batch_size / (chosen.step_ms / 1e3),
        "node_gbits": chosen.node_gbit or math.inf,
        "gbits": chosen.gbit or math.inf,
        "latency_s": (chosen.latency_ms or 0.0) / 1e3,
        "actors_per_node": chosen.actors_per_node or 16,
        "actor_losses": chosen.actor_losses or 0.0,
        "node_losses": chosen.node_losses or 0.0,
        "slots": chosen.slots,
        "bridges": chosen.bridges,
    }


def _workers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) in range(1, 10_001) for part in parts):
        message = f"{text!r} is no list of whole numbers from 1 to 10,000; write them as 10,100,1000"
        raise argparse.ArgumentTypeError(message)
    return [int(part) for part in parts]

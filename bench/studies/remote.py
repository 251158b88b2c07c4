"""Remote workers on clusters of this machine: `python bench/studies/remote.py --scale`, or another question of these.

    --calibrate       what calls cost, as JSON for `cluster_size.py --costs`
    --hashes          one hash for each epoch, whatever makes its rows
    --kills           actors, nodes, bridges, the GCS killed, nodes stopped, links cut: nothing lost, the longest pause;
                      --kind names one of them, --times how often
    --scale           samples a second of 1, 4, 16 and 64 actors, over what they could give
    --bytes           time and bridge CPU of batches from 0.6 to 38.5 MB
    --link            how much of a link of 1 Gbit/s is used, by one node and by two
    --against         Ray Data, with the same work: the second epoch's first batch, CPU a sample
    --memory          ten epochs over object stores of 80 MB: nothing spilled, memory over the plan
    --simulate-check  cluster_size.py beside real runs

Each training is a process of its own (remote_run.py); the cluster is tests/support/cluster.py. All
that is measured is a line of JSON in --out; the last line that is printed is the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script
sys.path.insert(1, str(Path(__file__).parents[2] / "tests" / "support"))  # clusters

import cluster
from harness.machine import conditions, versions
from studies import remote_faults, remote_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUESTIONS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "calibrate": remote_speed.calibrate,
    "hashes": remote_faults.hashes,
    "kills": remote_faults.kills,
    "scale": remote_speed.scale,
    "bytes": remote_speed.sizes,
    "link": remote_speed.link,
    "against": remote_speed.against,
    "memory": remote_speed.memory,
    "simulate_check": remote_speed.simulate_check,
}


def main() -> int:
    """Run from the command line; 1 where what is demanded is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    for name in QUESTIONS:
        asked.add_argument(
            f"--{name.replace('_', '-')}", dest="asked", action="store_const", const=name
        )
    parser.add_argument("--kind", choices=remote_faults.PROMISED, help="of --kills: this one alone")
    parser.add_argument("--times", type=int, help="of --kills: so often")
    parser.add_argument("--quick", action="store_true", help="few kills, short runs")
    parser.add_argument("--out", type=Path, help="lines of JSON are added to it")
    chosen = parser.parse_args()
    if why := cluster.why_not(network=chosen.asked == "link"):
        print(f"left out: {why}")
        return 0
    about = {
        **conditions(quick=chosen.quick),
        "versions": versions((("ray", ""),)),
        "study": f"remote/{chosen.asked}",
    }
    answer: dict[str, Any] = {}
    for answer in QUESTIONS[chosen.asked](chosen):
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            with chosen.out.open("a") as file:
                file.write(json.dumps({**about, "at": time.time(), **answer}, default=str) + "\n")
        print(answer["text"], flush=True)
    return 0 if answer.get("kept", True) else 1


if __name__ == "__main__":
    sys.exit(main())

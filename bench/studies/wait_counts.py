"""What the histogram of waits costs a batch in the C core: `python bench/studies/wait_counts.py`.

The core is compiled twice, with the histogram and without it (``-DRF_COUNTS_WAITS=0``), and both are
loaded into this process. One thread plans, binds, claims, publishes, takes and drops batches of one
row; the two take turns, some hundred batches each, and a difference is that of two neighbours.

    alone     only the counting, in a loop, less the loop: every batch has waited
    ready     the batch was not waited for: what the histogram adds is a comparison
    waited    a wait was counted before, each of another length: one bucket is counted up
    itself    two copies with the histogram, which says how much of a difference is noise
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import commit, machine

ROOT = Path(__file__).parents[2]
CHUNK = 500  # batches
PAIRS = 4_000
ALONE, LOOPS = 200_000, 25
PROMISED_NS = 10.0
LOOP = """
#include "take.c"
#include "place.h"
static struct rf_ring *ring;
static uint64_t length = 88172645463325252u;
static void begin(void)
{
    if (!ring)
        ring = ring_of(4, 1, 1, 1);
}
static int64_t next_ns(void)
{
    length ^= length << 13, length ^= length >> 7, length ^= length << 17;
    return (int64_t)(length >> (24 + length % 24));
}
double run_alone(int batches, int counts)
{
    begin();
    atomic_store(&ring->binder->ledger.batches, 1);
    int64_t began_ns = rf_now_ns();
    for (int batch = 0; batch < batches; batch++) {
        *(volatile uint64_t *)&ring->binder->stalled_ns = (uint64_t)next_ns();
        if (counts)
            count_wait(ring);
    }
    return (double)(rf_now_ns() - began_ns) / batches;
}
double run(int batches, int waits)
{
    begin();
    int64_t began_ns = rf_now_ns();
    for (int batch = 0; batch < batches; batch++) {
        bind_batches(ring, 1, 1);
        fill_all(ring, 0);
        int64_t wait_ns = next_ns();
        rf_note_stall(ring, waits ? wait_ns : 0);
        rf_drop(ring, taken_of(ring).slot);
    }
    return (double)(rf_now_ns() - began_ns) / batches;
}
"""


def build(folder: Path, name: str, *flags: str) -> ctypes.CDLL:
    """Compile the core and the loop into a library of their own, and load it."""
    core = [
        path
        for path in sorted((ROOT / "cext").rglob("*.c"))
        if path.name not in {"tf_op.c", "take.c"} and not path.name.endswith("_portable.c")
    ]
    tests = ROOT / "tests" / "core" / "c"
    loop, library = folder / "loop.c", folder / f"{name}.so"
    loop.write_text(LOOP)
    command = [
        *(os.environ.get("CC", "cc"), "-std=c11", "-O2", "-pthread", "-shared", "-fPIC"),
        *(
            "-Wl,-Bsymbolic",
            f"-I{ROOT / 'cext'}",
            f"-I{tests}",
            *flags,
        ),  # take.c is part of the loop
        *(str(path) for path in (loop, tests / "place.c", *core)),
        *("-o", str(library)),
    ]
    subprocess.run(command, check=True, timeout=300)  # noqa: S603 - our own compiler
    found = ctypes.CDLL(str(library))
    found.run.restype = found.run_alone.restype = ctypes.c_double
    return found


def difference_ns(one: ctypes.CDLL, other: ctypes.CDLL, pairs: int, *, waits: bool) -> list[float]:
    """How much longer a batch takes with the first, pair by pair; another is first each time."""
    found = []
    for pair in range(pairs):
        sides = (one, other) if pair % 2 else (other, one)
        times = {side: side.run(CHUNK, waits) for side in sides}
        found.append(times[one] - times[other])
    return found


def main() -> None:
    """Measure, and print a line for each kind of batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"{PAIRS}")
    parser.add_argument("--output", type=Path, help="file to add a line to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wait-counts-") as scratch:
        ours, again = (build(Path(scratch), name) for name in ("with", "again"))
        without = build(Path(scratch), "without", "-DRF_COUNTS_WAITS=0")
        kinds = {
            "ready": (ours, without, False),
            "waited": (ours, without, True),
            "itself": (ours, again, True),
        }
        record: dict[str, object] = {"bench": "wait_counts", "pairs": options.pairs}
        alone = [ours.run_alone(ALONE, 1) - ours.run_alone(ALONE, 0) for _ in range(LOOPS)]
        record["alone"] = {"more_ns": median(alone)}
        print(f"alone   {median(alone):+6.2f} ns a batch, at most {PROMISED_NS:.0f}")
        for kind, (one, other, waits) in kinds.items():
            whole_ns = median(one.run(CHUNK, waits) for _ in range(20))
            more_ns = median(difference_ns(one, other, options.pairs, waits=waits))
            record[kind] = {"batch_ns": whole_ns, "more_ns": more_ns}
            print(
                f"{kind:7} {more_ns:+6.2f} ns of {whole_ns:.0f} ns a batch, at most {PROMISED_NS:.0f}"
            )
    if options.output:
        record |= {"machine": machine(), "commit": commit()}
        with options.output.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

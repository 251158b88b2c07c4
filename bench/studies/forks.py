"""What a fork of the forkserver takes, as its memory grows, in pages of 4 kB and in huge ones.

    python bench/studies/forks.py            # half a minute; one JSON line a row, and a table
    python bench/studies/forks.py --forks 5  # a short look

Each row is a fresh process that imports what the forkserver does and touches so much memory
besides; its children end at once. `call_us` is how long the call takes in the forkserver, `end_us`
until the child is waited for; the rest of a worker's start is in `first_batch.py`. A kernel that
gives no huge pages is seen by `huge_bytes`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

KINDS = {"4 kB": mmap.MADV_NOHUGEPAGE, "huge": mmap.MADV_HUGEPAGE}
SIZES_MB = (0, 100, 400)


def kilobytes(name: str) -> int:
    """What /proc says of this process's memory."""
    found = re.search(
        rf"^{name}: +(\d+) kB",
        Path("/proc/self/smaps_rollup").read_text(encoding="ascii"),
        re.MULTILINE,
    )
    return int(found[1]) if found else 0


def fork_once() -> tuple[float, float]:
    """Seconds of the call, and until the child has ended."""
    began_s = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    called_s = time.perf_counter()
    os.waitpid(pid, 0)
    return called_s - began_s, time.perf_counter() - began_s


def row(kind: str, size_mb: int, forks: int) -> dict[str, object]:
    """The figures of this process."""
    from ringfeed.workers.forkserver import OWN  # noqa: PLC0415 - a row's process only

    for module in OWN:
        importlib.import_module(module)
    if size_mb:
        memory = mmap.mmap(-1, size_mb << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(KINDS[kind])
        for place in range(0, size_mb << 20, mmap.PAGESIZE):
            memory[place] = 1
    times = [fork_once() for _ in range(forks)]
    call_s, end_s = (median(column) for column in zip(*times, strict=True))
    figures = {"call_us": call_s * 1e6, "end_us": end_s * 1e6}
    sizes = {
        "private_bytes": kilobytes("Anonymous") << 10,
        "huge_bytes": kilobytes("AnonHugePages") << 10,
    }
    return {"pages": kind, "added_mb": size_mb, "forks": forks, **figures, **sizes}


def main() -> None:
    """Print each row and the table, or one row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forks", type=int, default=300)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(row(chosen.child[0], int(chosen.child[1]), chosen.forks)))
        return
    lines = [
        "| pages | private memory | of it in huge pages | the call | until the child has ended |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for size_mb in SIZES_MB:
        for kind in [*KINDS] if size_mb else ["4 kB"]:
            command = [
                sys.executable,
                __file__,
                "--forks",
                str(chosen.forks),
                "--child",
                kind,
                str(size_mb),
            ]
            line = subprocess.run(  # noqa: S603
                command, stdout=subprocess.PIPE, text=True, timeout=120, check=True
            ).stdout
            print(line, end="", flush=True)
            found = json.loads(line)
            sizes = f"{found['private_bytes'] / 1e6:.0f} MB | {found['huge_bytes'] / 1e6:.0f} MB"
            lines.append(
                f"| {kind} | {sizes} | {found['call_us']:.0f} µs | {found['end_us']:.0f} µs |"
            )
    print("\n".join(lines))


if __name__ == "__main__":
    main()

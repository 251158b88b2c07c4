"""How soon a loader goes on amid an epoch: `python bench/studies/resume.py`, or `--quick`.

Each contender shuffles numbers, is stopped after so many samples, and saves its state. A fresh
process loads that, and takes the first batch; another begins the epoch from its start, for
comparison. Contenders take turns; each repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import numpy as np

import ringfeed
from harness.machine import commit, machine
from harness.proctree import descendants

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 1000
WORKERS = 2
TIMEOUT_S = 600.0


class Numbers:
    """Samples that are their own numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


def of_ringfeed(length: int) -> tuple[Any, Callable[[], Any], Callable[[Any], None]]:
    """Its loader, how its state is taken, and how it is loaded."""
    spec = ringfeed.Array((), "int64")
    loader = ringfeed.Loader(
        Numbers(length), batch_size=ROWS, shuffle=True, workers=WORKERS, spec=spec
    )
    return loader, loader.state_dict, loader.load_state_dict


def of_torchdata(length: int) -> tuple[Any, Callable[[], Any], Callable[[Any], None]]:
    """The same of torchdata's StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 - a rival

    loader = StatefulDataLoader(Numbers(length), batch_size=ROWS, shuffle=True, num_workers=WORKERS)
    return loader, loader.state_dict, loader.load_state_dict


def of_grain(length: int) -> tuple[Any, Callable[[], Any], Callable[[Any], None]]:
    """The same of Grain's MapDataset with processes: the state is that of its iterator."""
    import grain  # noqa: PLC0415 - a rival
    from absl import flags  # noqa: PLC0415 - what it reads

    flags.FLAGS.mark_as_parsed()
    dataset = grain.MapDataset.source(Numbers(length)).shuffle(seed=0).batch(ROWS)
    options = grain.MultiprocessingOptions(num_workers=WORKERS)
    iterator = iter(dataset.to_iter_dataset().mp_prefetch(options))
    return iterator, iterator.get_state, iterator.set_state


CONTENDERS = {"ringfeed": of_ringfeed, "torchdata": of_torchdata, "grain": of_grain}


def save(contender: str, length: int, samples: int, path: Path) -> dict[str, float]:
    """Take so many samples, and save the state."""
    batches, look, _ = CONTENDERS[contender](length)
    iterator = iter(batches)
    for _ in range(samples // ROWS):
        next(iterator)
    began_s = time.perf_counter()
    state = look()
    took_s = time.perf_counter() - began_s
    path.write_bytes(pickle.dumps(state))
    return {"state_s": took_s, "state_bytes": len(pickle.dumps(state))}


def go_on(contender: str, length: int, path: Path | None) -> dict[str, float]:
    """Load a state, if there is one, and take the first batch."""
    began_s = time.perf_counter()
    batches, _, load = CONTENDERS[contender](length)
    if path is not None:
        load(pickle.loads(path.read_bytes()))  # noqa: S301 - written here
    next(iter(batches))
    took_s = time.perf_counter() - began_s
    return {"first_batch_s": took_s, "memory": _memory_of_all()}


def _memory_of_all() -> int:
    """The proportional memory of this process and all below it, in bytes."""
    return sum(map(_memory, [os.getpid(), *descendants(os.getpid())]))


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(text.split("Pss:")[1].split()[0]) * 1024


def repetition(contender: str, length: int, samples: int) -> dict[str, Any]:
    """One line: the state, going on from it, and a start."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "state")
        saved = _child("--child", "save", contender, length, samples, path)
        resumed = _child("--child", "go_on", contender, length, samples, path)
        started = _child("--child", "go_on", contender, length, samples, "")
    return {
        "contender": contender,
        "length": length,
        "samples": samples,
        **saved,
        "resumed": resumed,
        "started": started,
    }


def _child(*arguments: object) -> Any:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _be_child(act: str, contender: str, length: str, samples: str, path: str) -> None:
    given = Path(path) if path else None
    if act == "save":
        assert given is not None
        found = save(contender, int(length), int(samples), given)
    else:
        found = go_on(contender, int(length), given)
    print(json.dumps(found), flush=True)


def jump(samples: int, length: int = 10**9) -> dict[str, float]:
    """Ringfeed alone, amid an epoch so long that nothing could take it: the state is written by hand."""
    loader, look, load = of_ringfeed(length)
    began_s = time.perf_counter()
    load({**look(), "samples": samples})
    next(iter(loader))
    took_s = time.perf_counter() - began_s
    return {"samples": samples, "first_batch_s": took_s, "memory": _memory_of_all()}


def main() -> None:
    """Measure, and print a table of medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one repetition of a tenth of the samples"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, help="file to add lines to")
    parser.add_argument("--contender", nargs="+", default=[*CONTENDERS])
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--jump", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        _be_child(*chosen.child)
    elif chosen.jump is not None:
        print(json.dumps(jump(chosen.jump)), flush=True)
    else:
        samples = 10**5 if chosen.quick else 10**6
        lines = []
        for _ in range(1 if chosen.quick else chosen.repetitions):
            lines += [repetition(name, 2 * samples, samples) for name in chosen.contender]
            lines += [_jump(place) for place in (0, 5 * 10**8)]
        if chosen.output:
            header = {"commit": commit(), "machine": machine()}
            with chosen.output.open("a") as file:
                file.writelines(json.dumps({**header, **line}) + "\n" for line in lines)
        show(lines)


def _jump(samples: int) -> dict[str, Any]:
    return {"contender": "ringfeed of 10^9", **_child("--jump", samples)}


def show(lines: list[dict[str, Any]]) -> None:
    """Print medians."""
    for name, samples in dict.fromkeys((line["contender"], line["samples"]) for line in lines):
        found = [line for line in lines if (line["contender"], line["samples"]) == (name, samples)]
        if "resumed" not in found[0]:
            first_s, memory = (
                median(line[key] for line in found) for key in ("first_batch_s", "memory")
            )
            print(
                f"{name}: first batch at sample {samples}: {first_s:.3f} s, {memory / 1e6:.0f} MB"
            )
            continue
        figures = {key: median(line[key] for line in found) for key in ("state_s", "state_bytes")}
        pairs = [(line["resumed"], line["started"]) for line in found]
        resumed_s, started_s = (
            median(pair[side]["first_batch_s"] for pair in pairs) for side in (0, 1)
        )
        resumed, started = (median(pair[side]["memory"] for pair in pairs) for side in (0, 1))
        print(
            f"{name}: state {figures['state_s'] * 1e6:.0f} us, {figures['state_bytes']:.0f} bytes; "
            f"first batch {resumed_s:.3f} s from it, {started_s:.3f} s from the start; "
            f"{resumed / 1e6:.0f} and {started / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()

"""Pictures in 3 files, decoded by `transform=`: `python bench/studies/streams.py`, or `--quick` for a short look.

    by number     samples with numbers, which all workers read and decode: what there is to reach
    iterable      one iterable of all files: one more process reads, and all workers decode
    alone         the same with one worker, which reads and decodes
    interleaved   `Interleave` of the files: a worker for each, as far as there are workers
    torch         torch's DataLoader, an iterable that gives each worker its part of the files, where torch is installed

All in one process, taking turns, another one first in each repetition; ratios are taken within a
repetition, each of which has workers of its own: where their memory lies makes some of them a tenth
faster than others. `balance` is what the processes' CPU seconds allow at best, as a share of `by
number`: the steadier figure on a busy machine. Each repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import struct
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions
from harness.resting import resting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = 3
ROWS = 32
EACH, QUICK_EACH = 640, 64  # pictures of a file
WORKERS = 2
REPETITIONS = 11
PROMISED = 0.97
TICKS = os.sysconf("SC_CLK_TCK")
HEAD, HEAD_SIZE = "<I", 4  # the size of the picture that follows

# ---- the pictures ----


def write_files(folder: Path, each: int) -> list[Path]:
    """Write files of pictures, one behind the other."""
    from PIL import Image  # noqa: PLC0415 - workers import it with decode()

    random, paths = np.random.default_rng(0), [folder / str(number) for number in range(FILES)]
    for path in paths:
        with path.open("wb") as file:
            for _ in range(each):
                grain = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
                grain.resize((480, 360)).save(picture := io.BytesIO(), "JPEG", quality=92)
                file.write(struct.pack(HEAD, picture.tell()) + picture.getvalue())
    return paths


class Pictures:
    """The encoded pictures of some files, in their order."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[bytes]:
        for path in self.paths:
            with path.open("rb") as file:
                while head := file.read(HEAD_SIZE):
                    yield file.read(*struct.unpack(HEAD, head))


class ByNumber:
    """The same pictures as samples with numbers."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.places = [place for number, path in enumerate(paths) for place in places(path, number)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> bytes:
        number, at, size = self.places[index]
        with self.paths[number].open("rb") as file:
            return os.pread(file.fileno(), size, at)


def places(path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Where each picture of a file lies: the number of the file, where it begins, its bytes."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from(HEAD, content, at)
        yield number, at + HEAD_SIZE, size
        at += HEAD_SIZE + size


def decode(picture: bytes) -> np.ndarray:
    """A picture's pixels, cut out of its middle."""
    from PIL import Image  # noqa: PLC0415 - as above

    return np.array(Image.open(io.BytesIO(picture)).convert("RGB").crop((128, 68, 352, 292)))


# ---- the contenders ----


class Epoch(NamedTuple):
    """Pictures a second, the CPU seconds of each process, and a sum of pixels."""

    rate: float
    cpu_s: list[float]
    pixels: int

    def best(self, workers: int) -> float:
        """The least seconds in which these processes can do it on as many CPUs as there are workers."""
        return max(sum(self.cpu_s) / workers, *self.cpu_s)


def cpu_s(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measured(batches: Any, pids: Callable[[], list[int]]) -> Epoch:
    """One epoch."""
    before, count, pixels, began_s = {pid: cpu_s(pid) for pid in pids()}, 0, 0, time.perf_counter()
    for batch in batches:
        count += len(batch)
        pixels += int(batch[:, 7].sum())
    passed_s = time.perf_counter() - began_s
    return Epoch(count / passed_s, [cpu_s(pid) - before.get(pid, 0) for pid in pids()], pixels)


def contenders(paths: list[Path], workers: int) -> dict[str, tuple[Any, Callable[[], list[int]]]]:
    """What gives an epoch of batches for each `for`, and its processes, by name."""
    files = ringfeed.datasets.Interleave([Pictures([path]) for path in paths])
    kinds = {
        "by number": (ByNumber(paths), workers),
        "iterable": (Pictures(paths), workers),
        "alone": (Pictures(paths), 1),
        "interleaved": (files, workers),
    }
    made: dict[str, tuple[Any, Callable[[], list[int]]]] = {}
    for name, (dataset, count) in kinds.items():
        loader = resting(
            ringfeed.Loader(dataset, batch_size=ROWS, transform=decode, workers=count, slots=4)
        )
        runner = loader._runner  # noqa: SLF001 - its processes
        made[name] = (
            loader,
            lambda runner=runner: runner.engine.pool.pids() if runner.engine else [],
        )
    if find_spec("torch"):
        made["torch"] = torch_loader(paths, workers)
    return made


def torch_loader(paths: list[Path], workers: int) -> tuple[Any, Callable[[], list[int]]]:
    """Torch's own, whose workers go on from epoch to epoch."""
    import torch  # noqa: PLC0415 - where it is installed

    class Part(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            return map(decode, Pictures(paths[info.id :: info.num_workers]))

    loader = torch.utils.data.DataLoader(Part(), ROWS, num_workers=workers, persistent_workers=True)
    return (
        loader,
        lambda: (
            [one.pid for one in loader._iterator._workers] if loader._iterator is not None else []  # noqa: SLF001
        ),
    )


# ---- turns ----


def take_turns(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Epoch]]:
    """Give the epochs of each repetition, by contender."""
    paths = write_files(folder, QUICK_EACH if options.quick else EACH)
    for number in range(2 if options.quick else options.repetitions):
        made = contenders(paths, options.workers)
        try:
            for batches, pids in made.values():
                measured(batches, pids)  # its workers start
            names = [*made]
            order = names[number % len(names) :] + names[: number % len(names)]
            found = {name: measured(*made[name]) for name in order}
        finally:
            for batches, _ in made.values():
                if isinstance(batches, ringfeed.Loader):
                    batches.close()
        assert len({epoch.pixels for epoch in found.values()}) == 1, "not the same pictures"
        yield found


def table(runs: list[dict[str, Epoch]], workers: int) -> Iterator[str]:
    """A line for each contender."""
    for name in runs[0]:
        rate = median(run[name].rate for run in runs)
        share = median(run[name].rate / run["by number"].rate for run in runs)
        balance = median(run["by number"].best(workers) / run[name].best(workers) for run in runs)
        busy_s = ", ".join(f"{one:.2f}" for one in sorted(runs[-1][name].cpu_s))
        yield f"{name:12} {rate:7.0f} pictures/s, {share:.2f} of by number; balance {balance:.2f} (CPU s: {busy_s})"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few pictures, two repetitions")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"{WORKERS}")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"{REPETITIONS}")
    parser.add_argument("--out", type=Path, help="file to add lines to")
    options = parser.parse_args()
    facts = {
        **conditions(quick=options.quick),
        "versions": versions((("torch", ""), ("pillow", ""))),
    }
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        runs = [*take_turns(options, Path(folder))]
    for line in table(runs, options.workers):
        print(line)
    if options.out:
        options.out.parent.mkdir(exist_ok=True)
        with options.out.open("a") as file:
            for run in runs:
                epochs = {name: epoch._asdict() for name, epoch in run.items()}
                file.write(json.dumps({"bench": "streams", **facts, "epochs": epochs}) + "\n")


if __name__ == "__main__":
    main()

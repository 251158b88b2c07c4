"""The shortest training step that each loader keeps up with, by MLPerf Storage's own DLIO: `python bench/studies/dlio.py`.

DLIO trains nothing: it reads files, hands batches to a loop that looks into none of them, and sleeps
for the time that a step would take (`computation_time`), with a barrier of MPI behind it. Its accelerator utilisation (AU)
of an epoch is the sum of these sleeps, as measured, over the time of the epoch, both without the
first step. MLPerf Storage wants 90 %. Here the sleep is shortened, by halving an interval, until AU
is below that. The shortest step that still has 90 % is the fastest training that a loader can
feed. `dlio_loader.py` is ringfeed in DLIO.

The workload is DLIO's unet3d, made smaller: 24 files in place of 168, each of 146 MB where sizes
vary around that, no checkpoint, 2 epochs, one sample a batch unless `--batch-size` is given. The AU
of the second epoch decides: the workers start in the first one, which is no question of pace. DLIO
itself reports the mean, and the lines have both epochs.

    batch_s             a batch of the second epoch, without the first step, as in AU
    batch_with_first_s  the same with the first step
    au, au_of_epochs    AU of the second epoch, and of both, in percent
    read_s              one file, read in one process by what DLIO's reader does
    disk_mb             what a run did read from the disk, which has its imports too

What DLIO measures, and what it does not:

- Its reader loads the whole array of a file by `np.load(...)["x"]`, and drops it. What it returns
  for each sample is one array of random bytes. In the case `resized`, which is MLPerf's, that has
  2 MB: 146 MB are read for 2 MB that are handed over, so the reader decides which step a loader can
  feed. In the case `whole` it has 146 MB: each loader hands over as much as was read.
- All loaders have DLIO's reader, two processes, four batches in advance, and no pinned memory.
- The files were written just before and fit into memory, so they come from the page cache, where
  MLPerf wants files of five times the memory. The time of a file is that of copying it out of the
  page cache, of the CRC-32 that zipfile computes, and of the page faults of a new array: all of it
  is CPU, none of it is storage.
- The sleep takes no CPU, like waiting for a GPU. Where CPUs are short it ends late, and DLIO counts
  that as computation.
- DLIO's DALI loader makes its pipeline anew in each epoch, inside the first step, and schedules one
  batch at a time. It runs here as DLIO has it.
- torch's workers begin each epoch with nothing read. The first step has that time, and is not
  counted, while the second batch is ready by then: a gift of one batch in 23. ringfeed reads the
  first batches of an epoch while the last ones before it are taken, and gets no gift.
  `batch_with_first_s` has no such difference.

DLIO comes from its repository: `pip install --no-deps
git+https://github.com/argonne-lcf/dlio_benchmark`, with hydra-core, mpi4py and an MPI, h5py,
pandas, psutil, pydftracer, torch and nvidia-dali. The release 2.0.0 on PyPI pins an older
pydftracer. Each run is a fresh process, loaders take turns, and each run leaves one JSON line; a
table comes last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.machine import conditions, versions

BENCH = Path(__file__).parents[1]
FILES, FILE_SIZE = 24, 146_600_628
QUICK_FILES, QUICK_FILE_SIZE = 12, 1_000_000
WORKERS, AHEAD = 2, 4
EPOCHS, ROUNDS = 2, 5
KEPT_PERCENT = 90.0
# A step that no loader keeps up with shows a loader's own pace. The search goes from so much of that
# to so much, and to so many times as much again while the loader does not keep up.
NO_STEP_S, QUICK_STEP_S = 0.001, 0.02
FROM, TO, LONGER = 0.7, 1.1, 2.0
MOST_S = 240

# What DLIO returns for a sample, in bytes; 0: as much as the file has.
CASES = {"resized": 2_097_152, "whole": 0}
LOADERS = {
    "torch": {"data_loader": "pytorch"},
    "DALI": {"data_loader": "dali"},
    "ringfeed": {
        "data_loader": "pytorch",
        "data_loader_classname": "studies.dlio_loader.RingfeedLoader",
        "data_loader_sampler": "index",
    },
}
PACKAGES = {"torch": "torch", "DALI": "nvidia.dali", "ringfeed": "ringfeed"}
DISTRIBUTIONS = (
    *("dlio_benchmark", "torch", "mpi4py", "hydra-core"),
    *("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110"),
)


class DlioError(RuntimeError):
    """DLIO did not end well; the text is its last line."""


@dataclass
class Search:
    """The steps between which a loader ceases to keep up, halved once the longer one was kept."""

    low_s: float = 0.0
    high_s: float = 0.0
    own_s: float = 0.0
    with_first_s: float = 0.0
    kept_s: list[float] = field(default_factory=list)
    fell_s: list[float] = field(default_factory=list)

    def next_step(self) -> float:
        """Return the step of the next run, in seconds."""
        if not self.own_s:
            return NO_STEP_S
        return math.sqrt(self.low_s * self.high_s) if self.kept_s else self.high_s

    def learn(self, run: dict[str, Any]) -> None:
        """Take what a run showed: the first one shows the loader's own pace."""
        step_s = run["step_s"]
        if not self.own_s:
            self.own_s, self.with_first_s = run["batch_s"], run["batch_with_first_s"]
            self.low_s, self.high_s = FROM * self.own_s, TO * self.own_s
        elif run["au"] >= KEPT_PERCENT:
            self.high_s = step_s
            self.kept_s.append(step_s)
        else:
            self.low_s = step_s
            self.fell_s.append(step_s)
            if not self.kept_s:
                self.high_s = LONGER * step_s


def installed(package: str) -> bool:
    """Whether a package is there, or a package inside another."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def commit_of_dlio() -> str:
    """Return the commit that DLIO was installed from: its version stays 2.0.0. "" if pip had none."""
    try:
        origin = distribution("dlio_benchmark").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return json.loads(origin or "{}").get("vcs_info", {}).get("commit_id", "")[:12]


def run_dlio(folder: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Run DLIO in a fresh process, which cannot outstay its time, with all that it started."""
    given = [
        f"++workload.{part}.{name}={value}"
        for part, values in settings.items()
        for name, value in values.items()
    ]
    command = [sys.executable, "-m", "dlio_benchmark.main", "workload=unet3d_a100"]
    command += [f"hydra.run.dir={folder}", "hydra.output_subdir=null", *given]
    paths = [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "CUDA_VISIBLE_DEVICES": "",
        "HYDRA_FULL_ERROR": "1",  # or its last line is advice, not the error
    }
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(  # noqa: S603 - DLIO
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(MOST_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.wait() != 0:
            said.seek(0)
            lines = said.read().strip().splitlines()
            raise DlioError(lines[-1] if lines else f"no end within {MOST_S} s")


def write_files(folder: Path, count: int, size: int) -> None:
    """Have DLIO write the files."""
    dataset = {"data_folder": folder, "num_files_train": count, "record_length_bytes": size}
    workflow = {"generate_data": True, "train": False, "checkpoint": False}
    with tempfile.TemporaryDirectory() as made:
        run_dlio(
            Path(made),
            {
                "dataset": dataset | {"record_length_bytes_stdev": 0},
                "workflow": workflow,
                "output": {"folder": made},
            },
        )
    os.sync()  # or the kernel writes them while the first runs are timed


def seconds_to_read(folder: Path) -> float:
    """Return the seconds in which this process reads one file as DLIO's reader does."""
    took = []
    for path in sorted(folder.glob("train/*.npz"))[:4]:
        began = time.perf_counter()
        np.load(path, allow_pickle=True)["x"]
        took.append(time.perf_counter() - began)
    return round(median(took), 4)


def measured(
    loader: str, case: str, step_s: float, folder: Path, asked: argparse.Namespace
) -> dict[str, Any]:
    """Run DLIO with one loader and one step; return its AU, and what else the run says."""
    count, size, epochs = (
        (QUICK_FILES, QUICK_FILE_SIZE, 1) if asked.quick else (FILES, FILE_SIZE, EPOCHS)
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    with tempfile.TemporaryDirectory() as made:
        run_dlio(
            Path(made),
            {
                "dataset": {
                    "data_folder": folder,
                    "num_files_train": count,
                    "record_length_bytes": size,
                    "record_length_bytes_stdev": 0,
                    "record_length_bytes_resize": CASES[case] or size,
                },
                "reader": {
                    "batch_size": asked.batch_size,
                    "read_threads": WORKERS,
                    "prefetch_size": AHEAD,
                    "pin_memory": False,
                    **LOADERS[loader],
                },
                "train": {"epochs": epochs, "computation_time": step_s},
                "workflow": {"generate_data": False, "train": True, "checkpoint": False},
                "output": {"folder": made},
            },
        )
        summary = json.loads((Path(made) / "summary.json").read_text())["metric"]
        output = json.loads((Path(made) / "0_output.json").read_text())
    steps = [output[str(epoch)]["proc"]["block1"] for epoch in range(1, epochs + 1)]
    samples = sum(map(len, steps)) * asked.batch_size
    if samples != (wanted := epochs * (count // asked.batch_size) * asked.batch_size):
        raise DlioError(f"{samples} samples, not {wanted}")
    last = steps[-1]
    aus = [round(au, 2) for au in summary["train_au_percentage"]]
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before
    return {
        "step_s": round(step_s, 5),
        "au": aus[-1],
        "au_of_epochs": aus,
        "samples": samples,
        "batch_s": round(fmean(last[1:]), 5),
        "batch_with_first_s": round(fmean(last), 5),
        "disk_mb": round(blocks * 512 / 1e6, 1),
    }


def table(searches: dict[tuple[str, str], Search], read_s: float, batch_size: int) -> str:
    """Return a line for each case and loader, in milliseconds."""
    read_ms = read_s / WORKERS * batch_size * 1e3
    columns = ("a batch, no step", "with the first", "AU >= 90 % at", "AU < 90 % at")
    lines = [
        f"milliseconds; {read_ms:,.1f} a batch if two processes read and do nothing else",
        f"{'':22}" + "".join(f"{column:>18}" for column in columns),
    ]
    for (case, loader), search in searches.items():
        found = (search.own_s, search.with_first_s, min(search.kept_s, default=None))
        cells = (*found, max(search.fell_s, default=None))
        shown = ("-" if cell is None else f"{cell * 1e3:,.1f}" for cell in cells)
        lines.append(f"{case:10}{loader:12}" + "".join(f"{cell:>18}" for cell in shown))
    return "\n".join(lines)


def main() -> None:
    """Let all loaders take turns in each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small files, one run of each loader")
    parser.add_argument("--loader", nargs="+", choices=[*LOADERS], help="these alone")
    parser.add_argument("--case", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"halvings ({ROUNDS})")
    parser.add_argument("--folder", type=Path, help="where the files go, and are removed again")
    parser.add_argument("--out", type=Path, help="where the lines go besides")
    asked = parser.parse_args()
    names = [name for name in asked.loader or LOADERS if installed(PACKAGES[name])]
    facts = conditions(quick=asked.quick) | {
        "versions": versions(tuple((name, "") for name in DISTRIBUTIONS)),
        "dlio_commit": commit_of_dlio(),
        "batch_size": asked.batch_size,
    }
    failed = False
    searches = {(case, name): Search() for case in asked.case for name in names}
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder = Path(made)
        write_files(
            folder,
            QUICK_FILES if asked.quick else FILES,
            QUICK_FILE_SIZE if asked.quick else FILE_SIZE,
        )
        facts["read_s"] = seconds_to_read(folder)
        for case in asked.case:
            for number in range(1 if asked.quick else 1 + asked.rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    search = searches[case, name]
                    step_s = QUICK_STEP_S if asked.quick else search.next_step()
                    line = facts | {"case": case, "loader": name, "load": os.getloadavg()[0]}
                    began = time.perf_counter()
                    try:
                        line |= measured(name, case, step_s, folder, asked)
                        search.learn(line)
                    except DlioError as error:
                        failed = True
                        line |= {"step_s": step_s, "error": str(error)}
                    line["run_s"] = round(time.perf_counter() - began, 1)
                    print(json.dumps(line), flush=True)
                    if asked.out:
                        with asked.out.open("a") as file:
                            file.write(json.dumps(line) + "\n")
    print(table(searches, facts["read_s"], asked.batch_size))
    sys.exit(failed)


if __name__ == "__main__":
    main()

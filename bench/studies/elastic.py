"""Runs that stop and go on with other ranks, batch sizes or after a kill: `python bench/studies/elastic.py`.

An epoch of 1,728 shuffled numbers, 48 in a global batch of all ranks, is cut once or more. Each rank
is a process, and goes on from the states that the ranks before it saved. The field calls it
*elastic determinism* when the same global batches come whatever the number of ranks.

    same batches    global batches equal those of one rank that was never stopped
    each once       the numbers of the whole epoch: each comes once
    state           bytes of a rank's state as a pickle
    next batch      seconds from the loading of the state, imports aside, to the first batch

Contenders: ringfeed's `Loader` with `Shard`; Grain's `ElasticIterator`; Zephon with 12 lanes, each
rank with its share of them; torchdata's `StatefulDataLoader` with its `StatefulDistributedSampler`,
which does not promise other ranks. Those whose package is missing are left out. Each case leaves one
JSON line; a table comes last.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import workers
from harness.turns import installed, parser_of, take_turns
from report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUMBERS, GLOBAL, SEED, WORKERS, LANES = 1728, 48, 7, 2, 12
MOST_S = 120
CUTS, QUICK_CUTS = (1, 7, 18), (7,)


class Numbers:
    """Samples that are their own numbers; each takes a millisecond."""

    def __len__(self) -> int:
        return NUMBERS

    def __getitem__(self, index: int) -> np.int64:
        time.sleep(1e-3)
        return np.int64(index)


class Leg(NamedTuple):
    """A part of a run: so many ranks, so many steps (None: to the end), the size of a global batch."""

    ranks: int
    steps: int | None
    size: int = GLOBAL
    kills: bool = False  # one worker of rank 0, after its second batch


class Opened(NamedTuple):
    """A loader of one rank: what begins it, how its state is taken, and how one is loaded."""

    batches: Callable[[], Iterator[list[int]]]
    state: Callable[[], Any]
    load: Callable[[Any], None]


def of_ringfeed(rank: int, leg: Leg, _folder: Path) -> Opened:
    """Open `ringfeed.Loader`."""
    import ringfeed  # noqa: PLC0415

    loader = ringfeed.Loader(
        Numbers(),
        batch_size=leg.size // leg.ranks,
        shuffle=True,
        seed=SEED,
        shard=ringfeed.Shard(rank, leg.ranks),
        workers=WORKERS,
    )
    return Opened(
        lambda: (batch.tolist() for batch in loader), loader.state_dict, loader.load_state_dict
    )


def of_grain(rank: int, leg: Leg, _folder: Path) -> Opened:
    """Open Grain's elastic iterator."""
    import grain  # noqa: PLC0415
    from absl import flags  # noqa: PLC0415

    flags.FLAGS.mark_as_parsed()
    walk = iter(
        grain.experimental.ElasticIterator(
            grain.MapDataset.source(Numbers()).seed(SEED).shuffle(),
            leg.size,
            grain.sharding.ShardOptions(rank, leg.ranks, drop_remainder=False),
            multiprocessing_options=grain.MultiprocessingOptions(WORKERS),
        )
    )
    return Opened(lambda: (batch.tolist() for batch in walk), walk.get_state, walk.set_state)


def of_zephon(rank: int, leg: Leg, folder: Path) -> Opened:
    """Open a pipeline of Zephon, whose ranks save their states together."""
    from zephon import InMemoryShard, Pipeline  # noqa: PLC0415
    from zephon.io import Dataset  # noqa: PLC0415
    from zephon.work import MixtureSpec, StaticMixtureWorkSource  # noqa: PLC0415

    each = NUMBERS // 18
    shards = {
        number: InMemoryShard([{"value": number * each + one} for one in range(each)])
        for number in range(18)
    }
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_dict("numbers", shards)],
        mixture=MixtureSpec({"numbers": 1.0}),
        chunk_size=LANES,
        seed=SEED,
        shuffle_within_shard=True,
        exhausted_policy="redistribute",
    )

    def slept(payload: Any) -> Any:
        time.sleep(1e-3)
        return payload

    pipeline = (
        Pipeline(source)
        .map_transform(slept, parallelism=WORKERS)
        .batch(microbatch_size=leg.size // LANES, drop_last=False)
        .options(
            world_size=leg.ranks,
            global_rank=rank,
            canonical_replicas=LANES,
            aggregate_dir=str(folder),
            run_id="elastic",
        )
    )

    def batches() -> Iterator[list[int]]:
        walk = iter(pipeline)
        while parts := [*islice(walk, LANES // leg.ranks)]:
            yield [record.payload["value"] for part in parts for record in part.records]

    return Opened(batches, pipeline.checkpoint, pipeline.restore)


def of_torchdata(rank: int, leg: Leg, _folder: Path) -> Opened:
    """Open torchdata's loader with a state, and its sampler for ranks."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: PLC0415

    dataset: Any = Numbers()
    loader: Any = StatefulDataLoader(
        dataset,
        batch_size=leg.size // leg.ranks,
        sampler=StatefulDistributedSampler(dataset, leg.ranks, rank, shuffle=True, seed=SEED),
        num_workers=WORKERS,
    )
    return Opened(
        lambda: (batch.tolist() for batch in loader), loader.state_dict, loader.load_state_dict
    )


CONTENDERS: dict[str, tuple[str, Callable[[int, Leg, Path], Opened]]] = {
    "ringfeed": ("ringfeed", of_ringfeed),
    "Grain": ("grain", of_grain),
    "Zephon": ("zephon", of_zephon),
    "torchdata": ("torchdata", of_torchdata),
}


def cases(cut: int) -> dict[str, list[Leg]]:
    """Return the runs with a first cut after so many steps."""
    return {
        "2 ranks": [Leg(2, cut), Leg(2, None)],
        "4 ranks, then 2": [Leg(4, cut), Leg(2, None)],
        "2 ranks, then 3": [Leg(2, cut), Leg(3, None)],
        "4, 2, 3, 1": [Leg(4, cut), Leg(2, 3), Leg(3, 4), Leg(1, None)],
        "batches of 48, then 36": [Leg(2, cut // 3 * 3 or 3), Leg(2, None, 36)],
        "a worker killed": [Leg(2, cut), Leg(2, None, kills=True)],
    }


def run_rank(name: str, rank: int, leg: Leg, folder: Path, state: Path | None) -> None:
    """Read one rank's part of a leg in this process; leave its batches and its state in the folder."""
    opened_by = CONTENDERS[name][1]
    importlib.import_module(CONTENDERS[name][0])
    began = time.perf_counter()
    opened = opened_by(rank, leg, folder)
    if state is not None:
        opened.load(pickle.loads(state.read_bytes()))  # noqa: S301 - of this study
    taken: list[list[int]] = []
    walk, next_s = opened.batches(), 0.0
    while leg.steps is None or len(taken) < leg.steps:
        batch = next(walk, None)
        if batch is None:
            break
        taken.append(batch)
        next_s = next_s or time.perf_counter() - began
        if leg.kills and not rank and len(taken) == 2:  # noqa: PLR2004
            for worker in workers(os.getpid())[:1]:
                os.kill(worker, signal.SIGKILL)
    saved = pickle.dumps(opened.state()) if leg.steps is not None else b""
    facts = {"batches": taken, "next_s": round(next_s, 3), "state_bytes": len(saved)}
    (folder / f"state-{rank}").write_bytes(saved)
    (folder / f"facts-{rank}").write_text(json.dumps(facts))


def run_leg(name: str, leg: Leg, folder: Path, before: Path | None) -> list[dict[str, Any]]:
    """Run all ranks of a leg at once; returns what each left. RuntimeError where one failed."""
    states = [] if before is None else sorted(before.glob("state-*"))
    processes = []
    for rank in range(leg.ranks):
        state = [str(states[min(rank, len(states) - 1)])] if states else []
        command = [sys.executable, __file__, "--one", name, "--rank", str(rank)]
        command += ["--leg", json.dumps(leg), "--folder", str(folder), "--state", *state]
        errors = (folder / f"errors-{rank}").open("wb")
        processes.append(
            subprocess.Popen(  # noqa: S603 - the bench's own file
                command, stdout=errors, stderr=errors, start_new_session=True
            )
        )
    until = time.monotonic() + MOST_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0.1))
        if process.poll() != 0:  # the others would wait for it
            until = time.monotonic()
    for process in processes:
        _end(process)
    found = []
    for rank, process in enumerate(processes):
        if process.returncode:
            if process.returncode == -signal.SIGKILL:
                raise RuntimeError("hangs")
            lines = (folder / f"errors-{rank}").read_text(errors="replace").splitlines()
            told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            raise RuntimeError(f"fails: {(told or lines)[-1]}")
        found.append(json.loads((folder / f"facts-{rank}").read_text()))
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all that it has left of its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_case(name: str, legs: list[Leg]) -> dict[str, Any]:
    """Run the legs one after another; returns global batches, and what the states took."""
    steps: list[list[int]] = []
    facts: dict[str, Any] = {"state_bytes": 0, "next_s": 0.0}
    with tempfile.TemporaryDirectory() as made:
        before = None
        for number, leg in enumerate(legs):
            folder = Path(made, str(number))
            folder.mkdir()
            ranks = run_leg(name, leg, folder, before)
            of_ranks = zip(*(one["batches"] for one in ranks), strict=True)
            steps += [sorted(chain(*parts)) for parts in of_ranks]
            facts["state_bytes"] = max(facts["state_bytes"], *(one["state_bytes"] for one in ranks))
            if before is not None:
                facts["next_s"] = max(facts["next_s"], *(one["next_s"] for one in ranks))
            before = folder
    return facts | {"steps": steps}


def judged(name: str, legs: list[Leg], uncut: list[list[int]]) -> dict[str, Any]:
    """Run a case and compare its global batches with those of a run that was never cut."""
    try:
        found = run_case(name, legs)
    except RuntimeError as error:
        return {"error": str(error)}
    except ValueError as error:  # ranks with different numbers of batches
        return {"error": f"ranks part: {error}"}
    steps = found.pop("steps")
    numbers = [*chain(*steps)]
    sizes = {leg.size for leg in legs}
    found |= {
        "same_batches": steps == uncut if len(sizes) == 1 else None,
        "lost": len({*range(NUMBERS)} - {*numbers}),
        "doubled": len(numbers) - len({*numbers}),
    }
    return {"figures": found}


def main() -> None:
    """Run all cases of all contenders."""
    parser = parser_of(__doc__, CONTENDERS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--leg", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        run_rank(*asked.one, asked.rank, Leg(*asked.leg), asked.folder, *asked.state or [None])
        sys.stdout.flush()
        os._exit(0)  # some rivals' threads do not end
    names = [name for name in asked.contender if installed([CONTENDERS[name][0]])]
    uncut = {name: run_case(name, [Leg(1, None)])["steps"] for name in names}
    cuts = [cases(cut) for cut in (QUICK_CUTS if asked.quick else CUTS)]
    asked.repetitions = 1
    records = take_turns(
        asked,
        {f"{case}, cut {number}": names for number, cut in enumerate(cuts) for case in cut},
        1,
        tuple(CONTENDERS[name][0] for name in names),
        lambda case, name: judged(name, _legs(cuts, case), uncut[name]),
    )
    print(table(records))


def _legs(cuts: list[dict[str, list[Leg]]], case: str) -> list[Leg]:
    name, _, number = case.rpartition(", cut ")
    return cuts[int(number)][name]


def table(records: list[dict[str, Any]]) -> str:
    """Return a row for each case, whatever the cut, and what the states took."""
    had: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for record in records:
        of_case = had.setdefault(record["case"].rpartition(", cut ")[0], {})
        of_case.setdefault(record["contender"], []).append(record)
    names = list(dict.fromkeys(record["contender"] for record in records))
    rows = [[case, *(_verdict(by_name[name]) for name in names)] for case, by_name in had.items()]
    for key, show in (("state_bytes", "{:,.0f}"), ("next_s", "{:.2f}")):
        figures = {
            name: [
                record["figures"][key]
                for record in records
                if record["contender"] == name and "figures" in record
            ]
            for name in names
        }
        rows.append(
            [key, *(show.format(median(figures[name])) if figures[name] else "-" for name in names)]
        )
    return report.table(["", *names], rows)


def _verdict(records: list[dict[str, Any]]) -> str:
    if errors := {one["error"] for one in records if "error" in one}:
        return textwrap.shorten(min(errors), 60, placeholder=" …")
    had = [one["figures"] for one in records]
    lost, doubled = sum(one["lost"] for one in had), sum(one["doubled"] for one in had)
    if lost or doubled:
        return f"lost {lost}, doubled {doubled}"
    kept = {one["same_batches"] for one in had}
    return (
        "each once, other batches"
        if False in kept
        else "each once" + ", same batches" * (True in kept)
    )


if __name__ == "__main__":
    main()

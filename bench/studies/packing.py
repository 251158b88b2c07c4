"""Documents of unknown lengths, packed while they are read: `python bench/studies/packing.py`.

An epoch of 100,000 documents, whose lengths are lognormal, is made into rows of 2,048 elements, 48
of them in a global batch of all ranks. A function makes the elements of a document as it is read,
so that no length is known before. Each rank is a process.

    padding         part of all elements that no document fills
    rate            documents per second of the run that was never cut, of one rank, its start aside
    state           bytes of a rank's state as a pickle
    next batch      seconds from the loading of a state, imports aside, to the first batch
    each once       elements that are lost or doubled in the epoch
    same batches    whether global batches equal those of the run that was never cut

Contenders: ringfeed's `Pack` without lengths; Zephon's `pack_flat` with 12 lanes, each rank with
its share of them. Each case leaves one JSON line; a table comes last.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import workers
from harness.turns import installed, parser_of, take_turns
from report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

COUNT, QUICK_COUNT = 100_000, 10_000
ROW, GLOBAL, SEED, WORKERS, LANES, SHARDS = 2048, 48, 7, 2, 12, 24
MOST_S = 560


class Leg(NamedTuple):
    """A part of a run: so many ranks, and so many steps (None: to the end)."""

    ranks: int
    steps: int | None
    kills: bool = False  # one worker of rank 0, after its second batch


class Opened(NamedTuple):
    """A loader of one rank: its batches of rows, with -1 for padding, its state, its loading."""

    batches: Callable[[], Iterator[NDArray[np.int32]]]
    state: Callable[[], Any]
    load: Callable[[Any], None]


def lengths(count: int) -> NDArray[np.int64]:
    """Return the length of each document."""
    drawn = np.random.default_rng(SEED).lognormal(6, 1, count)
    return np.clip(drawn.astype(np.int64), 1, ROW)


class Documents:
    """Documents by their numbers."""

    def __init__(self, count: int) -> None:
        self.lengths = lengths(count)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return np.full(self.lengths[index], index, np.int32)


def of_ringfeed(count: int, rank: int, leg: Leg, _folder: Path) -> Opened:
    """Open `ringfeed.Loader` of a `Pack`."""
    import ringfeed  # noqa: PLC0415

    loader = ringfeed.Loader(
        ringfeed.datasets.Pack(Documents(count), max_length=ROW),
        batch_size=GLOBAL // leg.ranks,
        shuffle=True,
        seed=SEED,
        shard=ringfeed.Shard(rank, leg.ranks, "keep"),
        workers=WORKERS,
    )

    def batches() -> Iterator[NDArray[np.int32]]:
        for batch in loader:
            yield np.where(batch["segment_ids"] > 0, batch["tokens"], np.int32(-1))

    return Opened(batches, loader.state_dict, loader.load_state_dict)


def of_zephon(count: int, rank: int, leg: Leg, folder: Path) -> Opened:
    """Open a pipeline of Zephon, whose ranks save their states together."""
    from zephon import InMemoryShard, Pipeline  # noqa: PLC0415
    from zephon.io import Dataset  # noqa: PLC0415
    from zephon.work import MixtureSpec, StaticMixtureWorkSource  # noqa: PLC0415

    documents = Documents(count)
    parts = np.array_split(np.arange(count), SHARDS)
    shards = {
        number: InMemoryShard([{"number": int(one)} for one in part])
        for number, part in enumerate(parts)
    }
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_dict("documents", shards)],
        mixture=MixtureSpec({"documents": 1.0}),
        chunk_size=256,
        seed=SEED,
        shuffle_within_shard=True,
        exhausted_policy="redistribute",
    )
    pipeline = (
        Pipeline(source)
        .map_transform(
            lambda payload: {"tokens": documents[payload["number"]]}, parallelism=WORKERS
        )
        .pack_flat(max_length=ROW, num_bins=64, pad_token_id=-1, tokens_field="tokens")
        .batch(microbatch_size=GLOBAL // LANES, drop_last=False)
        .options(
            world_size=leg.ranks,
            global_rank=rank,
            canonical_replicas=LANES,
            aggregate_dir=str(folder),
            run_id="packing",
        )
    )

    def batches() -> Iterator[NDArray[np.int32]]:
        walk = iter(pipeline)
        while parts := [*islice(walk, LANES // leg.ranks)]:
            rows = chain(*(part.records for part in parts))
            yield np.stack([np.asarray(row.payload["tokens"], np.int32) for row in rows])

    return Opened(batches, pipeline.checkpoint, pipeline.restore)


CONTENDERS: dict[str, tuple[str, Callable[[int, int, Leg, Path], Opened]]] = {
    "ringfeed": ("ringfeed", of_ringfeed),
    "Zephon": ("zephon", of_zephon),
}


def cases(steps: int) -> dict[str, list[Leg]]:
    """Return the runs that are cut, each leg of so many steps."""
    return {
        "4, 2, 3, 1 ranks": [Leg(4, steps), Leg(2, steps), Leg(3, steps), Leg(1, None)],
        "a worker killed": [Leg(1, steps), Leg(1, None, kills=True)],
    }


def run_rank(asked: argparse.Namespace) -> None:
    """Read one rank's part of a leg in this process; leave what came, and its state."""
    name, count, rank, leg = asked.one[0], int(asked.one[1]), asked.rank, Leg(*asked.leg)
    folder, state = asked.folder, [*asked.state, None][0]
    importlib.import_module(CONTENDERS[name][0])
    began = time.perf_counter()
    opened = CONTENDERS[name][1](count, rank, leg, folder)
    if state is not None:
        opened.load(pickle.loads(state.read_bytes()))  # noqa: S301 - of this study
    had, rows, steps = np.zeros(count + 1, np.int64), list[list[int]](), 0
    walk, next_s = opened.batches(), 0.0
    while leg.steps is None or steps < leg.steps:
        batch = next(walk, None)
        if batch is None:
            break
        next_s = next_s or time.perf_counter() - began
        had += np.bincount(batch.ravel() + 1, minlength=count + 1)
        rows.append([zlib.crc32(row.tobytes()) for row in batch])
        steps += 1
        if leg.kills and not rank and steps == 2:  # noqa: PLR2004
            for worker in workers(os.getpid())[:1]:
                os.kill(worker, signal.SIGKILL)
    took_s = time.perf_counter() - began - next_s
    saved = pickle.dumps(opened.state()) if leg.steps is not None else b""
    facts = {"rows": rows, "next_s": next_s, "took_s": took_s, "state_bytes": len(saved)}
    (folder / f"state-{rank}").write_bytes(saved)
    np.save(folder / f"had-{rank}.npy", had)
    (folder / f"facts-{rank}").write_text(json.dumps(facts))


def run_leg(
    name: str, count: int, leg: Leg, folder: Path, before: Path | None
) -> list[dict[str, Any]]:
    """Run all ranks of a leg at once; returns what each left. RuntimeError where one failed."""
    states = [] if before is None else sorted(before.glob("state-*"))
    processes = []
    for rank in range(leg.ranks):
        state = [str(states[min(rank, len(states) - 1)])] if states else []
        command = [sys.executable, __file__, "--one", name, str(count), "--rank", str(rank)]
        command += ["--leg", json.dumps(leg), "--folder", str(folder), "--state", *state]
        with (folder / f"errors-{rank}").open("wb") as errors:
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = []
    for rank, process in enumerate(processes):
        if process.returncode:
            lines = (folder / f"errors-{rank}").read_text(errors="replace").splitlines()
            hangs = process.returncode == -signal.SIGKILL
            raise RuntimeError("hangs" if hangs else f"fails: {[*lines, ''][-2][:80]}")
        facts = json.loads((folder / f"facts-{rank}").read_text())
        found.append(facts | {"had": np.load(folder / f"had-{rank}.npy")})
    return found


def run_case(name: str, count: int, legs: list[Leg]) -> dict[str, Any]:
    """Run the legs one after another; returns the global batches, and what was measured."""
    steps: list[list[int]] = []
    had = np.zeros(count + 1, np.int64)
    facts: dict[str, Any] = {"state_bytes": 0, "next_s": 0.0}
    with tempfile.TemporaryDirectory() as made:
        before = None
        for number, leg in enumerate(legs):
            folder = Path(made, str(number))
            folder.mkdir()
            ranks = run_leg(name, count, leg, folder, before)
            had += sum(one["had"] for one in ranks)
            steps += [
                sorted(chain(*parts)) for parts in zip(*(r["rows"] for r in ranks), strict=True)
            ]
            facts["state_bytes"] = max(facts["state_bytes"], *(one["state_bytes"] for one in ranks))
            if before is not None:
                facts["next_s"] = max(facts["next_s"], *(one["next_s"] for one in ranks))
            before = folder
    missing = lengths(count) - had[1:]
    facts |= {
        "padding": float(had[0] / had.sum()),
        "rate": count / ranks[0]["took_s"],
        "lost": int(missing.clip(0).sum()),
        "doubled": int((-missing).clip(0).sum()),
    }
    return facts | {"steps": steps}


def judged(name: str, count: int, legs: list[Leg], uncut: list[list[int]] | None) -> dict[str, Any]:
    """Run a case and compare its global batches with those of a run that was never cut."""
    try:
        found = run_case(name, count, legs)
    except RuntimeError as error:
        return {"error": str(error)}
    except ValueError as error:  # ranks with different numbers of batches
        return {"error": f"ranks part: {error}"}
    steps = found.pop("steps")
    if uncut is None:
        return {"figures": found, "steps": steps}
    return {"figures": found | {"same_batches": steps == uncut}}


def main() -> None:
    """Run all cases of all contenders."""
    parser = parser_of(__doc__, CONTENDERS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--leg", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        run_rank(asked)
        sys.stdout.flush()
        os._exit(0)  # some rivals' threads do not end
    names = [name for name in asked.contender if installed([CONTENDERS[name][0]])]
    count = QUICK_COUNT if asked.quick else COUNT
    cut = cases(count // 1000)
    uncut: dict[str, list[list[int]]] = {}

    def run(case: str, name: str) -> dict[str, Any]:
        found = judged(name, count, cut.get(case, [Leg(1, None)]), uncut.get(name))
        if "steps" in found:
            uncut[name] = found.pop("steps")
        return found

    packages = tuple(CONTENDERS[name][0] for name in names)
    asked.repetitions = 1
    records = take_turns(asked, dict.fromkeys(["never cut", *cut], names), 1, packages, run)
    print(table(records))


SHOWN: dict[str, Callable[[Any], str]] = {
    "padding": "{:.2%}".format,
    "rate": "{:,.0f}".format,
    "state_bytes": "{:,}".format,
    "next_s": "{:.2f}".format,
    "lost": "{:,}".format,
    "doubled": "{:,}".format,
    "same_batches": str,
}


def table(records: list[dict[str, Any]]) -> str:
    """Return a row for each case and contender."""
    rows = []
    for record in records:
        had = record.get("figures", {})
        shown = [show(had[name]) if name in had else "-" for name, show in SHOWN.items()]
        rows.append([record["case"], record["contender"], *shown, record.get("error", "")])
    return report.table(["case", "", *SHOWN, ""], rows)


if __name__ == "__main__":
    main()

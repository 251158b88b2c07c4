"""Ranks of a run that is cut, as processes: those of a leg go on from the states that the ones before it left.

study ── run_legs ──▶ rank 0, rank 1, ...     `read_rank` of the same script, in fresh processes
                          │ a pickle each: what was seen of each batch, and the state
                          ▼
                      the next leg, of as many ranks as it has
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.proctree import workers
from harness.turns import parser_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

GLOBAL, SEED, WORKERS, LANES = 48, 7, 2, 12
KILLS_AT = 2  # batches of rank 0


class Leg(NamedTuple):
    """A part of a run: so many ranks, so many steps (None: to the end), the size of a global batch."""

    ranks: int
    steps: int | None
    size: int = GLOBAL
    kills: bool = False  # one worker of rank 0, after its second batch


class Opened(NamedTuple):
    """A loader of one rank: what begins it, how its state is taken, and how one is loaded."""

    batches: Callable[[], Iterator[Any]]
    state: Callable[[], Any]
    load: Callable[[Any], None]


def parser_of_ranks(about: str | None, contenders: Iterable[str]) -> Any:
    """The command line of a study of ranks, and of its fresh processes."""
    parser = parser_of(about, contenders)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--leg", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    return parser


def zephon(
    numbers: Iterable[Iterable[int]],
    chunk: int,
    add: Callable[[Any], Any],
    leg: Leg,
    **options: Any,
) -> Opened:
    """Open a pipeline of Zephon over shards of numbers; ``add`` its steps. Ranks save their states together.

    A batch is those of a rank's lanes, each a list of records.
    """
    from zephon import InMemoryShard, Pipeline  # noqa: PLC0415 - the contender needs it
    from zephon.io import Dataset  # noqa: PLC0415
    from zephon.work import MixtureSpec, StaticMixtureWorkSource  # noqa: PLC0415

    shards = {
        number: InMemoryShard([{"number": int(one)} for one in part])
        for number, part in enumerate(numbers)
    }
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_dict("numbers", shards)],
        mixture=MixtureSpec({"numbers": 1.0}),
        chunk_size=chunk,
        seed=SEED,
        shuffle_within_shard=True,
        exhausted_policy="redistribute",
    )
    pipeline = add(Pipeline(source)).batch(microbatch_size=leg.size // LANES, drop_last=False)
    pipeline = pipeline.options(
        world_size=leg.ranks, canonical_replicas=LANES, run_id="cut", **options
    )

    def batches() -> Iterator[list[Any]]:
        walk, lanes = iter(pipeline), LANES // leg.ranks
        while parts := [part for _, part in zip(range(lanes), walk, strict=False)]:
            yield [record.payload for part in parts for record in part.records]

    return Opened(batches, pipeline.checkpoint, pipeline.restore)


# ---- a rank, in a process of its own ----


def read_rank(
    asked: argparse.Namespace,
    open_one: Callable[[int, Leg, Path], Opened],
    see: Callable[[Any], list[int]],
    **more: Any,
) -> None:
    """Read one rank's part of a leg; leave what ``see`` returns of each batch, ``more``, and its state."""
    rank, leg, folder = asked.rank, Leg(*asked.leg), asked.folder
    began = time.perf_counter()
    opened = open_one(rank, leg, folder)
    if asked.state is not None:
        opened.load(pickle.loads(asked.state.read_bytes()))  # noqa: S301 - of this study
    seen: list[list[int]] = []
    walk, next_s = opened.batches(), 0.0
    while leg.steps is None or len(seen) < leg.steps:
        batch = next(walk, None)
        if batch is None:
            break
        next_s = next_s or time.perf_counter() - began
        seen.append(see(batch))
        if leg.kills and not rank and len(seen) == KILLS_AT:
            for worker in workers(os.getpid())[:1]:
                os.kill(worker, signal.SIGKILL)
    facts = {"seen": seen, "next_s": next_s, "took_s": time.perf_counter() - began - next_s}
    saved = pickle.dumps(opened.state()) if leg.steps is not None else b""
    (folder / f"state-{rank}").write_bytes(saved)
    found = pickle.dumps(facts | {"state_bytes": len(saved)} | more)
    (folder / f"facts-{rank}").write_bytes(found)
    sys.stdout.flush()
    os._exit(0)  # some rivals' threads do not end


# ---- all of them ----


def _run_leg(
    command: list[str], leg: Leg, folder: Path, before: Path | None, most_s: float
) -> list[dict[str, Any]]:
    """Run all ranks of a leg at once; returns what each left. RuntimeError where one failed."""
    states = [] if before is None else sorted(before.glob("state-*"))
    processes = []
    for rank in range(leg.ranks):
        words = [*command, "--rank", str(rank), "--leg", json.dumps(leg), "--folder", str(folder)]
        if states:
            words += ["--state", str(states[min(rank, len(states) - 1)])]
        with (folder / f"errors-{rank}").open("wb") as errors:
            processes.append(
                subprocess.Popen(  # noqa: S603 - the bench's own file
                    words, stdout=errors, stderr=errors, start_new_session=True
                )
            )
    until = time.monotonic() + most_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0.1))
        if process.poll() != 0:  # the others would wait for it
            until = time.monotonic()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has left of its own session
        process.wait()
    for rank, process in enumerate(processes):
        if process.returncode == -signal.SIGKILL:
            raise RuntimeError("hangs")
        if process.returncode:
            lines = (folder / f"errors-{rank}").read_text(errors="replace").splitlines()
            told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            raise RuntimeError(f"fails: {(told or lines or ['without a word'])[-1][:120]}")
    return [
        pickle.loads((folder / f"facts-{rank}").read_bytes())  # noqa: S301 - of this study
        for rank in range(leg.ranks)
    ]


def run_legs(command: list[str], legs: list[Leg], most_s: float) -> dict[str, Any]:
    """Run the legs one after another.

    Returns ``steps``, what was seen of each global batch, sorted; ``ranks``, what each rank of each
    leg has left; and the largest state and wait for a next batch. Or an ``error``.
    """
    steps: list[list[int]] = []
    every: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as made:
        before = None
        for number, leg in enumerate(legs):
            folder = Path(made, str(number))
            folder.mkdir()
            try:
                every.append(_run_leg([sys.executable, *command], leg, folder, before, most_s))
                of_ranks = zip(*(one["seen"] for one in every[-1]), strict=True)
                steps += [sorted(chain(*parts)) for parts in of_ranks]
            except RuntimeError as error:
                return {"error": str(error)}
            except ValueError as error:  # ranks with different numbers of batches
                return {"error": f"ranks part: {error}"}
            before = folder
    resumed = [one for ranks in every[1:] for one in ranks]
    return {
        "steps": steps,
        "ranks": every,
        "state_bytes": max(one["state_bytes"] for ranks in every for one in ranks),
        "next_s": round(max((one["next_s"] for one in resumed), default=0.0), 3),
    }

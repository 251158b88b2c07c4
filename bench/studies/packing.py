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

import importlib
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.ranks import SEED, WORKERS, Leg, Opened, parser_of_ranks, read_rank, run_legs, zephon
from harness.turns import installed, take_turns
from report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

COUNT, QUICK_COUNT = 100_000, 10_000
ROW, SHARDS = 2048, 24
MOST_S = 560


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
        batch_size=leg.size // leg.ranks,
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
    """Open a pipeline of Zephon."""
    documents = Documents(count)
    opened = zephon(
        np.array_split(np.arange(count), SHARDS),
        256,
        lambda pipeline: pipeline.map_transform(
            lambda payload: {"tokens": documents[payload["number"]]}, parallelism=WORKERS
        ).pack_flat(max_length=ROW, num_bins=64, pad_token_id=-1, tokens_field="tokens"),
        leg,
        global_rank=rank,
        aggregate_dir=str(folder),
    )

    def batches() -> Iterator[NDArray[np.int32]]:
        for batch in opened.batches():
            yield np.stack([np.asarray(payload["tokens"], np.int32) for payload in batch])

    return opened._replace(batches=batches)


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


def judged(name: str, count: int, legs: list[Leg], uncut: list[list[int]] | None) -> dict[str, Any]:
    """Run a case and compare its global batches with those of a run that was never cut."""
    found = run_legs([__file__, "--one", name, str(count)], legs, MOST_S)
    if "error" in found:
        return found
    steps, ranks = found.pop("steps"), found.pop("ranks")
    had = sum(one["had"] for of_leg in ranks for one in of_leg)
    missing = lengths(count) - had[1:]
    found |= {
        "padding": float(had[0] / had.sum()),
        "lost": int(missing.clip(0).sum()),
        "doubled": int((-missing).clip(0).sum()),
    }
    if uncut is None:
        return {"figures": found | {"rate": count / ranks[0][0]["took_s"]}, "steps": steps}
    return {"figures": found | {"same_batches": steps == uncut}}


def main() -> None:
    """Run all cases of all contenders."""
    asked = parser_of_ranks(__doc__, CONTENDERS).parse_args()
    if asked.one:
        name, count = asked.one[0], int(asked.one[1])
        package, open_one = CONTENDERS[name]
        importlib.import_module(package)
        had = np.zeros(count + 1, np.int64)

        def see(batch: NDArray[np.int32]) -> list[int]:
            had[:] += np.bincount(batch.ravel() + 1, minlength=count + 1)
            return [zlib.crc32(row.tobytes()) for row in batch]

        read_rank(asked, partial(open_one, count), see, had=had)
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

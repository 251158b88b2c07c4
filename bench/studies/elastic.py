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

import importlib
import sys
import textwrap
import time
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.ranks import SEED, WORKERS, Leg, Opened, parser_of_ranks, read_rank, run_legs, zephon
from harness.turns import installed, take_turns
from report import report

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = 1728
MOST_S = 120
CUTS, QUICK_CUTS = (1, 7, 18), (7,)


class Numbers:
    """Samples that are their own numbers; each takes a millisecond."""

    def __len__(self) -> int:
        return NUMBERS

    def __getitem__(self, index: int) -> np.int64:
        time.sleep(1e-3)
        return np.int64(index)


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
    """Open a pipeline of Zephon."""

    def slept(payload: Any) -> Any:
        time.sleep(1e-3)
        return payload

    opened = zephon(
        np.arange(NUMBERS).reshape(18, -1),
        12,
        lambda pipeline: pipeline.map_transform(slept, parallelism=WORKERS),
        leg,
        global_rank=rank,
        aggregate_dir=str(folder),
    )
    return opened._replace(
        batches=lambda: ([one["number"] for one in batch] for batch in opened.batches())
    )


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


def judged(name: str, legs: list[Leg], uncut: list[list[int]] | None) -> dict[str, Any]:
    """Run a case and compare its global batches with those of a run that was never cut."""
    found = run_legs([__file__, "--one", name], legs, MOST_S)
    if "error" in found or uncut is None:
        return found
    steps, _ = found.pop("steps"), found.pop("ranks")
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
    asked = parser_of_ranks(__doc__, CONTENDERS).parse_args()
    if asked.one:
        package, open_one = CONTENDERS[asked.one[0]]
        importlib.import_module(package)
        read_rank(asked, open_one, list)
    names = [name for name in asked.contender if installed([CONTENDERS[name][0]])]
    uncut = {name: judged(name, [Leg(1, None)], None)["steps"] for name in names}
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

"""One hash for each order, wherever a run of it is cut, and whatever it goes on with.

    python tests/support/resumes.py                                   the whole product
    python tests/support/resumes.py --orders mix window --every 40    some orders, and fewer cuts

An order's run has two epochs, whose samples draw from `ringfeed.rng`. It is read with each number
of workers and each way to start them:

    uncut      from its start to its end, with a state at every tenth batch: the same states everywhere
    cut        from each of these states to the end
    relay      ten batches in each of many new loaders, each of which goes on where the last one stopped; once more
               with other workers in each
    ranks      from each of these states on 4 ranks, then on 2, then on 3, by global batches
    sizes      from each of these states with other batch sizes

Each state goes through JSON, is loaded, and must be returned as it was. Rows are hashed in the
order in which they come, so that each sample comes once, in its place, with its own random numbers.
A line says how many runs gave an order's hash; a second hash, or another state, makes the status 1,
and the line says which run gave it. A batch_sampler and iterables have no global batches, so they
have no ranks, and Buckets have others on each number of ranks; the lists of a batch_sampler, and
the turns of several iterables, have no other batch size.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Rows = list[bytes]

LENGTH = 251
ROWS = 4
EPOCHS = 2
EVERY = 10
WORLDS = (4, 2, 3)
SIZES = (1, 7, 64, 300)


class Augmented:
    """Samples that differ in each epoch, by random numbers of their own."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "noise": ringfeed.rng().random(3)}


class Sequences(Augmented):
    """The same, of several elements each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = ringfeed.rng().random((SPANS[index], 2))
        return {"index": np.full(SPANS[index], index), "noise": noise}


def formed(size: int, rng: Any) -> dict[str, Any]:
    """Return leaves of each form, of a length that is drawn."""
    return {
        "ragged": rng.random((size, 2)),
        "padded": rng.random(size),
        "masked": rng.random((size, 1)),
        "text": "é" * size,
        "bytes": rng.bytes(size),
    }


FORMED = {
    "index": ringfeed.Array((), "int64"),
    "ragged": ringfeed.Array((None, 2), "float64", max_shape=(9, 2), form="ragged"),
    "padded": ringfeed.Array((None,), "float64", max_shape=(9,), form="pad", lengths=True),
    "masked": ringfeed.Array((None, 1), "float64", max_shape=(9, 1), form="pad", mask=True),
    "text": ringfeed.Text(18),
    "bytes": ringfeed.Bytes(9),
}


class Formed(Augmented):
    """Samples that differ in length, in each epoch anew."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = ringfeed.rng()
        return {"index": index, **formed(int(rng.integers(1, 10)), rng)}


def noised(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a number of its own to each sample."""
    return {**sample, "noise": sample["noise"] + rng.random(3)}


def columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of samples, which draw nothing here: a batch of another size has other numbers."""
    return {name: np.stack([np.asarray(sample[name]) for sample in samples]) for name in samples[0]}


def halve(batch: dict[str, Any]) -> None:
    """Change a batch in place."""
    batch["noise"] *= 0.5


def elements(first: int = 0, end: int = LENGTH) -> Iterator[dict[str, Any]]:
    """Give such samples in order."""
    for index in range(first, end):
        yield {"index": index, "noise": ringfeed.rng().random(3)}


def lists(epoch: int) -> Iterator[list[int]]:
    """Give lists of 1 to 4 samples, others in each epoch."""
    numbers = np.random.default_rng(epoch).permutation(LENGTH).tolist()
    sizes = np.random.default_rng(epoch).integers(1, ROWS + 1, LENGTH).tolist()
    while numbers:
        size = sizes.pop()
        yield numbers[:size]
        numbers = numbers[size:]


class Strided:
    """A sampler of another project's: it is told the epoch, and gives the samples in steps."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return ((7 * step + self.epoch) % LENGTH for step in range(LENGTH))


@dataclass(frozen=True)
class Order:
    """An order, by the parameters that ask for it."""

    settings: dict[str, Any] = field(default_factory=dict)
    dataset: Callable[[], Any] = Augmented
    has_ranks: bool = True
    has_sizes: bool = True

    def loader(self, **settings: Any) -> ringfeed.Loader:
        """Return a new loader of a new dataset."""
        size = {} if "batch_sampler" in self.settings else {"batch_size": ROWS}
        return ringfeed.Loader(self.dataset(), **{"seed": 5, **size, **self.settings, **settings})


LABELS = np.arange(LENGTH) % 3
WEIGHTS = np.arange(1, LENGTH + 1)
PARTS = (0, 100, 120, LENGTH)
SPANS = np.random.default_rng(1).integers(1, 30, LENGTH)
ORDERS = {
    "sequential": Order(),
    "shuffled": Order({"shuffle": True}),
    "window": Order({"shuffle": 40}),
    "weighted": Order({"sampler": ringfeed.orders.WeightedSampler(WEIGHTS)}),
    "subset": Order({"sampler": ringfeed.orders.SubsetSampler(range(0, LENGTH, 2))}),
    "stratified": Order({"sampler": ringfeed.orders.StratifiedSampler(LABELS)}),
    "mix": Order(
        {"shuffle": True},
        lambda: ringfeed.datasets.Mix(
            [Augmented(90), Augmented(160)], weights=[0.3, 0.7], stop="all"
        ),
    ),
    "packed": Order(
        {"shuffle": True}, lambda: ringfeed.datasets.Pack(Sequences(), SPANS, 30, window=50)
    ),
    "wrapped": Order(
        {"shuffle": True},
        lambda: ringfeed.datasets.Pack(Sequences(), SPANS, 30, strategy="wrap", window=50),
    ),
    "formed": Order({"shuffle": True, "spec": FORMED}, Formed),
    "transformed": Order({"shuffle": True, "transform": noised, "batch_transform": halve}),
    "collated": Order({"shuffle": True, "transform": noised, "collate_fn": columns}),
    "sampler": Order({"sampler": Strided()}),
    "batch_sampler": Order(
        {"batch_sampler": lists, "max_batch_size": ROWS}, has_ranks=False, has_sizes=False
    ),
    "buckets": Order(
        {
            "batch_sampler": ringfeed.orders.Buckets(
                np.arange(LENGTH) % 40, max_tokens=200, window=60
            )
        },
        has_ranks=False,
        has_sizes=False,
    ),
    "iterable": Order({}, lambda: elements, has_ranks=False),
    "interleave": Order(
        {},
        lambda: ringfeed.datasets.Interleave(
            [partial(elements, first, end) for first, end in pairwise(PARTS)]
        ),
        has_ranks=False,
        has_sizes=False,
    ),
}
KINDS: dict[str, dict[str, Any]] = {
    "spawn": {"backend": "spawn"},
    "process": {"backend": "process"},
    "fork": {"backend": "fork"},
    "thread": {"backend": "thread"},
}
HOW: dict[str, dict[str, Any]] = {"no workers": {"workers": 0}}
HOW |= {
    f"{count} by {kind}": {"workers": count, **given}
    for count in (1, 2, 5)
    for kind, given in KINDS.items()
}


class DifferentError(Exception):
    """A run that is not the others' one; the text says which."""


# ---- reading ----


def bytes_of(leaf: Any, row: int) -> bytes:
    """Return a row, without what pads it in a batch of this size."""
    if isinstance(leaf, ringfeed.Padded):
        return leaf.values[row, : leaf.lengths[row]].tobytes()
    if isinstance(leaf, ringfeed.Masked):
        return leaf.values[row][leaf.mask[row]].tobytes()
    value = leaf[row]
    return value.encode() if isinstance(value, str) else bytes(value)


def batches(loader: ringfeed.Loader) -> Iterator[Rows]:
    """Give the rows of each batch to the end of the last epoch, without those of padding."""
    is_rank = loader.state_dict()["world_size"] > 1
    while loader.epoch < EPOCHS:
        left = loader.remaining if is_rank else 0
        for batch in loader:
            rows = [
                b"".join(bytes_of(leaf, row) for leaf in batch.values())
                for row in range(len(batch["index"]))
            ]
            del batch  # else it holds the slot
            left -= 1
            yield rows[: len(rows) - loader.padding] if is_rank and not left else rows


def go_on(loader: ringfeed.Loader, state: dict[str, Any], which: str) -> None:
    """Load a state, which must be returned as it was, but for the loader's own batch size and number of ranks."""
    own = loader.state_dict()
    expected = {**state, "batch_size": own["batch_size"], "world_size": own["world_size"]}
    loader.load_state_dict(json.loads(json.dumps(state)))
    if loader.state_dict() != expected:
        message = f"{which}: {loader.state_dict()} came back for {expected}"
        raise DifferentError(message)


def take(loader: ringfeed.Loader, count: int | None = None) -> list[Rows]:
    """Return the rows of so many batches, or of all."""
    with closing(batches(loader)) as found:
        return [*islice(found, count)]


# ---- the runs of an order ----


@dataclass
class Whole:
    """A run that was not cut, and its states at some batches."""

    batches: list[Rows]
    states: dict[int, dict[str, Any]]

    @classmethod
    def of(cls, loader: ringfeed.Loader, every: int) -> Whole:
        """Read it."""
        found, states = [], {0: loader.state_dict()}
        for number, rows in enumerate(batches(loader), 1):
            found.append(rows)
            if number % every == 0:
                states[number] = loader.state_dict()
        return cls(found, states)


def cut(whole: Whole, loader: ringfeed.Loader) -> Iterator[tuple[str, list[Rows]]]:
    """Go on from each state in a loader that has gone elsewhere before."""
    for number, state in whole.states.items():
        go_on(loader, state, f"cut at batch {number}")
        yield f"cut at batch {number}", whole.batches[:number] + take(loader)


def relay(order: Order, hows: Iterable[dict[str, Any]], every: int) -> list[Rows]:
    """Read some batches in each of many loaders, with these workers in turn."""
    seen: list[Rows] = []
    state: dict[str, Any] = {}
    for how in islice(cycle(hows), EPOCHS * LENGTH):
        if state and state["epoch"] == EPOCHS:
            return seen
        with order.loader(**how) as loader:
            if state:
                go_on(loader, state, f"relay at batch {len(seen)}")
            seen += take(loader, every)
            state = loader.state_dict()
    message = f"relay: no end after {len(seen)} batches"
    raise DifferentError(message)


def on_ranks(whole: Whole, order: Order, how: dict[str, Any]) -> Iterator[tuple[str, list[Rows]]]:
    """Go on from each state on 4 ranks for three global batches, then on 2 for five, then on 3 to the end."""
    with ExitStack() as stack:
        teams = [
            [
                stack.enter_context(order.loader(shard=ringfeed.Shard(rank, world), **how))
                for rank in range(world)
            ]
            for world in WORLDS
        ]
        for number, start in whole.states.items():
            seen, state = whole.batches[:number], start
            for team, count in zip(teams, (3, 5, None), strict=True):
                which = f"{len(team)} ranks from batch {number}"
                for loader in team:
                    go_on(loader, state, which)
                seen += chain(*zip(*(take(loader, count) for loader in team), strict=True))
                states = [loader.state_dict() for loader in team]
                state = states[0]
                if states.count(state) < len(states):
                    message = f"{which}: the states differ: {states}"
                    raise DifferentError(message)
            yield f"ranks {WORLDS} from batch {number}", seen


def of_sizes(whole: Whole, order: Order, how: dict[str, Any]) -> Iterator[tuple[str, list[Rows]]]:
    """Go on from each state with other batch sizes."""
    for size in SIZES:
        with order.loader(**how, batch_size=size) as loader:
            for number, state in whole.states.items():
                go_on(loader, state, f"batches of {size} from batch {number}")
                yield (
                    f"batches of {size} from batch {number}",
                    whole.batches[:number] + take(loader),
                )


def runs(
    order: Order, how: dict[str, Any], every: int, first: Whole
) -> Iterator[tuple[str, list[Rows]]]:
    """Give all runs of an order with some workers, each by its name."""
    with order.loader(**how) as loader:
        whole = Whole.of(loader, every)
        yield "uncut", whole.batches
        if whole.states != first.states:
            message = "its states differ from those without workers"
            raise DifferentError(message)
        yield from cut(whole, loader)
    yield "relay", relay(order, [how], every)
    if order.has_ranks:
        yield from on_ranks(whole, order, how)
    if order.has_sizes and not how["workers"]:
        yield from of_sizes(whole, order, how)


def digest(found: list[Rows]) -> str:
    """Return a hash over all rows."""
    return hashlib.sha256(b"".join(chain(*found))).hexdigest()[:16]


def examine(order: Order, hows: Sequence[str], every: int) -> Counter[str]:
    """Return how many runs gave each hash.

    DifferentError, with the run's name, at the second hash or another state.
    """
    with order.loader(workers=0) as loader:
        first = Whole.of(loader, every)
    counted = Counter([digest(first.batches)])
    for how in hows:
        count(counted, how, runs(order, HOW[how], every, first))
    count(
        counted, "all in turn", iter([("relay", relay(order, [HOW[how] for how in hows], every))])
    )
    return counted


def count(counted: Counter[str], how: str, found: Iterator[tuple[str, list[Rows]]]) -> None:
    """Count the hashes of some runs."""
    (expected,) = counted
    try:
        for which, rows in found:
            counted[digest(rows)] += 1
            if len(counted) > 1:
                message = f"{which}: {digest(rows)}, expected {expected}"
                raise DifferentError(message)  # noqa: TRY301 - as from the runs
    except DifferentError as error:
        message = f"{how}, {error}"
        raise DifferentError(message) from error


def main() -> int:
    """Print a line for each order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=[*ORDERS])
    parser.add_argument("--how", nargs="+", choices=HOW, default=[*HOW])
    parser.add_argument("--every", type=int, default=EVERY, help="batches between two cuts")
    given = parser.parse_args()
    failed = False
    for name in given.orders:
        began_s = time.monotonic()
        try:
            ((found, number),) = examine(ORDERS[name], given.how, given.every).items()
            sys.stdout.write(
                f"{name:14} {found}  {number} runs, {time.monotonic() - began_s:.0f} s\n"
            )
        except DifferentError as error:
            failed = True
            sys.stdout.write(f"{name:14} differs: {error}\n")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""A differential oracle over the public face: one program on random settings, and on a plain loop beside them.

    python tests/support/differential.py --rounds 1000
    python tests/support/differential.py --seed 1234

A round draws a program: a dataset of one of the kinds below, an order, functions, epochs, one of which may be broken
off, and a stop after which a second loader goes on from the state. The plain loop runs the same program without
ringfeed. Then the program runs on random workers, backends and slots, and every batch must be the same.

Each dataset has something that a loader may not disturb, or may not miss: it changes itself in its hooks, it is
changed by the loop between epochs, it fills one buffer again and again, it keeps its place in itself, it gives lists
that it then takes back, it counts how often it was asked.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import warnings
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import leftovers
import ringfeed
from ringfeed.orders.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUND_S = 120.0
TIMEOUT_S = 60.0


# ---- datasets: each is made anew for each run ----


class Rows:
    """A sample is a function of its index, of the hooks that have run, and of what the loop has set."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.begun = self.ended = self.level = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"index": np.int64(index), "version": np.full(3, self.begun * 10000 + self.ended * 100 + self.level)}

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


class Steered:
    """Has no hooks: what changes is what the loop sets."""

    level = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"index": np.int64(index), "version": np.full(3, self.level)}


class Asked(Rows):
    """Answers by `__getitems__`, from any list of indices."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Opened(Rows):
    """Opens what it reads on first use, and leaves numbers and objects that mean nothing elsewhere in itself."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.source: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.source is None:
            self.source = Path(os.devnull).open("rb"), (number for number in range(2))  # noqa: SIM115 - it stays open
        assert os.fstat(self.source[0].fileno()).st_rdev == Path(os.devnull).stat().st_rdev
        return super().__getitem__(index)


class Columns(dict[str, Any]):
    """Arrays, of which a hook replaces one."""

    def __init__(self, length: int) -> None:
        super().__init__(index=np.arange(length), version=np.zeros((length, 3), np.int64))

    def on_epoch_end(self) -> None:
        self["version"] = self["version"] + 1


class Windows(dict[str, Any]):
    """A series, seen as windows that lie over each other, backwards."""

    def __init__(self, length: int) -> None:
        series = np.arange(length + 4, dtype=np.float32)
        super().__init__(version=np.lib.stride_tricks.sliding_window_view(series, 5)[::-1], index=np.arange(length))


class Whole(Rows):
    """Whole batches, in an order that a hook draws."""

    def __init__(self, length: int, rows: int) -> None:
        super().__init__(length)
        self.rows = rows
        self.order = np.arange(length)

    def __len__(self) -> int:
        return (self.length + self.rows - 1) // self.rows

    def __getitem__(self, index: int) -> Any:
        taken = self.order[index * self.rows : (index + 1) * self.rows]
        return {"index": taken, "version": np.full((len(taken), 3), self.ended * 100 + self.level)}

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.order = np.random.default_rng(self.ended).permutation(self.length)


class OneBuffer:
    """An iterable that fills one buffer again and again."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        buffer = np.zeros(3, np.int64)
        for index in range(self.length):
            buffer[:] = index
            yield {"index": np.int64(index), "version": buffer}


class OwnPlace(OneBuffer):
    """An iterable that keeps its place in itself, and has a state that goes on changing."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.left = [*range(length)]

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            yield {"index": np.int64(self.left.pop(0)), "version": np.zeros(3, np.int64)}
        self.left = [*range(self.length)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = [*state["left"]]


# ---- orders ----


class Popped:
    """A sampler that pops what is left from a list of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.left = [*range(length)]

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop()
        self.left = [*range(self.length)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = [*state["left"]]


class OneList:
    """A batch sampler that fills one list again and again, with lists of different lengths."""

    def __init__(self, length: int, most: int) -> None:
        self.length = length
        self.most = most

    def __iter__(self) -> Iterator[list[int]]:
        indices: list[int] = []
        place, size = 0, 1
        while place < self.length:
            indices[:] = range(place, min(self.length, place + size))
            place += len(indices)
            size = size % self.most + 1
            yield indices


def doubled(sample: Any) -> Any:
    """Return another sample than it was given."""
    return {**sample, "version": sample["version"] * 2}


def in_place(sample: Any) -> None:
    """Change a sample."""
    sample["version"] += 1


def collated(samples: list[Any]) -> Any:
    """Return a batch as torch's function would."""
    return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}


class Understated(OneBuffer):
    """An iterable whose length is less than what comes."""

    def __len__(self) -> int:
        return self.length // 2


# ---- a program: what a round draws, and what a plain loop makes of it ----

MAP, BATCHES, STREAM = "map", "batches", "stream"
KINDS: dict[str, tuple[str, Callable[[int, int], Any]]] = {
    "rows": (MAP, lambda length, _: Rows(length)),
    "steered": (MAP, lambda length, _: Steered(length)),
    "asked": (MAP, lambda length, _: Asked(length)),
    "opened": (MAP, lambda length, _: Opened(length)),
    "columns": (MAP, lambda length, _: Columns(length)),
    "windows": (MAP, lambda length, _: Windows(length)),
    "whole": (BATCHES, Whole),
    "one buffer": (STREAM, lambda length, _: OneBuffer(length)),
    "own place": (STREAM, lambda length, _: OwnPlace(length)),
    "understated": (STREAM, lambda length, _: Understated(length)),
}
ORDERS = "in order", "shuffled", "popped", "one list", "by epoch"
KEEP_A_PLACE = "own place", "popped"  # a break leaves them amid their epoch, wherever the workers are


def rotated(length: int, epoch: int) -> list[int]:
    """Return the order of an epoch that a function gives."""
    return [(index + epoch) % length for index in range(length)]


class Program:
    """What is fed, in which order, and where it is stopped: drawn from a seed alone."""

    def __init__(self, seed: int) -> None:
        draw = Random(f"{seed} program")  # noqa: S311 - no secret
        self.seed = seed
        self.kind = draw.choice([*KINDS])
        self.family, self.make = KINDS[self.kind]
        self.batch_size = draw.choice([1, 2, 3, 4, 7])
        self.length = self.batch_size * draw.randint(1, 9) + draw.randrange(self.batch_size)
        self.drop = draw.random() < 0.2 and self.family != BATCHES
        self.order = draw.choice(ORDERS) if self.family == MAP else "in order"
        self.drop &= self.order != "one list"
        self.function = draw.choice([None, None, doubled, in_place]) if self.family != BATCHES else None
        self.collates = draw.random() < 0.2 and self.family == MAP  # a list of one buffer is wrong in any loop
        self.steered = draw.random() < 0.4 and self.kind in ("rows", "steered", "asked", "opened", "columns", "whole")
        self.epochs = draw.randint(1, 4)
        may_break = self.kind not in KEEP_A_PLACE and self.order not in KEEP_A_PLACE
        self.breaks = {e: draw.randint(1, 4) for e in range(self.epochs) if may_break and draw.random() < 0.3}
        self.stop = draw.randrange(self.epochs), draw.randint(0, 9)  # (epoch, batches) after which another goes on
        self.stops = draw.random() < 0.6

    def __str__(self) -> str:
        """All that was drawn."""
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "make")

    def steer(self, dataset: Any, epoch: int) -> None:
        """Change the dataset ahead of an epoch, as a callback would."""
        if self.steered and isinstance(dataset, Columns):
            dataset["version"] = dataset["version"] + 10 * epoch
        elif self.steered:
            dataset.level = epoch

    def settings(self, dataset: Any) -> dict[str, Any]:
        """Return the parameters of a loader that say what its batches are."""
        orders: dict[str, dict[str, Any]] = {
            "in order": {},
            "shuffled": {"shuffle": True},
            "popped": {"sampler": Popped(self.length)},
            "one list": {"batch_sampler": OneList(self.length, self.batch_size + 1)},
            "by epoch": {"sampler": lambda epoch, length=self.length: rotated(length, epoch)},
        }
        sizes: dict[str, Any] = {"batch_size": None if self.family == BATCHES else self.batch_size}
        if self.order == "one list":
            sizes = {"max_batch_size": self.batch_size + 1}
        given: dict[str, Any] = {"transform": self.function, "collate_fn": collated if self.collates else None}
        given = {name: function for name, function in given.items() if function}
        return {
            "dataset": dataset,
            "seed": self.seed,
            "drop_remainder": self.drop,
            **sizes,
            **orders[self.order],
            **given,
        }

    def _indices(self, epoch: int) -> Iterator[list[int]]:
        positions = np.arange(self.length)
        order = {
            "in order": positions,
            "shuffled": permute(positions, self.length, self.seed, epoch),
            "popped": positions[::-1],
            "by epoch": np.array(rotated(self.length, epoch)),
        }
        if self.order == "one list":
            yield from map(list, OneList(self.length, self.batch_size + 1))
            return
        for first in range(0, self.length, self.batch_size):
            yield order[self.order][first : first + self.batch_size].tolist()

    def _samples(self, dataset: Any, indices: list[int], elements: Iterator[Any]) -> list[Any]:
        samples = []
        for index in indices:
            if self.family == STREAM:
                sample = next(elements)
            else:
                columns = isinstance(dataset, dict)
                sample = {key: column[index] for key, column in dataset.items()} if columns else dataset[index]
            sample = {key: np.array(value) for key, value in sample.items()}
            made = self.function(sample) if self.function else None
            samples.append(sample if made is None else made)
        return samples

    def epoch(self, dataset: Any, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch as a plain loop has them."""
        if self.family == BATCHES:
            yield from (dataset[index] for index in range(len(dataset)))
            return
        elements = iter(dataset) if self.family == STREAM else iter(())
        for indices in self._indices(epoch):
            if len(indices) == self.batch_size or not self.drop:
                yield collated(self._samples(dataset, indices, elements))
        for _ in elements:  # a batch that is left out is read to its end, too
            pass

    def run(self) -> list[list[Any]]:
        """Return the batches of all epochs, as a plain loop has them."""
        dataset = self.make(self.length, self.batch_size)
        epochs = []
        for epoch in range(self.epochs):
            self.steer(dataset, epoch)
            getattr(dataset, "on_epoch_begin", int)()
            batches: list[Any] = []
            over = True
            for batch in self.epoch(dataset, epoch):
                batches.append({key: np.array(value) for key, value in batch.items()})
                if len(batches) == self.breaks.get(epoch):
                    over = False
                    break
            if over:
                getattr(dataset, "on_epoch_end", int)()
            epochs.append(batches)
        return epochs


# ---- the same by ringfeed ----

OUTLETS: dict[str, Callable[[ringfeed.Loader], Any]] = {
    "numpy": lambda loader: loader,
    "torch": lambda loader: loader.to_torch(),
    "jax": lambda loader: loader.to_jax(),
    "tensorflow": lambda loader: loader.to_tf_dataset(),
}


class Feed:
    """Runs a program through loaders."""

    def __init__(self, program: Program, outlets: list[str]) -> None:
        self.program = program
        self.outlets = outlets
        self.draw = Random(f"{program.seed} settings")  # noqa: S311 - no secret
        self.said: list[str] = []  # the settings of each loader
        self.batches: Any = None

    def _open(self) -> tuple[Any, ringfeed.Loader]:
        draw = self.draw
        ways: dict[str, dict[str, Any]] = {
            "here": {"workers": 0},
            "threads": {"backend": "thread"},
            "forkserver": {"start_method": "forkserver"},
            "spawn": {"start_method": "spawn"},
            "fork": {"start_method": "fork"},
        }
        # Beside frameworks a fork warns; what is forked has a dataset without hooks as it was at the first epoch.
        may_fork = self.outlets == ["numpy"] and self.program.kind != "steered"
        way = draw.choices([*ways], [6, 6, 6, 1, 3 if may_fork else 0])[0]
        given = {"workers": draw.randint(1, 3), **ways[way], "slots": draw.randint(3, 5), "copy": draw.random() < 0.2}
        outlet = draw.choice(self.outlets)
        self.said.append(f"{given} {outlet}")
        dataset = self.program.make(self.program.length, self.program.batch_size)
        loader = ringfeed.Loader(**self.program.settings(dataset), **given, timeout_s=TIMEOUT_S)
        self.batches = OUTLETS[outlet](loader)
        self.has_states = outlet != "tensorflow"  # which reads ahead
        return dataset, loader

    def run(self) -> list[list[Any]]:
        """Return the batches of all epochs, as the loaders give them."""
        program = self.program
        dataset, loader = self._open()
        epochs: list[list[Any]] = []
        held: list[tuple[Any, Any]] = []
        try:
            for epoch in range(program.epochs):
                program.steer(dataset, epoch)
                batches: list[Any] = []
                iterator = iter(self.batches)
                while True:
                    if program.stops and self.has_states and (epoch, len(batches)) == program.stop:
                        state = json.loads(json.dumps(loader.state_dict()))
                        iterator = None
                        loader.close()
                        dataset, loader = self._open()
                        loader.load_state_dict(state)
                        for earlier in range(epoch + 1):
                            program.steer(dataset, earlier)
                        if state["epoch"] > epoch:  # the end of an epoch is the start of the next
                            break
                        iterator = iter(self.batches)
                    batch = next(iterator, None)
                    if batch is None:
                        break
                    batches.append({key: np.asarray(value).copy() for key, value in batch.items()})
                    if self.draw.random() < 0.1 and len(held) < 2:
                        held.append((batch, batches[-1]))
                    if len(batches) == program.breaks.get(epoch):
                        break
                iterator = batch = None  # breaks the epoch off, where it is not over
                epochs.append(batches)
        finally:
            loader.close()
        for views, copies in held:
            assert all((np.asarray(views[key]) == copies[key]).all() for key in copies), (
                "a view that was held has changed"
            )
        return epochs


def _show(batches: list[Any]) -> str:
    return " ".join(
        "|".join(f"{key} {np.array2string(value.reshape(len(value), -1)[:, 0])}" for key, value in batch.items())
        for batch in batches
    )


def run_round(seed: int, outlets: list[str]) -> None:
    """Run one round; an AssertionError names its seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ringfeed.SlotsHeldWarning)
        warnings.simplefilter("ignore", ResourceWarning)  # a dataset's own file
        _run_round(seed, outlets)


def _run_round(seed: int, outlets: list[str]) -> None:
    program = Program(seed)
    feed = Feed(program, outlets)
    before = leftovers.present()
    where = f"python tests/support/differential.py --seed {seed}: {program}"
    try:
        fed, plain = feed.run(), program.run()
        for epoch, (got, expected) in enumerate(zip(fed, plain, strict=True)):
            same = len(got) == len(expected) and all(
                a.keys() == b.keys() and all(a[key].shape == b[key].shape and (a[key] == b[key]).all() for key in a)
                for a, b in zip(got, expected, strict=True)
            )
            assert same, f"epoch {epoch} has\n  {_show(got)}\nand a plain loop\n  {_show(expected)}"
        del fed, feed.program, feed.batches
        left = leftovers.since(before)
        assert not left, f"left behind: {left}"
    except Exception as error:
        message = f"{where}; {'; '.join(feed.said)}: {type(error).__name__}: {error}"
        raise AssertionError(message) from error


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the first round; alone: that round only")
    parser.add_argument("--rounds", type=int, help="how many")
    parser.add_argument("--keep-going", action="store_true", help="say what fails, and go on")
    parser.add_argument("--outlets", default="numpy", help="what takes the batches, of numpy,torch,jax,tensorflow")
    chosen = parser.parse_args()
    outlets = chosen.outlets.split(",")
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    rounds = chosen.rounds if chosen.rounds is not None else 1 if chosen.seed is not None else 1000
    failed = 0
    for number in range(seed, seed + rounds):
        faulthandler.dump_traceback_later(ROUND_S, exit=True)
        try:
            run_round(number, outlets)
        except AssertionError as error:
            if not chosen.keep_going:
                raise
            failed += 1
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{rounds} rounds from seed {seed}: {failed} failed\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

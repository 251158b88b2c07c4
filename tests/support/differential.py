"""A differential oracle over the public face: one program on random settings, and on a plain loop beside them.

    python tests/support/differential.py --rounds 1000
    python tests/support/differential.py --face torch --rounds 100
    python tests/support/differential.py --seed 1234

A round draws a program: a dataset of one of the kinds below, an order, a rank, functions, epochs,
one of which may be broken off, and a stop after which a second loader goes on from the state. The
plain loop runs the same program without ringfeed. Then the program runs on random workers, backends
and slots, some of which are killed, and every batch must be the same.

Each dataset has something that a loader may not disturb, or may not miss: it changes itself in its
hooks, it is changed by the loop between epochs, it fills one buffer again and again, it keeps its
place in itself, it gives lists that it then takes back, it counts how often it was asked, it fails.

Other faces have programs and plain loops of their own: `differential_torch`, `differential_keras`,
`differential_share`.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

import leftovers
import ringfeed
import watching
from differential_sets import (
    Asked,
    Awaited,
    Columns,
    Failing,
    OneBuffer,
    OneList,
    Opened,
    OwnPlace,
    Popped,
    Rows,
    Steered,
    Understated,
    Whole,
    Windows,
    collated,
    doubled,
    drawn,
    in_place,
    refusing,
    whole_in_place,
)
from ringfeed.orders.mix import MixSampler
from ringfeed.orders.permutation import permute
from ringfeed.orders.rng import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUND_S = 120.0
TIMEOUT_S = 60.0
LOOKED_EVERY = 20  # rounds: what is left behind, once it had some time to go
LEFT_S = 20.0
MOST_HELD = 2  # batches, but where all are
KILLED = 0.02  # of the batches cost a worker
ALL = 10**6  # more than an epoch has
FACES = "loader", "torch", "keras", "share"

# ---- a program: what a round draws, and what a plain loop makes of it ----

MAP, MIX, BATCHES, STREAM, STREAMS = "map", "mix", "batches", "stream", "streams"
KINDS: dict[str, tuple[str, Callable[[Program], Any]]] = {
    "rows": (MAP, lambda program: Rows(program.length)),
    "steered": (MAP, lambda program: Steered(program.length)),
    "asked": (MAP, lambda program: Asked(program.length)),
    "opened": (MAP, lambda program: Opened(program.length)),
    "failing": (MAP, lambda program: Failing(program.length)),
    "awaited": (MAP, lambda program: Awaited(program.length)),
    "columns": (MAP, lambda program: Columns(program.length)),
    "windows": (MAP, lambda program: Windows(program.length)),
    "mix": (MIX, lambda program: ringfeed.datasets.Mix(program.members(Rows), **program.mixed)),
    "whole": (BATCHES, lambda program: Whole(program.length, program.batch_size)),
    "one buffer": (STREAM, lambda program: OneBuffer(program.length)),
    "own place": (STREAM, lambda program: OwnPlace(program.length)),
    "understated": (STREAM, lambda program: Understated(program.length)),
    "interleave": (
        STREAMS,
        lambda program: ringfeed.datasets.Interleave(program.members(OneBuffer)),
    ),
}
ORDERS = {
    MAP: ("in order", "shuffled", "window", "popped", "one list", "by epoch"),
    MIX: ("in order", "shuffled"),
    BATCHES: ("in order", "in order", "shuffled"),
}
KEEP_A_PLACE = (
    "own place",
    "popped",
)  # a break leaves them amid their epoch, wherever the workers are
CHANGED = "rows", "steered", "asked", "opened", "failing", "awaited", "columns", "mix", "whole"
OTHER_FIRST = 1000  # of the second member's samples
FAILED = "a sample has failed"


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
        self.lengths = self.length, draw.randint(1, 2 * self.length)  # of members
        self.mixed: dict[str, Any] = {"weights": draw.choice([None, (1, 2), (3, 1)])}
        self.mixed |= {"stop": draw.choice(["first", "all"]), "per_batch": draw.random() < 0.3}
        self.order = draw.choice(ORDERS.get(self.family, ["in order"]))
        self.window = draw.randint(2, 2 * self.length + 1)
        self._draw_ranks(draw)
        self._draw_functions(draw)
        self.steered = draw.random() < 0.4 and self.kind in CHANGED
        self.epochs = draw.randint(1, 4)
        may_break = self.kind not in KEEP_A_PLACE and self.order not in KEEP_A_PLACE
        self.breaks = {
            e: draw.randint(1, 4) for e in range(self.epochs) if may_break and draw.random() < 0.3
        }
        self.stop = (
            draw.randrange(self.epochs),
            draw.randint(0, 9),
        )  # (epoch, batches) after which another goes on
        self.stops = draw.random() < 0.6

    def _draw_ranks(self, draw: Random) -> None:
        has_ranks = (
            draw.random() < 0.3
            and self.order != "one list"
            and self.kind not in ("understated", "interleave")
        )
        self.world_size = draw.choice([2, 3]) if has_ranks and not self.mixed["per_batch"] else 1
        self.rank = draw.randrange(self.world_size)
        self.drop = draw.random() < 0.2 and self.family != BATCHES and self.order != "one list"
        self.uneven = (
            "drop" if self.drop or self.family == STREAM else draw.choice(["pad", "keep", "drop"])
        )

    def _draw_functions(self, draw: Random) -> None:
        may_change = self.family != BATCHES
        functions = [None, None, None, doubled, in_place, refusing, drawn]
        self.function = draw.choice(functions) if may_change else None
        # A list of one buffer is wrong in any loop, and __getitems__ draws for all samples at once.
        self.collates = draw.random() < 0.2 and self.family in (MAP, MIX)
        self.whole_function = draw.choice([None, None, None, whole_in_place])
        self.skips = draw.random() < 0.5
        self.fails = self.kind == "failing" or self.function is refusing
        self.skips |= self.fails and self.collates  # the first batch says what all are
        if self.fails and self.family in (
            STREAM,
            STREAMS,
        ):  # what fails ahead of the end is told, and no batch
            self.drop, self.world_size, self.rank = False, 1, 0

    def __str__(self) -> str:
        """All that was drawn."""
        return ", ".join(
            f"{name}={value!r}" for name, value in vars(self).items() if name != "make"
        )

    def members(self, kind: Callable[[int, int], Any]) -> list[Any]:
        """Return two datasets, which are to be one."""
        return [
            kind(length, first)
            for length, first in zip(self.lengths, (0, OTHER_FIRST), strict=True)
        ]

    def steer(self, dataset: Any, epoch: int) -> None:
        """Change the dataset ahead of an epoch, as a callback would."""
        if self.steered and isinstance(dataset, Columns):
            dataset["version"] = dataset["version"] + 10 * epoch
        elif self.steered:
            for member in getattr(dataset, "datasets", [dataset]):
                member.level = epoch

    def settings(self, dataset: Any) -> dict[str, Any]:
        """Return the parameters of a loader that say what its batches are."""
        orders: dict[str, dict[str, Any]] = {
            "in order": {},
            "shuffled": {"shuffle": True},
            "window": {"shuffle": self.window},
            "popped": {"sampler": Popped(self.length)},
            "one list": {"batch_sampler": OneList(self.length, self.batch_size + 1)},
            "by epoch": {"sampler": lambda epoch, length=self.length: rotated(length, epoch)},
        }
        sizes: dict[str, Any] = {"batch_size": None if self.family == BATCHES else self.batch_size}
        if self.order == "one list":
            sizes = {"max_batch_size": self.batch_size + 1}
        given: dict[str, Any] = {
            "transform": self.function,
            "collate_fn": collated if self.collates else None,
        }
        given |= {"batch_transform": self.whole_function}
        given = {name: function for name, function in given.items() if function}
        if self.world_size > 1:
            given["shard"] = ringfeed.Shard(self.rank, self.world_size, self.uneven)
        return {
            "dataset": dataset,
            "seed": self.seed,
            "drop_remainder": self.drop,
            "on_error": "skip" if self.skips else "raise",
            **sizes,
            **orders[self.order],
            **given,
        }

    # ---- a plain loop ----

    def _order(self, epoch: int, length: int) -> Any:
        """Return the whole order of an epoch, of all ranks."""
        positions = np.arange(length)
        if self.family == MIX:
            weights, stop = self.mixed["weights"] or self.lengths, self.mixed["stop"]
            seed = self.seed if self.order == "shuffled" else None
            given = {"per_batch": self.mixed["per_batch"], "seed": seed}
            return (
                MixSampler(self.lengths, weights, stop, self.batch_size, **given)
                .epoch(epoch)
                .take(ALL)
            )
        if self.order == "shuffled":
            return permute(positions, length, self.seed, epoch)
        if self.order == "window":
            return (
                ringfeed.orders.WindowShuffle(self.window)
                .bind(length, self.seed)
                .epoch(epoch)
                .take(ALL)
            )
        if self.order == "by epoch":
            return np.array(rotated(length, epoch))
        return positions[::-1] if self.order == "popped" else positions

    def _indices(self, epoch: int, length: int) -> Iterator[list[int]]:
        """Yield the indices of each batch of this rank."""
        rows = 1 if self.family == BATCHES else self.batch_size
        if self.order == "one list":
            yield from map(list, OneList(length, self.batch_size + 1))
        elif self.family == STREAMS:
            yield from self._in_turn()
        else:
            order = self._order(epoch, length).tolist()
            for first in range(0, len(order), rows * self.world_size):
                of_all = order[first : first + rows * self.world_size]
                is_full = len(of_all) == rows * self.world_size
                yield of_all[self.rank * rows :][:rows] if is_full else self._part(of_all)

    def _in_turn(self) -> Iterator[list[int]]:
        """Yield a batch of each member in turn.

        An element's index says its number and its member.
        """
        count = len(self.lengths)
        left = [
            [*range(member, count * length, count)] for member, length in enumerate(self.lengths)
        ]
        while any(left):
            for member, indices in enumerate(left):
                taken, left[member] = indices[: self.batch_size], indices[self.batch_size :]
                if len(taken) == self.batch_size or not self.drop:
                    yield taken

    def _part(self, rest: list[int]) -> list[int]:
        """Return this rank's part of a last batch of all ranks that is not full."""
        if self.drop:
            return []
        if self.world_size == 1:
            return rest
        cuts = [-(-rank * len(rest) // self.world_size) for rank in range(self.world_size + 1)]
        parts = [rest[first:last] for first, last in pairwise(cuts)]
        longest = max(map(len, parts))
        if self.uneven == "pad":
            shorter = [part for part in parts if len(part) < longest]
            for number, part in enumerate(shorter):
                part.append(rest[number % len(rest)])
        return [] if self.uneven == "drop" else parts[self.rank]

    def _reader(self, dataset: Any) -> Callable[[int], Any]:
        """Return what reads the sample of an index."""
        if self.family == STREAM:
            return [
                {key: np.array(value) for key, value in element.items()} for element in dataset
            ].__getitem__
        if self.family == STREAMS:
            elements = [
                [{**one, "version": one["version"].copy()} for one in part]
                for part in dataset.iterables
            ]
            return lambda index: elements[index % 2][index // 2]
        if self.family == MIX:
            places = [
                (member, number) for member in dataset.datasets for number in range(len(member))
            ]
            return lambda index: (place := places[index % len(places)])[0][place[1]]
        if isinstance(dataset, dict):
            return lambda index: {key: column[index] for key, column in dataset.items()}
        return dataset.__getitem__

    def _sample(self, read: Callable[[int], Any], index: int, epoch: int) -> Any:
        sample = read(index)
        if inspect.iscoroutine(sample):
            sample = asyncio.run(sample)
        sample = {key: np.array(value) for key, value in sample.items()}
        if self.function is drawn:
            key, counter = key_of("rng", (self.seed,)), np.array([0, index, 0, epoch], np.uint64)
            stream = np.random.Philox(key=key, counter=counter)
            return drawn(sample, np.random.Generator(stream))
        made = self.function(sample) if self.function else None
        return sample if made is None else made

    def _batch(self, read: Callable[[int], Any], indices: list[int], epoch: int) -> Any:
        """Return a batch, `FAILED`, or None where all of it is left out."""
        samples = []
        for index in indices:
            try:
                samples.append(self._sample(read, index, epoch))
            except ValueError:
                if not self.skips:
                    return FAILED
        if not samples:
            return None
        batch = samples[0] if self.family == BATCHES else collated(samples)
        if self.whole_function:
            self.whole_function(batch)
        return batch

    def epoch(self, dataset: Any, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch as a plain loop has them.

        `FAILED` in the place of one that has an error.
        """
        read = self._reader(dataset)
        for indices in self._indices(
            epoch, len(dataset) if self.family == BATCHES else self.length
        ):
            batch = self._batch(read, indices, epoch)
            if batch is not None:
                yield batch

    def run(self) -> list[list[Any]]:
        """Return the batches of all epochs, as a plain loop has them."""
        dataset = self.make(self)
        epochs = []
        for epoch in range(self.epochs):
            self.steer(dataset, epoch)
            _run_hook(dataset, "on_epoch_begin")
            batches: list[Any] = []
            over = True
            for batch in self.epoch(dataset, epoch):
                batches.append(batch)
                if len(batches) == self.breaks.get(epoch):
                    over = False
                    break
            if over:
                _run_hook(dataset, "on_epoch_end")
            epochs.append(batches)
        return epochs


def _run_hook(dataset: Any, name: str) -> None:
    for member in getattr(dataset, "datasets", [dataset]):
        getattr(member, name, int)()


# ---- the same by ringfeed ----


def _of_keras(loader: ringfeed.Loader) -> Any:
    """Return what Keras is given, one epoch after the other, as its backend takes it."""
    import keras  # noqa: PLC0415 - of this outlet alone

    from ringfeed.frameworks.keras.adapter import Reiterable  # noqa: PLC0415

    fed = loader.to_keras()
    takes = {
        "tensorflow": "get_tf_dataset",
        "jax": "get_jax_iterator",
        "torch": "get_torch_dataloader",
    }
    return Reiterable(lambda: iter(getattr(fed, takes[keras.backend.backend()])()))


OUTLETS: dict[str, Callable[[ringfeed.Loader], Any]] = {
    "numpy": lambda loader: loader,
    "torch": lambda loader: loader.to_torch(),
    "jax": lambda loader: loader.to_jax(),
    "tensorflow": lambda loader: loader.to_tf_dataset(),
    "keras": _of_keras,
}
READ_AHEAD = (
    "tensorflow",
    "keras",
)  # so they have no states, and end at an error; a break may come behind the end


class Feed:
    """Runs a program through loaders."""

    def __init__(self, program: Program, outlets: list[str]) -> None:
        self.program = program
        may_read_ahead = not (program.fails or (program.breaks and program.kind in CHANGED))
        self.may_fork = outlets == ["numpy"]  # beside frameworks a fork warns
        self.outlets = [
            outlet for outlet in outlets if may_read_ahead or outlet not in READ_AHEAD
        ] or ["numpy"]
        self.draw = Random(f"{program.seed} settings")  # noqa: S311 - no secret
        self.said: list[str] = []  # the settings of each loader
        self.batches: Any = None
        self.held: list[tuple[Any, Any]] = []  # batches, and copies of them
        self.held_share = self.draw.choice([0.1, 0.1, 0.1, 0.1, 1])

    def _way(self) -> dict[str, Any]:
        """Return the parameters that say how batches are made, which change nothing in them."""
        draw, program = self.draw, self.program
        ways: dict[str, dict[str, Any]] = {
            "here": {"workers": 0},
            "threads": {"backend": "thread"},
            "process": {"backend": "process"},
            "spawn": {"backend": "spawn"},
            "fork": {"backend": "fork"},
        }
        way = draw.choices([*ways], [8, 8, 3, 0.3, 1 if self.may_fork else 0])[0]
        given = {
            "workers": draw.randint(1, 3),
            **ways[way],
            "slots": draw.randint(3, 5),
            "copy": draw.random() < 0.2,
        }
        may_wait = program.family in (MAP, BATCHES) and program.kind not in ("columns", "windows")
        if may_wait and draw.random() < 0.2:
            given["concurrency"] = given["workers"] + draw.randint(1, 4)
        return given

    def _open(self) -> tuple[Any, ringfeed.Loader]:
        given, outlet = self._way(), self.draw.choice(self.outlets)
        self.said.append(f"{given} {outlet}")
        self.may_kill = given["workers"] and "backend" not in given
        dataset = self.program.make(self.program)
        loader = ringfeed.Loader(**self.program.settings(dataset), **given, timeout_s=TIMEOUT_S)
        self.batches = OUTLETS[outlet](loader)
        self.has_states = outlet not in READ_AHEAD
        return dataset, loader

    def _kill(self, loader: ringfeed.Loader) -> None:
        """Kill a worker now and then."""
        if self.may_kill and self.draw.random() < KILLED and (pids := watching.pids(loader)):
            with suppress(ProcessLookupError):  # it was killed just before
                os.kill(self.draw.choice(pids), signal.SIGKILL)
            self.said.append("a worker killed")

    def _next(self, iterator: Any) -> Any:
        try:
            batch = next(iterator, None)
        except ringfeed.WorkerError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            return FAILED
        except Exception as error:
            if (
                type(error).__name__ != "OutOfRangeError"
            ):  # so an epoch without a batch ends on TensorFlow
                raise
            return None
        return batch

    def _taken(self, batch: Any) -> Any:
        """Return a copy of a batch, of which some are held to the end."""
        if batch is FAILED:
            return FAILED
        taken = {key: np.asarray(value).copy() for key, value in batch.items()}
        if self.draw.random() < self.held_share and (
            len(self.held) < MOST_HELD or self.held_share == 1
        ):
            self.held.append((batch, taken))
        return taken

    def run(self) -> list[list[Any]]:
        """Return the batches of all epochs, as the loaders give them."""
        program = self.program
        dataset, loader = self._open()
        epochs: list[list[Any]] = []
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
                    batch = self._next(iterator)
                    if batch is None:
                        break
                    batches.append(self._taken(batch))
                    if len(batches) == program.breaks.get(epoch):
                        break
                    self._kill(loader)
                iterator = batch = None  # breaks the epoch off, where it is not over
                epochs.append(batches)
        finally:
            loader.close()
        for views, copies in self.held:
            arrays = {key: np.asarray(value) for key, value in views.items()}
            assert _is_same(arrays, copies), "a view that was held has changed"
        return epochs


def _show(batches: list[Any]) -> str:
    return " ".join(map(_shown, batches))


def _shown(batch: Any) -> str:
    if batch is FAILED:
        return "FAILED"
    return "|".join(
        f"{key} {np.array2string(value.reshape(len(value), -1)[:, 0])}"
        for key, value in batch.items()
    )


def _is_same(got: Any, expected: Any) -> bool:
    if got is FAILED or expected is FAILED:
        return got is expected
    return got.keys() == expected.keys() and all(
        got[key].shape == expected[key].shape and (got[key] == expected[key]).all() for key in got
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
    try:
        fed, plain = feed.run(), program.run()
        for epoch, (got, expected) in enumerate(zip(fed, plain, strict=True)):
            same = len(got) == len(expected) and all(map(_is_same, got, expected))
            assert same, f"epoch {epoch} has\n  {_show(got)}\nand a plain loop\n  {_show(expected)}"
    except Exception as error:
        message = f"{program}; {'; '.join(feed.said)}: {type(error).__name__}: {error}"
        raise AssertionError(message) from error


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of the first round; alone: that round only")
    parser.add_argument("--rounds", type=int, help="how many")
    parser.add_argument("--keep-going", action="store_true", help="say what fails, and go on")
    parser.add_argument("--face", choices=FACES, default=FACES[0], help="what is compared: loader")
    parser.add_argument(
        "--outlets", default="numpy", help=f"what takes a loader's batches, of {','.join(OUTLETS)}"
    )
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    rounds = chosen.rounds if chosen.rounds is not None else 1 if chosen.seed is not None else 1000
    is_loader, is_clean = chosen.face == FACES[0], chosen.face in (FACES[0], "share")
    face = (
        sys.modules[__name__]
        if is_loader
        else importlib.import_module(f"differential_{chosen.face}")
    )
    command = (
        f"python tests/support/differential.py --face {chosen.face} --outlets {chosen.outlets}"
    )
    failed, before = 0, leftovers.present()
    gc.freeze()
    for number in range(seed, seed + rounds):
        faulthandler.dump_traceback_later(ROUND_S, exit=True)
        try:
            face.run_round(number, chosen.outlets.split(","))
            if (
                is_clean and number % LOOKED_EVERY == 0
            ):  # other plain loops leave things of their own
                # Named semaphores are another program's: no loader has any.
                left = [one for one in leftovers.since(before, LEFT_S) if "/sem.mp-" not in one]
                before = leftovers.present()
                assert not left, f"left behind, by one of {LOOKED_EVERY} rounds: {left}"
        except AssertionError as error:
            if not chosen.keep_going:
                raise
            failed += 1
            sys.stdout.write(f"{command} --seed {number}: {error}\n")
            sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{rounds} rounds of {chosen.face} from seed {seed}: {failed} failed\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

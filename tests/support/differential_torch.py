"""The face of torch's DataLoader beside torch's own class: `differential --face torch`.

A round draws a dataset, a sampler, functions, workers, and what a script does: it changes the
dataset, a global or a function between epochs, breaks an epoch off, stops and goes on from a state.
torch's class and ringfeed's run the same script, and must have the same batches, the same errors in
their places, and torch's generators at the same places.
"""

from __future__ import annotations

import json
import os
import random
import signal
import warnings
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as own

import ringfeed.torch
import watching
from differential_sets import Popped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLED = 0.02  # of the batches cost a worker
LEVEL = [0]  # a global that the script changes


# ---- samples: each says how it was asked for, and what its worker knew ----


class Pair(NamedTuple):
    """A sample of two."""

    index: Any
    level: Any


class Slots:
    """A batch of a class with slots."""

    __slots__ = ("samples",)

    def __init__(self, samples: Any) -> None:
        self.samples = samples


FORMS: dict[str, Callable[[int, int, str], Any]] = {
    "tuple": lambda number, level, kind: (torch.full((2, 3), number), number, float(level), kind),
    "dict": lambda number, level, kind: {
        "x": np.full(3, number, np.float32),
        "is": bool(level % 3),
        "of": [kind.encode(), {"y": np.int16(level)}],
    },
    "named": lambda number, level, kind: Pair(torch.tensor(number), (level, kind)),
    "number": lambda number, level, kind: number * 1000 + level + len(kind),
    "strided": lambda number, level, kind: (  # noqa: ARG005
        torch.arange(12.0).view(3, 4).t() + number,
        torch.tensor(level).expand(3),
    ),
    "ragged": lambda number, level, kind: (torch.full((number % 4 + 1,), number), level),  # noqa: ARG005
    "none": lambda number, level, kind: (number, None if number % 5 == 3 else level),  # noqa: ARG005
}


def number_of(index: Any, length: int) -> int:
    """Return the number of a sample, whatever an index is."""
    return int(np.sum(index)) % length


class Samples:
    """A sample is a function of its index, of the level, and of the global one."""

    level = 0

    def __init__(self, length: int, form: str) -> None:
        self.length = length
        self.form = form

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return FORMS[self.form](
            number_of(index, self.length), self.level + LEVEL[0], type(index).__name__
        )


class Failing(Samples):
    """Has samples that raise."""

    def __getitem__(self, index: Any) -> Any:
        if number_of(index, self.length) % 5 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


class InPlace(Samples):
    """Counts what it is asked for, in itself, and takes the last of a list."""

    def __init__(self, length: int, form: str) -> None:
        super().__init__(length, form)
        self.left = [*range(1000)]

    def __getitem__(self, index: Any) -> Any:
        self.level += 1
        return super().__getitem__(index), self.left.pop()


class Asked(Samples):
    """Makes a sample of the whole batch."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        total = sum(number_of(index, self.length) for index in indices)
        return [(self[index], total) for index in indices]


class Shared(Samples):
    """Has its level in a tensor that processes share."""

    def __init__(self, length: int, form: str) -> None:
        super().__init__(length, form)
        self.told = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index), int(self.told)


class Parts(own.IterableDataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Each worker reads its part."""

    level = 0

    def __init__(self, length: int, form: str) -> None:
        self.length = length
        self.form = form

    def __iter__(self) -> Iterator[Any]:
        info = own.get_worker_info()
        for number in range(
            0 if info is None else info.id, self.length, 1 if info is None else info.num_workers
        ):
            yield FORMS[self.form](number, self.level + LEVEL[0], "")


class Counting(Parts):
    """Counts, in itself, what it has given; each worker gives all."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            self.level += 1
            yield FORMS[self.form](number, self.level + LEVEL[0], "")


class Breaking(Parts):
    """Raises amid its elements."""

    def __iter__(self) -> Iterator[Any]:
        for number, element in enumerate(super().__iter__()):
            if number == 3:
                raise ValueError(number)
            yield element


MAPS = {
    "samples": Samples,
    "failing": Failing,
    "in place": InPlace,
    "asked": Asked,
    "shared": Shared,
}
STREAMS = {"parts": Parts, "counting": Counting, "breaking": Breaking}
IMPURE = "in place", "counting"  # what they give depends on what their worker has given before


# ---- functions ----


def as_they_are(samples: Any) -> Any:
    """Return a list of samples."""
    return [samples]


def in_slots(samples: Any) -> Any:
    """Return a batch of a class with slots, and of one that is defined here."""
    return Slots(samples)


def with_worker(samples: Any) -> Any:
    """Return what a worker knows of itself."""
    info = own.get_worker_info()
    return samples, info.id, info.num_workers, getattr(info.dataset, "level", None)


def with_tensors(samples: Any) -> Any:
    """Return tensors of other strides."""
    return torch.arange(6).view(2, 3).t(), torch.ones(1).expand(4), len(repr(samples))


def set_level(worker: int) -> None:
    """Change a worker's dataset."""
    own.get_worker_info().dataset.level = 100 * (worker + 1)


COLLATES = None, None, None, as_they_are, in_slots, with_worker, with_tensors


# ---- a script ----


class Program:
    """A script, but for the class of its loader: drawn from a seed alone."""

    def __init__(self, seed: int) -> None:
        draw = Random(f"{seed} torch")  # noqa: S311 - no secret
        self.seed = seed
        self.kind = draw.choice([*MAPS, *MAPS, *STREAMS])
        self.is_stream = self.kind in STREAMS
        self.form = draw.choice([*FORMS])
        if self.kind in IMPURE and self.form in (
            "ragged",
            "none",
        ):  # read again where a sample does not fit
            self.form = "tuple"
        self.length = draw.randint(1, 30)
        self.rows = draw.choice([1, 2, 3, 5])
        self.batches_by = (
            "size" if self.is_stream else draw.choice(["size", "size", "lists", "alone"])
        )
        orders = {"size": BY_SIZE, "lists": BY_LISTS, "alone": ALONE}[self.batches_by]
        self.order = "in order" if self.is_stream else draw.choice([*orders])
        self.drop_last = draw.random() < 0.2 and self.batches_by == "size"
        self.collate = draw.choice(COLLATES)
        self.init = draw.choice([None, None, set_level])
        self.num_workers = draw.choice([0, 1, 1, 2, 2, 2])
        self.persistent = draw.random() < 0.4 and self.num_workers > 0
        self.prefetch = draw.choice([None, 1, 3]) if self.num_workers else None
        self.has_generator = draw.random() < 0.5
        self.epochs = draw.randint(1, 3)
        self.breaks = {e: draw.randint(1, 4) for e in range(self.epochs) if draw.random() < 0.2}
        if self.kind in IMPURE and self.persistent:  # what was read ahead of a break stays in them
            self.breaks = {}
        self.steered = draw.random() < 0.4
        self.reassigned = draw.choice(COLLATES) if draw.random() < 0.15 else self.collate
        stays = self.persistent and (
            self.steered or self.reassigned is not self.collate
        )  # with its first workers
        may_stop = self.kind not in (*IMPURE, "breaking") and self.order != "popped" and not stays
        self.stop = (
            (draw.randrange(self.epochs), draw.randint(0, 6))
            if may_stop and draw.random() < 0.4
            else None
        )
        if self.num_workers == 0:
            self.init = None
            self.collate, self.reassigned = (
                f if f is not with_worker else None for f in (self.collate, self.reassigned)
            )

    def __str__(self) -> str:
        """All that was drawn."""
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items())

    def dataset(self) -> Any:
        """Make the dataset."""
        return (STREAMS if self.is_stream else MAPS)[self.kind](self.length, self.form)

    def loader(self, kind: Any, dataset: Any) -> Any:
        """Make a loader of a class."""
        generator = torch.Generator().manual_seed(self.seed) if self.has_generator else None
        orders = {"size": BY_SIZE, "lists": BY_LISTS, "alone": ALONE}[self.batches_by]
        given = {} if self.is_stream else orders[self.order](self, dataset)
        if self.batches_by == "size":
            given |= {"batch_size": self.rows, "drop_last": self.drop_last}
        return kind(
            dataset,
            num_workers=self.num_workers,
            persistent_workers=self.persistent,
            prefetch_factor=self.prefetch,
            collate_fn=self.collate,
            worker_init_fn=self.init,
            generator=generator,
            **given,
        )

    def steer(self, loader: Any, epoch: int) -> None:
        """Do what a script does ahead of an epoch."""
        if self.steered:
            loader.dataset.level = 10 * epoch
            LEVEL[0] = epoch
            if self.kind == "shared":
                loader.dataset.told.fill_(epoch)
        if epoch == 1:
            default = (
                own.default_collate
                if loader.batch_size or self.batches_by == "lists"
                else own.default_convert
            )
            loader.collate_fn = self.reassigned or default
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)


def _shuffled_indices(program: Program) -> Any:
    return np.random.default_rng(program.seed).permutation(program.length)


BY_SIZE: dict[str, Callable[[Program, Any], dict[str, Any]]] = {
    "in order": lambda *_: {},
    "shuffled": lambda *_: {"shuffle": True},
    "replaced": lambda p, d: {
        "sampler": own.RandomSampler(d, replacement=True, num_samples=p.length + 3)
    },
    "weighted": lambda p, d: {
        "sampler": own.WeightedRandomSampler([1.0 + n for n in range(len(d))], p.length)
    },
    "subset": lambda p, _: {
        "sampler": own.SubsetRandomSampler(
            [*range(0, p.length, 2)], torch.Generator().manual_seed(p.seed)
        )
    },
    "list": lambda p, _: {"sampler": _shuffled_indices(p).tolist()},
    "numpy": lambda p, _: {"sampler": _shuffled_indices(p)},
    "negative": lambda p, _: {"sampler": [*range(-1, -p.length, -1)]},
    "tuples": lambda p, _: {"sampler": [(n, 1) for n in range(p.length)]},
    "bools": lambda *_: {"sampler": [True, False, True]},
    "popped": lambda p, _: {"sampler": Popped(p.length)},
    "distributed": lambda p, d: {"sampler": own.DistributedSampler(d, 2, p.seed % 2, seed=p.seed)},
}
BY_LISTS: dict[str, Callable[[Program, Any], dict[str, Any]]] = {
    "batch sampler": lambda p, d: {
        "batch_sampler": own.BatchSampler(own.RandomSampler(d), p.rows, drop_last=False)
    },
    "growing": lambda p, _: {"batch_sampler": [[*range(n)] for n in range(1, min(p.length, 5))]},
    "lists": lambda p, _: {"batch_sampler": [[0], [*range(p.rows)], [p.length - 1, 0]]},
    "tuples": lambda p, _: {"batch_sampler": [(0, np.int64(1)), (2,)]},  # noqa: ARG005
    "arrays": lambda p, _: {"batch_sampler": [np.arange(p.rows), torch.arange(p.rows + 1)]},
}
ALONE: dict[str, Callable[[Program, Any], dict[str, Any]]] = {
    "in order": lambda *_: {"batch_size": None},
    "shuffled": lambda *_: {"batch_size": None, "shuffle": True},
    "lists": lambda p, d: {
        "batch_size": None,
        "sampler": own.BatchSampler(own.SequentialSampler(d), p.rows, drop_last=False),
    },
    "tensors": lambda p, _: {"batch_size": None, "sampler": [*torch.arange(p.length)]},
    "a list and then an int": lambda p, _: {
        "batch_size": None,
        "sampler": [[0, 1], 2, (3, 4), np.arange(p.rows)],
    },
}


# ---- what is compared ----


def written(value: Any) -> Any:
    """Return a value of any structure as one that can be compared, and that nothing changes."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__name__, str(value.dtype), value.shape, value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, {key: written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [written(one) for one in value]
    if isinstance(value, Slots):
        return "Slots", written(value.samples)
    return type(value).__name__, value


def generators(loader: Any) -> list[int]:
    """Return where torch's generators are."""
    states = [torch.get_rng_state()] + (
        [] if loader.generator is None else [loader.generator.get_state()]
    )
    return [hash(state.numpy().tobytes()) for state in states]


class Run:
    """A script, run with a class of loaders."""

    def __init__(self, program: Program, kind: Any) -> None:
        self.program = program
        self.kind = kind
        self.is_ours = kind is not own.DataLoader
        self.draw = Random(f"{program.seed} kills")  # noqa: S311 - no secret
        self.killed = 0

    def _next(self, iterator: Any) -> Any:
        """Return the next batch, written and as it is; ("error", its class) in the place of one."""
        try:
            batch = next(iterator)
        except StopIteration:
            return None, None
        except Exception as error:  # noqa: BLE001 - compared
            return ("error", type(error).__name__), None
        return written(batch), batch

    def _kill(self, iterator: Any) -> None:
        ring = getattr(iterator, "_ring", None)
        # A worker in the place of a dead one reads an iterable again, and meets its error again.
        may_kill = self.is_ours and ring is not None
        may_kill = may_kill and self.program.kind not in (*IMPURE, "breaking")
        if may_kill and self.draw.random() < KILLED and ring.loader._runner.engine is not None:
            with suppress(ProcessLookupError):  # it was killed just before
                os.kill(self.draw.choice(watching.pids(ring.loader)), signal.SIGKILL)
            self.killed += 1

    def _stopped(self, loader: Any, epoch: int) -> tuple[Any, bool]:
        """Return a loader that goes on from a loader's state, and whether in a later epoch."""
        state = json.loads(json.dumps(loader.state_dict()))
        loader = self.program.loader(self.kind, self.program.dataset())
        loader.load_state_dict(state)
        for earlier in range(epoch + 1):
            self.program.steer(loader, earlier)
        return loader, state["epoch"] > epoch

    def run(self) -> list[Any]:
        """Return all that the script sees."""
        program, seen, held = self.program, [], []
        LEVEL[0] = 0
        torch.manual_seed(program.seed)
        random.seed(program.seed)
        np.random.seed(program.seed % 2**32)  # noqa: NPY002 - what scripts do
        loader = program.loader(self.kind, program.dataset())
        for epoch in range(program.epochs):
            program.steer(loader, epoch)
            batches: list[Any] = []
            iterator = iter(loader)
            while True:
                if self.is_ours and program.stop == (epoch, len(batches)):
                    iterator = None
                    loader, is_over = self._stopped(loader, epoch)
                    if is_over:
                        break
                    iterator = iter(loader)
                found, batch = self._next(iterator)
                if found is None:
                    break
                batches.append(found)
                if batch is not None and len(held) < 2 and self.draw.random() < 0.1:
                    held.append((batch, found))
                batch = None
                if len(batches) == program.breaks.get(epoch):
                    break
                self._kill(iterator)
            iterator = None
            seen.append((batches, generators(loader)))
        assert all(written(batch) == found for batch, found in held), (
            "a batch that was held has changed"
        )
        return seen


def run_round(seed: int, outlets: list[str]) -> None:  # noqa: ARG001 - as all faces
    """Run one round; an AssertionError says what differs."""
    program = Program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = _seen(Run(program, own.DataLoader))
        ours = Run(program, ringfeed.torch.DataLoader)
        fed = _seen(ours)
        for epoch, (got, expected) in enumerate(zip(fed, plain, strict=False)):
            assert got == expected, (
                f"{program}; {ours.killed} killed: epoch {epoch} has\n  {got}\nand with torch's "
                f"class\n  {expected}"
            )
        assert len(fed) == len(plain), f"{program}: {fed[-1]} and {plain[-1]}"


def _seen(run: Run) -> list[Any]:
    """Return what a script sees, with the error that ends it."""
    try:
        return run.run()
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - compared
        return [("ends by", type(error).__name__, str(error)[:200])]

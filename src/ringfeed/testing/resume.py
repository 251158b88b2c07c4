"""A proof for a loader: a run that is cut and resumed gives what one uncut gives."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import cloudpickle
import numpy as np

from ringfeed._classes import is_iterable
from ringfeed.errors import StateError
from ringfeed.loader import Loader, runner_of
from ringfeed.orders.prioritized import PrioritizedOrder, PrioritizedSampler
from ringfeed.orders.rng import SampleContext, installed
from ringfeed.spec.forms import Masked, Padded, Ragged
from ringfeed.spec.spec import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Batch: TypeAlias = (
        "tuple[int, int, list[str]]"  # its epoch, its number there, and a hash of each leaf
    )

GLOBAL = (
    "dataset[i] draws from a global random state (random, numpy.random, torch); draw from "
    "ringfeed.rng(), or give the loader reseed=True"
)
_HOOK = (
    "on_epoch_begin() or on_epoch_end() changes the dataset in a way that running it again does "
    "not; give the dataset state_dict() and load_state_dict(), or have it draw from a generator "
    "of its own with a fixed seed"
)
CLOCK = (
    "dataset[i] depends on a clock, on the operating system's random numbers, on a generator of "
    "its own, or on what it was asked for before; make it depend on i and ringfeed.rng() alone"
)
_SAMPLER = (
    "the sampler gives another order each time it is made; seed it by the epoch, or give it "
    "state_dict() and load_state_dict()"
)
ITERABLE = (
    "the iterable gives other elements each time it is read, or its load_state_dict() does not "
    "bring it to where its state_dict() was taken"
)


def check_resume(make_loader: Callable[[], Loader[Any]], *, epochs: int = 2, cuts: int = 8) -> None:
    """Raise AssertionError unless a run that is cut and resumed has the same batches, bit for bit.

    It names the first batch and leaf that differ, and the likely cause.

    make_loader: returns a new loader each time, with a new dataset and sampler, as in another
        process. A `PrioritizedSampler` gets updates that depend on the batch, and its state is kept
        and loaded, too.
    epochs: of each run. cuts: how many places to cut at, spread over the run, the first and the
        last batch among them.

    There are ``cuts + 2`` runs, each of which reads the whole dataset ``epochs`` times. Batches are
    compared by hashes, so memory stays that of one loader.
    """
    make_loader = _with_one_seed(make_loader)
    whole = _run(make_loader, epochs)
    _compare(whole, _run(make_loader, epochs), "in a second run that was not cut", make_loader)
    for stop in sorted({round(place) for place in np.linspace(0, len(whole), cuts)}):
        first, state, powers = _cut(make_loader, epochs, stop)
        resumed = first + _run(make_loader, epochs, state, powers)
        _compare(whole, resumed, f"after a resume at {_place(state)}", make_loader)


def _with_one_seed(make_loader: Callable[[], Loader[Any]]) -> Callable[[], Loader[Any]]:
    """Give all loaders the seed of a first one, where ``seed=None`` has each draw its own."""
    with make_loader() as first:
        seed = first.state_dict()["seed"]

    def make() -> Loader[Any]:
        loader = make_loader()
        if (state := loader.state_dict())["seed"] != seed:
            loader.load_state_dict({**state, "seed": seed})
        return loader

    return make


def _run(
    make_loader: Callable[[], Loader[Any]],
    epochs: int,
    state: dict[str, Any] | None = None,
    powers: Any = None,
) -> list[Batch]:
    with make_loader() as loader:
        if (sampler := _fed(loader)) is not None and powers is not None:
            sampler.load_state_dict(powers)
        if state is not None:
            loader.load_state_dict(state)
            if loader.state_dict() != state:
                raise StateError(
                    f"load_state_dict() and then state_dict() give {loader.state_dict()}, expected "
                    f"{state}"
                )
        return [*_batches(loader, epochs)]


def _cut(
    make_loader: Callable[[], Loader[Any]], epochs: int, stop: int
) -> tuple[list[Batch], dict[str, Any], Any]:
    with make_loader() as loader:
        batches = _batches(loader, epochs)
        first = [*islice(batches, stop)]
        powers = None if (sampler := _fed(loader)) is None else sampler.state_dict()
        return first, json.loads(json.dumps(loader.state_dict())), powers


def _fed(loader: Loader[Any]) -> PrioritizedSampler | None:
    """Return the sampler that updates are fed to."""
    order = runner_of(loader).position.sampler
    return order.sampler if isinstance(order, PrioritizedOrder) else None


def _batches(loader: Loader[Any], epochs: int) -> Iterator[Batch]:
    """Give the rest of some epochs."""
    while loader.epoch < epochs:
        epoch = loader.epoch
        begun = loader.state_dict()["samples"] // (loader.batch_size or 1)
        for number, batch in enumerate(loader, begun):
            hashes = [_hash(leaf) for leaf in loader.spec.flatten(batch, 0, "batch")]
            if (sampler := _fed(loader)) is not None:
                sampler.update(batch[1], (batch[1] + number) % 7 + 1)
            yield epoch, number, hashes
            del batch  # else it holds its slot


def _hash(leaf: Any) -> str:
    if isinstance(leaf, Ragged):
        return _hash(leaf.values) + _hash(leaf.row_splits)
    if isinstance(leaf, (Padded, Masked)):
        return "".join(map(_hash, leaf))
    return hashlib.sha256(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes()).hexdigest()


def _place(state: dict[str, Any]) -> str:
    return f"sample {state['samples']} of epoch {state['epoch']}"


def _compare(
    whole: list[Batch], other: list[Batch], when: str, make_loader: Callable[[], Loader[Any]]
) -> None:
    for (epoch, number, leaves), (_, _, found) in zip(whole, other, strict=False):
        differing = [
            place
            for place, pair in enumerate(zip(leaves, found, strict=True))
            if pair[0] != pair[1]
        ]
        if differing:
            with make_loader() as loader:
                path, cause = loader.spec.leaves[differing[0]].path, _cause(loader)
            raise AssertionError(
                f"batch {number} of epoch {epoch} differs in {path} {when}. A likely cause: {cause}"
            )
    if len(whole) != len(other):
        raise AssertionError(
            f"{len(other)} batches came {when}, expected {len(whole)}. A likely cause: {_SAMPLER}"
        )


def _cause(loader: Loader[Any]) -> str:
    """Say why two readings are likely to differ, from reading a sample of the dataset again."""
    dataset = loader.dataset
    if is_iterable(dataset):
        return ITERABLE
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, (tuple, dict)):
        return _SAMPLER
    if _reads_alike(loader, seeded=False):
        return (
            _HOOK
            if any(hasattr(dataset, name) for name in ("on_epoch_begin", "on_epoch_end"))
            else _SAMPLER
        )
    return GLOBAL if _reads_alike(loader, seeded=True) else CLOCK


def _reads_alike(loader: Loader[Any], *, seeded: bool) -> bool:
    """Whether a sample is the same twice; ``seeded``: with the global states seeded before."""
    found = []
    for _ in range(2):
        if seeded:
            seed_globals()
        context, before = SampleContext(0, index=0), installed.context
        try:
            installed.context = context
            sample = loader.dataset[0]
        finally:
            installed.context = before
        found.append(hash_of(sample))
    return found[0] == found[1]


def hash_of(sample: Any) -> str:
    """Return a hash of all that a sample holds."""
    return " ".join(map(_hash, _leaves(sample)))


def _leaves(sample: Any) -> Iterator[Any]:
    sample = plain(sample)
    if isinstance(sample, (tuple, list, dict)):
        for child in sample.values() if isinstance(sample, dict) else sample:
            yield from _leaves(child)
    else:
        found = np.asarray(sample.detach() if hasattr(sample, "detach") else sample)
        # An array of objects has their places in memory.
        yield np.asarray(cloudpickle.dumps(sample)) if found.dtype.hasobject else found


def seed_globals() -> None:
    """Seed the global states that users' code draws from."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what users' code draws from
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)

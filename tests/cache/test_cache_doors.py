"""A `ringfeed.Cache` in a share, packed, and amid a run that goes on."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest

import ringfeed
import shared
from cached import COUNT, Awaited, Drawn, Images, Structured, augmented, digest, run
from ringfeed.datasets import Mix, Pack
from ringfeed.orders import Buckets
from ringfeed.testing import check_resume

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MEMORY = "5MB"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or each worker would import pytest


def logged(log: Path) -> list[int]:
    """Return what was read of a dataset with a log, sorted."""
    return sorted(map(int, log.read_text().split()))


# ---- shares ----


def test_a_share_has_a_cache(tmp_path: Path) -> None:
    """Its host process makes it, or it is the trainings' own file."""
    path = tmp_path / "cache.rf"
    share = shared.Share()

    def make() -> ringfeed.Loader[Any]:
        cache = ringfeed.Cache(Images(), path=path)
        return ringfeed.Loader(cache, batch_size=6, shuffle=True, workers=1)

    try:
        trainings = share.all(2, make=make)
        for _ in range(2):
            for one, other in shared.together(*trainings):
                assert one[1].tolist() == other[1].tolist()
                for image, index in zip(*one, strict=True):
                    np.testing.assert_array_equal(image, Images().image(int(index)))
            cache = ringfeed.Cache(Images(), path=path)
            assert cache.stats().samples == COUNT
    finally:
        share.end()
    assert run(cache, workers=0) == run(Images(), workers=0)
    assert cache.stats().misses == 0


# ---- packed ----


class Texts:
    """Texts that a tokeniser makes numbers of; each that is read leaves a line."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        return 1000 * (index + 1) + np.arange(index % 17, dtype=np.int32)


def elements(batches: Iterable[Any]) -> list[int]:
    """Return all elements of rows but padding, sorted."""
    return sorted(
        int(one) for batch in batches for one in batch["tokens"][batch["segment_ids"] > 0]
    )


ALL = elements(
    [{"tokens": text, "segment_ids": text} for text in map(Texts().__getitem__, range(90))]
)


@pytest.mark.parametrize("knows", [True, False])
def test_a_pack_of_a_cache(knows: bool) -> None:  # noqa: FBT001 - a parameter
    """With lengths and without: rows are those without a cache."""
    lengths = [index % 17 for index in range(90)] if knows else None

    def rows(dataset: Any) -> list[bytes]:
        pack = Pack(dataset, lengths, max_length=32, window=30)
        with ringfeed.Loader(pack, batch_size=4, shuffle=True, seed=3, workers=2) as loader:
            found = [batch["tokens"].tobytes() for _ in range(2) for batch in loader]
            if isinstance(dataset, ringfeed.Cache):
                assert len(loader.plan.caches) == 1
        return found

    cache = ringfeed.Cache(Texts(), memory=MEMORY)
    assert rows(cache) == rows(Texts())
    assert cache.stats().samples == 90 - knows * len(range(0, 90, 17))


def test_a_cache_of_a_pack_is_refused() -> None:
    """The other way round is meant."""
    pack = Pack(Texts(), max_length=32)
    with pytest.raises(TypeError) as caught:
        ringfeed.Cache(pack, memory=MEMORY)
    assert str(caught.value) == (
        "Cache() of a Pack, which has an order of its own; make a Pack of caches"
    )


def test_ranks_that_fill_their_shares_tokenise_each_text_once(tmp_path: Path) -> None:
    """And have the lengths of all, of which each rank then reads its own rows alone."""
    log, path = tmp_path / "read", tmp_path / "tokens.rf"

    def lengths_of(shard: ringfeed.Shard | None) -> np.ndarray[Any, Any]:
        tokens = ringfeed.Cache(Texts(log), path=path)
        with ringfeed.Loader(tokens, batch_size=7, transform=len, shard=shard, workers=1) as loader:
            return np.concatenate([batch.copy() for batch in loader])

    for rank in range(2):
        assert len(lengths_of(ringfeed.Shard(rank, 2))) == 45
    found = []
    for rank in range(2):
        lengths = lengths_of(None)
        assert lengths.tolist() == [index % 17 for index in range(90)]
        pack = Pack(ringfeed.Cache(Texts(log), path=path), lengths, max_length=32)
        shard = ringfeed.Shard(rank, 2, "keep")
        with ringfeed.Loader(pack, batch_size=2, shuffle=True, shard=shard, workers=1) as loader:
            found += [*map(_copied, loader)]
    assert elements(found) == ALL
    assert [*dict.fromkeys(logged(log))] == [*range(90)]
    # A rank's first sample is read for the spec, before the other rank has filled its share.
    assert len(logged(log)) <= 91


def _copied(batch: Any) -> Any:
    return {name: leaf.copy() for name, leaf in batch.items()}


def test_ranks_of_a_pack_without_lengths_share_a_cache(tmp_path: Path) -> None:
    """One after another, only the first tokenises texts; the rows are each once."""
    log, path = tmp_path / "read", tmp_path / "tokens.rf"
    found, reads = [], []
    for rank in range(2):
        pack = Pack(ringfeed.Cache(Texts(log), path=path), max_length=32, window=30)
        shard = ringfeed.Shard(rank, 2, "keep")
        with ringfeed.Loader(pack, batch_size=2, shuffle=True, shard=shard, workers=2) as loader:
            found += [*map(_copied, loader)]
        reads.append(logged(log))
    assert elements(found) == ALL
    # Where epochs meet, two workers may read one text at once.
    assert {*reads[0]} == {*range(90)}
    assert reads[1] == reads[0]


# ---- a run that goes on ----

RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rows": (Images, {}),
    "a transform": (Images, {"transform": augmented}),
    "all kinds of leaves": (Structured, {}),
    "awaited": (Awaited, {}),
    "drawn": (Drawn, {}),
    "buckets": (
        Images,
        {"batch_sampler": Buckets(np.arange(COUNT), [20, 40], batch_sizes=[4, 5, 6])},
    ),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_goes_on_with_a_cache(kind: str) -> None:
    """From any batch, with the file that it has filled so far."""
    dataset, settings = RUNS[kind]
    cache = ringfeed.Cache(dataset(), memory=MEMORY)
    if "batch_sampler" not in settings:
        settings = {"batch_size": 7, "shuffle": True, **settings}
    check_resume(lambda: ringfeed.Loader(cache, workers=1, **settings), cuts=3)


def test_a_mix_of_caches_goes_on() -> None:
    """With the weights' counts."""
    caches = [ringfeed.Cache(Images(count), memory=MEMORY) for count in (COUNT, 20)]
    make = partial(ringfeed.Loader, Mix(caches, [2, 1]), batch_size=6, shuffle=True, workers=1)
    check_resume(make, cuts=3)


def test_a_pack_of_a_cache_goes_on() -> None:
    """Amid a window: its texts are found and not tokenised again."""
    cache = ringfeed.Cache(Texts(), memory=MEMORY)

    def make() -> ringfeed.Loader[Any]:
        pack = Pack(cache, max_length=32, window=30)
        return ringfeed.Loader(pack, batch_size=2, shuffle=True, seed=3, workers=1, copy=True)

    check_resume(make, cuts=4)
    misses = cache.stats().misses
    with make() as loader:
        batches = iter(loader)
        for _ in range(6):
            next(batches)
        state = loader.state_dict()
        del batches
    with make() as loader:
        loader.load_state_dict(state)
        assert len([*loader]) > 0
    assert cache.stats().misses == misses


def test_a_state_goes_on_in_another_process_with_its_file(tmp_path: Path) -> None:
    """The next run has the rest of the epoch, and reads only what was not kept."""
    path = tmp_path / "cache.rf"
    make = partial(ringfeed.Loader, batch_size=6, shuffle=True, seed=3, workers=1)
    with make(Images()) as loader:
        expected = digest(loader, 2)
    cache = ringfeed.Cache(Images(), path=path)
    with make(cache) as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
        state = loader.state_dict()
    kept = cache.stats().samples
    cache = ringfeed.Cache(Images(), path=path)
    with make(cache) as loader, make(Images()) as other:
        for one in (loader, other):
            one.load_state_dict(state)
        assert digest(loader) == digest(other)
    assert cache.stats().misses == COUNT - kept
    with make(cache) as loader:
        assert digest(loader, 2) == expected

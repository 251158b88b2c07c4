"""A loader of a `ringfeed.Cache`: the same batches, random numbers and states as without it; each sample is read once."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from cache_kills import Large
from cached import (
    COUNT,
    Awaited,
    AwaitedDrawn,
    Batches,
    Bulk,
    Drawn,
    Images,
    Into,
    Lengths,
    NotReadAhead,
    Structured,
    augmented,
    digest,
    inverted,
    mirrored,
    run,
    shifted,
    stacked,
)
from ringfeed.datasets import Mix
from ringfeed.orders import Buckets, PrioritizedSampler, WeightedSampler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMORY = "20MB"
CONVERTED = (
    ringfeed.Array((3, 8, 8), "float32", scale=1 / 255, layout="CHW"),
    ringfeed.Array((), "float32", cast=True),
)
FORMS: dict[str, tuple[type[Images], dict[str, Any]]] = {
    "rows of the slot": (Images, {}),
    "rows that are converted": (Images, {"spec": CONVERTED}),
    "a transform": (Images, {"transform": augmented}),
    "a transform in place": (Images, {"transform": inverted}),
    "a batch_transform": (Images, {"batch_transform": mirrored}),
    "a collate_fn": (Images, {"collate_fn": stacked}),
    "all kinds of leaves": (Structured, {}),
    "lengths": (Lengths, {"spec": Lengths.SPEC}),
    "__getitems__": (Bulk, {}),
    "__getitems__ and a transform": (Bulk, {"transform": augmented}),
    "read_into": (Into, {}),
    "read_into and a transform": (Into, {"transform": augmented}),
    "read_into beside others": (Into, {"concurrency": 6}),
    "an async dataset": (Awaited, {}),
    "samples in flight": (Images, {"concurrency": 6}),
    "samples in flight and a transform": (Images, {"concurrency": 6, "transform": augmented}),
    "whole batches": (Batches, {"batch_size": None, "max_batch_size": 3}),
    "reseed": (Images, {"reseed": True}),
    "skipped errors": (Images, {"on_error": "skip"}),
}
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"shuffle": False},
    "windows": lambda: {"shuffle": 10},
    "weights": lambda: {"sampler": WeightedSampler(np.arange(COUNT) + 1.0)},
    "priorities": lambda: {"sampler": PrioritizedSampler(COUNT)},
    "buckets": lambda: {
        "batch_sampler": Buckets(np.arange(COUNT), [20, 40], batch_sizes=[4, 5, 6]),
    },
    "a rank": lambda: {"shard": ringfeed.Shard(1, 2)},
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
}


WORKERS = [
    *((form, backend) for form in FORMS for backend in ("process", "thread")),
    *(("rows of the slot", backend) for backend in ("fork", "spawn")),
]


@pytest.mark.parametrize(("form", "backend"), WORKERS)
def test_batches_are_those_without_a_cache(form: str, backend: Any) -> None:
    """In each form, with each kind of workers: three epochs, of which the first fills the cache."""
    kind, settings = FORMS[form]
    if settings.get("reseed") and backend == "thread":
        pytest.skip("refused in threads")
    cache = ringfeed.Cache(kind(), memory=MEMORY)
    assert run(cache, backend=backend, **settings) == run(kind(), backend=backend, **settings)
    stats = cache.stats()
    assert stats[2:5] == (0, 0, COUNT)
    # Where epochs meet, two workers may read one sample at once.
    assert stats.misses >= COUNT
    assert stats.hits + stats.misses >= 3 * COUNT


@pytest.mark.parametrize("form", FORMS)
def test_batches_without_workers(form: str) -> None:
    """The consumer that fills its own batches does so by the cache, too."""
    kind, settings = FORMS[form]
    cache = ringfeed.Cache(kind(), memory=MEMORY)
    assert run(cache, workers=0, **settings) == run(kind(), workers=0, **settings)
    assert cache.stats()[1:5] == (COUNT, 0, 0, COUNT)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_as_without_a_cache(order: str) -> None:
    """The cache knows indices alone, so no order changes."""
    cache = ringfeed.Cache(Images(), memory=MEMORY)
    assert run(cache, **ORDERS[order]()) == run(Images(), **ORDERS[order]())


def test_each_sample_is_read_once(tmp_path: Path) -> None:
    """By all workers of two loaders, in three epochs each."""
    log = tmp_path / "read"
    cache = ringfeed.Cache(NotReadAhead(log=log), memory=MEMORY)
    run(cache)
    run(cache, workers=1, batch_size=5, transform=augmented)
    assert sorted(map(int, log.read_text().split())) == [*range(COUNT)]


def test_two_loaders_at_once_share_one_copy(tmp_path: Path) -> None:
    """Each reads the half that the other has not read yet, or finds it."""
    log = tmp_path / "read"
    cache = ringfeed.Cache(Images(log=log), memory=MEMORY)
    make = partial(ringfeed.Loader, cache, batch_size=6, workers=2)
    with make() as first, make(transform=augmented) as second:
        pairs = [(a[1].tolist(), b[1].tolist()) for a, b in zip(first, second, strict=True)]
    assert all(a == b for a, b in pairs)
    assert cache.stats().samples == COUNT


def test_a_full_cache_reads_as_before() -> None:
    """What fits is found, all else is read in each epoch, and the plan says how much fits."""
    cache = ringfeed.Cache(Images(), memory=20_000)
    with ringfeed.Loader(cache, batch_size=6, workers=2, shuffle=True) as loader:
        (room,) = loader.plan.caches
        kept = digest(loader)
    assert str(room) == f"{room.size / 1000:.1f} kB for a cache of {room.samples} of 60 samples"
    with ringfeed.Loader(Images(), batch_size=6, workers=2, shuffle=True) as loader:
        assert digest(loader) == kept
    stats = cache.stats()
    assert 0 < stats.samples == room.samples < COUNT
    assert stats.left_out >= 3 * (COUNT - room.samples)
    assert stats.size <= 20_480  # whole pages


def test_what_pickle_refuses_is_read_as_before() -> None:
    """A sample with an object that no other process can have is left out; its rows are right."""

    class Locked(Images):
        def __getitem__(self, index: int) -> Any:
            import threading  # noqa: PLC0415 - of the sample alone

            return self.image(index), threading.Lock()

    def without(sample: Any) -> Any:
        return sample[0]

    cache = ringfeed.Cache(Locked(), memory=MEMORY)
    assert run(cache, transform=without) == run(Locked(), transform=without)
    assert cache.stats().samples == 0
    assert cache.stats().left_out >= 3 * COUNT


def test_a_mix_of_caches() -> None:
    """Each of its datasets may be one."""
    caches = [ringfeed.Cache(Images(), memory=MEMORY), ringfeed.Cache(Images(20), memory=MEMORY)]
    assert run(Mix(caches)) == run(Mix([Images(), Images(20)]))
    assert [cache.stats().samples for cache in caches] == [COUNT, 20]
    with ringfeed.Loader(Mix(caches), workers=2) as loader:
        assert [room.samples for room in loader.plan.caches] == [COUNT, 20]


def test_a_state_goes_on_with_and_without_a_cache() -> None:
    """A loader of the dataset loads the state of a loader of the cache, and the other way round."""
    cache = ringfeed.Cache(Images(), memory=MEMORY)
    make = partial(ringfeed.Loader, batch_size=7, shuffle=True, workers=1)
    for first, second in [(cache, Images()), (Images(), cache)]:
        with make(first) as loader, make(second) as other:
            batches = iter(loader)
            next(batches)
            other.load_state_dict(loader.state_dict())
            rest = [batch[1].tolist() for batch in batches]
            assert [batch[1].tolist() for batch in other] == rest


@pytest.mark.parametrize("kind", [Drawn, AwaitedDrawn])
def test_a_sample_that_draws_is_kept_as_epoch_0_has_it(kind: type[Images]) -> None:
    """Whoever reads it first, and in whichever epoch; so a loader's batches depend on no timing."""
    cache = ringfeed.Cache(kind(), memory=MEMORY)
    with ringfeed.Loader(kind(), batch_size=COUNT, workers=2) as loader:
        (want,) = (batch[0].copy() for batch in loader)
    with ringfeed.Loader(cache, batch_size=COUNT, workers=2) as loader:
        loader.set_epoch(5)
        for _ in range(2):
            (found,) = (batch[0].copy() for batch in loader)
            np.testing.assert_array_equal(found, want)


def test_a_transform_draws_alike_whether_a_sample_was_found() -> None:
    """Its random numbers begin anew behind a sample that draws, too."""
    cache = ringfeed.Cache(Drawn(), memory=MEMORY)
    first = run(cache, transform=shifted)
    misses = cache.stats().misses
    assert run(cache, transform=shifted) == first
    assert cache.stats().misses == misses


def test_errors_of_samples_are_as_before() -> None:
    """A sample that raises is not kept, and is named as without a cache."""

    class Faulty(Images):
        def __getitem__(self, index: int) -> Any:
            if index == 17:
                raise ValueError("torn")
            return self.image(index), index

    cache = ringfeed.Cache(Faulty(), memory=MEMORY)
    with (
        ringfeed.Loader(cache, batch_size=6, workers=2) as loader,
        pytest.raises(ringfeed.WorkerError, match=r"^dataset\[17\] raised ValueError: torn"),
    ):
        digest(loader)
    with ringfeed.Loader(cache, batch_size=6, workers=2, on_error="skip") as loader:
        assert sum(len(batch[1]) for batch in loader) == COUNT - 1
        assert loader.stats().skipped == [17]


def test_a_dataset_that_changes_is_refused() -> None:
    """Samples of before never come for samples of now."""
    dataset = Images()
    cache = ringfeed.Cache(dataset, memory=MEMORY)
    with ringfeed.Loader(cache, batch_size=6, workers=1) as loader:
        for _ in range(2):
            digest(loader, 1)
        dataset.count = 59
        with pytest.raises(ringfeed.StateError) as caught:
            iter(loader)
    assert str(caught.value) == (
        "the dataset has changed since its Cache was made, whose samples are those of before; make "
        "a new Cache, or do what changes in transform=, which comes after it"
    )


def test_hooks_of_the_dataset_run(tmp_path: Path) -> None:
    """The cache has those of its dataset."""

    class Hooked(Images):
        def on_epoch_end(self) -> None:
            with (tmp_path / "ends").open("a") as file:
                file.write("end ")

    cache = ringfeed.Cache(Hooked(), memory=MEMORY)
    with ringfeed.Loader(cache, batch_size=6, backend="thread", workers=1) as loader:
        digest(loader, 2)
    assert (tmp_path / "ends").read_text() == "end end "


def test_a_cache_is_a_dataset() -> None:
    """It has samples by number, as the dataset gives them, for the caller to change."""
    cache = ringfeed.Cache(Structured(), memory=MEMORY)
    for _ in range(2):
        sample = cache[7]
        plain = Structured()[7]
        assert type(sample["pair"]) is type(plain["pair"])
        assert [*map(type, sample["list"])] == [bool, np.int16, type(None)]
        np.testing.assert_array_equal(sample["parts"], plain["parts"])
        sample["turned"][...] = 0
    assert len(cache) == COUNT
    assert (cache.stats().hits, cache.stats().misses) == (1, 1)
    assert not hasattr(cache, "read_into")
    bulk = ringfeed.Cache(Bulk(), memory=MEMORY)
    for _ in range(2):
        assert [label for _, label in bulk.__getitems__([3, 1, 3])] == [3, 1, 3]
    assert repr(cache) == "<Cache of Structured, 60 samples, in memory>"


def test_a_child_that_was_forked_has_the_cache() -> None:
    """Of a program that forks by itself; each process has locks of its own: this one holds one."""
    cache = ringfeed.Cache(Images(), memory=MEMORY)
    cache[0]
    assert cache.file._lock(5, fcntl.F_WRLCK)
    child = os.fork()
    if not child:
        for index in range(COUNT):
            cache[index]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.stats()[:5] == (1, COUNT, 0, 0, COUNT - 1)


def test_a_record_that_kills_a_worker_is_not_read_again(tmp_path: Path) -> None:
    """A page that cannot be read is a SIGBUS; the rows of that claim then come from the dataset."""

    class NotReadAhead(Large):
        def on_epoch_end(self) -> None:
            """Do nothing."""

    cache = ringfeed.Cache(NotReadAhead(32), path=tmp_path / "cache.rf")
    spec = (
        ringfeed.Array((None,), "uint8", max_shape=(40_000,), form="ragged"),
        ringfeed.Array((), "int64"),
        ringfeed.Text(64),
    )
    with ringfeed.Loader(cache, batch_size=16, workers=1, spec=spec) as loader:
        want = digest(loader, 1)
        assert digest(loader, 1) == want  # all is mapped now
        os.truncate(tmp_path / "cache.rf", 16 * 4096)
        assert digest(loader, 1) == want
        assert loader.stats().restarts >= 1


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: ringfeed.Cache(Images()),
        ValueError,
        "give memory=, as in '8GB', or path=, or both",
    ),
    (
        lambda: ringfeed.Cache((np.zeros(3),), memory=MEMORY),
        TypeError,
        "Cache() of a tuple, whose arrays are gathered in C as they are; give it to the loader",
    ),
    (
        lambda: ringfeed.Cache((i for i in range(3)), memory=MEMORY),
        TypeError,
        "Cache() of a generator, whose elements have no numbers; give an object with __len__ and "
        "__getitem__",
    ),
    (
        lambda: ringfeed.Cache(Mix([Images()]), memory=MEMORY),
        TypeError,
        "Cache() of a Mix, which has an order of its own; make a Mix of caches",
    ),
    (
        lambda: ringfeed.Cache(type("Endless", (), {"__getitem__": int})(), memory=MEMORY),
        TypeError,
        "Cache() of a Endless, which has no length; give it a __len__",
    ),
    (
        lambda: ringfeed.Cache(Images(1000), memory="10kB"),
        ringfeed.PlanError,
        "memory='10kB' holds no sample: the table of 1,000 samples takes 36.9 kB; allow more",
    ),
]


@pytest.mark.parametrize(("make", "kind", "text"), REFUSED)
def test_what_is_refused(make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    """With what to give instead."""
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == text

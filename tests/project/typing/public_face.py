"""The public face as a type checker sees it: `make lint` checks this file, nobody runs it.

An ignored error is a promise too: mypy complains where it is no error any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import numpy.typing as npt

import ringfeed

if TYPE_CHECKING:
    from typing import TypeAlias

    Pair: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


class Squares:
    """A dataset as small as they come."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 100

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], int]:
        """Return a number and its square."""
        return np.full(4, index, np.float32), index * index


def every_option() -> ringfeed.Loader:
    """Give each option of a loader a value of each type that it takes."""
    ringfeed.Loader(Squares(), batch_size=None, sampler=[3, 1, 2], slots=4, max_batch_size=8)
    ringfeed.Loader(Squares(), shuffle=10_000, seed=None)
    ringfeed.Loader(Squares(), batch_sampler=[[1, 2], [3]], max_batch_size=2)
    buckets = ringfeed.orders.Buckets(
        np.ones(100), (5.5, 8), max_tokens=99, window=50, cost=lambda lengths: lengths.sum()
    )
    ringfeed.Loader(Squares(), batch_sampler=buckets, drop_remainder=True)
    ringfeed.Loader(
        Squares(), batch_sampler=ringfeed.orders.Buckets([1] * 100, [5], batch_sizes=[4, 2])
    )
    ringfeed.Loader(
        Squares(),
        sampler=ringfeed.orders.WeightedSampler(np.ones(100), num_samples=50, replacement=False),
    )
    ringfeed.Loader(Squares(), sampler=ringfeed.orders.SubsetSampler(range(9), shuffle=False))
    ringfeed.Loader(Squares(), sampler=ringfeed.orders.StratifiedSampler(["a", "b"] * 50))
    prioritized = ringfeed.orders.PrioritizedSampler(
        100, alpha=0.6, beta=lambda step: step / 9, num_samples=50, filled=0
    )
    prioritized.update(np.arange(3), [0.1, 0.2, 0.3])
    prioritized.add(5)
    prioritized.load_state_dict(prioritized.state_dict())
    ringfeed.Loader(Squares(), sampler=prioritized)
    ringfeed.Loader(Squares(), sampler=ringfeed.orders.WindowShuffle(50, block=10))
    ringfeed.Loader(
        (np.zeros(3), np.zeros(3)), memory=1 << 20, spec=(ringfeed.Array((), "float64"),) * 2
    )
    ringfeed.Loader(
        {"x": np.zeros(3)}, memory="512MB", workers=0, backend="thread", on_error="skip"
    )
    ringfeed.Loader(
        Squares(),
        collate_fn=lambda samples: np.stack([root for root, _ in samples]),
        max_batch_size=64,
    )
    pack = ringfeed.datasets.Pack(
        [[1, 2], [3]], np.array([2, 1]), 4, strategy="wrap", window=9, segment_ids=False
    )
    ringfeed.Loader(pack, batch_size=len(pack))
    ringfeed.Loader(Squares(), shard=ringfeed.Shard(1, 4, uneven="keep")).padding.bit_length()
    ringfeed.Loader(Squares(), shard="auto")
    ringfeed.Loader(Squares(), shard=ringfeed.Shard.find(uneven="drop"))
    return ringfeed.Loader(
        Squares(),
        batch_size=32,
        shuffle=True,
        seed=0,
        drop_remainder=True,
        workers=4,
        backend="spawn",
        copy=True,
        reseed=True,
        timeout_s=2.5,
        on_stall="restart",
        on_error="raise",
        max_attempts=3,
    )


def every_use(loader: ringfeed.Loader) -> None:
    """Use a loader; what comes back has a type."""
    with loader as same:
        assert_type(same, ringfeed.Loader)
        for x, y in same:
            del x, y
    assert_type(len(loader), int)
    assert_type(loader.spec, ringfeed.Spec)
    assert_type(loader.plan, ringfeed.Plan)
    assert_type(loader.memory, int)
    assert_type(loader.stats().stall_s, float)
    assert_type(loader.stats().batches, int)
    loader.set_epoch(3)
    loader.close()


def typed_batches() -> None:
    """Say once what a batch is: the loop, and the names in it, have a type.

    A batch is Any where nothing is said.
    """
    loader: ringfeed.Loader[Pair] = ringfeed.Loader(Squares())
    for x, y in loader:
        assert_type(x, npt.NDArray[np.float32])
        assert_type(y, npt.NDArray[np.int64])
    assert_type(next(iter(loader)), Pair)
    assert_type(next(loader.repeat(2)), Pair)
    with ringfeed.Loader[dict[str, "npt.NDArray[np.uint8]"]](
        {"x": np.zeros(3, np.uint8)}
    ) as columns:
        assert_type(next(iter(columns))["x"], npt.NDArray[np.uint8])
    untold = ringfeed.Loader(Squares(), batch_size=8)
    assert_type(untold, ringfeed.Loader[Any])
    assert_type(next(iter(untold)), Any)
    any_arrays: ringfeed.Loader[tuple[npt.NDArray[Any], ...]] = loader  # a wider type takes it
    del any_arrays


def wrong_uses() -> None:
    """Misuse a loader; each is an error before anything runs."""
    ringfeed.Loader(Squares(), 32)  # type: ignore[call-arg]
    ringfeed.Loader(Squares(), batchsize=32)  # type: ignore[call-arg]
    ringfeed.Loader(Squares(), workers="four")  # type: ignore[arg-type]
    ringfeed.Loader(Squares(), backend="processes")  # type: ignore[arg-type]
    ringfeed.Loader(Squares(), backend="vfork")  # type: ignore[arg-type]


def inside_a_dataset(index: int) -> npt.NDArray[np.float64]:
    """Draw from the generator of the sample."""
    assert_type(ringfeed.rng(), np.random.Generator)
    return ringfeed.rng().random(index)


assert_type(ringfeed.Array((224, 224, 3), "uint8").shape, tuple[int, ...])
assert_type(ringfeed.Array((), np.int64).dtype, np.dtype[Any])
assert_type(
    ringfeed.Array((3,), "float32", scale=1 / 255, mean=[0.5] * 3, std=2).cast, ringfeed.Cast | None
)
assert_type(
    ringfeed.Cast("float16", scale=1 / 255, mean=(0.5, 0.5), layout="CHW").scale, float | None
)

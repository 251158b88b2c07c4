"""Turns a loader's parameters of order into a sampler and this rank's part of its epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ringfeed._checks import check_count
from ringfeed.orders.sampler import SeededSampler, Sequential, check_integer, check_seed, draw_seed
from ringfeed.orders.shard import Part, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Uneven


class _Default(int):
    """A default; its identity tells it from the same number given by a caller."""


DEFAULT_BATCH_SIZE = _Default(32)


class AskedOrder:
    """The loader's parameters of these names, checked together."""

    def __init__(  # noqa: PLR0913 - as the loader has
        self,
        *,
        batch_size: int | None,
        max_batch_size: int | None,
        seed: int | None,
        shard: Shard | str | None,
        drop_remainder: bool,
        batch_sampler: Any,
        sampler: Any,
        shuffle: bool | int,
        collates: bool,
    ) -> None:
        """Check the parameters, in this order; ``collates``: a function makes the batches."""
        self.batch_size = self.rows = check_count("batch_size", batch_size, 1)
        """None: whole batches, or lists; ``rows``: the most samples, None: whole batches."""
        most = self.max_batch_size = check_count("max_batch_size", max_batch_size, 1)
        self.seed = draw_seed() if seed is None else check_seed(seed)
        self.seed_is_drawn = seed is None
        self.shard = this = Shard.of(shard)
        self.shuffle = shuffle
        self.given = self.sampler = sampler
        uneven: Uneven = "drop" if drop_remainder else this.uneven
        if batch_sampler is not None:
            from ringfeed.orders.buckets import Buckets  # noqa: PLC0415 - where lists are wanted
            from ringfeed.orders.custom import Lists  # noqa: PLC0415 - where lists are wanted

            of_buckets = isinstance(batch_sampler, Buckets)
            beside = {
                "batch_size": batch_size is not DEFAULT_BATCH_SIZE,
                "shuffle": shuffle is not None and shuffle is not False,
                "sampler": sampler is not None,
                "drop_remainder": drop_remainder and not of_buckets,
            }
            if names := [f"{name}=" for name, is_given in beside.items() if is_given]:
                raise ValueError(
                    "batch_sampler= says which samples each batch has; leave "
                    f"{' and '.join(names)} out"
                )
            self.given = batch_sampler
            self.sampler = (
                batch_sampler.shared_by(this.world_size, uneven, most)
                if of_buckets
                else Lists(batch_sampler, most)
            )
            self.batch_size, self.rows = None, self.sampler.most
            self.max_batch_size = most if collates else None
        this.check(self.sampler, seed)
        self.part = Part(this.rank, this.world_size, self.batch_size or 1, uneven)
        """Of each epoch; an order of lists counts these."""
        self.carries_weights: bool = (
            isinstance(self.sampler, SeededSampler) and self.sampler.carries_weights
        )

    def refuse_weights(self) -> None:
        """Raise ValueError if Keras' ``fit`` has no place for a leaf of the batches."""
        if self.carries_weights:
            raise ValueError(
                "to_keras() with a PrioritizedSampler: fit reads a batch of three as (x, y, "
                "sample_weight), and these are (sample, index, weight); write the loop: for (x, "
                "y), index, weight in loader: model.train_on_batch(x, y, sample_weight=weight), "
                "and then sampler.update(index, errors)"
            )

    @property
    def shared_part(self) -> Part | None:
        """The part of this rank; None without other ranks."""
        return self.part if self.part.world_size > 1 else None


def make_sampler(
    length: int | None,
    *,
    shuffle: bool | int,
    seed: int,
    sampler: SeededSampler | Iterable[int] | Callable[[int], Iterable[int]] | None,
) -> Sampler:
    """Return the order for a loader's arguments.

    ``length``: of the dataset; None: unknown.
    """
    seed, window = check_seed(seed), None
    if not isinstance(shuffle, bool | np.bool_):
        expected = "True, False, or the samples of a window, an integer of 2 or more"
        window = check_integer("shuffle", shuffle, 2, expected)
    if sampler is not None and shuffle:
        raise ValueError(
            f"shuffle={shuffle!r} and sampler= exclude each other: give the one or the other"
        )
    if isinstance(sampler, SeededSampler):
        return sampler.bind(length, seed)
    if sampler is not None:
        from ringfeed.orders.custom import Custom  # noqa: PLC0415 - where it is wanted

        return Custom(sampler, length)
    if not shuffle:
        return Sequential(length)
    if length is None:
        raise ValueError(
            f"shuffle={shuffle!r} needs a dataset with a length; shuffle inside the dataset instead"
        )
    if window is not None:
        from ringfeed.orders.windows import WindowShuffle  # noqa: PLC0415 - where it is wanted

        return WindowShuffle(window).bind(length, seed)
    from ringfeed.orders.permutation import Shuffled  # noqa: PLC0415 - where it is wanted

    return Shuffled(length, seed)


def refuse_order(shuffle: object, sampler: object, why: str) -> NoReturn:
    """Raise ValueError for a parameter whose order the dataset cannot have."""
    parameter = sampler.parameter if isinstance(sampler, SeededSampler) else "sampler"
    given = f"shuffle={shuffle!r}" if sampler is None else f"{parameter}="
    raise ValueError(f"{given} {why}")

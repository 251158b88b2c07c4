"""Turns a loader's parameters of order into an order and this rank's part of its epochs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ringfeed._checks import check_count, check_integer
from ringfeed.orders.sampler import Sampler, Sequential
from ringfeed.orders.shard import Part, Shard, Uneven


class _Default(int):
    """A default; its identity tells it from the same number given by a caller."""


DEFAULT_BATCH_SIZE = _Default(32)


class OrderParameters:
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
        self.seed_is_drawn = seed is None
        # A drawn seed has 53 bits, which every reader of JSON keeps.
        drawn = int.from_bytes(os.urandom(7), "little") >> 3
        self.seed = drawn if seed is None else check_integer("seed", seed, 0)
        self.shard = this = Shard.of(shard)
        self.shuffle = shuffle
        self.given = sampler
        uneven: Uneven = "drop" if drop_remainder else this.uneven
        if batch_sampler is None:
            self.sampler = sampler_of(shuffle=shuffle, sampler=sampler)
            """The order; the dataset binds it."""
        else:
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
            lists = (
                batch_sampler.shared_by(this.world_size, uneven, most)
                if of_buckets
                else Lists(batch_sampler, most)
            )
            self.sampler, self.batch_size, self.rows = lists, None, lists.most
            self.max_batch_size = most if collates else None
        this.check(self.sampler, self.given, seed)
        self.part = Part(this.rank, this.world_size, self.batch_size or 1, uneven)
        """Of each epoch; an order of lists counts these."""

    def refuse_weights(self) -> None:
        """Raise ValueError if Keras' ``fit`` has no place for a leaf of the batches."""
        if self.sampler.carries_weights:
            raise ValueError(
                "to_keras() with a PrioritizedSampler: fit reads a batch of three as (x, y, "
                "sample_weight), and these are (sample, index, weight); write the loop: for (x, "
                "y), index, weight in loader: model.train_on_batch(x, y, sample_weight=weight), "
                "and then sampler.update(index, errors)"
            )


def sampler_of(*, shuffle: bool | int, sampler: Any = None) -> Sampler:
    """Return the order that the loader's parameters ``shuffle`` and ``sampler`` ask for."""
    window = None
    if not isinstance(shuffle, bool | np.bool_):
        try:
            window = check_integer("shuffle", shuffle, 2)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}, the samples of a window; or give True or False") from None
    if sampler is not None and shuffle:
        raise ValueError(
            f"shuffle={shuffle!r} and sampler= exclude each other: give the one or the other"
        )
    if isinstance(sampler, Sampler):
        if sampler.given_as == "batch_sampler=":
            raise ValueError(
                f"{type(sampler).__name__} gives whole batches: give it as {sampler.given_as}, and "
                "leave sampler= out"
            )
        return sampler
    if sampler is not None:
        from ringfeed.orders.custom import Custom  # noqa: PLC0415 - where it is wanted

        return Custom(sampler)
    if not shuffle:
        return Sequential()
    if window is None:
        from ringfeed.orders.permutation import Shuffled  # noqa: PLC0415 - where it is wanted

        return Shuffled()
    from ringfeed.orders.windows import WindowShuffle  # noqa: PLC0415 - where it is wanted

    order = WindowShuffle(window)
    order.given_as = f"shuffle={shuffle!r}"
    return order

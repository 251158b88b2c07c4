"""A loader's parameters of order, understood: a sampler, and this rank's part of its epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ringfeed._checks import check_count
from ringfeed.orders.sampler import SeededSampler, Sequential, check_integer, check_seed, draw_seed
from ringfeed.orders.shard import Part, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.orders.sampler import Sampler
    from ringfeed.orders.shard import Uneven


class _Default(int):
    """A default, told by its identity from the same number that a caller says."""


DEFAULT_BATCH_SIZE = _Default(32)


class AskedOrder(NamedTuple):
    """The loader's parameters of these names, understood together."""

    given: Any  # as ``sampler=`` or ``batch_sampler=``
    sampler: Any  # what gives the order
    shuffle: bool | int
    batch_size: int | None  # None: whole batches, or lists of samples
    rows: int | None  # the most samples of a batch; None: whole batches
    max_batch_size: int | None  # where batches are made whole
    seed: int
    seed_is_drawn: bool
    shard: Shard
    part: Part  # of each epoch

    @classmethod
    def of(  # noqa: PLR0913 - as the loader has
        cls,
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
    ) -> AskedOrder:
        """Check them, in this order; ``collates``: a function makes batches of the samples."""
        size, most = (
            check_count("batch_size", batch_size, 1),
            check_count("max_batch_size", max_batch_size, 1),
        )
        number = draw_seed() if seed is None else check_seed(seed)
        this = Shard.of(shard)
        uneven: Uneven = "drop" if drop_remainder else this.uneven
        rows, given, order = size, sampler, sampler
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
            order = (
                batch_sampler.shared_by(this.world_size, uneven, most)
                if of_buckets
                else Lists(batch_sampler, most)
            )
            given, size, rows, most = batch_sampler, None, order.most, most if collates else None
        this.check(order, seed)
        of_each = size or 1  # positions of the order that a batch takes
        part = Part(this.rank, this.world_size, of_each, uneven)
        return cls(given, order, shuffle, size, rows, most, number, seed is None, this, part)

    @property
    def carries_weights(self) -> bool:
        """Whether samples come with their numbers and weights."""
        return isinstance(self.sampler, SeededSampler) and self.sampler.carries_weights

    def refuse_weights(self) -> None:
        """Raise ValueError where Keras' ``fit`` has no place for what a batch holds."""
        if self.carries_weights:
            raise ValueError(
                "to_keras() with a PrioritizedSampler: fit reads a batch of three as (x, y, "
                "sample_weight), and these are (sample, index, weight); write the loop: for (x, "
                "y), index, weight in loader: model.train_on_batch(x, y, sample_weight=weight), "
                "and then sampler.update(index, errors)"
            )

    @property
    def shared_part(self) -> Part | None:
        """The part of this rank, where there are others."""
        return self.part if self.part.world_size > 1 else None


def make_sampler(
    length: int | None,
    *,
    shuffle: bool | int,
    seed: int,
    sampler: SeededSampler | Iterable[int] | Callable[[int], Iterable[int]] | None,
) -> Sampler:
    """Return the order that a loader's arguments ask for.

    ``length`` is the dataset's, None where unknown.
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
    """Raise ValueError for the parameter that asks for an order which a dataset cannot have."""
    parameter = sampler.parameter if isinstance(sampler, SeededSampler) else "sampler"
    given = f"shuffle={shuffle!r}" if sampler is None else f"{parameter}="
    raise ValueError(f"{given} {why}")

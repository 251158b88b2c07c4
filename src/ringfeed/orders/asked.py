"""What a loader's parameters of order come to: which samples a batch has, and which part of them this rank gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._checks import check_choice, check_count
from ringfeed.orders.ranks import Rank
from ringfeed.orders.sampler import check_seed, draw_seed
from ringfeed.orders.shard import Shard

if TYPE_CHECKING:
    from ringfeed.orders.batch_lists import BatchLists
    from ringfeed.orders.bucket_order import BucketLists
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
    rank: Rank
    part: Shard  # of each epoch

    @classmethod
    def of(  # noqa: PLR0913 - as the loader has
        cls,
        *,
        batch_size: int | None,
        max_batch_size: int | None,
        seed: int | None,
        rank: int,
        world_size: int,
        shard: str | None,
        uneven: Uneven,
        drop_remainder: bool,
        batch_sampler: Any,
        sampler: Any,
        shuffle: bool | int,
        collates: bool,
    ) -> AskedOrder:
        """Check them, in this order; ``collates``: a function makes whole batches of the samples."""
        size, most = check_count("batch_size", batch_size, 1), check_count("max_batch_size", max_batch_size, 1)
        number = draw_seed() if seed is None else check_seed(seed)
        this = Rank.of(rank, world_size, shard)
        check_choice("uneven", uneven, ("pad", "drop", "keep"))
        uneven = "drop" if drop_remainder else uneven
        rows, given, order = size, sampler, sampler
        if batch_sampler is not None:
            from ringfeed.orders.batch_lists import refuse_beside_lists  # noqa: PLC0415 - few loaders are given lists
            from ringfeed.orders.buckets import Buckets  # noqa: PLC0415 - few loaders are given lists

            sizes = None if batch_size is DEFAULT_BATCH_SIZE else "batch_size"
            drops = drop_remainder and not isinstance(batch_sampler, Buckets)
            refuse_beside_lists(sizes, shuffle=shuffle, sampler=sampler, drop_remainder=drops)
            given, order = batch_sampler, _lists_of(batch_sampler, this.world_size, uneven, most)
            order.check_ranks(this.world_size)
            size, rows, most = None, order.most, most if collates else None
        this.check(order, seed)
        of_each = size or 1  # positions of the order that a batch takes
        part = Shard(this.rank, this.world_size, of_each, uneven)
        return cls(given, order, shuffle, size, rows, most, number, seed is None, this, part)

    @property
    def carries_weights(self) -> bool:
        """Whether samples come with their numbers and weights."""
        return getattr(self.sampler, "carries_weights", False)

    def refuse_weights(self) -> None:
        """Raise ValueError where Keras' ``fit`` has no place for what a batch holds."""
        if self.carries_weights:
            raise ValueError(
                "to_keras() with a PrioritizedSampler: fit reads a batch of three as (x, y, sample_weight), and these "
                "are (sample, index, weight); write the loop: for (x, y), index, weight in loader: "
                "model.train_on_batch(x, y, sample_weight=weight), and then sampler.update(index, errors)"
            )

    @property
    def shared_part(self) -> Shard | None:
        """The part of this rank, where there are others."""
        return self.part if self.part.world_size > 1 else None


def _lists_of(batch_sampler: Any, world_size: int, uneven: Uneven, most: int | None) -> BatchLists | BucketLists:
    """Return what gives the samples of each batch, of at most ``most``."""
    from ringfeed.orders.batch_lists import BatchLists  # noqa: PLC0415 - few loaders are given lists
    from ringfeed.orders.buckets import Buckets  # noqa: PLC0415 - few loaders are given lists

    if isinstance(batch_sampler, Buckets):
        return batch_sampler.shared_by(world_size, uneven, most)
    return BatchLists(batch_sampler, most)

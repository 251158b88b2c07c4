"""The next sample and its random numbers: functions of seed, epoch and position.

    sampler ─▶ Sampler.epoch(number, start) ─▶ Epoch.take(count): sample numbers, for the ring
                                                 └─▶ shard: the part of one rank (found by ranks)

    sampler       the interface of orders; samples in order. permutation: a shuffle without memory
    making        turns the loader's parameters of order into a sampler
    custom        the user's orders: sample numbers, or lists of them
    buckets       batches of samples of similar length
    weighted subsets windows     ringfeed's samplers, for sampler= or shuffle=
    prioritized   draws by priorities that training sets; adds weights
    mix           mixes several datasets, by their proportions
    packing       which samples make each row of a Pack
    rng           the random numbers of a sample

Imports no other package of ringfeed.
"""

from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.orders.buckets import Buckets
    from ringfeed.orders.prioritized import PrioritizedSampler
    from ringfeed.orders.subsets import StratifiedSampler, SubsetSampler
    from ringfeed.orders.weighted import WeightedSampler
    from ringfeed.orders.windows import WindowShuffle

__all__ = [
    "Buckets",
    "PrioritizedSampler",
    "StratifiedSampler",
    "SubsetSampler",
    "WeightedSampler",
    "WindowShuffle",
]

__getattr__ = importing(
    "ringfeed.orders",
    {
        "Buckets": "buckets",
        "PrioritizedSampler": "prioritized",
        "StratifiedSampler": "subsets",
        "SubsetSampler": "subsets",
        "WeightedSampler": "weighted",
        "WindowShuffle": "windows",
    },
)

"""Which sample comes next, and its random numbers: functions of seed, epoch and position.

    sampler ─▶ Sampler.epoch(number, start) ─▶ Epoch.take(count): sample numbers, for the ring
                                                 └─▶ shard: the part of one rank (found by ranks)

    sampler       what every order has; samples in order. permutation: a shuffle without memory
    making        what the loader's parameters of order ask for
    custom        of the user's: numbers, or whole batches of them
    buckets       batches of samples of like length
    weighted subsets windows     ringfeed's own, given as sampler= or shuffle=
    prioritized   drawn by what training says, and carried with weights
    mix           of several datasets, by their proportions
    packing       which samples make each row of a Pack
    rng           the numbers a sample draws

Imports nothing of the other packages.
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

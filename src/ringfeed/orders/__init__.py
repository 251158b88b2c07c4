"""Which sample comes next, and the random numbers that belong to it: functions of seed, epoch and position.

    sampler ─▶ Sampler.epoch(number, start) ─▶ Epoch.take(count): sample numbers, for the ring to plan
                                                 └─▶ shard: the part of one rank (ranks: which one this is)

    sampler       in order, shuffled, and what every order has; permutation: a shuffle in constant memory
    making        which one the loader's arguments ask for
    custom, batch_lists  of the user's: numbers, or whole batches of them
    buckets       batches of samples of like length (bucket_order)
    weighted subsets windows     ringfeed's own, given as sampler= or shuffle=
    prioritized   drawn by what training says, and carried with weights (draws, sum_tree)
    mix           of several datasets, by their proportions
    rng           the numbers a sample draws

Imports nothing of the other packages.
"""

"""One running loader: options become a plan, the plan a ring with workers, the ring batches.

    open_source ──▶ options ──▶ plan ──▶ parts: segment, ring, workers ──▶ Engine ──▶ batches, _iterator
                                                         ├── lookahead   plans this epoch and the next
                                                         ├── waiting     for workers or views: bounded, explained
                                                         ├── settling    leaves out rows that failed
                                                         └── copy_policy which batch keeps its slot

    runner               begins one epoch after the other
    position, place, identity, hooks   where the user's code is in the order, as a state, and gone on from
    autotune, resizer    what is "auto", changed while training runs

Imports `workers` and what lies below.
"""

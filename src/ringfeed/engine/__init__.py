"""One running loader: options become a plan, the plan a ring with workers, the ring batches.

    open_source ──▶ options ──▶ plan ──▶ Engine: memory, ring, workers ──▶ _iterator: batches
                                            ├── lookahead   plans this epoch and the next
                                            └── settling    decides on failed rows, and on slots

    sending              a dataset's way to the workers, ahead of the first epoch
    runner               begins one epoch after the other; says what was done so far
    position, identity, hooks   where the user's code is in the order, as a state, and gone on from
    autotune             what is "auto", changed while training runs

Imports `workers` and what lies below.
"""

"""One running loader: options become a plan, the plan a ring with workers, the ring batches.

    open_source ──▶ options ──▶ plan ──▶ Engine: memory, ring, workers ──▶ _iterator: batches
                                            ├── lookahead   plans this epoch and the next
                                            └── settling    decides on failed rows, and on slots

    sending              sends the dataset to the workers, before the first epoch
    runner               begins each epoch after the last; returns the statistics
    position, identity, hooks   the position in the order, saved as a state and loaded
    autotune             changes settings that are "auto" while training runs

Imports `workers` and what lies below.
"""

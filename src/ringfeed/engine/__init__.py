"""One running loader: options become a plan, the plan a ring with workers, the ring batches.

options ──▶ plan ──▶ parts: segment, ring, workers ──▶ Engine ──▶ batches, _iterator
                                                         ├── lookahead   plans this epoch and the next
                                                         ├── waiting     for workers or views: bounded, explained
                                                         ├── settling    leaves out rows that failed
                                                         └── copy_policy which batch keeps its slot

`runner` begins one epoch after the other. Imports `resume`, `tuning` and what lies below them.
"""

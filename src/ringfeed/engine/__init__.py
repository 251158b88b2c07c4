"""One running loader: options become a plan, the plan a ring with workers, the ring batches.

options ──▶ plan ──▶ Engine ──▶ batches, _iterator
                       ├── room            which batch keeps its slot
                       ├── faults          what went wrong, in words
                       └── autotune, resizer   slots and workers, by what they wait for
"""

"""Where the user's code is in a loader's order: taken as a state, and gone on from.

    position ── place: epoch, samples ──▶ identity ──▶ state_dict()
        ▲                                    │ is it of this dataset, order and seed?
        └────────────── place ◀──────────────┴─────── load_state_dict()

    hooks  what the dataset's hooks have done to it, and how that is done again

Imports `data`, `orders` and what lies below them.
"""

"""What a dataset is: its kind, its length, the order of its samples, and how a worker reads them.

    dataset ──▶ probe (kind, length, spec) ──▶ sampler (which index comes next, in the consumer)
                                            └─▶ source  (ticket after ticket, in a worker)

`rng` gives the random numbers that belong to a sample. Imports only `spec` and `ring`.
"""

"""What a dataset is: its kind, its length, the order of its samples, and how a worker reads them.

    dataset ──▶ open_source ──▶ Array-, Sample-, Batch-, Stream- or MixSource (spec, length)
                                  ├─▶ sampler (which index comes next, in the consumer)
                                  └─▶ reader  (ticket after ticket, in a worker)

`rng` gives the random numbers that belong to a sample. Imports only `spec` and `ring`.
"""

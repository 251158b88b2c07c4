"""What a dataset is: its kind, its length, and how a worker reads it.

    dataset ──▶ open_source ──▶ Array-, Sample-, Batch-, Stream- or MixSource (spec, length)
                                  │   (DrawSource: of samples, with their numbers and weights)
                                  ├─▶ sampler (which index comes next, in the consumer: see `orders`)
                                  └─▶ reader  (ticket after ticket, in a worker)

Imports only `orders`, `spec` and `ring`.
"""

"""What a dataset is: its kind, its length, and how a worker reads it.

    dataset ──▶ Array-, Sample-, Batch- or StreamSource (spec, length)
                  │   (DrawSource: of samples, with their numbers and weights)
                  ├─▶ sampler (which index comes next, in the consumer: see `orders`)
                  └─▶ reader  (ticket after ticket, in a worker)

Which kind a dataset is, `ringfeed.sources` decides once. Imports only `iterables`, `orders`, `spec` and `ring`.
"""

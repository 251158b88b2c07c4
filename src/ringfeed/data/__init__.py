"""What a dataset is: its kind, its length, and how a worker reads it.

    dataset ──▶ Array-, Sample- or BatchSource, or that of a room (spec, length)
                  ├─▶ sampler (which index comes next, in the consumer: see `orders`)
                  └─▶ reader  (ticket after ticket, in a worker)

Which kind a dataset is, `ringfeed.sources` decides once. Rooms have sources of their own: `iterables`, `datasets`,
`transforms`, `waiting`. Imports only `orders`, `spec` and `ring`.
"""

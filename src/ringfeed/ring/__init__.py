"""Shared memory: slots of batches, their leases, and the claims of workers.

A thin layer over `cext/`.

    segment ──▶ _ring.Ring         plan, bind, take     (the consumer)
       │           └── Lease       holds a slot until the last view of it dies
    mapping ──▶ _ring.WorkerEnd    claim, publish       (a worker)

No module here imports NumPy: a worker opens its segment before it knows whether it needs that.
Imports only `system`, `errors` and `_units`.
"""

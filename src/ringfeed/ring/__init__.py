"""Shared memory: slots of batches, their leases, and the claims of workers. A thin layer over `cext/`.

    segment ──▶ _ring.Ring         plan, bind, take     (the consumer)
       │           └── Lease       holds a slot until the last view of it dies
       └──────▶ _ring.WorkerEnd    claim, publish       (a worker)

`machine` knows what this system allows. No module here imports NumPy, so a worker's guard starts before NumPy does.
Imports only `errors` and `_units`.
"""

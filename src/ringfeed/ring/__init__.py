"""Shared memory: slots of batches, their leases, and the claims of workers. A thin layer over `cext/`.

    segment ──▶ _ring.Ring         plan, bind, take     (the consumer)
       │           └── Lease       holds a slot until the last view of it dies
       └──────▶ _ring.WorkerEnd    claim, publish       (a worker)
                _snapshot          reads the control block of any loader; snapshot: what it says, in types and words

`machine` knows what this system allows, `failure` why a row is missing. No module here imports NumPy, so a worker's
guard starts before NumPy does. Imports only `errors` and `_units`.
"""

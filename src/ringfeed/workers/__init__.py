"""What fills slots: the consumer itself, its threads, or processes that are replaced when they die.

    pool (the consumer), threads, processes
                               ├── roster   those alive, those to replace
                               └── process (spawned), or launchers ──▶ forkserver, fork

    worker_main       what runs in a worker
    warm, warm_main   one process for all loaders; it has imported, and forks the forkservers
    asked             sample 0, read in a fork

Imports `reading`, `transport`, `monitor` and what lies below.
"""

"""What fills slots: the consumer itself, its threads, or processes that are replaced when they die.

    pool (the consumer), threads, processes
                               ├── roster   those alive, those to replace
                               └── process (spawned), or launchers ──▶ forkserver, or fork ──▶ worker_main

    warm, warm_main   one process for all loaders, which has imported and holds nothing: forkservers are its forks
    asked             sample 0, read in a fork

Imports `reading`, `transport`, `monitor` and what lies below.
"""
